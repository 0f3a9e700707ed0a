"""The monitor: leads the pseudo-terminal's session, so that the child's process group is not an orphaned one.

A session leader without a parent in its session never stops on Ctrl-Z: POSIX calls its group orphaned, and the kernel
drops SIGTSTP. So a process of ours leads the session, starts the child in a foreground group of its own, and tells
the supervisor by a pipe how the child fares, one message a line: ``P<pid>``, ``E<errno>:<text>``, ``S`` (stopped),
``C`` (continued), ``X<code>`` (exited), ``K<signal>`` and ``D<signal>`` (ended by a signal, with a core dump).
"""

from __future__ import annotations

import _signal
import fcntl
import posix

from gpualert.supervisor import launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_TIOCSCTTY = 0x540E
_CLD_EXITED, _CLD_KILLED, _CLD_DUMPED, _CLD_STOPPED, _CLD_CONTINUED = 1, 2, 3, 5, 6
_HIGHEST_FD = 4096


def start(
    command: list[bytes], search_path: bytes | None, prepare: Callable[[], None], slave: int
) -> tuple[int, int, int]:
    """Start a monitor that starts ``command``.

    Args:
        command: The command and its arguments.
        search_path: ``PATH``; None where it is unset.
        prepare: Run in the new process before it becomes the command.
        slave: The pseudo-terminal's slave.

    Returns:
        The monitor's process id, the pipe it tells by, and the pipe that lets it end.

    Raises:
        launch.ForkError: There is no new process.
    """
    try:
        told, tell = posix.pipe2(posix.O_CLOEXEC)
        hold, release = posix.pipe2(posix.O_CLOEXEC)
        pid = posix.fork()
    except OSError as error:
        raise launch.ForkError(error.strerror) from None
    if not pid:
        try:
            posix.close(told)
            posix.close(release)
            _watch(command, search_path, prepare, slave, tell, hold)
        finally:
            posix._exit(1)
    posix.close(tell)
    posix.close(hold)
    return pid, told, release


def _watch(
    command: list[bytes],
    search_path: bytes | None,
    prepare: Callable[[], None],
    slave: int,
    tell: int,
    hold: int,
) -> NoReturn:
    """The monitor's life."""
    supervisor = posix.getppid()
    posix.setsid()
    fcntl.ioctl(slave, _TIOCSCTTY, 0)

    def prepare_child() -> None:
        posix.setpgid(0, 0)
        posix.tcsetpgrp(slave, posix.getpid())
        prepare()

    def say(text: str) -> None:
        posix.write(tell, text.encode("utf-8", "replace") + b"\n")
        posix.kill(supervisor, _signal.SIGCHLD)

    child, error = launch.fork_and_execute(command, search_path, prepare_child)
    if error is not None:
        say(f"E{error.errno}:{error.message}".replace("\n", " "))
        posix._exit(0)
    say(f"P{child}")
    # The terminal must close when the child's last process closes it, and the run's lock is not ours.
    low, high = min(tell, hold), max(tell, hold)
    for first, last in ((0, low), (low + 1, high), (high + 1, _HIGHEST_FD)):
        posix.closerange(first, last)
    changes = posix.WSTOPPED | posix.WCONTINUED
    while True:
        # The child stays a zombie until the supervisor knows, so that its process id cannot be reused meanwhile.
        change = posix.waitid(posix.P_PID, child, changes | posix.WEXITED | posix.WNOWAIT)
        if change is None:
            continue
        if change.si_code in (_CLD_STOPPED, _CLD_CONTINUED):
            posix.waitid(posix.P_PID, child, changes)
            say("S" if change.si_code == _CLD_STOPPED else "C")
        elif change.si_code in (_CLD_EXITED, _CLD_KILLED, _CLD_DUMPED):
            say(f"{' XKD'[change.si_code]}{change.si_status}")
            posix.read(hold, 1)
            posix.waitpid(child, 0)
            posix._exit(0)
