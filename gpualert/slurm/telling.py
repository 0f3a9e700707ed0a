"""The report of a job that has ended, kept and told once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpualert.report import incident, quotes, wording
from gpualert.rundir.writer import REPORT
from gpualert.slurm.judging import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpualert.config import Settings
    from gpualert.slurm.jobid import JobId
    from gpualert.slurm.judging import Judged
    from gpualert.slurm.record import Record
    from gpualert.supervisor.redaction import Redaction

LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Kept:
    """A report that lies on disk.

    Attributes:
        directory: Where.
        report: The report.
        outcome: What became of its notifications, in a few words.
    """

    directory: str
    report: dict[str, Any]
    outcome: str


def directory_of(log_dir: str, named: JobId, records: Sequence[Record], identity: str) -> str:
    """Where the report of a job is kept; beside it where that of an older job of the same number is.

    Args:
        log_dir: Where run directories are kept.
        named: The job.
        records: Its records.
        identity: The incident's id.
    """
    number = attempt(records)
    path = os.path.join(log_dir, f"slurm-{named.text}" + (f"-{number}" if number else ""))
    there = _read(path)
    return path if there is None or there.get("incident", {}).get("id") == identity else f"{path}.{identity[-16:]}"


def _read(directory: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(directory, REPORT), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Wait until no other process reports the same job."""
    fd = os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        # Some file systems cannot lock: a mail twice is better than none.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def build(judged: Judged, mask: Redaction) -> dict[str, Any]:
    """The report of a job.

    Args:
        judged: What happened to it.
        mask: Masks secrets.
    """
    shown = judged.shown
    quoted = quotes.take(shown.path, shown.line, mask) if shown is not None and shown.path else None
    if quoted is not None and shown is not None:
        quoted["log"] = os.path.basename(shown.path)
    report = incident.build(judged.job, judged.verdict, mask, quotes=quoted, trouble=list(judged.trouble))
    if judged.world_size is not None:
        report["run"]["world_size"] = judged.world_size
    ranks = report["ranks"]
    if judged.job.unit != "rank" or (len(ranks) == 1 and report["run"]["rank"] is None):
        report["run"]["world_size"] = None
    if judged.job.unit != "rank":
        report["run"]["rank"] = None
    if len(ranks) == 1:
        # Of a job with one log the end is known, whoever broke first in it.
        report["exit"] |= {"exit_code": ranks[0]["exit_code"], "signal": ranks[0]["signal"]}
        report["run"]["node"] = report["run"]["node"] or ranks[0]["node"]
    report["run"]["cwd"] = judged.job.where or None
    if shown is not None and shown.line is not None and report["diagnosis"]["root"]:
        report["diagnosis"]["root"]["line"] = shown.line
        report["diagnosis"]["root"]["log"] = shown.path
    return report


def keep_and_tell(
    directory: str,
    judged: Judged,
    settings: Settings,
    mask: Redaction,
    say: Callable[[str], None],
) -> Kept:
    """Keep the report of a job, and tell whom the settings name, unless that was done before.

    Args:
        directory: Where the report is kept.
        judged: What happened.
        settings: The settings.
        mask: Masks secrets.
        say: Prints, for ``notify`` settings that only show the mail.

    Raises:
        OSError: The directory cannot be made or written.
    """
    os.makedirs(directory, mode=0o750, exist_ok=True)
    with _alone(directory):
        before = _read(directory)
        if before is not None and before.get("notifications"):
            at = str(before["notifications"][0].get("at") or "")[:16].replace("T", " ")
            return Kept(directory, before, f"told already{f' at {at}' if at else ''}")
        report = build(judged, mask)
        # Told and then killed: the next one tells again. Never told is worse.
        outcome = incident.tell(directory, report, settings, mask, time.monotonic() + settings.report.deadline, say)
        return Kept(directory, report, outcome)


def block(kept: Kept, title: str) -> str:
    """A few lines for a terminal.

    Args:
        kept: The report.
        title: The job: its number and name.
    """
    from gpualert.report import ranks  # noqa: PLC0415  (a module of its own name)

    report = kept.report
    found, end = report["diagnosis"], report["exit"]
    several = len(report["ranks"]) > 1
    how = f"after {wording.duration(end.get('duration_s'))}"
    if end.get("exit_code") is not None or end.get("signal") is not None:
        how = f"{wording.ending(end)} {how}"
    lines = [f"{title}: {found['class']}: {_cut(found['summary'])} ({how})"]
    root = found.get("root")
    if root and root.get("log"):
        lines.append(f"  {os.path.basename(root['log'])}:{root['line']}  {_cut(root['text'])}")
    lines += [f"  {fact['reason']}: {_cut(fact['message'])}" for fact in report["facts"][:3]]
    if several:
        lines += [f"  {line}" for line in ranks.text(report).splitlines()]
    lines += [f"  try: {_cut(suggestion)}" for suggestion in found["suggestions"][:1]]
    lines += [f"  note: {_cut(line)}" for line in report["trouble"][:2]]
    lines.append(f"  kept in {kept.directory}" + (f" · {kept.outcome}" if kept.outcome else ""))
    return "\n".join(lines)


def _cut(text: str) -> str:
    text = wording.printable(text).strip()
    return text if len(text) <= 240 else text[:237] + "..."
