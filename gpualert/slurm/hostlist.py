"""Slurm's short forms of lists: ``gpu[01-03,7],login1`` for nodes, ``0-3,7`` for tasks.

Source: Slurm, ``scontrol show hostnames``; ``sbatch --array`` (steps by ``:``, a limit after ``%``).
"""

from __future__ import annotations

import re

MAX = 100_000
"""How many entries a list may have; an array has at most 4,000,001 tasks, a cluster fewer nodes than this."""
_BRACKET = re.compile(r"^([^\[\],]*)\[([^\]]*)\]")


def nodes(text: str) -> tuple[str, ...]:
    """``("gpu01", "gpu02", "login1")`` for ``gpu[01-02],login1``; none where Slurm names none.

    Args:
        text: The list as Slurm prints it.
    """
    if text.strip() in ("", "(null)", "None assigned", "None", "N/A"):
        return ()
    return tuple(dict.fromkeys(name for part in _parts(text.strip()) for name in _expanded(part)))[:MAX]


def _parts(text: str) -> list[str]:
    """The entries, split at the commas outside of brackets."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


def _expanded(part: str) -> list[str]:
    found = _BRACKET.match(part)
    if found is None:
        return [part]
    rest = _expanded(part[found.end() :])
    return [f"{found[1]}{number}{end}" for number in _padded(found[2]) for end in rest]


def _padded(text: str) -> list[str]:
    listed: list[str] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if high.isdigit() and low.isdigit():
            listed += [str(number).zfill(len(low)) for number in range(int(low), min(int(high), int(low) + MAX) + 1)]
        else:
            listed.append(part)
    return listed


def numbers(text: str) -> frozenset[int]:
    """The task numbers of ``0-3,8-16:4%2``.

    Args:
        text: The list as Slurm prints it, with or without brackets.

    Raises:
        ValueError: It is no such list.
    """
    found: set[int] = set()
    for part in text.strip("[]").partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            raise ValueError(text)
        low, high, by = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or by < 1 or (high - low) // by > MAX:
            raise ValueError(text)
        found.update(range(low, high + 1, by))
    return frozenset(found)
