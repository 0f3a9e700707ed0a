"""Export by OTLP, in a process of its own: beside the run every half minute, and once more at its end.

``python -m gpualert.telemetry.otlp RUN_DIRECTORY`` follows a run until it ends; with ``--end`` it sends the end of one
that has its report. Where to, no argument says: a URL may hold a password, and a command line can be read by all.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
import urllib.parse
from typing import TYPE_CHECKING

from gpualert.rundir.reader import Run
from gpualert.rundir.writer import EXIT
from gpualert.supervisor import settings
from gpualert.telemetry.figures import Figures
from gpualert.telemetry.following import Following, figures_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE, KEY = "GPUALERT_OTLP", "telemetry.otlp"
EVERY_S, LOOK_S = 30.0, 2.0
DEADLINE_S = 5.0
"""How long the end of a run waits for the export at most."""
REQUEST_S, END_REQUEST_S = 10.0, 2.0
"""How long one request may take, tries together; at the end there are three."""


def hindrance(endpoint: str) -> str:
    """A line of trouble where nothing can be sent at all: no such URL, or OpenTelemetry not installed.

    Args:
        endpoint: The receiver's base URL.
    """
    try:
        parts = urllib.parse.urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        return "telemetry.otlp must be a URL such as http://otel-collector:4318: figures are not sent"
    for module in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            found = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            return (
                "telemetry.otlp is set but OpenTelemetry is not installed: "
                "pip install 'gpualert[otlp]' (the bundle is without)"
            )
    return ""


def endpoint_of(run: Run, environment: Mapping[bytes, bytes]) -> str:
    """The receiver's base URL: as the run was told, else as the environment or a configuration file says.

    Args:
        run: The run.
        environment: Variables and values.

    Returns:
        The URL; empty where none is set.
    """
    options = run.facts.get("options")
    options = options if isinstance(options, dict) else {}
    told, named = options.get(KEY), options.get("config")
    if not isinstance(told, str) or not told:
        arguments = ["--config", named] if isinstance(named, str) else []
        told = settings.read([*arguments, "--", "run"], environment).text(KEY)
    return told or ""


def follow(run_directory: str, endpoint: str, every_s: float = EVERY_S) -> str:
    """Send a run's figures until it has ended, or whoever started us has.

    Args:
        run_directory: The run's directory.
        endpoint: The receiver's base URL.
        every_s: How often, in seconds.

    Returns:
        What was wrong with the last sending; empty where nothing was.
    """
    from gpualert.telemetry.exporter import Exporter  # noqa: PLC0415  (only where it is installed)

    parent, ending = os.getppid(), os.path.join(run_directory, EXIT)
    exporter = Exporter(endpoint, Run.read(run_directory).facts, REQUEST_S)
    following, figures, said, due = Following(run_directory), Figures(), "", time.monotonic()
    try:
        while os.getppid() == parent and not os.path.exists(ending):
            for line in following.lines():
                figures.add(line)
            if time.monotonic() >= due:
                trouble = exporter.figures(figures.state)
                if trouble and not said:
                    print(f"gpualert: {trouble}", file=sys.stderr, flush=True)
                said, due = trouble, time.monotonic() + every_s
            time.sleep(min(LOOK_S, every_s))
    finally:
        following.close()
    return said


def send_end(run_directory: str, endpoint: str) -> str:
    """Send the last figures of a run that has ended, its span and its diagnosis.

    Args:
        run_directory: The run's directory.
        endpoint: The receiver's base URL.

    Returns:
        What went wrong; empty where nothing did.
    """
    from gpualert.telemetry.exporter import Exporter  # noqa: PLC0415  (only where it is installed)

    run = Run.read(run_directory)
    report = run.report or {}
    # The report's own copy of the facts has no secrets of the run's in it.
    facts = report.get("run") or run.facts
    figures = figures_of(run_directory)
    figures.end(report.get("exit") or {}, report.get("diagnosis") or {})
    exporter = Exporter(endpoint, facts, END_REQUEST_S)
    # What happened matters more than the last figures, should there be no time for both.
    return exporter.end(report) or exporter.figures(figures.state)


def main(arguments: Sequence[str] | None = None) -> None:
    """The process.

    Args:
        arguments: The command line; None for this process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m gpualert.telemetry.otlp", allow_abbrev=False)
    parser.add_argument("directory", help="the run directory")
    parser.add_argument("--end", action="store_true", help="send the end of a run that has its report")
    parser.add_argument("--every", type=float, default=EVERY_S, metavar="SECONDS", help="how often to send")
    told = parser.parse_args(arguments)
    endpoint = endpoint_of(Run.read(told.directory), os.environb)
    if not endpoint:
        return
    if why := hindrance(endpoint):
        sys.exit(f"gpualert: {why}")
    trouble = send_end(told.directory, endpoint) if told.end else follow(told.directory, endpoint, told.every)
    if trouble and told.end:
        sys.exit(f"gpualert: {trouble}")


if __name__ == "__main__":
    main()
