"""What one rank's own finding says: how much of a cause it is, and whether two ranks show the same."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from gpualert.incident.order import earliest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.incident.model import Finding, Rank

FAMILIES = frozenset({"hardware", "watcher"})
ABORTS = frozenset({"nccl_error", "native_abort", "segfault", "cuda_runtime", "dataloader_worker"})
"""Classes that are causes, but also how a rank ends whose peers have gone."""


def fine(rank: Rank) -> bool:
    """Whether a rank ended without error."""
    return rank.state == "succeeded" or (rank.finding is not None and rank.finding.cls == "success")


def class_of(rank: Rank) -> str | None:
    """The class that a rank shows; None where nothing is known of it."""
    return rank.finding.cls if rank.finding else None


def mute(rank: Rank) -> bool:
    """Whether a rank ended without saying why."""
    return rank.finding is None or rank.finding.cls in ("unknown", "lost")


def silent_class(finding: Finding) -> str:
    """The class of a rank that ended without saying why: ``lost`` with its supervisor, else ``unknown``."""
    return finding.cls if finding.cls == "lost" else "unknown"


def hardware(rank: Rank) -> bool:
    """Whether a rank shows trouble of its machine."""
    return rank.finding is not None and rank.finding.family in FAMILIES


def ends_in_abort(rank: Rank) -> bool:
    """Whether a rank ended as ranks do whose peers have gone."""
    return rank.finding is not None and rank.finding.cls in ABORTS


_SYMPTOMS = {
    "nccl_timeout": 1.0,
    "rendezvous_timeout": 1.0,
    "peer_lost": 1.0,
    "terminated": 1.0,
    "interrupted": 1.0,
    "hang": 1.0,
    "deadline_exceeded": 1.0,
    "network_error": 2.6,
    "runtime_error": 2.6,
    "traceback": 2.6,
    "unknown": 0.0,
    "lost": 0.0,
    "success": 0.0,
}


_PASSED_ON = re.compile(
    r"\b(?:worker|rank|actor|child|process|engine|peer|task)(?:\s|s\b|core)?.{0,40}\b(?:failed|died|exited|crashed|dead|killed)\b"
    r"|[Bb]roken pipe|Connection reset",
    re.IGNORECASE,
)
"""How an exception reads that tells of another process's end."""


def weight(rank: Rank) -> float:
    """How much of a cause a rank's class is: 4 the machine, 3 a cause, 2 an abort, 1 a symptom, 0 nothing."""
    finding = rank.finding
    if finding is None:
        return 0.0
    if finding.root is not None and finding.family == "code" and _PASSED_ON.search(finding.root):
        return 2.0
    if finding.cls in _SYMPTOMS:
        return _SYMPTOMS[finding.cls]
    if finding.family in FAMILIES or finding.cls == "oom_killer":
        return 4.0
    return 2.0 if finding.cls in ABORTS else 3.0


_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def same(one: Rank, other: Rank) -> bool:
    """Whether two ranks show the same: one class, and lines that differ in numbers alone where both show one."""
    if one.finding is None or other.finding is None or one.finding.cls != other.finding.cls:
        return False
    mine, theirs = one.finding.root, other.finding.root
    if mine is None or theirs is None or one.finding.family in ("gpu", *FAMILIES):
        return True
    return _NUMBER.sub("#", mine)[:120] == _NUMBER.sub("#", theirs)[:120]


def commonest(ranks: Sequence[Rank]) -> Finding | None:
    """The finding of the class that most ranks show; the earliest rank's."""
    known = [rank for rank in ranks if rank.finding is not None]
    if not known:
        return None
    cls = Counter(class_of(rank) for rank in known).most_common(1)[0][0]
    return earliest(rank for rank in known if class_of(rank) == cls).finding
