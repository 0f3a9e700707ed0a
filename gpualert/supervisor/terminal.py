"""The pseudo-terminal: the child's terminal is one of ours, and the person's terminal passes through us."""

from __future__ import annotations

import _thread
import errno
import fcntl
import posix
import termios
import time

from gpualert.supervisor import launch, monitor
from gpualert.supervisor.status import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LOOK_AGAIN_S = 0.5
_READ_BYTES = 4096


class Terminal:
    """The two terminals of a run: the person's, where there is one, and the child's.

    Attributes:
        monitor: The process id whose end tells that the child has ended.
    """

    def __init__(self, pair: tuple[int, int], closed: set[int]) -> None:
        """Let the child's terminal look like the person's.

        Args:
            pair: The pseudo-terminal's master and slave.
            closed: Which of 0, 1 and 2 are closed.
        """
        self.monitor = 0
        self._master, self._slave = pair
        terminals = [fd for fd in (0, 1, 2) if fd not in closed and posix.isatty(fd)]
        self._outer = terminals[0] if terminals else -1
        self._keyboard = 0 if 0 in terminals else -1
        self._saved: list[Any] | None = None
        self._raw = False
        self._told = self._release = -1
        self._unread = b""
        self._child_stopped = False
        self._ending: Ending | None = None
        self._child = 0
        if self._outer >= 0:
            self.copy_size()
            try:
                termios.tcsetattr(self._slave, termios.TCSANOW, termios.tcgetattr(self._outer))
            except termios.error:
                pass  # the new terminal's own settings will do

    def launch(
        self, command: list[bytes], search_path: bytes | None, prepare: Callable[[], None]
    ) -> tuple[int, launch.LaunchError | None]:
        """Start the command on the pseudo-terminal; see ``launch.fork_and_execute``."""
        self.monitor, self._told, self._release = monitor.start(command, search_path, prepare, self._slave)
        first = b""
        while not first.endswith(b"\n") and (chunk := posix.read(self._told, 4096)):
            first += chunk
        posix.set_blocking(self._told, False)
        line, _, self._unread = first.partition(b"\n")
        if line.startswith(b"E"):
            number, _, message = line[1:].partition(b":")
            return self.monitor, launch.LaunchError(int(number), message.decode("utf-8", "replace"))
        if not line.startswith(b"P"):
            return self.monitor, launch.LaunchError(errno.EIO, "the pseudo-terminal could not be set up")
        self._child = int(line[1:])
        self.resume()
        if self._keyboard >= 0:
            try:
                _thread.start_new_thread(self._relay_keyboard, ())
            except RuntimeError:
                pass  # no typing, then
        return self._child, None

    # -- the person's side ---------------------------------------------------------------------------------------------

    def _in_foreground(self) -> bool:
        try:
            return posix.tcgetpgrp(self._outer) == posix.getpgrp()
        except OSError:
            return False

    def copy_size(self) -> None:
        """Give the child's terminal the size of the person's; the kernel tells the child once, if it changed."""
        if self._outer < 0:
            return
        try:
            size = fcntl.ioctl(self._outer, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        except OSError:
            pass  # it has no size

    def resume(self) -> None:
        """Take the person's terminal, if we are in its foreground: keys go to the child's terminal as they are."""
        if self._keyboard < 0 or self._raw or not self._in_foreground():
            return
        try:
            self._saved = termios.tcgetattr(self._keyboard)
            raw = termios.tcgetattr(self._keyboard)
            # As cfmakeraw(3) does: the child's own terminal echoes, edits lines, and makes signals of keys.
            raw[0] &= ~(
                termios.IGNBRK
                | termios.BRKINT
                | termios.PARMRK
                | termios.ISTRIP
                | termios.INLCR
                | termios.IGNCR
                | termios.ICRNL
                | termios.IXON
            )
            raw[1] &= ~termios.OPOST
            raw[2] = raw[2] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
            raw[3] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
            raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, raw)
        except termios.error:
            return
        self._raw = True
        self.copy_size()

    def restore(self) -> None:
        """Give the person's terminal back as it was."""
        if not self._raw or self._saved is None:
            return
        self._raw = False
        if not self._in_foreground():
            return  # somebody else has it now, with settings of their own
        try:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._saved)
        except termios.error:
            pass  # it has hung up

    def look_again_s(self) -> float:
        """When to look whether we have come to the foreground, in seconds from now."""
        return LOOK_AGAIN_S if self._keyboard >= 0 and not self._raw else 3600.0

    def look_around(self) -> None:
        """Take the terminal if a shell's ``fg`` has brought us to its foreground."""
        if self._keyboard >= 0 and not self._raw and not self._child_stopped:
            self.resume()

    def _relay_keyboard(self) -> None:
        """Pass on what the person types."""
        import select  # noqa: PLC0415

        poll = select.poll()
        poll.register(self._keyboard, select.POLLIN)
        while True:
            if not self._raw or not self._in_foreground():
                time.sleep(0.1)
                continue
            if not poll.poll(500) or not self._raw:
                continue
            try:
                typed = posix.read(self._keyboard, _READ_BYTES)
            except OSError:
                time.sleep(0.1)  # not in the foreground any more
                continue
            if not typed:
                return  # it has hung up
            try:
                view = memoryview(typed)
                while view:
                    view = view[posix.write(self._master, view) :]
            except OSError:
                return  # the child's side is closed

    # -- the child's side ----------------------------------------------------------------------------------------------

    def child_stopped(self) -> bool:
        """Whether the child is stopped, and there is a shell that should see it."""
        self._listen()
        return self._child_stopped and self._outer >= 0

    def stop_is_known(self) -> None:
        """The shell is being told: one stop of the child is one stop of ours."""
        self._child_stopped = False

    def ending(self) -> Ending | None:
        """How the child ended; asked when the process ``monitor`` has.

        Returns:
            None when the monitor was killed: the child is ours to wait for now.
        """
        self._listen()
        if self._ending is None and self._child and self.monitor != self._child:
            self.monitor = self._child
        return self._ending

    def _listen(self) -> None:
        """Take what the monitor tells."""
        try:
            while chunk := posix.read(self._told, 4096):
                self._unread += chunk
        except OSError:
            pass  # nothing more for now
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            kind, number = line[:1], int(line[1:] or b"0")
            if kind in (b"S", b"C"):
                self._child_stopped = kind == b"S"
            elif kind == b"X":
                self._ending = Ending(number)
            elif kind in (b"K", b"D"):
                self._ending = Ending(None, number, core_dumped=kind == b"D")
        if self._ending is not None and self._release >= 0:
            posix.close(self._release)
            self._release = -1
