"""Reading a log of any size once, in blocks, with memory that does not grow: only candidate lines are looked at."""

from __future__ import annotations

import io
import os
import re
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

from gpualert.diagnosis.sieve import Searched, Sieve
from gpualert.diagnosis.text import LINE_MAX, clean, unprefixed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpualert.diagnosis.rulebook import Rule, Rulebook

    Mask = Callable[[str], str]

BLOCK = 128 << 10
ENDLESS = 512 << 10
"""A line that is longer is looked at in parts."""
CHUNK = 64 << 10
KEEP_FIRST, KEEP_LAST = 12, 40
"""How many matches of one rule are kept from the start of the log, and from its end."""

LAST_LOOKS = 200
"""How many matches in one block are looked at to find the last ones that count."""
END_BYTES = 512 << 10
SECRET_MAX = 4096
"""How long a secret may be that is masked even where its line is cut."""

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

    def __init__(self, log: BinaryIO, rules: Rulebook, mask: Mask | None = None) -> None:
        """Read the log.

        Args:
            log: Its bytes.
            rules: What to look for.
            mask: Masks secrets in a text; asked before a line is cut, so that no part of a secret is left.
        """
        self._first: dict[str, list[Hit]] = {}
        self._last: dict[str, deque[Hit]] = {}
        self._mask = mask
        self._look = lru_cache(maxsize=4096)(rules.matches)
        self.lines = self.size = 0
        sieve = Sieve(rules.probes, rules.trigger)
        for block, offset, line in _blocks(log):
            self._scan(sieve, block, offset, line)
            self.size = offset + len(block)
            self.lines = line + block.count(b"\n")
            sieve.learn(self.size)
        late = [hit for searched in sieve.searched if searched.resting for hit in self._last_of(log, searched)]
        if sieve.blind:
            late += self._end_of(log, rules)
        self._keep_late(late)
        kept = [hit for hits in (*self._first.values(), *self._last.values()) for hit in hits]
        self.hits = sorted(kept, key=lambda hit: (hit.offset, hit.rule.level))

    def _scan(self, sieve: Sieve, block: bytes, base: int, line: int) -> None:
        """Look at each line of a block that is worth it."""
        position, counted = 0, 0
        for start, word in sieve.places(block, base, line):
            if start < position:
                continue
            begin, end = _line_around(block, start)
            line += block.count(b"\n", counted, begin)
            counted = begin
            position = min(end, start + LINE_MAX) if end - start > LINE_MAX else end
            for hit in self._look_at(_around(block, start, begin, end), base + begin, line + 1):
                self._keep(hit)
            sieve.looked(word)

    def _look_at(self, window: _Window, offset: int, line: int) -> Iterator[Hit]:
        text = clean(window.raw)
        # A structured logger puts a whole traceback into one string.
        pieces = text.split("\\n") if "\\n" in text and "Traceback" in text else (text,)
        for piece in pieces:
            matched = self._look(piece)
            if not matched:
                continue
            rank, bare = unprefixed(text)
            if _SOURCE_LINE.match(bare):
                return  # a frame quotes the program; what it says there did not happen there
            shown = self._shown(piece, window)
            for rule in matched:
                yield Hit(rule, line, offset, shown, rank)

    def _shown(self, piece: str, window: _Window) -> str:
        """A text as it may be quoted."""
        if self._mask is None:
            return piece
        if len(window.raw) == len(window.wide):
            return self._mask(piece)
        # What is cut off is masked with it; then as much as the longest secret can have left there is cut again, in
        # bytes, as the window was.
        wide = self._mask(clean(window.wide)).encode("utf-8", "replace")
        after = len(wide) - SECRET_MAX if window.cut_after else len(wide)
        text = wide[SECRET_MAX if window.cut_before else 0 : max(after, 0)].decode("utf-8", "ignore")
        # Where escapes were most of it, nothing may be left: the half that lies far from the cut.
        return text or self._mask(piece)[: len(piece) // 2]

    def _last_of(self, log: BinaryIO, searched: Searched) -> Iterator[Hit]:
        """The last matches of what matches everywhere, from the blocks that were noted."""
        kept = 0
        for offset, length, before in reversed(searched.blocks):
            log.seek(offset)
            block = log.read(length)
            for start in reversed([*searched.places(block)][-LAST_LOOKS:]):
                begin, end = _line_around(block, start)
                line = before + block.count(b"\n", 0, begin) + 1
                hits = list(self._look_at(_around(block, start, begin, end), offset + begin, line))
                yield from hits
                kept += bool(hits)
                if kept >= KEEP_LAST:
                    return

    def _end_of(self, log: BinaryIO, rules: Rulebook) -> Iterator[Hit]:
        """All matches at the end of a log that is full of everything."""
        begin = max(self.size - END_BYTES, 0)
        log.seek(begin)
        end = log.read(END_BYTES)
        first = end.find(b"\n") + 1 if begin else 0
        block = end[first:]
        line = self.lines - block.count(b"\n")
        position = counted = 0
        for found in rules.trigger.finditer(block):
            if found.start() < position:
                continue
            start, stop = _line_around(block, found.start())
            line += block.count(b"\n", counted, start)
            counted, position = start, stop
            yield from self._look_at(_around(block, found.start(), start, stop), begin + first + start, line + 1)

    def _keep(self, hit: Hit) -> None:
        first = self._first.setdefault(hit.rule.id, [])
        if len(first) < KEEP_FIRST:
            first.append(hit)
        else:
            self._last.setdefault(hit.rule.id, deque(maxlen=KEEP_LAST)).append(hit)

    def _keep_late(self, late: Iterable[Hit]) -> None:
        """Put matches that were found out of order among the last ones."""
        known = {(hit.rule.id, hit.offset, hit.text) for hits in self._first.values() for hit in hits}
        found: dict[str, dict[tuple[int, str], Hit]] = {}
        for hit in late:
            if (hit.rule.id, hit.offset, hit.text) not in known:
                found.setdefault(hit.rule.id, {})[hit.offset, hit.text] = hit
        for rule, hits in found.items():
            hits |= {(hit.offset, hit.text): hit for hit in self._last.get(rule, ())}
            self._last[rule] = deque(sorted(hits.values(), key=lambda hit: hit.offset), maxlen=KEEP_LAST)


@dataclass(frozen=True, slots=True)
class _Window:
    """A line as far as it matters: the bytes around a place, and more of them for what must not be cut."""

    raw: bytes
    wide: bytes
    cut_before: bool
    cut_after: bool


def _around(block: bytes, place: int, begin: int, end: int) -> _Window:
    first, last = max(begin, place - LINE_MAX), min(end, place + LINE_MAX)
    wide_first, wide_last = max(begin, first - SECRET_MAX), min(end, last + SECRET_MAX)
    raw = block[first:last]
    if wide_first == first and wide_last == last:
        return _Window(raw, raw, cut_before=False, cut_after=False)
    return _Window(raw, block[wide_first:wide_last], cut_before=wide_first > begin, cut_after=wide_last < end)


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
            cut = len(block) if len(block) >= ENDLESS else 0  # a line without end
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


def line_starts(log: BinaryIO, chunk: int) -> Iterator[tuple[int, str]]:
    """The clean lines that begin in one chunk of a log, each with its offset in bytes.

    Args:
        log: The log.
        chunk: The number of the chunk of ``CHUNK`` bytes.
    """
    begin = chunk * CHUNK
    log.seek(max(begin - 1, 0))
    data = log.read(CHUNK + LINE_MAX + (begin > 0))
    place = data.find(b"\n") + 1 if begin else 0
    if begin and not place:
        return
    offset = max(begin - 1, 0) + place
    for raw in data[place:].split(b"\n"):
        if offset >= begin + CHUNK:
            return
        yield offset, clean(raw.rpartition(b"\r")[2] or raw.rstrip(b"\r").rpartition(b"\r")[2])
        offset += len(raw) + 1
