"""The spool: a mail is on the disk before it is sent, and leaves it when a server has accepted it.

``mail/<id>.eml`` is the mail, ``mail/<id>.json`` its envelope. Whoever sends a mail holds a lock on the ``.eml``, so
two never send the same one. A crash between the server's acceptance and the removal sends it again; the Message-ID is
then the same.
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


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one spooled mail.

    Attributes:
        path: The mail.
        outcome: ``sent``, ``spooled`` (kept for later), ``busy`` or ``broken``.
        detail: Why.
        to: Its recipients.
        removed: Attachments that were taken off because of the server's limit.
    """

    path: str
    outcome: str
    detail: str
    to: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def put(run_directory: str, message: EmailMessage, sender: str, recipients: list[str]) -> str:
    """Put a mail into a run's spool, durably.

    Args:
        run_directory: The run directory.
        message: The mail.
        sender: The envelope's sender.
        recipients: The envelope's recipients.

    Returns:
        Its path.

    Raises:
        OSError: It cannot be written.
    """
    directory = os.path.join(run_directory, DIRECTORY)
    make_directories(directory, 0o750)
    name = "".join(c for c in str(message["Message-ID"]).partition("@")[0] if c.isalnum()) or "mail"
    base = os.path.join(directory, name)
    envelope = {"from": sender, "to": recipients, "attempts": 0, "spooled_at": time.time()}
    replace_file(base + ".json", json.dumps(envelope).encode())
    replace_file(base + ".eml", message.as_bytes(policy=POLICY.clone(utf8=_international(sender, recipients))))
    sync_directory(run_directory)
    return base + ".eml"


def _international(sender: str, recipients: list[str]) -> bool:
    return not all(address.isascii() for address in (sender, *recipients))


@contextlib.contextmanager
def _locked(path: str) -> Iterator[bytes | None]:
    """The mail's bytes while nobody else may send it; None while somebody else does, or has."""
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
        if os.fstat(fd).st_nlink == 0:
            yield None  # sent while we waited
            return
        with open(fd, "rb", closefd=False) as file:
            yield file.read(MAX_BYTES)
    finally:
        os.close(fd)


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


def send(path: str, server: Server, deadline: float) -> Result:
    """Send one spooled mail.

    Args:
        path: The mail.
        server: Where to.
        deadline: When to be done, on the monotonic clock.
    """
    try:
        with _locked(path) as data:
            if data is None:
                return Result(path, "busy", "somebody else is sending it, or has")
            return _send_locked(path, data, server, deadline)
    except Exception as error:  # noqa: BLE001  (whatever is wrong with one file, the others are sent)
        reason = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
        return Result(path, "broken", f"{reason}: left where it is")


def _send_locked(path: str, data: bytes, server: Server, deadline: float) -> Result:
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
        _remove(path)
    taken = tuple(who for who in to if who not in accepted.refused)
    return Result(path, "sent", "; ".join(details), taken, accepted.removed)


def _remove(path: str) -> None:
    os.unlink(path)
    with contextlib.suppress(OSError):
        os.unlink(path[:-4] + ".json")
    with contextlib.suppress(OSError):
        sync_directory(os.path.dirname(path))


def _note_attempt(path: str, envelope: dict[str, Any], reason: str) -> None:
    with contextlib.suppress(OSError):
        attempts = envelope.get("attempts")
        told = {**envelope, "attempts": (attempts if isinstance(attempts, int) else 0) + 1, "last_error": reason}
        replace_file(path[:-4] + ".json", json.dumps({**told, "last_try_at": time.time()}).encode())


def waiting(log_directory: str) -> list[str]:
    """The spooled mails of all runs in a log directory, oldest run first.

    Args:
        log_directory: Where run directories are kept.
    """
    found = []
    try:
        runs = sorted(os.listdir(log_directory))
    except OSError:
        return []
    for run in runs:
        directory = os.path.join(log_directory, run, DIRECTORY)
        if os.path.islink(os.path.join(log_directory, run)):
            continue
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        found += [os.path.join(directory, name) for name in names if name.endswith(".eml")]
    return found


def flush(log_directory: str, server: Server, deadline: float) -> list[Result]:
    """Send every spooled mail of a log directory, each once.

    Args:
        log_directory: Where run directories are kept.
        server: Where to.
        deadline: When to be done, on the monotonic clock.
    """
    results = []
    for path in waiting(log_directory):
        if time.monotonic() >= deadline:
            results.append(Result(path, "spooled", "no time was left"))
            continue
        results.append(send(path, server, deadline))
    return results
