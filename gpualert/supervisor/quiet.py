"""Whether the log of a success is a plain one, or holds what a person should know of.

All of it is searched for an uncaught traceback, a piece at a time while the command runs, so that little is left to do
at its end; its last 4 MiB are searched for every alarming word (a loss that is NaN to the end shows there).
"""

from __future__ import annotations

import posix
import time

PIECE = 256 << 10
END_BYTES = 4 << 20
LOOK_BYTES = 32 << 20
"""How much is looked at in one go while the command runs: some 5 ms, in small pieces."""
END_PATIENCE_S = 2.0
"""A log that takes longer to search at the end (many gigabytes a minute, a slow volume) is for the reporter."""
_SEEK_SET = 0

_TRACEBACK = b"Traceback (most recent call last)"
_ALARMING = (
    b"Traceback", b"rror", b"RROR", b"nan", b"NaN", b"NAN", b"illed", b"OOM", b"out of memory", b"atal", b"FATAL",
    b"xception", b"abort", b"ABORT", b"CUDA", b"NCCL", b"Xid", b"egmentation", b"failed", b"FAILED", b"inf",
)  # fmt: skip
"""What makes the log of a success worth a look."""


class Watch:
    """Searches a log that grows.

    Attributes:
        alarmed: A traceback was found; nothing more needs to be searched.
        offset: How far the log is searched, in bytes.
    """

    __slots__ = ("_before", "_path", "alarmed", "offset")

    def __init__(self, path: str) -> None:
        """Nothing is read yet.

        Args:
            path: The log.
        """
        self.alarmed = False
        self.offset = 0
        self._path = path
        self._before = b""

    def look(self, limit: int, until: float | None = None) -> bool:
        """Search what has come since the last look.

        Args:
            limit: How many bytes to search at most.
            until: When to stop, on the monotonic clock; None for no limit.

        Returns:
            Whether the end of the log was reached, or there is no need to.

        Raises:
            OSError: It cannot be read.
        """
        if self.alarmed:
            return True
        fd = posix.open(self._path, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            left = limit
            while left > 0 and (until is None or time.monotonic() < until):
                piece = posix.pread(fd, PIECE, self.offset)
                if not piece:
                    return True
                if _TRACEBACK in self._before + piece[: len(_TRACEBACK)] or _TRACEBACK in piece:
                    self.alarmed = True
                    return True
                self.offset += len(piece)
                self._before = (self._before + piece[-len(_TRACEBACK) :])[-len(_TRACEBACK) + 1 :]
                left -= len(piece)
        finally:
            posix.close(fd)
        return False

    def is_quiet(self) -> bool:
        """Whether the log, complete by now, holds nothing to look at."""
        try:
            if not self.look(1 << 62, time.monotonic() + END_PATIENCE_S) or self.alarmed:
                return False
            return _end_is_quiet(self._path)
        except OSError:
            return False


def _end_is_quiet(path: str) -> bool:
    """Whether a log's end holds none of the alarming words; read in pieces, so that memory stays flat."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        before = b""
        posix.lseek(fd, max(posix.fstat(fd).st_size - END_BYTES, 0), _SEEK_SET)
        while chunk := posix.read(fd, PIECE):
            text = before + chunk
            if any(word in text for word in _ALARMING):
                return False
            before = chunk[-16:]
    finally:
        posix.close(fd)
    return True
