"""Making the report: facts and log in, one plain object out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpualert import __version__
from gpualert.diagnosis import Facts, Rulebook, RuleError, diagnose
from gpualert.report import cost, hang, machine, measured, progress, quotes, timeline
from gpualert.report.timeline import seconds_of
from gpualert.rundir.clock import now_us, rfc3339
from gpualert.telemetry import record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from gpualert.config import Problem, Settings
    from gpualert.diagnosis import Diagnosis
    from gpualert.rundir.reader import Run
    from gpualert.supervisor.redaction import Redaction

SCHEMA = 1


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _row(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def facts_of(run: Run) -> Facts:
    """The facts of a run, from its small files; whatever is missing or malformed is unknown.

    Args:
        run: The run.
    """
    end = run.exit or {}
    group, error = _table(end.get("cgroup")), _table(end.get("launch_error"))
    forwarded, argv = _row(end.get("forwarded")), _row(run.facts.get("argv"))
    last, ended = seconds_of(end.get("last_output_at")), seconds_of(end.get("ended_at"))
    return Facts(
        exit_code=_whole(end.get("exit_code")),
        signal=_whole(end.get("signal")),
        argv=tuple(str(argument) for argument in argv),
        forwarded=tuple(number for number in forwarded if isinstance(number, int)),
        stopped_before_end_s=_real(end.get("stopped_before_end_s")),
        timed_out=bool(end.get("timed_out")),
        timeout_s=_real(end.get("timeout_s")),
        launch_error=str(error["message"]) if error.get("message") else None,
        launch_errno=_whole(error.get("errno")),
        # What a supervisor that was killed did not see is unknown: its last sample is older than the end.
        supervised=run.exit is not None and not end.get("interrupted"),
        counted=_whole(group.get("oom_kill")) is not None and not end.get("interrupted"),
        oom_kills=_whole(group.get("oom_kill")) or 0,
        memory_limit=_whole(group.get("memory_limit")),
        memory_peak=_whole(group.get("memory_peak")),
        memory_last=_whole(group.get("memory_last")),
        limit_hits=_whole(group.get("limit_hits")) or 0,
        shm_peak=_whole(group.get("shm_peak")),
        shm_size=_whole(group.get("shm_size")),
        pids_max_events=_whole(group.get("pids_max_events")) or 0,
        interrupted=bool(end.get("interrupted")),
        duration_s=_real(end.get("duration_s")),
        silent_s=max(ended - last, 0.0) if last is not None and ended is not None else None,
        rank=_whole(run.facts.get("rank")),
        world_size=_whole(run.facts.get("world_size")),
        node=str(run.facts["node"]) if run.facts.get("node") else None,
    )


def diagnosed(run: Run, rule_directories: list[str], redaction: Redaction) -> tuple[Diagnosis, list[str]]:
    """The diagnosis of a run, and what went wrong on the way to it.

    Args:
        run: The run.
        rule_directories: Directories with rules of the user's own.
        redaction: Masks secrets in what is quoted, before it is shortened.
    """
    trouble = []
    try:
        rules = Rulebook.load(tuple(rule_directories))
    except RuleError as error:
        trouble.append(f"{error}: own rules are ignored")
        rules = Rulebook.load()
    facts = measured.with_telemetry(facts_of(run), run)
    try:
        return diagnose(run.log_path, facts, rules=rules, mask=redaction.mask), trouble
    except OSError as error:
        trouble.append(f"cannot read {run.log_path} ({error.strerror}): diagnosed without the log")
        return diagnose(b"", facts, rules=rules), trouble


def was_said(problem: Problem, lines: Sequence[str], redaction: Redaction) -> bool:
    """Whether the supervisor has said a mistake already, in words of its own.

    Args:
        problem: The mistake.
        lines: What the supervisor has said.
        redaction: Has masked secrets in it.
    """
    variable = problem.key if problem.where == "environment" else problem.where
    if variable.startswith("GPUALERT_"):
        words = f"{variable} "
    else:
        words = f"{problem.where}: {problem.key} " if problem.key else f"configuration {problem.where} "
    return any(redaction.mask(words) in line for line in lines)


def kept_secrets(settings: Settings | None) -> dict[bytes, bytes]:
    """The secrets that the settings have from files, as variables whose names say so.

    Args:
        settings: The settings; None where there are none.
    """
    if settings is None:
        return {}
    found = {b"SMTP_PASSWORD": settings.smtp.password, b"WEBHOOK_SECRET": settings.webhook.secret}
    values = {name: secret.get_secret_value() for name, secret in found.items() if secret is not None}
    return {b"_" + name: value.encode("utf-8", "surrogateescape") for name, value in values.items()}


def masked(value: Any, redaction: Redaction) -> Any:
    """A plain object with the secrets in all its texts masked."""
    if isinstance(value, str):
        return redaction.mask(value)
    if isinstance(value, list):
        return [masked(item, redaction) for item in value]
    if isinstance(value, dict):
        return {key: masked(item, redaction) for key, item in value.items()}
    return value


def course_of(
    run: Run, duration_s: float | None, silent_s: float | None, root_line: int | None = None
) -> dict[str, Any]:
    """What the report says of how the run went: its ``timeline``, ``cost``, ``machine`` and ``hang``.

    Args:
        run: The run.
        duration_s: How long it ran, in seconds.
        silent_s: How long it printed nothing before its end, in seconds.
        root_line: The decisive line's number in the log.
    """
    seen, span = record.read(run.path), timeline.span_of(run)
    ended = (run.exit or {}).get("hang")
    return {
        "cost": cost.of(_whole(run.facts.get("gpus")), duration_s, silent_s, seen, span),
        "timeline": timeline.of(run, root_line, seen),
        "machine": machine.of(seen),
        "hang": hang.of(seen, ended if isinstance(ended, dict) else None),
    }


def build(run: Run, diagnosis: Diagnosis, trouble: list[str], redaction: Redaction) -> dict[str, Any]:
    """The report as ``report.json`` holds it, before artifacts and notifications.

    Args:
        run: The run.
        diagnosis: Why it ended as it did.
        trouble: What went wrong inside gpualert.
        redaction: Masks secrets in what is quoted.
    """
    said = (run.exit or {}).get("trouble")
    root_line = diagnosis.root.line if diagnosis.root else None
    facts = facts_of(run)
    course = course_of(run, facts.duration_s, facts.silent_s, root_line)
    course["timeline"] = _timed(course["timeline"], diagnosis)
    report = {
        "schema": SCHEMA,
        "run": run.facts,
        "exit": run.exit or {},
        "diagnosis": diagnosis.as_dict(),
        "silent_s": facts.silent_s,
        **course,
        "hardware": measured.rows(diagnosis.broken),
        "progress": progress.of(run),
        "quotes": quotes.take(run.log_path, root_line, redaction),
        "artifacts": [],
        "notifications": [],
        "trouble": [*(said if isinstance(said, list) else []), *trouble],
        "made_at": rfc3339(now_us()),
        "gpualert": __version__,
    }
    found = masked(report, redaction)
    assert isinstance(found, dict)  # noqa: S101  (mypy: a dict stays one)
    return found


def _timed(found: dict[str, Any] | None, diagnosis: Diagnosis) -> dict[str, Any] | None:
    """A timeline that knows when the cause was, also where that is no line of the log."""
    if found is None or diagnosis.at is None:
        return found
    printed = seconds_of(found["cause_at"])
    at = diagnosis.at if printed is None else min(diagnosis.at, printed)
    return {**found, "cause_at": rfc3339(int(at * 1e6))}


def running(run: Run, now: datetime, redaction: Redaction) -> dict[str, Any]:
    """What is known of a run that goes on: a report without a diagnosis.

    Args:
        run: The run so far.
        now: The time.
        redaction: Masks secrets in what is quoted.
    """
    last = seconds_of((run.exit or {}).get("last_output_at"))
    silent = max(now.timestamp() - last, 0.0) if last is not None else None
    report = {
        "schema": SCHEMA,
        "run": run.facts,
        "exit": run.exit or {},
        "diagnosis": None,
        "silent_s": silent,
        **course_of(run, _real((run.exit or {}).get("duration_s")), silent),
        "progress": progress.of(run, goes_on=True),
        "quotes": quotes.take(run.log_path, None, redaction),
        "artifacts": [],
        "notifications": [],
        "trouble": [],
        "made_at": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "gpualert": __version__,
    }
    found = masked(report, redaction)
    assert isinstance(found, dict)  # noqa: S101  (mypy: a dict stays one)
    return found
