"""The spool: a mail is on the disk before it is sent, and leaves it when a server has accepted it.

``mail/<name>-<8 hex>.eml`` is the mail, the ``.json`` beside it its envelope, with what became of each attempt. Each
mail has a name of its own, so that a newer one never meets the older on its way. Whoever sends a mail holds it, so two
never send the same one. A crash between the server's acceptance and the note of it sends it again; the Message-ID is
then the same. What nobody took for too long becomes ``.expired``, what a server refused for good ``.failed``.
"""

from __future__ import annotations

import contextlib
import email
import os
import time
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any

from gpualert.notify import address, claim, delivery, record
from gpualert.notify.envelope import Envelope
from gpualert.notify.message import POLICY
from gpualert.rundir import refuge
from gpualert.rundir.writer import make_directories, replace_file, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpualert.notify.claim import Held
    from gpualert.notify.delivery import Server

DIRECTORY = record.DIRECTORY
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
        outcome: ``sent``, ``spooled`` (kept for later), ``failed`` (refused for good), ``expired``, ``busy`` (somebody
            else is sending it) or ``broken``.
        detail: Why.
        to: Its recipients.
        refused: Who did not get it although others did: the address, ``failed`` or ``spooled``, and why.
        removed: Attachments that were taken off because of the server's limit.
        dropped: Which artifacts these were, as numbers in the report.
        stops: No other mail would fare better now: the server cannot be reached, or takes no mail of ours.
    """

    path: str
    outcome: str
    detail: str
    to: tuple[str, ...] = ()
    refused: tuple[tuple[str, str, str], ...] = ()
    removed: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()
    stops: bool = field(default=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """The object that ``gpualert flush --format json`` prints."""
        return {"path": self.path, "outcome": self.outcome, "detail": self.detail, "to": list(self.to)}


def put(
    run_directory: str,
    message: EmailMessage,
    sender: str,
    recipients: list[str],
    name: str,
    overtakes: Sequence[str] = (),
) -> str:
    """Put a mail into a run's spool, durably; what it overtakes is dropped, unless it is being sent just now.

    Args:
        run_directory: The run directory.
        message: The mail.
        sender: The envelope's sender.
        recipients: The envelope's recipients.
        name: What to call it (letters and digits); a waiting mail of the same name is overtaken.
        overtakes: The names of others that it overtakes.

    Returns:
        Its path.

    Raises:
        OSError: It cannot be written.
    """
    directory = os.path.join(run_directory, DIRECTORY)
    make_directories(directory, 0o750)
    base = os.path.join(directory, f"{name}-{os.urandom(4).hex()}")
    international = any(map(address.needs_utf8, (sender, *recipients)))
    envelope = Envelope.model_validate({"from": sender, "to": recipients, "spooled_at": time.time()})
    envelope.write(base + ".json")
    replace_file(base + ".eml", message.as_bytes(policy=POLICY.clone(utf8=international)))
    sync_directory(run_directory)
    drop(run_directory, (name, *overtakes), but=base + ".eml")
    return base + ".eml"


def drop(run_directory: str, names: Iterable[str], but: str = "") -> None:
    """Drop the mails of some names that still wait; what is being sent just now is left alone.

    Args:
        run_directory: The run directory.
        names: What they are called.
        but: One that stays.
    """
    directory = os.path.join(run_directory, DIRECTORY)
    patterns = [claim.same_message(name) for name in names]
    for entry in _listed(directory):
        path = os.path.join(directory, entry)
        if path == but or not any(pattern.fullmatch(entry) for pattern in patterns):
            continue
        try:
            with claim.hold(path) as held:
                if held is not None:
                    _remove(path, held)
        except OSError:
            continue  # it is sent late, which is better than not at all


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def send(
    path: str, server: Server, deadline: float, keep_s: float | None = None, *, report_follows: bool = False
) -> Result:
    """Send one spooled mail.

    Args:
        path: The mail.
        server: Where to.
        deadline: When to be done, on the monotonic clock.
        keep_s: How long to keep what nobody takes, in seconds; None for ever.
        report_follows: The caller writes the run's report itself; else what is on the disk is brought up to date.
    """
    try:
        with claim.hold(path) as held:
            if held is None:
                return Result(path, "busy", "somebody else is sending it, or has")
            result = _send_held(path, held, server, deadline, keep_s)
    except Exception as error:  # noqa: BLE001  (whatever is wrong with one file, the others are sent)
        reason = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
        return Result(path, "broken", f"{reason}: left where it is")
    if not report_follows and result.outcome in ("sent", "failed", "expired"):
        record.refresh(_run_of(path))
    return result


def _run_of(path: str) -> str:
    return os.path.dirname(os.path.dirname(path))


def _send_held(path: str, held: Held, server: Server, deadline: float, keep_s: float | None) -> Result:
    with open(held.fd, "rb", closefd=False) as file:
        data = file.read(MAX_BYTES)
    if len(data) >= MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    if not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
        raise ValueError("it could not be removed once sent (its directory is not writable for us), so it is not sent")
    envelope = Envelope.read(path[:-4] + ".json")
    message = email.message_from_bytes(data, policy=POLICY)
    if not isinstance(message, EmailMessage) or not message["Message-ID"]:
        raise ValueError("it is not a mail")
    run = _run_of(path)
    already = record.reached(run, path)
    to = [who for who in envelope.to if who not in already]
    if not to:
        _remove(path, held)
        return Result(path, "sent", "a server had taken it already", tuple(envelope.to))
    try:
        accepted = delivery.deliver(message, envelope.sender, to, server, deadline, directory=run, limit=envelope.limit)
    except delivery.DeliveryError as error:
        return _not_accepted(path, held, envelope, to, error, keep_s)
    return _accepted(path, held, envelope, to, accepted)


def _not_accepted(
    path: str, held: Held, envelope: Envelope, to: list[str], error: delivery.DeliveryError, keep_s: float | None
) -> Result:
    refused = {who: reason for who, reason in error.refused.items() if delivery.is_permanent(reason)}
    left = [who for who in to if who not in refused] if error.refused else to
    now = time.time()
    if error.kind == "permanent" or not left:
        return _give_up(path, held, envelope.after(str(error)), "failed", str(error), to)
    if keep_s is not None and now - (now if envelope.spooled_at is None else envelope.spooled_at) > keep_s:
        detail = f"{error}; nobody took it for too long (email.keep)"
        return _give_up(path, held, envelope.after(str(error)), "expired", detail, to)
    parted = _part(path, refused)
    _note_attempt(path, envelope.after(str(error), left, error.limit))
    return Result(path, "spooled", str(error), tuple(left), parted, stops=error.stops)


def _accepted(path: str, held: Held, envelope: Envelope, to: list[str], accepted: delivery.Accepted) -> Result:
    taken = [who for who in to if who not in accepted.refused]
    later = [who for who, reason in accepted.refused.items() if not delivery.is_permanent(reason)]
    details = [f"not attached: {', '.join(accepted.removed)}"] if accepted.removed else []
    details += [accepted.shortened] if accepted.shortened else []
    record.note(_run_of(path), path, "sent", taken, "; ".join(details))
    refused = _part(path, accepted.refused)
    never = [f"{who} ({reason})" for who, outcome, reason in refused if outcome == "failed"]
    details += [f"refused: {', '.join(never)}"] if never else []
    if later:
        reasons = "; ".join(dict.fromkeys(accepted.refused[who] for who in later))
        _note_attempt(path, envelope.after(f"some recipients were put off: {reasons}", later, accepted.limit))
        details.append(f"later: {', '.join(f'{who} ({accepted.refused[who]})' for who in later)}")
    else:
        _remove(path, held)
    return Result(path, "sent", "; ".join(details), tuple(taken), refused, accepted.removed, accepted.dropped)


def _part(path: str, refused: dict[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Note who does not get a mail, or not yet."""
    parted = [(who, "failed" if delivery.is_permanent(why) else "spooled", why) for who, why in refused.items()]
    for who, outcome, reason in parted:
        record.note(_run_of(path), path, outcome, [who], reason)
    return tuple(parted)


def _remove(path: str, held: Held) -> None:
    if not held.is_there():
        return
    os.unlink(held.place)
    with contextlib.suppress(OSError):
        os.unlink(path[:-4] + ".json")
    with contextlib.suppress(OSError):
        sync_directory(os.path.dirname(path))


def _note_attempt(path: str, envelope: Envelope) -> None:
    with contextlib.suppress(OSError):  # it is only tried sooner
        envelope.write(path[:-4] + ".json")


def _give_up(path: str, held: Held, envelope: Envelope, outcome: str, detail: str, to: list[str]) -> Result:
    """Give a mail up: it stays, under a name that nobody sends."""
    record.note(_run_of(path), path, outcome, to, detail)
    _note_attempt(path, envelope.model_copy(update={"last_error": f"given up: {envelope.last_error}"}))
    kept = f"{path[:-4]}.{outcome}"
    os.rename(held.place, kept)
    sync_directory(os.path.dirname(path))
    return Result(kept, outcome, detail, tuple(to))


def is_due(path: str) -> bool:
    """Whether enough time has gone by since the last attempt; what cannot be read is due, so that it is told."""
    try:
        envelope = Envelope.read(path[:-4] + ".json")
    except Exception:  # noqa: BLE001  (whatever is wrong with one file)
        return True
    if not envelope.attempts:
        return True
    pause = min(FIRST_PAUSE_S * 2.0 ** min(envelope.attempts - 1, 30), LONGEST_PAUSE_S)
    since = time.time() - (envelope.last_try_at or 0.0)
    return not 0 <= since < pause  # a clock that was set back keeps nothing waiting


def places(log_directories: Iterable[str]) -> list[str]:
    """Where mails may wait: log directories, and our own temporary ones that stood in for one that failed.

    Args:
        log_directories: Where run directories are kept.
    """
    return list(dict.fromkeys([*log_directories, *refuge.left(os.environb)]))


def waiting(log_directory: str) -> list[str]:
    """The spooled mails of all runs in a log directory, oldest run first.

    Args:
        log_directory: Where run directories are kept.
    """
    return list(reversed([path for mails in _newest_first(log_directory) for path in reversed(mails)]))


def _newest_first(log_directory: str) -> Iterator[list[str]]:
    """The spooled mails of each run, those among them that somebody else has claimed."""
    try:
        runs = sorted(os.listdir(log_directory), reverse=True)
    except OSError:
        return
    for run in runs:
        directory = os.path.join(log_directory, run, DIRECTORY)
        if os.path.islink(os.path.join(log_directory, run)):
            continue
        names = _listed(directory)
        taken = claim.claimed(directory, names)
        yield sorted([*(os.path.join(directory, name) for name in names if name.endswith(".eml")), *taken])


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
    """Send the spooled mails of a log directory whose time has come, newest run first, while the server can be had.

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
            if results[-1].stops:
                return results  # the others would only wait as well
    return results


def retry_all(log_directories: Iterable[str], server: Server, deadline: float, keep_s: float | None) -> list[Result]:
    """Send what waits in several log directories and in our own temporary ones, as ``retry`` does.

    Args:
        log_directories: Where run directories are kept.
        server: Where to.
        deadline: When to be done, on the monotonic clock.
        keep_s: How long to keep what nobody takes, in seconds; None for ever.
    """
    results: list[Result] = []
    for place in places(log_directories):
        results += retry(place, server, deadline, keep_s)
        if time.monotonic() >= deadline or any(result.stops for result in results):
            break
    return results
