"""The survivor and the job on a real cluster: the same user, users of one group, and neither."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.jobs import PREFIX, Namespace, terminated
from e2e.cluster.test_jobs import EATER
from e2e.cluster.test_wrapping import Library

# PID 1 is the kernel's first choice, as if the whole group had to go: in a pod that is Guaranteed the others are spared.
KILLED = "with open('/proc/1/oom_score_adj', 'w') as f: f.write('1000')\n" + EATER.replace("0.02", "0.15")
OPTIONS = {"image": f"{PREFIX}/gpualert:latest", "imagePullPolicy": "IfNotPresent", "survivor": True}


def _end(namespace: Namespace, directory: Path, container: dict[str, Any], pod: dict[str, Any]) -> list[str]:
    """Run a job that is killed with its supervisor to its end; what the survivor says."""
    main = {
        "name": "main", "image": f"{PREFIX}/bookworm:latest", "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", KILLED], "resources": {"limits": {"cpu": "300m", "memory": "96Mi"}}, "securityContext": container,
    }  # fmt: skip
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 20, "containers": [main], "securityContext": pod}
    options = {**OPTIONS, "logVolume": {"hostPath": {"path": str(namespace.logs)}}}
    done = Library(directory, namespace).template(spec, options)
    assert done.returncode == 0, done.stderr
    body = "".join(f"  {line}\n" for line in done.stdout.splitlines() if line != "---" and not line.startswith("#"))
    namespace.apply(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n{body}")

    def ended() -> bool:
        status = namespace.get("pod", "p")
        attend = [s["state"] for s in status["status"]["initContainerStatuses"] if s["name"] == "gpualert-attend"]
        state = terminated(status)
        return state is not None and state["exitCode"] == 137 and "terminated" in attend[0]

    namespace.until(ended, "the end of both")
    return namespace.run("logs", "p", "-c", "gpualert-attend").splitlines()


@pytest.mark.parametrize(
    ("container", "pod", "group"),
    [({"runAsUser": 0}, {}, None), ({"runAsUser": 1000}, {}, None), ({}, {"fsGroup": 2000}, 2000)],
    ids=["root", "another user", "root, and a survivor of the volume's group"],
)
def test_what_was_killed_is_reported(
    namespace: Namespace, tmp_path: Path, container: dict[str, Any], pod: dict[str, Any], group: int | None
) -> None:
    if group is not None:  # what the kubelet does to volumes of its own for fsGroup; a directory of the node is not
        os.chown(namespace.logs, 0, group)
        namespace.logs.chmod(0o2775)
    said = _end(namespace, tmp_path, container, pod)
    assert [line for line in said if line.startswith("gpualert: ")] == []
    # Which of both, the last sample before the end decides.
    assert namespace.report()["diagnosis"]["class"] in ("oom_killer", "lost")
    facts = json.loads((namespace.runs()[0] / "exit.json").read_text())
    assert facts["interrupted"] is True
    assert (namespace.runs()[0] / "report.json").stat().st_uid == container.get("runAsUser", 65532)


def test_a_survivor_that_may_not_says_so_once(namespace: Namespace, tmp_path: Path) -> None:
    said = _end(namespace, tmp_path, {}, {})
    assert len(said) == 1
    assert said[0].startswith("gpualert: cannot close runs such as /var/log/gpualert/")
    assert "it belongs to user 0, and this is user 65532" in said[0]
    assert not (namespace.runs()[0] / "report.json").exists()
