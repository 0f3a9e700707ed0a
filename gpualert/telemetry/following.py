"""Reading ``telemetry.jsonl`` while the collector still writes it."""

from __future__ import annotations

import os
from typing import Any

from gpualert.rundir import regular
from gpualert.telemetry import record
from gpualert.telemetry.figures import Figures

PIECE = 1 << 20


class Following:
    """Gives out each line once."""

    __slots__ = ("_fd", "_lines", "_part", "_path")

    def __init__(self, run_directory: str) -> None:
        """Nothing is read yet; the file need not be there.

        Args:
            run_directory: The run's directory.
        """
        self._path = os.path.join(run_directory, record.NAME)
        self._fd, self._part, self._lines = -1, b"", 0

    def lines(self) -> list[dict[str, Any]]:
        """The lines that have come since the last call, as far as they have their shape."""
        if self._fd < 0:
            try:
                self._fd = regular.opened(self._path)
            except OSError:
                return []
        found: list[dict[str, Any]] = []
        while self._lines < record.MAX_LINES:
            try:
                piece = os.read(self._fd, PIECE)
            except OSError:
                break
            if not piece:
                break
            *whole, self._part = (self._part + piece).split(b"\n")
            if len(self._part) > record.MAX_LINE:
                self._part = b""  # no line of ours; its end is none either
            self._lines += len(whole)
            found += [line for line in map(_parsed, whole) if line is not None]
        return found

    def close(self) -> None:
        """Read no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def figures_of(run_directory: str) -> Figures:
    """All that the collector has left of a run, as figures.

    Args:
        run_directory: The run's directory.
    """
    figures, following = Figures(), Following(run_directory)
    for line in following.lines():
        figures.add(line)
    following.close()
    return figures


def _parsed(raw: bytes) -> dict[str, Any] | None:
    return record.parse(raw) if len(raw) <= record.MAX_LINE else None
