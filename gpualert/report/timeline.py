"""The timeline of a run: how its output and memory went, and what happened when; from the run directory alone."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from datetime import datetime
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import excerpt
from gpualert.rundir import assembly, index
from gpualert.rundir.clock import rfc3339

if TYPE_CHECKING:
    from gpualert.rundir.reader import Run

POINTS = 120
"""How many points a lane has at most: more than that no chart of this width shows."""
MARKS, MARKS_ALIKE, MARK_WIDTH = 12, 4, 40
"""How many moments are marked, how many that say the same (the last), and how many characters each has."""
_RANKS = ("cause", "timeout", "oom", "trouble", "signal", "stopped", "continued")
"""Which moments go before others when there are too many."""
MAX_INDEX_BYTES = 256 << 20
MAX_EVENTS = 200_000


def of(run: Run, root_line: int | None = None) -> dict[str, Any] | None:
    """The timeline of a run.

    Args:
        run: The run.
        root_line: The decisive line's number in the log, to find when it was printed.

    Returns:
        ``start`` (RFC 3339), ``duration_s``, ``lanes``, ``marks`` and ``cause_at`` (when the decisive line was
        printed); None where the run's times are unknown. A lane has ``name``, ``unit``, ``limit`` (or None) and
        ``points``, rows of seconds since the start and a value; a rate holds from one point to the next. A mark has
        ``at_s``, ``kind`` (``cause``, ``timeout``, ``oom``, ``trouble``, ``signal``, ``stopped``, ``continued``) and
        ``label``.
    """
    end = run.exit or {}
    start, ended = seconds_of(run.facts.get("started_at")), seconds_of(end.get("ended_at"))
    taken = end.get("duration_s")
    if ended is None and start is not None and isinstance(taken, int | float):
        ended = start + taken  # of a run that goes on
    if start is None or ended is None:
        return None
    duration = max(ended - start, 1e-3)
    times, offsets = _index(run)
    lanes = [lane for lane in (_output(times, offsets, start, duration), _memory(run, start, duration)) if lane]
    marks = _moments(run, start, duration)
    cause = _printed_at(run, root_line, times, offsets)
    if cause is not None:
        marks.append({"at_s": _within(cause / 1e6 - start, duration), "kind": "cause", "label": "decisive line"})
    return {
        "start": rfc3339(round(start * 1e6)),
        "duration_s": round(duration, 3),
        "lanes": lanes,
        "marks": _few(marks),
        "cause_at": rfc3339(cause) if cause is not None else None,
    }


def seconds_of(value: object) -> float | None:
    """Seconds since 1970 of an RFC 3339 text; None where it is none."""
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return None


def _within(at: float, duration: float) -> float:
    """A time inside the run, whatever the node's clock did meanwhile."""
    return round(min(max(at, 0.0), duration), 3)


def _index(run: Run) -> tuple[array[int], list[int]]:
    """When each piece of output came, in microseconds since 1970, and where it ends in the log, in bytes."""
    nothing: tuple[array[int], list[int]] = (array("Q"), [])
    try:
        with open(os.path.join(run.path, assembly.INDEX), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_INDEX_BYTES or file.read(index.RECORD) != index.HEADER:
                return nothing
            data = file.read(MAX_INDEX_BYTES)
    except OSError:
        return nothing
    words = array("Q")
    words.frombytes(data[: len(data) - len(data) % index.RECORD])
    return words[0::2], list(accumulate(packed >> 8 for packed in words[1::2]))


def _output(times: array[int], offsets: list[int], start: float, duration: float) -> dict[str, Any] | None:
    """Bytes a second, from one point to the next."""
    if not offsets:
        return None
    width = duration / POINTS
    borders = [bisect_left(times, (start + step * width) * 1e6) for step in range(1, POINTS)] + [len(times)]
    totals = [0, *(offsets[border - 1] if border else 0 for border in borders)]
    rates = [max(after - before, 0) / width for before, after in pairwise(totals)]
    points = [[round(step * width, 3), round(rate, 1)] for step, rate in enumerate(rates)]
    return {"name": "output", "unit": "bytes/s", "limit": None, "points": points}


def _memory(run: Run, start: float, duration: float) -> dict[str, Any] | None:
    """Memory of the control group, in bytes; of the samples in a point's time the highest."""
    buckets: dict[int, list[float]] = {}
    limit = None
    for number, event in enumerate(run.events()):
        if number >= MAX_EVENTS:
            break
        at, used = seconds_of(event.get("at")), event.get("working_set") or event.get("current")
        if event.get("event") != "memory" or at is None or not isinstance(used, int):
            continue
        limit = event["limit"] if isinstance(event.get("limit"), int) else limit
        moment = _within(at - start, duration)
        point = buckets.setdefault(int(moment / duration * POINTS), [moment, used])
        if used > point[1]:
            point[:] = [moment, used]
    points = [buckets[number] for number in sorted(buckets)]
    return {"name": "host memory", "unit": "bytes", "limit": limit, "points": points} if len(points) > 1 else None


def _moments(run: Run, start: float, duration: float) -> list[dict[str, Any]]:
    """What the journal tells of that a person should see beside the curves."""
    marks: list[dict[str, Any]] = []
    runs, seen, kills = False, 0, None
    first_sample = duration

    def mark(at: float, kind: str, label: str) -> None:
        marks.append({"at_s": _within(at, duration), "kind": kind, "label": label[:MARK_WIDTH]})

    for number, event in enumerate(run.events()):
        if number >= MAX_EVENTS:
            break
        time, kind = seconds_of(event.get("at")), event.get("event")
        if time is None or not isinstance(kind, str):
            continue
        at = time - start
        if kind in ("launched", "exited"):
            runs = kind == "launched"
        elif kind == "signal" and isinstance(event.get("name"), str):
            mark(at, kind, event["name"][:20])
        elif kind == "timeout":
            mark(at, kind, "time limit")
        elif kind in ("stopped", "continued"):
            mark(at, kind, kind)
        elif kind == "trouble" and runs and isinstance(event.get("message"), str):
            mark(at, kind, f"trouble: {event['message']}")
        elif kind == "memory" and isinstance(event.get("oom_kill"), int):
            first_sample = at if kills is None else first_sample
            before, kills = kills, event["oom_kill"]
            if before is not None and kills > before:
                seen += kills - before
                mark(at, "oom", _killed(kills - before))
    # The counter's value from before the launch is not in the journal; the sum is known.
    unseen = _kills_of(run) - seen
    if unseen > 0:
        mark(first_sample, "oom", _killed(unseen))
    return marks


def _kills_of(run: Run) -> int:
    group = (run.exit or {}).get("cgroup")
    kills = group.get("oom_kill") if isinstance(group, dict) else None
    return kills if isinstance(kills, int) else 0


def _killed(kills: int) -> str:
    return "out-of-memory kill" if kills == 1 else f"{kills} out-of-memory kills"


def _few(marks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The marks that matter most, in the order of time."""
    alike: dict[tuple[str, str], int] = {}
    kept = []
    for mark in sorted(marks, key=lambda mark: (_RANKS.index(mark["kind"]), -mark["at_s"])):
        same = (mark["kind"], mark["label"])
        alike[same] = alike.get(same, 0) + 1
        if alike[same] <= MARKS_ALIKE:
            kept.append(mark)
    return sorted(kept[:MARKS], key=lambda mark: mark["at_s"])


def _printed_at(run: Run, line: int | None, times: array[int], offsets: list[int]) -> int | None:
    """When a line of the log was printed, in microseconds since 1970; None where nothing tells."""
    if line is None or not offsets:
        return None
    try:
        offset = excerpt.offset_of_line(run.log_path, line)
    except OSError:
        return None
    piece = bisect_left(offsets, offset + 1)
    return times[piece] if piece < len(times) else None
