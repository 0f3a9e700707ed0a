"""Telling of an incident: an Event and a mark on the job, one mail; each at most once more after a crash in between."""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpualert.cluster import event
from gpualert.cluster.apierror import ApiError
from gpualert.notify import anybody
from gpualert.report import making
from gpualert.watch import marks

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpualert.cluster.api import Api
    from gpualert.config import Settings
    from gpualert.supervisor.redaction import Redaction
    from gpualert.watch.marks import Mark, Marked
    from gpualert.watch.owners import Owner

MAIL_S = 30.0
"""How long telling of one incident may take."""
RECIPIENTS = "gpualert.dev/email-to"


@dataclass(slots=True)
class Teller:
    """Tells of incidents.

    Attributes:
        api: The API server.
        settings: The settings.
        mask: Masks secrets.
        spool: Where mails are kept until a server has taken them.
        say: Takes a line for people.
        cluster: What this cluster is called, in mails.
    """

    api: Api
    settings: Settings
    mask: Redaction
    spool: str
    say: Callable[[str], None]
    cluster: str | None = None

    def event(self, owner: Owner, uid: str, report: dict[str, Any]) -> None:
        """Write the Event on the job; the second time it is there already.

        Args:
            owner: The job.
            uid: Its uid.
            report: The incident's report.
        """
        told = report["incident"]
        digest = hashlib.sha256(f"{told['id']} {told['revision']}".encode()).hexdigest()[:16]
        body = event.body(
            {"name": f"{owner.name[:200]}.gpualert-{digest}", "namespace": owner.namespace},
            {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "namespace": owner.namespace,
                "name": owner.name,
                "uid": uid,
            },
            report["diagnosis"],
            "gpualert.dev/watch",
            "gpualert-watch",
        )
        try:
            self.api.post(f"/api/v1/namespaces/{owner.namespace}/events", body, repeatable=True)
        except ApiError as error:
            if error.status not in (404, 409):  # the namespace goes; it is there already
                self.say(f"no Event on {owner} ({error})")

    def mark(self, marked: Marked, mark: Mark, report: dict[str, Any] | None, *, pending: bool) -> Marked | None:
        """Write a mark.

        Args:
            marked: The object as it was read.
            mark: What to mark.
            report: The incident's report.
            pending: It has still to be told.

        Returns:
            The object as it is now; None where somebody else was quicker, or the object is gone.

        Raises:
            ApiError: It cannot be written for another reason.
        """
        try:
            return marks.write(self.api, marked, mark, report, pending=pending)
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise

    def mail(self, report: dict[str, Any], recipients: str | None) -> bool:
        """Tell whom the settings and the job name.

        Args:
            report: The report; its notifications are filled in.
            recipients: Further mail addresses, with commas between them, as an annotation gives them.

        Returns:
            Whether that is done; False where a mail waits for its server.
        """
        from gpualert.notify import tell  # noqa: PLC0415  (email and smtplib are slow to import)

        settings = self.settings_for(recipients)
        if not making.wanted(report, settings) or not anybody(settings):
            return True
        if self.cluster:
            report["run"]["host"] = self.cluster
        run, kind = report["run"], str(report["incident"]["kind"]).lower()
        where = f"kubectl -n {run['namespace']} describe {kind} {run['name']}"
        told = tell(
            self.spool, "ended", report, settings, [], self.mask, time.monotonic() + MAIL_S, self.say, where=where
        )
        report["notifications"] = [entry.as_dict() for entry in told]
        for entry in told:
            if entry.outcome not in ("sent", "printed"):
                self.say(f"{report['run']['namespace']}/{report['run']['name']}: {entry.summary()}")
        return not any(entry.channel == "email" and entry.outcome == "spooled" for entry in told)

    def settings_for(self, recipients: str | None) -> Settings:
        """The settings, with further recipients.

        Args:
            recipients: Further mail addresses, with commas between them, as an annotation gives them.
        """
        more = [part.strip() for part in (recipients or "").split(",") if part.strip()]
        if not more:
            return self.settings
        email = self.settings.email.model_copy(update={"to": [*dict.fromkeys([*self.settings.email.to, *more])]})
        return self.settings.model_copy(update={"email": email})


def next_mark(before: Mark | None, attempt: int, report: dict[str, Any]) -> Mark | None:
    """The mark of a verdict that has not been told; None where it has been.

    Args:
        before: What has been told of the attempt.
        attempt: Which attempt.
        report: The report; the revision that it is told as is written into it.
    """
    roots = tuple(sorted(str(row["name"]) for row in report["ranks"] if row["role"] == "root"))
    cls = report["diagnosis"]["class"]
    mark = marks.Mark(attempt, report["incident"]["id"], cls, roots)
    if before is None:
        return mark
    if before.state == "telling":
        # Whoever was at it was cut off: it is told once more, under the same Message-ID.
        report["incident"]["revision"] = before.revision
        return replace(mark, revision=before.revision)
    if (before.cls, before.roots) == (cls, roots):
        return None
    report["incident"]["revision"] = before.revision + 1
    return replace(mark, revision=before.revision + 1)


@contextlib.contextmanager
def quietly(say: Callable[[str], None], what: str) -> Any:
    """A step whose failure is said, and stops no other."""
    try:
        yield
    except ApiError as error:
        say(f"{what}: {error}")
    except OSError as error:
        say(f"{what}: {error.strerror or error}")
