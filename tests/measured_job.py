"""Run directories as supervisor and collector leave them, written for the purpose: a job on some GPUs that goes well, idles or hangs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpualert.rundir import index
from gpualert.rundir.clock import rfc3339
from gpualert.rundir.reader import Run
from gpualert.telemetry.record import NAME, Record

START = 1_700_000_000_000_000
GIB = 1 << 30
Gpu = dict[str, Any]


def at(seconds: float) -> str:
    """The time so many seconds after the start."""
    return rfc3339(START + round(seconds * 1e6))


def gpu(number: int, **figures: Any) -> Gpu:
    """One GPU in a sample."""
    return {"index": number, "memory_total": 80 * GIB, **figures}


class Job:
    """A run directory that is being written."""

    def __init__(self, path: Path, duration: float = 3600.0, **facts: Any) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.duration = duration
        told = {"run_id": "20231114T221320.000000Z-llama-7b-abc123", "name": "llama-7b", "started_at": at(0), **facts}
        (path / "run.json").write_text(json.dumps(told))
        self._record = Record(str(path))

    def line(self, kind: str, seconds: float, **fields: Any) -> None:
        """What the collector has written."""
        self._record.add(kind, fields, START + round(seconds * 1e6))

    def inventory(self, count: int, **more: Any) -> None:
        gpus = [
            {**gpu(n), "uuid": f"GPU-{n:04d}", "name": "NVIDIA H100 80GB HBM3", "pci": f"0000:{n + 16:02x}:00.0"}
            for n in range(count)
        ]
        driver = {"driver": "550.54.15", "cuda": "12.4"}
        self.line("inventory", 1, vendor="nvidia", driver=driver, gpus=gpus, **more)

    def samples(
        self, gpus: Callable[[float], list[Gpu]], every: float = 30.0, until: float | None = None, **more: Any
    ) -> None:
        """Samples all along; ``more`` may hold functions of the time."""
        end, seconds = until if until is not None else self.duration, 5.0
        while seconds <= end:
            fields = {key: value(seconds) if callable(value) else value for key, value in more.items()}
            self.line("sample", seconds, gpus=gpus(seconds), **fields)
            seconds += every

    def scribble(self, data: bytes) -> None:
        """What somebody else has written into the collector's file."""
        with (self.path / NAME).open("ab") as file:
            file.write(data)

    def output(self, text: str, seconds: float) -> None:
        """The job's output, all of it at one time."""
        data = text.encode()
        (self.path / "output.log").write_bytes(data)
        record = index.record(START + round(seconds * 1e6), index.STDOUT, len(data))
        (self.path / "output.idx").write_bytes(index.HEADER + record)

    def end(self, exit_code: int = 1, **more: Any) -> Run:
        """The run has ended."""
        self._record.close()
        ended = {"ended_at": at(self.duration), "duration_s": self.duration, "exit_code": exit_code, **more}
        (self.path / "exit.json").write_text(json.dumps(ended))
        return Run.read(str(self.path))
