"""The mail's way: into the spool first, to the server second."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpualert.notify import address, delivery, fitting, message, record, spool
from gpualert.notify.notice import one_line
from gpualert.notify.outcome import Told
from gpualert.rundir.writer import EXIT

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
    """The address in ``text``, or None when there is none.

    Args:
        text: ``name@example.org``, or ``Jürgen Müller <name@example.org>``.
    """
    mailbox = address.parse(text)
    return mailbox.address if mailbox is not None else None


def sender_of(settings: Settings) -> str:
    """Whom mails come from, the address alone: as configured, else gpualert on this host.

    Args:
        settings: The settings.
    """
    return valid_address(settings.email.from_ or "") or message.default_sender()


def mail(
    directory: str,
    notice: Notice,
    settings: Settings,
    artifacts: Sequence[Artifact],
    mask: Redaction,
    deadline: float,
    say: Callable[[str], None],
) -> list[Told]:
    """Mail a notice; whom the same notice has reached already is left out.

    Args:
        directory: The run directory.
        notice: What to say; the fate of an artifact that does not fit into the mail is changed in its report.
        settings: The settings.
        artifacts: What goes along, in the order of the report.
        mask: Masks secrets.
        deadline: When to be done, on the monotonic clock.
        say: Prints on the person's terminal, for ``--dry-run``.
    """
    wanted = list(dict.fromkeys(address.whole(settings.email.to)))
    mailboxes = {box.address: text for text in wanted if (box := address.parse(text)) is not None}
    told = [
        Told("email", (mask.mask(one_line(text)),), "skipped", "is not a mail address")
        for text in wanted
        if valid_address(text) is None
    ]
    if not mailboxes and not settings.dry_run:
        return told
    sender = sender_of(settings)
    shown_sender = settings.email.from_ if valid_address(settings.email.from_ or "") else None
    composed = message.compose(notice, artifacts, shown_sender or sender, list(mailboxes.values()) or [NOBODY])
    composed = _within_budget(composed, notice, settings, directory)
    if settings.dry_run:
        say(printed(composed))
        return [*told, Told("email", tuple(mailboxes), "printed", "--dry-run")]
    server = delivery.Server.from_settings(settings)
    # What a later one overtakes shall not wait beside it: all progress mails of a run have one name.
    is_last = notice.kind == "ended"
    name = notice.key if is_last else notice.kind
    known = record.settled(directory, name) if is_last else {}
    told += [Told("email", (who,), known[who]["outcome"], known[who]["detail"]) for who in mailboxes if who in known]
    recipients = [who for who in mailboxes if who not in known]
    if not recipients:
        return told
    try:
        path = spool.put(directory, composed, sender, recipients, name, record.PASSING if is_last else ())
    except OSError as error:
        return [*told, _without_spool(composed, sender, recipients, server, deadline, error)]
    if not is_last and os.path.exists(os.path.join(directory, EXIT)):
        spool.drop(directory, [name])
        return [*told, Told("email", tuple(recipients), "skipped", "the run has ended meanwhile")]
    result = spool.send(path, server, deadline, report_follows=True)
    limit = fitting.Limit(None, f"{server.host} takes no mail of that size")
    fitting.mark(notice.report, result.dropped, limit.fate, limit.note)
    outcome = "spooled" if result.outcome == "busy" else result.outcome
    parted = {who for who, _, _ in result.refused}
    to = tuple(who for who in result.to or recipients if who not in parted)
    entries = [Told("email", to, outcome, mask.mask(result.detail))] if to else []
    entries += [Told("email", (who,), fate, mask.mask(f"{who}: {why}")) for who, fate, why in result.refused]
    return [*told, *entries]


def _within_budget(composed: EmailMessage, notice: Notice, settings: Settings, directory: str) -> EmailMessage:
    """The mail as large as it may be (``artifacts.max_total``), whatever its text and the report take."""
    most = settings.artifacts.max_total
    limit = fitting.Limit(most, f"a mail may have {most} bytes (artifacts.max_total)", "over_total")
    fitted = fitting.fit(composed, limit, directory=directory, utf8=True)
    fitting.mark(notice.report, fitted.dropped, limit.fate, limit.note)
    return fitted.message


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
        lines.append(f"[attached: {one_line(str(part.get_filename()))}, {part.get_content_type()}, {size} bytes]")
    return "".join(f"{PREFIX}| {line}\n" for line in lines)
