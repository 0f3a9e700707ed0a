"""The alarm of a run that hangs: told once, and taken back when the run goes on.

``.hang-told`` in the run directory says what became of the alarm, and is locked while somebody is being told, so that
the end of a hang is told after it, and only where it was told. Of the ranks that share a group's directory the first to
notice tells; the others hang with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpualert.report import building, making, recall
from gpualert.report.running import so_far
from gpualert.rundir import shapes
from gpualert.rundir.reader import Run
from gpualert.telemetry import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpualert.config import Settings
    from gpualert.notify import Told
    from gpualert.notify.notice import Kind
    from gpualert.supervisor.redaction import Redaction

TOLD = ".hang-told"
GROUP_TOLD = "hang-told"
MAX_TOLD = 1 << 16
WAITING, REACHED = "spooled", "sent"
_POLL_S = 0.05


def sound(directory: str, deadline: float) -> None:
    """Tell that a run hangs: whom the settings name, and the API server.

    Args:
        directory: The run directory.
        deadline: When to be done, on the monotonic clock.
    """
    log, run = making.logger(directory), Run.read(directory)
    if run.exit is not None or _is_over(directory):
        return
    settings = making.settings_of(run, log)
    mask, _ = recall.recalling(making.redaction(settings), directory)
    report = building.running(so_far(run), datetime.now(UTC), mask)
    report["hang"] = {**(report["hang"] or _unrecorded(report)), "action": settings.hang.action}
    with _locked(directory, deadline) as fd, making.step(log, "tell of the hang"):
        if _read(fd).get("outcomes"):
            return  # by a collector before this one: it is the same hang
        saying = _say_to_cluster(report)
        if _wanted(settings) and _is_first(run, settings):
            told = _tell(directory, "hang", report, settings, mask, deadline)
            _write(fd, {"since": report["hang"].get("since"), "outcomes": [entry.outcome for entry in told]})
            for entry in told:
                log.info("told", kind="hang", **entry.as_dict())
        for trouble in saying.finish(deadline) if saying is not None else []:
            log.info("API server", trouble=trouble)


def call_off(directory: str, deadline: float) -> None:
    """Tell that a run goes on, whom its alarm has reached; an alarm that still waits for its server is dropped.

    Args:
        directory: The run directory.
        deadline: When to be done, on the monotonic clock.
    """
    from gpualert.notify import spool  # noqa: PLC0415  (email and smtplib are slow to import)

    log, run = making.logger(directory), Run.read(directory)
    if run.exit is not None:
        return
    settings = making.settings_of(run, log)
    mask, _ = recall.recalling(making.redaction(settings), directory)
    report = building.running(so_far(run), datetime.now(UTC), mask)
    if report["hang"] is None or report["hang"]["state"] != "over":
        return  # it hangs again
    with _locked(directory, deadline) as fd, making.step(log, "tell that it goes on"):
        saying = _say_to_cluster(report)
        outcomes = _read(fd).get("outcomes")
        outcomes = outcomes if isinstance(outcomes, list) else []
        waits = _waits(directory)
        spool.drop(directory, ["hang"])
        _leave_group(run, settings)
        # One that was spooled and waits no more has been sent meanwhile.
        if REACHED in outcomes or (WAITING in outcomes and not waits):
            for entry in _tell(directory, "hang-over", report, settings, mask, deadline):
                log.info("told", kind="hang-over", **entry.as_dict())
        _write(fd, {})
        for trouble in saying.finish(deadline) if saying is not None else []:
            log.info("API server", trouble=trouble)


def _is_over(directory: str) -> bool:
    last = record.read(directory).last("hang")
    return last is not None and last.get("state") == "over"


def _unrecorded(report: dict[str, Any]) -> dict[str, Any]:
    """A hang of which the collector could write nothing down: the disk is full, perhaps that is why."""
    since = report["exit"].get("last_output_at")
    return {
        "state": "suspected", "why": "", "since": since, "at": report["made_at"], "silent_s": report["silent_s"],
        "step": None, "scene": None,
    }  # fmt: skip


def _wanted(settings: Settings) -> bool:
    from gpualert.notify import anybody  # noqa: PLC0415  (email and smtplib are slow to import)

    return settings.notify.when != "never" and not settings.dry_run and anybody(settings)


def _tell(
    directory: str, kind: Kind, report: dict[str, Any], settings: Settings, mask: Redaction, deadline: float
) -> list[Told]:
    from gpualert.notify import tell  # noqa: PLC0415  (email and smtplib are slow to import)

    return tell(directory, kind, report, settings, [], mask, deadline, lambda _text: None)


def _say_to_cluster(report: dict[str, Any]) -> Any:
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    from gpualert.cluster.podapi import HangSaying  # noqa: PLC0415  (only in a cluster)

    return HangSaying(report)


def _waits(directory: str) -> bool:
    """Whether the alarm's mail is still in the spool."""
    from gpualert.notify import claim, spool  # noqa: PLC0415  (email and smtplib are slow to import)

    pattern = claim.same_message("hang")
    try:
        return any(pattern.fullmatch(name) for name in os.listdir(os.path.join(directory, spool.DIRECTORY)))
    except OSError:
        return False


# -- the ranks of a group ----------------------------------------------------------------------------------------------


def _group_of(run: Run, settings: Settings) -> str | None:
    """The directory that the job's ranks share; None where they share none."""
    group, attempt = run.facts.get("group"), run.facts.get("attempt")
    if settings.group.dir is None or not isinstance(group, str) or not isinstance(run.facts.get("rank"), int):
        return None
    return os.path.join(settings.group.dir, group, str(attempt if isinstance(attempt, int) else 0))


def _is_first(run: Run, settings: Settings) -> bool:
    """Whether this rank is the one that tells for its group; true where there is no group."""
    group = _group_of(run, settings)
    if group is None or not os.path.isdir(group):
        return True
    path = os.path.join(group, GROUP_TOLD)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return _teller(path) == run.run_id
    except OSError:
        return True  # told twice is better than not at all
    with os.fdopen(fd, "w") as file:
        file.write(run.run_id)
    return True


def _leave_group(run: Run, settings: Settings) -> None:
    group = _group_of(run, settings)
    if group is not None:
        path = os.path.join(group, GROUP_TOLD)
        with contextlib.suppress(OSError):
            if _teller(path) == run.run_id:
                os.unlink(path)


def _teller(path: str) -> str | None:
    from gpualert.rundir import regular  # noqa: PLC0415  (only for ranks that share a directory)

    try:
        return (regular.content(path, MAX_TOLD) or b"").decode("utf-8", "replace")
    except OSError:
        return None


# -- who was told ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(directory: str, deadline: float) -> Iterator[int]:
    """The file that says who was told, locked as far as the file system has locks; -1 where there can be none."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(os.path.join(directory, TOLD), flags, 0o640)
    except OSError:
        yield -1
        return
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_S)
            except OSError:
                break
            else:
                break
        yield fd
    finally:
        os.close(fd)


def _read(fd: int) -> dict[str, Any]:
    if fd < 0:
        return {}
    try:
        value = shapes.loads(os.pread(fd, MAX_TOLD, 0).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(fd: int, told: dict[str, Any]) -> None:
    if fd >= 0:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(told).encode(), 0)
