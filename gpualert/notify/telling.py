"""Telling whom the settings name about one run, and recording what became of it."""

from __future__ import annotations

import email.errors
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from email.headerregistry import Address
from typing import TYPE_CHECKING, Any

from gpualert.notify import delivery, message, spool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from email.message import EmailMessage

    from gpualert.artifacts import Artifact
    from gpualert.config import Settings
    from gpualert.report.quotes import Quotes
    from gpualert.supervisor.redaction import Redaction

PREFIX = "gpualert: "
NOBODY = "undisclosed-recipients:;"
"""RFC 5322's way to name no recipient, for a mail that is only printed."""


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one notification.

    Attributes:
        channel: ``email``.
        to: Whom it is for.
        outcome: ``sent``, ``spooled``, ``failed``, ``broken``, ``skipped`` or ``printed``.
        detail: Why.
        at: When, RFC 3339.
    """

    channel: str
    to: tuple[str, ...]
    outcome: str
    detail: str
    at: str

    def as_dict(self) -> dict[str, Any]:
        """The entry in ``report.json``."""
        return {
            "channel": self.channel,
            "to": list(self.to),
            "outcome": self.outcome,
            "detail": self.detail,
            "at": self.at,
        }

    def summary(self) -> str:
        """A few words for the terminal."""
        if self.outcome == "sent":
            return f"mailed to {', '.join(self.to)}"
        if self.outcome == "spooled":
            return f"mail spooled ({self.detail}); gpualert flush sends it"
        return "" if self.outcome == "printed" else f"mail {self.outcome} ({self.detail})"


def valid_address(text: str) -> str | None:
    """``text`` as an address, or None when it is none.

    Args:
        text: ``name@example.org``.
    """
    text = text.strip()
    if not text.isprintable() or text.count("@") != 1 or any(c in text for c in ' ,;<>()[]\\"'):
        return None
    local, _, domain = text.partition("@")
    if not local or not domain:
        return None
    if text.isascii():
        try:
            Address(addr_spec=text)
        except (email.errors.MessageError, ValueError, IndexError):
            return None
    return text


def tell(
    directory: str,
    report: dict[str, Any],
    quotes: Quotes,
    settings: Settings,
    artifacts: Sequence[Artifact],
    mask: Redaction,
    deadline: float,
    say: Callable[[str], None],
) -> list[Told]:
    """Mail a report: into the spool first, to the server second.

    Args:
        directory: The run directory.
        report: The report; the fate of an artifact that the server is too small for is changed in it.
        quotes: What is quoted from the log.
        settings: The settings.
        artifacts: What goes along.
        mask: Masks secrets.
        deadline: When to be done, on the monotonic clock.
        say: Prints on the person's terminal, for ``--dry-run``.
    """
    wanted = list(dict.fromkeys(settings.email.to))
    recipients = [address for address in map(valid_address, wanted) if address is not None]
    told = [
        _told((mask.mask(message.one_line(text)),), "skipped", "is not a mail address")
        for text in wanted
        if valid_address(text) is None
    ]
    if not recipients and not settings.dry_run:
        return told
    sender = settings.email.from_ or message.default_sender()
    if valid_address(sender) is None:
        sender = message.default_sender()
    mail = message.compose(report, quotes, artifacts, sender, recipients or [NOBODY], directory)
    if settings.dry_run:
        say(printed(mail))
        return [*told, _told(tuple(recipients), "printed", "--dry-run")]
    server = delivery.Server.from_settings(settings)
    try:
        path = spool.put(directory, mail, sender, recipients)
    except OSError as error:
        return [*told, _without_spool(mail, sender, recipients, server, deadline, error)]
    result = spool.send(path, server, deadline)
    for entry in report["artifacts"]:
        if (
            os.path.basename(entry["path"]) in result.removed
            or os.path.basename(entry["path"]) + ".gz" in result.removed
        ):
            entry.update(fate="over_server_limit", note=f"taken off again: {server.host} takes no mail of that size")
    outcome = "spooled" if result.outcome == "busy" else result.outcome
    detail = mask.mask(result.detail)
    return [*told, _told(result.to or tuple(recipients), outcome, detail)]


def _without_spool(
    mail: EmailMessage, sender: str, recipients: list[str], server: delivery.Server, deadline: float, why: OSError
) -> Told:
    """Send at once what cannot be kept."""
    try:
        accepted = delivery.deliver(mail, sender, recipients, server, deadline)
    except delivery.DeliveryError as error:
        return _told(tuple(recipients), "failed", f"{error}; and it could not be spooled ({why.strerror})")
    refused = "; ".join(f"{who} refused ({reason})" for who, reason in accepted.refused.items())
    return _told(tuple(who for who in recipients if who not in accepted.refused), "sent", refused)


def _told(to: tuple[str, ...], outcome: str, detail: str) -> Told:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Told("email", to, outcome, detail, now)


def printed(mail: EmailMessage) -> str:
    """A mail as lines for a terminal: headers, text, and a list of the attachments."""
    lines = [f"{name}: {mail[name]}" for name in ("From", "To", "Subject")]
    body = mail.get_body(("plain",))
    lines += ["", *(body.get_content().splitlines() if body is not None else [])]
    for part in mail.iter_attachments():
        size = len(part.get_content()) if part.get_content_maintype() != "multipart" else 0
        lines.append(f"[attached: {part.get_filename()}, {part.get_content_type()}, {size} bytes]")
    return "".join(f"{PREFIX}| {line}\n" for line in lines)
