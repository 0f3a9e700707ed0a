"""``gpualert slurm``: jobs that are in Slurm already, watched from outside."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from gpualert import config
from gpualert.cli.classifying import rulebook
from gpualert.cli.output import Refused, duration, format_option, harmless, print_json
from gpualert.report import making, wording
from gpualert.rundir import location
from gpualert.slurm import controller, jobid, judging, telling, watching
from gpualert.slurm.record import WELL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.config import Settings
    from gpualert.diagnosis import Rulebook
    from gpualert.slurm.record import Record


class _Unusable(Refused):
    """Nothing could be watched."""

    exit_code = 2


# Generic since click 8.2 or so.
class _Ids(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Job ids as Slurm's commands take them."""

    name = "jobid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> jobid.JobId:
        """One job id."""
        try:
            return value if isinstance(value, jobid.JobId) else jobid.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option(
    "--every", type=duration, default="30s", metavar="DURATION", show_default=True, help="How often to ask at most."
)
@click.option("--once", is_flag=True, help="Look once, report what has ended, and do not wait for the rest.")
@click.option(
    "--logs",
    multiple=True,
    metavar="PATTERN",
    help="Where the tasks write (logs/%j-%t.txt), instead of what the batch script's srun lines say. Repeatable.",
)
@click.option(
    "--log-dir",
    metavar="DIR",
    envvar="GPUALERT_LOG_DIR",
    help="Where reports are kept. Default: the usual places.",
)
@click.option(
    "--rules", multiple=True, metavar="DIR", envvar="GPUALERT_RULES", help="Directories with rules of your own."
)
@format_option
@click.argument("job", metavar="JOBID...", type=_Ids(), nargs=-1, required=True)
def slurm(
    every: float,
    once: bool,
    logs: tuple[str, ...],
    log_dir: str | None,
    rules: tuple[str, ...],
    form: str,
    job: tuple[jobid.JobId, ...],
) -> None:
    """Wait for jobs that are in Slurm already, and report and mail each that fails, once.

    Nothing is changed in the job: Slurm's records and the job's own output are read. JOBID is a job, an array (123),
    some of its tasks (123_4, 123_[0-9]) or a heterogeneous job (123+0). Exit status: 0 when all ended well, 1 when any
    failed, 2 when Slurm does not know one of them.

    \b
    examples
      gpualert slurm $(sbatch --parsable train.sbatch)
      nohup gpualert slurm --every 1m 4711 4712_[0-99] &
      gpualert slurm --once 4711
    """
    if every < 1:
        raise click.UsageError("--every must be at least 1s: slurmctld serves the whole cluster")
    settings, problems = config.load()
    for problem in problems:
        _say(f"{problem}: ignored")
    stop = threading.Event()
    try:
        asked = controller.Controller(stop)
    except controller.SlurmMissingError as error:
        raise _Unusable(str(error)) from None
    known = rulebook((*settings.diagnosis.rules, *rules))
    reporter = _Reporter(_place(log_dir, settings), settings, known, asked, logs, form)
    signals: list[int] = []

    def end(number: int, _frame: Any) -> None:
        signals.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup has it ignored
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
    watch = watching.Watch(tuple(dict.fromkeys(job)), asked)
    try:
        for named, records in watching.until_ended(watch, every, stop, _say, once=once):
            reporter.report(named, records)
    except (watching.NoSuchJobError, controller.UnreachableError) as error:
        raise _Unusable(str(error)) from None
    waiting = ", ".join(one.text for one in watch.waiting)
    if waiting and not signals:
        _say(f"not ended yet: {waiting}")
    if signals and waiting:
        _say(f"stopped by {signal.Signals(signals[0]).name}; not ended yet: {waiting}")
        sys.exit(128 + signals[0])
    sys.exit(1 if reporter.failures else 0)


def _say(text: str) -> None:
    click.echo(f"gpualert: {harmless(text)}", err=True)


def _place(log_dir: str | None, settings: Settings) -> str:
    """Where reports are kept: as asked for, as configured, else the first of the usual places that can be written."""
    named = log_dir or settings.log.dir
    places = [os.path.abspath(named)] if named else location.defaults(dict(os.environb))
    failure = "no place to keep reports"
    for place in places:
        try:
            os.makedirs(place, mode=0o750, exist_ok=True)
        except OSError as error:
            failure = f"cannot make {place} ({error.strerror})"
            continue
        if os.access(place, os.W_OK | os.X_OK):
            return place
        failure = f"cannot write {place}"
    raise _Unusable(f"{failure}: name another one by --log-dir")


LATE_LINES_S = 3.0
"""A file server shows a log's last lines late: a job that just ended without a word is looked at once more."""


class _Reporter:
    """Reports jobs one by one as they end."""

    def __init__(
        self,
        log_dir: str,
        settings: Settings,
        rules: Rulebook,
        asked: controller.Controller,
        patterns: Sequence[str],
        form: str,
    ) -> None:
        self.failures = 0
        self._log_dir = log_dir
        self._settings = settings
        self._rules = rules
        self._asked = asked
        self._patterns = patterns
        self._json = form == "json"
        self._mask = making.redaction(settings)
        self._told_of_accounting = False

    def report(self, named: jobid.JobId, records: Sequence[Record]) -> None:
        """Report a job that has ended."""
        if self._asked.without_accounting and not self._told_of_accounting:
            self._told_of_accounting = True
            _say(
                f"without accounting ({self._asked.without_accounting}): jobs are known by slurmctld alone, which "
                "forgets them MinJobAge after their end"
            )
        failed = judging.failed(records)
        self.failures += failed
        title = f"{named.text} ({records[0].name})" if records[0].name else named.text
        if not failed and self._settings.notify.when != "always":
            self._succeeded(named, records, title)
            return
        judged = judging.judged(named, records, self._patterns, self._asked, self._rules)
        if judged.verdict.cls == "unknown":
            time.sleep(LATE_LINES_S)
            judged = judging.judged(named, records, self._patterns, self._asked, self._rules)
        directory = telling.directory_of(self._log_dir, named, records, judged.job.id)
        try:
            kept = telling.keep_and_tell(directory, judged, self._settings, self._mask, click.echo)
        except OSError as error:
            _say(f"cannot keep the report of {named.text} in {directory} ({error.strerror}): it is only shown")
            kept = telling.Kept(directory, telling.build(judged, self._mask), "not kept")
        if self._json:
            row = {"job": named.text, "state": _state(records), "directory": kept.directory, **kept.report}
            print_json(row)
        else:
            click.echo(harmless(telling.block(kept, title)))

    def _succeeded(self, named: jobid.JobId, records: Sequence[Record], title: str) -> None:
        if self._json:
            print_json({"job": named.text, "state": _state(records), "directory": None})
            return
        began = min((r.started_at for r in records if r.started_at is not None), default=None)
        ended = max((r.ended_at for r in records if r.ended_at is not None), default=None)
        took = f" after {wording.duration(ended - began)}" if began is not None and ended is not None else ""
        tasks = f" ({len(records)} tasks)" if records[0].array is not None and len(records) > 1 else ""
        bad = [f"{r.label}.{step.name} {step.state}" for r in records for step in r.steps if step.state not in WELL]
        steps = f"; but of its steps {', '.join(bad[:4])}" if bad else ""
        click.echo(harmless(f"{title}: ended well{took}{tasks}{steps}"))


def _state(records: Sequence[Record]) -> str:
    """Slurm's state: that of the first that failed."""
    return next((record.state for record in records if not record.well), records[0].state)
