"""Pumps: what the child writes goes to the log first, and on to our own descriptor second.

Each stream has a reader, which never waits for whoever reads us, and a passer with a bounded queue, which may. When
the queue is full the reader waits, and the child feels the same back-pressure as without gpualert.
"""

from __future__ import annotations

import _thread
import fcntl
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpualert.rundir.logfile import OutputLog

READ_BYTES = 256 << 10
FIRST_READ_BYTES = 8 << 10
LARGE_WRITE = 64 << 10
PIPE_BYTES = 1 << 20
QUEUE_BYTES = 1 << 20
PATIENCE_S = 0.2
"""How long the main thread waits for a lock that is held for a moment only, unless a write blocks after all."""
_F_SETPIPE_SZ, _F_GETPIPE_SZ, _FIONREAD = 1031, 1032, 0x541B
_KIND, _FIFO, _REGULAR, _DEVICE = 0o170000, 0o010000, 0o100000, 0o020000


def enlarge(pipe: int) -> None:
    """Make a pipe 1 MiB, so that fewer, larger reads empty it; the system may refuse (pipe-user-pages-soft)."""
    for size in (PIPE_BYTES, PIPE_BYTES // 4):
        try:
            if fcntl.fcntl(pipe, _F_GETPIPE_SZ) < size:
                fcntl.fcntl(pipe, _F_SETPIPE_SZ, size)
        except OSError:
            continue
        return


class Wakeup:
    """One thread tells another that there is something to do (a lock is all that costs nothing to import)."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def give(self) -> None:
        """Wake who waits, or who will wait next."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # already given

    def wait(self, timeout: float = -1) -> bool:
        """Wait until it is given; False when ``timeout`` seconds have passed first (-1: no limit)."""
        return self._lock.acquire(True, timeout)


class Passer:
    """Passes bytes on to one of our descriptors: at once where that waits for nobody, else in a thread of its own.

    Attributes:
        fd: The descriptor.
        gone: Whoever read it has gone away, or it cannot be written.
        error: Why it cannot be written; None while it can.
        done: The thread has passed on everything and ended.
    """

    def __init__(self, fd: int, wake: Callable[[], None]) -> None:
        self.fd = fd
        self.gone = False
        self.error: OSError | None = None
        self.done = False
        self._wake = wake
        self._lock = _thread.allocate_lock()
        self._filled, self._room = Wakeup(), Wakeup()
        self._queue: list[bytes] = []
        self._queued = 0
        self._closing = False
        self._last = b"\n"
        self._started = False
        self._room_bytes = _room_of(fd)
        self._since_small = 0

    def _start(self) -> bool:
        """Start the thread, once there is something to queue; False when none can be made (a process limit)."""
        if not self._started:
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError:
                return False
            self._started = True
        return True

    def put(self, data: memoryview) -> None:
        """Pass ``data`` on: at once where that waits for nobody, else by the queue; waits while that is full."""
        if self._room_bytes and not self._queued:
            with self._lock:
                if not self._queued and self._takes(len(data)):
                    self.write(data)
                    return
        if not self._start():
            self.write(data)
            return
        while self._queued >= QUEUE_BYTES and not self.gone:
            self._room.wait()
        with self._lock:
            if self.gone or self._closing:
                return
            self._queue.append(bytes(data))
            self._queued += len(data)
        self._filled.give()

    def _takes(self, count: int) -> bool:
        """Whether a write of ``count`` bytes cannot block."""
        if self._room_bytes < 0:
            return True
        # A pipe is a ring of pages, and bytes of two writes share one only when the second fits. So of small writes
        # well under a half of its bytes may fill it; of large ones alone nearly all.
        self._since_small = self._since_small + count if count >= LARGE_WRITE else 0
        room = self._room_bytes * (7 if self._since_small > self._room_bytes else 3) // 8
        try:
            waiting = int.from_bytes(fcntl.ioctl(self.fd, _FIONREAD, b"\0\0\0\0"), "little")
        except OSError:
            return False
        return waiting + count <= room

    def say(self, text: str) -> bool:
        """Queue lines of gpualert's own, on a line of their own; for the main thread, which must never wait.

        Returns:
            False when they cannot be queued: the caller writes them itself.
        """
        if not self._lock.acquire(timeout=PATIENCE_S):
            return False  # a write that should not block does (somebody else fills our pipe)
        try:
            if self.gone or self._closing:
                return False
            last = self._queue[-1] if self._queue else self._last
            data = (b"" if last.endswith(b"\n") else b"\n") + text.encode("utf-8", "replace")
            if not self._start():
                return False
            self._queue.append(data)
            self._queued += len(data)
        finally:
            self._lock.release()
        self._filled.give()
        return True

    def close(self) -> None:
        """Nothing more comes: the thread ends when the queue is empty."""
        locked = self._lock.acquire(timeout=PATIENCE_S)
        self._closing = True
        if locked:
            self.done = self.done or not self._started
            self._lock.release()
        self._filled.give()

    def abandon(self) -> int:
        """Stop passing on; returns how many bytes were not."""
        locked = self._lock.acquire(timeout=PATIENCE_S)
        left = self._queued
        self.gone = True
        if locked:
            self._lock.release()
        self._room.give()
        return left

    def line_is_open(self) -> bool:
        """Whether the last byte passed on was not the end of a line."""
        return not self.gone and not self._last.endswith(b"\n")

    def _run(self) -> None:
        try:
            while True:
                self._filled.wait()
                while self._pass_on():
                    pass
                if self._closing and not self._queue:
                    return
        finally:
            self.done = True
            self.gone = self.gone or bool(self._queue)
            self._room.give()
            self._wake()

    def _pass_on(self) -> bool:
        """Write what is queued; False when nothing is."""
        with self._lock:
            if not self._queue:
                return False
            batch, self._queue = self._queue, []
            data = batch[0] if len(batch) == 1 else b"".join(batch)
        self.write(data)
        with self._lock:
            self._queued -= len(data)
        self._room.give()
        return True

    def write(self, data: bytes | memoryview) -> None:
        """Write ``data``, unless nobody reads it; waits while the reader does not."""
        self._last = bytes(data[-1:])
        view = memoryview(data)
        while view and not self.gone:
            try:
                view = view[posix.write(self.fd, view) :]
            except BlockingIOError:
                self._wait_writable()
            except OSError as error:
                # The child would have got EPIPE or ENOSPC; the log goes on, and the child lives.
                self.error = error
                self.gone = True
                self._wake()

    def _wait_writable(self) -> None:
        """Somebody who shares the descriptor has made it non-blocking."""
        import select  # noqa: PLC0415

        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        poll.poll(1000)


def _room_of(fd: int) -> int:
    """How many bytes a pipe holds; -1 for what takes any number at once, 0 for what may block at any time."""
    try:
        mode = posix.fstat(fd).st_mode & _KIND
        if mode == _FIFO:
            enlarge(fd)
            return fcntl.fcntl(fd, _F_GETPIPE_SZ)
    except OSError:
        return 0
    return -1 if mode == _REGULAR or (mode == _DEVICE and not posix.isatty(fd)) else 0


class Reader:
    """Reads one pipe of the child, in a thread of its own.

    Attributes:
        done: The end of the pipe was reached.
        threaded: It reads in a thread of its own; else somebody calls ``step``.
        failure: What went wrong inside; the bytes were passed on all the same.
    """

    def __init__(
        self,
        fd: int,
        stream: int,
        log: OutputLog | None,
        lock: _thread.LockType,
        passer: Passer,
        wake: Callable[[], None],
    ) -> None:
        """Nothing is read yet.

        Args:
            fd: The pipe's end to read.
            stream: What the log calls it (``index.STDOUT`` ...).
            log: Where its bytes go first; None where there is no log.
            lock: Guards the log.
            passer: Where they go second.
            wake: Wakes the main loop.
        """
        self.fd = fd
        self.done = False
        self.threaded = False
        self.failure: Exception | None = None
        self._stream = stream
        self._log = log
        self._lock = lock
        self._passer = passer
        self._wake = wake
        self._closed = False

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: No thread can be made (a process limit).
        """
        _thread.start_new_thread(self._run, ())
        self.threaded = True

    def step(self) -> None:
        """Read once and pass on directly: for when no thread can be made, and the pipe has something to read."""
        try:
            data = posix.read(self.fd, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self.done = True
            return
        if self._log is not None:
            with self._lock:
                self._log.write(self._stream, data)
        self._passer.write(data)

    def stop(self) -> None:
        """Log nothing that comes from now on (somebody still holds the pipe open); the caller holds the lock."""
        self._closed = True

    def _run(self) -> None:
        try:
            self._pump()
        finally:
            self.done = True
            self._wake()

    def _pump(self) -> None:
        read, fd, put = posix.readv, self.fd, self._passer.put
        size = FIRST_READ_BYTES
        buffers = [bytearray(size)]
        whole = memoryview(buffers[0])
        while True:
            try:
                count = read(fd, buffers)
            except OSError:
                return  # EIO: the last process on the pseudo-terminal has closed it
            if not count:
                return
            data = whole[:count]
            if count == size < READ_BYTES:
                size = READ_BYTES  # there is much to read: worth the memory now
                buffers = [bytearray(size)]
                whole = memoryview(buffers[0])
            try:
                with self._lock:
                    if self._closed:
                        return
                    if self._log is not None:
                        self._log.write(self._stream, data)
            except Exception as error:  # noqa: BLE001  (whatever is wrong in here, the bytes go on)
                self.failure = self.failure or error
            try:
                put(data)
            except Exception as error:  # noqa: BLE001  (the same; a reader that ends would block the child for ever)
                self.failure = self.failure or error
                self._passer.write(data)
