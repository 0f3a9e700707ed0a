"""From a job's records to its verdict: the ranks of one job together, the tasks of an array each for itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpualert.incident import Finding, Part, Rank, Verdict, judge
from gpualert.incident.naming import numbers, printed
from gpualert.report.incident import Job, stamp
from gpualert.slurm import evidence
from gpualert.slurm.record import UNSEEN
from gpualert.slurm.script import Outputs, outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.diagnosis.rulebook import Rulebook
    from gpualert.slurm.controller import Controller
    from gpualert.slurm.evidence import Evidence, Shown
    from gpualert.slurm.jobid import JobId
    from gpualert.slurm.record import Node, Record

NAMED_MAX = 3
"""How many tasks of an array the summary names, of each class one."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What holds for all tasks of an array.

    Attributes:
        patterns: Names of logs that the person gave.
        script: The batch script.
        nodes: How the nodes are.
        rules: Classes and rules.
    """

    patterns: Sequence[str]
    script: str
    nodes: Sequence[Node]
    rules: Rulebook

    def evidence(self, records: Sequence[Record]) -> Evidence:
        """What is known of one job, or of one task."""
        told = Outputs(tuple(self.patterns)) if self.patterns else outputs(self.script, records[0])
        return evidence.gather(records, told, self.nodes, self.rules)


@dataclass(frozen=True, slots=True)
class Judged:
    """What happened to a job.

    Attributes:
        job: Whose incident it is.
        verdict: The verdict.
        shown: Where the log of what broke first shows it.
        world_size: How many tasks it had; None where nothing tells, and for arrays.
        trouble: What could not be read.
    """

    job: Job
    verdict: Verdict
    shown: Shown | None
    world_size: int | None
    trouble: tuple[str, ...]


def failed(records: Sequence[Record]) -> bool:
    """Whether a job has not ended well."""
    return not all(record.well for record in records)


def attempt(records: Sequence[Record]) -> int:
    """Which attempt it was, from 0; of an array, how often any of its tasks was requeued."""
    restarts = [record.restarts for record in records]
    return sum(restarts) if _is_array(records) else max(restarts)


def _is_array(records: Sequence[Record]) -> bool:
    return (len(records) > 1 and records[0].array is not None) or bool(records[0].group)


def judged(
    asked: JobId, records: Sequence[Record], patterns: Sequence[str], slurm: Controller, rules: Rulebook
) -> Judged:
    """Judge a job that has ended.

    Args:
        asked: The job.
        records: Its records: one, one for each task of an array, or one for each component.
        patterns: Names of logs that the person gave.
        slurm: Where the script and the nodes are asked for, once of a whole array.
        rules: Classes and rules.
    """
    job = _job(asked, records)
    places = dict.fromkeys(name for record in records if not record.well for name in record.nodes)
    known = _Known(patterns, "" if patterns else slurm.script(records[0]), slurm.nodes([*places]), rules)
    if _is_array(records):
        return _array(job, records, known)
    found = known.evidence(records)
    verdict = _plain(judge(found.ranks, found.facts, expected=found.expected, rules=rules))
    first = verdict.roots[0] if verdict.roots else verdict.parts[0].rank if len(verdict.parts) == 1 else None
    shown = found.shown.get(first.name) if first is not None else None
    unseen = [f"nobody saw the end of {r.label}, and Slurm has forgotten it" for r in records if r.state == UNSEEN]
    # One log of several tasks tells which of them printed a line, not how each ended.
    size = found.world_size if len(found.ranks) == 1 else None
    return Judged(job, replace(verdict, facts=found.told), shown, size, (*unseen, *found.trouble))


def _plain(verdict: Verdict) -> Verdict:
    """A verdict on a job with one log, without the name in front of what it says: there is nothing to tell apart."""
    finding = verdict.parts[0].rank.finding if len(verdict.parts) == 1 else None
    if finding is None or not finding.summary or printed(verdict.parts[0].rank) is not None:
        return verdict
    return replace(verdict, summary=finding.summary)


def _job(asked: JobId, records: Sequence[Record]) -> Job:
    submitted = min((r.submitted_at for r in records if r.submitted_at is not None), default=None)
    number = attempt(records)
    # Slurm counts job ids anew when its state is lost, and another cluster has the same ones: the time tells them
    # apart; a requeue sets it anew too.
    began = (stamp(submitted) or "").partition(".")[0].replace("-", "").replace(":", "")
    identity = "-".join(part for part in ("slurm", asked.text, str(number or ""), began and f"{began}Z") if part)
    return Job(identity, records[0].name or asked.text, "slurm", None, number, records[0].work_dir, unit=_unit(records))


def _unit(records: Sequence[Record]) -> str:
    return "task" if _is_array(records) else "rank"


def _array(job: Job, records: Sequence[Record], known: _Known) -> Judged:
    """An array: its tasks know nothing of each other, so none of them broke because of another."""
    parts: list[Part] = []
    verdicts: list[Verdict] = []
    shown: dict[str, Shown | None] = {}
    trouble: list[str] = []
    for record in records:
        if record.well:
            parts.append(Part(_task(record, None), "fine", "success"))
            continue
        one = _one_task(record, known)
        verdict = one.verdict
        first = verdict.roots[0] if verdict.roots else None
        # A task's own verdict may name a rank inside of it: the line that shows it stays, the number is the task's.
        root = next((r.finding.root for r in verdict.roots if r.finding and r.finding.root), None)
        finding = Finding(
            verdict.cls, verdict.family, verdict.confidence, verdict.summary, root, (), None,
            verdict.suggestions, verdict.retryable, verdict.node_suspect,
        )  # fmt: skip
        rank = _task(record, finding, first)
        if one.shown is not None:
            rank = replace(rank, log=one.shown.path)
        parts.append(Part(rank, "root", verdict.cls))
        verdicts.append(verdict)
        shown[rank.name] = one.shown
        trouble += one.trouble
    together = _together(parts, verdicts, known.rules)
    return Judged(job, together, shown[together.roots[0].name], None, tuple(dict.fromkeys(trouble))[:8])


def _one_task(record: Record, known: _Known) -> Judged:
    """The verdict on one task of an array."""
    found = known.evidence([record])
    verdict = _plain(judge(found.ranks, found.facts, expected=found.expected, rules=known.rules))
    first = verdict.roots[0] if verdict.roots else verdict.parts[0].rank
    told = replace(verdict, facts=tuple(replace(fact, rank=record.task) for fact in found.told))
    return Judged(Job(record.label, record.name), told, found.shown.get(first.name), None, found.trouble)


def _task(record: Record, finding: Finding | None, known: Rank | None = None) -> Rank:
    """A task of an array as a row of the incident's table."""
    node = known.node if known is not None and known.node else record.nodes[0] if record.nodes else None
    name = f"{record.array}_[{record.group}]" if record.group else record.label
    return Rank(
        name,
        record.task,
        node,
        "succeeded" if record.well else "failed",
        finding,
        record.exit_code if known is None or known.exit_code is None else known.exit_code,
        record.signal,
        record.started_at,
        None,
        None,
        record.ended_at,
        log=record.stdout or None,
        gpus=record.gpus,
    )


def _together(parts: Sequence[Part], verdicts: Sequence[Verdict], rules: Rulebook) -> Verdict:
    """One verdict for the tasks that failed: the commonest class that says why, and each other one by an example."""
    counted = Counter(verdict.cls for verdict in verdicts)
    classes = sorted(counted, key=lambda each: (each in evidence.MUTE, -counted[each]))
    broken = [part.rank for part in parts if part.role == "root"]
    cls = classes[0]
    chief = next(verdict for verdict in verdicts if verdict.cls == cls)
    examples = []
    for each in classes[:NAMED_MAX]:
        ranks = [rank for rank in broken if rank.finding and rank.finding.cls == each]
        known = [rank.rank for rank in ranks if rank.rank is not None]
        who = f"task{'s' if len(known) > 1 else ''} {numbers(known)}" if known else ranks[0].name
        examples.append(f"{who}: {ranks[0].finding.summary if ranks[0].finding else each}")
    more = f"; and {len(counted) - NAMED_MAX} classes more" if len(counted) > NAMED_MAX else ""
    summary = f"{len(broken)} of {len(parts)} tasks failed; {'; '.join(examples)}{more}"
    known_class = rules.classes.get(cls)
    ordered = sorted(parts, key=lambda part: (part.role != "root", part.cls != cls))
    return Verdict(
        cls,
        known_class.family if known_class else chief.family,
        min(verdict.confidence for verdict in verdicts if verdict.cls == cls),
        summary,
        tuple(ordered),
        (),
        tuple(dict.fromkeys(fact for verdict in verdicts for fact in verdict.facts))[:20],
        chief.suggestions,
        all(verdict.retryable for verdict in verdicts),
        any(verdict.node_suspect for verdict in verdicts),
    )
