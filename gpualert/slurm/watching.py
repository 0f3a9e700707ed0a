"""Waiting until jobs have ended: the queue is asked for all of them in one call, and each job for itself only then.

slurmctld forgets a job MinJobAge (300 s by default) after its end, tasks of an array while others still run. So what it
says of a task is kept from the first time on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpualert.slurm import record
from gpualert.slurm.controller import UnreachableError
from gpualert.slurm.jobid import JobId

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpualert.slurm.controller import Controller, Queued
    from gpualert.slurm.record import Record

BACK_OFF_MAX_S = 600.0
_STUCK = {
    "DependencyNeverSatisfied": "the job that it depends on has failed",
    "launch failed requeued held": "its launch failed, and it is held",
    "JobHeldAdmin": "an administrator holds it",
    "job requeued in held state": "it was requeued, and is held",
}
"""Reasons for which a job waits until a person does something (squeue(1), "JOB REASON CODES")."""


class NoSuchJobError(Exception):
    """Slurm knows no such job."""


@dataclass
class _Watched:
    """A job that is waited for, with what is known of it."""

    id: JobId
    kept: dict[str, Record] = field(default_factory=dict)
    seen: frozenset[tuple[str, str]] = frozenset()
    told: set[str] = field(default_factory=set)

    def has(self, entry: Queued) -> bool:
        """Whether a line of the queue is about it."""
        return entry.job == self.id.number and (self.id.tasks is None or bool(self.id.tasks & entry.tasks))

    def mine(self, records: Iterable[Record]) -> list[Record]:
        """Those records that are about it."""
        wanted = self.id.tasks
        return [one for one in records if wanted is None or one.task in wanted or (one.task is None and one.group)]


class Watch:
    """Some jobs, watched until all have ended."""

    def __init__(self, ids: Sequence[JobId], slurm: Controller) -> None:
        self._slurm = slurm
        self._open = [_Watched(one) for one in ids]
        self._resolved = False

    @property
    def waiting(self) -> list[JobId]:
        """The jobs that have not ended yet."""
        return [job.id for job in self._open]

    def stuck(self, entries: Iterable[Queued]) -> Iterator[str]:
        """What to say of jobs that wait in vain, once of each."""
        for entry in entries:
            job = next((job for job in self._open if job.has(entry)), None)
            if job is not None and entry.reason in _STUCK and entry.label not in job.told:
                job.told.add(entry.label)
                if entry.state not in record.ENDED:
                    yield f"{entry.label} waits in vain ({entry.reason}: {_STUCK[entry.reason]}); scancel it, or Ctrl-C"

    def look(self, say: Callable[[str], None]) -> list[tuple[JobId, list[Record]]]:
        """Look once.

        Args:
            say: Takes what a person should know by now.

        Returns:
            The jobs that have ended since the last look, with their records.

        Raises:
            NoSuchJobError: At the first look: Slurm does not know some of the jobs.
            UnreachableError: slurmctld does not answer.
        """
        if not self._resolved:
            self._resolve()
        entries = self._slurm.queue(job.id.number for job in self._open)
        for line in self.stuck(entries):
            say(line)
        ended = []
        for job in self._open:
            records = self._look_at(job, [entry for entry in entries if job.has(entry)])
            if records:
                ended.append((job.id, records))
        done = {one for one, _ in ended}
        self._open = [job for job in self._open if job.id not in done]
        return ended

    def _resolve(self) -> None:
        """Find each job, by whatever of its numbers it was named."""
        unknown: list[str] = []
        found: dict[JobId, _Watched] = {}
        for job in self._open:
            records = self._slurm.records(job.id.number) or self._slurm.accounting(job.id.number)
            one = next((r for r in records if r.number == job.id.number), None)
            if one is not None and one.array not in (None, job.id.number) and one.task is not None:
                assert one.array is not None  # noqa: S101  (mypy: said above)
                job = _Watched(JobId(one.array, frozenset({one.task}), one.label))  # noqa: PLW2901
            elif one is not None and one.het is not None:
                job = _Watched(JobId(one.het, None, str(one.het)))  # noqa: PLW2901
                records = self._slurm.records(job.id.number) or records
            mine = job.mine(records)
            if not mine:
                unknown.append(job.id.text)
            job.kept = {r.label: r for r in mine}
            found.setdefault(job.id, job)
        if unknown:
            raise NoSuchJobError(
                f"Slurm knows no job {', '.join(unknown)}: it never was, or it ended so long ago that slurmctld has "
                f"forgotten it (MinJobAge)" + self._accounting()
            )
        self._open = list(found.values())
        self._resolved = True

    def _accounting(self) -> str:
        why = self._slurm.without_accounting
        return f", and the accounting cannot be asked ({why})" if why else ""

    def _look_at(self, job: _Watched, entries: Sequence[Queued]) -> list[Record]:
        """The records of a job that has ended; none while it has not."""
        seen = frozenset((entry.label, entry.state) for entry in entries)
        if seen != job.seen:
            job.kept.update({r.label: r for r in job.mine(self._slurm.records(job.id.number))})
            job.seen = seen
        if any(entry.state not in record.ENDED for entry in entries):
            return []
        # Tasks that waited together were one record until they started.
        kept = [r for r in job.kept.values() if r.ended or not r.group]
        known = record.merged(kept, job.mine(self._slurm.accounting(job.id.number)))
        queued = {entry.number for entry in entries}
        if any(not r.ended and r.number in queued for r in known):
            job.seen = frozenset()  # it ended between two of our questions: they are asked again
            return []
        known = [r if r.ended else replace(r, state=record.UNSEEN) for r in known]
        return sorted(known, key=lambda r: (r.component or 0, r.task or 0, r.number))


def until_ended(
    watch: Watch, every: float, stop: threading.Event, say: Callable[[str], None], *, once: bool = False
) -> Iterator[tuple[JobId, list[Record]]]:
    """Watch until all jobs have ended.

    Args:
        watch: The jobs.
        every: How often to look at most, in seconds.
        stop: Set to stop.
        say: Takes what a person should know by now.
        once: Look once only.

    Yields:
        Each job with its records, when it has ended.

    Raises:
        NoSuchJobError: Slurm does not know some of the jobs.
        UnreachableError: slurmctld did not answer, where once is enough.
    """
    failures = 0
    while watch.waiting and not stop.is_set():
        pause = every
        try:
            yield from watch.look(say)
            failures = 0
        except UnreachableError as error:
            if once:
                raise
            failures += 1
            pause = max(every, min(every * 2.0**failures, BACK_OFF_MAX_S))
            if failures == 1 and not stop.is_set():
                say(f"Slurm does not answer ({error}): trying again, ever more seldom")
        if once:
            return
        if watch.waiting:
            stop.wait(pause)
