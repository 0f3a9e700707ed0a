"""One sign of progress, and the numbers that such signs are made of."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

Phase = Literal["train", "eval", "other"]
COUNT_MAX = 10**12
"""Of steps: more is nonsense."""
EPOCHS_MAX = 1_000_000
SHOWN_MAX = 200
"""Characters of a line that are kept."""

INT = r"(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})"
REAL = r"(?:[-+]?(?:\d{1,15}(?:\.\d{0,20})?|\.\d{1,20})(?:e[-+]?\d{1,3})?|[-+]?(?:nan|inf(?:inity)?)\b)"
"""A number as programs print it, in lower case."""

# Which loss a line tells of: the training's own, not that of a validation, a part of it, or its scale.
_LOSS = re.compile(
    r"(?:(?:train(?:ing)?|tr|lm|total|avg|average|mean|running|reduced_train|cross[_ ]?entropy)[ _/]?)?loss"
    r"(?:[ _/](?:train|avg|step|total|mean|epoch)){0,2}['\"]?\s{0,4}[:=|]?\s{0,6}['\"]?(?:tensor\()?"
    rf"(?P<value>{REAL})"
)
_OTHER_LOSS = re.compile(
    r"(?<![a-z])(?:val(?:id(?:ation)?)?|eval(?:uation)?|test|dev|best|nll|aux|box|cls|dfl|min|max|last|prev|final|mtp_\d)"
    r"[ _/.\-]{0,3}$"
)
_NAMED = re.compile(r"[a-z0-9][_.\-]?$")


@dataclass(frozen=True, slots=True)
class Step:
    """What one line tells of how far something has come.

    Attributes:
        format: Whose way of printing it is, such as ``tqdm`` or ``megatron``.
        step: The number of the step; None where only the epoch is told.
        total: How many there will be; None where nothing tells.
        epoch: The epoch, as printed (some count from 0, some from 1, some in fractions).
        epochs: How many there will be.
        loss: The training's loss; may be NaN or infinite.
        rate: Steps a second, as printed.
        unit: What is counted: ``it``, ``step``, ``batch``, ``samples`` ...
        rank: The rank that printed it, where it says so.
        phase: ``train``; ``eval`` for a validation or a test; ``other`` for downloads, tokenizing, loading ...
        line: The line, without escapes, shortened.
        per_epoch: Whether ``step`` and ``total`` count the steps of one epoch; None where that cannot be told.
    """

    format: str
    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    loss: float | None = None
    rate: float | None = None
    unit: str = "step"
    rank: int | None = None
    phase: Phase = "train"
    line: str = ""
    per_epoch: bool | None = None


def count(text: str | None) -> int | None:
    """A number of steps.

    Args:
        text: Digits, perhaps with commas between thousands.
    """
    if not text or not text.isascii():
        return None
    value = int(text.replace(",", ""))
    return value if value <= COUNT_MAX else None


def real(text: str | None) -> float | None:
    """A number; NaN and infinities are numbers here.

    Args:
        text: As ``REAL`` has it.
    """
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def epoch(text: str | None) -> float | None:
    """An epoch.

    Args:
        text: Digits, perhaps with a fraction.
    """
    value = real(text)
    return value if value is not None and 0 <= value <= EPOCHS_MAX else None


def epochs(text: str | None) -> int | None:
    """A number of epochs.

    Args:
        text: Digits.
    """
    value = count(text)
    return value if value is not None and 0 < value <= EPOCHS_MAX else None


def per_second(seconds: float | None) -> float | None:
    """Steps a second.

    Args:
        seconds: How long one takes.
    """
    if seconds is None or not math.isfinite(seconds) or not 1e-9 < seconds < 1e9:
        return None
    return 1 / seconds


def loss(low: str, start: int = 0) -> float | None:
    """The training's loss in a line; None where it tells of none.

    Args:
        low: The line, in lower case.
        start: Where to begin.

    Returns:
        The one that is called loss; else the first of those with a name of their own (``ce_loss``).
    """
    named = None
    for found in _LOSS.finditer(low, start):
        before = low[max(found.start() - 16, start) : found.start()]
        if _OTHER_LOSS.search(before):
            continue
        if not _NAMED.search(before):
            return real(found["value"])
        named = real(found["value"]) if named is None else named
    return named
