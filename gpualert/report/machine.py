"""The machine under a run: its GPUs, who took the memory, /dev/shm, pressure, and what the kernel said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpualert.report import cost, devices, wording
from gpualert.report.lanes import PRESSURE_WORTH, SHM_WORTH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpualert.telemetry.record import Telemetry

PROCESSES, KERNEL_LINES = 3, 10
"""How many processes and lines of the kernel are told of at most."""
TEXT_MAX = 300
_PRESSURES = {
    "memory_some": "memory, some waited", "memory_full": "memory, all waited", "io_full": "I/O, all waited",
    "cpu_some": "CPU, some waited",
}  # fmt: skip
_DRIVER_WORDS = {"driver": "driver", "driver_version": "driver", "cuda": "CUDA", "cuda_version": "CUDA",
                 "nvml": "NVML", "nvml_version": "NVML", "rocm": "ROCm", "rocm_version": "ROCm"}  # fmt: skip
Machine = dict[str, Any]


def of(seen: Telemetry) -> Machine | None:
    """What is known of the machine; None where nothing is.

    Args:
        seen: What the collector has left.

    Returns:
        ``vendor``, ``driver``, ``gpus`` (a row each: ``index``, ``uuid``, ``name``, ``pci``, ``mig``, ``memory_total``,
        ``memory_peak``, ``utilization_mean``, ``power_mean``, ``temperature_max``, ``throttle``, the rise of
        ``ecc_corrected``, ``ecc_uncorrected``, ``remapped_rows`` and ``nvlink_errors``, ``remap_failed``,
        ``remap_pending``, ``lost``, ``energy_kwh``, ``xids``), ``processes`` (``pid``, ``name``, ``peak`` in bytes),
        ``shm`` (``peak`` and ``size`` in bytes), ``pressure`` (the highest percentages, and ``of`` what they are) and
        ``kernel`` (``at``, ``text``, ``about``); each only as far as it is known.
    """
    inventory = seen.last("inventory") or {}
    found: Machine = {}
    if isinstance(inventory.get("vendor"), str) and inventory["vendor"]:
        found["vendor"] = inventory["vendor"][:40]
    if isinstance(inventory.get("driver"), dict):
        told = {str(key)[:40]: str(value)[:60] for key, value in inventory["driver"].items() if _plain(value)}
        found["driver"] = dict(list(told.items())[:8])
    parts = {
        "gpus": devices.of(seen), "processes": _processes(seen), "shm": _shm(seen), "pressure": _pressure(seen),
        "kernel": _kernel(seen),
    }  # fmt: skip
    found |= {name: part for name, part in parts.items() if part}
    return found or None


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""


def _processes(seen: Telemetry) -> list[dict[str, Any]]:
    told = (seen.last("peaks") or {}).get("processes")
    rows = [row for row in told if isinstance(row, dict)] if isinstance(told, list) else []
    known: list[dict[str, Any]] = [
        {"pid": row.get("pid"), "name": str(row.get("name") or "?")[:TEXT_MAX], "peak": peak}
        for row in rows
        if (peak := cost.number(row.get("peak"))) and isinstance(row.get("pid"), int)
    ]
    return sorted(known, key=lambda row: row["peak"], reverse=True)[:PROCESSES]


def _shm(seen: Telemetry) -> dict[str, Any] | None:
    used = [sample["shm_used"] for sample in seen.samples if sample.get("shm_used") is not None]
    size = max((sample["shm_size"] for sample in seen.samples if sample.get("shm_size") is not None), default=0)
    return {"peak": max(used), "size": size} if used and size else None


def _pressure(seen: Telemetry) -> dict[str, Any] | None:
    highest: dict[str, Any] = {}
    for sample in seen.samples:
        told = sample.get("psi") or {}
        for key in _PRESSURES:
            value = cost.number(told.get(key))
            if value is not None:
                highest[key] = max(highest.get(key, 0.0), value)
        if isinstance(told.get("of"), str):
            highest["of"] = told["of"][:20]
    return highest if highest.keys() - {"of"} else None


def _kernel(seen: Telemetry) -> list[dict[str, Any]]:
    rows = [
        {"at": event["at"], "text": event["text"][:TEXT_MAX], "about": event.get("about") or "node"}
        for event in seen.of("kernel")
        if event.get("text")
    ]
    own = [row for row in rows if row["about"] == "own"]
    return own[-KERNEL_LINES:] or rows[-KERNEL_LINES:]


# -- for a person ------------------------------------------------------------------------------------------------------


def lines(machine: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The machine in a few lines: names and values, of what is worth a word.

    Args:
        machine: The report's ``machine``.
    """
    if not machine:
        return []
    gpus = machine.get("gpus") or []
    models, driver = devices.models(gpus), _driver(machine)
    rows = [("GPUs", "; ".join(part for part in (models, driver) if part) if models else "")]
    rows += [("GPU memory", devices.fullest(gpus)), ("GPU use", devices.use(gpus))]
    rows += [(f"GPU {gpu.get('index', '?')}", trouble) for gpu in gpus if (trouble := devices.trouble(gpu))][:4]
    rows.append(("most memory", ", ".join(_process(row) for row in machine.get("processes") or [])))
    shm = machine.get("shm") or {}
    if shm and shm["peak"] > SHM_WORTH * shm["size"]:
        rows.append(("shared memory", f"up to {wording.size(shm['peak'])} of {wording.size(shm['size'])}"))
    rows.append(("pressure", _pressed(machine.get("pressure") or {}, PRESSURE_WORTH)))
    return [(name, wording.printable(value)) for name, value in rows if value]


def details(machine: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What the page tells beside its table of GPUs: everything that is known.

    Args:
        machine: The report's ``machine``.
    """
    if not machine:
        return []
    shm = machine.get("shm") or {}
    rows = [
        ("driver", _driver(machine)),
        ("most memory", ", ".join(_process(row) for row in machine.get("processes") or [])),
        ("shared memory", f"up to {wording.size(shm['peak'])} of {wording.size(shm['size'])}" if shm else ""),
        ("pressure", _pressed(machine.get("pressure") or {}, 0.0)),
    ]
    rows += [
        ("kernel" if row["about"] == "own" else "kernel, of the node", f"{row['at']} {row['text']}")
        for row in machine.get("kernel") or []
    ]
    return [(name, wording.printable(value)) for name, value in rows if value]


def _driver(machine: Mapping[str, Any]) -> str:
    told = machine.get("driver") or {}
    return ", ".join(f"{_DRIVER_WORDS.get(key, key.replace('_', ' '))} {value}" for key, value in told.items())


def _process(row: Mapping[str, Any]) -> str:
    return f"{row['name']} ({row['pid']}) {wording.size(row['peak'])}"


def _pressed(pressure: Mapping[str, Any], worth: float) -> str:
    high = {words: pressure[key] for key, words in _PRESSURES.items() if pressure.get(key, 0) > worth}
    parts = [f"{words} up to {value:.0f} %" for words, value in high.items()]
    whose = {"group": " (of the container)", "machine": " (of the whole machine)"}.get(str(pressure.get("of")), "")
    return ", ".join(parts) + whose if parts else ""
