"""What Slurm says of a job: the records of ``scontrol show job``, ``sacct`` and ``scontrol show node``, as plain data.

Sources: Slurm's manual pages squeue(1) "JOB STATE CODES", scontrol(1), sacct(1). Recorded with Slurm 22.05 and, from
its own tests and sites' reports, 23.11 and 24.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from gpualert.slurm import hostlist

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENDED = frozenset(
    {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
     "REVOKED", "SPECIAL_EXIT", "LAUNCH_FAILED"}
)  # fmt: skip
"""The states that nothing follows, unless somebody requeues the job (squeue(1)); SPECIAL_EXIT waits for a person."""
WELL = frozenset({"COMPLETED", "REVOKED"})
"""REVOKED: a sibling runs elsewhere in the federation."""
UNSEEN = "UNKNOWN"
"""The state of a job whose end nobody saw, and that Slurm has forgotten."""
OOM_STATUS = 125
"""The number that Slurm puts where a signal stands when the out-of-memory killer was at work (slurm_errno.h,
``SIG_OOM`` is 253 inside; ``0:125`` in ExitCode)."""

_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9/:&_-]*)=")
_NAME = re.compile(r"\bJobName=(.*?) (?:HetJobIdSet=\S* )?UserId=")
_COMMAND = re.compile(r" Command=(.*?) WorkDir=")
_GPUS = re.compile(r"gres/gpu=(\d+)")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a job, as the accounting keeps it.

    Attributes:
        name: ``batch``, ``extern``, ``0`` ...
        state: Its state.
        tasks: How many tasks it had; None where nothing tells.
    """

    name: str
    state: str
    tasks: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One job, task of an array, or component of a heterogeneous job.

    Attributes:
        number: Its own number (``%j``).
        state: Its state, in capitals.
        name: Its name.
        user: Whose it is.
        reason: Slurm's reason for the state; empty where there is none.
        exit_code: The batch script's exit code; None where a signal ended it, or nothing is known.
        signal: The signal that ended it.
        restarts: How often it was requeued.
        submitted_at: Seconds since 1970, as the other times.
        started_at: When this attempt started.
        ended_at: When it ended.
        nodes: Its nodes.
        tasks: How many tasks it asked for.
        gpus: How many GPUs it had.
        work_dir: Where it ran.
        stdout: The batch script's output, perhaps with patterns in it.
        stderr: Its errors; mostly the same file.
        command: The batch script.
        time_limit: Its time limit, as Slurm prints it.
        array: The array's number, of a task.
        task: The task's number in the array; None also while several tasks share a record.
        group: The tasks that share a record, while they wait or when they were cancelled before they started.
        het: The number of the heterogeneous job, of a component.
        component: Which component.
        cancelled_by: The user id of who cancelled it.
        steps: Its steps.
    """

    number: int
    state: str
    name: str = ""
    user: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    nodes: tuple[str, ...] = ()
    tasks: int = 1
    gpus: int | None = None
    work_dir: str = ""
    stdout: str = ""
    stderr: str = ""
    command: str = ""
    time_limit: str = ""
    array: int | None = None
    task: int | None = None
    group: str = ""
    het: int | None = None
    component: int | None = None
    cancelled_by: str = ""
    steps: tuple[Step, ...] = ()

    @property
    def label(self) -> str:
        """``123``, ``123_4``, ``123_[5-9]`` or ``123+1``."""
        if self.array is not None and self.task is not None:
            return f"{self.array}_{self.task}"
        if self.group:
            return f"{self.array}_[{self.group}]"
        return f"{self.het}+{self.component}" if self.het is not None else str(self.number)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state in ENDED or self.state == UNSEEN

    @property
    def well(self) -> bool:
        """Whether it ended well."""
        return self.state in WELL


@dataclass(frozen=True, slots=True)
class Node:
    """A node.

    Attributes:
        name: Its name.
        state: Its state with its flags (``DOWN+DRAIN``).
        reason: Why, as the person or program that set it says.
        since: When that was, in seconds since 1970.
    """

    name: str
    state: str
    reason: str = ""
    since: float | None = None

    @property
    def gone(self) -> bool:
        """Whether it is down, or answers no more (``*``)."""
        return "DOWN" in self.state or "NOT_RESPONDING" in self.state or "*" in self.state or "FAIL" in self.state

    @property
    def suspect(self) -> bool:
        """Whether it is gone, or no job shall run on it."""
        return self.gone or "DRAIN" in self.state


def _known(text: str | None) -> str:
    return "" if text is None or text in ("(null)", "None", "N/A", "Unknown", "n/a") else text


def seconds(text: str | None) -> float | None:
    """Seconds since 1970 for a time as Slurm prints it, which is in the local time zone without saying so."""
    try:
        return datetime.fromisoformat(_known(text)).astimezone().timestamp()
    except ValueError:
        return None


def status(text: str | None) -> tuple[int | None, int | None]:
    """Exit code and signal of ``code:signal``; one of the two, or none."""
    code, _, number = _known(text).partition(":")
    if not code.isdigit():
        return None, None
    killed = int(number) if number.isdigit() else 0
    if killed:
        return None, killed if killed < 65 else None
    return int(code), None


def fields(line: str) -> dict[str, str]:
    """The fields of one line of ``scontrol show -o``; of a field that comes twice the last one counts.

    Values may hold spaces: a job's name, the command's arguments, a reason.
    """
    found = list(_KEY.finditer(line))
    ends = [*(match.start() for match in found[1:]), len(line)]
    told = {match[1]: line[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}
    for key, pattern in (("JobName", _NAME), ("Command", _COMMAND)):
        exact = pattern.search(line)
        if exact is not None:
            told[key] = exact[1]
    return told


def jobs(text: str) -> list[Record]:
    """The records in what ``scontrol show job -o`` prints.

    Args:
        text: Its output.
    """
    lines = [fields(line) for line in text.splitlines() if line.startswith("JobId=")]
    return [_job(told) for told in lines if told["JobId"].isdigit()]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _job(told: Mapping[str, str]) -> Record:
    code, killed = status(told.get("ExitCode"))
    gpus = _GPUS.search(told.get("AllocTRES") or told.get("TRES") or "")
    array, task = _number(told.get("ArrayJobId")), told.get("ArrayTaskId")
    return Record(
        int(told["JobId"]),
        told.get("JobState", "").partition(" ")[0],
        told.get("JobName", ""),
        told.get("UserId", "").partition("(")[0],
        _known(told.get("Reason")),
        code,
        killed,
        _number(told.get("Restarts")) or 0,
        seconds(told.get("SubmitTime")),
        seconds(told.get("StartTime")),
        seconds(told.get("EndTime")),
        hostlist.nodes(told.get("NodeList", "")),
        _number(told.get("NumTasks")) or 1,
        int(gpus[1]) if gpus else None,
        _known(told.get("WorkDir")),
        _known(told.get("StdOut")),
        _known(told.get("StdErr")),
        _known(told.get("Command")),
        told.get("TimeLimit", ""),
        array,
        _number(task),
        (task or "") if _number(task) is None else "",
        _number(told.get("HetJobId")),
        _number(told.get("HetJobOffset")),
    )


ACCOUNTED = ("JobID", "JobIDRaw", "State", "ExitCode", "JobName", "User", "Submit", "Start", "End", "NodeList",
             "NTasks", "AllocTRES", "Timelimit", "WorkDir")  # fmt: skip
"""The fields asked of sacct, which all versions since 20.11 know."""


def accounted(text: str) -> list[Record]:
    """The records in what ``sacct --parsable2 --noheader`` prints of the fields ``ACCOUNTED``, steps in their jobs.

    Args:
        text: Its output.
    """
    found: dict[str, Record] = {}
    for line in text.splitlines():
        # A job's name may hold the sign that stands between fields; what follows it does not.
        cells = line.split("|")
        extra = len(cells) - len(ACCOUNTED)
        if extra < 0:
            continue
        cells[4 : 5 + extra] = ["|".join(cells[4 : 5 + extra])]
        told = dict(zip(ACCOUNTED, cells, strict=True))
        label, _, step = told["JobID"].partition(".")
        state, _, by = told["State"].partition(" by ")
        state = state.partition(" ")[0].rstrip("+")
        if step:
            if label in found:
                new = Step(step, state, _number(told["NTasks"]))
                found[label] = replace(found[label], steps=(*found[label].steps, new))
            continue
        found[label] = _accounted(told, label, state, by)
    return list(found.values())


def _accounted(told: Mapping[str, str], label: str, state: str, by: str) -> Record:
    code, killed = status(told["ExitCode"])
    gpus = _GPUS.search(told["AllocTRES"])
    array, _, task = label.partition("_")
    het, _, component = label.partition("+")
    raw = _number(told["JobIDRaw"].partition("+")[0].partition("_")[0])
    number = raw if raw is not None else int(array.partition("+")[0])
    return Record(
        number + int(component or 0) if "+" in told["JobIDRaw"] else number,
        state,
        told["JobName"],
        told["User"],
        "",
        code,
        killed,
        0,
        seconds(told["Submit"]),
        seconds(told["Start"]),
        seconds(told["End"]),
        hostlist.nodes(told["NodeList"]),
        1,
        int(gpus[1]) if gpus else None,
        told["WorkDir"],
        time_limit=told["Timelimit"],
        array=int(array) if task else None,
        task=_number(task),
        group=task.strip("[]") if _number(task) is None else "",
        het=int(het) if component else None,
        component=_number(component),
        cancelled_by=by,
    )


def merged(kept: Iterable[Record], accounting: Iterable[Record]) -> list[Record]:
    """What slurmctld says of jobs, with what only the accounting knows.

    Args:
        kept: The records of slurmctld.
        accounting: Those of sacct; a record that slurmctld has not, or whose end it has not seen, is taken from here.
    """
    found = {record.label: record for record in kept}
    for record in accounting:
        known = found.get(record.label)
        if known is None:
            found[record.label] = record
            continue
        known = replace(known, cancelled_by=record.cancelled_by, steps=record.steps)
        if not known.ended or known.state == UNSEEN:
            known = replace(
                known,
                state=record.state,
                exit_code=record.exit_code,
                signal=record.signal,
                started_at=record.started_at,
                ended_at=record.ended_at,
                nodes=record.nodes or known.nodes,
            )
        found[record.label] = known
    return list(found.values())


_REASON = re.compile(r"(.*?)\s*\[([^\[\]@]*)@([^\[\]]+)\]\s*$", re.DOTALL)


def node_list(text: str) -> list[Node]:
    """The nodes in what ``scontrol show node -o`` prints.

    Args:
        text: Its output.
    """
    found = []
    for line in text.splitlines():
        told = fields(line)
        if "NodeName" not in told:
            continue
        reason = _known(told.get("Reason"))
        stamped = _REASON.match(reason)
        since = seconds(stamped[3]) if stamped else None
        found.append(Node(told["NodeName"], told.get("State", ""), stamped[1] if stamped else reason, since))
    return found
