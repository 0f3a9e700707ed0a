"""The GPUs of a run, a row for each: what they are, and how they did over the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpualert.report import cost, wording
from gpualert.report.lanes import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpualert.telemetry.record import Telemetry

XIDS, GPUS_MAX, TEXT_MAX = 8, 64, 120
"""How many Xids of a GPU and how many GPUs are told of at most, and how many characters a text has."""
_COUNTED = ("ecc_corrected", "ecc_uncorrected", "remapped_rows", "nvlink_errors")
"""Counters of which the rise over the run matters."""

Row = dict[str, Any]


def of(seen: Telemetry) -> list[Row]:
    """A row for each GPU that was seen; what it holds says ``machine.of``.

    Args:
        seen: What the collector has left.
    """
    rows: dict[Any, _Figures] = {}
    for line in (seen.last("inventory") or {}, *seen.samples):
        for position, gpu in enumerate(line.get("gpus") or []):
            key = key_of(gpu, position)
            if key in rows or len(rows) < GPUS_MAX:
                rows.setdefault(key, _Figures()).add(gpu)
    energy = cost.counters(seen)
    found = []
    for key, one in rows.items():
        row = one.row()
        joules = energy.get(key)
        if joules:
            row["energy_kwh"] = round(joules / cost.JOULES_PER_KWH, 6)
        codes = [f"{event['code']:.0f}" for event in seen.of("xid") if "code" in event and _about(event, row)]
        if codes:
            row["xids"] = list(dict.fromkeys(codes))[:XIDS]
        found.append(row)
    return found


def _about(event: dict[str, Any], gpu: dict[str, Any]) -> bool:
    """Whether an Xid is one of this GPU."""
    if event.get("uuid") is not None:
        return bool(event["uuid"] == gpu.get("uuid"))
    return event.get("gpu") is not None and bool(event["gpu"] == gpu.get("index"))


class _Figures:
    """One GPU's figures over the run."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._most: dict[str, float] = {}
        self._values: dict[str, list[float]] = {}
        self._first: dict[str, int] = {}
        self._throttle: dict[str, None] = {}

    def add(self, gpu: dict[str, Any]) -> None:
        """Take a line's figures."""
        for key in ("index", "uuid", "name", "pci", "mig", "memory_total", "power_limit_w"):
            if key in gpu and gpu[key] is not None:
                self._known[key] = gpu[key][:TEXT_MAX] if isinstance(gpu[key], str) else gpu[key]
        for key in ("lost", "remap_failed", "remap_pending"):
            if gpu.get(key):
                self._known[key] = gpu[key]
        for key in ("memory_used", "temperature_c", *_COUNTED):
            if gpu.get(key) is not None:
                self._first.setdefault(key, gpu[key])
                self._most[key] = max(self._most.get(key, 0), gpu[key])
        for key in ("utilization", "power_w"):
            if gpu.get(key) is not None:
                self._values.setdefault(key, []).append(gpu[key])
        self._throttle |= dict.fromkeys(text[:60] for text in gpu.get("throttle") or [])

    def row(self) -> dict[str, Any]:
        """The figures as the report has them."""
        found = dict(self._known)
        for key, name in (("memory_used", "memory_peak"), ("temperature_c", "temperature_max")):
            if key in self._most:
                found[name] = self._most[key]
        for key, name in (("utilization", "utilization_mean"), ("power_w", "power_mean")):
            if key in self._values:
                found[name] = round(sum(self._values[key]) / len(self._values[key]), 1)
        for key in _COUNTED:
            if self._most.get(key, 0) > self._first.get(key, 0):
                found[key] = self._most[key] - self._first[key]
        if self._throttle:
            found["throttle"] = sorted(self._throttle)[:8]
        return found


COLUMNS = ("GPU", "model", "memory", "use", "power", "hottest", "what else")


def table(gpus: Sequence[Row]) -> list[tuple[str, ...]]:
    """A row of ``COLUMNS`` for each GPU.

    Args:
        gpus: The ``gpus`` of the report's ``machine``.
    """
    rows = []
    for gpu in gpus:
        peak, total = gpu.get("memory_peak"), gpu.get("memory_total")
        memory = f"{wording.size(peak)} of " if peak is not None and total else wording.size(peak) if peak else ""
        row = (
            str(gpu.get("index", "?")),
            " ".join(str(gpu[key]) for key in ("name", "mig", "pci") if gpu.get(key)),
            memory + (wording.size(total) if total else ""),
            _unit(gpu.get("utilization_mean"), " %"),
            _unit(gpu.get("power_mean"), " W"),
            _unit(gpu.get("temperature_max"), " °C"),
            trouble(gpu),
        )
        rows.append(tuple(wording.printable(cell) for cell in row))
    return rows


def _unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f}{unit}"


def models(gpus: Sequence[Row]) -> str:
    """``8 x NVIDIA H100 80GB HBM3``; empty where there are no GPUs.

    Args:
        gpus: The ``gpus`` of the report's ``machine``.
    """
    counts: dict[str, int] = {}
    for gpu in gpus:
        model = str(gpu.get("name") or "of unknown model") + (" (MIG)" if gpu.get("mig") else "")
        counts[model] = counts.get(model, 0) + 1
    return ", ".join(f"{count} x {model}" if count > 1 else model for model, count in counts.items())


def fullest(gpus: Sequence[Row]) -> str:
    """How full the memory of the fullest GPU was; empty where nobody knows.

    Args:
        gpus: The ``gpus`` of the report's ``machine``.
    """
    known = [gpu for gpu in gpus if gpu.get("memory_peak") and gpu.get("memory_total")]
    if not known:
        return ""
    one = max(known, key=lambda gpu: gpu["memory_peak"] / gpu["memory_total"])
    where = f" on GPU {one['index']}" if len(gpus) > 1 and "index" in one else ""
    return f"up to {wording.size(one['memory_peak'])} of {wording.size(one['memory_total'])}{where}"


def use(gpus: Sequence[Row]) -> str:
    """How busy and how hot they were; empty where nobody knows.

    Args:
        gpus: The ``gpus`` of the report's ``machine``.
    """
    known = [gpu["utilization_mean"] for gpu in gpus if gpu.get("utilization_mean") is not None]
    if not known:
        return ""
    mean = f"{sum(known) / len(known):.0f} % on average"
    apart = f" ({min(known):.0f} to {max(known):.0f} %)" if max(known) - min(known) >= 5 else ""
    hottest = max((gpu["temperature_max"] for gpu in gpus if gpu.get("temperature_max") is not None), default=None)
    return mean + apart + (f", up to {hottest:.0f} °C" if hottest is not None else "")


def trouble(gpu: Mapping[str, Any]) -> str:
    """What was wrong with a GPU; empty for nothing.

    Args:
        gpu: Its row.
    """
    parts = ["lost" if gpu.get("lost") else ""]
    parts += [f"Xid {', '.join(gpu['xids'])}" if gpu.get("xids") else ""]
    words = {
        "ecc_uncorrected": "uncorrectable ECC errors", "ecc_corrected": "corrected ECC errors",
        "remapped_rows": "rows remapped", "nvlink_errors": "NVLink errors",
    }  # fmt: skip
    parts += [f"{gpu[key]} {text}" for key, text in words.items() if gpu.get(key)]
    parts += ["a row could not be remapped" if gpu.get("remap_failed") else ""]
    parts += ["a remapping waits for a reset" if gpu.get("remap_pending") else ""]
    parts += [f"throttled ({', '.join(gpu['throttle']).replace('_', ' ')})" if gpu.get("throttle") else ""]
    return "; ".join(part for part in parts if part)
