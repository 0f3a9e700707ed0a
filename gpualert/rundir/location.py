"""Where run directories are kept when nobody says."""

from __future__ import annotations

import posix

from gpualert.rundir.writer import make_directories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM = "/var/log/gpualert"
TEMPORARY_PREFIX = "gpualert-"


def defaults(environment: Mapping[bytes, bytes]) -> list[str]:
    """The log directories to try, in order.

    Args:
        environment: Variables and values.
    """
    state = environment.get(b"XDG_STATE_HOME", b"").decode("utf-8", "surrogateescape")
    listed = [SYSTEM]
    if state.startswith("/"):
        listed.append(f"{state}/gpualert")
    try:
        listed.append(f"{posix.getcwd()}/gpualert")
    except OSError:
        pass  # somebody has removed the working directory
    return listed


def absolute(path: str) -> str:
    """``path`` from the root, whatever the working directory becomes later.

    Raises:
        OSError: The working directory is gone.
    """
    return path if path.startswith("/") else f"{posix.getcwd()}/{path}"


def temporary_places(environment: Mapping[bytes, bytes]) -> list[str]:
    """Where directories of last resort are made, in order.

    Args:
        environment: Variables and values.
    """
    named = environment.get(b"TMPDIR", b"").decode("utf-8", "surrogateescape")
    usual = ["/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108  (a directory of our own is made in it)
    return [named, *(place for place in usual if place != named.rstrip("/"))] if named.startswith("/") else usual


def temporary(environment: Mapping[bytes, bytes]) -> str:
    """Make a directory of last resort: in ``TMPDIR``, else where temporary files usually go, else in memory.

    Raises:
        OSError: There is no place at all.
    """
    failure = OSError(0, "no place for temporary files")
    for place in temporary_places(environment):
        path = f"{place.rstrip('/')}/{TEMPORARY_PREFIX}{posix.urandom(4).hex()}"
        try:
            make_directories(place)
            posix.mkdir(path, 0o700)
        except OSError as error:
            failure = error
        else:
            return path
    raise failure


_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/:@%+=,")


def word(text: str) -> str:
    """``text`` as one word of a shell's command line."""
    return text if text and _PLAIN.issuperset(text) else "'" + text.replace("'", "'\\''") + "'"


def report_command(run_directory: str, environment: Mapping[bytes, bytes]) -> str:
    """What to type to have a run reported: with its whole path where no default place holds it.

    Args:
        run_directory: The run directory.
        environment: Variables and values.
    """
    parent, _, run_id = run_directory.rpartition("/")
    return f"gpualert report {run_id if parent in defaults(environment) else word(run_directory)}"


def flush_command(log_directory: str, environment: Mapping[bytes, bytes]) -> str:
    """What to type to have the spooled mails of a log directory sent.

    Args:
        log_directory: The log directory.
        environment: Variables and values.
    """
    return "gpualert flush" + ("" if log_directory in defaults(environment) else f" --log-dir {word(log_directory)}")
