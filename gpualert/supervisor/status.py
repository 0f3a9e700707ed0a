"""How a process ended, and how to end as it did."""

from __future__ import annotations

import _signal
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

CALLED_WRONGLY = 125


class Ending:
    """How the child ended.

    Attributes:
        exit_code: Its exit code; None when a signal ended it.
        signal: The signal that ended it; None when it exited.
        core_dumped: Whether it left a core dump.
    """

    __slots__ = ("core_dumped", "exit_code", "signal")

    def __init__(self, exit_code: int | None, signal: int | None = None, *, core_dumped: bool = False) -> None:
        self.exit_code = exit_code
        self.signal = signal
        self.core_dumped = core_dumped

    @classmethod
    def from_wait(cls, status: int) -> Ending:
        """What waitpid(2) said."""
        if posix.WIFSIGNALED(status):
            return cls(None, posix.WTERMSIG(status), core_dumped=posix.WCOREDUMP(status))
        return cls(posix.WEXITSTATUS(status))

    @property
    def success(self) -> bool:
        """Whether this is exit code 0."""
        return self.exit_code == 0


def end_as(ending: Ending) -> NoReturn:
    """End this process as the child ended: the same code, or the same signal (128+S as PID 1, which none can end)."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads it any more
    if ending.signal is None:
        posix._exit(ending.exit_code if ending.exit_code is not None else CALLED_WRONGLY)
    if posix.getpid() != 1:
        from gpualert.supervisor import kernel  # noqa: PLC0415

        kernel.forbid_core_dump()  # the child's is enough
        if ending.signal not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(ending.signal, _signal.SIG_DFL)
        posix.kill(posix.getpid(), ending.signal)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {ending.signal})
        _signal.sigtimedwait((), 1)  # a signal may take a moment
    posix._exit(128 + ending.signal)
