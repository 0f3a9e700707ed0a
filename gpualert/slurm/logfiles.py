"""Where a job's output is: Slurm's patterns in file names, and the files that they stand for.

Source: sbatch(1) "filename pattern", srun(1) "IO Redirection". Seen with Slurm 22.05: scontrol expands ``%j``, ``%x``
and ``%u`` unless there is a ``%t``, ``%N``, ``%n`` or ``%s`` in the name, which it leaves.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpualert.slurm.record import Record

STALE_S = 120.0
"""A file that was last written so long before its job started is another job's of the same name; clocks of file servers
differ."""
FILES_MAX = 20_000
_TOKEN = re.compile(r"%(\d{0,2})([%A-Za-z])")
_OWN = "tnNsJ"
"""What differs between tasks, nodes and steps of one job."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file that holds output of a job.

    Attributes:
        path: The file.
        task: The task (``%t``) whose output it is, or the number of the node (``%n``); None for a whole job's.
        node: The node (``%N``) in its name.
        written_at: When it was last written, in seconds since 1970; None for an empty one.
    """

    path: str
    task: int | None = None
    node: str | None = None
    written_at: float | None = None


def per_task(pattern: str) -> bool:
    """Whether a pattern stands for a file of each task or node."""
    return any(match[2] in "tn" for match in _TOKEN.finditer(pattern))


def _values(record: Record) -> Mapping[str, str]:
    array = record.array if record.array is not None else record.number
    task = record.task if record.task is not None else 4294967294  # NO_VAL, as Slurm itself prints it
    return {
        "%": "%",
        "A": str(array),
        "a": str(task),
        "b": str(task % 10),
        "j": str(record.number),
        "u": record.user,
        "x": record.name,
    }


def _forms(pattern: str, record: Record, fixed: Mapping[str, str]) -> tuple[str, str]:
    """A pattern as a glob and as a regular expression with the groups ``t``, ``n`` and ``N``."""
    values = {**_values(record), **fixed}
    free = {"t": r"(?P<t>\d+)", "n": r"(?P<n>\d+)", "N": r"(?P<N>[\w.-]+)", "s": r"\w+", "J": rf"{record.number}\.\w+"}
    wild, exact, at = "", "", 0
    seen: set[str] = set()
    for match in _TOKEN.finditer(pattern):
        between = pattern[at : match.start()]
        wild += glob.escape(between)
        exact += re.escape(between)
        at = match.end()
        letter = match[2]
        if letter in values:
            # Slurm pads numbers alone (``%4j``), and takes no more than ten digits.
            value = values[letter].zfill(min(int(match[1] or 0), 10)) if letter in "jAabtn" else values[letter]
            wild += glob.escape(value)
            exact += re.escape(value)
        elif letter in free:
            wild += "*"
            exact += free[letter] if letter not in seen else free[letter].replace(f"?P<{letter}>", "?:")
            seen.add(letter)
        else:
            wild += glob.escape(match[0])
            exact += re.escape(match[0])
    return wild + glob.escape(pattern[at:]), exact + re.escape(pattern[at:])


def find(pattern: str, record: Record, *, batch: bool = False) -> list[LogFile]:
    """The files that a pattern stands for, by task.

    Args:
        pattern: The name, from the root or the job's working directory.
        record: The job.
        batch: It is the batch script's own output, whose task and node are number 0.

    Returns:
        Those that exist and were written since the job started.
    """
    place = "" if pattern.startswith("/") else os.path.join(record.work_dir or "/", "")
    if "\\" in pattern:  # nothing in it is a pattern then
        plain = pattern.replace("\\", "")
        wild, exact = glob.escape(plain), re.escape(plain)
    else:
        wild, exact = _forms(pattern, record, {"t": "0", "n": "0", "s": "batch"} if batch else {})
    found = []
    for name in sorted(glob.iglob(glob.escape(place) + wild))[:FILES_MAX]:
        match = re.fullmatch(re.escape(place) + exact, name)
        if match is None:
            continue
        parts = match.groupdict()
        task = parts.get("t") or parts.get("n")
        try:
            info = os.stat(name)
        except OSError:
            continue
        if record.started_at is not None and info.st_mtime < record.started_at - STALE_S:
            continue
        written = info.st_mtime if info.st_size else None
        found.append(LogFile(name, int(task) if task else None, parts.get("N"), written))
    return sorted(found, key=lambda one: (one.task is None, one.task or 0, one.path))
