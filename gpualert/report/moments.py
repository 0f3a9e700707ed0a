"""The moments that a timeline marks: what the journal and the collector tell of beside the curves.

A mark has ``at_s`` (seconds since the start), ``kind`` (one of ``RANKS``), ``label`` and, where it lasted, ``to_s``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpualert.report import wording
from gpualert.report.lanes import MAX_EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpualert.report.span import Span
    from gpualert.rundir.reader import Run
    from gpualert.telemetry.record import Telemetry

MARKS, MARKS_ALIKE, MARK_WIDTH = 12, 4, 40
"""How many moments are marked, how many that say the same (the last), and how many characters each has."""
RANKS = ("cause", "timeout", "xid", "oom", "hang", "kernel", "trouble", "signal", "stopped", "continued", "node")
"""Which moments go before others when there are too many; ``node`` is what the kernel says of others than the job."""

Mark = dict[str, Any]


def of(run: Run, span: Span, seen: Telemetry) -> list[Mark]:
    """All moments of a run, in no order.

    Args:
        run: The run.
        span: When it was.
        seen: What the collector has left.
    """
    return [*_journal(run, span), *_xids(seen, span), *_hangs(seen, span), *_kernel(seen, span)]


def few(marks: list[Mark]) -> list[Mark]:
    """The marks that matter most, in the order of time.

    Args:
        marks: All of them.
    """
    alike: dict[tuple[str, str], int] = {}
    kept = []
    for mark in sorted(marks, key=lambda mark: (RANKS.index(mark["kind"]), -mark["at_s"])):
        same = (mark["kind"], mark["label"])
        alike[same] = alike.get(same, 0) + 1
        if alike[same] <= MARKS_ALIKE:
            kept.append(mark)
    return sorted(kept[:MARKS], key=lambda mark: mark["at_s"])


def _mark(at_s: float, kind: str, label: str) -> Mark:
    return {"at_s": at_s, "kind": kind, "label": label[:MARK_WIDTH]}


def _journal(run: Run, span: Span) -> Iterator[Mark]:
    """Signals, limits, kills and trouble."""
    runs, seen, kills = False, 0, None
    first_sample = span.duration
    for number, event in enumerate(run.events()):
        if number >= MAX_EVENTS:
            break
        at, kind = span.moment(event.get("at")), event.get("event")
        if at is None or not isinstance(kind, str):
            continue
        if kind in ("launched", "exited"):
            runs = kind == "launched"
        elif kind == "signal" and isinstance(event.get("name"), str):
            yield _mark(at, kind, event["name"][:20])
        elif kind == "timeout":
            yield _mark(at, kind, "time limit")
        elif kind in ("stopped", "continued"):
            yield _mark(at, kind, kind)
        elif kind == "trouble" and runs and isinstance(event.get("message"), str):
            yield _mark(at, kind, f"trouble: {event['message']}")
        elif kind == "memory" and isinstance(event.get("oom_kill"), int):
            first_sample = at if kills is None else first_sample
            before, kills = kills, event["oom_kill"]
            if before is not None and kills > before:
                seen += kills - before
                yield _mark(at, "oom", _killed(kills - before))
    # The counter's value from before the launch is not in the journal; the sum is known.
    unseen = _kills_of(run) - seen
    if unseen > 0:
        yield _mark(first_sample, "oom", _killed(unseen))


def _kills_of(run: Run) -> int:
    group = (run.exit or {}).get("cgroup")
    kills = group.get("oom_kill") if isinstance(group, dict) else None
    return kills if isinstance(kills, int) else 0


def _killed(kills: int) -> str:
    return "out-of-memory kill" if kills == 1 else f"{kills} out-of-memory kills"


def _xids(seen: Telemetry, span: Span) -> Iterator[Mark]:
    for event in seen.of("xid"):
        at, code = span.moment(event["at"]), event.get("code")
        if at is not None and code is not None:
            gpu = event.get("gpu")
            yield _mark(at, "xid", f"Xid {code:.0f}" + (f" on GPU {gpu:.0f}" if gpu is not None else ""))


def _hangs(seen: Telemetry, span: Span) -> Iterator[Mark]:
    """Each hang, from when nothing was heard any more to when it went on, or to the end."""
    began: float | None = None
    for event in [*seen.of("hang"), None]:
        state = event.get("state") if event is not None else None
        at = span.moment(event["at"]) if event is not None else span.duration
        if at is None or (event is not None and state not in ("suspected", "over", "terminated")):
            continue
        if state == "suspected" and began is None and event is not None:
            since = span.moment(event.get("since"))
            began = at if since is None else since
        elif state != "suspected" and began is not None:
            lasted = max(at - began, 0.0)
            yield {**_mark(began, "hang", f"hang ({wording.duration(lasted)})"), "to_s": max(at, began)}
            began = None


def _kernel(seen: Telemetry, span: Span) -> Iterator[Mark]:
    """What the kernel said; an Xid that the driver has told of already is not told twice."""
    told = bool(seen.of("xid"))
    for event in seen.of("kernel"):
        at, text = span.moment(event["at"]), event.get("text")
        if at is not None and text and not (told and "Xid" in text):
            yield _mark(at, "kernel" if event.get("about") == "own" else "node", f"kernel: {text}")
