"""What all tests share: gpualert as a real process, plain and as PID 1 of a PID namespace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ENTRY = REPOSITORY / "gpualert" / "__main__.py"
PYTHON = sys.executable
# Under nohup or in a background job the tests would hand ignored signals down, and see other ones than they set.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
PATIENCE_S = 60.0
"""How long a test waits for what must come; it bounds a failure and measures nothing."""


@dataclass
class Completed:
    """A run that has ended."""

    returncode: int
    stdout: bytes
    stderr: bytes
    log_dir: Path

    @property
    def said(self) -> list[str]:
        """The lines on stderr that are gpualert's own."""
        return [line for line in self.stderr.decode("utf-8", "replace").splitlines() if line.startswith("gpualert: ")]

    @property
    def run_dir(self) -> Path:
        return run_dirs(self.log_dir)[-1]

    def file(self, name: str) -> bytes:
        return (self.run_dir / name).read_bytes()

    def json(self, name: str) -> Any:
        return json.loads(self.file(name))

    @property
    def log(self) -> bytes:
        return self.file("output.log")

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file("events.jsonl").splitlines()]


def run_dirs(log_dir: Path) -> list[Path]:
    """The run directories in a log directory, oldest first."""
    return sorted(path for path in log_dir.iterdir() if path.name[:8].isdigit() and not path.is_symlink())


@dataclass
class Started:
    """A run that goes on."""

    process: subprocess.Popen[bytes]
    log_dir: Path

    def wait_for(self, text: bytes) -> None:
        """Wait until the command's output holds ``text``."""
        wait_until(lambda: any(text in (d / "output.log").read_bytes() for d in run_dirs(self.log_dir)), f"{text!r}")

    def finish(self) -> Completed:
        stdout, stderr = self.process.communicate(timeout=PATIENCE_S)
        return Completed(self.process.returncode, stdout or b"", stderr or b"", self.log_dir)


def wait_until(condition: Any, what: str) -> None:
    """Wait until something holds; fails when it does not within the patience of a test."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except (OSError, IndexError, ValueError, StopIteration):
            pass
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.01)


@dataclass
class Gpualert:
    """Starts gpualert as users do."""

    log_dir: Path
    pid1: bool = False
    python: tuple[str, ...] = (PYTHON, "-I")
    environment: dict[str, str] = field(default_factory=dict)

    def argv(self, options: list[str], command: list[str]) -> list[str]:
        prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--"] if self.pid1 else []
        return [*prefix, *self.python, str(ENTRY), "run", "--log-dir", str(self.log_dir), *options, "--", *command]

    def _environment(self, extra: dict[str, str] | None) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUALERT_", "PYTHON"))}
        return {**kept, **self.environment, **(extra or {})}

    def run(self, command: list[str], *options: str, env: dict[str, str] | None = None, **popen: Any) -> Completed:
        """Run a command to its end."""
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        popen.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(
            self.argv(list(options), command), env=self._environment(env), timeout=PATIENCE_S, check=False, **popen
        )
        return Completed(done.returncode, done.stdout or b"", done.stderr or b"", self.log_dir)

    def start(self, command: list[str], *options: str, env: dict[str, str] | None = None, **popen: Any) -> Started:
        """Start a command that goes on."""
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        popen.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(self.argv(list(options), command), env=self._environment(env), **popen)
        return Started(process, self.log_dir)


def python(text: str) -> list[str]:
    """A command that runs Python text."""
    return [PYTHON, "-c", text]


@pytest.fixture(params=["plain", pytest.param("pid1", marks=pytest.mark.root)])
def gpualert(request: pytest.FixtureRequest, tmp_path: Path) -> Gpualert:
    """gpualert, once as an ordinary process and once as PID 1."""
    return Gpualert(tmp_path / "logs", pid1=request.param == "pid1")


@pytest.fixture
def plain(tmp_path: Path) -> Gpualert:
    """gpualert as an ordinary process, for what does not depend on being PID 1."""
    return Gpualert(tmp_path / "logs")


def fast(python_path: str = "/usr/bin/python3") -> tuple[str, ...]:
    """An interpreter without site packages: the supervisor needs none."""
    return (python_path if os.path.exists(python_path) else PYTHON, "-IS")
