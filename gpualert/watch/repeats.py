"""A job that fails again and again: what its marks, and those of the jobs before it, say of the attempts so far."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpualert.attempts import earlier, identity
from gpualert.attempts.streak import Attempt
from gpualert.report import attempts
from gpualert.report.timeline import seconds_of
from gpualert.watch import marks
from gpualert.watch.owners import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpualert.attempts.streak import Streak
    from gpualert.watch.book import Attempt as Seen
    from gpualert.watch.marks import Mark, Marked
    from gpualert.watch.slim import Object

REMEMBERED = 500
"""Jobs whose marks are remembered, so that one that is made again under the same name is known."""
_NUMBERS_MAX = 1e15


@dataclass(slots=True)
class Repeats:
    """What is known of jobs that are gone; what is known of others stands on them.

    Attributes:
        remembered: The marks of jobs that were told of, by whose they are and the object's uid.
        succeeded: When a Job of that name was completed last, in seconds since 1970.
    """

    remembered: OrderedDict[tuple[str, ...], dict[str, tuple[Mark, ...]]] = field(default_factory=OrderedDict)
    succeeded: OrderedDict[tuple[str, ...], float] = field(default_factory=OrderedDict)

    def see(self, job: Object) -> None:
        """A Job as it is now: one that was completed begins the count anew.

        Args:
            job: The Job, slimmed.
        """
        times = [seconds_of(row.get("lastTransitionTime")) for row in job["conditions"] if row["type"] == "Complete"]
        if times and times[0] is not None:
            meta = job["metadata"]
            whose = identity_of(Owner(meta["namespace"], "batch", "v1", "Job", meta["name"]))
            self.succeeded[whose] = max(times[0], self.succeeded.get(whose, 0.0))
            self.succeeded.move_to_end(whose)
            while len(self.succeeded) > REMEMBERED:
                self.succeeded.popitem(last=False)

    def note(self, seen: Seen, marked: Marked | None, jobs: Iterable[Object], report: dict[str, Any]) -> Streak | None:
        """Look at the attempts before one, and write into its report what they say.

        Args:
            seen: The attempt.
            marked: The job with its marks; None where it is gone.
            jobs: The Jobs that are known.
            report: The incident's report; changed.

        Returns:
            The streak; None for a success.
        """
        whose, got = identity_of(seen.owner), furthest(seen)
        report["progress"] = {"at": report["made_at"], **got} if got else None
        began = seconds_of(report["run"].get("started_at"))
        before: dict[str, tuple[float, int, Attempt]] = {}
        for mark, own in self._before(seen.owner, whose, seen.number, marked, jobs):
            # What one object's attempts are, its controller says; of two objects the times tell.
            if own or began is None or mark.ended_at <= began + earlier.OTHER_CLOCK_S:
                before[mark.incident] = mark.ended_at, mark.attempt, _attempt(mark)
        done = self.succeeded.get(whose)
        if done is not None and (began is None or done <= began + earlier.OTHER_CLOCK_S):
            before[""] = done, 0, Attempt("", "success", "", done)
        listed = sorted(before.values(), key=lambda row: row[:2], reverse=True)
        return attempts.note(report, whose, [one for _, _, one in listed])

    def remember(self, owner: Owner, marked: Marked, mark: Mark) -> None:
        """Remember what is marked on a job, should it go, or take no marks.

        Args:
            owner: The job.
            marked: The job as it is now.
            mark: The mark that was to be written on it.
        """
        whose = identity_of(owner)
        known = self.remembered.setdefault(whose, {})
        kept = {one.incident: one for one in known.pop(marked.uid, ())} | {mark.incident: mark}
        kept |= {one.incident: one for one in marked.marks.values()}
        known[marked.uid] = tuple(kept.values())[-marks.KEPT :]
        for uid in list(known)[: -marks.KEPT]:
            del known[uid]
        self.remembered.move_to_end(whose)
        while len(self.remembered) > REMEMBERED:
            self.remembered.popitem(last=False)

    def _before(
        self, owner: Owner, whose: tuple[str, ...], number: int, marked: Marked | None, jobs: Iterable[Object]
    ) -> Iterator[tuple[Mark, bool]]:
        """The marks of earlier attempts, and whether they are those of the same object."""
        uid = marked.uid if marked is not None else None
        for known, found in self.remembered.get(whose, {}).items():
            yield from ((mark, known == uid) for mark in found if known != uid or mark.attempt < number)
        for job in jobs if owner.kind == "Job" and owner.group == "batch" else ():
            meta = job["metadata"]
            same = meta["namespace"] == owner.namespace and meta["uid"] != uid
            if same and identity.scheduled_name(meta["name"]) == whose[-1] and marks.INCIDENTS in meta["annotations"]:
                yield from ((mark, False) for mark in marks.of_notes(meta["annotations"]).values())
        if marked is not None:
            yield from ((mark, True) for mark in marked.marks.values() if mark.attempt < number)


def identity_of(owner: Owner) -> tuple[str, ...]:
    """Whose failures are attempts of one job: of one object, of the Jobs of a CronJob, of one name.

    Args:
        owner: The job.
    """
    name = owner.name or owner.part
    part = owner.part if owner.name else ""
    return (owner.namespace, owner.group, owner.kind, part, identity.scheduled_name(name))


def furthest(seen: Seen) -> dict[str, float]:
    """How far the ranks of an attempt say they were: the one that got furthest.

    Args:
        seen: The attempt.
    """
    told = [(entry.life.machine or {}).get("progress") for entry in seen.entries.values()]
    known = [
        {name: value for name in ("step", "epoch") if (value := _number(one.get(name))) is not None}
        for one in told
        if isinstance(one, dict)
    ]
    return max(known, key=lambda one: (one.get("epoch", -1.0), one.get("step", -1.0)), default={})


def marking(mark: Mark, found: Streak | None) -> Mark:
    """A mark that says of an attempt what later ones want to know.

    Args:
        mark: The mark.
        found: The streak that it is the last of.
    """
    if found is None:
        return mark
    last = found.attempts[-1]
    return replace(
        mark,
        fingerprint=last.fingerprint,
        same=found.same,
        number=found.number,
        step=last.step,
        epoch=last.epoch,
        took_s=last.duration_s,
        node=last.node,
        first_at=found.first_at,
        ended_at=last.ended_at,
    )


def _attempt(mark: Mark) -> Attempt:
    return Attempt(
        mark.incident,
        mark.cls,
        mark.fingerprint,
        mark.ended_at,
        mark.took_s,
        mark.step,
        mark.epoch,
        node=mark.node,
        number=mark.number,
        same=mark.same,
        first_at=mark.first_at,
        told_at=mark.at if mark.state in ("told", "digest") else None,
        held=mark.state == marks.HELD,
    )


def _number(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _NUMBERS_MAX
    return float(value) if fits else None
