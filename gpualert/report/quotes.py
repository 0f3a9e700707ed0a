"""What is quoted from the log, masked, for page and mail."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import excerpt

if TYPE_CHECKING:
    from gpualert.supervisor.redaction import Redaction

TAIL_LINES = 40


@dataclass(frozen=True, slots=True)
class Quotes:
    """Parts of the log.

    Attributes:
        context: Numbers and lines around the decisive one.
        traceback: The traceback that holds it.
        tail: The last lines.
    """

    context: list[tuple[int, str]] = field(default_factory=list)
    traceback: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)


def take(log_path: str, report: dict[str, Any], redaction: Redaction) -> Quotes:
    """Quote a run's log.

    Args:
        log_path: The log.
        report: The report, which names the decisive line.
        redaction: Masks secrets.

    Returns:
        The quotes; empty where the log cannot be read.
    """
    root = report["diagnosis"]["root"]
    line = root["line"] if root else None
    try:
        around = excerpt.context(log_path, line) if line else []
        traceback = excerpt.traceback_around(log_path, line) if line else []
        tail = excerpt.tail(log_path, TAIL_LINES)
    except OSError:
        return Quotes()
    return Quotes(
        [(number, redaction.mask(text)) for number, text in around],
        [redaction.mask(text) for text in traceback],
        [redaction.mask(text) for text in tail],
    )
