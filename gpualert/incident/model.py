"""The plain data that a verdict over ranks starts from and ends in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpualert.diagnosis import Diagnosis

State = Literal["failed", "succeeded", "running", "waiting", "gone"]
Role = Literal["root", "cascade", "confirmation", "silent", "stopped", "fine"]
TEXT_MAX = 400


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rank's own log and exit status say.

    Attributes:
        cls: The class (``cuda_oom``).
        family: Its family (``gpu``).
        confidence: 0..1.
        summary: One line for a person.
        root: The decisive line; None where no line decides.
        texts: Further lines that speak for it.
        printed_by: The rank that printed the decisive line, where one log holds several ranks.
        suggestions: What to do, most useful first.
        retryable: A retry without any change may succeed.
        node_suspect: The node is suspect.
    """

    cls: str
    family: str
    confidence: float = 0.5
    summary: str = ""
    root: str | None = None
    texts: tuple[str, ...] = ()
    printed_by: int | None = None
    suggestions: tuple[str, ...] = ()
    retryable: bool = False
    node_suspect: bool = False

    @classmethod
    def of(cls, told: object) -> Finding | None:
        """A finding from a diagnosis as ``report.json`` and the termination message hold it.

        Args:
            told: The object; anything may stand in it.

        Returns:
            None where it names no class.
        """
        if not isinstance(told, dict) or not isinstance(told.get("class"), str):
            return None
        root, evidence = told.get("root"), told.get("evidence")
        rows = [row for row in evidence if isinstance(row, dict)] if isinstance(evidence, list) else []
        text = root.get("text") if isinstance(root, dict) else root
        confidence, rank = told.get("confidence"), rows[0].get("rank") if rows and root else None
        listed = told.get("suggestions")
        return cls(
            told["class"][:80],
            str(told.get("family") or "unknown")[:80],
            min(max(float(confidence), 0.0), 1.0) if isinstance(confidence, int | float) else 0.5,
            _text(told.get("summary")) or "",
            _text(text),
            tuple(str(row["text"])[:TEXT_MAX] for row in rows if row.get("text")),
            rank if isinstance(rank, int) else None,
            tuple(str(one)[:TEXT_MAX] for one in listed) if isinstance(listed, list) else (),
            bool(told.get("retryable")),
            bool(told.get("node_suspect")),
        )

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis) -> Finding:
        """A finding from a diagnosis."""
        found = cls.of(diagnosis.as_dict())
        assert found is not None  # noqa: S101  (mypy: a diagnosis names its class)
        return found


def _text(value: Any) -> str | None:
    return str(value)[:TEXT_MAX] if value else None


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a job (a process, or a pod with all its processes), as far as it is known.

    Attributes:
        name: The pod, the log file, or host and process id.
        rank: Its number; None where nothing tells.
        node: The node it ran on.
        state: How it stands: ``failed``, ``succeeded``, ``running``, ``waiting`` (has not started) or ``gone`` (without
            exit status and last words).
        finding: What its own log and status say.
        exit_code: Its exit code (0..255).
        signal: The signal that ended it.
        started_at: When it started; this and the other times are seconds since 1970 by its own clock.
        broke_at: When it printed its decisive line.
        last_output_at: When it printed anything for the last time.
        ended_at: When it ended.
        skew_s: How far its clock is known to be ahead of the others', in seconds; taken off all of its times.
        slack_s: How far its times may be off nevertheless, in seconds.
        log: Where its log is.
        run_id: Its run.
        gpus: How many GPUs it had.
        cost: What its report says of its cost; None where it says nothing.
    """

    name: str
    rank: int | None = None
    node: str | None = None
    state: State = "failed"
    finding: Finding | None = None
    exit_code: int | None = None
    signal: int | None = None
    started_at: float | None = None
    broke_at: float | None = None
    last_output_at: float | None = None
    ended_at: float | None = None
    skew_s: float = 0.0
    slack_s: float = 1.0
    log: str | None = None
    run_id: str | None = None
    gpus: int | None = None
    cost: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def when(self) -> float | None:
        """When it broke, as well as that is known, by the common clock."""
        if self.broke_at is not None:
            return self.broke_at - self.skew_s
        known = [at for at in (self.last_output_at, self.ended_at) if at is not None]
        return min(known) - self.skew_s if known else None

    @property
    def end(self) -> float | None:
        """When it ended, by the common clock."""
        return None if self.ended_at is None else self.ended_at - self.skew_s


@dataclass(frozen=True, slots=True)
class MachineFact:
    """Something that was seen from outside of the job: on a node, or of a rank.

    Attributes:
        reason: What it was: ``NotReady``, ``Xid``, ``Evicted``, ``Preempted``, ``TaintManagerEviction`` ...
        message: What was said of it.
        node: The node.
        rank: The rank, where it is about one.
        name: The rank's name, where it is about one that has no number.
        at: When, in seconds since 1970.
        finding: What it means for those whom it concerns; None where it only explains.
    """

    reason: str
    message: str = ""
    node: str | None = None
    rank: int | None = None
    name: str | None = None
    at: float | None = None
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part in an incident.

    Attributes:
        rank: The rank.
        role: ``root`` (broke first), ``confirmation`` (shows the same), ``cascade`` (broke because another had),
            ``stopped`` (was ended when it was over), ``silent`` (said nothing, and has not ended), ``fine``.
        cls: Its own class; None where nothing is known.
    """

    rank: Rank
    role: Role
    cls: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened to a job.

    Attributes:
        cls: The class of the incident.
        family: Its family.
        confidence: 0..1; above 0.5 only where the rank that broke first is known, or none had to.
        summary: One line for a person.
        parts: All ranks, those that broke first in front.
        missing: Numbers of the ranks that never showed up.
        facts: What was seen from outside and mattered.
        suggestions: What to do, most useful first.
        retryable: A retry without any change may succeed.
        node_suspect: The nodes of the ranks that broke first are suspect.
    """

    cls: str
    family: str
    confidence: float
    summary: str
    parts: tuple[Part, ...]
    missing: tuple[int, ...] = ()
    facts: tuple[MachineFact, ...] = ()
    suggestions: tuple[str, ...] = ()
    retryable: bool = False
    node_suspect: bool = False

    @property
    def roots(self) -> tuple[Rank, ...]:
        """The ranks that broke first."""
        return tuple(part.rank for part in self.parts if part.role == "root")

    @property
    def silent(self) -> tuple[Rank, ...]:
        """The ranks that said nothing."""
        return tuple(part.rank for part in self.parts if part.role == "silent")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the ranks that broke first."""
        return tuple(dict.fromkeys(rank.node for rank in self.roots if rank.node))
