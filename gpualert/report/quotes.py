"""What is quoted from the log, masked, for page and mail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import excerpt

if TYPE_CHECKING:
    from gpualert.supervisor.redaction import Redaction

TAIL_LINES = 40


def take(log_path: str, line: int | None, redaction: Redaction) -> dict[str, Any]:
    """Quote a run's log.

    Args:
        log_path: The log.
        line: The decisive line's number; None where there is none.
        redaction: Masks secrets.

    Returns:
        ``context`` (rows of number and line around the decisive one), ``traceback`` (the one that holds it) and
        ``tail`` (the last lines); each empty where the log has none or cannot be read.
    """
    try:
        around = excerpt.context(log_path, line, mask=redaction.mask) if line else []
        traceback = excerpt.traceback_around(log_path, line, mask=redaction.mask) if line else []
        tail = excerpt.tail(log_path, TAIL_LINES, mask=redaction.mask)
    except OSError:
        return {"context": [], "traceback": [], "tail": []}
    return {"context": [[number, text] for number, text in around], "traceback": traceback, "tail": tail}
