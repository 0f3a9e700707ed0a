"""NVIDIA's GPUs as the collector sees them: through NVIDIA's own binding, with a stand-in for its library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu.asking import Asking
from gpu.standin import LIBRARY, Script

from gpualert.rundir.clock import now_us
from gpualert.telemetry.record import LINE

GIB = 1 << 30
NOT_SUPPORTED, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 3, 15, 16, 999
UUIDS = [f"GPU-a{gpu}0{gpu}0{gpu}0{gpu}-5ca1-4e11-9a7e-00000000000{gpu}" for gpu in range(8)]
Opened = Callable[..., Asking]


@pytest.fixture
def opened(asking: Asking) -> Opened:
    """Opens the job's GPUs in a process of their own, as ``devices``."""

    def open_devices(**variables: str) -> Asking:
        asking(f"devices = open_devices({variables})")
        return asking

    return open_devices


def test_a_healthy_gpu_is_told_of_in_full(opened: Opened, script: Script) -> None:
    script.set("3.energy_j", 5.5)
    devices = opened()
    assert devices("devices.vendor") == "nvidia"
    assert devices("devices.driver()") == {"driver": "550.54.15", "cuda": "12.4", "nvml": "12.550.54.15"}
    assert len(devices("devices.inventory()")) == 8
    assert devices("devices.inventory()[3]") == {
        "index": 3,
        "uuid": UUIDS[3],
        "pci": "00000000:48:00.0",
        "name": "NVIDIA H200",
        "memory_total": 141 * GIB,
        "power_limit_w": 700.0,
        "ecc_mode": True,
        "energy_j": 5.5,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "processes": 0,
        "remapped_rows": 0,
        "remap_pending": 0,
        "remap_failed": 0,
        "nvlink_errors": 0,
    }


SCRIPTED: dict[str, tuple[object, dict[str, object]]] = {
    "utilization": (13, {"utilization": 13}),
    "memory_used": (7 * GIB, {"memory_used": 7 * GIB}),
    "memory_total": (80 * GIB, {"memory_total": 80 * GIB}),
    "power_w": (71.25, {"power_w": 71.25}),
    "energy_j": (1234.5, {"energy_j": 1234.5}),
    "temperature_c": (93, {"temperature_c": 93}),
    "throttle": ("0x1ff", {"throttle": [
        "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
    ]}),
    "ecc_corrected": (41, {"ecc_corrected": 41}),
    "ecc_uncorrected": (2, {"ecc_uncorrected": 2}),
    "remapped_corrected": (5, {"remapped_rows": 5}),
    "remapped_uncorrected": (6, {"remapped_rows": 6}),
    "remapped_pending": (1, {"remap_pending": 1}),
    "remapped_failed": (1, {"remap_failed": 1}),
    "nvlink_errors": (9, {"nvlink_errors": 9}),
    "processes": ("12:1000,13:1000", {"processes": 2}),
}  # fmt: skip


def test_a_sample_holds_what_the_driver_tells(opened: Opened, script: Script) -> None:
    devices = opened()
    for key, (value, _) in SCRIPTED.items():
        script.set(f"3.{key}", value)
    script.set("3.remapped_corrected", 0)
    sample = devices("devices.sample()")
    told = {"index": 3, "uuid": UUIDS[3]}
    for _, fields in SCRIPTED.values():
        told |= fields
    assert sample[3] == told
    assert sample[2]["utilization"] == 97
    assert sample[2]["throttle"] == []


def test_a_field_changes_as_the_driver_says(opened: Opened, script: Script) -> None:
    devices = opened()
    before = {**devices("devices.sample()[3]"), "energy_j": 0}
    for key, (value, fields) in SCRIPTED.items():
        script.set("3.energy_j", 0)
        script.set(f"3.{key}", value)
        assert devices("devices.sample(whole=True)[3]") == {**before, **fields}
        script.remove(f"3.{key}")


def test_pages_that_were_retired_before_are_in_the_inventory(opened: Opened, script: Script) -> None:
    script.set("3.retired_corrected", 2)
    script.set("3.retired_uncorrected", 1)
    devices = opened()
    assert devices("devices.inventory()[3]")["retired_pages"] == 3
    assert "retired_pages" not in devices("devices.inventory()[2]")


def test_what_it_tells_has_the_shape_that_readers_expect(opened: Opened, script: Script) -> None:
    script.set("0.mig", 1)
    script.set("1.retired_corrected", 2)
    script.set("2.lost", 1)
    devices = opened()
    for kind in ("inventory", "sample"):
        gpus = devices(f"devices.{kind}()")
        line = LINE({"at": "2026-12-01T05:12:00.000000Z", "kind": kind, "gpus": gpus})
        assert line is not None
        read = line["gpus"]
        assert [{**gpu, "ecc_mode": None} for gpu in read] == [{**gpu, "ecc_mode": None} for gpu in gpus]


CALLS = {
    "memory": {"memory_used", "memory_total"},
    "utilization": {"utilization"},
    "power": {"power_w"},
    "energy": {"energy_j"},
    "temperature": {"temperature_c"},
    "throttle": {"throttle"},
    "ecc": {"ecc_corrected", "ecc_uncorrected"},
    "processes": {"processes"},
    "remapped": {"remapped_rows", "remap_pending", "remap_failed"},
    "fields": {"nvlink_errors"},
}
"""What a call of the driver's brings to a sample."""


@pytest.mark.parametrize(("call", "fields"), CALLS.items())
def test_an_unsupported_call_leaves_its_fields_out_alone_and_is_not_made_again(
    opened: Opened, script: Script, call: str, fields: set[str]
) -> None:
    devices = opened()
    full = set(devices("devices.sample()[3]"))
    script.set(f"3.error.{call}", NOT_SUPPORTED)
    sample = devices("devices.sample(whole=True)")
    assert set(sample[3]) == full - fields
    assert set(sample[2]) == full
    script.remove(f"3.error.{call}")
    script.set(f"3.hang.{call}", 3600)  # whoever makes it now waits in vain
    assert set(devices("devices.sample(whole=True)[3]")) == full - fields


@pytest.mark.parametrize(("call", "fields"), CALLS.items())
def test_a_call_that_fails_once_is_made_again(opened: Opened, script: Script, call: str, fields: set[str]) -> None:
    devices = opened()
    full = set(devices("devices.sample()[3]"))
    script.set(f"3.error.{call}", UNKNOWN)
    assert set(devices("devices.sample(whole=True)[3]")) == full - fields
    script.remove(f"3.error.{call}")
    assert set(devices("devices.sample(whole=True)[3]")) == full


@pytest.mark.parametrize(
    "call", ["name", "uuid", "pci", "ecc_mode", "power_limit", "mig", "event_types", "event_register"]
)
def test_a_gpu_that_does_not_tell_who_it_is_is_measured_all_the_same(opened: Opened, script: Script, call: str) -> None:
    script.set(f"3.error.{call}", UNKNOWN)
    devices = opened()
    assert devices("devices.inventory()[3]")["memory_total"] == 141 * GIB
    assert devices("[gpu['index'] for gpu in devices.sample()]") == list(range(8))
    assert devices("devices.sample()[3]")["utilization"] == 97


# -- which GPUs --------------------------------------------------------------------------------------------------------

VISIBLE: list[tuple[str, list[int] | None]] = [
    ("0,1,2,3,4,5,6,7", [0, 1, 2, 3, 4, 5, 6, 7]),
    ("5,2", [2, 5]),
    (" 1 , 3 ", [1, 3]),
    (UUIDS[6], [6]),
    ("GPU-a2,GPU-a4020", [2]),  # CUDA stops at the first that fits none
    ("GPU-a2,GPU-a404", [2, 4]),
    ("GPU-a", None),  # several
    ("0,-1,2", [0]),
    ("0,99,2", [0]),
    ("-1", None),
    ("", None),
    ("NoDevFiles", None),
]


@pytest.mark.parametrize(("visible", "gpus"), VISIBLE)
def test_only_the_gpus_of_the_job_are_looked_at(opened: Opened, visible: str, gpus: list[int] | None) -> None:
    devices = opened(CUDA_VISIBLE_DEVICES=visible)
    if gpus is None:
        assert devices("devices") is None
        return
    assert devices("[gpu['index'] for gpu in devices.inventory()]") == gpus
    assert devices("[gpu['uuid'] for gpu in devices.sample()]") == [UUIDS[gpu] for gpu in gpus]


def test_a_part_of_a_divided_gpu_stands_for_its_gpu(opened: Opened, script: Script) -> None:
    script.set("all.mig", 1)
    parts = [f"MIG-b5050505-5ca1-4e11-000{part}-000000000005" for part in range(2)]
    devices = opened(CUDA_VISIBLE_DEVICES=parts[1])
    told = devices("devices.inventory()")
    assert [(gpu["index"], gpu["mig"]) for gpu in told] == [(5, ",".join(parts))]
    sample = devices("devices.sample()")[0]
    assert "utilization" not in sample  # a GPU that is divided has none as a whole
    assert sample["memory_total"] == 141 * GIB


# -- no driver, or a broken one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["init", "gpus"])
def test_a_driver_that_serves_nothing_is_none(opened: Opened, script: Script, key: str) -> None:
    script.set(key, 18 if key == "init" else 0)
    assert opened()("devices") is None


@pytest.mark.parametrize("call", ["count", "handle"])
def test_a_driver_that_cannot_list_its_gpus_is_none(opened: Opened, script: Script, call: str) -> None:
    script.set(f"error.{call}", UNKNOWN)
    script.set(f"all.error.{call}", UNKNOWN)
    assert opened()("devices") is None


@pytest.fixture
def unserved(tmp_path: Path, script: Script) -> Iterator[Asking]:
    """A process whose loader finds no library, also where this machine has one."""
    (tmp_path / LIBRARY).write_bytes(b"#!/bin/sh\n")  # a loader that comes upon it looks no further
    with Asking(tmp_path, script) as process:
        process("setattr(nvml, 'PLACES', ())")
        yield process


def test_without_a_library_there_are_none(unserved: Asking) -> None:
    unserved("devices = open_devices({})")
    assert unserved("devices") is None


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "_GPUALERT_ENV_LD_LIBRARY_PATH"])
def test_a_library_that_the_loader_does_not_find_is_loaded_by_its_path(
    unserved: Asking, libraries: Path, name: str
) -> None:
    unserved(f"devices = open_devices({ {name: f'/none:{libraries}'} })")
    assert unserved("devices.driver()")["driver"] == "550.54.15"


def test_a_library_in_the_working_directory_is_not_loaded(unserved: Asking, libraries: Path) -> None:
    unserved(f"here = __import__('os').chdir({str(libraries)!r})")
    unserved("devices = open_devices({'LD_LIBRARY_PATH': '.:'})")
    assert unserved("devices") is None


# -- a GPU that fails --------------------------------------------------------------------------------------------------


def test_a_gpu_that_falls_off_the_bus_is_lost_and_the_others_are_measured_on(opened: Opened, script: Script) -> None:
    devices = opened()
    devices("devices.sample()")
    script.set("3.lost", 1)
    sample = devices("devices.sample()")
    assert [gpu["index"] for gpu in sample if gpu.get("lost")] == [3]
    assert "utilization" not in sample[3]
    assert sample[3]["uuid"] == UUIDS[3]
    assert sample[4]["utilization"] == 97


def test_a_gpu_that_must_be_reset_is_lost(opened: Opened, script: Script) -> None:
    devices = opened()
    script.set("3.error.memory", RESET_REQUIRED)
    assert [gpu["index"] for gpu in devices("devices.sample()") if gpu.get("lost")] == [3]
    script.remove("3.error.memory")
    assert not any(gpu.get("lost") for gpu in devices("devices.sample()"))


def test_a_gpu_that_was_lost_before_is_left_out(opened: Opened, script: Script) -> None:
    script.set("3.lost", 1)
    devices = opened()
    assert devices("[gpu['index'] for gpu in devices.sample()]") == [0, 1, 2, 4, 5, 6, 7]


def test_waiting_for_xids_of_a_lost_gpu_does_not_spin(opened: Opened, script: Script) -> None:
    devices = opened()
    script.set("3.lost", 1)
    waited = (
        "(lambda began: (devices.wait(0.2), __import__('time').monotonic() - began))(__import__('time').monotonic())"
    )
    told, seconds = devices(waited)
    assert told == []
    assert seconds >= 0.2


# -- Xids --------------------------------------------------------------------------------------------------------------


def test_an_xid_is_told_with_its_gpu_and_time(opened: Opened, script: Script) -> None:
    devices = opened()
    before = now_us()
    script.event(3, 79)
    told = devices("devices.wait(60)")
    assert [{**xid, "at_us": 0} for xid in told] == [
        {"code": 79, "gpu": 3, "uuid": UUIDS[3], "pci": "00000000:48:00.0", "at_us": 0}
    ]
    assert before <= told[0]["at_us"] <= now_us()


def test_several_xids_come_together_and_in_order(opened: Opened, script: Script) -> None:
    devices = opened()
    for gpu, code in ((3, 48), (3, 94), (5, 45)):
        script.event(gpu, code)
    told: list[dict[str, Any]] = []
    while len(told) < 3:
        told += devices("devices.wait(60)")
    assert [(xid["gpu"], xid["code"]) for xid in told] == [(3, 48), (3, 94), (5, 45)]
    assert devices("devices.wait(0.05)") == []


def test_an_xid_from_before_is_not_this_jobs(opened: Opened, script: Script) -> None:
    script.event(3, 79)
    devices = opened()
    assert devices("devices.wait(0.1)") == []
    script.event(3, 31)
    assert [xid["code"] for xid in devices("devices.wait(60)")] == [31]


def test_an_xid_of_another_jobs_gpu_is_not_told(opened: Opened, script: Script) -> None:
    devices = opened(CUDA_VISIBLE_DEVICES="0,1")
    script.event(3, 79)
    script.event(1, 13)
    assert [(xid["gpu"], xid["code"]) for xid in devices("devices.wait(60)")] == [(1, 13)]


def test_a_driver_without_events_is_measured_all_the_same(opened: Opened, script: Script) -> None:
    script.set("error.event_create", NOT_SUPPORTED)
    devices = opened()
    assert devices("devices.wait(0.01)") == []
    assert len(devices("devices.sample()")) == 8


def test_it_can_be_closed_and_opened_again(opened: Opened) -> None:
    devices = opened()
    devices("devices.close()")
    opened()
    assert len(devices("devices.sample()")) == 8


# -- in the collector's thread -----------------------------------------------------------------------------------------


def _watching(asking: Asking, condition: str) -> None:
    """Wait in the process until something holds of its watch."""
    asking(f"next(True for _ in iter(int, 1) if ({condition}) or time.sleep(0.01))")


@pytest.fixture
def watching(asking: Asking) -> Asking:
    asking("time = __import__('time')")
    asking("watch = __import__('gpualert.telemetry.gpuwatch', fromlist=['x']).GpuWatch({})")
    asking("ready = watch.ready.wait(60)")
    return asking


def test_a_driver_that_hangs_holds_nobody_up(watching: Asking, script: Script) -> None:
    _watching(watching, "watch.latest()")
    script.set("3.hang.sample", 3600)
    _watching(watching, "watch.latest() and watch._asked_at is not None")
    assert len(watching("watch.latest()")) == 8  # the last that is known
    watching("setattr(watch, '_asked_at', time.monotonic() - 61)")
    assert watching("watch.unanswered_s()") >= 61
    assert watching("watch.finish(0.05)") is None


def test_errors_of_links_at_the_very_end_are_seen(watching: Asking, script: Script) -> None:
    _watching(watching, "watch.latest()")
    script.set("3.nvlink_errors", 12)
    watching("watch.finish(60)")
    assert watching("watch.latest()")[3]["nvlink_errors"] == 12


def test_an_xid_at_the_very_end_is_heard(watching: Asking, script: Script) -> None:
    _watching(watching, "watch.latest()")
    script.event(3, 79)
    watching("watch.finish(60)")
    assert [xid["code"] for xid in watching("watch.xids()")] == [79]
    assert watching("watch.xids()") == []
