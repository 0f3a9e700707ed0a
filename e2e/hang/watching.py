"""A job watched as the collector watches one, without the rest of gpualert."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from conftest import PATIENCE_S, PYTHON

from e2e.hang.jobs import Job
from gpualert.hang.moment import Moment, Suspicion
from gpualert.hang.rhythm import Rhythm
from gpualert.telemetry.processes import Tree

# Stands where the supervisor does: the job is below it. It takes the job with it when it is asked to end.
_PARENT = """
import os, signal, subprocess, sys
job = subprocess.Popen(sys.argv[1:], start_new_session=True)
def end(*_):
    os.killpg(job.pid, signal.SIGKILL)
signal.signal(signal.SIGTERM, end)
sys.exit(job.wait())
"""


class Watched:
    """A job, its output, and what a detector says of it."""

    def __init__(self, command: list[str], environ: dict[str, str], directory: Path) -> None:
        self.directory = directory
        self._log = directory / "output.log"
        (directory / "run.json").write_text("{}")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-c", _PARENT, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
            )
        self.tree = Tree(self.process.pid)

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def moment(self) -> Moment:
        activity = self.tree.sample()
        return Moment(
            time.monotonic(), self._log.stat().st_size, activity.cpu_s, activity.io_bytes, None, activity.states
        )

    def printed(self, text: str) -> None:
        """Wait until its output holds a text."""
        until = time.monotonic() + 2 * PATIENCE_S
        while text not in self.output():
            assert time.monotonic() < until, f"waited in vain for {text!r} in {self.output()!r}"
            assert self.process.poll() is None, self.output()
            time.sleep(0.05)

    def told(self, after_s: float, state: str = "suspected", rhythm: Rhythm | None = None) -> tuple[Suspicion, Rhythm]:
        """Look until the detector says so."""
        rhythm = rhythm or Rhythm(after_s, 0.0)
        until = time.monotonic() + 2 * PATIENCE_S
        while time.monotonic() < until:
            suspicion = rhythm.observe(self.moment())
            if suspicion is not None:
                assert suspicion.state == state, suspicion
                return suspicion, rhythm
            time.sleep(0.25)
        raise AssertionError(f"no {state} was noticed")

    def end(self, cleanup: Callable[[], None]) -> None:
        pids = [one.pid for one in self.tree.processes()]
        self.process.send_signal(signal.SIGTERM)
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        cleanup()  # what waits for a file system does not end before that has gone
        self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def watched(make: Callable[[Path], Job], place: Path) -> Iterator[Watched]:
    """Start a job, wait until it has said its last word, and watch it; ends it.

    Args:
        make: Makes the job.
        place: A directory of its own.
    """
    job = make(place)
    directory = place / "run"
    directory.mkdir()
    run = Watched(job.command, job.environ, directory)
    try:
        run.printed(job.last)
        yield run
    finally:
        run.end(job.cleanup)
