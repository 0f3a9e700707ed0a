"""Small files of the kernel's: absence is an answer."""

from __future__ import annotations

import os


def read(path: str, limit: int = 1 << 20) -> bytes:
    """What a file holds; nothing where it cannot be read.

    Args:
        path: The file.
        limit: How many bytes to take at most.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return b""
    parts, left = [], limit
    try:
        while left > 0 and (part := os.read(fd, min(left, 1 << 16))):
            parts.append(part)
            left -= len(part)
    except OSError:
        return b""  # pressure that is switched off is a file all the same
    finally:
        os.close(fd)
    return b"".join(parts)
