"""One report and one mail for all ranks of a job: who makes them, and when.

Whoever ends looks around. A rank whose peers still live leaves it to them; the last one makes the incident. When a rank
has failed and others live on (a collective that nobody leaves), one that lives makes it once the group has stood still;
should the verdict change when all have ended, an update follows. Whoever makes it holds ``claim-<revision>``, which
only one can create; a claim whose holder died is taken over.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import Rulebook
from gpualert.group import members, repeats
from gpualert.incident import judge
from gpualert.incident.naming import printed
from gpualert.report import attempts, incident, making
from gpualert.rundir import survivor
from gpualert.rundir.writer import REPORT, make_directories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpualert.config import Settings
    from gpualert.group.members import Members
    from gpualert.incident.model import Verdict
    from gpualert.supervisor.redaction import Redaction

CLAIM = "claim-"
CLAIM_STALE_S = 60.0
PATIENCE_S = 1.0
"""How long to wait before looking again at ranks that may be gone."""
REVISIONS_MAX = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a look at a group.

    Attributes:
        said: In a few words, for a person; empty where there is nothing to say.
        report: The incident's report, where this look made one.
        directory: Where it is.
    """

    said: str = ""
    report: dict[str, Any] | None = None
    directory: str = ""


def look(
    directory: str,
    settings: Settings,
    mask: Redaction,
    deadline: float,
    say: Callable[[str], None],
    *,
    still: bool = False,
) -> Outcome:
    """Look at a group, and tell of it if it is this process's turn.

    Args:
        directory: The group's directory of one attempt.
        settings: The settings.
        mask: Masks secrets.
        deadline: When to be done, on the monotonic clock.
        say: Prints on the person's terminal, for ``--dry-run``.
        still: The group has stood still: do not wait for those that live.

    Raises:
        OSError: The directory cannot be read or written.
    """
    while True:
        group = members.read(directory)
        if not group.failed:
            return Outcome()
        pending = [member for member in group.listed if member.lives or member.at_work]
        unclear = [member for member in pending if member.quiet_s > 2 * members.STALE_S / 3]
        if not still and not pending and group.gathering and time.monotonic() + PATIENCE_S <= deadline:
            time.sleep(PATIENCE_S)
            continue
        if still or not pending:
            return _tell(group, settings, mask, deadline, say)
        if len(unclear) < len(pending) or time.monotonic() + PATIENCE_S > deadline:
            ranks = "rank is" if len(pending) == 1 else "ranks are"
            return Outcome(f"told together with the other ranks, {len(pending)} {ranks} still there")
        time.sleep(PATIENCE_S)


def job_of(group: Members, revision: int = 0) -> incident.Job:
    """Whose incident it is.

    Args:
        group: The group.
        revision: How often its verdict has changed.
    """
    run = min(group.listed, key=lambda member: member.rank).registered
    name = str(run.get("job") or run.get("name") or run.get("group") or "job")
    attempt = run.get("attempt")
    began = min((str(member.registered.get("run_id") or "") for member in group.listed), default="")
    return incident.Job(
        f"{run.get('group')}-{began}",
        name,
        str(run.get("launcher") or "") or None,
        str(run["namespace"]) if run.get("namespace") else None,
        attempt if isinstance(attempt, int) else 0,
        os.path.join(group.directory, repeats.DIRECTORY),
        revision,
    )


def verdict_of(group: Members, rules: Rulebook) -> Verdict:
    """What happened to a group.

    Args:
        group: The group.
        rules: Classes and rules.
    """
    ranks = [members.rank_of(member) for member in group.listed]
    return judge(ranks, members.hardware_of(group, rules), expected=group.expected, rules=rules)


def report_of(group: Members, verdict: Verdict, mask: Redaction, revision: int = 0) -> dict[str, Any]:
    """The group's report.

    Args:
        group: The group.
        verdict: What happened to it.
        mask: Masks secrets.
        revision: How often the verdict has changed.
    """
    first = next(iter(verdict.roots), None)
    quoted = next((m for m in group.listed if first is not None and m.rank == first.rank), None)
    quotes = members.quotes_of(quoted, mask) if quoted is not None else None
    return incident.build(
        job_of(group, revision), verdict, mask, quotes=quotes, trouble=[str(line) for line in group.troubles]
    )


def _tell(group: Members, settings: Settings, mask: Redaction, deadline: float, say: Callable[[str], None]) -> Outcome:
    verdict = verdict_of(group, Rulebook.load())
    if verdict.cls == "success":
        return Outcome()
    where = os.path.join(group.directory, repeats.DIRECTORY)
    make_directories(where)
    before = _told_before(where)
    revision = 0 if before is None else before["incident"]["revision"] + 1
    if before is not None and (_same(before, verdict) or revision > REVISIONS_MAX):
        return Outcome(f"told together: {before['diagnosis']['class']}{_ranks(before)}", None, where)
    with _claimed(os.path.join(group.directory, f"{CLAIM}{revision}")) as ours:
        if not ours:
            return Outcome("told by another rank")
        report = report_of(group, verdict, mask, revision)
        found = repeats.note(group, report, where)
        untold = before is None or bool(attempts.held(before))
        if found is not None and untold and making.may_be_held(report, settings):
            attempts.hold(report, found, time.time())
        said = incident.tell(where, report, settings, mask, deadline, say)
    return Outcome(said, report, where)


def _ranks(report: dict[str, Any]) -> str:
    roots = [rank for rank in report["incident"]["roots"] if rank is not None]
    return f" on rank {roots[0]}" if len(roots) == 1 else f" on {len(roots)} ranks" if roots else ""


def _told_before(where: str) -> dict[str, Any] | None:
    """The report of an earlier look; None where there is none, or nobody was told of it in the end."""
    try:
        with open(os.path.join(where, REPORT), encoding="utf-8") as file:
            report = json.load(file)
        _ = report["incident"]["revision"] + 0, report["diagnosis"]["class"], report["incident"]["roots"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return report if report.get("told") else None


def _same(before: dict[str, Any], verdict: Verdict) -> bool:
    roots = sorted(str(printed(rank)) for rank in verdict.roots)
    return bool(before["diagnosis"]["class"] == verdict.cls) and sorted(map(str, before["incident"]["roots"])) == roots


@contextlib.contextmanager
def _claimed(path: str) -> Iterator[bool]:
    """Whether it is ours to tell; a claim whose holder died is taken over."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        age = survivor.server_now(os.path.dirname(path)) - os.stat(path).st_mtime
        if age < CLAIM_STALE_S:
            yield False
            return
        aside = f"{path}.{os.getpid()}.{time.time_ns()}"
        try:
            os.rename(path, aside)  # only one of many succeeds
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError:
            yield False
            return
    try:
        os.write(fd, f"{os.uname().nodename} {os.getpid()}\n".encode())
        yield True
    finally:
        os.close(fd)
