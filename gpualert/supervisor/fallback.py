"""When gpualert itself fails: the command runs all the same, and its status is returned."""

from __future__ import annotations

import posix
import time

from gpualert.supervisor import signals
from gpualert.supervisor.status import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.supervisor.streams import Streams

PATIENCE_S, STEP_S = 2.0, 0.02


def wait(child: int) -> Ending:
    """Forward signals and reap until the child has ended; the pumps run on in their threads."""
    while True:
        try:
            pid, code = posix.waitpid(-1, posix.WNOHANG)
        except ChildProcessError:
            return Ending(status_unknown())
        if pid == child:
            return Ending.from_wait(code)
        if pid:
            continue
        taken = signals.take(1.0)
        if taken is not None and taken.si_signo != signals.CHILD_ENDED:
            signals.send(child, taken.si_signo)


def let_out(streams: Streams | None) -> None:
    """Give the pumps a moment to bring out what the child has written.

    Args:
        streams: The child's streams; None where it had ours.
    """
    if streams is None:
        return
    until = time.monotonic() + PATIENCE_S
    while not streams.exhausted() and time.monotonic() < until:
        time.sleep(STEP_S)
    streams.close_passers()
    while not streams.passed_on() and time.monotonic() < until:
        time.sleep(STEP_S)


def status_unknown() -> int:
    """The exit code when the child's own cannot be had any more: gpualert's for its own faults."""
    return 125
