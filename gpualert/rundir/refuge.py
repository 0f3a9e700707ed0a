"""A run directory elsewhere, when the log volume has failed: so that the run can still be reported, and looked at."""

from __future__ import annotations

import posix

from gpualert.rundir import assembly, jsontext, location
from gpualert.rundir.writer import EXIT, RUN, replace_file, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD_MAX = 64 << 20
"""Of a longer head only the end is copied: temporary directories are small, and may be memory."""
LEFT_MAX = 200
"""How many temporary directories are looked into."""
_SEEK_SET = 0


def move_out(directory: str, refuge: str, run_id: str, facts: Mapping[str, object], end: Mapping[str, object]) -> str:
    """Put together in a refuge what a failed run directory holds, and what it could not take.

    Args:
        directory: The run directory.
        refuge: A directory that can be written; it may hold tail segments.
        run_id: The run's id.
        facts: What ``run.json`` holds.
        end: What ``exit.json`` holds.

    Returns:
        The new run directory.

    Raises:
        OSError: It cannot be written either.
    """
    path = f"{refuge}/{run_id}"
    posix.mkdir(path, 0o750)
    replace_file(f"{path}/{RUN}", jsontext.dumps(dict(facts)).encode() + b"\n", durable=False)
    replace_file(f"{path}/{EXIT}", jsontext.dumps(dict(end)).encode() + b"\n", durable=False)
    segments = []
    for place in (directory, refuge):
        try:
            segments += assembly.segments_in(place)
        except OSError:
            continue  # the volume has gone as a whole
    segments.sort(key=lambda segment: segment[1])
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC | posix.O_APPEND
    log = posix.open(f"{path}/{assembly.NAME}", flags, 0o640)
    try:
        position = _copy_head(f"{directory}/{assembly.NAME}", log, segments[0][0] if segments else None)
        for _, offset, segment in segments:
            if offset > position:
                write_all(log, assembly.gap_note(offset - position))
            position = offset + _copy(segment, log)
    finally:
        posix.close(log)
    for _, _, segment in segments:
        if segment.startswith(refuge):
            posix.unlink(segment)
    return path


def _copy_head(source: str, log: int, length: int | None) -> int:
    """Copy the head, or its end; where it ends in the whole output."""
    try:
        fd = posix.open(source, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return 0
    try:
        size = posix.fstat(fd).st_size
        size = size if length is None else min(size, length)
        start = max(size - HEAD_MAX, 0)
        if start:
            write_all(log, assembly.gap_note(start))
        posix.lseek(fd, start, _SEEK_SET)
        left = size - start
        while left > 0:
            data = posix.read(fd, min(left, 1 << 20))
            if not data:
                break
            write_all(log, data)
            left -= len(data)
        return size
    finally:
        posix.close(fd)


def _copy(source: str, log: int) -> int:
    fd = posix.open(source, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        size = 0
        while data := posix.read(fd, 1 << 20):
            write_all(log, data)
            size += len(data)
        return size
    finally:
        posix.close(fd)


def left(environment: Mapping[bytes, bytes]) -> list[str]:
    """Our own temporary directories: what was kept in them still waits to be sent, and to be looked at.

    Only directories that are ours and closed to everybody else count, so that nobody can put words into our mouth.

    Args:
        environment: Variables and values.
    """
    found = []
    for place in location.temporary_places(environment):
        try:
            names = posix.listdir(place)
        except OSError:
            continue
        for name in sorted(names):
            path = f"{place.rstrip('/')}/{name}"
            if _is_own_name(name) and _is_own_directory(path):
                found.append(path)
    return found[:LEFT_MAX]


def _is_own_name(name: str) -> bool:
    ending = name[len(location.TEMPORARY_PREFIX) :]
    return name.startswith(location.TEMPORARY_PREFIX) and len(ending) == 8 and not ending.strip("0123456789abcdef")


def _is_own_directory(path: str) -> bool:
    try:
        state = posix.lstat(path)
    except OSError:
        return False
    # Not a link to a directory; nobody else may write in it, nor look (inode(7)).
    return state.st_mode & 0o170077 == 0o040000 and state.st_uid == posix.geteuid()
