"""Starting the reporter, waiting for it no longer than its deadline, and knowing what it got done."""

from __future__ import annotations

import _signal
import posix
import sys
import time

from gpualert.supervisor import launch, signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_AFTER_STOP_S = 5.0
GRACE_S = 1.0
"""Between the reporter's SIGTERM and its SIGKILL; both lie before the deadline."""

REPORTED, MESSAGE_WRITTEN, SHOWN, TOLD = b"r", b"t", b"p", b"m"
"""What the reporter writes into its progress pipe, step by step."""

_START = "import sys; sys.path.append(sys.argv.pop(1)); from gpualert.{module} import main; main()"


def program_path() -> str:
    """The directory that holds the ``gpualert`` package."""
    return __file__.rpartition("/gpualert/supervisor/")[0] or "/"


def interpreter() -> list[bytes]:
    """How to start a Python of ours that no variable of the job's reaches; empty where there is none."""
    if not sys.executable.startswith("/"):
        return []
    # Without site where we have none: an image's own packages must not reach the bundle's interpreter.
    return [launch.raw(sys.executable), b"-ISB" if sys.flags.no_site else b"-I"]


def command(module: str, arguments: list[bytes]) -> list[bytes]:
    """The command line of one of gpualert's own processes; empty where there is no interpreter for it.

    Args:
        module: The module of ``gpualert`` whose ``main`` to run (``report.process``).
        arguments: Its arguments.
    """
    start = interpreter()
    return start and [*start, b"-c", _START.format(module=module).encode(), launch.raw(program_path()), *arguments]


def start_process(
    module: str, arguments: list[bytes], *, stdin: int = -1, stdout: int = -1, stderr: int = -1, keep: int = -1
) -> int:
    """Start one of gpualert's own processes in a session of its own.

    Args:
        module: The module of ``gpualert`` whose ``main`` to run (``report.process``).
        arguments: Its arguments.
        stdin: The descriptor of ours that becomes its stdin; -1 for none.
        stdout: The descriptor of ours that becomes its stdout; -1 for none.
        stderr: The same for its stderr.
        keep: A descriptor that it shall have under the same number.

    Returns:
        Its process id.

    Raises:
        launch.ForkError: There is no new process.
        launch.LaunchError: The interpreter cannot be executed.
    """
    argv = command(module, arguments)
    if not argv:
        raise launch.ForkError("the Python interpreter's own path is unknown")

    def prepare() -> None:
        posix.setsid()
        try:
            null = posix.open("/dev/null", posix.O_RDWR)
        except OSError:  # a root without devices
            null = posix.memfd_create("null", 0)
        posix.dup2(stdin if stdin >= 0 else null, 0)
        posix.dup2(stdout if stdout >= 0 else null, 1)  # before 2 changes, which may be it
        posix.dup2(stderr if stderr >= 0 else null, 2)
        if keep >= 0:
            posix.set_inheritable(keep, True)
        for number in (_signal.SIGPIPE, _signal.SIGINT, _signal.SIGTERM):
            _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())

    pid, error = launch.fork_and_execute(argv, None, prepare)
    if error is not None:
        posix.waitpid(pid, 0)
        raise error
    return pid


class Reporter:
    """One reporter at work.

    Attributes:
        done: Which steps it has told us to have done.
    """

    __slots__ = ("_log", "_pid", "_progress", "_running", "done")

    def __init__(self, run_directory: str, arguments: list[bytes], closed: set[int]) -> None:
        """Start it.

        Args:
            run_directory: What it is to report on.
            arguments: Further arguments.
            closed: Which of our 0, 1 and 2 are closed.

        Raises:
            launch.ForkError: There is no new process.
            launch.LaunchError: The interpreter cannot be executed.
            OSError: There are too many open files.
        """
        self.done = b""
        self._running = True
        self._progress, tell = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
        try:
            self._log = posix.open(
                f"{run_directory}/reporter.log",
                posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC,
                0o640,
            )
        except OSError:
            self._log = -1
        told = [launch.raw(run_directory), b"--progress-fd", b"%d" % tell, *arguments]
        try:
            # Its stdout is our stderr, for the lines that a person shall see.
            stdout = -1 if 2 in closed else 2
            self._pid = start_process("report.process", told, stdout=stdout, stderr=self._log, keep=tell)
        finally:
            posix.close(tell)
            if self._log >= 0:
                posix.close(self._log)

    def wait(self, deadline: Callable[[], float], reap: Callable[[], set[int]]) -> bool:
        """Wait until it has ended or the deadline comes; then end it and what it has started.

        Args:
            deadline: When it must have ended, on the monotonic clock; may come nearer meanwhile.
            reap: Takes pending signals for at most a moment; returns the ids of the processes that have ended.

        Returns:
            Whether it ended by itself.
        """
        in_time, asked = True, False
        while self._running:
            left = deadline() - time.monotonic()
            if left <= 0:
                in_time = False
                signals.send(self._pid, _signal.SIGKILL, group=True)
            elif left <= GRACE_S and not asked:
                in_time, asked = False, True
                signals.send(self._pid, _signal.SIGTERM, group=True)
            if self._pid in reap():
                self._running = False
        try:
            self.done = posix.read(self._progress, 64)
        except OSError:
            self.done = b""
        return in_time
