"""``gpualert flush``: sends what no server has taken yet; once, or as a sidecar or daemon that goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import click

from gpualert import config
from gpualert.cli.output import Refused, duration, format_option, harmless, print_json
from gpualert.cli.reading import directories, log_dir_option
from gpualert.notify import delivery, spool

if TYPE_CHECKING:
    from gpualert.config import Settings
    from gpualert.notify.spool import Result

DEADLINE_S = 300.0


@click.command()
@log_dir_option
@click.option("--watch", is_flag=True, help="Go on until SIGTERM, each mail with a growing pause between its attempts.")
@click.option(
    "--every", type=duration, default="30s", metavar="DURATION", show_default=True, help="How often --watch looks."
)
@format_option
def flush(log_dir: str | None, watch: bool, every: float, form: str) -> None:
    """Send the mails that no server has taken yet, each once.

    Without --watch all are tried at once, whenever they were tried last; exit status 1 when some are left. A mail that
    nobody took for email.keep (7 days) stays beside the others as .expired, what a server refused for good as .failed;
    neither is tried any more.
    """
    settings, problems = config.load()
    for problem in problems:
        click.echo(f"gpualert: {harmless(str(problem))}", err=True)
    if watch:
        _watch(directories(log_dir) or ([os.path.abspath(log_dir)] if log_dir else []), settings, every, form)
        return
    server, deadline = delivery.Server.from_settings(settings), time.monotonic() + DEADLINE_S
    results = []
    for place in spool.places(directories(log_dir)):
        results += spool.flush(place, server, deadline, settings.email.keep)
    if form == "json":
        print_json([result.as_dict() for result in results], indent=1)
    else:
        _show(results)
        if not results:
            click.echo("nothing is waiting to be sent")
    if any(result.outcome not in ("sent", "busy") for result in results):
        sys.exit(1)


def _watch(places: list[str], settings: Settings, every: float, form: str) -> None:
    if not places:
        raise Refused("there is no log directory to watch (--log-dir)")
    stop = threading.Event()
    # As PID 1 a process gets no signal that it does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    server, broken = delivery.Server.from_settings(settings), set[tuple[str, str]]()
    while True:
        last = stop.is_set()
        found = spool.retry_all(places, server, time.monotonic() + DEADLINE_S, settings.email.keep)
        # Nothing becomes of a broken file from one look to the next: each is said once.
        results = [one for one in found if one.outcome != "broken" or (one.path, one.detail) not in broken]
        broken = {(one.path, one.detail) for one in found if one.outcome == "broken"}
        if form == "json":
            for result in results:
                print_json(result.as_dict())
        else:
            _show(results)
        sys.stdout.flush()
        if last:
            return
        stop.wait(max(every, 0.1))


def _show(results: list[Result]) -> None:
    for result in results:
        detail = f" ({result.detail})" if result.detail else ""
        to = f" to {', '.join(result.to)}" if result.to else ""
        click.echo(harmless(f"{result.outcome}{to}: {result.path}{detail}"))
