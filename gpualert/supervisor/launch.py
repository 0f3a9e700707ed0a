"""Launching: the child starts with everything as we found it, or we learn why it could not."""

from __future__ import annotations

import errno
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

NOT_FOUND, NOT_EXECUTABLE = 127, 126
DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
HINTS = {b"PYTHONUNBUFFERED": b"1", b"PYTHONFAULTHANDLER": b"1"}
_MARK = b"\0gpualert\0"


class LaunchError(Exception):
    """The command could not be executed.

    Attributes:
        errno: The system's error number.
        message: What is wrong, in words.
        status: The exit status that says so: 127 not found, 126 found but not executable.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.errno = number
        self.message = message
        self.status = NOT_FOUND if number in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE


class ForkError(Exception):
    """No process could be made for the child."""


def raw(text: str) -> bytes:
    """The bytes that an argument of ours was given as."""
    return text.encode(sys.getfilesystemencoding(), "surrogateescape")


def candidates(command: bytes, search_path: bytes | None) -> list[bytes]:
    """The paths that execvp(3) would try for ``command``, in order."""
    if b"/" in command or not command:
        return [command]
    path = DEFAULT_PATH if search_path is None else search_path
    return [(folder + b"/" if folder else b"") + command for folder in path.split(b":")]


def execute(command: list[bytes], search_path: bytes | None) -> tuple[int, bytes]:
    """Become ``command``, as execvp(3) does; the environment is this process's.

    Returns:
        Why that did not work: the error's number and the path it is about.
    """
    worst = (errno.ENOENT, command[0])
    for path in candidates(command[0], search_path):
        try:
            posix.execv(path, command)
        except OSError as error:
            number = error.errno or errno.ENOENT
        except ValueError:  # an empty name
            number = errno.ENOENT
        if number == errno.ENOEXEC:
            if not _is_script(path):
                return number, path
            try:
                posix.execv(b"/bin/sh", [b"/bin/sh", path, *command[1:]])
            except OSError as error:
                return error.errno or errno.ENOENT, b"/bin/sh"
        if number == errno.EACCES:
            worst = (number, path)
        elif number not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT):
            return number, path
        elif worst[0] == errno.ENOENT and number == errno.ENOENT and _exists(path):
            return number, path  # it is there: what it needs to run is not
    return worst


def _exists(path: bytes) -> bool:
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def _head(path: bytes) -> bytes:
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
        try:
            return posix.read(fd, 256)
        finally:
            posix.close(fd)
    except OSError:
        return b""


def _is_script(path: bytes) -> bool:
    """Whether a file that the kernel cannot execute may be shell text (bash's rule: no NUL in its first line)."""
    head = _head(path)
    return not head.startswith(b"\x7fELF") and b"\0" not in head.partition(b"\n")[0]


def explain(number: int, path: bytes, command: bytes) -> str:
    """What is wrong with a command that could not be executed, in words.

    Args:
        number: The system's error number.
        path: The path that was tried last.
        command: The command as it was given.
    """
    shown = path.decode("utf-8", "replace")
    if number == errno.ENOEXEC:
        kind = "a program for another kind of machine" if _head(path).startswith(b"\x7fELF") else "not a program"
        return f"{shown}: {kind} (Exec format error)"
    if number == errno.ENOENT and _exists(path):
        head = _head(path)
        if head.startswith(b"#!"):
            needed = head[2:].split(b"\n")[0].strip().split(b" ")[0].decode("utf-8", "replace")
            return f"{shown}: its interpreter {needed} does not exist"
        return f"{shown}: its program loader does not exist (made for another C library?)"
    if number == errno.ENOENT and b"/" not in command:
        return f"{command.decode('utf-8', 'replace')}: command not found"
    if number == errno.EACCES and _is_directory(path):
        return f"{shown}: is a directory"
    return f"{shown}: {posix.strerror(number)}"


def _is_directory(path: bytes) -> bool:
    try:
        return posix.stat(path).st_mode & 0o170000 == 0o040000
    except OSError:
        return False


def apply_hints(environment: Mapping[bytes, bytes]) -> None:
    """Set, in this process's environment, what makes a crashing Python tell everything; only where unset."""
    for key, value in HINTS.items():
        if key not in environment:
            posix.putenv(key, value)


def fork_and_execute(
    command: list[bytes], search_path: bytes | None, prepare: Callable[[], None]
) -> tuple[int, LaunchError | None]:
    """Start ``command`` in a new process.

    Args:
        command: The program's name and its arguments.
        search_path: ``PATH``; None where it is unset.
        prepare: Run in the new process before it becomes the command (descriptors, signals, process group).

    Returns:
        The process's id, and why it could not become the command; then it has ended and is to be reaped.

    Raises:
        ForkError: There is no new process.
    """
    try:
        told, tell = posix.pipe2(posix.O_CLOEXEC)
    except OSError as error:
        raise ForkError(error.strerror) from None
    try:
        pid = posix.fork()
    except OSError as error:
        posix.close(told)
        posix.close(tell)
        raise ForkError(error.strerror) from None
    if not pid:
        _become(command, search_path, prepare, tell)
    posix.close(tell)
    answer = b""
    while chunk := posix.read(told, 4096):
        answer += chunk
    posix.close(told)
    if not answer.startswith(_MARK):
        return pid, None
    number, _, path = answer[len(_MARK) :].partition(b":")
    return pid, LaunchError(int(number), explain(int(number), path, command[0]))


def spawn(
    command: list[bytes],
    search_path: bytes | None,
    environment: dict[bytes, bytes],
    targets: dict[int, int],
    signals: tuple[set[int], set[int]],
    *,
    own_group: bool,
) -> tuple[int, LaunchError | None]:
    """Start ``command`` by posix_spawn(3), which does not copy this process: half the time of a fork.

    glibc leaves its internal signals 32 and 33 ignored in the child; whoever needs them sets them anew.

    Args:
        command: The program's name and its arguments.
        search_path: ``PATH``; None where it is unset.
        environment: The child's environment.
        targets: Which descriptors of ours become which ones of the child's.
        signals: The child's blocked signals, and those of its signals that are to be default.
        own_group: Put it into a process group of its own.

    Returns:
        The process's id, or 0 and why it could not be executed.

    Raises:
        ForkError: There is no new process.
    """
    blocked, default = signals
    options: dict[str, object] = {"setsigmask": blocked, "setsigdef": default}
    options["file_actions"] = [(posix.POSIX_SPAWN_DUP2, source, target) for target, source in targets.items()]
    if own_group:
        options["setpgroup"] = 0
    worst, about = errno.ENOENT, command[0]
    for path in candidates(command[0], search_path):
        number = _why_not(path)
        if not number:
            pid, number = _spawn_one(path, command, environment, options)
            if number == errno.ENOEXEC and _is_script(path):
                through_shell = [b"/bin/sh", path, *command[1:]]
                pid, number = _spawn_one(b"/bin/sh", through_shell, environment, options)
            if not number:
                return pid, None
        if number == errno.EACCES:
            worst, about = number, path
        elif number not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT):
            worst, about = number, path
            break
        elif worst == errno.ENOENT and _exists(path):
            about = path  # it is there: what it needs to run is not
            break
    return 0, LaunchError(worst, explain(worst, about, command[0]))


def _why_not(path: bytes) -> int:
    """The error number that says that there is nothing at ``path`` to execute; 0 when it is worth a try."""
    try:
        posix.stat(path)
    except OSError as error:
        return error.errno or errno.ENOENT
    except ValueError:
        return errno.ENOENT
    return 0


def _spawn_one(path: bytes, command: list[bytes], environment: dict[bytes, bytes], options: Any) -> tuple[int, int]:
    """A process id and 0, or 0 and an error number."""
    try:
        return posix.posix_spawn(path, command, environment, **options), 0
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise ForkError(error.strerror) from None
        return 0, error.errno or errno.EINVAL


def _become(command: list[bytes], search_path: bytes | None, prepare: Callable[[], None], tell: int) -> None:
    """The new process's way to exec; never returns."""
    try:
        prepare()
        number, path = execute(command, search_path)
    except OSError as error:
        number, path = error.errno or errno.EINVAL, command[0]
    except BaseException:  # noqa: BLE001  (nothing may run on in the copy of the supervisor)
        number, path = errno.EINVAL, command[0]
    try:
        posix.write(tell, _MARK + b"%d:%s" % (number, path[:3000]))
    finally:
        posix._exit(NOT_EXECUTABLE)
