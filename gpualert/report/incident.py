"""The incident as a report: shaped like a run's, so that mail, page and webhook say it in the same words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpualert import __version__
from gpualert.incident.naming import printed
from gpualert.report import attempts, building, cost, making
from gpualert.rundir.clock import now_us, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpualert.config import Settings
    from gpualert.incident.model import Part, Rank, Verdict
    from gpualert.supervisor.redaction import Redaction

NO_QUOTES: dict[str, list[Any]] = {"context": [], "traceback": [], "tail": []}


@dataclass(frozen=True, slots=True)
class Job:
    """Whose incident it is.

    Attributes:
        id: The incident's id: the same whenever the same attempt of the same job is looked at.
        name: The job's name.
        kind: ``Job``, ``PyTorchJob``, ``slurm``, ``torchrun`` ...
        namespace: Its namespace, in a cluster.
        attempt: Which attempt, from 0.
        where: Where its logs are, in words.
        revision: How often the verdict has changed since it was told first.
        unit: What its parts are called: ``rank``, or ``task`` where they know nothing of each other.
    """

    id: str
    name: str
    kind: str | None = None
    namespace: str | None = None
    attempt: int = 0
    where: str = ""
    revision: int = 0
    unit: str = "rank"


def stamp(seconds: float | None) -> str | None:
    """RFC 3339 for seconds since 1970."""
    if seconds is None or not 0 <= seconds < 1e11:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def build(
    job: Job, verdict: Verdict, redaction: Redaction, *, quotes: dict[str, Any] | None = None, trouble: list[str]
) -> dict[str, Any]:
    """The incident's report.

    Args:
        job: Whose incident it is.
        verdict: What happened.
        redaction: Masks secrets.
        quotes: What is quoted from the log of the rank that broke first.
        trouble: What went wrong while the ranks were read.

    Returns:
        What ``report.json`` holds for a run, with ``ranks``, ``missing`` and ``facts`` beside it.
    """
    first = verdict.roots[0] if verdict.roots else None
    ranks = [part.rank for part in verdict.parts]
    starts = [rank.started_at - rank.skew_s for rank in ranks if rank.started_at is not None]
    ends = [rank.end for rank in ranks if rank.end is not None]
    began, ended = min(starts, default=None), max(ends, default=None)
    broke = first.when if first is not None else min((at for r in ranks if (at := r.when) is not None), default=None)
    gpus = sum(rank.gpus for rank in ranks if rank.gpus)
    lasted = max(ended - began, 0.0) if began is not None and ended is not None else None
    idle = max(ended - broke, 0.0) if ended is not None and broke is not None else None
    report = {
        "schema": building.SCHEMA,
        "incident": {
            "id": job.id,
            "kind": job.kind,
            "attempt": job.attempt,
            "revision": job.revision,
            "unit": job.unit,
            "broke_at": stamp(broke),
            "roots": [printed(rank) for rank in verdict.roots],
            "nodes": list(verdict.nodes),
        },
        "run": {
            "run_id": job.id,
            "name": job.name,
            "job": job.name if job.namespace else None,
            "namespace": job.namespace,
            "host": None,
            "rank": printed(first) if first is not None else None,
            "world_size": len(ranks) + len(verdict.missing),
            "node": first.node if first is not None else None,
            "started_at": stamp(began),
            "gpus": gpus or None,
        },
        "exit": {
            "exit_code": first.exit_code if first is not None else None,
            "signal": first.signal if first is not None else None,
            "duration_s": lasted,
            "ended_at": stamp(ended),
            "last_output_at": None,
        },
        "diagnosis": _diagnosis(verdict, first),
        "silent_s": None,
        "cost": cost.together(gpus or None, lasted, idle, [rank.cost for rank in ranks]),
        "timeline": None,
        "machine": None,
        "hang": None,
        "ranks": [_row(part, began) for part in verdict.parts],
        "missing": list(verdict.missing),
        "facts": [
            {
                "reason": f.reason,
                "message": f.message,
                "node": f.node,
                "rank": f.rank,
                "name": f.name,
                "at": stamp(f.at),
            }
            for f in verdict.facts
        ],
        "quotes": quotes or NO_QUOTES,
        "artifacts": [],
        "notifications": [],
        "trouble": trouble,
        "made_at": rfc3339(now_us()),
        "gpualert": __version__,
    }
    found = building.masked(report, redaction)
    assert isinstance(found, dict)  # noqa: S101  (mypy: a dict stays one)
    return found


def tell(
    directory: str,
    report: dict[str, Any],
    settings: Settings,
    mask: Redaction,
    deadline: float,
    say: Callable[[str], None],
) -> str:
    """Write an incident's report, and tell whom the settings name.

    Args:
        directory: Where to.
        report: The report; its notifications are filled in.
        settings: The settings.
        mask: Masks secrets.
        deadline: When to be done, on the monotonic clock.
        say: Prints on the person's terminal, for ``--dry-run``.

    Returns:
        What became of the notifications, in a few words; empty when nobody wanted any.

    Raises:
        OSError: It cannot be written.
    """
    from gpualert.notify import anybody, tell  # noqa: PLC0415  (email and smtplib are slow to import)

    outcome = attempts.held(report)
    making.write(directory, report)
    if not outcome and making.wanted(report, settings) and anybody(settings):
        told = tell(directory, "ended", report, settings, [], mask, deadline, say)
        report["notifications"] = [entry.as_dict() for entry in told]
        outcome = "; ".join(entry.summary() for entry in told if entry.summary())
    report["told"] = True
    making.write(directory, report)
    return outcome


def _diagnosis(verdict: Verdict, first: Rank | None) -> dict[str, Any]:
    finding = first.finding if first is not None else None
    root = {"line": None, "text": finding.root} if finding is not None and finding.root else None
    evidence = [
        {"line": None, "text": text, "class": verdict.cls, "role": "root", "rank": printed(first)}
        for text in dict.fromkeys((finding.root or "", *finding.texts) if finding is not None else ())
        if text and first is not None
    ]
    evidence += [
        {
            "line": None,
            "text": f"{fact.reason}: {fact.message}",
            "class": verdict.cls,
            "role": "confirmation",
            "rank": fact.rank,
        }
        for fact in verdict.facts
    ]
    return {
        "class": verdict.cls,
        "family": verdict.family,
        "confidence": verdict.confidence,
        "summary": verdict.summary,
        "root": root,
        "evidence": evidence[:8],
        "suggestions": list(verdict.suggestions),
        "retryable": verdict.retryable,
        "node_suspect": verdict.node_suspect,
    }


def _row(part: Part, began: float | None) -> dict[str, Any]:
    rank = part.rank
    when, finding = rank.when, rank.finding
    return {
        "rank": rank.rank,
        "name": rank.name,
        "node": rank.node,
        "role": part.role,
        "state": rank.state,
        "class": part.cls,
        "summary": finding.summary if finding else "",
        "root": finding.root if finding else None,
        "exit_code": rank.exit_code,
        "signal": rank.signal,
        "broke_at": stamp(when),
        "ended_at": stamp(rank.end),
        "after_s": round(when - began, 3) if when is not None and began is not None else None,
        "log": rank.log,
        "run_id": rank.run_id,
    }
