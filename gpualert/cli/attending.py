"""``gpualert attend``: a survivor beside the job, which closes runs whose supervisor was killed with it."""

from __future__ import annotations

import os
import signal
import threading

import click

from gpualert.cli.output import Refused
from gpualert.cli.reading import directories, log_dir_option
from gpualert.report.sweep import sweep
from gpualert.supervisor.values import parse_duration


def duration(text: str) -> float:
    """Seconds of a duration such as ``30s``."""
    try:
        return parse_duration(text)
    except ValueError:
        raise click.BadParameter("must be a duration such as 30s or 5m") from None


@click.command()
@log_dir_option
@click.option("--every", type=duration, default="10s", metavar="DURATION", show_default=True, help="How often to look.")
def attend(log_dir: str | None, every: float) -> None:
    """Close and report runs whose supervisor died with its job, until SIGTERM; then look once more and end.

    Made for a sidecar that shares the log directory: an out-of-memory kill takes a container's PID 1 with the job, and
    nothing in that container can report it any more.
    """
    places = directories(log_dir) or ([os.path.abspath(log_dir)] if log_dir else [])
    if not places:
        raise Refused("there is no log directory to attend (--log-dir)")
    stop = threading.Event()
    # As PID 1 a process gets no signal that it does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    while not stop.wait(every):
        for place in places:
            sweep(place)
    for place in places:
        sweep(place)
