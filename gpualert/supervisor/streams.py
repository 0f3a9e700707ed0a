"""The child's streams: which pipes or pseudo-terminal it gets, and where their bytes go."""

from __future__ import annotations

import posix

from gpualert.rundir import index
from gpualert.supervisor import pump, stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable

    from gpualert.rundir.logfile import OutputLog

_NULL_DEVICE = 0x103
"""Device number of ``/dev/null`` (1, 3)."""


def same_file(one: int, other: int) -> bool:
    """Whether two descriptors lead to one file whose readers care for the order of what comes by both."""
    a, b = posix.fstat(one), posix.fstat(other)
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino) and a.st_rdev != _NULL_DEVICE


class Streams:
    """The child's stdout and stderr on their way through us.

    Attributes:
        targets: Which descriptor of ours becomes which one of the child's.
        terminal: The pseudo-terminal's master and slave; None where there is none.
        passers: Who passes on to our 1 and 2.
        readers: Who reads what the child writes.
    """

    def __init__(self, wanted: str, closed: set[int]) -> None:
        """Open pipes and pseudo-terminal.

        Args:
            wanted: ``auto``, ``always`` or ``never``: a pseudo-terminal for the child.
            closed: Which of 0, 1 and 2 are closed.

        Raises:
            OSError: There are too many open files.
        """
        self.targets: dict[int, int] = {}
        self.terminal: tuple[int, int] | None = None
        self.passers: dict[int, pump.Passer] = {}
        self.readers: list[pump.Reader] = []
        self._sources: list[tuple[int, int, int]] = []
        self._child_ends: set[int] = set()
        opened = [fd for fd in (1, 2) if fd not in closed]
        on_terminal = [fd for fd in opened if wanted == "always" or (wanted == "auto" and posix.isatty(fd))]
        if on_terminal:
            master, slave = posix.openpty()
            self.terminal = (master, slave)
            self._child_ends.add(slave)
            self.targets.update(dict.fromkeys(on_terminal, slave))
            if 0 not in closed and posix.isatty(0):
                self.targets[0] = slave
            self._sources.append((master, index.TERMINAL, on_terminal[0]))
        piped = [fd for fd in opened if fd not in on_terminal]
        if len(piped) == 2 and same_file(1, 2):
            self._pipe(index.BOTH, piped)
        else:
            for fd in piped:
                self._pipe(fd, [fd])

    def _pipe(self, stream: int, targets: list[int]) -> None:
        read_end, write_end = posix.pipe2(posix.O_CLOEXEC)
        pump.enlarge(read_end)
        self._child_ends.add(write_end)
        self.targets.update(dict.fromkeys(targets, write_end))
        self._sources.append((read_end, stream, targets[0]))

    def prepare_child(self) -> None:
        """Between fork and exec: put the streams where the child expects them."""
        for target, source in self.targets.items():
            posix.dup2(source, target)

    def start(self, log: OutputLog | None, lock: LockType, wake: Callable[[], None]) -> None:
        """Start pumping; the child has its ends now.

        Args:
            log: Where bytes go first.
            lock: Guards the log.
            wake: Wakes the main loop.

        Raises:
            RuntimeError: No thread can be made (a process limit).
        """
        for fd in self._child_ends:
            posix.close(fd)
        for source, stream, target in self._sources:
            passer = self.passers.get(target)
            if passer is None:
                passer = self.passers[target] = pump.Passer(target, wake)
            reader = pump.Reader(source, stream, log, lock, passer, wake)
            self.readers.append(reader)
        if 2 not in self.passers and 2 in self.targets:
            # stdout and stderr go the same way, so one passer serves both.
            self.passers[2] = self.passers[self._sources[0][2]]
        for reader in self.readers:
            reader.start()

    def pump_here(self, timeout: float) -> None:
        """Pump in this thread for a moment: for when no threads can be made.

        Args:
            timeout: How long to wait for something to read, in seconds.
        """
        import select  # noqa: PLC0415

        waiting = {reader.fd: reader for reader in self.readers if not reader.threaded and not reader.done}
        poll = select.poll()
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(timeout * 1000) if waiting else ():
            waiting[fd].step()

    def exhausted(self) -> bool:
        """Whether every reader has come to the end of its pipe."""
        return all(reader.done for reader in self.readers)

    def passed_on(self) -> bool:
        """Whether everything that was read has been passed on."""
        return all(passer.done or passer.gone for passer in self.passers.values())

    def say(self, text: str) -> None:
        """Print lines of gpualert's own on our stderr, after what the child has written there."""
        passer = self.passers.get(2)
        if passer is None or not passer.say(text):
            stderr.write(text)

    def end_line(self) -> None:
        """Let what is written on our stderr next begin on a line of its own."""
        passer = self.passers.get(2)
        if passer is not None and passer.line_is_open():
            stderr.write("\n")

    def close_passers(self) -> None:
        """Nothing more comes."""
        for passer in self.passers.values():
            passer.close()
