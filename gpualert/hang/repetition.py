"""Whether output says anything new: a job that hangs may go on to print the same few lines.

Lines are the same when they differ in nothing but times of day: a counter that counts is progress of some kind.
"""

from __future__ import annotations

import re
from collections import OrderedDict

KEPT = 64
"""How many different lines are remembered."""
LINE_MAX = 400
_TIMES = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|\b1\d{9}(?:\.\d+)?\b|\b1\d{12}\b|(?<=[EWIF])\d{4}\b|"
    r"\bT(?=\s*$)|Z\b"
)


class Repetition:
    """Follows one job's output."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: OrderedDict[str, None] = OrderedDict()

    def fresh(self, text: str) -> bool | None:
        """Whether a text holds a line that was not among the last ones.

        Args:
            text: The output since the last call: whole lines.

        Returns:
            None where there is no line at all.
        """
        lines = {_TIMES.sub("", line[:LINE_MAX]) for line in re.split(r"[\r\n]+", text) if line.strip()}
        new = [line for line in lines if line not in self._lines]
        for line in lines:
            self._lines[line] = None
            self._lines.move_to_end(line)
        while len(self._lines) > KEPT:
            self._lines.popitem(last=False)
        return bool(new) if lines else None
