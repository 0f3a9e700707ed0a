"""``gpualert run``: the whole story, top to bottom."""

from __future__ import annotations

import posix
import sys

from gpualert.rundir.clock import now_us
from gpualert.supervisor import fallback, launch, settings, signals, status
from gpualert.supervisor.streams import closed_standard_descriptors, write_stderr
from gpualert.supervisor.supervision import Supervision
from gpualert.supervisor.trouble import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run(arguments: list[str]) -> NoReturn:
    """Run a command and end as it ended.

    Args:
        arguments: What follows ``gpualert run``.
    """
    inherited = signals.block()
    started_us = now_us()
    closed = closed_standard_descriptors()
    environment = original_environment()
    try:
        told = settings.read(arguments, environment)
    except settings.UsageError as error:
        write_stderr(f"{PREFIX}{error}\n")
        posix._exit(status.CALLED_WRONGLY)
    command = [launch.raw(argument) for argument in told.command]
    supervision = Supervision(told, command, environment, inherited, closed, started_us)
    try:
        supervision.prepare()
        supervision.launch()
    except Exception as error:  # noqa: BLE001  (whatever is wrong in here, the command runs)
        if not supervision.child:
            write_stderr(f"{PREFIX}cannot supervise ({error}): the command runs without gpualert\n")
            fallback.become(command, environment.get(b"PATH"), inherited)
        supervision.failed(error)
    try:
        supervision.attend()
        supervision.conclude()
    except Exception as error:  # noqa: BLE001  (the same)
        supervision.failed(error)
        supervision.ending = supervision.ending or fallback.wait(supervision.child)
        fallback.let_out(supervision.streams)
    ending = supervision.ending or fallback.wait(supervision.child)
    supervision.restore_terminal()
    status.end_as(ending)


def original_environment() -> dict[bytes, bytes]:
    """The environment that we were started with, also made this process's again.

    The interpreter sets LC_CTYPE for itself where the locale is C (PEP 538); the child must not see that.
    """
    environment: dict[bytes, bytes] = dict(posix.environ)
    if environment.get(b"LC_CTYPE") in (b"C.UTF-8", b"C.utf8", b"UTF-8") and not _was_set(b"LC_CTYPE"):
        posix.unsetenv(b"LC_CTYPE")
        del environment[b"LC_CTYPE"]
    environment.pop(signals.HANDOVER, None)
    return environment


def _was_set(name: bytes) -> bool:
    """Whether a variable was in the environment at exec; without /proc: unless the interpreter would have set it."""
    try:
        fd = posix.open("/proc/self/environ", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b"LANG" in posix.environ or b"LC_ALL" in posix.environ
    content = b""
    while chunk := posix.read(fd, 1 << 20):
        content += chunk
    posix.close(fd)
    return any(entry.startswith(name + b"=") for entry in content.split(b"\0"))


if __name__ == "__main__":
    run(sys.argv[1:])
