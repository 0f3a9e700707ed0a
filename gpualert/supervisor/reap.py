"""Reaping: the status of every process that is ours, one change at a time."""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Usage: TypeAlias = tuple[float, float, int]
    """User and system time in seconds, and peak resident memory in bytes."""


def next_change() -> tuple[int, int, Usage | None]:
    """The next process that has ended, stopped or continued.

    Returns:
        Its id (0 when none has), its wait status, and what it used.

    Raises:
        ChildProcessError: There is no process that could.
    """
    flags = posix.WNOHANG | posix.WUNTRACED | posix.WCONTINUED
    try:
        import resource  # noqa: F401, PLC0415  (wait4 loads it itself, and would lose the status if that failed)
    except ImportError:
        pid, code = posix.waitpid(-1, flags)
        return pid, code, None
    pid, code, usage = posix.wait4(-1, flags)
    return pid, code, (usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024)
