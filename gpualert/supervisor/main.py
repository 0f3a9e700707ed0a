"""``gpualert run``: the whole story, top to bottom."""

from __future__ import annotations

import gc
import posix
import sys

from gpualert.rundir.clock import now_us
from gpualert.supervisor import launch, settings, signals, status, stderr
from gpualert.supervisor.redaction import Redaction, secrets
from gpualert.supervisor.supervision import Supervision
from gpualert.supervisor.trouble import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


ASIDE = b"_GPUALERT_ENV_"


def run(arguments: list[str]) -> NoReturn:
    """Run a command and end as it ended.

    Args:
        arguments: What follows ``gpualert run``.
    """
    inherited = signals.block()
    gc.disable()  # until the child runs: there is nothing to collect yet
    started_us = now_us()
    closed = stderr.closed_standard_descriptors()
    environment, exact = original_environment()
    try:
        told = settings.read(arguments, environment)
    except settings.UsageError as error:
        stderr.write(f"{PREFIX}{Redaction(secrets(environment)).mask(str(error))}\n")
        posix._exit(status.CALLED_WRONGLY)
    command = [launch.raw(argument) for argument in told.command]
    supervision = Supervision(told, command, environment, inherited, closed, started_us)
    supervision.exact_environment = exact
    try:
        supervision.prepare()
        supervision.launch()
    except Exception as error:  # noqa: BLE001  (whatever is wrong in here, the command runs)
        if not supervision.child:
            said = supervision.redaction.mask(f"cannot supervise ({error}): the command runs without gpualert")
            stderr.write(f"{PREFIX}{said}\n")
            become(command, environment.get(b"PATH"), inherited)
        supervision.failed(error)
    try:
        supervision.attend()
        supervision.conclude()
    except Exception as error:  # noqa: BLE001  (the same)
        from gpualert.supervisor import fallback  # noqa: PLC0415

        supervision.failed(error)
        supervision.ending = supervision.ending or fallback.wait(supervision.child)
        fallback.let_out(supervision.streams)
    supervision.restore_terminal()
    status.end_as(supervision.ending or status.Ending(status.CALLED_WRONGLY))


def become(command: list[bytes], search_path: bytes | None, inherited: signals.Inherited) -> NoReturn:
    """Become the command: nothing is supervised, and nothing is lost either.

    It stands here, where nothing is left to load: there may be no descriptor to load it with.
    """
    inherited.restore()
    number, path = launch.execute(command, search_path)
    error = launch.LaunchError(number, launch.explain(number, path, command[0]))
    stderr.write(f"{PREFIX}{error.message}\n")
    posix._exit(error.status)


def original_environment() -> tuple[dict[bytes, bytes], bool]:
    """The environment that we were started with, also made this process's again.

    The interpreter sets LC_CTYPE for itself where the locale is C (PEP 538); the child must not see that.

    Returns:
        Variables and values, and whether that is all there was.
    """
    environment = _given_back(dict(posix.environ))
    entries = _entries_at_exec()
    if environment.get(b"LC_CTYPE") in (b"C.UTF-8", b"C.utf8", b"UTF-8") and not _was_set(b"LC_CTYPE", entries):
        posix.unsetenv(b"LC_CTYPE")
        del environment[b"LC_CTYPE"]
    # A variable that stands there twice, or an entry that is none, a mapping cannot hold.
    exact = entries is not None and len(entries) == len(environment)
    environment.pop(signals.HANDOVER, None)
    return environment, exact


def _given_back(found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Variables under their own names again, in their places, that the bundle's launcher has put aside.

    They would have changed how the interpreter's libraries are loaded (LD_PRELOAD); the command shall have them.
    """
    if not any(name.startswith(ASIDE) for name in found):
        return found
    environment: dict[bytes, bytes] = {}
    for name, value in found.items():
        if name.startswith(ASIDE):
            posix.unsetenv(name)
            posix.putenv(name[len(ASIDE) :], value)
        environment[name.removeprefix(ASIDE)] = value
    return environment


def _was_set(name: bytes, entries: list[bytes] | None) -> bool:
    """Whether a variable was in the environment at exec; without /proc: unless the interpreter would have set it."""
    if entries is None:
        return b"LANG" in posix.environ or b"LC_ALL" in posix.environ
    return any(entry.startswith(name + b"=") for entry in entries)


def _entries_at_exec() -> list[bytes] | None:
    """The environment as the kernel was given it; None without /proc."""
    try:
        fd = posix.open("/proc/self/environ", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return None
    content = b""
    while chunk := posix.read(fd, 1 << 20):
        content += chunk
    posix.close(fd)
    return content.removesuffix(b"\0").split(b"\0")


if __name__ == "__main__":
    run(sys.argv[1:])
