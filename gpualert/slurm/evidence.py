"""What is known of a job that has ended: its ranks by their logs, and what Slurm saw from outside.

Slurm's word on the whole job (``ExitCode``, the batch script's end) is the weakest: it is mostly what a rank's end made
of it.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpualert.diagnosis import Facts, diagnose
from gpualert.incident import Finding, MachineFact, Rank
from gpualert.incident.outside import meaning
from gpualert.report import wording
from gpualert.slurm import logfiles, taskends
from gpualert.slurm.logfiles import LogFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.diagnosis.rulebook import Rulebook
    from gpualert.slurm.record import Node, Record
    from gpualert.slurm.script import Outputs
    from gpualert.slurm.taskends import TaskEnd

NEAR_S = 600.0
"""What is said of a node so long after a job's end may still be about what ended it."""
MUTE = ("unknown", "success", "lost")
"""Classes of a log that does not say why."""
OUTSIDE = {
    "TIMEOUT": "TIMEOUT",
    "PREEMPTED": "PREEMPTED",
    "NODE_FAIL": "NODE_FAIL",
    "BOOT_FAIL": "NODE_FAIL",
    "LAUNCH_FAILED": "LaunchFailed",
    "OUT_OF_MEMORY": "OUT_OF_MEMORY",
    "CANCELLED": "CANCELLED",
    "DEADLINE": "DEADLINE",
}
"""States that say why, with the reason that each is for ``gpualert.incident.outside``."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Where a log shows what ended a rank.

    Attributes:
        path: The log.
        line: The line; None where no line decides.
    """

    path: str
    line: int | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict on a job starts from.

    Attributes:
        ranks: Its ranks, or the one log that all of them share.
        facts: What Slurm saw, for each rank that it is about.
        told: The same once for the whole job, for a report.
        shown: Where the log of each rank shows it, by the rank's name.
        world_size: How many tasks the job had; None where nothing tells.
        expected: How many ranks there should be; None where nothing tells.
        trouble: What could not be read, and what to do about it.
    """

    ranks: tuple[Rank, ...]
    facts: tuple[MachineFact, ...]
    told: tuple[MachineFact, ...]
    shown: dict[str, Shown] = field(default_factory=dict)
    world_size: int | None = None
    expected: int | None = None
    trouble: tuple[str, ...] = ()


def gather(records: Sequence[Record], outputs: Outputs, nodes: Sequence[Node], rules: Rulebook) -> Evidence:
    """Gather what is known of one job.

    Args:
        records: The job; the components of a heterogeneous one, in their order.
        outputs: Where its tasks write.
        nodes: How nodes are now; others than the job's count for nothing.
        rules: Classes and rules.
    """
    return _Case(records, outputs, nodes, rules).evidence()


class _Case:
    """One job."""

    def __init__(self, records: Sequence[Record], outputs: Outputs, nodes: Sequence[Node], rules: Rulebook) -> None:
        self.records = records
        self.first = next((r for r in records if not r.well), records[0])
        self.rules = rules
        own = {name for record in records for name in record.nodes}
        self.nodes = [node for node in nodes if node.name in own]
        self.trouble: list[str] = []
        self.shown: dict[str, Shown] = {}
        self.patterns = outputs.patterns
        self.batch = self._batch_logs()
        self.ends = self._task_ends()
        self.tasks = self._task_logs()
        if outputs.unclear and not self.tasks:
            self.trouble.append(
                f"the batch script writes to {outputs.unclear[0]}, which only the job knew: name it by --logs"
            )

    def evidence(self) -> Evidence:
        ranks = self._task_ranks() if self.tasks else []
        if not any(rank.finding and rank.finding.cls not in MUTE for rank in ranks):
            ranks = self._with_batch(ranks)
        told = self._outside()
        facts = [f for fact in told for f in self._spread(fact, ranks)]
        size = sum(record.tasks for record in self.records)
        listed = tuple(dict.fromkeys(self.trouble))
        return Evidence(
            tuple(ranks), tuple(facts), tuple(told), self.shown, size if size > 1 else None, self._expected(), listed
        )

    def _with_batch(self, ranks: list[Rank]) -> list[Rank]:
        """Ranks that do not say why, with the batch script's own log where that does."""
        batch = self._batch_rank(beside=bool(ranks))
        killed = [rank for rank in ranks if rank.signal == signal.SIGKILL]
        if killed and batch and batch[0].finding is not None and batch[0].finding.cls == "oom_killer":
            # The step's daemon tells of the out-of-memory killer in the script's log, and srun of whom it ended.
            return [replace(rank, finding=batch[0].finding) if rank in killed else rank for rank in ranks]
        if batch and (batch[0].finding is None or batch[0].finding.cls in MUTE) and any(_broken(r) for r in ranks):
            return ranks
        return [*ranks, *batch]

    def _expected(self) -> int | None:
        """How many ranks there should be: as many as the largest step had tasks."""
        known = [step.tasks or 0 for record in self.records for step in record.steps if step.name.isdigit()]
        return (max(known, default=0) or None) if self.tasks and len(self.records) == 1 else None

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _batch_logs(self) -> list[LogFile]:
        """The logs of the whole job: what its steps share, and the batch script's own."""
        record = self.records[0]
        names = [record.stdout, record.stderr]
        if not record.stdout and record.work_dir:
            # The accounting of older versions keeps no names: this is where sbatch writes by default.
            names = ["slurm-%A_%a.out" if record.array is not None else "slurm-%j.out"]
        own = {name: logfiles.find(name, record, batch=True) for name in dict.fromkeys(names) if name}
        shared = [pattern for pattern in self.patterns if not logfiles.per_task(pattern)]
        logs = [log for pattern in shared for log in logfiles.find(pattern, record)]
        if record.nodes and not any(own.values()) and not logs:
            self.trouble.append(
                f"no log at {record.stdout or names[0] if names else 'any known place'} that this machine can see "
                "since the job started: judged by Slurm's word alone; name the logs by --logs"
            )
        return [*logs, *(log for found in own.values() for log in found)]

    def _task_logs(self) -> list[LogFile]:
        """The logs of tasks, by rank."""
        ours = [pattern for pattern in self.patterns if logfiles.per_task(pattern)]
        logs: list[LogFile] = []
        for record in self.records:
            found = [log for pattern in ours for log in logfiles.find(pattern, record)]
            logs += [log for log in found if log.path not in {known.path for known in logs}]
        batch = {log.path for log in self.batch}
        logs = [log for log in logs if log.task is not None and log.path not in batch]
        if len(self.records) > 1:
            # Seen with 22.05: %t leaves gaps between components, but keeps their order.
            order = sorted({(log.task or 0) for log in logs})
            logs = [replace(log, task=order.index(log.task or 0)) for log in logs]
        return logs

    def _task_ends(self) -> dict[int, TaskEnd]:
        """How tasks ended, by rank; the numbers of a heterogeneous job's components are put one after another."""
        found: dict[int, TaskEnd] = {}
        for log in self.batch:
            for end in taskends.read(taskends.tail(log.path)):
                before = 0
                for record in self.records:
                    if end.node in record.nodes:
                        break
                    before += record.tasks
                else:
                    before = 0
                found.setdefault(before + end.task, end)
        return found

    # -- ranks ---------------------------------------------------------------------------------------------------------

    def _task_ranks(self) -> list[Rank]:
        by_task: dict[int, list[LogFile]] = {}
        for log in self.tasks:
            by_task.setdefault(log.task or 0, []).append(log)
        return [self._task_rank(task, logs) for task, logs in sorted(by_task.items())]

    def _task_rank(self, task: int, logs: Sequence[LogFile]) -> Rank:
        end = self.ends.get(task)
        facts = Facts()
        if end is not None:
            facts = Facts(end.exit_code, end.signal, oom_kills=int(end.out_of_memory))
        finding, log = self._diagnosed(logs, facts)
        name = os.path.basename(log.path)
        shown = self.shown.pop(log.path, Shown(log.path, None))
        self.shown[name] = shown
        written = max((one.written_at for one in logs if one.written_at is not None), default=None)
        # srun tells the script's log of every task that fails: one it says nothing of, and whose own log shows nothing,
        # ended well.
        fine = end is None and bool(self.batch) and finding.cls in MUTE and self.first.state in ("FAILED", "COMPLETED")
        return Rank(
            name,
            task,
            end.node if end is not None else self._node_of(task, log),
            "succeeded" if fine else "failed",
            None if fine else finding,
            0 if fine else end.exit_code if end is not None else None,
            end.signal if end is not None else None,
            self.first.started_at,
            None,
            written,
            self.first.ended_at,
            log=log.path,
            gpus=self._gpus(),
        )

    def _node_of(self, task: int, log: LogFile) -> str | None:
        before = 0
        for record in self.records:
            if task < before + record.tasks or record is self.records[-1]:
                return log.node if log.node in record.nodes else record.nodes[0] if len(record.nodes) == 1 else log.node
            before += record.tasks
        return log.node

    def _gpus(self) -> int | None:
        """How many GPUs a rank had, where they divide evenly."""
        total, ranks = sum(record.gpus or 0 for record in self.records), len({log.task for log in self.tasks})
        return total // ranks if ranks and total and total % ranks == 0 else None

    def _batch_rank(self, *, beside: bool) -> list[Rank]:
        """The batch script with all that its logs hold: the job itself, or, beside ranks, only where it says why."""
        record = self.first
        oom = record.state == "OUT_OF_MEMORY" or any(step.state == "OUT_OF_MEMORY" for step in record.steps)
        facts = Facts(record.exit_code, record.signal, oom_kills=int(oom))
        outside = record.state in OUTSIDE and record.state != "OUT_OF_MEMORY"
        if not record.well and (outside or (record.exit_code == 0 and not oom)):
            facts = Facts()  # its status is what Slurm's end of it made
        finding, log = self._diagnosed(self.batch, facts)
        if finding.cls in MUTE and not beside and not record.well:
            finding = self._by_ends(finding)
        name = "batch script" if beside else record.label
        if log.path:
            self.shown[name] = self.shown.pop(log.path, Shown(log.path, None))
        nodes = tuple(dict.fromkeys(node for one in self.records for node in one.nodes))
        printed = self.ends.get(finding.printed_by) if finding.printed_by is not None else None
        places = {end.node for end in self.ends.values()}
        known = printed.node if printed else next(iter(places)) if len(places) == 1 else None
        written = max((one.written_at for one in self.batch if one.written_at is not None), default=None)
        return [
            Rank(
                name,
                None,
                known or (nodes[0] if len(nodes) == 1 else None),
                "succeeded" if record.well else "failed",
                finding,
                record.exit_code,
                record.signal,
                record.started_at,
                None,
                written,
                record.ended_at,
                log=log.path or None,
                gpus=None if beside else sum(one.gpus or 0 for one in self.records) or None,
            )
        ]

    def _by_ends(self, finding: Finding) -> Finding:
        """What a log that does not say why still tells: which of its tasks ended badly, in the order that srun told."""
        if not self.ends or sum(one.tasks for one in self.records) < 2:
            return finding
        first = next(iter(self.ends))
        end = self.ends[first]
        how = wording.ending({"exit_code": end.exit_code, "signal": end.signal})
        others = f", then {len(self.ends) - 1} more" if len(self.ends) > 1 else ""
        text = f"task {first} on {end.node} ended first ({how}{others}), and its output does not say why"
        # Tasks that end at about the same time are told in any order.
        alone = first if len(self.ends) == 1 else None
        return replace(finding, summary=text, printed_by=alone)

    def _diagnosed(self, logs: Sequence[LogFile], facts: Facts) -> tuple[Finding, LogFile]:
        """What the logs of one rank say; of several (output and errors apart) the one that says most."""
        best: tuple[tuple[bool, bool, float], Finding, LogFile] | None = None
        for log in logs:
            try:
                found = diagnose(log.path, facts, rules=self.rules)
            except OSError as error:
                self.trouble.append(f"cannot read {log.path} ({error.strerror}): judged without it")
                continue
            self.shown[log.path] = Shown(log.path, found.root.line if found.root else None)
            worth = (found.cls not in MUTE, found.root is not None, found.confidence)
            if best is None or worth >= best[0]:
                best = worth, Finding.from_diagnosis(found), log
        if best is None:
            finding = Finding.from_diagnosis(diagnose(b"", facts, rules=self.rules))
            return finding, logs[0] if logs else LogFile("")
        if self.first.state == "NODE_FAIL" and best[1].cls == "node_lost":
            # Slurm's own line, which may come before or after we read: what it says of the node is known better.
            return Finding("unknown", "unknown"), best[2]
        return best[1], best[2]

    # -- from outside --------------------------------------------------------------------------------------------------

    def _outside(self) -> list[MachineFact]:
        """What Slurm says of the job and of its nodes."""
        record, told = self.first, []
        if record.state in OUTSIDE:
            reason, message = OUTSIDE[record.state], self._words(record)
            finding = meaning(reason, message, self.rules)
            told.append(MachineFact(record.state, message, at=record.ended_at, finding=finding))
        restarts = max(one.restarts for one in self.records)
        if restarts:
            times = "once" if restarts == 1 else f"{restarts} times"
            told.append(MachineFact("Requeued", f"Slurm requeued the job {times} before this attempt"))
        nodes = [fact for node in self.nodes if (fact := self._of_node(node)) is not None]
        # That a node failed says less than what was said of its hardware.
        broken = [fact for fact in nodes if fact.finding is not None and fact.finding.family == "hardware"]
        return [*broken, *told, *(fact for fact in nodes if fact not in broken)]

    def _words(self, record: Record) -> str:
        """Slurm's state of a job in words."""
        quiet = ""
        written = [log.written_at for log in (*self.batch, *self.tasks) if log.written_at is not None]
        if written and record.ended_at is not None and record.ended_at - max(written) >= 60:
            quiet = f", {wording.duration(record.ended_at - max(written))} after the last output"
        if record.state == "TIMEOUT":
            return f"the time limit of {record.time_limit or 'the job'} was reached{quiet}"
        if record.state == "CANCELLED":
            by = f" by user {record.cancelled_by}" if record.cancelled_by else ""
            return f"cancelled{by}{'' if record.started_at and record.nodes else ' before it started'}{quiet}"
        words = {
            "PREEMPTED": "another job took its place",
            "NODE_FAIL": "a node of the job failed",
            "BOOT_FAIL": "a node of the job did not boot",
            "LAUNCH_FAILED": "it could not be launched",
            "OUT_OF_MEMORY": "the out-of-memory killer was at work in the job's control group",
            "DEADLINE": "it could not end before its deadline",
        }
        because = f" ({record.reason})" if record.reason and record.reason != "NonZeroExitCode" else ""
        return words[record.state] + because + quiet

    def _of_node(self, node: Node) -> MachineFact | None:
        """What a node's state says; nothing of a node that was set so at another time."""
        if not node.suspect:
            return None
        began, ended = self.first.started_at, self.first.ended_at
        if node.since is not None and (
            (began is not None and node.since < began) or (ended is not None and node.since > ended + NEAR_S)
        ):
            return None
        text = f"{node.state.lower()}: {node.reason}" if node.reason else node.state.lower()
        finding = meaning("NodeState", node.reason, self.rules) if node.reason else None
        if finding is None and node.gone and self.first.state == "NODE_FAIL":
            finding = meaning("NodeDown", text, self.rules)
        return MachineFact("NodeState", text, node.name, at=node.since, finding=finding)

    def _spread(self, fact: MachineFact, ranks: Sequence[Rank]) -> list[MachineFact]:
        """A fact about the job, for each rank that it is about."""
        if fact.node is not None or fact.finding is None:
            return [fact]
        named = [rank for rank in ranks if self._concerns(fact, rank)]
        return [replace(fact, name=rank.name, node=rank.node) for rank in named]

    def _concerns(self, fact: MachineFact, rank: Rank) -> bool:
        if fact.reason == "OUT_OF_MEMORY":
            hit = {task for task, end in self.ends.items() if end.out_of_memory}
            return not hit or rank.rank in hit
        if fact.reason == "NODE_FAIL":
            gone = {node.name for node in self.nodes if node.gone}
            return not gone or rank.node is None or rank.node in gone
        return True


def _broken(rank: Rank) -> bool:
    return rank.state == "failed"
