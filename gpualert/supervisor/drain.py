"""Draining: what the child has written comes out after its end, but nobody can keep us for longer than a moment."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.supervisor.supervision import Supervision

DRAIN_S = 2.0
"""A grandchild may hold the pipes open, our reader may be blocked: then what is left stays where it is."""


def drain(run: Supervision) -> None:
    """Let what is in the pipes come out, and say what could not.

    Args:
        run: The run, whose child has ended.
    """
    streams = run.streams
    if streams is None:
        return
    until = run.ended_at + DRAIN_S
    while not streams.exhausted() and time.monotonic() < until:
        run.pause(until - time.monotonic())
    if run.journal.lock.acquire(timeout=DRAIN_S):
        for reader in streams.readers:
            reader.stop()
        run.journal.lock.release()
    streams.close_passers()
    while not streams.passed_on() and time.monotonic() < until:
        run.pause(until - time.monotonic())
    for fd, passer in streams.passers.items():
        left = 0 if passer.done or passer.gone else passer.abandon()
        where = "stdout" if fd == 1 else "stderr"
        if left:
            run.trouble.report(f"{where} is blocked: the last {left} bytes were not passed on (the log has them)")
        if passer.error is not None and not isinstance(passer.error, BrokenPipeError):
            run.trouble.report(f"cannot write {where} ({passer.error.strerror}): the log has everything")
    for reader in streams.readers:
        if reader.failure is not None:
            run.trouble.report(f"a fault inside gpualert cost the log some output ({reader.failure})")
