"""What each rank wrote last, where launchers put ranks before their lines."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from gpualert.rundir import assembly, index, regular
from gpualert.rundir.clock import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_BYTES = 1 << 20
RANKS_MAX, LINE_MAX = 128, 200
_INDEX_BYTES = 1 << 20

_RANK = re.compile(
    r"\s*(?:"
    r"\[rank: ?(\d{1,6})\]:?|"  # Lightning
    r"\[(?:rank|default|trainer|worker)(\d{1,6})\]:|"  # torch.distributed, torchrun --tee
    r"\[\d{1,9},(\d{1,6})\]<std(?:out|err)>:|"  # Open MPI --tag-output
    r"\[(\d{1,6})\]:? |"  # Intel MPI -l
    r"(\d{1,6}): "  # srun --label
    r")\s*"
)


def of(run_directory: str, mask: Callable[[str], str] = lambda text: text) -> list[dict[str, Any]]:
    """The last line of each rank in the end of the run's output.

    Args:
        run_directory: The run's directory.
        mask: Masks secrets, before anything is shortened.

    Returns:
        ``rank``, ``line`` and ``at`` (RFC 3339, missing where that is not known), by rank; empty where no line tells a
        rank.
    """
    path = os.path.join(run_directory, assembly.NAME)
    try:
        segments = assembly.segments_in(run_directory)
        if segments:
            path = segments[-1][2]
        data, begin = _end(path, LOOK_BYTES)
    except OSError:
        return []
    lines = data.split(b"\n")
    if begin:
        lines = lines[1:]  # it may be cut
    found: dict[int, tuple[str, int]] = {}
    left = 0
    for raw in reversed(lines):
        match = _RANK.match(raw[: 4 * LINE_MAX].decode("utf-8", "replace"))
        if match is not None:
            text = mask(_printable(match.string[match.end() :]))
            rank = int(next(group for group in match.groups() if group is not None))
            if text and rank not in found:
                found[rank] = (text[:LINE_MAX], left)
        left += len(raw) + 1
    times = _times(path[:-4] + ".idx", [at for _, at in found.values()])
    return [
        {"rank": rank, "line": line, **({"at": seconds(times[at])} if at in times else {})}
        for rank, (line, at) in sorted(found.items())[:RANKS_MAX]
    ]


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def _end(path: str, limit: int) -> tuple[bytes, int]:
    """The end of a regular file, and where in it that begins."""
    fd = regular.opened(path)
    try:
        size = os.fstat(fd).st_size
        begin = max(size - limit, 0)
        return os.pread(fd, limit, begin), begin
    finally:
        os.close(fd)


def _times(path: str, distances: list[int]) -> dict[int, int]:
    """When the bytes arrived that lie so far before the end, in microseconds since 1970.

    The last record is of the last bytes: what has arrived since is less than what a hanging job leaves unwritten.
    """
    try:
        data, begin = _end(path, _INDEX_BYTES)
    except OSError:
        return {}
    found: dict[int, int] = {}
    waiting = sorted(set(distances), reverse=True)
    start = -begin % index.RECORD if begin else len(index.HEADER)
    records = list(index.records(index.HEADER + data[start:]))
    end = 0
    for at_us, _, length in reversed(records):
        end += length
        while waiting and waiting[-1] < end:
            if 0 < at_us < 1 << 53:
                found[waiting[-1]] = at_us
            waiting.pop()
    return found
