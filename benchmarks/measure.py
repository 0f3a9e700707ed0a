"""Timing whole processes: interleaved pairs, medians, ratios."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What was measured.
        goal: What it should reach.
        measured: What it reached, with its baseline.
        met: Whether it did; None where that cannot be said.
    """

    what: str
    goal: str
    measured: str
    met: bool | None

    def __str__(self) -> str:
        """The line in Markdown."""
        verdict = {True: "yes", False: "no", None: "-"}[self.met]
        return f"| {self.what} | {self.goal} | {self.measured} | {verdict} |"


def seconds(command: str) -> float:
    """How long a shell command takes.

    Args:
        command: The command; must succeed.
    """
    began = time.perf_counter()
    subprocess.run(["sh", "-c", command], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def paired(commands: Sequence[str], runs: int, between: Callable[[], None] = lambda: None) -> list[float]:
    """The median time of each command, run in turn so that the machine's mood touches all alike.

    Args:
        commands: Shell commands.
        runs: How often each is run; one run before that does not count.
        between: Done after each command.
    """
    times: list[list[float]] = [[] for _ in commands]
    for number in range(runs + 1):
        for taken, command in zip(times, commands, strict=True):
            value = seconds(command)
            between()
            if number:
                taken.append(value)
    return [statistics.median(taken) for taken in times]


def spent(argv: Sequence[str]) -> tuple[float, int]:
    """Seconds and peak resident memory in KiB of one process, without its descendants.

    Args:
        argv: The command; must succeed.
    """
    began = time.perf_counter()
    pid = os.posix_spawn(argv[0], list(argv), dict(os.environ))
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise subprocess.CalledProcessError(status, list(argv))
    return time.perf_counter() - began, usage.ru_maxrss


def page() -> int:
    """The size of a memory page in bytes."""
    return resource.getpagesize()
