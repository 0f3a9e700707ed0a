"""What a batch script says of where its tasks write: the ``--output`` and ``--error`` of its ``srun`` lines.

Slurm itself keeps the names of a step's files only while the step runs.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpualert.slurm.record import Record

_ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=([^\s;|&]*|\"[^\"]*\"|'[^']*')\s*(?:#.*)?$")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_FLAGS = frozenset(
    {"--label", "--unbuffered", "--exclusive", "--overlap", "--exact", "--whole", "--contiguous", "--no-kill",
     "--disable-status", "--multi-prog", "--preserve-env", "--pty", "--quiet", "--verbose", "--spread-job",
     "--use-min-nodes", "--overcommit", "--oversubscribe", "--kill-on-bad-exit", "--interactive", "--no-allocate",
     "--reboot", "--hold", "--mpi-combine", "--test-only", "--quit-on-interrupt"}
)  # fmt: skip
"""Options of srun that stand alone; every other one takes the next word, unless it has its own after ``=``."""
_SHORT_FLAGS = frozenset("lkKuQqvsOXEZH")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where tasks write.

    Attributes:
        patterns: The names, with Slurm's patterns in them.
        unclear: Names with a variable that only the job knew.
    """

    patterns: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()


def outputs(text: str, record: Record) -> Outputs:
    """Where the tasks of a batch script write.

    Args:
        text: The script.
        record: The job, whose variables are put in.
    """
    variables = _known(record)
    patterns: list[str] = []
    unclear: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        assigned = _ASSIGNED.match(line)
        if assigned is not None:
            value = _filled(assigned[2].strip("\"'"), variables)
            if value is not None and "`" not in value and "$" not in value:
                variables[assigned[1]] = value
            continue
        for name in _of_line(line):
            filled = _filled(name, variables)
            if filled is None or "$" in filled or "`" in filled:
                unclear.append(name)
            elif filled not in ("none", "all", "/dev/null") and not filled.isdigit():
                patterns.append(filled)
    return Outputs(tuple(dict.fromkeys(patterns)), tuple(dict.fromkeys(unclear)))


def _known(record: Record) -> dict[str, str]:
    known = {
        "SLURM_JOB_ID": str(record.number),
        "SLURM_JOBID": str(record.number),
        "SLURM_JOB_NAME": record.name,
        "SLURM_SUBMIT_DIR": record.work_dir,
        "PWD": record.work_dir,
        "SLURM_RESTART_COUNT": str(record.restarts),
        "SLURM_PROCID": "%t",
        "USER": record.user,
        "SLURM_JOB_USER": record.user,
        "HOME": os.path.expanduser(f"~{record.user}"),
    }
    if record.array is not None:
        known |= {"SLURM_ARRAY_JOB_ID": str(record.array), "SLURM_ARRAY_TASK_ID": str(record.task)}
    return known


def _filled(text: str, variables: Mapping[str, str]) -> str | None:
    """``text`` with the values of its variables; None where one is not known."""
    names = [match[1] or match[2] for match in _VARIABLE.finditer(text)]
    if any(name not in variables for name in names):
        return None
    return _VARIABLE.sub(lambda match: variables[match[1] or match[2]], text)


def _of_line(line: str) -> list[str]:
    """What the options of the ``srun`` in a line name, if there is one; what follows the program is the program's."""
    if "srun" not in line:
        return []
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []  # a quotation that goes on in the next line
    start = next((at for at, word in enumerate(words) if word == "srun" or word.endswith("/srun")), None)
    found: list[str] = []
    at = len(words) if start is None else start + 1
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, value, used = _option(words[at], words[at + 1] if at + 1 < len(words) else "")
        if name in ("-o", "--output", "-e", "--error") and value:
            found.append(value)
        at += used
    return found


def _option(word: str, following: str) -> tuple[str, str, int]:
    """An option's name and value, and how many words they take."""
    if word.startswith("--"):
        name, glued, value = word.partition("=")
        if glued or name in _FLAGS:
            return name, value, 1
        return name, following, 2
    if word[1:2] in _SHORT_FLAGS:
        return word[:2], "", 1
    return (word[:2], word[2:].removeprefix("="), 1) if len(word) > 2 else (word, following, 2)
