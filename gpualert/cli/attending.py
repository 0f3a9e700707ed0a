"""``gpualert attend``: a survivor beside the job, which closes runs whose supervisor was killed with it."""

from __future__ import annotations

import os
import signal
import sys
import threading

import click

from gpualert.cli.output import Refused, duration, format_option, harmless, print_json
from gpualert.cli.reading import directories, log_dir_option
from gpualert.report.sweep import send_waiting, sweep
from gpualert.rundir import survivor
from gpualert.rundir.reader import Run


@click.command()
@log_dir_option
@click.option("--every", type=duration, default="10s", metavar="DURATION", show_default=True, help="How often to look.")
@format_option
def attend(log_dir: str | None, every: float, form: str) -> None:
    """Close and report runs whose supervisor died with its job, and send what no server has taken yet, until SIGTERM.

    Made for a sidecar that shares the log directory: an out-of-memory kill takes a container's PID 1 with the job, and
    nothing in that container can report it any more. After the SIGTERM it looks once more. Each run that was closed is
    said in one line.
    """
    places = directories(log_dir) or ([os.path.abspath(log_dir)] if log_dir else [])
    if not places:
        raise Refused("there is no log directory to attend (--log-dir)")
    stop = threading.Event()
    # As PID 1 a process gets no signal that it does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    last = False
    while not last:
        last = stop.wait(every)
        for place in places:
            interrupted = survivor.find_interrupted(place)
            sweep(place)
            for path in interrupted:
                _say(Run.read(path), form)
            send_waiting(place)


def _say(run: Run, form: str) -> None:
    """One line for a run that is closed and reported by now, by us or by whoever was quicker."""
    if run.report is None:
        return
    diagnosis = run.report["diagnosis"]
    told = {"run_id": run.run_id, "class": diagnosis["class"], "summary": diagnosis.get("summary"), "path": run.path}
    if form == "json":
        print_json(told)
    else:
        click.echo(harmless(f"closed {run.path}: {told['class']}: {told['summary']}"))
    sys.stdout.flush()
