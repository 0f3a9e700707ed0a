"""The catalogue of a run's figures: what they are called in each export, their units, and where they come from.

Sources of the names: Prometheus "Metric and label naming"; OpenTelemetry "Metrics semantic conventions" (units: UCUM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gpualert.telemetry.figures import number, seconds, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Reading = tuple[dict[str, str], float]
    """Labels and value."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure.

    Attributes:
        name: Its name for Prometheus, without ``gpualert_``.
        otel: Its name for OpenTelemetry, without ``gpualert.``.
        kind: ``counter`` only rises, ``gauge`` does as it likes.
        unit: Its unit by UCUM, as OpenTelemetry wants it.
        help: What it is.
        read: Its values, from the facts of ``run.json`` and the state.
    """

    name: str
    otel: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[Reading]]


def _of(read: Callable[[Mapping[str, Any], Mapping[str, Any]], object]) -> Any:
    """A figure of the run: one value, or none."""

    def values(facts: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Reading]:
        value = number(read(facts, state))
        if value is not None:
            yield {}, value

    return values


def _state(key: str) -> Any:
    return _of(lambda _facts, state: state.get(key))


def _progress(key: str) -> Any:
    return _of(lambda _facts, state: state.get("progress", {}).get(key))


def _end(key: str) -> Any:
    return _of(lambda _facts, state: state.get("end", {}).get(key))


def _gpu(key: str, scale: float = 1) -> Any:
    def values(_facts: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Reading]:
        for gpu in state.get("gpus", []):
            if key in gpu:
                yield gpu["labels"], gpu[key] * scale if scale != 1 else gpu[key]

    return values


_INFO = ("name", "job", "namespace", "pod", "container", "node", "host", "rank", "world_size", "slurm_job_id")


def _info(facts: Mapping[str, Any], _state: Mapping[str, Any]) -> Iterator[Reading]:
    version = {"version": text(facts.get("gpualert"))}
    yield {key: text(facts.get(key)) for key in _INFO} | version, 1


def _pressure(_facts: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Reading]:
    psi = state.get("psi", {})
    for key in ("memory_some", "memory_full", "io_full", "cpu_some"):
        value = number(psi.get(key))
        if value is not None:
            resource, _, who = key.partition("_")
            yield {"resource": resource, "tasks": who, "of": text(psi.get("of"))}, value / 100


def _xids(_facts: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Reading]:
    for (gpu, uuid, code), count in state.get("xids", {}).items():
        yield {"gpu": gpu, "uuid": uuid, "code": code}, count


def _ecc(_facts: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Reading]:
    for gpu in state.get("gpus", []):
        for kind in ("corrected", "uncorrected"):
            if f"ecc_{kind}" in gpu:
                yield gpu["labels"] | {"kind": kind}, gpu[f"ecc_{kind}"]


def _lost(_facts: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Reading]:
    for gpu in state.get("gpus", []):
        if "lost" in gpu:
            yield gpu["labels"], int(gpu["lost"])


def _ended(_facts: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Reading]:
    if "end" in state:
        yield {"class": state["end"]["class"], "family": state["end"]["family"]}, 1


def _hang(_facts: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Reading]:
    if "hang" in state:
        yield {}, int(state["hang"])


METRICS = (
    Metric("run_info", "run.info", "gauge", "1", "Who the run is; always 1.", _info),
    Metric("run_start_time_seconds", "run.start_time", "gauge", "s", "When the run began, in seconds since 1970.",
           _of(lambda facts, _state: seconds(facts.get("started_at")))),
    Metric("run_last_output_time_seconds", "run.last_output_time", "gauge", "s",
           "When the run last printed something, in seconds since 1970.",
           _of(lambda _facts, state: seconds(state.get("last_output_at")))),
    Metric("run_output_bytes_total", "run.output", "counter", "By", "Bytes that the run has printed.",
           _state("log_bytes")),
    Metric("run_cpu_seconds_total", "run.cpu.time", "counter", "s",
           "Processor time that all processes of the run have used.", _state("cpu_s")),
    Metric("run_io_bytes_total", "run.io", "counter", "By",
           "Bytes that all processes of the run have read and written.", _state("io_bytes")),
    Metric("run_major_page_faults_total", "run.page_faults", "counter", "{fault}",
           "Page faults of the run that had to wait for a disk.", _state("major_faults")),
    Metric("run_processes", "run.processes", "gauge", "{process}", "Processes of the run.", _state("processes")),
    Metric("run_threads", "run.threads", "gauge", "{thread}", "Threads of the run.", _state("threads")),
    Metric("run_memory_resident_bytes", "run.memory.resident", "gauge", "By",
           "Resident memory of all processes of the run; what they share counts for each.", _state("rss")),
    Metric("run_memory_working_set_bytes", "run.memory.working_set", "gauge", "By",
           "Memory of the run's control group without the page cache that could be given back.", _state("working_set")),
    Metric("run_shared_memory_used_bytes", "run.shared_memory.usage", "gauge", "By", "How much of /dev/shm is used.",
           _state("shm_used")),
    Metric("run_shared_memory_size_bytes", "run.shared_memory.size", "gauge", "By", "The size of /dev/shm.",
           _state("shm_size")),
    Metric("run_pressure_ratio", "run.pressure", "gauge", "1",
           "Share of the last ten seconds in which some or all tasks waited for a resource.", _pressure),
    Metric("run_progress_step", "run.progress.step", "gauge", "{step}", "The training step that the run is at.",
           _progress("step")),
    Metric("run_progress_last_step", "run.progress.last_step", "gauge", "{step}", "The step at which it will be done.",
           _progress("total")),
    Metric("run_progress_epoch", "run.progress.epoch", "gauge", "{epoch}", "The epoch that the run is at.",
           _progress("epoch")),
    Metric("run_progress_loss", "run.progress.loss", "gauge", "1", "The loss that the run printed last.",
           _progress("loss")),
    Metric("run_progress_steps_per_second", "run.progress.rate", "gauge", "{step}/s", "How fast the run gets on.",
           _progress("rate")),
    Metric("run_hang_suspected", "run.hang_suspected", "gauge", "1", "1 while the run is taken to hang, else 0.",
           _hang),
    Metric("gpu_utilization_ratio", "gpu.utilization", "gauge", "1", "Share of the time in which the GPU worked.",
           _gpu("utilization", 0.01)),
    Metric("gpu_memory_used_bytes", "gpu.memory.usage", "gauge", "By", "Memory of the GPU that is used.",
           _gpu("memory_used")),
    Metric("gpu_memory_size_bytes", "gpu.memory.size", "gauge", "By", "Memory of the GPU.", _gpu("memory_total")),
    Metric("gpu_power_watts", "gpu.power", "gauge", "W", "Power that the GPU draws.", _gpu("power_w")),
    Metric("gpu_temperature_celsius", "gpu.temperature", "gauge", "Cel", "Temperature of the GPU.",
           _gpu("temperature_c")),
    Metric("gpu_energy_joules_total", "gpu.energy", "counter", "J", "Energy that the GPU has used during the run.",
           _gpu("energy")),
    Metric("gpu_ecc_errors_total", "gpu.ecc_errors", "counter", "{error}", "Memory errors of the GPU during the run.",
           _ecc),
    Metric("gpu_xid_total", "gpu.xid", "counter", "{event}", "Xid events of the GPU during the run.", _xids),
    Metric("gpu_lost", "gpu.lost", "gauge", "1", "1 when the GPU no longer answers, else 0.", _lost),
    Metric("run_ended", "run.ended", "gauge", "1", "The class and family of the run's end; always 1.", _ended),
    Metric("run_end_time_seconds", "run.end_time", "gauge", "s", "When the run ended, in seconds since 1970.",
           _end("at")),
    Metric("run_duration_seconds", "run.duration", "gauge", "s", "How long the run took.", _end("duration_s")),
    Metric("run_exit_code", "run.exit_code", "gauge", "1", "The exit code of a run that exited.", _end("exit_code")),
    Metric("run_exit_signal", "run.exit_signal", "gauge", "1", "The signal that ended the run.", _end("signal")),
)  # fmt: skip
