"""The steps of a report, used by the reporter, by survivors, and by ``gpualert report``."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

import structlog

from gpualert import artifacts, config
from gpualert.report import attempts, building, flight, page, recall
from gpualert.report.timeline import seconds_of
from gpualert.rundir import location
from gpualert.rundir.assembly import NAME as LOG_NAME
from gpualert.rundir.writer import REPORT, replace_file
from gpualert.supervisor.redaction import Redaction, secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpualert.config import Settings
    from gpualert.rundir.reader import Run

PAGE = "report.html"
TEXT_ROOM = 256 << 10
"""What the mail's own text and ``report.json`` may take of the budget."""
LOG = "reporter.log"


class _LogFile:
    """A file that is appended to as far as that is possible: a full disk must not stop the report."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        except OSError:
            self._fd = -1

    def write(self, text: str) -> None:
        """Append a text."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.write(self._fd, text.encode("utf-8", "replace"))

    def flush(self) -> None:
        """Nothing is held back."""


def logger(directory: str) -> Any:
    """A logger that appends JSON lines to the run directory's ``reporter.log``; to nothing where that cannot be.

    Args:
        directory: The run directory.
    """
    return structlog.wrap_logger(
        structlog.WriteLogger(_LogFile(os.path.join(directory, LOG))),  # type: ignore[arg-type]
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.BoundLogger,
    )


@contextlib.contextmanager
def step(log: Any, name: str) -> Iterator[None]:
    """A step of its own: what goes wrong in it is logged, and that is all."""
    began = time.monotonic()
    try:
        yield
    except Exception:
        log.exception("step failed", step=name)
    else:
        log.info("step done", step=name, seconds=round(time.monotonic() - began, 4))


def redaction(settings: Settings | None = None) -> Redaction:
    """Masks the secrets of this process's environment, and those that the settings have from files.

    Args:
        settings: The settings; None where there are none.
    """
    return Redaction(secrets(dict(os.environb) | building.kept_secrets(settings)))


def settings_of(run: Run, log: Any) -> Settings:
    """The settings that hold for a run: what its command line gave outranks all others.

    Args:
        run: The run.
        log: Where mistakes are logged.
    """
    options = run.facts.get("options")
    settings, problems = config.load(given=options if isinstance(options, dict) else {})
    mask = redaction(settings)
    for problem in problems:
        log.warning("configuration", problem=mask.mask(str(problem)))
    said = (run.exit or {}).get("trouble") or []
    new = [problem for problem in problems if not building.was_said(problem, said, mask)]
    run.facts["configuration_problems"] = [str(problem) for problem in new]
    return settings


def make(run: Run, settings: Settings, mask: Redaction, log: Any) -> dict[str, Any]:
    """Diagnose a run and build its report.

    Args:
        run: The run.
        settings: The settings that hold for it.
        mask: Masks secrets of this process; those that the run's own environment had are masked too.
        log: Where it is noted.
    """
    problems = run.facts.pop("configuration_problems", [])
    mask, unmasked = recall.recalling(mask, run.path)
    found, trouble = building.diagnosed(run, settings.diagnosis.rules, mask)
    with step(log, "flight recorder"):
        found = flight.joined(found, run, os.environ)
    log.info("diagnosed", cls=found.cls, confidence=found.confidence)
    trouble = [*(f"{problem}: ignored" for problem in problems), *trouble, *([unmasked] if unmasked else [])]
    return building.build(run, found, trouble, mask)


def write(directory: str, report: dict[str, Any]) -> None:
    """Write ``report.json`` and ``report.html``.

    Args:
        directory: The run directory.
        report: The report.

    Raises:
        OSError: They cannot be written.
    """
    text = json.dumps(report, ensure_ascii=False, indent=1)
    replace_file(os.path.join(directory, REPORT), text.encode("utf-8", "replace") + b"\n")
    replace_file(os.path.join(directory, PAGE), page.render(report).encode("utf-8", "replace"))


def write_again(directory: str, report: dict[str, Any]) -> None:
    """Write the report with what became of its notifications, also of a mail that somebody else has sent meanwhile.

    Args:
        directory: The run directory.
        report: The report; its notifications are brought up to date.

    Raises:
        OSError: It cannot be written.
    """
    from gpualert.notify import record  # noqa: PLC0415  (email and smtplib are slow to import)

    with record.writing(directory):
        record.overlay(directory, report)
        write(directory, report)


def wanted(report: dict[str, Any], settings: Settings) -> bool:
    """Whether somebody wants to be told of a run that ended so.

    Args:
        report: The report.
        settings: The settings.
    """
    when = settings.notify.when
    succeeded = report["diagnosis"]["class"] == "success" and not report["diagnosis"].get("warnings")
    return when == "always" or (when == "failure" and not succeeded)


def recollect(run: Run, report: dict[str, Any], settings: Settings, log: Any, *, may_hold: bool = True) -> None:
    """Look at the earlier attempts of the same job: what they advise, and whether this one is told of now.

    What is held back is decided from what stands in the run directories, before anything is told: whoever goes on after
    a crash comes to the same, or tells.

    Args:
        run: The run.
        report: Its report, as ``make`` gives it; changed.
        settings: The settings.
        log: Where it is noted.
        may_hold: The notification is this run's own, and has not been sent.
    """
    with step(log, "earlier attempts"):
        found = attempts.of_run(run.path, run.facts, report)
        if found is not None and found.same >= attempts.LOOP and may_hold and may_be_held(report, settings):
            attempts.hold(report, found, time.time())


def may_be_held(report: dict[str, Any], settings: Settings) -> bool:
    """Whether somebody would be told of a report, and wants repetitions held back.

    Args:
        report: The report.
        settings: The settings.
    """
    from gpualert.notify import anybody  # noqa: PLC0415  (email and smtplib are slow to import)

    if settings.dry_run or settings.notify.repeats != "digest":
        return False
    return wanted(report, settings) and anybody(settings)


def notify(
    directory: str,
    report: dict[str, Any],
    settings: Settings,
    mask: Redaction,
    deadline: float,
    say: Callable[[str], None],
) -> str:
    """Tell whom the settings name.

    Args:
        directory: The run directory.
        report: The report; its artifacts and notifications are filled in.
        settings: The settings.
        mask: Masks secrets, as for ``make``.
        deadline: When to be done, on the monotonic clock.
        say: Prints on the person's terminal, for ``--dry-run``.

    Returns:
        What became of it, in a few words; empty when nobody wanted anything.
    """
    from gpualert.notify import anybody, tell  # noqa: PLC0415  (email and smtplib are slow to import)
    from gpualert.notify.message import with_own_names  # noqa: PLC0415  (the same)

    if not wanted(report, settings) or not anybody(settings):
        return ""
    if held := attempts.held(report):
        return held
    collected = with_own_names(_collected(directory, report, settings, deadline))
    report["artifacts"] = [artifact.as_dict() for artifact in collected]
    mask, _ = recall.recalling(mask, directory)
    told = tell(directory, "ended", report, settings, collected, mask, deadline, say)
    report["notifications"] = [entry.as_dict() for entry in told]
    flush = location.flush_command(os.path.dirname(os.path.abspath(directory)), os.environb)
    return "; ".join(entry.summary(flush) for entry in told if entry.summary())


def _collected(directory: str, report: dict[str, Any], settings: Settings, deadline: float) -> list[artifacts.Artifact]:
    """What goes along; whatever goes wrong with it, the mail goes."""
    fate, why = "no_time", "the report's deadline was near (report.deadline)"
    left = deadline - time.monotonic()
    try:
        if left > 0:
            return _collect(directory, report, settings, time.monotonic() + left / 2)
    except Exception as error:  # noqa: BLE001  (also the signal that wants us to end)
        fate, why = "unreadable", f"the attachments could not be put together ({error})"
    return [artifacts.Artifact(LOG_NAME, None, fate, why)]


def _collect(directory: str, report: dict[str, Any], settings: Settings, until: float) -> list[artifacts.Artifact]:
    """The log and the artifacts, each with its fate; half of the time is left for those who take them."""
    told = settings.artifacts
    # The budget is that of the mail as it travels: base64 makes four bytes of three.
    room = max(told.max_total - TEXT_ROOM, told.max_total // 4) * 3 // 4
    log = artifacts.pack_log(os.path.join(directory, LOG_NAME), room // 2)
    budget = artifacts.Budget(
        told.max_file,
        room - len(log.content or b""),
        told.order,
        told.zip_over,
        seconds_of(report["run"].get("started_at")) if told.changed_only else None,
        until,
    )
    root = told.root or str(report["run"].get("cwd") or directory)
    return [log, *artifacts.collect(told.include, root, budget)]


def retry_others(directory: str, settings: Settings, deadline: float, log: Any) -> None:
    """Send what earlier runs could not, as far as its time has come.

    Args:
        directory: This run's directory; the others lie beside it.
        settings: The settings.
        deadline: When to be done, on the monotonic clock.
        log: Where it is noted.
    """
    if settings.smtp.host is None or settings.dry_run or time.monotonic() >= deadline:
        return
    from gpualert.notify import delivery, spool  # noqa: PLC0415  (the same)

    server = delivery.Server.from_settings(settings)
    for result in spool.retry_all([os.path.dirname(directory)], server, deadline, settings.email.keep):
        log.info("spool", **result.as_dict())
