"""Earlier attempts of a job: the run directories beside its own, and the incidents beside a group's."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gpualert.attempts import fingerprint, identity
from gpualert.attempts.streak import Attempt
from gpualert.rundir import regular, shapes
from gpualert.rundir.reader import MAX_JSON, run_ids
from gpualert.rundir.writer import EXIT, REPORT, RUN

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOKED_AT = 200
"""How many directories are looked at; those whose name cannot be this job's do not count."""
READ_BYTES = 64 << 20
"""How much of their reports is read."""
DAYS = 30
OTHER_CLOCK_S = 10.0
"""How far the clocks of two hosts may be apart."""
_NUMBERS = re.compile(r"\d+")
_TELLS = ("sent", "spooled")
_WANTED = ("run", "exit", "diagnosis", "progress", "attempt", "notifications", "made_at")


def ending(report: dict[str, Any]) -> str:
    """What stands for the decisive line where no line decides: how the run ended.

    Args:
        report: A report.
    """
    end = report["exit"]
    return f"exit {end.get('exit_code')} signal {end.get('signal')}"


def fingerprint_of(report: dict[str, Any], whose: tuple[str, ...]) -> str:
    """The fingerprint of what a report tells of.

    Args:
        report: The report.
        whose: The job (see ``identity.of``).
    """
    diagnosis = report["diagnosis"]
    root = diagnosis.get("root")
    return fingerprint.of(diagnosis["class"], root["text"] if root else ending(report), whose)


def attempt_of(report: dict[str, Any], whose: tuple[str, ...]) -> Attempt:
    """An attempt, from its report.

    Args:
        report: The report of a run or an incident, in its shape.
        whose: The job (see ``identity.of``).
    """
    run, end, got = report["run"], report["exit"], _table(report.get("progress"))
    told, outcomes = _told(report)
    said = _table(report.get("attempt"))
    log_bytes, node = end.get("log_bytes"), run.get("node") or run.get("host")
    return Attempt(
        str(run.get("run_id") or ""),
        str(report["diagnosis"]["class"]),
        fingerprint_of(report, whose),
        _seconds(end.get("ended_at")) or _seconds(report.get("made_at")) or 0.0,
        _real(end.get("duration_s")),
        _real(got.get("step")),
        _real(got.get("epoch")),
        _real(got.get("rate")),
        log_bytes if isinstance(log_bytes, int) else None,
        str(node) if node else None,
        _count(said.get("number")),
        _count(said.get("same")),
        _seconds(said.get("first_at")),
        told,
        told is None and "held" in outcomes,
    )


def of_run(path: str, facts: dict[str, Any]) -> Iterator[Attempt]:
    """The attempts before a run, newest first, read one by one.

    A run that was still going on when a later attempt began is none: it is a rank beside it, or another of many.

    Args:
        path: The run's directory; the others lie beside it.
        facts: What its ``run.json`` holds.
    """
    parent, own = os.path.split(os.path.abspath(path))
    whose, name = identity.of(facts), _name_in(own)
    began = _seconds(facts.get("started_at"))
    if began is None or not name:
        return
    host, left = facts.get("host"), READ_BYTES
    oldest = (datetime.fromtimestamp(began, UTC) - timedelta(days=DAYS)).strftime("%Y%m%dT")
    named = (one for one in run_ids(parent) if oldest <= one < own and _name_in(one) == name)
    for _, run_id in zip(range(LOOKED_AT), named, strict=False):
        directory = os.path.join(parent, run_id)
        run = _read(os.path.join(directory, RUN), shapes.RUN) or {}
        if identity.of(run) != whose:
            continue
        left -= _size(os.path.join(directory, REPORT))
        if left < 0:
            return
        found = _ended(directory, run, whose)
        slack = 0.0 if run.get("host") == host else OTHER_CLOCK_S
        started = _seconds(run.get("started_at"))
        if found is not None and started is not None and found.ended_at <= began + slack:
            began, host = min(started, began), run.get("host")
            yield found


def of_incidents(paths: list[str], began: float, whose: tuple[str, ...]) -> Iterator[Attempt]:
    """The incidents before one, newest first.

    Args:
        paths: Directories that may hold an incident's report, newest first.
        began: When the attempt that is told of began, in seconds since 1970.
        whose: The job.
    """
    for path in paths[:LOOKED_AT]:
        report = _report(os.path.join(path, REPORT))
        if report is None or tuple(_table(report.get("attempt")).get("identity") or ()) != whose:
            continue
        found = attempt_of(report, whose)
        started = _seconds(report["run"].get("started_at"))
        if started is not None and began - DAYS * 86400 <= found.ended_at <= began + OTHER_CLOCK_S:
            began = min(started, began)
            yield found


def _ended(directory: str, run: dict[str, Any], whose: tuple[str, ...]) -> Attempt | None:
    """The attempt that a run was; None while it goes on, or when nobody has said yet why it ended."""
    end = _read(os.path.join(directory, EXIT), shapes.EXIT)
    if end is None:
        return None
    report = _report(os.path.join(directory, REPORT))
    if report is not None:
        return attempt_of({**report, "run": run, "exit": end}, whose)
    if end.get("exit_code") == 0:  # a quiet success, whose report could not be written
        return attempt_of({"run": run, "exit": end, "diagnosis": {"class": "success"}}, whose)
    return None


def _told(report: dict[str, Any]) -> tuple[float | None, set[str]]:
    """When somebody was told, and what became of all notifications."""
    rows = [row for row in report.get("notifications") or [] if isinstance(row, dict)]
    times = [_seconds(row.get("at")) or 0.0 for row in rows if row.get("outcome") in _TELLS]
    return max(times, default=None), {str(row.get("outcome")) for row in rows}


def _report(path: str) -> dict[str, Any] | None:
    """A report as far as it is wanted here: its curves and quotes, most of it, are not looked at."""
    try:
        value = json.loads((regular.content(path, MAX_JSON) or b"").decode("utf-8", "replace"))
        kept = {name: value[name] for name in _WANTED if name in value} if isinstance(value, dict) else {}
        found = shapes.REPORT(shapes.loads(json.dumps(kept)))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _read(path: str, shape: shapes.Shape) -> dict[str, Any] | None:
    try:
        value = shape(shapes.loads((regular.content(path, MAX_JSON) or b"").decode("utf-8", "replace")))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _name_in(run_id: str) -> str:
    """The part of a run's id that is its name, without its numbers: a CronJob's Jobs have one of their own each."""
    return _NUMBERS.sub("#", run_id.partition("-")[2].rpartition("-")[0])


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if shapes.count(value) is not shapes.MISSING else 0


def _real(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0
    return float(value) if fits else None


def _seconds(value: Any) -> float | None:
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
