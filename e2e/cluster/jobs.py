"""What the cluster tests share: kubectl against whatever cluster KUBECONFIG names, and Jobs with gpualert in them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON

PREFIX = os.environ.get("GPUALERT_E2E_IMAGES", "localhost/gpualert-e2e")
INJECT = ("--image", f"{PREFIX}/gpualert:latest", "--image-pull-policy", "IfNotPresent")
PATIENCE_S = 120.0


def kubectl(*arguments: str, text: str | None = None, check: bool = True) -> str:
    """Run kubectl; what it prints."""
    done = subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def inject(manifest: str, *options: str) -> str:
    """The manifest with gpualert in it, as a post-renderer makes it."""
    argv = [PYTHON, "-I", "-m", "gpualert", "inject", *INJECT, *options]
    return subprocess.run(argv, input=manifest, capture_output=True, text=True, check=True).stdout


def job(
    name: str, command: list[str], *, image: str = "bookworm", pod: str = "", spec: str = "", container: str = ""
) -> str:
    """A Job's manifest; further lines are for its spec, its pod's spec, and its container."""
    return f"""\
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  backoffLimit: 0
{spec}
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 10
{pod}
      containers:
        - name: main
          image: {PREFIX}/{image}:latest
          imagePullPolicy: IfNotPresent
          command: {json.dumps(command)}
{container}
"""


@dataclass
class Namespace:
    """A namespace of a test's own."""

    name: str
    logs: Path

    def run(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        return kubectl("--namespace", self.name, *arguments, text=text, check=check)

    def apply(self, manifest: str) -> None:
        self.run("apply", "-f", "-", text=manifest)

    def get(self, *what: str) -> Any:
        return json.loads(self.run("get", *what, "-o", "json"))

    def pods(self, name: str) -> list[dict[str, Any]]:
        """A Job's pods, oldest first."""
        found = self.get("pods", "-l", f"job-name={name}")["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = condition()
            except (AssertionError, KeyError, IndexError, ValueError, OSError):
                found = None
            if found:
                return found
            if time.monotonic() > end:
                pytest.fail(f"waited in vain for {what}\n{self.run('describe', 'pods', check=False)[-3000:]}")
            time.sleep(0.3)

    def ended(self, name: str, container: str = "main") -> dict[str, Any]:
        """How a container of a Job's newest pod ended."""
        found: dict[str, Any] = self.until(lambda: terminated(self.pods(name)[-1], container), f"the end of {name}")
        return found

    def runs(self) -> list[Path]:
        """The run directories on the log volume."""
        return sorted(path for path in self.logs.iterdir() if path.name[:8].isdigit() and not path.is_symlink())

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runs()[-1] / "report.json").read_text())
        return found


def terminated(pod: dict[str, Any], container: str = "main") -> dict[str, Any] | None:
    """A container's last state, where it has ended."""
    for status in pod["status"].get("containerStatuses") or []:
        if status["name"] == container:
            found: dict[str, Any] | None = status["state"].get("terminated")
            return found
    return None


def told(state: dict[str, Any]) -> dict[str, Any]:
    """The termination message's last line."""
    found: dict[str, Any] = json.loads(state["message"].strip().splitlines()[-1])
    return found


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[Namespace]:
    """A namespace, with a directory of the node for logs (these tests run on the node)."""
    if not os.environ.get("KUBECONFIG"):
        pytest.fail("KUBECONFIG names no cluster: ./dev e2e e2e/cluster starts one")
    logs = Path("/var/tmp") / f"gpualert-e2e-{secrets.token_hex(4)}"
    logs.mkdir()
    logs.chmod(0o777)
    made = Namespace(f"e2e-{secrets.token_hex(4)}", logs)
    kubectl("create", "namespace", made.name)
    made.until(lambda: made.run("get", "serviceaccount", "default"), "the service account")
    yield made
    kubectl("delete", "namespace", made.name, "--wait=false")
    subprocess.run(["rm", "-rf", str(logs)], check=False)
