"""Job control at a terminal: when the job is suspended we stop as well, so that the shell sees it, and once."""

from __future__ import annotations

import _signal
import posix

from gpualert.supervisor.foreground import Foreground

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.supervisor.terminal import Terminal


class JobControl:
    """Whether the child is stopped, whether a terminal wanted that, and whose the terminal is meanwhile.

    Attributes:
        terminal: The pseudo-terminal; None where there is none.
        suspended: We have stopped ourselves, and nobody has continued us yet.
    """

    __slots__ = ("_asked", "_foreground", "_stopped", "suspended", "terminal")

    def __init__(self, closed: set[int]) -> None:
        """Everything runs.

        Args:
            closed: Which of 0, 1 and 2 are closed.
        """
        self.terminal: Terminal | None = None
        self.suspended = False
        self._foreground = Foreground(closed)
        self._stopped = self._asked = False

    def give_terminal(self, child: int) -> None:
        """Let a child that leads a process group of its own have the terminal, if it is ours."""
        self._foreground.give(child)

    def restore(self, child: int) -> None:
        """Give the person's terminal back as it was."""
        if self.terminal is not None:
            self.terminal.restore()
        self._foreground.take_back(child)

    def ask(self) -> None:
        """A signal has come that suspends jobs: should the child stop now, that was its reason."""
        self._asked = True

    def child_changed(self, code: int) -> None:
        """The child has stopped or continued.

        Args:
            code: What waitpid(2) said.
        """
        self._stopped = posix.WIFSTOPPED(code)
        if self._stopped and self._foreground.given:
            self._asked = True  # its group alone got the terminal's signal, so its stop is all we see of that

    def look(self) -> bool:
        """Whether the child is stopped by now; at a terminal its monitor tells."""
        if self.terminal is not None:
            self._stopped = self.terminal.child_stopped()
            self._asked = self._asked or self._stopped
        return self._stopped

    def follow(self, child: int) -> None:
        """Stop ourselves, if the child was suspended; returns when somebody has continued us.

        Args:
            child: Its process id.
        """
        if not self._stopped or not self._asked or posix.getpid() == 1:
            return
        self._asked = False
        self.suspended = True
        self.restore(child)
        if self.terminal is not None:
            self.terminal.stop_is_known()
        posix.kill(posix.getpid(), _signal.SIGSTOP)

    def resume(self, child: int, *, own_group: bool) -> bool:
        """The job was continued: take the terminal again.

        Args:
            child: Its process id.
            own_group: It leads a process group of its own.

        Returns:
            Whether the child needs SIGCONT from us now; one in our own group has got it too, most likely.
        """
        self.suspended = False
        if self.terminal is not None:
            self.terminal.resume()
        elif own_group:
            self._foreground.give(child)
        return own_group

    @property
    def still_stopped(self) -> bool:
        """Whether the child is stopped, as far as we know."""
        return self._stopped
