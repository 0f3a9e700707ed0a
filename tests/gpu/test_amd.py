"""AMD's GPUs, against a stand-in of the binding's own functions: no driver of AMD's has been asked.

What the functions are called, what they take and what they give back is that of ``amdsmi`` 7.0.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpualert.gpu import amd, devices
from gpualert.telemetry.record import LINE

GIB = 1 << 30
UUIDS = ["7eff74a1-0000-1000-80cf-a1a1a1a1a1a1", "7eff74a1-0000-1000-80cf-b2b2b2b2b2b2"]


class AmdSmiError(Exception):
    """As the binding's ``AmdSmiException``: not supported, or the library failed."""


class AmdSmiMemoryType(enum.IntEnum):
    VRAM = 0


class AmdSmiTemperatureType(enum.IntEnum):
    EDGE = 0
    JUNCTION = 1


class AmdSmiTemperatureMetric(enum.IntEnum):
    CURRENT = 0


class Binding(ModuleType):
    """The binding: two GPUs, whose answers a test may change; an exception is raised."""

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.AmdSmiMemoryType = AmdSmiMemoryType
        self.AmdSmiTemperatureType = AmdSmiTemperatureType
        self.AmdSmiTemperatureMetric = AmdSmiTemperatureMetric
        self.calls: list[str] = []
        self.answers: dict[str, Any] = {
            "amdsmi_init": None,
            "amdsmi_shut_down": None,
            "amdsmi_get_processor_handles": [0, 1],
            "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.10.5", "driver_date": "N/A"},
            "amdsmi_get_gpu_device_bdf": "0000:c1:00.0",
            "amdsmi_get_gpu_asic_info": {"market_name": "MI300X", "vendor_id": "0x1002"},
            "amdsmi_get_gpu_memory_usage": 150 * GIB,
            "amdsmi_get_gpu_memory_total": 192 * GIB,
            "amdsmi_get_gpu_activity": {"gfx_activity": 88, "umc_activity": 20, "mm_activity": "N/A"},
            "amdsmi_get_power_info": {
                "socket_power": 640,
                "current_socket_power": 641,
                "average_socket_power": "N/A",
                "power_limit": 750,
            },
            "amdsmi_get_temp_metric": 57,
            "amdsmi_get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.5, "timestamp": 1},
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 0, "deferred_count": 0},
            "amdsmi_get_gpu_process_list": [{"name": "python3", "pid": 12}, {"name": "N/A", "pid": 13}],
        }

    def __getattr__(self, name: str) -> Any:
        if name == "amdsmi_get_gpu_device_uuid":
            return lambda handle: UUIDS[handle]
        if not name.startswith("amdsmi_"):
            raise AttributeError(name)

        def call(*_arguments: object) -> Any:
            self.calls.append(name)
            answer = self.answers.get(name, AmdSmiError(2))
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Binding]:
    found = Binding()
    monkeypatch.setitem(sys.modules, "amdsmi", found)
    return found


def _open(driver: Path, **environment: str) -> amd.Amd:
    found = amd.open_devices(environment, str(driver))
    assert found is not None
    return found


def test_a_gpu_is_told_of_as_one_of_nvidias(binding: Binding, tmp_path: Path) -> None:
    found: devices.Devices = _open(tmp_path)
    assert (found.vendor, found.driver()) == ("amd", {"driver": "6.10.5"})
    assert found.inventory()[1] == {
        "index": 1,
        "uuid": UUIDS[1],
        "pci": "0000:c1:00.0",
        "name": "MI300X",
        "memory_used": 150 * GIB,
        "memory_total": 192 * GIB,
        "energy_j": 31.0,
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
    }
    assert found.sample()[0] == {
        "index": 0,
        "uuid": UUIDS[0],
        "memory_used": 150 * GIB,
        "memory_total": 192 * GIB,
        "utilization": 88,
        "power_w": 641,
        "temperature_c": 57,
        "energy_j": 31.0,
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
        "processes": 2,
    }
    line = LINE({"at": "2026-12-01T05:12:00.000000Z", "kind": "sample", "gpus": found.sample()})
    assert line is not None
    assert line["gpus"] == found.sample()


CALLS = {
    "amdsmi_get_gpu_activity": {"utilization"},
    "amdsmi_get_power_info": {"power_w"},
    "amdsmi_get_temp_metric": {"temperature_c"},
    "amdsmi_get_energy_count": {"energy_j"},
    "amdsmi_get_gpu_total_ecc_count": {"ecc_corrected", "ecc_uncorrected"},
    "amdsmi_get_gpu_process_list": {"processes"},
    "amdsmi_get_gpu_memory_usage": {"memory_used"},
    "amdsmi_get_gpu_memory_total": {"memory_total"},
}


@pytest.mark.parametrize(("call", "fields"), CALLS.items())
def test_what_a_gpu_does_not_support_is_left_out_alone(
    binding: Binding, tmp_path: Path, call: str, fields: set[str]
) -> None:
    found = _open(tmp_path)
    full = set(found.sample()[0])
    binding.answers[call] = AmdSmiError(2)
    assert set(_open(tmp_path).sample()[0]) == full - fields


def test_what_a_gpu_does_not_support_is_not_asked_again(binding: Binding, tmp_path: Path) -> None:
    del binding.answers["amdsmi_get_gpu_activity"]
    found = _open(tmp_path)
    for _ in range(3):
        found.sample()
    assert binding.calls.count("amdsmi_get_gpu_activity") == 2  # once for each GPU
    assert binding.calls.count("amdsmi_get_power_info") == 6


def test_a_value_that_is_not_available_is_left_out(binding: Binding, tmp_path: Path) -> None:
    binding.answers["amdsmi_get_gpu_activity"] = {"gfx_activity": "N/A"}
    binding.answers["amdsmi_get_power_info"] = {"current_socket_power": "N/A", "average_socket_power": 402}
    sample = _open(tmp_path).sample()[0]
    assert "utilization" not in sample
    assert sample["power_w"] == 402


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({}, [0, 1]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "0"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [1]),
    ],
)
def test_only_the_gpus_of_the_job_are_looked_at(
    binding: Binding, tmp_path: Path, environment: dict[str, str], gpus: list[int]
) -> None:
    assert [gpu["index"] for gpu in _open(tmp_path, **environment).sample()] == gpus


def test_no_gpu_of_the_job_is_none(binding: Binding, tmp_path: Path) -> None:
    assert amd.open_devices({"ROCR_VISIBLE_DEVICES": "-1"}, str(tmp_path)) is None


def test_without_the_driver_the_binding_is_not_even_loaded(binding: Binding, tmp_path: Path) -> None:
    assert amd.open_devices({}, str(tmp_path / "none")) is None
    assert binding.calls == []


@pytest.mark.parametrize("error", [AmdSmiError(1), OSError("no library"), SystemExit(1)])
def test_a_binding_that_fails_is_none(binding: Binding, tmp_path: Path, error: BaseException) -> None:
    binding.answers["amdsmi_init"] = error
    assert amd.open_devices({}, str(tmp_path)) is None


def test_without_the_binding_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert amd.open_devices({}, str(tmp_path)) is None


def test_there_are_no_xids(binding: Binding, tmp_path: Path) -> None:
    found = _open(tmp_path)
    assert found.wait(0.01) == []
    found.close()
    assert binding.calls[-1] == "amdsmi_shut_down"
