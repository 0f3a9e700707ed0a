"""Composing the mail: one structured message that stands alone, in plain text and in HTML."""

from __future__ import annotations

import email.policy
import hashlib
import html as markup
import json
import socket
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jinja2

from gpualert.report import wording
from gpualert.report.page import facts_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.artifacts import Artifact
    from gpualert.report.quotes import Quotes

SUBJECT_MAX = 180
ROOM_FOR_NOTE = 2000
POLICY = email.policy.SMTP.clone(max_line_length=78)


def one_line(text: str) -> str:
    """``text`` without line ends and control characters, so that no header can be smuggled in."""
    return " ".join(wording.printable(text).split())


def subject(report: dict[str, Any]) -> str:
    """``[gpualert] llama-7b failed: cuda_oom on rank 3 (gpu-17) after 3h12m``.

    Args:
        report: The report.
    """
    run, end, diagnosis = report["run"], report["exit"], report["diagnosis"]
    name = one_line(str(run.get("name") or run.get("run_id") or "a run"))[:80]
    where = f" on rank {run['rank']}" if isinstance(run.get("rank"), int) else ""
    node = run.get("node") or (run.get("host") if where else None)
    where += f" ({one_line(str(node))[:60]})" if node else ""
    took = "" if end.get("interrupted") else f" after {wording.duration(end.get('duration_s'))}"
    if diagnosis["class"] == "success":
        odd = " with warnings" if diagnosis.get("warnings") else ""
        return f"[gpualert] {name} finished{odd}{where}{took}"[:SUBJECT_MAX]
    return f"[gpualert] {name} failed: {one_line(diagnosis['class'])}{where}{took}"[:SUBJECT_MAX]


def message_id(report: dict[str, Any], sender: str) -> str:
    """An id that is the same whenever the same run is reported, so that a duplicate can be recognised.

    Args:
        report: The report.
        sender: The sender's address.
    """
    run_id = str(report["run"].get("run_id") or report["made_at"])
    digest = hashlib.sha256(run_id.encode("utf-8", "replace")).hexdigest()[:32]
    domain = sender.rpartition("@")[2]
    domain = domain if domain.isascii() and domain.replace(".", "").replace("-", "").isalnum() else "gpualert.invalid"
    return f"<{digest}@{domain}>"


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


@lru_cache(maxsize=1)
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("gpualert.notify"),
        autoescape=jinja2.select_autoescape(enabled_extensions=("html",), default=False),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def compose(
    report: dict[str, Any],
    quotes: Quotes,
    artifacts: Sequence[Artifact],
    sender: str,
    recipients: Sequence[str],
    directory: str,
) -> EmailMessage:
    """The mail about a run.

    Args:
        report: The report.
        quotes: What is quoted from the log.
        artifacts: What goes along, each with its fate; the log is one of them.
        sender: Whom it comes from.
        recipients: Whom it goes to.
        directory: The run directory.
    """
    root = report["diagnosis"]["root"]
    shown = {
        "report": report,
        "quotes": quotes,
        "root_line": root["line"] if root else None,
        "ending": wording.ending(report["exit"]),
        "duration": wording.duration(report["exit"].get("duration_s")),
        "place": wording.place(report["run"]),
        "facts": facts_table(report),
        "artifacts": artifacts,
        "directory": wording.printable(directory),
        "size": wording.size,
        "title": subject(report),
    }
    message = EmailMessage(POLICY)
    message["Subject"] = subject(report)
    message["From"] = ascii_domain(sender)
    message["To"] = ", ".join(map(ascii_domain, recipients))
    message["Date"] = format_datetime(datetime.now(UTC))
    message["Message-ID"] = message_id(report, sender)
    message["Auto-Submitted"] = "auto-generated"
    message["X-GPUAlert-Class"] = one_line(report["diagnosis"]["class"])[:80]
    message["X-GPUAlert-Run"] = one_line(str(report["run"].get("run_id") or ""))[:120]
    message.set_content(_encodable(_templates().get_template("mail.txt").render(shown)), cte="quoted-printable")
    html = _encodable(_templates().get_template("mail.html").render(shown))
    message.add_alternative(html, subtype="html", cte="quoted-printable")
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


def _encodable(text: str) -> str:
    """``text`` without lone surrogates, which no mail can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


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
