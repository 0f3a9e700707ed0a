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
from gpualert.rundir import reader, survivor
from gpualert.rundir.reader import Run
from gpualert.rundir.writer import RUN


@click.command()
@log_dir_option
@click.option("--every", type=duration, default="10s", metavar="DURATION", show_default=True, help="How often to look.")
@format_option
def attend(log_dir: str | None, every: float, form: str) -> None:
    """Close and report runs whose supervisor died with its job, and send what no server has taken yet, until SIGTERM.

    Made for a sidecar that shares the log directory: an out-of-memory kill takes a container's PID 1 with the job, and
    nothing in that container can report it any more. After the SIGTERM it looks once more. Each run that was closed is
    said in one line. It must be the user that the job runs as, or share the volume's group with it (fsGroup); what it
    cannot read or write it says, once.
    """
    places = directories(log_dir) or ([os.path.abspath(log_dir)] if log_dir else [])
    if not places:
        raise Refused("there is no log directory to attend (--log-dir)")
    stop = threading.Event()
    # As PID 1 a process gets no signal that it does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: stop.set())
    last, said = False, set[str]()
    while not last:
        last = stop.wait(every)
        for place in places:
            barred = None if place in said else _barred(place)
            if barred is not None:
                said.add(place)
                click.echo(f"gpualert: {harmless(barred)}", err=True)
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


def _barred(place: str) -> str | None:
    """What keeps us from a log directory or from a run in it, and what to do; None where nothing does."""
    try:
        os.listdir(place)
    except FileNotFoundError:
        return None  # the first run makes it
    except OSError as error:
        return f"cannot read {place} ({error.strerror}): {_advice(place)}"
    for run_id in reader.run_ids(place):
        path = os.path.join(place, run_id)
        usable, facts = os.access(path, os.R_OK | os.W_OK | os.X_OK), os.path.join(path, RUN)
        if not usable or (os.path.exists(facts) and not os.access(facts, os.R_OK)):
            return f"cannot close runs such as {path}: {_advice(path)}"
    return None


def _advice(path: str) -> str:
    try:
        owner = f"it belongs to user {os.stat(path).st_uid}"
    except OSError:
        owner = "its owner is unknown"
    return (
        f"{owner}, and this is user {os.getuid()}: nobody reports what is killed there with its supervisor; run both "
        "as the same user (securityContext.runAsUser), or give the pod a securityContext.fsGroup"
    )
