"""A child in a process group of its own needs the terminal, as long as it is ours to give."""

from __future__ import annotations

import posix


class Foreground:
    """Our terminal's foreground: ours, or that of the child's process group.

    Attributes:
        given: The child's group has it, by our doing.
    """

    __slots__ = ("_fd", "given")

    def __init__(self, closed: set[int]) -> None:
        """Nothing is given yet.

        Args:
            closed: Which of 0, 1 and 2 are closed.
        """
        terminals = [fd for fd in (0, 1, 2) if fd not in closed and posix.isatty(fd)]
        self._fd = terminals[0] if terminals else -1
        self.given = False

    def give(self, group: int) -> None:
        """Make ``group`` the foreground group, where we are that now."""
        self.given = self._pass(posix.getpgrp(), group)

    def take_back(self, group: int) -> None:
        """Make our own group the foreground group again, where ``group`` is that now."""
        if self.given:
            self._pass(group, posix.getpgrp())
            self.given = False

    def _pass(self, from_group: int, to_group: int) -> bool:
        if self._fd < 0:
            return False
        try:
            if posix.tcgetpgrp(self._fd) != from_group:
                return False
            posix.tcsetpgrp(self._fd, to_group)  # SIGTTOU is blocked, so this may be done from the background
        except OSError:
            return False  # not the terminal of our session, or the group is gone
        return True
