"""Reading a log of any size once, in blocks, with memory that does not grow: only candidate lines are looked at."""

from __future__ import annotations

import io
import os
import re
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

from gpualert.diagnosis.text import LINE_MAX, clean, unprefixed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpualert.diagnosis.rulebook import Rule, Rulebook

BLOCK = 1 << 20
KEEP_FIRST, KEEP_LAST = 12, 40
"""How many matches of one rule are kept from the start of the log, and from its end."""

_SOURCE_LINE = re.compile(
    r"\s{2,}(?:raise|except|return|assert|if|elif|with|from|import|def|class|logger|log|warnings)\b"
)

LogSource = BinaryIO | bytes | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Hit:
    """One line that a rule matched.

    Attributes:
        rule: The rule.
        line: The line's number, from 1.
        offset: Where the line starts in the log, in bytes.
        text: The line, clean.
        rank: The rank that printed it, where the line tells.
    """

    rule: Rule
    line: int
    offset: int
    text: str
    rank: int | None


def open_log(source: LogSource) -> BinaryIO:
    """A seekable stream of a log's bytes.

    Args:
        source: A path, the bytes themselves, or a stream that can seek.

    Raises:
        OSError: The file cannot be opened.
    """
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if isinstance(source, str | os.PathLike):
        return open(source, "rb")
    return source


class Scan:
    """What one pass over a log has found.

    Attributes:
        hits: The kept matches, in order.
        lines: How many lines the log has.
        size: How many bytes.
    """

    def __init__(self, log: BinaryIO, rules: Rulebook) -> None:
        """Read the log.

        Args:
            log: Its bytes.
            rules: What to look for.
        """
        self._first: dict[str, list[Hit]] = {}
        self._last: dict[str, deque[Hit]] = {}
        self._rules = rules
        self._look = lru_cache(maxsize=4096)(rules.matches)
        self.lines = self.size = 0
        for block, offset, line in _blocks(log):
            self._scan(block, offset, line)
            self.size = offset + len(block)
            self.lines = line + block.count(b"\n")
        kept = [hit for hits in (*self._first.values(), *self._last.values()) for hit in hits]
        self.hits = sorted(kept, key=lambda hit: (hit.offset, hit.rule.level))

    def _scan(self, block: bytes, base: int, line: int) -> None:
        """Look at each line of a block that holds a trigger word."""
        position, counted = 0, 0
        for found in self._rules.trigger.finditer(block):
            start = found.start()
            if start < position:
                continue
            begin, end = _line_around(block, start)
            position = end
            line += block.count(b"\n", counted, begin)
            counted = begin
            cut_begin, cut_end = max(begin, start - LINE_MAX), min(end, start + LINE_MAX)
            if end - cut_end > 0:
                position = cut_end
            self._look_at(block[cut_begin:cut_end], base + begin, line + 1)

    def _look_at(self, raw: bytes, offset: int, line: int) -> None:
        text = clean(raw)
        # A structured logger puts a whole traceback into one string.
        pieces = text.split("\\n") if "\\n" in text and "Traceback" in text else (text,)
        for piece in pieces:
            matched = self._look(piece)
            if not matched:
                continue
            rank, bare = unprefixed(text)
            if _SOURCE_LINE.match(bare):
                return  # a frame quotes the program; what it says there did not happen there
            for rule in matched:
                self._keep(Hit(rule, line, offset, piece, rank))

    def _keep(self, hit: Hit) -> None:
        first = self._first.setdefault(hit.rule.id, [])
        if len(first) < KEEP_FIRST:
            first.append(hit)
        else:
            self._last.setdefault(hit.rule.id, deque(maxlen=KEEP_LAST)).append(hit)


def _line_around(block: bytes, position: int) -> tuple[int, int]:
    """Where the line that holds ``position`` begins and ends; a carriage return ends a line too (progress bars)."""
    begin = block.rfind(b"\n", 0, position) + 1
    begin = max(block.rfind(b"\r", begin, position) + 1, begin)
    end = block.find(b"\n", position)
    end = len(block) if end < 0 else end
    returned = block.find(b"\r", position, end)
    return begin, end if returned < 0 else returned


def _blocks(log: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Blocks that end at line ends where they can, with their offset and the number of lines before them."""
    log.seek(0)
    offset = line = 0
    rest = b""
    while True:
        data = log.read(BLOCK)
        block = rest + data
        if not data:
            if block:
                yield block, offset, line
            return
        cut = block.rfind(b"\n") + 1
        if not cut:
            cut = len(block) if len(block) >= 2 * BLOCK else 0  # a line without end
        if cut:
            yield block[:cut], offset, line
            line += block.count(b"\n", 0, cut)
            offset += cut
        rest = block[cut:]


def lines_from(log: BinaryIO, offset: int, limit: int) -> Iterator[tuple[int, str]]:
    """Clean lines from an offset on, each with how many line ends came before it since the offset.

    Args:
        log: The log.
        offset: Where to begin, in bytes.
        limit: How many bytes to read at most.
    """
    log.seek(offset)
    data = log.read(limit)
    for number, raw in enumerate(data.split(b"\n")):
        yield number, clean(raw.rpartition(b"\r")[2] or raw.rstrip(b"\r").rpartition(b"\r")[2])
