"""Real containers by podman and runc, without a network; gpualert is PID 1 in them, from the bundle."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PREFIX = os.environ.get("GPUALERT_E2E_IMAGES", "localhost/gpualert-e2e")
LAUNCHER = "/gpualert/bin/gpualert"
PODMAN = ["podman", "--runtime", "/usr/sbin/runc"]
# Named, because runc may not raise limits here; PID and file limits of a usual container.
LIMITS = ["--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4000:4000"]
PATIENCE_S = 60.0


@dataclass
class Ended:
    """A container that has ended.

    Attributes:
        code: Its exit code, as ``podman inspect`` tells it.
        stdout: What came out.
        stderr: The same, of the other stream.
    """

    code: int
    stdout: str
    stderr: str


@dataclass
class Container:
    """A container that was created, and goes on until it is waited for."""

    name: str
    process: subprocess.Popen[str]

    def inspect(self) -> dict[str, Any]:
        done = subprocess.run(["podman", "inspect", self.name], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(done.stderr)  # it is not there yet
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found

    @property
    def pid(self) -> int:
        """PID 1 of the container, as the host numbers it."""
        return int(self.inspect()["State"]["Pid"])

    def wait(self) -> Ended:
        stdout, stderr = self.process.communicate(timeout=PATIENCE_S)
        return Ended(int(self.inspect()["State"]["ExitCode"]), stdout, stderr)


class Containers:
    """Starts containers, and removes them in the end."""

    def __init__(self, bundle: Path, scratch: Path) -> None:
        self.bundle = bundle
        self.logs = scratch / "logs"
        self.logs.mkdir()
        self.logs.chmod(0o777)
        self.message = scratch / "termination-log"
        self.message.touch()
        self.message.chmod(0o666)
        self._started: list[str] = []

    def start(
        self, image: str, command: list[str], *options: str, gpualert: tuple[str, ...] = (), logs: bool = True
    ) -> Container:
        """Run a command under gpualert in a container, with the bundle, a log volume and a termination message."""
        name = f"gpualert-e2e-{secrets.token_hex(4)}"
        self._started.append(name)
        volumes = ["-v", f"{self.bundle}:/gpualert:ro", "-v", f"{self.message}:/dev/termination-log"]
        volumes += ["-v", f"{self.logs}:/var/log/gpualert"] if logs else []
        argv = [
            *PODMAN,
            "run",
            "--name",
            name,
            *LIMITS,
            *volumes,
            *options,
            "--entrypoint",
            LAUNCHER,
            f"{PREFIX}/{image}",
        ]
        process = subprocess.Popen(
            [*argv, "run", *gpualert, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return Container(name, process)

    def run(
        self, image: str, command: list[str], *options: str, gpualert: tuple[str, ...] = (), logs: bool = True
    ) -> Ended:
        """The same, to its end."""
        return self.start(image, command, *options, gpualert=gpualert, logs=logs).wait()

    def runs(self) -> list[Path]:
        """The run directories, oldest first."""
        return sorted(path for path in self.logs.iterdir() if path.name[:8].isdigit() and not path.is_symlink())

    def report(self) -> dict[str, Any]:
        """The newest run's report."""
        found: dict[str, Any] = json.loads((self.runs()[-1] / "report.json").read_text())
        return found

    def wait_for(self, text: str) -> None:
        """Wait until the newest run's output holds a text."""
        self.until(lambda: text in (self.runs()[-1] / "output.log").read_text("utf-8", "replace"), text)

    @staticmethod
    def until(condition: Any, what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                if condition():
                    return
            except (OSError, IndexError, ValueError):
                pass
            assert time.monotonic() < end, f"waited in vain for {what}"
            time.sleep(0.02)

    def remove(self) -> None:
        for name in self._started:
            subprocess.run(["podman", "rm", "--force", "--time", "0", name], capture_output=True, check=False)


def unpack(directory: Path) -> Path:
    """The bundle, taken out of the image by its own ``gpualert install``."""
    target = directory / "bundle"
    target.mkdir()
    subprocess.run(
        [*PODMAN, "run", "--rm", *LIMITS, "--user", "0", "-v", f"{target}:/target", "--entrypoint", LAUNCHER,
         f"{PREFIX}/gpualert", "install", "/target"],
        check=True, capture_output=True,
    )  # fmt: skip
    return target


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle on this machine's disk."""
    return unpack(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def containers(bundle: Path, tmp_path: Path) -> Iterator[Containers]:
    """Starts containers."""
    made = Containers(bundle, tmp_path)
    yield made
    made.remove()
