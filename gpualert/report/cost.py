"""What a run has used up: GPU-hours, those of them in which nothing was done, and energy."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gpualert.report import wording
from gpualert.report.lanes import gpu_samples, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpualert.report.span import Span
    from gpualert.telemetry.record import Telemetry

IDLE_PERCENT = 1.0
"""A GPU whose utilisation is below this does nothing."""
IDLE_WORTH_S = 60.0
"""Progress is written down every 30 s: less idle time than this is none."""
GAP_S = 900.0
"""Samples are 5 s to 300 s apart; over a longer gap nobody knows."""
JOULES_PER_KWH = 3.6e6
HOURS_WORTH, KWH_WORTH = 0.01, 0.001
"""From how many GPU-hours and kilowatt hours on they are worth a word."""

Cost = dict[str, Any]


def of(
    gpus: int | None, duration_s: float | None, silent_s: float | None, seen: Telemetry, span: Span | None
) -> Cost | None:
    """The cost of a run.

    Args:
        gpus: How many GPUs the environment gave it; None where nothing told, then those that the driver named count.
        duration_s: How long it ran, in seconds.
        silent_s: How long it printed nothing before its end, in seconds.
        seen: What the collector has left.
        span: When it was; None where that is unknown.

    Returns:
        ``gpus``, ``gpu_hours`` and ``silent_gpu_hours`` (after the last output); ``idle_gpu_hours`` with ``idle_by``
        (``progress``: since the last training step; ``hang``: since it hangs; ``utilization``: while a GPU's was 0 %)
        and ``energy_kwh`` with ``energy_by`` (``counter``: of the GPUs' energy counters; ``power``: from samples of
        their power), None where unknown; ``devices``, the GPUs' UUIDs. None where the GPUs are unknown or none.
    """
    devices = uuids(seen)
    count = gpus if gpus is not None else len(devices) or _most(seen)
    if not count or duration_s is None:
        return None
    idle_s, idle_by = _idle(seen, span, count)
    energy, energy_by = _energy(seen, span)
    return {
        "gpus": count,
        "gpu_hours": count * duration_s / 3600,
        "silent_gpu_hours": count * (silent_s or 0.0) / 3600,
        "idle_gpu_hours": min(idle_s, count * duration_s) / 3600 if idle_s is not None else None,
        "idle_by": idle_by,
        "energy_kwh": energy,
        "energy_by": energy_by,
        "devices": devices,
    }


def uuids(seen: Telemetry) -> list[str]:
    """The UUIDs of the run's GPUs.

    Args:
        seen: What the collector has left.
    """
    inventory = seen.last("inventory") or {}
    return [str(gpu["uuid"])[:80] for gpu in inventory.get("gpus") or [] if gpu.get("uuid")]


def _most(seen: Telemetry) -> int:
    inventory = seen.last("inventory") or {}
    return max((len(line.get("gpus") or []) for line in (inventory, *seen.samples)), default=0)


def _idle(seen: Telemetry, span: Span | None, count: int) -> tuple[float | None, str | None]:
    """GPU-seconds in which nothing was done, and what shows it."""
    if span is None:
        return None, None
    step, hang = seen.last("progress"), seen.last("hang")
    if hang is not None and hang.get("state") != "over" and (since := span.moment(hang.get("since"))) is not None:
        return count * (span.duration - since), "hang"
    if step is not None and (at := span.moment(step["at"])) is not None:
        idle = span.duration - at
        return count * idle if idle >= IDLE_WORTH_S else 0.0, "progress"
    idle, known = 0.0, False
    for (before, _), (after, gpus) in pairwise(gpu_samples(seen, span)):
        shares = [gpu["utilization"] for gpu in gpus if gpu.get("utilization") is not None]
        known = known or bool(shares)
        if 0 < after - before <= GAP_S:
            idle += (after - before) * sum(share < IDLE_PERCENT for share in shares)
    return (idle, "utilization") if known else (None, None)


def _energy(seen: Telemetry, span: Span | None) -> tuple[float | None, str | None]:
    """Kilowatt hours, and what they are from: the counters of all GPUs that have one, else samples of their power."""
    counted = [joules for joules in counters(seen).values() if joules is not None]
    if counted:
        return sum(counted) / JOULES_PER_KWH, "counter"
    if span is None:
        return None, None
    joules, known = 0.0, False
    for (before, _), (after, gpus) in pairwise(gpu_samples(seen, span)):
        watts = [gpu["power_w"] for gpu in gpus if gpu.get("power_w") is not None]
        if watts and 0 < after - before <= GAP_S:
            known = True
            joules += sum(watts) * (after - before)
    return (joules / JOULES_PER_KWH, "power") if known else (None, None)


def counters(seen: Telemetry) -> dict[Any, float | None]:
    """How much each GPU's energy counter rose over the run, in joules; None of a GPU that has none.

    A counter that falls was set back (a driver that was loaded anew): what was counted before and after is added.

    Args:
        seen: What the collector has left.
    """
    last: dict[Any, float] = {}
    risen: dict[Any, float | None] = {}
    for line in (seen.last("inventory") or {}, *seen.samples):
        for number, gpu in enumerate(line.get("gpus") or []):
            key, now = key_of(gpu, number), gpu.get("energy_j")
            risen.setdefault(key, None)
            if now is None:
                continue
            before = last.get(key, now)
            risen[key] = (risen[key] or 0.0) + (now - before if now >= before else now)
            last[key] = now
    return risen


def together(
    gpus: int | None, lasted_s: float | None, idle_s: float | None, ranks: Iterable[Mapping[str, Any] | None]
) -> Cost | None:
    """The cost of a job of several ranks.

    Args:
        gpus: How many GPUs all ranks had together.
        lasted_s: How long the job ran, in seconds.
        idle_s: How long it went on after it had broken, in seconds.
        ranks: What each rank's report says of its cost; None of a rank that says nothing.

    Returns:
        As for one run; what only some ranks tell is summed over those, and ``ranks_known`` says how many these are. A
        GPU that several ranks saw counts once.
    """
    told = [rank for rank in ranks if rank]
    listed = [device for rank in told for device in rank.get("devices") or []]
    # Ranks of one node without a share of the GPUs of their own each see, and measure, all of them.
    share = len(set(listed)) / len(listed) if listed else 1.0
    count = gpus or round(share * sum(rank.get("gpus") or 0 for rank in told))
    if not count or lasted_s is None:
        return None
    kwh = [value for rank in told if (value := number(rank.get("energy_kwh"))) is not None]
    idle = [value for rank in told if (value := number(rank.get("idle_gpu_hours"))) is not None]
    by = {str(rank.get("energy_by")) for rank in told if rank.get("energy_kwh") is not None}
    return {
        "gpus": count,
        "gpu_hours": count * lasted_s / 3600,
        "silent_gpu_hours": count * (idle_s or 0.0) / 3600,
        "idle_gpu_hours": share * sum(idle) if idle else None,
        "idle_by": "ranks" if idle else None,
        "energy_kwh": share * sum(kwh) if kwh else None,
        "energy_by": "counter" if by == {"counter"} else "power" if kwh else None,
        "ranks_known": len(told),
    }


def number(value: object) -> float | None:
    """A value as a number that can be summed; None where it is none.

    Args:
        value: Anything.
    """
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if fits and isinstance(value, int | float) else None


def words(cost: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The cost for a person: names and values, of what is worth a word.

    Args:
        cost: The report's ``cost``.
    """
    if not cost:
        return []
    rows = []
    # Idle says more than silent, where it is known.
    idle = (
        ("of them silent", "silent_gpu_hours")
        if cost.get("idle_gpu_hours") is None
        else ("of them idle", "idle_gpu_hours")
    )
    for name, key in (("GPU-hours", "gpu_hours"), idle):
        hours = number(cost.get(key))
        if hours is not None and hours >= HOURS_WORTH:
            rows.append((name, wording.gpu_hours(hours)))
    kwh = number(cost.get("energy_kwh"))
    if kwh is not None and kwh >= KWH_WORTH:
        about = "about " if cost.get("energy_by") == "power" else ""
        rows.append(("energy", f"{about}{kwh:.3f} kWh" if kwh < 1 else f"{about}{kwh:.1f} kWh"))
    return rows
