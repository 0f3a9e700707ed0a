"""The plain data that a diagnosis starts from and ends in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gpualert.diagnosis.machine import Hang, Machine
    from gpualert.diagnosis.signs import Sign

Role = Literal["root", "cascade", "confirmation"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a run apart from its log; every field may be unknown.

    Attributes:
        exit_code: The child's exit code (0..255); None when a signal ended it or nothing is known.
        signal: The number of the signal that ended the child; None when it exited.
        argv: The command and its arguments.
        forwarded: Numbers of the signals that gpualert received from outside and forwarded, in order.
        stopped_before_end_s: How long before the end the last of them that asks a job to end came, in seconds.
        timed_out: gpualert's own ``--timeout`` ended the run.
        timeout_s: That limit in seconds.
        launch_error: Why the command could not be started (``"No such file or directory"``); None when it ran.
        launch_errno: The errno of that error.
        supervised: gpualert itself ran the command, so that a signal that is not among ``forwarded`` did not come
            through it.
        counted: The control group's counters are known, so that no ``oom_kills`` means that there were none.
        oom_kills: How many processes of this run's control group the kernel's out-of-memory killer ended.
        memory_limit: The control group's memory limit in bytes.
        memory_peak: The highest memory use seen, in bytes.
        memory_last: The last memory sample of the run, in bytes.
        limit_hits: How often the control group ran into its memory limit, and memory had to be given back.
        shm_peak: The most that was in ``/dev/shm``, in bytes.
        shm_size: How much can be in it, in bytes.
        pids_max_events: How often the control group's process limit refused a fork.
        interrupted: The supervisor died, and the job with it or after it, so there is no exit status.
        duration_s: How long the command ran, in seconds.
        silent_s: How long before the end the last output came, in seconds.
        rank: This process's rank; None outside a distributed job.
        world_size: The number of ranks.
        node: The node's name.
        hang: The run hung when it ended; None when it did not, or nobody looked.
        machine: What was measured beside the run; None when nothing was.
    """

    exit_code: int | None = None
    signal: int | None = None
    argv: tuple[str, ...] = ()
    forwarded: tuple[int, ...] = ()
    stopped_before_end_s: float | None = None
    timed_out: bool = False
    timeout_s: float | None = None
    launch_error: str | None = None
    launch_errno: int | None = None
    supervised: bool = False
    counted: bool = False
    oom_kills: int = 0
    memory_limit: int | None = None
    memory_peak: int | None = None
    memory_last: int | None = None
    limit_hits: int = 0
    shm_peak: int | None = None
    shm_size: int | None = None
    pids_max_events: int = 0
    interrupted: bool = False
    duration_s: float | None = None
    silent_s: float | None = None
    rank: int | None = None
    world_size: int | None = None
    node: str | None = None
    hang: Hang | None = None
    machine: Machine | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of the log, or one fact, that speaks for a class.

    Attributes:
        line: Its number in the log, from 1; None for a fact that is not in the log.
        text: The line without terminal escapes, shortened to a sensible length.
        cls: The class it speaks for.
        role: Whether it is the cause, a consequence of a cause elsewhere, or says the same again.
        rank: The rank that printed it, where the log says so.
    """

    line: int | None
    text: str
    cls: str
    role: Role
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer: the class of a run's end, the line that shows it, and what to do.

    Attributes:
        cls: A class of the taxonomy (``cuda_oom``), or of a user's own rules.
        family: The class's family (``gpu``).
        confidence: 0..1, how sure this is.
        summary: One line for a person, with the numbers from the log.
        root: The decisive line; None when no line of the log decides.
        evidence: Supporting lines and facts, the decisive one first.
        suggestions: What to do, most useful first.
        retryable: A retry without any change may succeed.
        node_suspect: The node's hardware or set-up is suspect.
        warnings: What is odd about a success (or about the log itself).
        at: When the deciding fact was seen, in seconds since 1970; None where a line of the log decides.
        broken: Errors of hardware that the driver reported, of this rank's GPUs and its neighbours'.
    """

    cls: str
    family: str
    confidence: float
    summary: str
    root: Evidence | None = None
    evidence: tuple[Evidence, ...] = ()
    suggestions: tuple[str, ...] = ()
    retryable: bool = False
    node_suspect: bool = False
    warnings: tuple[str, ...] = field(default=())
    at: float | None = None
    broken: tuple[Sign, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """The JSON object that ``classify`` prints and ``report.json`` holds."""
        root = None if self.root is None else {"line": self.root.line, "text": self.root.text}
        answer: dict[str, object] = {
            "class": self.cls,
            "family": self.family,
            "confidence": round(self.confidence, 2),
            "summary": self.summary,
            "root": root,
            "evidence": [
                {"line": e.line, "text": e.text, "class": e.cls, "role": e.role, "rank": e.rank} for e in self.evidence
            ],
            "suggestions": list(self.suggestions),
            "retryable": self.retryable,
            "node_suspect": self.node_suspect,
        }
        if self.warnings:
            answer["warnings"] = list(self.warnings)
        return answer
