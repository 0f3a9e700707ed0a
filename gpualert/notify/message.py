"""The notice as a mail: one structured message that stands alone, in plain text and in HTML."""

from __future__ import annotations

import dataclasses
import email.policy
import json
import os
import socket
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import TYPE_CHECKING

from gpualert.notify import address
from gpualert.notify.notice import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from email.headerregistry import Address

    from gpualert.artifacts import Artifact
    from gpualert.notify.notice import Notice

REPORT_NAME = "report.json"
NUMBER_HEADER = "X-GPUAlert-Artifact"
"""In a part of a mail: which of the report's artifacts it is, from 0."""
POLICY = email.policy.SMTP.clone(max_line_length=78)


def domain_of(sender: str) -> str:
    """The domain that our ids carry.

    Args:
        sender: The sender's address.
    """
    domain = sender.rpartition("@")[2]
    return domain if domain.isascii() and domain.replace(".", "").replace("-", "").isalnum() else "gpualert.invalid"


def default_sender() -> str:
    """``gpualert@<host>``, without asking any name server."""
    host = "".join(c for c in socket.gethostname() if c.isascii() and (c.isalnum() or c in ".-")).strip(".-")
    return f"gpualert@{host or 'localhost'}"


def compose(notice: Notice, artifacts: Sequence[Artifact], sender: str, recipients: Sequence[str]) -> EmailMessage:
    """The mail.

    Args:
        notice: What it says.
        artifacts: What goes along, each with its fate, in the report's order; the log is one of them.
        sender: Whom it comes from, as an address or ``Name <address>``.
        recipients: Whom it goes to, each the same.
    """
    report, domain = notice.report, domain_of(address.bare(sender))
    message = EmailMessage(POLICY)
    message["Subject"] = notice.subject
    message["From"] = _named([sender])
    message["To"] = _named(recipients)
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
        return _with_texts(message, notice)
    attached = json.dumps(report, ensure_ascii=False, indent=1).encode("utf-8", "replace")
    message.add_attachment(attached, maintype="application", subtype="json", filename=REPORT_NAME)
    for number, artifact in enumerate(artifacts):
        if artifact.content is not None:
            maintype, _, subtype = artifact.content_type.partition("/")
            if maintype in ("message", "multipart"):
                maintype, subtype = "application", "octet-stream"
            name = file_name(artifact.name)
            message.add_attachment(
                artifact.content,
                maintype=maintype,
                subtype=subtype,
                filename=name,
                headers=[f"{NUMBER_HEADER}: {number}"],  # names may be alike
            )
    return _with_texts(message, notice)


def _with_texts(message: EmailMessage, notice: Notice) -> EmailMessage:
    """The mail with the texts that belong to the notice itself."""
    for name, text in notice.attached:
        message.add_attachment(text, subtype="plain", cte="quoted-printable", filename=name)
    return message


def _named(mailboxes: Sequence[str]) -> str | list[Address]:
    """The value of a header with addresses."""
    parsed = [address.parse(text) for text in mailboxes]
    if not all(parsed):
        return ", ".join(mailboxes)
    return [mailbox.header() for mailbox in parsed if mailbox is not None]


def file_name(text: str) -> str:
    """``text`` as the file name of an attachment.

    Args:
        text: The name of a file.
    """
    return one_line(text)[-150:] or "artifact"


def with_own_names(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """The artifacts, each that is attached under a name of its own: three ``plot.png`` can be told apart.

    Args:
        artifacts: What goes along; of several that are called the same, the later ones get their directory's name too.
    """
    taken, named = {REPORT_NAME, f"{REPORT_NAME}.gz"}, []
    for artifact in artifacts:
        if artifact.content is None:
            named.append(artifact)
            continue
        name = file_name(artifact.name)
        parent = os.path.dirname(artifact.path).strip("./").replace("/", "_")
        if name.lower() in taken and parent:
            name = file_name(f"{parent}_{name}")
        stem, ending, count = *os.path.splitext(name), 2
        while name.lower() in taken:
            name, count = f"{stem}-{count}{ending}", count + 1
        taken.add(name.lower())
        if name == file_name(artifact.name):
            named.append(artifact)
        else:
            note = f"{artifact.note}; attached as {name}" if artifact.note else f"attached as {name}"
            named.append(dataclasses.replace(artifact, name=name, note=note))
    return named
