"""Which of two ranks broke first, as far as their clocks can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpualert.incident.model import Rank

TOGETHER_S = 5.0
"""Ranks that break the same way within so many seconds broke together (plus what their clocks may be off)."""
DISRUPTION_S = 60.0
"""What breaks within this time after a disruption, broke because of it: a grace period is 30 s by default (Kubernetes,
``terminationGracePeriodSeconds``), and a job scheduler's up to a minute."""


def earliest(ranks: Iterable[Rank]) -> Rank:
    """The rank that broke first; among equals the one with the lowest number."""
    return min(ranks, key=lambda rank: (rank.when is None, rank.when or 0.0, rank.rank or 0, rank.name))


def _slack(one: Rank, other: Rank) -> float:
    return max(one.slack_s, other.slack_s)


def near(one: Rank, other: Rank) -> bool:
    """Whether two ranks broke together, as far as their clocks can tell."""
    if one is other:
        return True
    if one.when is None or other.when is None:
        return True
    return abs(one.when - other.when) <= TOGETHER_S + _slack(one, other)


def before(one: Rank, other: Rank) -> bool:
    """Whether the first broke before the other, beyond what their clocks may be off."""
    return one.when is not None and other.when is not None and one.when < other.when - _slack(one, other)


def after(one: Rank, other: Rank) -> bool:
    """Whether the first broke after the other, or with it."""
    return one.when is None or other.when is None or one.when > other.when - _slack(one, other)


def moved(at: float | None, rank: Rank) -> float | None:
    """A time by the common clock as the rank's own clock shows it."""
    return None if at is None else at + rank.skew_s
