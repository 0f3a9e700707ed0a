"""A run's figures as a file for the textfile collector of Prometheus's node-exporter.

Sources: Prometheus "Exposition formats" (text format 0.0.4) and "Metric and label naming"; node-exporter's
``collector/textfile.go``: it reads ``*.prom``, and one series that two files have in common spoils all of its metrics.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING, Any

from gpualert.rundir.writer import clean_name, write_all
from gpualert.telemetry.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX, SUFFIX = "gpualert-", ".prom"
KEPT_S = 24 * 3600.0
"""How long the file of a run that has ended stays: the next run removes it then."""
MODE = 0o644
MAX_LABEL = 200
_LABEL = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def label(value: str) -> str:
    """A label's value as it stands between the quotes.

    Args:
        value: The value: of at most ``MAX_LABEL`` characters, and what cannot be printed becomes ``?``.
    """
    shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in value[:MAX_LABEL])
    return shown.translate(_LABEL)


def sample(value: float) -> str:
    """A sample's value."""
    if value - value != 0:  # infinite, or not a number
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"  # noqa: PLR0124  (so one asks for NaN)
    return repr(value)


def render(facts: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """The text of a run's file.

    Args:
        facts: What ``run.json`` holds.
        state: What ``Figures.state`` holds.
    """
    # Each series has the run's id: two runs on a node must have none in common.
    run_id = str(facts.get("run_id") or "")
    lines = []
    for metric in METRICS:
        series: dict[str, float] = {}
        for labels, value in metric.read(facts, state):
            pairs = {"run_id": run_id, **labels}.items()
            series.setdefault(",".join(f'{name}="{label(text)}"' for name, text in pairs), value)
        if series:
            name = f"gpualert_{metric.name}"
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
            lines += [f"{name}{{{labels}}} {sample(value)}" for labels, value in series.items()]
    return "\n".join(lines) + "\n"


def path_of(directory: str, facts: Mapping[str, Any]) -> str:
    """Where a run's file is.

    Args:
        directory: The textfile collector's directory.
        facts: What ``run.json`` holds.
    """
    short = clean_name(str(facts.get("run_id") or "").rpartition("-")[2])[:12]
    return f"{directory.rstrip('/')}/{PREFIX}{clean_name(str(facts.get('name') or ''))}-{short}{SUFFIX}"


def write(directory: str, facts: Mapping[str, Any], text: str) -> None:
    """Put a run's file in its place: node-exporter sees the old one or the new one, whole.

    Args:
        directory: The textfile collector's directory; it must be there.
        facts: What ``run.json`` holds.
        text: What ``render`` has made.

    Raises:
        OSError: It cannot be written.
    """
    path = path_of(directory, facts)
    temporary = f"{path}.{os.getpid()}.tmp"  # not *.prom, so node-exporter does not look at it
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    # Others may write into such a directory too: what they have put there is not followed.
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        try:
            write_all(fd, text.encode("utf-8", "replace"))
            os.fchmod(fd, MODE)  # node-exporter is another user, whatever our umask
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def expire(directory: str) -> int:
    """Remove the files of runs that nobody has written to for a day.

    Args:
        directory: The textfile collector's directory.

    Returns:
        How many there were.
    """
    removed, oldest = 0, time.time() - KEPT_S
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(PREFIX)]
    except OSError:
        return 0
    for name in names:
        path = f"{directory.rstrip('/')}/{name}"
        with contextlib.suppress(OSError):
            state = os.lstat(path)
            ours = name.endswith((SUFFIX, ".tmp")) and stat.S_ISREG(state.st_mode)
            if ours and state.st_mtime < oldest:
                os.unlink(path)
                removed += 1
    return removed


class Textfile:
    """A run's file, kept up to date while the run goes on."""

    __slots__ = ("_directory", "_facts", "_said")

    def __init__(self, directory: str, facts: Mapping[str, Any]) -> None:
        """Remove what earlier runs have left; nothing is written yet.

        Args:
            directory: The textfile collector's directory.
            facts: What ``run.json`` holds.
        """
        self._directory, self._facts, self._said = directory, facts, False
        expire(directory)

    def put(self, state: Mapping[str, Any]) -> str:
        """Write the file. Never raises for what the directory does.

        Args:
            state: What ``Figures.state`` holds.

        Returns:
            A line of trouble, the first time that it could not be written; else nothing.
        """
        try:
            write(self._directory, self._facts, render(self._facts, state))
        except OSError as error:
            said, self._said = self._said, True
            return "" if said else trouble(self._directory, error)
        return ""


def trouble(directory: str, error: OSError) -> str:
    """What to say where a run's file cannot be written.

    Args:
        directory: The textfile collector's directory.
        error: Why.
    """
    return f"cannot write {directory} ({error.strerror or 'an error'}): node-exporter does not get this run's figures"
