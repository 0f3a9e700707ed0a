"""gpualert's own trouble: said once each, on at most four lines, and all of it recorded."""

from __future__ import annotations

import _thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "gpualert: "
MAX_LINES = 4


def one_line(text: str) -> str:
    """``text`` with nothing in it that a terminal would act on."""
    return "".join(c if c.isprintable() else "?" for c in text)


class Trouble:
    """Says and keeps what went wrong inside gpualert.

    Attributes:
        lines: Everything that went wrong so far, each once.
    """

    __slots__ = ("_lock", "_mask", "_record", "_said", "_say", "lines")

    def __init__(self, say: Callable[[str], None], record: Callable[[str], None], mask: Callable[[str], str]) -> None:
        """Nothing is wrong yet.

        Args:
            say: Prints text, whole lines, on our stderr.
            record: Notes one line in the journal.
            mask: Masks secrets: what is kept here goes into files.
        """
        self.lines: list[str] = []
        self._said = 0
        self._say = say
        self._record = record
        self._mask = mask
        self._lock = _thread.allocate_lock()

    def report(self, message: str) -> None:
        """Say and record ``message``, unless that was done before."""
        message = one_line(self._mask(message))
        with self._lock:
            if message in self.lines:
                return
            self.lines.append(message)
            self._said += 1
            said = self._said
        self._record(message)
        if said < MAX_LINES:
            self._say(f"{PREFIX}{message}\n")
        elif said == MAX_LINES:
            self._say(f"{PREFIX}{message} (further trouble is only recorded)\n")
