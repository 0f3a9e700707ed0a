"""Whether a supervisor still lives."""

from __future__ import annotations

import os
import signal

from conftest import Gpualert, run_dirs, wait_until

from gpualert.rundir import survivor
from gpualert.rundir.reader import Run


def test_a_supervisor_of_which_only_the_status_is_left_is_dead(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "echo $$; exec sleep 600"])
    started.wait_for(b"\n")
    path = run_dirs(plain.log_dir)[0]
    run = Run.read(str(path))
    assert survivor.is_alive(run)
    os.kill(started.process.pid, signal.SIGKILL)
    state = f"/proc/{started.process.pid}/stat"
    wait_until(lambda: open(state).read().rpartition(")")[2].split()[0] == "Z", "the zombie")
    try:
        # A process that the supervisor was about to start has its lock until it is executed.
        wait_until(lambda: not survivor.is_alive(run), "the lock's end")
        assert survivor.find_interrupted(str(plain.log_dir)) == [str(path)]
    finally:
        os.kill(int((path / "output.log").read_bytes()), signal.SIGKILL)
        started.finish()
