"""``output.log`` and ``output.idx``: every byte in order of arrival, bounded, whatever happens to the disk.

The head of the output goes to ``output.log``. Past its share of the limit the output goes to tail segments, of which
the newest two stay; ``assemble`` puts head, a note for the gap, and tail together when the run has ended. A segment's
name tells where the head ends and where in the whole output the segment begins, so that a survivor of a SIGKILL needs
no other state. When the directory can no longer be written, the segments go to a directory of last resort, and when
that fails too, to memory.
"""

from __future__ import annotations

import errno
import posix

from gpualert.rundir import index
from gpualert.rundir.assembly import INDEX, NAME, assemble, segment_base
from gpualert.rundir.clock import now_us

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType as Lock
    from collections.abc import Callable

SEGMENT_MAX = 32 << 20
LAST_RESORT_BYTES = 64 << 20
MEMORY_BYTES = 256 << 10
COALESCE_US = 10_000

_CREATE = posix.O_RDWR | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC | posix.O_NOFOLLOW
_MODE = 0o640


class Part:
    """One pair of files on disk: bytes, and their index."""

    __slots__ = ("_index_fd", "_pending", "fd", "path", "size")

    def __init__(self, path: str, index_path: str) -> None:
        self.path = path
        self.fd = posix.open(path, _CREATE, _MODE)
        self.size = 0
        self._pending = (0, 0, 0)
        try:
            self._index_fd = posix.open(index_path, _CREATE, _MODE)
            posix.write(self._index_fd, index.HEADER)
        except OSError:
            self._index_fd = -1  # the log matters, its index does not

    def write(self, stream: int, data: bytes | memoryview) -> int:
        """Append ``data`` and return how much of it is on disk (less only when an error came in between).

        Raises:
            OSError: Nothing could be written.
        """
        done = 0
        while done < len(data):
            try:
                done += posix.write(self.fd, data[done:] if done else data)
            except OSError:
                if not done:
                    raise
                break
        self.size += done
        self.note(stream, done)
        return done

    def note(self, stream: int, length: int) -> None:
        """Remember that the last ``length`` bytes came from ``stream`` just now."""
        time_us, last, count = self._pending
        now = now_us()
        if last == stream and 0 <= now - time_us < COALESCE_US:
            self._pending = (time_us, stream, count + length)
        else:
            self.flush()
            self._pending = (now, stream, length)

    def flush(self) -> None:
        """Put what is known of the index on disk."""
        time_us, stream, count = self._pending
        self._pending = (0, 0, 0)
        if count and self._index_fd >= 0:
            try:
                posix.write(self._index_fd, index.record(time_us, stream, count))
            except OSError:
                self._index_fd = -1

    def sync(self) -> None:
        """Force the bytes to the disk."""
        posix.fdatasync(self.fd)

    def close(self) -> None:
        """Give the descriptors back."""
        self.flush()
        for fd in (self.fd, self._index_fd):
            if fd >= 0:
                posix.close(fd)
        self.fd = self._index_fd = -1


class OutputLog:
    """The log of one run. Its callers hold a lock of theirs around every call.

    Attributes:
        total: How many bytes the command has written so far.
        trouble: What went wrong with the disk, one line; empty while all is well.
        continued_in: The directory of last resort, once it is in use.
        incomplete: Whether ``output.log`` could not be completed when it was closed.
        last_at: When the last bytes came, in microseconds since 1970; 0 before any.
        last: The last few hundred bytes of output.
    """

    def __init__(self, directory: str, max_bytes: int, last_resort: Callable[[], str]) -> None:
        """Create the files.

        Args:
            directory: The run directory.
            max_bytes: How much to keep.
            last_resort: Makes a directory for when this one fails, and returns its path.

        Raises:
            OSError: ``output.log`` cannot be created.
        """
        self._directory = directory
        self._last_resort = last_resort
        self._head = Part(f"{directory}/{NAME}", f"{directory}/{INDEX}")
        self._segments: list[Part] = []
        self._memory: list[bytes] = []
        self._in_memory = 0
        self._state = "head"
        self.total = 0
        self.dropped = 0
        self.trouble = ""
        self.continued_in = ""
        self.incomplete = False
        self.last_at = 0
        self.last = b""
        self._at = 0
        self.limit(max_bytes)

    def limit(self, max_bytes: int) -> None:
        """Keep at most ``max_bytes`` (at least 4 KiB)."""
        max_bytes = max(max_bytes, 4096)
        self._segment_limit = min(max_bytes // 8, SEGMENT_MAX)
        self._head_limit = max_bytes - 2 * self._segment_limit

    def write(self, stream: int, data: bytes | memoryview) -> None:
        """Keep ``data``; never raises and never drops anything in silence.

        Args:
            stream: Where it came from (``index.STDOUT`` ...).
            data: The bytes.
        """
        self.total += len(data)
        self.last_at = now_us()
        self.last = bytes(data[-512:]) if len(data) >= 512 else (self.last + data)[-512:]
        rest: bytes | memoryview = data
        while len(rest):
            part = self._room()
            if part is None:
                self._remember(bytes(rest))
                return
            free = (self._head_limit if part is self._head else self._segment_limit) - part.size
            piece = rest if len(rest) <= free else memoryview(rest)[:free]
            try:
                done = part.write(stream, piece)
            except OSError as error:
                self._failed(error)
                continue
            self._at += done
            rest = memoryview(rest)[done:] if done < len(rest) else b""

    def _room(self) -> Part | None:
        """The part that takes the next bytes; None when only memory is left."""
        if self._state == "head":
            if self._head.size < self._head_limit:
                return self._head
            self._state = "segments"
        if self._state == "segments":
            if self._segments and self._segments[-1].size < self._segment_limit:
                return self._segments[-1]
            try:
                return self._new_segment()
            except OSError as error:
                self._failed(error)
                return self._room()
        return None

    def _new_segment(self) -> Part:
        if len(self._segments) == 2:
            self._drop_oldest()
        directory = self.continued_in or self._directory
        base = f"{directory}/{segment_base(self._head.size, self._at)}"
        part = Part(base + ".log", base + ".idx")
        self._segments.append(part)
        return part

    def _drop_oldest(self) -> None:
        oldest = self._segments.pop(0)
        self.dropped += oldest.size
        oldest.close()
        for path in (oldest.path, oldest.path[:-4] + ".idx"):
            try:
                posix.unlink(path)
            except OSError:
                pass  # it is counted as dropped all the same

    def _failed(self, error: OSError) -> None:
        """Move on to the next best place."""
        where = self.continued_in or self._directory
        if not self.continued_in:
            try:
                self.continued_in = self._last_resort()
            except OSError:
                self.continued_in = ""
        else:
            self.continued_in = ""
        if self.continued_in and where != self.continued_in:
            self._state = "segments"
            self._segment_limit = min(LAST_RESORT_BYTES // 2, SEGMENT_MAX)
            self._forget_ring()
            place = f"the rest of the output is kept in {self.continued_in}"
        else:
            self._state = "memory"
            place = "only the last 256 KiB of the output are kept, in memory"
        self.trouble = f"cannot write the log in {where} ({error.strerror}): {place}"

    def _forget_ring(self) -> None:
        """Start a fresh ring elsewhere; the segments so far stay on the disk as they are."""
        for part in self._segments:
            part.close()
        self._segments.clear()

    def _remember(self, data: bytes) -> None:
        self._at += len(data)
        self._memory.append(data)
        self._in_memory += len(data)
        while self._in_memory - len(self._memory[0]) >= MEMORY_BYTES:
            gone = len(self._memory.pop(0))
            self._in_memory -= gone
            self.dropped += gone

    def vanished(self) -> bool:
        """Whether somebody has deleted the log that is being written."""
        return self._head.fd >= 0 and posix.fstat(self._head.fd).st_nlink == 0

    def rescue(self, lock: Lock) -> None:
        """Write the log anew where it was deleted, from the descriptor that still holds it.

        Args:
            lock: The lock that guards this log; held only for the last piece.

        Raises:
            OSError: The new file cannot be written, or the old one cannot be read.
        """
        old, path = self._head, f"{self._directory}/{NAME}"
        new, done = Part(path, f"{self._directory}/{INDEX}"), 0
        while old.size - done > 1 << 20:
            done += _append(new, posix.pread(old.fd, 1 << 20, done))
        with lock:
            while done < old.size:
                done += _append(new, posix.pread(old.fd, 1 << 20, done))
            self._head = new
        old.close()

    def sync(self) -> None:
        """Force what is kept to the disk; called without the lock, since a disk may take long."""
        for part in (self._head, *self._segments):
            if part.fd >= 0:
                try:
                    part.sync()
                except OSError:
                    continue  # the next write says what is wrong

    def flush_index(self) -> None:
        """Put what is known of the index on disk."""
        for part in (self._head, *self._segments):
            if part.fd >= 0:
                part.flush()

    def close(self) -> int:
        """Bring head and tail together and close the files.

        Returns:
            How many bytes of output are kept nowhere.
        """
        self.flush_index()
        if self._memory:
            self._spill_memory()
        try:
            assemble(self._directory, self.continued_in or None)
        except OSError as error:
            self.incomplete = True
            self.trouble = self.trouble or f"cannot complete the log in {self._directory} ({error.strerror})"
        for part in (self._head, *self._segments):
            if part.fd >= 0:
                part.close()
        return self.dropped

    def _spill_memory(self) -> None:
        """Try once more to write what only memory holds."""
        data = b"".join(self._memory)
        offset = self.total - len(data)
        for directory in (self._directory, self.continued_in):
            if not directory:
                continue
            base = f"{directory}/{segment_base(self._head.size, offset)}"
            try:
                part = Part(base + ".log", base + ".idx")
            except OSError:
                continue
            self._segments.append(part)
            try:
                if part.write(index.NOTE, data) == len(data):
                    return
            except OSError:
                continue
        self.dropped += len(data)


def _append(part: Part, data: bytes) -> int:
    if not data:
        raise OSError(errno.EIO, "cannot read the deleted log")
    return part.write(index.NOTE, data)
