"""The timeline of a run: how its output and memory went, and what happened when; from the run directory alone."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import excerpt
from gpualert.report import lanes, moments
from gpualert.report.span import Span, seconds_of
from gpualert.rundir import assembly, index, regular
from gpualert.rundir.clock import rfc3339
from gpualert.telemetry.record import Telemetry

if TYPE_CHECKING:
    from gpualert.rundir.reader import Run

__all__ = ["of", "seconds_of", "span_of"]

MAX_INDEX_BYTES = 256 << 20


def span_of(run: Run) -> Span | None:
    """When a run was; None where its times are unknown.

    Args:
        run: The run; of one that goes on, with its duration so far.
    """
    end = run.exit or {}
    start, ended = seconds_of(run.facts.get("started_at")), seconds_of(end.get("ended_at"))
    taken = end.get("duration_s")
    if ended is None and start is not None and isinstance(taken, int | float):
        ended = start + taken  # of a run that goes on
    if start is None or ended is None:
        return None
    return Span(start, max(ended - start, 1e-3))


def of(run: Run, root_line: int | None = None, seen: Telemetry | None = None) -> dict[str, Any] | None:
    """The timeline of a run.

    Args:
        run: The run.
        root_line: The decisive line's number in the log, to find when it was printed.
        seen: What the collector has left.

    Returns:
        ``start`` (RFC 3339), ``duration_s``, ``lanes`` (see ``report.lanes``), ``gpus`` (a lane for each GPU, of its
        utilisation), ``marks`` (see ``report.moments``) and ``cause_at`` (when the decisive line was printed); None
        where the run's times are unknown.
    """
    span, seen = span_of(run), seen or Telemetry()
    if span is None:
        return None
    times, offsets = _index(run)
    marks = moments.of(run, span, seen)
    cause = _printed_at(run, root_line, times, offsets)
    if cause is not None:
        marks.append({"at_s": span.within(cause / 1e6), "kind": "cause", "label": "decisive line"})
    return {
        "start": rfc3339(round(span.start * 1e6)),
        "duration_s": round(span.duration, 3),
        "lanes": lanes.of(run, span, times, offsets, seen),
        "gpus": lanes.own(seen, span),
        "marks": moments.few(marks),
        "cause_at": rfc3339(cause) if cause is not None else None,
    }


def _index(run: Run) -> tuple[array[int], list[int]]:
    """When each piece of output came, in microseconds since 1970, and where it ends in the log, in bytes."""
    nothing: tuple[array[int], list[int]] = (array("Q"), [])
    try:
        with open(regular.opened(os.path.join(run.path, assembly.INDEX)), "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_INDEX_BYTES or file.read(index.RECORD) != index.HEADER:
                return nothing
            data = file.read(MAX_INDEX_BYTES)
    except OSError:
        return nothing
    words = array("Q")
    words.frombytes(data[: len(data) - len(data) % index.RECORD])
    return words[0::2], list(accumulate(packed >> 8 for packed in words[1::2]))


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
