"""Samples put together, so that a run of a week leaves no more than some megabytes.

A line stands for all samples since the last one: of what goes up and down the mean, of what matters for its height the
highest, of what is counted the last.
"""

from __future__ import annotations

from typing import Any

FIRST_S, MOST_S = 5.0, 300.0
SHARE = 200
"""A line is written as often as this many times over the run so far."""

_MEANS = ("utilization", "power_w")
_HIGHEST = (
    "memory_used", "temperature_c", "rss", "shm_used", "memory_some", "memory_full", "io_full", "io_some", "cpu_some",
    "ecc_corrected", "ecc_uncorrected", "remapped_rows", "nvlink_errors", "processes", "threads",
)  # fmt: skip
_UNITED = ("throttle",)


def write_every_s(run_s: float) -> float:
    """How long a line stands for, in seconds.

    Args:
        run_s: How long the run has gone on, in seconds.
    """
    return min(max(run_s / SHARE, FIRST_S), MOST_S)


class Thinning:
    """Samples that wait to be written."""

    __slots__ = ("_counts", "_held")

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}
        self._counts = 0

    def add(self, sample: dict[str, Any]) -> None:
        """Put a sample to those that wait.

        Args:
            sample: Plain values; ``gpus`` and ``psi`` hold more of them.
        """
        self._counts += 1
        self._held = _merged(self._held, sample, self._counts)

    def take(self) -> dict[str, Any] | None:
        """All that wait as one; None where none does."""
        held, self._held, self._counts = self._held, {}, 0
        return held or None


def _merged(before: dict[str, Any], now: dict[str, Any], count: int) -> dict[str, Any]:
    found = {**before, **now}
    for key in before.keys() & now.keys():
        old, new = before[key], now[key]
        if key == "gpus":
            known = {gpu.get("index"): gpu for gpu in old}
            found[key] = [_merged(known.get(gpu.get("index"), {}), gpu, count) for gpu in new]
        elif isinstance(new, dict) and isinstance(old, dict):
            found[key] = _merged(old, new, count)
        elif key in _MEANS:
            found[key] = round(old + (new - old) / count, 2)
        elif key in _HIGHEST:
            found[key] = max(old, new)
        elif key in _UNITED:
            found[key] = sorted({*old, *new})
    return found
