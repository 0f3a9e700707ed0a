"""Reading small files of the kernel's; absence is an answer."""

from __future__ import annotations

import posix


def read(path: str | bytes, limit: int = 1 << 16) -> bytes | None:
    """The content of a small file; None where it cannot be read."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        content = b""
        while len(content) < limit and (chunk := posix.read(fd, limit)):
            content += chunk
    except OSError:
        return None
    else:
        return content
    finally:
        posix.close(fd)


def text(path: str) -> str | None:
    """The same as text without white space at its ends; None where it is empty or cannot be read."""
    content = read(path)
    return (content or b"").decode("utf-8", "replace").strip() or None


def exists(path: str | bytes) -> bool:
    """Whether there is something at ``path``."""
    try:
        posix.stat(path)
    except (OSError, ValueError):
        return False
    return True
