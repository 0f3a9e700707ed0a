"""A run's end for those who keep figures: node-exporter's file, and an OTLP receiver."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

from gpualert.report import wording
from gpualert.supervisor import reporter
from gpualert.telemetry import otlp, record, textfile
from gpualert.telemetry.following import figures_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpualert.config import Settings

COLLECTOR_S = 1.0
"""How long to wait for the collector's last line: what it wrote later would undo the end."""


def finish(directory: str, report: Mapping[str, Any], settings: Settings, deadline: float) -> list[str]:
    """Export the end of a run.

    Args:
        directory: The run directory, with its ``report.json``.
        report: The report.
        settings: The settings that hold for the run.
        deadline: When to be done, on the monotonic clock; the receiver gets at most ``otlp.DEADLINE_S`` of it.

    Returns:
        Lines of trouble.
    """
    record.wait_for_end(directory, min(COLLECTOR_S, max(deadline - time.monotonic(), 0.0)))
    # A survivor on another node has another node-exporter.
    here = (report.get("run") or {}).get("host") in (None, os.uname().nodename)
    trouble = [
        _write_file(directory, report, settings.telemetry.textfile) if settings.telemetry.textfile and here else "",
        _send(directory, settings.telemetry.otlp, deadline) if settings.telemetry.otlp else "",
    ]
    return [wording.printable(line) for line in trouble if line]


def _write_file(directory: str, report: Mapping[str, Any], place: str) -> str:
    figures = figures_of(directory)
    figures.end(report.get("exit") or {}, report.get("diagnosis") or {})
    return textfile.Textfile(place, report.get("run") or {}).put(figures.state)


def _send(directory: str, endpoint: str, deadline: float) -> str:
    """In a process of its own: a name server that does not answer cannot be interrupted otherwise."""
    if why := otlp.hindrance(endpoint):
        return why
    left = min(otlp.DEADLINE_S, deadline - time.monotonic())
    argv = reporter.command("telemetry.otlp", [os.fsencode(directory), b"--end"])
    if not argv or left <= 0:
        return "no time was left to send the end to the OTLP receiver (report.deadline)"
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, otlp.VARIABLE: endpoint},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=left,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the OTLP receiver did not answer within {left:.0f} s: it does not have the run's end"
    except OSError as error:
        return f"cannot start the export by OTLP ({error.strerror})"
    if done.returncode == 0:
        return ""
    last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it failed without a word"])[-1]
    return f"{last.removeprefix('gpualert: ')}: the OTLP receiver does not have the run's end"
