"""What was measured beside a run, as facts for its diagnosis.

The collector's file lies in the run directory, where the job may write too: a value that cannot be is passed over, and
so is a GPU that is not the job's, and what lies outside of the run's time.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import Facts, signs
from gpualert.diagnosis.machine import GpuFault, Hang, KernelLine, Machine, Pressure, Xid
from gpualert.report.ownership import Ownership
from gpualert.report.timeline import seconds_of
from gpualert.rundir.clock import rfc3339
from gpualert.telemetry import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpualert.diagnosis import Rulebook
    from gpualert.diagnosis.signs import Sign
    from gpualert.rundir.reader import Run
    from gpualert.telemetry.record import Telemetry

BEFORE_S, AFTER_S = 5.0, 60.0
"""How far a time may lie outside of the run: the driver tells late, and clocks are put right."""
WENT_ON_S = 60.0
"""What is counted so long after an error may still be from before it."""
PRESSED_S, PRESSED_BEFORE = 120.0, 6
"""How close to the end a sample of pressure must be, and with how many before it that is compared."""
OBVIOUS = 40.0
"""Percent of the time without memory that need not rise any more."""
XIDS_MAX, KERNEL_MAX, TEXT_MAX = 32, 50, 300
CODE_MAX, INDEX_MAX = 1000, 1024
SPAN_MAX_S = 1e9


def with_telemetry(facts: Facts, run: Run) -> Facts:
    """A run's facts with what was measured beside it.

    Args:
        facts: What its own files tell.
        run: The run.
    """
    telemetry = record.read(run.path)
    hang = _hang(run, telemetry)
    if not telemetry.samples and not telemetry.events:
        return replace(facts, hang=hang)
    times = _Times(run)
    watched = next((found for line in telemetry.of("inventory") if (found := _rows(line.get("gpus")))), [])
    owned = Ownership(watched, run.facts)
    machine = Machine(
        times.ended,
        tuple(_xids(telemetry, owned, times)),
        tuple(_faults(telemetry.samples, owned)),
        len(watched),
        tuple(_kernel(telemetry, times)),
        _pressure(telemetry.samples, times.ended),
    )
    return replace(facts, hang=hang, machine=machine)


def broken(run: Run, rules: Rulebook) -> tuple[Sign, ...]:
    """The errors of hardware that the driver has reported of a run, which may go on.

    Args:
        run: The run.
        rules: Classes and rules.
    """
    machine = with_telemetry(Facts(), run).machine
    return signs.broken(signs.of(machine, rules)) if machine is not None else ()


def rows(found: Iterable[Sign]) -> list[dict[str, Any]]:
    """Errors of hardware as ``report.json`` holds them for whoever judges all ranks.

    Args:
        found: The signs.
    """
    return [
        {
            "at": rfc3339(int(sign.xid.at * 1e6)),
            "code": sign.xid.code,
            "gpu": sign.xid.gpu,
            "pci": sign.xid.pci,
            "place": sign.xid.place,
            "class": sign.cls,
            "text": sign.text,
        }
        for sign in found
        if sign.xid is not None
    ]


class _Times:
    """When a run began, was stopped and ended, in seconds since 1970; None where nothing tells."""

    def __init__(self, run: Run) -> None:
        end = run.exit or {}
        self.started = seconds_of(run.facts.get("started_at"))
        self.ended = seconds_of(end.get("ended_at"))
        before = end.get("stopped_before_end_s")
        self.stopped = self.ended - before if self.ended is not None and isinstance(before, int | float) else self.ended

    def hold(self, at: float | None) -> bool:
        """Whether a time is one of the run."""
        if at is None or (self.started is not None and at < self.started - BEFORE_S):
            return False
        return self.ended is None or at <= self.ended + AFTER_S


def _rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _whole(value: Any, below: int) -> int | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value) and 0 <= value < below
    return int(value) if fits else None


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _text(value: Any, limit: int = 120) -> str:
    return signs.cleaned(value, limit) if isinstance(value, str) else ""


# -- the driver --------------------------------------------------------------------------------------------------------


def _xids(telemetry: Telemetry, owned: Ownership, times: _Times) -> Iterator[Xid]:
    """The first Xid of each kind and GPU."""
    told: set[tuple[int, int | None, str]] = set()
    steps, sizes = _series(telemetry.of("progress"), "step"), _series(telemetry.samples, "log_bytes")
    for line in sorted(telemetry.of("xid"), key=lambda line: seconds_of(line["at"]) or 0.0):
        at, code, gpu = seconds_of(line["at"]), _whole(line.get("code"), CODE_MAX), _whole(line.get("gpu"), INDEX_MAX)
        pci = _text(line.get("pci"), 20).lower()
        key = (code or 0, gpu, pci)
        named = gpu is not None or pci or line.get("uuid")
        if at is None or not code or not named or not times.hold(at) or not owned.knows(line) or key in told:
            continue
        told.add(key)
        yield Xid(
            code,
            gpu,
            pci,
            at,
            survived=_survived(steps, at),
            printed_after=_printed_after(sizes, at, times.stopped),
            place=owned.place(line),
            neighbour=owned.neighbours(line),
        )
        if len(told) >= XIDS_MAX:
            return


def _series(lines: Iterable[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """When a number was seen, and what it was."""
    told = ((seconds_of(line["at"]), line.get(name)) for line in lines)
    return [(at, value) for at, value in told if at is not None and isinstance(value, int | float)]


def _survived(steps: Iterable[tuple[float, float]], at: float) -> bool:
    """Whether training went on after a moment, by the steps that it printed."""
    before, after = 0.0, 0.0
    for when, step in steps:
        if when <= at + WENT_ON_S:
            before = max(before, step)
        else:
            after = max(after, step)
    return after > before


def _printed_after(sizes: Iterable[tuple[float, float]], at: float, until: float | None) -> bool:
    """Whether output went on for longer than a minute after a moment."""
    before, after = None, None
    for when, size in sizes:
        if until is not None and when > until:
            continue
        if when <= at + WENT_ON_S or before is None:
            before = size
        after = size
    return before is not None and after is not None and after > before


def _faults(samples: Sequence[dict[str, Any]], owned: Ownership) -> Iterator[GpuFault]:
    """GPUs whose counters rose, or whose state turned bad, from the first sample to the last."""
    first: dict[Any, dict[str, Any]] = {}
    last: dict[Any, dict[str, Any]] = {}
    for sample in samples:
        for row in _rows(sample.get("gpus")):
            key = row.get("uuid") or row.get("pci") or row.get("index")
            if key is not None and (key in first or len(first) < INDEX_MAX):
                first.setdefault(key, row)
                last[key] = row
    told = set()
    for key, row in last.items():
        was = first[key]
        fault = GpuFault(
            _whole(row.get("index"), INDEX_MAX),
            _text(row.get("pci"), 20).lower(),
            lost=row.get("lost") is True,
            ecc_uncorrected=_rise(was, row, "ecc_uncorrected"),
            remap_failed=_number(row.get("remap_failed")) > 0 and _rise(was, row, "remap_failed") > 0,
            nvlink_errors=_rise(was, row, "nvlink_errors"),
            neighbour=owned.neighbours(row),
        )
        broken = fault.lost or fault.ecc_uncorrected or fault.remap_failed or fault.nvlink_errors
        if broken and owned.knows(row) and fault not in told:
            told.add(fault)
            yield fault


def _rise(first: dict[str, Any], last: dict[str, Any], counter: str) -> int:
    """By how much a counter rose; 0 where it was not seen at the start, or was set back."""
    if not isinstance(first.get(counter), int):
        return 0
    return max(_number(last.get(counter)) - _number(first.get(counter)), 0)


# -- the kernel and the processes --------------------------------------------------------------------------------------


def _kernel(telemetry: Telemetry, times: _Times) -> Iterator[KernelLine]:
    for line in telemetry.of("kernel")[:KERNEL_MAX]:
        at, text = seconds_of(line["at"]), _text(line.get("text"), TEXT_MAX)
        if at is not None and text and times.hold(at):
            yield KernelLine(text, line.get("about") == "own", at)


def _pressure(samples: Sequence[dict[str, Any]], ended: float | None) -> Pressure | None:
    """How processes waited for memory just before the end."""
    rows = [(seconds_of(line["at"]), line["psi"]) for line in samples if isinstance(line.get("psi"), dict)]
    found = [(at, psi) for at, psi in rows if at is not None and _percent(psi.get("memory_full")) is not None]
    if not found or (ended is not None and ended - found[-1][0] > PRESSED_S):
        return None
    shares = [_percent(psi["memory_full"]) or 0.0 for _, psi in found[-1 - PRESSED_BEFORE :]]
    full, before = shares[-1], shares[:-1]
    rising = full >= OBVIOUS or (bool(before) and full > 1.5 * median(before))
    return Pressure(full, rising, of_machine=found[-1][1].get("of") == "machine")


def _percent(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100
    return float(value) if fits else None


# -- hangs -------------------------------------------------------------------------------------------------------------


def _hang(run: Run, telemetry: Telemetry) -> Hang | None:
    """The hang that the run ended in; one that is over is none."""
    end = run.exit or {}
    told: dict[str, Any] = end["hang"] if isinstance(end.get("hang"), dict) else {}
    line, terminated = telemetry.last("hang") or {}, told.get("terminated") is True
    if not terminated and line.get("state") != "suspected":
        return None
    since, suspected = seconds_of(told.get("since") or line.get("since")), seconds_of(line.get("at"))
    times = _Times(run)
    # Our own stop, which is not among those from outside, follows the suspicion at once.
    until = suspected if terminated else times.stopped
    silent = max(_span(told.get("silent_s")), _span(line.get("silent_s")))
    if since is not None and until is not None:
        silent = max(silent, _span(until - since))
    why = _text(told.get("why") or line.get("why"), 200)
    size = None if end.get("truncated") else _silent_size(telemetry.samples, since, until)
    return Hang(silent, why, since, terminated, size)


def _span(value: Any) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < SPAN_MAX_S
    return float(value) if fits else 0.0


def _silent_size(samples: Iterable[dict[str, Any]], since: float | None, until: float | None) -> int | None:
    """How long the log was while nothing moved; None where no sample fell into that time."""
    for line in samples if since is not None and until is not None else ():
        at, size = seconds_of(line["at"]), line.get("log_bytes")
        if at is not None and isinstance(size, int | float) and since <= at <= until:  # type: ignore[operator]
            return int(size)
    return None
