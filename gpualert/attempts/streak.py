"""How often a job has failed in the same way without getting any further; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

STOPPED = frozenset({"terminated", "interrupted", "evicted", "node_lost"})
"""Somebody or something ended the job: that says nothing of what a retry would do."""
FEW = 0.03
"""Steps that a failure comes later than before, as a share of all: not progress, but output that came late."""
OWN = 0.1
"""The same as a share of what an attempt does at its own pace: a job that has been resumed often."""
ALIKE = 2.0
SHORT_S = 60.0
"""How long a start takes differs so much from one time to the next that shorter durations are all alike."""
LOG_SLACK = 64 << 10
"""Bytes by which logs of the same length may differ."""
HOUR_S = 3600.0
LOOKED_BACK = 20
"""Attempts before the failure was another one that are looked at for what has not been told."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job, ended.

    Attributes:
        run_id: Its run, or incident.
        cls: The class of its end.
        fingerprint: That of its failure.
        ended_at: When it ended, in seconds since 1970.
        duration_s: How long it took, in seconds; None where unknown.
        step: The last step that it is known to have reached.
        epoch: The last epoch.
        rate: Steps a second.
        log_bytes: How much it printed.
        node: Where it ran.
        number: How many attempts had failed in a row then, as it says itself; 0 where it does not.
        same: How many of them in the same way without progress, as it says itself; 0 where it does not.
        first_at: When the first of these ended, in seconds since 1970, as it says itself.
        told_at: When somebody was told, in seconds since 1970; None where nobody was.
        held: Nobody was told, because it was the same again.
    """

    run_id: str
    cls: str
    fingerprint: str
    ended_at: float
    duration_s: float | None = None
    step: float | None = None
    epoch: float | None = None
    rate: float | None = None
    log_bytes: int | None = None
    node: str | None = None
    number: int = 0
    same: int = 0
    first_at: float | None = None
    told_at: float | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Streak:
    """The same failure in a row, none of them further than those before.

    Attributes:
        attempts: The attempts that failed so, oldest first, this one last.
        number: How many attempts have failed in a row, in whichever way, with this one.
        held: Attempts of this job that nobody was told of so far, oldest first; of another failure too.
        unseen: How many failed so before the first of them, as that one says: they are not to be read any more.
    """

    attempts: tuple[Attempt, ...]
    number: int = 1
    held: tuple[Attempt, ...] = ()
    unseen: int = 0

    @property
    def same(self) -> int:
        """How often, with this one."""
        return self.unseen + len(self.attempts)

    @property
    def first_at(self) -> float:
        """When the first of them ended, in seconds since 1970."""
        first = self.attempts[0]
        return first.first_at if self.unseen and first.first_at is not None else first.ended_at

    @property
    def lasted_s(self) -> float:
        """From the first of these ends to the last, in seconds."""
        return max(self.attempts[-1].ended_at - self.first_at, 0.0)

    @property
    def stopped(self) -> bool:
        """Whether it is no failure of the job."""
        return self.attempts[-1].cls in STOPPED


def progressed(now: Attempt, before: Attempt) -> bool:
    """Whether an attempt got further than one before it.

    By the step, else by the epoch; where neither is known of any of the two, by the duration and the length of the log.

    Args:
        now: The attempt.
        before: The one that it is compared with.
    """
    if now.epoch is not None and before.epoch is not None and math.floor(now.epoch) != math.floor(before.epoch):
        return now.epoch > before.epoch  # a step may be counted from the epoch's start
    if now.step is not None and before.step is not None:
        gain = now.step - before.step
        own = now.rate * now.duration_s if now.rate and now.duration_s else math.inf
        return gain > 1 and (gain > FEW * before.step or gain > OWN * own)
    here, there = (one.step if one.step is not None else one.epoch for one in (now, before))
    if (here is None) != (there is None):
        return there is None
    if here is not None:
        return now.epoch is not None and before.epoch is not None and now.epoch > before.epoch * (1 + FEW)
    if (now.log_bytes or 0) > ALIKE * (before.log_bytes or 0) + LOG_SLACK:
        return True
    if now.duration_s is None or before.duration_s is None:
        return False
    short, long = sorted((now.duration_s, before.duration_s))
    return long > SHORT_S and long > ALIKE * short


def further(one: Attempt, other: Attempt) -> Attempt:
    """The one of two attempts that got further; the later one where they are alike.

    Args:
        one: An attempt.
        other: A later one.
    """
    places = [
        (math.floor(a.epoch) if a.epoch is not None else -1, a.step if a.step is not None else -1.0)
        for a in (one, other)
    ]
    return one if places[0] > places[1] else other


def of(current: Attempt, earlier: Iterable[Attempt]) -> Streak:
    """The streak that an attempt is the last of.

    An attempt that was stopped from outside is passed over; a success, another failure, or one that got further than
    all before it begins the count anew.

    Args:
        current: The attempt; no success.
        earlier: The attempts before it, newest first; they are asked for one by one, and no further than needed.
    """
    alike, held, number, broken, after = [current], [], 1, False, 0
    told = False
    for position, one in enumerate(earlier):
        if not position and one.cls != "success":
            number = (one.number or 1) + 1
        told = told or one.told_at is not None
        if one.held and not told:
            held.append(one)
        if not broken:
            if one.fingerprint == current.fingerprint:
                alike.append(one)
            elif one.cls not in STOPPED:
                broken = True
        after += broken
        if broken and (told or after >= LOOKED_BACK):
            break
    found: list[Attempt] = []
    for one in reversed(alike):
        best = found[0] if found else one
        for other in found[1:]:
            best = further(best, other)
        found = [*found, one] if found and not progressed(one, best) else [one]
    oldest = found[0]
    whole = not broken and oldest is alike[-1] and oldest is not current
    unseen = max(oldest.same - 1, 0) if whole else 0
    return Streak(tuple(found), max(number, unseen + len(alike)), tuple(reversed(held)), unseen)


def milestone(count: int) -> bool:
    """Whether somebody is to be told at this count: 1, 2, 3, 5, 10, 20, 40 ...

    Args:
        count: How often the same has happened.
    """
    fives, rest = divmod(count, 5)
    return count in (1, 2, 3) or (not rest and fives > 0 and not fives & (fives - 1))


def next_milestone(count: int) -> int:
    """The first count after this one at which somebody is to be told.

    Args:
        count: How often the same has happened.
    """
    later = count + 1
    while not milestone(later):
        later += 1
    return later


def is_due(streak: Streak, now: float) -> bool:
    """Whether somebody is to be told of a streak's last attempt: at a milestone, or an hour after the last word.

    Args:
        streak: The streak.
        now: Seconds since 1970.
    """
    counted = enumerate(streak.attempts, streak.unseen + 1)
    told = [(count, one.told_at) for count, one in counted if one.told_at is not None]
    count, at = told[-1] if told else (0, None)
    # A milestone that was passed unseen (its telling failed) is made up for.
    return at is None or next_milestone(count) <= streak.same or now - at >= HOUR_S
