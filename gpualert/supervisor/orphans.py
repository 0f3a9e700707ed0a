"""Leftover processes: what the child started and did not wait for."""

from __future__ import annotations

import _signal
import posix
import time

from gpualert.supervisor import files, signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def descendants(ancestor: int, *, but: int = 0) -> list[int]:
    """The process ids of all living descendants of a process, as /proc shows them; empty without /proc.

    Args:
        ancestor: Its process id.
        but: One that is left out, with its own descendants.
    """
    children: dict[int, list[int]] = {}
    try:
        names = posix.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        # pid (name) state ppid ...; the name may hold anything
        fields = (files.read(f"/proc/{name}/stat") or b"").rpartition(b")")[2].split()
        if len(fields) > 1 and fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(name))
    found, rest = [], [ancestor]
    while rest:
        for pid in children.get(rest.pop(), ()):
            if pid != but:
                found.append(pid)
                rest.append(pid)
    return found


def end_leftovers(grace: float, pause: Callable[[float], set[int]], own: int = 0) -> None:
    """Send all our descendants SIGTERM, and those that are still there after a while SIGKILL.

    Args:
        grace: How long they have, in seconds.
        pause: Takes signals and reaps for at most so many seconds.
        own: A process of gpualert's, which is left alone.
    """
    until = time.monotonic() + grace
    for pid in descendants(posix.getpid(), but=own):
        signals.send(pid, _signal.SIGTERM)
        signals.send(pid, _signal.SIGCONT)  # a stopped process would not see it
    while descendants(posix.getpid(), but=own):
        if time.monotonic() >= until:
            for pid in descendants(posix.getpid(), but=own):
                signals.send(pid, _signal.SIGKILL)
            until += 1.0
            grace = 0
        pause(min(0.1, max(until - time.monotonic(), 0.01)))
