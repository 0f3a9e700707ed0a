"""How durations, sizes and endings read, everywhere in the same words."""

from __future__ import annotations

import math
import signal
from typing import Any


def duration(seconds: float | None) -> str:
    """``3h12m``, ``4m07s``, ``12s``, ``0.3s`` or ``4ms``."""
    if seconds is None or not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 0.1:
        return f"{1000 * seconds:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"


def size(count: float) -> str:
    """``1.2 GiB``."""
    if not math.isfinite(count):
        return "an unknown size"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def gpu_hours(hours: float) -> str:
    """``0.02``, ``3.4`` or ``512``."""
    return f"{hours:.2f}" if hours < 1 else f"{hours:.1f}" if hours < 100 else f"{hours:.0f}"


def ending(exit_facts: dict[str, Any]) -> str:
    """``exit 1``, ``signal 9, SIGKILL`` or ``no exit status``."""
    number = exit_facts.get("signal")
    if isinstance(number, int) and not isinstance(number, bool):
        try:
            return f"signal {number}, {signal.Signals(number).name}"
        except ValueError:
            return f"signal {number}"
    code = exit_facts.get("exit_code")
    return f"exit {code}" if isinstance(code, int) and not isinstance(code, bool) else "no exit status"


def printable(text: str) -> str:
    """``text`` as one line with nothing in it that a terminal would act on."""
    return "".join(c if c.isprintable() else " " for c in text)


def failed_rank(report: dict[str, Any]) -> int | None:
    """The rank that failed: this run's own, else the one that printed the decisive line; None where nothing tells.

    Args:
        report: The report.
    """
    own = report["run"].get("rank")
    if isinstance(own, int) or "ranks" in report:
        return own if isinstance(own, int) else None
    diagnosis = report["diagnosis"]
    first = diagnosis["evidence"][0] if diagnosis and diagnosis["root"] and diagnosis["evidence"] else {}
    rank = first.get("rank")
    return rank if isinstance(rank, int) else None


def place(run: dict[str, Any]) -> str:
    """``rank 3 of 8 on node gpu-17``; empty where nothing is known."""
    parts = []
    rank, world = run.get("rank"), run.get("world_size")
    if isinstance(rank, int):
        parts.append(f"rank {rank} of {world}" if isinstance(world, int) else f"rank {rank}")
    node = run.get("node") or run.get("host")
    if node:
        parts.append(f"on {'node ' if run.get('node') else ''}{printable(str(node))}")
    return " ".join(parts)


def steps(diagnosis: dict[str, Any], most: int = 1) -> list[str]:
    """What to do first, as lines: ``try: a smaller batch``; before it what not to do, as it is.

    Args:
        diagnosis: The diagnosis.
        most: How many things to do.
    """
    listed = diagnosis["suggestions"]
    against = [one for one in listed[:1] if one.startswith(("do not ", "same node ", "another node "))]
    return [*against, *(f"try: {one}" for one in listed[len(against) : len(against) + most])]
