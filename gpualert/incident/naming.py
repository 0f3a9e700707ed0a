"""How ranks are named: by number, by node, or by the name of what ran them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpualert.incident.model import Rank


def numbers(listed: Iterable[int]) -> str:
    """``0-3, 7`` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in sorted(set(listed)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ", ".join(parts[:8]) + (" ..." if len(parts) > 8 else "")


def named(ranks: Sequence[Rank]) -> str:
    """``rank 3 (gpu-17)``, ``ranks 0-7`` or the names of ranks that have no number."""
    listed = [printed(rank) for rank in ranks]
    nodes = list(dict.fromkeys(rank.node for rank in ranks if rank.node))
    where = f" ({', '.join(nodes)})" if nodes and len(nodes) <= 2 else f" (on {len(nodes)} nodes)" if nodes else ""
    if any(number is None for number in listed):
        names = ", ".join(rank.name for rank in ranks[:4]) + (" ..." if len(ranks) > 4 else "")
        return names + where
    told = numbers([number for number in listed if number is not None])
    return f"rank{'s' if len(ranks) > 1 else ''} {told}{where}"


def printed(rank: Rank) -> int | None:
    """A rank's number: the one that printed the decisive line where its log holds several, else its own."""
    if rank.finding is not None and rank.finding.printed_by is not None and rank.finding.root is not None:
        return rank.finding.printed_by
    return rank.rank
