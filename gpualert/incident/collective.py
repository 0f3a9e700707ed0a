"""Which rank was out of step with the others, by what their watchdogs say of the collective that timed out.

Source: PyTorch, ``ProcessGroupNCCL``: ``WorkNCCL(SeqNum=…, OpType=…, NumelIn=…, …)`` in the watchdog's message names
the collective that a rank waited in. A rank that waits in another one than the rest went astray; the one that waits in
none never came.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpualert.incident.model import Rank

_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?")
_BEHIND = re.compile(r"Last enqueued NCCL work: (\d+), last completed NCCL work: (\d+)")
ENOUGH = 2
"""How many ranks must agree before another is out of step."""


def _waited_in(rank: Rank) -> tuple[str, ...] | None:
    finding = rank.finding
    texts = (finding.root or "", *finding.texts) if finding else ()
    works = (found.groups(default="") for text in texts if (found := _WORK.search(text)))
    # A rank that has completed all that it enqueued waits in nothing: the others are in a collective it never entered.
    idle = ((found[1],) for text in texts if (found := _BEHIND.search(text)) and found[1] == found[2])
    return next(works, None) or next(idle, None)


def out_of_step(ranks: Iterable[Rank]) -> Sequence[Rank]:
    """The ranks that waited in another collective than most; none where most do not agree.

    Args:
        ranks: The ranks whose collectives timed out.
    """
    told = [(rank, work) for rank in ranks if (work := _waited_in(rank)) is not None]
    counted = Counter(work for _, work in told).most_common(2)
    if not counted or counted[0][1] < ENOUGH or (len(counted) > 1 and counted[1][1] == counted[0][1]):
        return []
    astray = [rank for rank, work in told if work != counted[0][0]]
    return astray if len(astray) < counted[0][1] else []
