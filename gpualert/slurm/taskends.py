"""How the tasks of a step ended, by what ``srun`` prints of them into the batch script's output.

Source: Slurm, ``src/srun/libsrun/srun_job.c`` and ``src/api/step_launch.c``: ``srun: error: gpu-17: task 3: Exited with
exit code 1``, ``... tasks 0-2,4: Killed``, ``... task 3: Segmentation fault (core dumped)``, ``... Out Of Memory``.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from gpualert.slurm import hostlist

TAIL_BYTES = 1 << 20
_LINE = re.compile(
    r"srun: error: (\S+): tasks? ([\d,-]+): ([A-Z][\w /]{2,60}?)\s*(?:\(core dumped\))?\s*$", re.MULTILINE
)
_CODE = re.compile(r"Exited with exit code (\d{1,3})$")
_SIGNALS = {(signal.strsignal(number) or "").lower(): int(number) for number in signal.Signals}


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How one task ended.

    Attributes:
        task: Its number; in a heterogeneous job that within its component.
        node: Its node.
        exit_code: Its exit code; None where a signal ended it.
        signal: The signal.
        out_of_memory: The out-of-memory killer ended it.
    """

    task: int
    node: str
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False


def read(text: str) -> list[TaskEnd]:
    """The ends of tasks, in the order in which ``srun`` told them.

    Args:
        text: The batch script's output, or its end.
    """
    found: dict[tuple[str, int], TaskEnd] = {}
    for match in _LINE.finditer(text):
        code = _CODE.match(match[3])
        memory = match[3].lower() == "out of memory"
        number = 9 if memory else _SIGNALS.get(match[3].lower())
        if code is None and number is None:
            continue
        try:
            tasks = hostlist.numbers(match[2])
        except ValueError:
            continue
        for task in sorted(tasks):
            end = TaskEnd(task, match[1], int(code[1]) if code else None, None if code else number, memory)
            found.setdefault((match[1], task), end)
    return list(found.values())


def tail(path: str) -> str:
    """The end of a log; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(file.seek(0, 2) - TAIL_BYTES, 0))
            return file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
