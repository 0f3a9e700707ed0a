"""Reading regular files and nothing else: a pipe would never answer, a device never end."""

from __future__ import annotations

import errno
import posix

_KIND, _REGULAR, _DIRECTORY, _CHARACTERS = 0o170000, 0o100000, 0o040000, 0o020000
_NULL = 0x103  # the device 1:3 (Linux, devices.txt)
_PIECE = 1 << 18


def opened(path: str) -> int:
    """A descriptor that reads a regular file.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be opened, or is something else; the error's text says which.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, "a NUL in its name", path)
    # Without O_NONBLOCK the opening of a pipe waits for somebody who writes into it.
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY)
    state = posix.fstat(fd)
    kind = state.st_mode & _KIND
    # /dev/null is how people say "no file", and it ends at once.
    if kind == _REGULAR or (kind == _CHARACTERS and state.st_rdev == _NULL):
        return fd
    posix.close(fd)
    if kind == _DIRECTORY:
        raise IsADirectoryError(errno.EISDIR, posix.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)


def content(path: str, limit: int) -> bytes | None:
    """What a regular file holds; None where that is more than ``limit`` bytes.

    Args:
        path: The file.
        limit: How many bytes to take at most.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    fd = opened(path)
    try:
        parts, left = [], limit + 1
        while left > 0 and (part := posix.read(fd, min(left, _PIECE))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts) if left > 0 else None
    finally:
        posix.close(fd)
