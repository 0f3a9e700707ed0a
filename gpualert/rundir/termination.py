"""The Kubernetes termination message: a small file that is written in place.

The kubelet mounts a single file there, so it can be neither replaced nor renamed over. What the command itself wrote
into it stays in front. Source of the limits: Kubernetes documentation, "Determine the reason for pod failure" (4096
bytes a container, 12 KiB for all containers of a pod together).
"""

from __future__ import annotations

import errno
import posix

CONTAINER_LIMIT = 4096
POD_LIMIT = 12288
_KIND, _REGULAR = 0o170000, 0o100000


def room(containers: int | None) -> int:
    """How many bytes one container's message may have.

    Args:
        containers: How many containers share the pod's limit; None when unknown.
    """
    return min(CONTAINER_LIMIT, POD_LIMIT // containers) if containers and containers > 0 else CONTAINER_LIMIT


def cut(text: bytes, limit: int) -> bytes:
    """At most ``limit`` bytes of ``text`` as valid UTF-8, cut between characters."""
    text = text.decode("utf-8", "replace").encode()
    return text if len(text) <= limit else text[:limit].decode("utf-8", "ignore").encode()


def join(own: bytes, ours: bytes, limit: int) -> tuple[bytes, int]:
    """What the command wrote, then what gpualert has to say, within ``limit`` bytes of valid UTF-8.

    gpualert's part has the last line that programs read, so the command's part gives way, down to a quarter.

    Returns:
        The text, and how many bytes at its start are the command's.
    """
    if not own.strip():
        return cut(ours, limit), 0
    own = cut(own.rstrip(b"\n"), max(limit - len(ours), limit // 4) - 1) + b"\n"
    return own + cut(ours, limit - len(own)), len(own)


class TerminationLog:
    """One termination message file, opened anew for each access (it is a mount that others write too)."""

    __slots__ = ("_own", "_written", "limit", "path")

    def __init__(self, path: str, limit: int = CONTAINER_LIMIT) -> None:
        """Nothing is opened yet.

        Args:
            path: The file.
            limit: How many bytes it may hold.
        """
        self.path = path
        self.limit = limit
        self._own = b""
        self._written = b""

    def resume(self, own_bytes: int) -> None:
        """Go on from where another process stopped: the file's first ``own_bytes`` are the command's, the rest ours.

        Raises:
            OSError: The file cannot be read.
        """
        self._written = self._read()
        self._own = self._written[:own_bytes]

    def _open(self, flags: int) -> int:
        """A descriptor of the file.

        Raises:
            OSError: It cannot be opened, or is no regular file (a FIFO would block, a terminal is no file).
        """
        # O_NONBLOCK: opening a FIFO without a reader must not block.
        fd = posix.open(self.path, flags | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY, 0o644)
        if posix.fstat(fd).st_mode & _KIND != _REGULAR:
            posix.close(fd)
            raise OSError(errno.EINVAL, "not a regular file")
        return fd

    def _read(self) -> bytes:
        try:
            fd = self._open(posix.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return posix.read(fd, 2 * CONTAINER_LIMIT)
        finally:
            posix.close(fd)

    def own(self) -> bytes:
        """What the command itself has written into the file so far.

        It may have appended to our text, replaced it, or written over its start by a descriptor it holds open.

        Raises:
            OSError: The file cannot be read.
        """
        content = self._read()
        if content != self._written:
            if self._written and content.startswith(self._written):
                self._own += content[len(self._written) :]
            else:
                self._own = content[: len(content) - _common_end(content, self._written)]
            self._written = content
        return self._own

    def write(self, ours: bytes) -> int:
        """Put the command's part and gpualert's part there, in place.

        The new text is written before the rest is cut off, so that no reader ever finds the file empty.

        Returns:
            How many bytes at the start are the command's.

        Raises:
            OSError: It cannot be read or written.
        """
        text, own_bytes = join(self.own(), ours, self.limit)
        fd = self._open(posix.O_WRONLY | posix.O_CREAT)
        try:
            done = 0
            while done < len(text):
                done += posix.pwrite(fd, text[done:], done)
            posix.ftruncate(fd, len(text))
        finally:
            posix.close(fd)
        self._written = text
        return own_bytes


def _common_end(one: bytes, other: bytes) -> int:
    """How many bytes both end in; 0 where that may be chance."""
    same = 0
    while same < min(len(one), len(other)) and one[-1 - same] == other[-1 - same]:
        same += 1
    return same if same >= 16 else 0
