"""The lanes of a timeline: how output, memory, GPUs and training went, each in few points.

A lane has ``name``, ``unit``, ``limit`` (or None) and ``points``, rows of seconds since the start and a value; where it
stands for several GPUs, ``band`` has rows of seconds, the lowest and the highest value. A rate holds from one point to
the next.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpualert.report.span import Span
    from gpualert.rundir.reader import Run
    from gpualert.telemetry.record import Telemetry

POINTS = 120
"""How many points a lane has at most: more than that no chart of this width shows."""
OWN_POINTS, OWN_MAX = 60, 16
"""How many points the lane of a single GPU has, and for how many GPUs there are such lanes."""
MAX_EVENTS = 200_000
SHM_WORTH, PRESSURE_WORTH = 0.1, 1.0
"""From which share of /dev/shm, and from how many percent of the time, a lane is worth its place."""
IDLE_AFTER_S, LAST_STEPS_S = 90.0, 30.0
"""Progress is written down every 30 s as long as there is some: in a longer gap the steps stood still, and were made at
its end, at the usual pace."""

Lane = dict[str, Any]


def of(run: Run, span: Span, times: array[int], offsets: list[int], seen: Telemetry) -> list[Lane]:
    """All lanes of a run, the most telling first.

    Args:
        run: The run.
        span: When it was.
        times: When each piece of output came, in microseconds since 1970.
        offsets: Where each piece ends in the log, in bytes.
        seen: What the collector has left.
    """
    found = (
        output(times, offsets, span),
        steps(seen, span),
        *_of_gpus(seen, span),
        host_memory(run, span),
        shared_memory(seen, span),
        pressure(seen, span),
    )
    return [lane for lane in found if lane is not None]


def output(times: array[int], offsets: list[int], span: Span) -> Lane | None:
    """Bytes a second, from one point to the next; None where nothing was printed.

    Args:
        times: When each piece of output came, in microseconds since 1970.
        offsets: Where each piece ends in the log, in bytes.
        span: When the run was.
    """
    if not offsets:
        return None
    width = span.duration / POINTS
    borders = [bisect_left(times, (span.start + step * width) * 1e6) for step in range(1, POINTS)] + [len(times)]
    totals = [0, *(offsets[border - 1] if border else 0 for border in borders)]
    rates = [max(after - before, 0) / width for before, after in pairwise(totals)]
    points = [[round(step * width, 3), round(rate, 1)] for step, rate in enumerate(rates)]
    return {"name": "output", "unit": "bytes/s", "limit": None, "points": points}


def host_memory(run: Run, span: Span) -> Lane | None:
    """Memory of the control group, in bytes; of the samples in a point's time the highest.

    Args:
        run: The run.
        span: When it was.
    """
    values, limit = [], None
    for number, event in enumerate(run.events()):
        if number >= MAX_EVENTS:
            break
        at, used = span.moment(event.get("at")), event.get("working_set") or event.get("current")
        if event.get("event") != "memory" or at is None or not isinstance(used, int):
            continue
        limit = event["limit"] if isinstance(event.get("limit"), int) else limit
        values.append((at, used))
    points = _highest(values, span)
    return {"name": "host memory", "unit": "bytes", "limit": limit, "points": points} if len(points) > 1 else None


def shared_memory(seen: Telemetry, span: Span) -> Lane | None:
    """What was used of /dev/shm, in bytes; None where that never was a tenth of it.

    Args:
        seen: What the collector has left.
        span: When the run was.
    """
    size = max((sample["shm_size"] for sample in seen.samples if _is(sample.get("shm_size"))), default=0)
    values = list(_values(seen, span, lambda sample: sample.get("shm_used")))
    if not size or max((value for _, value in values), default=0) <= SHM_WORTH * size:
        return None
    return _lane("shared memory", "bytes", _highest(values, span), size)


def pressure(seen: Telemetry, span: Span) -> Lane | None:
    """The share of the time in which something waited for memory, in percent; None where that is not worth a word.

    Args:
        seen: What the collector has left.
        span: When the run was.
    """
    values = list(_values(seen, span, lambda sample: (sample.get("psi") or {}).get("memory_some")))
    if max((value for _, value in values), default=0) <= PRESSURE_WORTH:
        return None
    return _lane("memory pressure", "% waiting", _highest(values, span))


def steps(seen: Telemetry, span: Span) -> Lane | None:
    """Training steps a second; None where no progress was recognised, or only once.

    Args:
        seen: What the collector has left.
        span: When the run was.
    """
    pieces = list(_stretches(seen, span))
    if not pieces:
        return None
    width = span.duration / POINTS
    totals = [0.0] * POINTS
    for start, end, rate in pieces:
        for number in range(span.bucket(start, POINTS), span.bucket(end, POINTS) + 1):
            common = min(end, (number + 1) * width) - max(start, number * width)
            totals[number] += rate * max(common, 0.0)
    # Before the first known step nothing is known; after the last one none was made.
    begin = span.bucket(pieces[0][0], POINTS)
    points = [[round(number * width, 3), round(totals[number] / width, 4)] for number in range(begin, POINTS)]
    return _lane("training steps", "steps/s", points)


def _stretches(seen: Telemetry, span: Span) -> Iterator[tuple[float, float, float]]:
    """Stretches of the run with the steps a second in each: from, to (seconds since the start), rate."""
    known: list[tuple[float, float]] = []
    for event in seen.of("progress"):
        at, step = span.moment(event["at"]), event.get("step")
        if at is not None and step is not None:
            known.append((at, step))
    pairs = [(before, after, new - old) for (before, old), (after, new) in pairwise(known) if after > before]
    pairs = [pair for pair in pairs if pair[2] >= 0]  # else a counter that began anew
    usual = sorted(made / (after - before) for before, after, made in pairs if made)
    pace = usual[len(usual) // 2] if usual else 0.0
    for before, after, made in pairs:
        gap = after - before
        needed = max(made / pace if pace else 0.0, LAST_STEPS_S)
        worked = gap if gap <= IDLE_AFTER_S else min(needed, gap)
        yield after - worked, after, made / worked


# -- GPUs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A figure of each GPU that makes one lane together."""

    name: str
    unit: str
    field: str
    fullest: bool = False
    """The line is the highest of all GPUs, not their mean."""
    limit: str = ""


_GPU_LANES = (
    _Wanted("GPU utilisation", "%", "utilization"),
    _Wanted("GPU memory", "bytes", "memory_used", fullest=True, limit="memory_total"),
    _Wanted("GPU power", "W", "power_w"),
)


def _of_gpus(seen: Telemetry, span: Span) -> Iterator[Lane | None]:
    for wanted in _GPU_LANES:
        yield _together(seen, span, wanted)


def _together(seen: Telemetry, span: Span, wanted: _Wanted) -> Lane | None:
    """One lane for all GPUs, with a band from the lowest to the highest where there are several."""
    held: dict[int, list[tuple[float, list[float]]]] = {}
    limit: float | None = None
    several = False
    for at, gpus in gpu_samples(seen, span):
        values = [float(gpu[wanted.field]) for gpu in gpus if _is(gpu.get(wanted.field))]
        if not values:
            continue
        several = several or len(values) > 1
        limit = max([limit or 0, *(gpu[wanted.limit] for gpu in gpus if _is(gpu.get(wanted.limit)))]) or None
        held.setdefault(span.bucket(at, POINTS), []).append((at, values))
    if not held:
        return None
    points, band = [], []
    for number in sorted(held):
        rows = held[number]
        at = rows[0][0]
        all_values = [value for _, values in rows for value in values]
        line = max(all_values) if wanted.fullest else _mean(all_values)
        points.append([at, round(line, 1)])
        band.append([at, round(min(all_values), 1), round(max(all_values), 1)])
    lane = _lane(wanted.name, wanted.unit, points, limit)
    if lane is not None and several:
        lane["band"] = band
    return lane


def own(seen: Telemetry, span: Span) -> list[dict[str, Any]]:
    """A lane of utilisation for each GPU, where there are several but not too many.

    Args:
        seen: What the collector has left.
        span: When the run was.
    """
    found: dict[Any, list[tuple[float, float]]] = {}
    for at, gpus in gpu_samples(seen, span):
        for number, gpu in enumerate(gpus):
            if _is(gpu.get("utilization")):
                found.setdefault(key_of(gpu, number), []).append((at, gpu["utilization"]))
    if not 1 < len(found) <= OWN_MAX:
        return []
    lanes = []
    for gpu, values in sorted(found.items(), key=lambda item: str(item[0]).rjust(40)):
        lane = _lane(f"GPU {gpu}", "%", _means(values, span, OWN_POINTS))
        lanes += [lane] if lane is not None else []
    return lanes


def gpu_samples(seen: Telemetry, span: Span) -> Iterator[tuple[float, list[dict[str, Any]]]]:
    """The samples that hold GPUs: seconds since the start, and the GPUs.

    Args:
        seen: What the collector has left.
        span: When the run was.
    """
    for sample in seen.samples:
        at, gpus = span.moment(sample["at"]), sample.get("gpus")
        if at is not None and gpus:
            yield at, gpus


def key_of(gpu: dict[str, Any], position: int) -> Any:
    """What tells a GPU from the others in inventory and samples.

    Args:
        gpu: Its entry.
        position: Where it stands among the entries.
    """
    return gpu.get("index", gpu.get("uuid", position))


# -- points ------------------------------------------------------------------------------------------------------------


def _is(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _values(seen: Telemetry, span: Span, pick: Callable[[dict[str, Any]], Any]) -> Iterator[tuple[float, float]]:
    for sample in seen.samples:
        at, value = span.moment(sample["at"]), pick(sample)
        if at is not None and _is(value):
            yield at, value


def _highest(values: Iterable[tuple[float, float]], span: Span) -> list[list[float]]:
    """Of the values in a point's time the highest, where it was."""
    buckets: dict[int, list[float]] = {}
    for at, value in values:
        point = buckets.setdefault(span.bucket(at, POINTS), [at, value])
        if value > point[1]:
            point[:] = [at, value]
    return [buckets[number] for number in sorted(buckets)]


def _means(values: Iterable[tuple[float, float]], span: Span, count: int) -> list[list[float]]:
    buckets: dict[int, list[tuple[float, float]]] = {}
    for at, value in values:
        buckets.setdefault(span.bucket(at, count), []).append((at, value))
    return [[rows[0][0], round(_mean([value for _, value in rows]), 1)] for _, rows in sorted(buckets.items())]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _lane(name: str, unit: str, points: list[list[float]], limit: float | None = None) -> Lane | None:
    return {"name": name, "unit": unit, "limit": limit, "points": points} if len(points) > 1 else None
