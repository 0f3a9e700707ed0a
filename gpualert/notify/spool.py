"""The spool: a mail is on the disk before it is sent, and leaves it when a server has accepted it.

``mail/<name>.eml`` is the mail, ``mail/<name>.json`` its envelope, with what became of each attempt. Whoever sends a
mail holds a lock on the ``.eml``, so two never send the same one. A crash between the server's acceptance and the
removal sends it again; the Message-ID is then the same. What nobody took for too long becomes ``mail/<name>.expired``.
"""

from __future__ import annotations

import contextlib
import email
import fcntl
import json
import os
import time
from dataclasses import dataclass
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any

from gpualert.notify import delivery
from gpualert.notify.message import POLICY
from gpualert.rundir.writer import make_directories, replace_file, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpualert.notify.delivery import Server

DIRECTORY = "mail"
MAX_BYTES = 100 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 4 * 3600.0
"""After a failed attempt the next automatic one waits a minute, then two, four ... up to four hours (RFC 5321, 4.5.4.1,
asks for half an hour at least; a site's own relay may be asked sooner)."""
SCANNED_MAX = 5000
"""How many run directories an automatic retry looks into, newest first; ``gpualert flush`` looks into all."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one spooled mail.

    Attributes:
        path: The mail.
        outcome: ``sent``, ``spooled`` (kept for later), ``expired``, ``busy`` or ``broken``.
        detail: Why.
        to: Its recipients.
        removed: Attachments that were taken off because of the server's limit.
    """

    path: str
    outcome: str
    detail: str
    to: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The object that ``gpualert flush --format json`` prints."""
        return {"path": self.path, "outcome": self.outcome, "detail": self.detail, "to": list(self.to)}


def put(run_directory: str, message: EmailMessage, sender: str, recipients: list[str], name: str) -> str:
    """Put a mail into a run's spool, durably; one of the same name that still waits is replaced.

    Args:
        run_directory: The run directory.
        message: The mail.
        sender: The envelope's sender.
        recipients: The envelope's recipients.
        name: What to call it (letters and digits).

    Returns:
        Its path.

    Raises:
        OSError: It cannot be written.
    """
    directory = os.path.join(run_directory, DIRECTORY)
    make_directories(directory, 0o750)
    base = os.path.join(directory, name)
    envelope = {"from": sender, "to": recipients, "attempts": 0, "spooled_at": time.time()}
    replace_file(base + ".json", json.dumps(envelope).encode())
    replace_file(base + ".eml", message.as_bytes(policy=POLICY.clone(utf8=_international(sender, recipients))))
    sync_directory(run_directory)
    return base + ".eml"


def _international(sender: str, recipients: list[str]) -> bool:
    return not all(address.isascii() for address in (sender, *recipients))


@contextlib.contextmanager
def _locked(path: str) -> Iterator[int | None]:
    """A descriptor of the mail while nobody else may send it; None while somebody else does, or has."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        yield fd if _is_at(fd, path) else None  # it was sent, or replaced, while we waited
    finally:
        os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def _envelope(path: str) -> dict[str, Any]:
    """The envelope beside a mail.

    Raises:
        ValueError: There is none, or it is broken.
    """
    try:
        with open(path[:-4] + ".json", encoding="utf-8") as file:
            envelope = json.load(file)
    except OSError as error:
        raise ValueError(f"its envelope cannot be read ({error.strerror})") from None
    if not isinstance(envelope, dict) or not isinstance(envelope.get("from"), str):
        raise ValueError("its envelope is broken")  # noqa: TRY004  (a file's content, not a caller's argument)
    to = envelope.get("to")
    if not isinstance(to, list) or not to or not all(isinstance(who, str) for who in to):
        raise ValueError("its envelope names no recipient")
    return envelope


def send(path: str, server: Server, deadline: float, keep_s: float | None = None) -> Result:
    """Send one spooled mail.

    Args:
        path: The mail.
        server: Where to.
        deadline: When to be done, on the monotonic clock.
        keep_s: How long to keep what nobody takes, in seconds; None for ever.
    """
    try:
        with _locked(path) as fd:
            if fd is None:
                return Result(path, "busy", "somebody else is sending it, or has")
            return _send_locked(path, fd, server, deadline, keep_s)
    except Exception as error:  # noqa: BLE001  (whatever is wrong with one file, the others are sent)
        reason = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
        return Result(path, "broken", f"{reason}: left where it is")


def _send_locked(path: str, fd: int, server: Server, deadline: float, keep_s: float | None) -> Result:
    with open(fd, "rb", closefd=False) as file:
        data = file.read(MAX_BYTES)
    if len(data) >= MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    if not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
        raise ValueError("it could not be removed once sent (its directory is not writable for us), so it is not sent")
    envelope = _envelope(path)
    message = email.message_from_bytes(data, policy=POLICY)
    if not isinstance(message, EmailMessage) or not message["Message-ID"]:
        raise ValueError("it is not a mail")
    to = tuple(envelope["to"])
    try:
        accepted = delivery.deliver(message, envelope["from"], list(to), server, deadline)
    except delivery.DeliveryError as error:
        if keep_s is not None and time.time() - _number(envelope, "spooled_at", time.time()) > keep_s:
            return _expire(path, envelope, str(error), to)
        _note_attempt(path, envelope, str(error))
        return Result(path, "spooled", str(error), to)
    later = [who for who, reason in accepted.refused.items() if reason.startswith("4")]
    never = [f"{who} ({reason})" for who, reason in accepted.refused.items() if who not in later]
    details = [f"not attached: {', '.join(accepted.removed)}"] if accepted.removed else []
    details += [f"refused: {', '.join(never)}"] if never else []
    if later:
        _note_attempt(path, {**envelope, "to": later}, "some recipients were put off")
        details.append(f"later: {', '.join(later)}")
    else:
        _remove(path, fd)
    taken = tuple(who for who in to if who not in accepted.refused)
    return Result(path, "sent", "; ".join(details), taken, accepted.removed)


def _remove(path: str, fd: int) -> None:
    if not _is_at(fd, path):
        return  # a newer one has taken its place
    os.unlink(path)
    with contextlib.suppress(OSError):
        os.unlink(path[:-4] + ".json")
    with contextlib.suppress(OSError):
        sync_directory(os.path.dirname(path))


def _number(envelope: dict[str, Any], key: str, default: float) -> float:
    value = envelope.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _note_attempt(path: str, envelope: dict[str, Any], reason: str) -> None:
    with contextlib.suppress(OSError):
        told = {**envelope, "attempts": int(_number(envelope, "attempts", 0)) + 1, "last_error": reason}
        replace_file(path[:-4] + ".json", json.dumps({**told, "last_try_at": time.time()}).encode())


def _expire(path: str, envelope: dict[str, Any], reason: str, to: tuple[str, ...]) -> Result:
    """Give a mail up: it stays, under a name that nobody sends."""
    _note_attempt(path, envelope, f"given up: {reason}")
    os.rename(path, path[:-4] + ".expired")
    sync_directory(os.path.dirname(path))
    return Result(path[:-4] + ".expired", "expired", f"{reason}; nobody took it for too long (email.keep)", to)


def is_due(path: str) -> bool:
    """Whether enough time has gone by since the last attempt; what cannot be read is due, so that it is told."""
    try:
        envelope = _envelope(path)
    except ValueError:
        return True
    attempts = int(_number(envelope, "attempts", 0))
    if not attempts:
        return True
    pause = min(FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 30), LONGEST_PAUSE_S)
    since = time.time() - _number(envelope, "last_try_at", 0.0)
    return not 0 <= since < pause  # a clock that was set back keeps nothing waiting


def waiting(log_directory: str) -> list[str]:
    """The spooled mails of all runs in a log directory, oldest run first.

    Args:
        log_directory: Where run directories are kept.
    """
    return list(reversed([path for mails in _newest_first(log_directory) for path in reversed(mails)]))


def _newest_first(log_directory: str) -> Iterator[list[str]]:
    """The spooled mails of each run."""
    try:
        runs = sorted(os.listdir(log_directory), reverse=True)
    except OSError:
        return
    for run in runs:
        directory = os.path.join(log_directory, run, DIRECTORY)
        if os.path.islink(os.path.join(log_directory, run)):
            continue
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            yield []
            continue
        yield [os.path.join(directory, name) for name in names if name.endswith(".eml")]


def flush(log_directory: str, server: Server, deadline: float, keep_s: float | None = None) -> list[Result]:
    """Send every spooled mail of a log directory, each once.

    Args:
        log_directory: Where run directories are kept.
        server: Where to.
        deadline: When to be done, on the monotonic clock.
        keep_s: How long to keep what nobody takes, in seconds; None for ever.
    """
    results = []
    for path in waiting(log_directory):
        if time.monotonic() >= deadline:
            results.append(Result(path, "spooled", "no time was left"))
            continue
        results.append(send(path, server, deadline, keep_s))
    return results


def retry(log_directory: str, server: Server, deadline: float, keep_s: float | None = None) -> list[Result]:
    """Send the spooled mails of a log directory whose time has come, newest run first; after a failure no more.

    Args:
        log_directory: Where run directories are kept.
        server: Where to.
        deadline: When to be done, on the monotonic clock.
        keep_s: How long to keep what nobody takes, in seconds; None for ever.
    """
    results: list[Result] = []
    for number, mails in enumerate(_newest_first(log_directory)):
        if number >= SCANNED_MAX:
            return results
        for path in filter(is_due, mails):
            if time.monotonic() >= deadline:
                return results
            results.append(send(path, server, deadline, keep_s))
            if results[-1].outcome == "spooled":
                return results  # the server is not to be had: the others would only wait as well
    return results
