"""What became of a run's mails, kept beside them, and told where the run's report is read.

``mail/told.jsonl`` has a line for each group of recipients that a mail has reached, or never will; it is synced before
the mail leaves the spool. The report says what was known when it was made; whoever sends a mail later, or gives it up,
brings the report up to date from here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpualert.notify.envelope import regular_content
from gpualert.rundir.reader import Run
from gpualert.rundir.writer import REPORT, replace_file, write_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DIRECTORY, NAME = "mail", "told.jsonl"
MAX_BYTES = 4 << 20
PATIENCE_S = 2.0
PASSING = ("started", "progress", "hang", "hang-over")
"""Mails about a run that goes on; its report says nothing of them."""
_SUFFIX = re.compile(r"-[0-9a-f]{8}$")


def message_of(path: str) -> str:
    """Which message a spooled mail is: its file's name without the part that makes it unique."""
    return _SUFFIX.sub("", os.path.basename(path).rpartition(".")[0])


def note(run_directory: str, path: str, outcome: str, to: Iterable[str], detail: str) -> None:
    """Keep what became of a mail, durably.

    Args:
        run_directory: The run directory.
        path: The mail.
        outcome: ``sent``, ``failed``, ``expired`` or ``spooled``.
        to: For whom.
        detail: Why.
    """
    told = {
        "mail": os.path.basename(path).rpartition(".")[0],
        "message": message_of(path),
        "at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "outcome": outcome,
        "to": list(to),
        "detail": detail,
    }
    place = os.path.join(run_directory, DIRECTORY, NAME)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError):  # a full disk: the mail has gone all the same
        fd = os.open(place, flags, 0o640)
        try:
            # A line end first: what a crash has cut short must not swallow this line.
            write_all(fd, b"\n" + json.dumps(told).encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


def lines(run_directory: str) -> list[dict[str, Any]]:
    """What is known, in order; what is broken is passed over.

    Args:
        run_directory: The run directory.
    """
    try:
        data = regular_content(os.path.join(run_directory, DIRECTORY, NAME), MAX_BYTES)
    except OSError:
        return []
    found = []
    for line in data.splitlines():
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            continue
        texts = ("mail", "message", "at", "outcome", "detail")
        if isinstance(told, dict) and all(isinstance(told.get(key), str) for key in texts):
            to = told.get("to")
            if isinstance(to, list) and all(isinstance(who, str) for who in to):
                found.append(told)
    return found


def settled(run_directory: str, message: str) -> dict[str, dict[str, Any]]:
    """Who needs no more of a message, with what became of it: it has reached them, or never will.

    Args:
        run_directory: The run directory.
        message: Which one.
    """
    return {
        who: told
        for told in lines(run_directory)
        if told["message"] == message and told["outcome"] in ("sent", "failed")
        for who in told["to"]
    }


def reached(run_directory: str, path: str) -> set[str]:
    """Whom a spooled mail has reached, although it still lies there.

    Args:
        run_directory: The run directory.
        path: The mail.
    """
    name = os.path.basename(path).rpartition(".")[0]
    return {
        who
        for told in lines(run_directory)
        if told["mail"] == name and told["outcome"] == "sent" and told["message"] not in PASSING
        for who in told["to"]
    }


def overlay(run_directory: str, report: dict[str, Any]) -> bool:
    """Bring a report's notifications up to date.

    Args:
        run_directory: The run directory.
        report: The report; changed.

    Returns:
        Whether that changed anything.
    """
    before = report.get("notifications")
    before = before if isinstance(before, list) else []
    known = [told for told in lines(run_directory) if told["message"] not in PASSING]
    if not known:
        return False
    others, by_recipient = [], {}
    for entry in before:
        if not isinstance(entry, dict) or entry.get("channel") != "email" or entry.get("outcome") in _FOR_GOOD:
            others.append(entry)
            continue
        for who in entry.get("to") or []:
            by_recipient[who] = (str(entry.get("outcome")), str(entry.get("detail")), str(entry.get("at")))
    for told in known:
        for who in told["to"]:
            if told["outcome"] != by_recipient.get(who, ("",))[0]:
                by_recipient[who] = (told["outcome"], told["detail"], told["at"])
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for who, fate in by_recipient.items():
        grouped.setdefault(fate, []).append(who)
    ours = [
        {"channel": "email", "to": to, "outcome": outcome, "detail": detail, "at": at}
        for (outcome, detail, at), to in grouped.items()
    ]
    report["notifications"] = after = [*ours, *others]
    return after != before


_FOR_GOOD = ("skipped", "printed")


@contextlib.contextmanager
def writing(run_directory: str) -> Iterator[None]:
    """Hold the right to write the report again, as far as the file system has locks.

    Args:
        run_directory: The run directory.
    """
    fd = -1
    with contextlib.suppress(OSError):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(os.path.join(run_directory, ".writing"), flags, 0o640)
        _lock(fd)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _lock(fd: int) -> None:
    """Lock a file, with some patience: somebody who was stopped meanwhile must not stop us."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return
            time.sleep(0.01)
        else:
            return


def refresh(run_directory: str) -> None:
    """Bring the report on the disk up to date, after a mail was sent or given up.

    Args:
        run_directory: The run directory.
    """
    from gpualert.report import page  # noqa: PLC0415  (templates; wanted only here)

    with contextlib.suppress(Exception), writing(run_directory):  # the mail's fate stands in told.jsonl at least
        report = Run.read(run_directory).report
        if report is None or not overlay(run_directory, report):
            return
        text = json.dumps(report, ensure_ascii=False, indent=1)
        replace_file(os.path.join(run_directory, REPORT), text.encode("utf-8", "replace") + b"\n")
        replace_file(os.path.join(run_directory, "report.html"), page.render(report).encode("utf-8", "replace"))
