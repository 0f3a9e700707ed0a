"""Quoting a log: the lines around one, the last ones, and the traceback that holds one; bounded memory, no escapes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpualert.diagnosis.reader import LogSource, open_log
from gpualert.diagnosis.text import clean, shorten
from gpualert.diagnosis.traceback import CAUSED_BY, DURING, HEADER

if TYPE_CHECKING:
    from typing import BinaryIO

    from gpualert.diagnosis.reader import Mask

BLOCK = 1 << 20
TAIL_BYTES = 256 << 10
QUOTED_LINE_MAX = 500
TRACEBACK_LINES_MAX = 120


def offset_of_line(source: LogSource, line: int) -> int:
    """Where a line begins.

    Args:
        source: The log.
        line: The line's number, from 1.

    Returns:
        Its offset in bytes; that of the log's end where it has fewer lines.

    Raises:
        OSError: The log cannot be read.
    """
    log = open_log(source)
    try:
        return _seek_line(log, line)
    finally:
        if log is not source:
            log.close()


def _seek_line(log: BinaryIO, line: int) -> int:
    log.seek(0)
    before, offset = 0, 0
    while before < line - 1:
        block = log.read(BLOCK)
        if not block:
            return offset
        count = block.count(b"\n")
        if before + count >= line - 1:
            position = -1
            for _ in range(line - 1 - before):
                position = block.find(b"\n", position + 1)
            return offset + position + 1
        before += count
        offset += len(block)
    return offset


def _visible(raw: bytes, mask: Mask | None) -> str:
    """A line as a terminal would show it in the end: what a carriage return has overwritten is left out."""
    raw = raw.rstrip(b"\r")
    text = clean(raw.rpartition(b"\r")[2] if b"\r" in raw else raw)
    # Masked before it is shortened: the beginning of a secret is one too.
    return shorten(mask(text) if mask else text, QUOTED_LINE_MAX)


def context(
    source: LogSource, line: int, before: int = 8, after: int = 6, *, mask: Mask | None = None
) -> list[tuple[int, str]]:
    """The lines around one.

    Args:
        source: The log.
        line: The line's number, from 1.
        before: How many lines before it.
        after: How many after it.
        mask: Masks secrets.

    Returns:
        Numbers and lines.

    Raises:
        OSError: The log cannot be read.
    """
    log = open_log(source)
    try:
        first = max(line - before, 1)
        log.seek(_seek_line(log, first))
        room = (before + after + 1) * 4096
        data = log.read(room)
    finally:
        if log is not source:
            log.close()
    lines = data.split(b"\n")
    if len(data) == room and len(lines) > line - first + 1:
        lines.pop()  # cut off, perhaps in the middle of a secret
    lines = lines[: line + after - first + 1]
    if lines and not lines[-1]:
        lines.pop()
    return [(first + number, _visible(raw, mask)) for number, raw in enumerate(lines)]


def tail(source: LogSource, count: int = 40, *, mask: Mask | None = None) -> list[str]:
    """The last lines of a log.

    Args:
        source: The log.
        count: How many lines at most.
        mask: Masks secrets.

    Raises:
        OSError: The log cannot be read.
    """
    log = open_log(source)
    try:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(size - TAIL_BYTES, 0))
        data = log.read(TAIL_BYTES)
    finally:
        if log is not source:
            log.close()
    lines = data.split(b"\n")
    if size > TAIL_BYTES:
        lines = lines[1:]
    if lines and not lines[-1]:
        lines.pop()
    return [_visible(raw, mask) for raw in lines[-count:]]


def traceback_around(source: LogSource, line: int, *, mask: Mask | None = None) -> list[str]:
    """The traceback that holds a line, from its header to its exception; empty where there is none.

    Args:
        source: The log.
        line: The line's number, from 1.
        mask: Masks secrets.

    Raises:
        OSError: The log cannot be read.
    """
    lines = context(source, line, TRACEBACK_LINES_MAX, 20, mask=mask)
    at = next((i for i, (number, _) in enumerate(lines) if number == line), None)
    if at is None:
        return []
    start = at
    while start > 0 and HEADER not in lines[start][1]:
        start -= 1
    if HEADER not in lines[start][1]:
        return []
    while start > 2 and any(mark in lines[start - 2][1] for mark in (CAUSED_BY, DURING)):
        start -= 2
        while start > 0 and HEADER not in lines[start][1]:
            start -= 1
    return [text for _, text in lines[start : at + 1]]
