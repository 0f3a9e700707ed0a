"""Which of several ranks to look at: those that crashed themselves, that the others waited for, that broke alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpualert.incident.order import DISRUPTION_S, before, earliest, near
from gpualert.incident.worth import class_of, fine, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.incident.model import Rank


_CRASHES = frozenset({"segfault", "native_abort", "unknown"})


def not_relayed(ranks: Sequence[Rank]) -> Sequence[Rank]:
    """The ranks that crashed themselves: one that exits with 128+N, or whose launcher's table says so, passes it on."""
    own = [r for r in ranks if r.finding is None or r.finding.cls not in _CRASHES or r.signal not in (None, 15)]
    return own or ranks


def waited_for(loud: Sequence[Rank]) -> Sequence[Rank]:
    """The few ranks that did not time out themselves, and broke only after the others, which waited for them."""
    waiting = [rank for rank in loud if class_of(rank) == "nccl_timeout"]
    rest = [rank for rank in loud if class_of(rank) != "nccl_timeout"]
    if not rest or len(rest) * 2 >= len(waiting):
        return []
    first = earliest(waiting)
    return rest if all(before(first, rank) for rank in rest) else []


def alone(loud: Sequence[Rank]) -> Rank | None:
    """The rank that broke long before all others and says something else; None where none did."""
    if len(loud) < 2:
        return None
    first = earliest(loud)
    rest = [rank for rank in loud if rank is not first]
    return first if all(before(first, r) and not near(first, r) and not same(first, r) for r in rest) else None


def still_printed(rank: Rank, loud: Sequence[Rank]) -> bool:
    """Whether a rank that runs still printed when the others broke."""
    first = earliest(loud).when
    last = rank.last_output_at
    return first is not None and last is not None and last - rank.skew_s >= first - DISRUPTION_S


def clearly_first(stopped: Sequence[Rank], others: Sequence[Rank]) -> bool:
    """Whether the first of those that were stopped broke before all others that did not end well."""
    first = earliest(stopped)
    return all(before(first, rank) for rank in others if not fine(rank))
