"""Holding a spooled mail, so that nobody else sends it: by a lock, or where there are none, by its name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpualert.rundir.survivor import server_now

if TYPE_CHECKING:
    from collections.abc import Iterator

STALE_S = 900.0
"""Nobody sends for longer than this (``gpualert flush`` ends after five minutes): an older claim's owner is gone."""
_MARK = ".claimed-"


@dataclass(slots=True)
class Held:
    """A mail that is ours for now.

    Attributes:
        fd: A descriptor of it.
        place: Where it lies meanwhile.
    """

    fd: int
    place: str

    def is_there(self) -> bool:
        """Whether it still lies there; it may have been sent, or dropped for a newer one, while we came."""
        return _is_at(self.fd, self.place)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


@contextlib.contextmanager
def hold(path: str) -> Iterator[Held | None]:
    """Hold a mail; gives None while somebody else does, or when it has gone.

    Args:
        path: The mail.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            # NFS makes an exclusive lock of flock a byte-range lock, which wants a file that is open for writing.
            fd = os.open(path, os.O_RDWR | flags)
        except PermissionError:
            fd = os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        yield None
        return
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "it is no regular file")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        except OSError:
            with _claimed(path, fd) as held:
                yield held
        else:
            held = Held(fd, path)
            yield held if held.is_there() else None
    finally:
        os.close(fd)


@contextlib.contextmanager
def _claimed(path: str, fd: int) -> Iterator[Held | None]:
    """Hold a mail by renaming it, on a file system that has no locks."""
    host = "".join(c if c.isalnum() else "-" for c in socket.gethostname())[:40]
    place = f"{path}{_MARK}{host}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.utime(path)  # first, so that a claim never looks old
        os.rename(path, place)
    except FileNotFoundError:
        yield None
        return
    held = Held(fd, place)
    try:
        yield held if held.is_there() else None
    finally:
        if os.path.lexists(place):
            os.rename(place, path)


def claimed(directory: str, names: list[str]) -> list[str]:
    """Give back what a sender that is gone had claimed, and say what is claimed by others.

    Args:
        directory: The spool.
        names: What it holds.

    Returns:
        The mails that are claimed by somebody who may live, by the names they had.
    """
    taken = []
    for name in names:
        first, mark, _ = name.partition(_MARK)
        if not mark or not first.endswith(".eml"):
            continue
        place, path = os.path.join(directory, name), os.path.join(directory, first)
        try:
            if server_now(directory) - os.lstat(place).st_mtime > STALE_S:
                os.rename(place, path)
                names.append(first)
            else:
                taken.append(path)
        except OSError:
            continue  # somebody was quicker
    return taken


def same_message(name: str) -> re.Pattern[str]:
    """The names of the files of all mails that are called so."""
    return re.compile(re.escape(name) + r"(-[0-9a-f]{8})?\.eml")
