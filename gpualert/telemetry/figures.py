"""The figures of a run as they stand now, from the lines of its telemetry and from its end: what exports give out."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_GPUS, MAX_XIDS = 64, 200
_RUN_NUMBERS = (
    "cpu_s", "io_bytes", "rss", "working_set", "processes", "threads", "major_faults", "shm_used", "shm_size",
    "log_bytes",
)  # fmt: skip
_GPU_NUMBERS = (
    "utilization", "memory_used", "memory_total", "power_w", "temperature_c", "ecc_corrected", "ecc_uncorrected",
)  # fmt: skip
_PROGRESS_NUMBERS = ("step", "total", "epoch", "loss", "rate")


def number(value: object) -> float | None:
    """A value as a number; None where it is none."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def seconds(value: object) -> float | None:
    """Seconds since 1970 for an RFC 3339 time; None where it is none."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return at.timestamp() if at is not None and at.tzinfo is not None else None


def text(value: object) -> str:
    """A value as text; empty where there is none."""
    return value if isinstance(value, str) else "" if value is None or isinstance(value, bool) else str(value)


class Figures:
    """What is known of a run that goes on, or of one that has ended."""

    __slots__ = ("_ecc", "_energy", "_state")

    def __init__(self) -> None:
        """Nothing is known."""
        self._state: dict[str, Any] = {}
        self._energy: dict[str, float] = {}
        self._ecc: dict[tuple[str, str], float] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Take up a line of ``telemetry.jsonl``.

        Args:
            line: The line: ``at``, ``kind`` and what it says.
        """
        kind, state = line.get("kind"), self._state
        if kind == "sample":
            self._sample(line)
        elif kind == "progress":
            state["progress"] = {key: line[key] for key in _PROGRESS_NUMBERS if number(line.get(key)) is not None}
        elif kind == "hang":
            state["hang"] = line.get("state") != "over"
        elif kind == "xid" and number(line.get("code")) is not None:
            key = (text(line.get("gpu")), text(line.get("uuid")), f"{line['code']:g}")
            xids = state.setdefault("xids", {})
            if key in xids or len(xids) < MAX_XIDS:
                xids[key] = xids.get(key, 0) + 1

    def _sample(self, line: Mapping[str, Any]) -> None:
        state = self._state
        before = state.get("log_bytes")
        for key in _RUN_NUMBERS:
            if number(line.get(key)) is not None:
                state[key] = line[key]
        if before is not None and state["log_bytes"] > before:
            state["last_output_at"] = line.get("at")
        state["hang"] = state.get("hang", False)
        psi = line.get("psi")
        state["psi"] = psi if isinstance(psi, dict) else {}
        rows = line.get("gpus")
        if isinstance(rows, list):
            state["gpus"] = [self._gpu(row) for row in rows[:MAX_GPUS] if isinstance(row, dict)]

    def _gpu(self, row: Mapping[str, Any]) -> dict[str, Any]:
        labels = {"gpu": text(row.get("index")), "uuid": text(row.get("uuid"))}
        found: dict[str, Any] = {"labels": labels, "lost": row.get("lost") is True}
        found.update({key: row[key] for key in _GPU_NUMBERS if number(row.get(key)) is not None})
        energy, device = number(row.get("energy_j")), labels["uuid"] or labels["gpu"]
        if energy is not None:
            # The driver counts since it was loaded; what was there before the run is not the run's.
            found["energy"] = max(energy - self._energy.setdefault(device, energy), 0.0)
        for key in ("ecc_corrected", "ecc_uncorrected"):
            if key in found:
                found[key] = max(found[key] - self._ecc.setdefault((device, key), found[key]), 0)
        return found

    def end(self, ending: Mapping[str, Any], diagnosis: Mapping[str, Any]) -> None:
        """Take up how the run ended: what was measured at a moment is no more.

        Args:
            ending: What ``exit.json`` holds.
            diagnosis: What ``report.json`` has under ``diagnosis``.
        """
        state = self._state
        for key in ("rss", "working_set", "processes", "threads", "shm_used", "shm_size", "hang", "psi"):
            state.pop(key, None)
        kept = ("labels", "energy", "ecc_corrected", "ecc_uncorrected")
        state["gpus"] = [{key: gpu[key] for key in kept if key in gpu} for gpu in state.get("gpus", [])]
        if number(ending.get("log_bytes")) is not None:
            state["log_bytes"] = ending["log_bytes"]
        if ending.get("last_output_at"):
            state["last_output_at"] = ending["last_output_at"]
        state["end"] = {
            "class": text(diagnosis.get("class")) or "unknown",
            "family": text(diagnosis.get("family")),
            "at": seconds(ending.get("ended_at")),
            **{key: number(ending.get(key)) for key in ("exit_code", "signal", "duration_s")},
        }

    @property
    def state(self) -> dict[str, Any]:
        """What is known, for ``metrics.METRICS``."""
        return self._state
