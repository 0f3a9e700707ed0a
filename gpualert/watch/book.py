"""All pods that are watched, by job and attempt; what has been deleted stays until it has been told."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpualert.report.timeline import seconds_of
from gpualert.watch import ends, owners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpualert.watch.ends import Life
    from gpualert.watch.owners import Owner, Place
    from gpualert.watch.slim import Object

FORGET_S = 3600.0
"""How long a deleted pod of an attempt that nothing is to be told of stays in the book."""


@dataclass(slots=True)
class Entry:
    """One life of a pod.

    Attributes:
        life: The life as last seen.
        place: The pod's place in its job.
        gone: The pod has been deleted.
        changed_at: When anything changed that matters, on the monotonic clock.
        log: The end of its log, once it has been asked for.
    """

    life: Life
    place: Place
    gone: bool = False
    changed_at: float = 0.0
    log: bytes | None = None


@dataclass(slots=True)
class Attempt:
    """One attempt of one job.

    Attributes:
        owner: The job.
        number: Which attempt, from 0.
        entries: Its pods' lives, by pod uid and number.
        opened_at: When its first failure was seen, on the monotonic clock; None before.
        told: What it looked like when nothing was left to tell, in short; None before.
        verdict: The class and the ranks that broke first, as they were told or held; None before.
    """

    owner: Owner
    number: int
    entries: dict[tuple[str, int], Entry] = field(default_factory=dict)
    opened_at: float | None = None
    told: str | None = None
    verdict: tuple[str, tuple[str, ...]] | None = None

    @property
    def changed_at(self) -> float:
        """When anything in it changed last, on the monotonic clock."""
        return max((entry.changed_at for entry in self.entries.values()), default=0.0)

    @property
    def over(self) -> bool:
        """Whether all of its pods have ended."""
        return all(entry.life.ended or entry.gone for entry in self.entries.values())

    @property
    def first_failure_at(self) -> float | None:
        """When the first of its pods failed, in seconds since 1970 by Kubernetes' clocks."""
        times = [seconds_of(entry.life.state.get("finishedAt")) for entry in self.entries.values() if entry.life.failed]
        return min((at for at in times if at is not None), default=None)


class Book:
    """All that is watched. Not safe to use from several threads at once: the caller has a lock.

    Args:
        only: What is watched (see ``owners.is_watched``).
        unschedulable_s: How long a pod may find no node before that is a failure, in seconds.
        clock: The monotonic clock.
    """

    def __init__(
        self, only: str = "jobs", unschedulable_s: float = 600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.attempts: dict[tuple[Owner, int], Attempt] = {}
        self.jobs: dict[tuple[str, str], Object] = {}
        self._only = only
        self._unschedulable_s = unschedulable_s
        self._clock = clock
        self._slots: dict[tuple[Owner, str], list[tuple[str, str, int]]] = {}
        self._entries: dict[str, list[tuple[Owner, int]]] = {}

    def pod(self, pod: Object, *, gone: bool = False) -> Owner | None:
        """A pod as it is now.

        Args:
            pod: The pod, slimmed.
            gone: It has been deleted.

        Returns:
            Its job, where it is watched.
        """
        place = owners.place_of(pod, self.jobs)
        if not owners.is_watched(pod, place, self._only):
            return None
        first = self._first_attempt(pod, place)
        for life in ends.lives(pod):
            self._note(life, place, first + life.number, gone=gone)
        return place.owner

    def _first_attempt(self, pod: Object, place: Place) -> int:
        """Which attempt of the job the pod's first start is: what its controller says, else by counting.

        A pod that takes the place of another (the same completion index, the same worker) begins the attempt after the
        one that the other ended in.
        """
        meta = pod["metadata"]
        if place.attempt is not None:
            return place.attempt
        slot = self._slots.setdefault((place.owner, place.slot), [])
        known = next((row for row in slot if row[1] == meta["uid"]), None)
        if known is not None:
            return known[2]
        created = str(meta["created"] or "")
        # Without an index, pods of one job that were made together are ranks of one attempt, not tries.
        earlier = [row for row in slot if row[0] < created]
        number = 0
        if place.slot or self._is_single(place.owner):
            number = max((row[2] + 1 + self._restarts(row[1]) for row in earlier), default=0)
        slot.append((created, meta["uid"], number))
        slot.sort()
        return number

    def _is_single(self, owner: Owner) -> bool:
        """Whether a job runs one pod at a time."""
        job = self.jobs.get((owner.namespace, owner.name)) if owner.kind == "Job" else None
        return job is None or (job["parallelism"] or 1) == 1

    def _restarts(self, uid: str) -> int:
        numbers = [
            number
            for key in self._entries.get(uid, [])
            for (pod, number) in (self.attempts[key].entries if key in self.attempts else ())
            if pod == uid
        ]
        return max(numbers, default=0)

    def _note(self, life: Life, place: Place, number: int, *, gone: bool) -> None:
        uid, key = life.pod["metadata"]["uid"], (place.owner, number)
        attempt = self.attempts.get(key)
        if attempt is None:
            attempt = self.attempts[key] = Attempt(place.owner, number)
        entry = attempt.entries.get((uid, life.number))
        if entry is None:
            entry = attempt.entries[uid, life.number] = Entry(life, place, changed_at=self._clock())
            self._entries.setdefault(uid, []).append(key)
        elif _differs(entry.life, life) or entry.gone != gone:
            entry.changed_at = self._clock()
        # What a container said when it ended outlasts what the API forgets when the pod goes.
        if entry.life.state.get("kind") != "terminated" or life.state.get("kind") == "terminated":
            entry.life = life
        entry.place, entry.gone = place, gone or entry.gone
        if attempt.opened_at is None and self.broken(entry):
            attempt.opened_at = self._clock()

    def broken(self, entry: Entry) -> bool:
        """Whether a pod's life is a failure.

        Args:
            entry: The life.
        """
        life = entry.life
        if life.failed or ends.disruption(life.pod) is not None:
            return True
        if entry.gone and not life.ended:
            return True
        waits = ends.unschedulable(life.pod)
        return waits is not None and waits[0] is not None and time.time() - waits[0] > self._unschedulable_s

    def look_again(self) -> None:
        """Open what time alone has made a failure (a pod that finds no node), and forget what is long over."""
        now = self._clock()
        for key, attempt in list(self.attempts.items()):
            if attempt.opened_at is None and any(self.broken(entry) for entry in attempt.entries.values()):
                attempt.opened_at = now
            all_gone = all(entry.gone for entry in attempt.entries.values())
            if all_gone and now - attempt.changed_at > FORGET_S and (attempt.told or attempt.opened_at is None):
                self.forget(key)

    def forget(self, key: tuple[Owner, int]) -> None:
        """Take an attempt out of the book.

        Args:
            key: Job and number.
        """
        attempt = self.attempts.pop(key, None)
        for uid, _ in attempt.entries if attempt is not None else ():
            kept = [other for other in self._entries.get(uid, []) if other != key]
            if kept:
                self._entries[uid] = kept
            else:
                self._entries.pop(uid, None)
        owner = key[0]
        if not any(other == owner for other, _ in self.attempts):
            for slot in [slot for slot in self._slots if slot[0] == owner]:
                del self._slots[slot]

    def due(self, settle_s: float, longest_s: float, quick_s: float) -> Iterator[Attempt]:
        """The attempts that have failed and stand still.

        Args:
            settle_s: How long after the last change, in seconds.
            longest_s: How long after the first failure at most.
            quick_s: How long after the last change where all pods have ended.
        """
        now = self._clock()
        for attempt in list(self.attempts.values()):
            if attempt.opened_at is None:
                continue
            still = now - attempt.changed_at
            if still >= (quick_s if attempt.over else settle_s) or now - attempt.opened_at >= longest_s:
                yield attempt


def _differs(before: Life, after: Life) -> bool:
    return (
        before.state != after.state
        or before.pod["phase"] != after.pod["phase"]
        or ends.disruption(before.pod) != ends.disruption(after.pod)
        or before.pod["init"] != after.pod["init"]
    )
