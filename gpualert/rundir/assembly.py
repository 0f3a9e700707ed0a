"""Putting a bounded log together: head, a note for each gap, and the tail segments that are left."""

from __future__ import annotations

import posix

from gpualert.rundir import index
from gpualert.rundir.clock import now_us

NAME = "output.log"
INDEX = "output.idx"
SEGMENT_PREFIX = "output.tail-"
_MODE = 0o640


def segment_base(head: int, offset: int) -> str:
    """The name of a tail segment, without its ending.

    Args:
        head: How long the head is, in bytes.
        offset: Where in the whole output the segment begins.
    """
    return f"{SEGMENT_PREFIX}{head:016d}-{offset:016d}"


def gap_note(count: int) -> bytes:
    """The line that stands in a log for bytes that are not kept.

    Args:
        count: How many.
    """
    return f"\n[gpualert: {count} bytes of output are not kept here (log.max_bytes)]\n".encode()


def segments_in(directory: str) -> list[tuple[int, int, str]]:
    """Head length, offset and path of each tail segment in ``directory``, in order of the output."""
    found = []
    for name in posix.listdir(directory):
        if name.startswith(SEGMENT_PREFIX) and name.endswith(".log"):
            head, _, offset = name[len(SEGMENT_PREFIX) : -4].partition("-")
            if head.isdigit() and offset.isdigit():
                found.append((int(head), int(offset), f"{directory}/{name}"))
    return sorted(found, key=lambda segment: segment[1])


def _copy(source: int, target: int) -> None:
    while chunk := posix.read(source, 1 << 20):
        view = memoryview(chunk)
        while view:
            view = view[posix.write(target, view) :]


def _read_all(path: str) -> bytes:
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b""
    try:
        chunks = []
        while chunk := posix.read(fd, 1 << 20):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        posix.close(fd)


def _remove(path: str) -> None:
    try:
        posix.unlink(path)
    except OSError:
        pass  # what stays behind is only a copy


def assemble(directory: str, continued_in: str | None = None) -> int:
    """Append the tail segments to ``output.log``, with a note for each gap, and remove them.

    May be called again after an interruption at any moment; does nothing where there are no segments.

    Args:
        directory: The run directory.
        continued_in: A directory of last resort that holds segments too.

    Returns:
        How many bytes of output the gaps have lost.

    Raises:
        OSError: The log cannot be written; the segments are still there.
    """
    segments = segments_in(directory)
    if continued_in:
        try:
            segments += segments_in(continued_in)
        except OSError:
            pass  # the volume of last resort went away as well
    if not segments:
        return 0
    lost = 0
    log = posix.open(f"{directory}/{NAME}", posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC, _MODE)
    try:
        position = segments[0][0]
        posix.ftruncate(log, position)
        added = _trim_index(directory, position)
        for _, offset, path in sorted(segments, key=lambda segment: segment[1]):
            gap = offset - position
            if gap > 0:
                lost += gap
                note = gap_note(gap)
                posix.write(log, note)
                added.append(index.record(now_us(), index.NOTE, len(note)))
            source = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
            try:
                _copy(source, log)
                size = posix.fstat(source).st_size
            finally:
                posix.close(source)
            added.extend(_index_of(path, size))
            position = offset + size
        posix.fsync(log)
        _append_index(directory, added)
    finally:
        posix.close(log)
    for _, _, path in segments:
        _remove(path)
        _remove(path[:-4] + ".idx")
    return lost


def _index_of(path: str, size: int) -> list[bytes]:
    """The records of a segment, completed to its size."""
    data = _read_all(path[:-4] + ".idx")
    try:
        parts = list(index.records(data))
    except ValueError:
        parts = []
    known = sum(length for _, _, length in parts)
    last = parts[-1][0] if parts else now_us()
    listed = [index.record(*part) for part in parts]
    return listed if known >= size else [*listed, index.record(last, index.NOTE, size - known)]


def _trim_index(directory: str, size: int) -> list[bytes]:
    """Cut the index where the head ends; the record that completes it to ``size`` bytes, where it is short."""
    known = kept = 0
    try:
        for _, _, length in index.records(_read_all(f"{directory}/{INDEX}")):
            if known + length > size:
                break
            known += length
            kept += 1
        posix.truncate(f"{directory}/{INDEX}", index.RECORD * (kept + 1))
    except (OSError, ValueError):
        return []  # no index to complete
    return [] if known == size else [index.record(now_us(), index.NOTE, size - known)]


def _append_index(directory: str, added: list[bytes]) -> None:
    try:
        fd = posix.open(f"{directory}/{INDEX}", posix.O_WRONLY | posix.O_APPEND | posix.O_CLOEXEC)
    except OSError:
        return  # the log is whole without it
    try:
        posix.write(fd, b"".join(added))
    except OSError:
        pass
    finally:
        posix.close(fd)
