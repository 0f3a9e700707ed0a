"""Telling of a run that goes on: that it has started, or how it is doing; a process beside the supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpualert.report import building, making
from gpualert.report.timeline import seconds_of
from gpualert.rundir.clock import now_us, rfc3339
from gpualert.rundir.reader import Run

if TYPE_CHECKING:
    from gpualert.notify.notice import Kind

DEADLINE_S = 45.0
"""Less than the shortest time between two progress mails, so that they do not pile up."""


def so_far(run: Run) -> Run:
    """A run that goes on, with its end put at now.

    Args:
        run: The run.
    """
    now = now_us()
    started = seconds_of(run.facts.get("started_at"))
    try:
        last = rfc3339(os.stat(run.log_path).st_mtime_ns // 1000)
    except OSError:
        last = None
    facts = {
        "duration_s": max(now / 1e6 - started, 0.0) if started is not None else None,
        "last_output_at": last,
        "log_bytes": _size(run.log_path),
    }
    return Run(run.path, run.facts, facts)


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def tell(directory: str, kind: Kind, deadline: float) -> None:
    """Tell whom the settings name how a run is doing.

    Args:
        directory: The run directory.
        kind: ``started`` or ``progress``.
        deadline: When to be done, on the monotonic clock.
    """
    from gpualert.notify import anybody, tell  # noqa: PLC0415  (email and smtplib are slow to import)

    log = making.logger(directory)
    run = Run.read(directory)
    if run.exit is not None:
        return
    settings = making.settings_of(run, log)
    if not anybody(settings) or settings.dry_run:
        return
    mask = making.redaction(settings)
    report = building.running(so_far(run), datetime.now(UTC), mask)
    told = tell(directory, kind, report, settings, [], mask, deadline, lambda _text: None)
    for entry in told:
        log.info("told", kind=kind, **entry.as_dict())


def tell_group(directory: str, group: str, deadline: float) -> None:
    """Tell of a group that has failed while this rank lives on.

    Args:
        directory: The run directory.
        group: The group's directory.
        deadline: When to be done, on the monotonic clock.
    """
    from gpualert.group import together  # noqa: PLC0415  (only for ranks that share a directory)

    log = making.logger(directory)
    with making.step(log, "tell of the group"):
        settings = making.settings_of(Run.read(directory), log)
        done = together.look(group, settings, making.redaction(settings), deadline, lambda _text: None, still=True)
        log.info("group", said=done.said)


def main() -> None:
    """A process of its own, started by the supervisor: run directory and kind are its arguments."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    kind: Any = sys.argv[2]
    deadline = time.monotonic() + DEADLINE_S
    if kind == "group":
        tell_group(sys.argv[1], sys.argv[3], deadline)
    elif kind in ("hang", "hang-over"):
        from gpualert.report import alarm  # noqa: PLC0415  (only for a run that hangs)

        (alarm.sound if kind == "hang" else alarm.call_off)(sys.argv[1], deadline)
    else:
        tell(sys.argv[1], kind, deadline)
    os._exit(0)  # whatever threads a library has left behind


if __name__ == "__main__":
    main()
