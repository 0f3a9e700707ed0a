"""A child in a process group of its own needs the terminal, if it was ours to give."""

from __future__ import annotations

import posix


def give_terminal(group: int, closed: set[int]) -> None:
    """Make ``group`` the foreground group of our terminal, where we are that now.

    Args:
        group: A process group of our session.
        closed: Which of 0, 1 and 2 are closed.
    """
    for fd in (0, 1, 2):
        if fd in closed or not posix.isatty(fd):
            continue
        try:
            if posix.tcgetpgrp(fd) == posix.getpgrp():
                posix.tcsetpgrp(fd, group)
        except OSError:
            continue  # not the terminal of our session
        return
