"""The mail's way: into the spool first, to the server second."""

from __future__ import annotations

import email.errors
import os
from email.headerregistry import Address
from typing import TYPE_CHECKING

from gpualert.notify import delivery, message, spool
from gpualert.notify.notice import one_line
from gpualert.notify.outcome import Told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from email.message import EmailMessage

    from gpualert.artifacts import Artifact
    from gpualert.config import Settings
    from gpualert.notify.notice import Notice
    from gpualert.supervisor.redaction import Redaction

PREFIX = "gpualert: "
NOBODY = "undisclosed-recipients:;"
"""RFC 5322's way to name no recipient, for a mail that is only printed."""


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


def sender_of(settings: Settings) -> str:
    """Whom mails come from: as configured, else gpualert on this host.

    Args:
        settings: The settings.
    """
    sender = settings.email.from_ or ""
    return sender if valid_address(sender) else message.default_sender()


def mail(
    directory: str,
    notice: Notice,
    settings: Settings,
    artifacts: Sequence[Artifact],
    mask: Redaction,
    deadline: float,
    say: Callable[[str], None],
) -> list[Told]:
    """Mail a notice.

    Args:
        directory: The run directory.
        notice: What to say; the fate of an artifact that the server is too small for is changed in its report.
        settings: The settings.
        artifacts: What goes along.
        mask: Masks secrets.
        deadline: When to be done, on the monotonic clock.
        say: Prints on the person's terminal, for ``--dry-run``.
    """
    wanted = list(dict.fromkeys(settings.email.to))
    recipients = [address for address in map(valid_address, wanted) if address is not None]
    told = [
        Told("email", (mask.mask(one_line(text)),), "skipped", "is not a mail address")
        for text in wanted
        if valid_address(text) is None
    ]
    if not recipients and not settings.dry_run:
        return told
    sender = sender_of(settings)
    composed = message.compose(notice, artifacts, sender, recipients or [NOBODY])
    if settings.dry_run:
        say(printed(composed))
        return [*told, Told("email", tuple(recipients), "printed", "--dry-run")]
    server = delivery.Server.from_settings(settings)
    # What a later one overtakes shall not wait beside it: all progress mails of a run have one name.
    name = notice.key if notice.kind == "ended" else notice.kind
    try:
        path = spool.put(directory, composed, sender, recipients, name)
    except OSError as error:
        return [*told, _without_spool(composed, sender, recipients, server, deadline, error)]
    result = spool.send(path, server, deadline)
    for entry in notice.report["artifacts"]:
        base = os.path.basename(entry["path"])
        if base in result.removed or base + ".gz" in result.removed or entry.get("inside") in result.removed:
            entry.update(fate="over_server_limit", note=f"taken off again: {server.host} takes no mail of that size")
    outcome = "spooled" if result.outcome == "busy" else result.outcome
    return [*told, Told("email", result.to or tuple(recipients), outcome, mask.mask(result.detail))]


def _without_spool(
    composed: EmailMessage, sender: str, recipients: list[str], server: delivery.Server, deadline: float, why: OSError
) -> Told:
    """Send at once what cannot be kept."""
    try:
        accepted = delivery.deliver(composed, sender, recipients, server, deadline)
    except delivery.DeliveryError as error:
        return Told("email", tuple(recipients), "failed", f"{error}; and it could not be spooled ({why.strerror})")
    refused = "; ".join(f"{who} refused ({reason})" for who, reason in accepted.refused.items())
    return Told("email", tuple(who for who in recipients if who not in accepted.refused), "sent", refused)


def printed(composed: EmailMessage) -> str:
    """A mail as lines for a terminal: headers, text, and a list of the attachments."""
    lines = [f"{name}: {composed[name]}" for name in ("From", "To", "Subject")]
    body = composed.get_body(("plain",))
    lines += ["", *(body.get_content().splitlines() if body is not None else [])]
    for part in composed.iter_attachments():
        size = len(part.get_content()) if part.get_content_maintype() != "multipart" else 0
        lines.append(f"[attached: {part.get_filename()}, {part.get_content_type()}, {size} bytes]")
    return "".join(f"{PREFIX}| {line}\n" for line in lines)
