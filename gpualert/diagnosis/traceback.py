"""Python tracebacks in a log: where they are, and which exceptions they end in."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

from gpualert.diagnosis.reader import lines_from
from gpualert.diagnosis.text import unprefixed

if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER = "Traceback (most recent call last)"
CAUSED_BY = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"
REGION_BYTES = 256 << 10

_EXCEPTION = re.compile(r"^(?:[|+\s]*)((?:[A-Za-z_]\w*\.)*[A-Z_a-z]\w*)(?:: (.*)|:?$)")
# Another process's line came in between: `KeyErrorstep 3 loss 6.0`, and `: 'input_ids'` on the next line.
_SPLICED = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*?(?:Error|Exception|Interrupt))(?=[a-z\[\d]|[A-Z]\w*Error)")
_FRAME = re.compile(r'^\s*(?:[|+]\s*)*File "')


@dataclass(frozen=True, slots=True)
class Exception_:  # noqa: N801  (Exception is taken)
    """One exception at the end of a traceback.

    Attributes:
        name: Its qualified name as printed.
        message: The rest of its first line.
        line: The line's number in the log.
        spliced: Another process's line was spliced into its own.
        chained: It came up while another was handled, or was caused by it (``DURING`` or ``CAUSED_BY``).
    """

    name: str
    message: str
    line: int
    chained: str = ""
    spliced: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """A traceback, or several that are chained.

    Attributes:
        rank: The rank that printed it, where its lines tell.
        first_line: The number of its first line.
        last_line: The number of its last line, that of the exception.
        offset: Where the first line starts, in bytes.
        exceptions: Its exceptions, in the order printed.
    """

    rank: int | None
    first_line: int
    last_line: int
    offset: int
    exceptions: tuple[Exception_, ...]


_PROBES = frozenset(
    {
        "ImportError",
        "ModuleNotFoundError",
        "KeyError",
        "AttributeError",
        "StopIteration",
        "queue.Empty",
        "Empty",
        "_queue.Empty",
    }
)
"""Exceptions by which programs find out whether something is there, before they do without it."""


def probed(chain: Chain) -> list[int]:
    """The lines of exceptions that were handled by trying another way, which then failed for a reason of its own.

    Args:
        chain: The chain; where an exception is called the direct cause of the next, it was no such trial.
    """
    pairs = zip(chain.exceptions, chain.exceptions[1:], strict=False)
    return [
        first.line
        for first, second in pairs
        if second.chained == DURING and first.name in _PROBES and first.name != second.name
    ]


def parse(log: BinaryIO, offset: int, line: int, rank: int | None) -> Chain | None:
    """The chain whose header is at ``offset``.

    Args:
        log: The log.
        offset: Where the header's line starts, in bytes.
        line: That line's number.
        rank: The rank in that line's prefix; lines of other ranks in between are passed over.

    Returns:
        None when the text there is not a traceback after all (cut off, or quoted).
    """
    return _parse_lines(lines_from(log, offset, REGION_BYTES), offset, line, rank)


def _parse_lines(lines: Iterable[tuple[int, str]], offset: int, first: int, rank: int | None) -> Chain | None:
    exceptions: list[Exception_] = []
    inside, chained, quiet, last = False, "", 0, first
    for number, raw in lines:
        its_rank, text = unprefixed(raw)
        if its_rank is not None and rank is not None and its_rank != rank:
            continue
        if HEADER in text:
            if exceptions and not chained:
                break  # the next traceback, on its own
            inside = True
            continue
        if inside and text.strip() and not text.startswith((" ", "|", "+")) and not _FRAME.match(text):
            found = _EXCEPTION.match(text)
            spliced = _SPLICED.match(text) if found is None else None
            if spliced:
                exceptions.append(Exception_(spliced[1], "", first + number, chained, spliced=True))
                last, inside, chained, quiet = first + number, False, "", 0
            elif found:
                exceptions.append(Exception_(found[1], found[2] or "", first + number, chained))
                last, inside, chained, quiet = first + number, False, "", 0
            else:
                inside = False
        elif CAUSED_BY in text or DURING in text:
            chained = CAUSED_BY if CAUSED_BY in text else DURING
        elif exceptions and not inside and text.strip():
            if exceptions[-1].spliced and not exceptions[-1].message and text.startswith(": "):
                exceptions[-1] = replace(exceptions[-1], message=text[2:])
            quiet += 1
            if quiet > 200 or (quiet > 3 and not chained and _FRAME.match(text)):
                break
    return Chain(rank, first, last, offset, tuple(exceptions)) if exceptions else None
