"""The notice as a mail: one structured message that stands alone, in plain text and in HTML."""

from __future__ import annotations

import email.policy
import html as markup
import json
import socket
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import TYPE_CHECKING

from gpualert.notify.notice import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.artifacts import Artifact
    from gpualert.notify.notice import Notice

ROOM_FOR_NOTE = 2000
POLICY = email.policy.SMTP.clone(max_line_length=78)


def domain_of(sender: str) -> str:
    """The domain that our ids carry.

    Args:
        sender: The sender's address.
    """
    domain = sender.rpartition("@")[2]
    return domain if domain.isascii() and domain.replace(".", "").replace("-", "").isalnum() else "gpualert.invalid"


def ascii_domain(address: str) -> str:
    """An address whose domain is in the form that every server takes (IDNA)."""
    local, at, domain = address.rpartition("@")
    try:
        return local + at + domain.encode("idna").decode("ascii")
    except UnicodeError:
        return address


def default_sender() -> str:
    """``gpualert@<host>``, without asking any name server."""
    host = "".join(c for c in socket.gethostname() if c.isascii() and (c.isalnum() or c in ".-")).strip(".-")
    return f"gpualert@{host or 'localhost'}"


def compose(notice: Notice, artifacts: Sequence[Artifact], sender: str, recipients: Sequence[str]) -> EmailMessage:
    """The mail.

    Args:
        notice: What it says.
        artifacts: What goes along, each with its fate; the log is one of them.
        sender: Whom it comes from.
        recipients: Whom it goes to.
    """
    report, domain = notice.report, domain_of(sender)
    message = EmailMessage(POLICY)
    message["Subject"] = notice.subject
    message["From"] = ascii_domain(sender)
    message["To"] = ", ".join(map(ascii_domain, recipients))
    message["Date"] = format_datetime(datetime.now(UTC))
    message["Message-ID"] = f"<{notice.key}@{domain}>"
    # A thread needs no first message: programs group by the id that all of a job's mails refer to (RFC 5256, 3).
    message["In-Reply-To"] = message["References"] = f"<job-{notice.thread}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-GPUAlert-Event"] = notice.event
    message["X-GPUAlert-Run"] = one_line(str(report["run"].get("run_id") or ""))[:120]
    if notice.kind == "ended":
        message["X-GPUAlert-Class"] = one_line(report["diagnosis"]["class"])[:80]
    message.set_content(notice.text, cte="quoted-printable")
    message.add_alternative(notice.html, subtype="html", cte="quoted-printable")
    if notice.kind != "ended":
        return message
    attached = json.dumps(report, ensure_ascii=False, indent=1).encode("utf-8", "replace")
    message.add_attachment(attached, maintype="application", subtype="json", filename="report.json")
    for artifact in artifacts:
        if artifact.content is not None:
            maintype, _, subtype = artifact.content_type.partition("/")
            if maintype in ("message", "multipart"):
                maintype, subtype = "application", "octet-stream"
            name = one_line(artifact.name)[:150] or "artifact"
            message.add_attachment(artifact.content, maintype=maintype, subtype=subtype, filename=name)
    return message


def shrink(message: EmailMessage, limit: int) -> list[str]:
    """Take attachments off a mail, the largest first, until it fits; what went is named in its text.

    Args:
        message: The mail; changed in place.
        limit: How many bytes it may have.

    Returns:
        The names of the attachments that were taken off.
    """
    size = len(message.as_bytes(policy=POLICY)) + ROOM_FOR_NOTE
    attachments = [part for part in message.iter_attachments() if not part.is_multipart()]
    attachments.sort(key=lambda part: len(part.get_payload() or ""), reverse=True)
    gone: list[EmailMessage] = []
    while size > limit and attachments:
        largest = attachments.pop(0)
        size -= len(largest.as_bytes(policy=POLICY))
        gone.append(largest)
    payload = message.get_payload()
    if gone and isinstance(payload, list):
        message.set_payload([part for part in payload if all(part is not one for one in gone)])
    removed = [str(part.get_filename() or "attachment") for part in gone]
    if removed:
        said = f"Not attached, because the server takes at most {limit} bytes: {', '.join(removed)}"
        for kind in ("plain", "html"):
            body = message.get_body((kind,))
            if body is not None:
                old = body.get_content()
                note = f"\n{said}\n" if kind == "plain" else f"<p>{markup.escape(said)}</p>"
                body.set_content(old + note, subtype=kind, cte="quoted-printable")
    return removed
