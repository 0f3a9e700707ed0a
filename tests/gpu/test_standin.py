"""The stand-in for NVIDIA's library, asked through NVIDIA's own binding: other tests believe what it answers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpu.asking import Asking
from gpu.standin import LIBRARY, SOURCES, Script, build

GIB = 1 << 30
NOT_SUPPORTED, NOT_FOUND, TIMEOUT, LOST, MISMATCH, UNINITIALIZED = 3, 6, 10, 15, 18, 1


@pytest.fixture
def nvml(asking: Asking) -> Asking:
    assert asking("nvmlInit()") is None
    return asking


HEALTHY = {
    "nvmlSystemGetDriverVersion()": "550.54.15",
    "nvmlSystemGetNVMLVersion()": "12.550.54.15",
    "nvmlSystemGetCudaDriverVersion()": 12040,
    "nvmlSystemGetCudaDriverVersion_v2()": 12040,
    "nvmlDeviceGetCount()": 8,
    "nvmlDeviceGetName(h(7))": "NVIDIA H200",
    "nvmlDeviceGetUUID(h(7))": "GPU-a7070707-5ca1-4e11-9a7e-000000000007",
    "nvmlDeviceGetIndex(h(7))": 7,
    "nvmlDeviceGetMinorNumber(h(7))": 7,
    "nvmlDeviceGetPciInfo(h(7)).busId": "00000000:88:00.0",
    "nvmlDeviceGetPciInfo(h(7)).bus": 0x88,
    "nvmlDeviceGetMemoryInfo(h(7))": {"total": 141 * GIB, "used": 96 * GIB, "free": 45 * GIB},
    "nvmlDeviceGetMemoryInfo(h(7), nvmlMemory_v2).used": 96 * GIB,
    "nvmlDeviceGetUtilizationRates(h(7))": {"gpu": 97, "memory": 41},
    "nvmlDeviceGetPowerUsage(h(7))": 612_500,
    "nvmlDeviceGetEnforcedPowerLimit(h(7))": 700_000,
    "nvmlDeviceGetTemperature(h(7), NVML_TEMPERATURE_GPU)": 61,
    "nvmlDeviceGetTemperatureV(h(7), NVML_TEMPERATURE_GPU)": 61,
    "nvmlDeviceGetCurrentClocksThrottleReasons(h(7))": 0,
    "nvmlDeviceGetCurrentClocksEventReasons(h(7))": 0,
    "nvmlDeviceGetClockInfo(h(7), NVML_CLOCK_SM)": 1755,
    "nvmlDeviceGetMaxClockInfo(h(7), NVML_CLOCK_SM)": 1980,
    "nvmlDeviceGetMaxClockInfo(h(7), NVML_CLOCK_MEM)": 3201,
    "nvmlDeviceGetPersistenceMode(h(7))": 1,
    "nvmlDeviceGetEccMode(h(7))": [1, 1],
    "nvmlDeviceGetTotalEccErrors(h(7), NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC)": 0,
    "nvmlDeviceGetRemappedRows(h(7))": [0, 0, 0, 0],
    "nvmlDeviceGetRetiredPages(h(7), 0)": {"error": NOT_SUPPORTED},
    "nvmlDeviceGetRetiredPages_v2(h(7), 1)": {"error": NOT_SUPPORTED},
    "nvmlDeviceGetRetiredPagesPendingStatus(h(7))": {"error": NOT_SUPPORTED},
    "nvmlDeviceGetNvLinkState(h(7), 17)": 1,
    "nvmlDeviceGetNvLinkErrorCounter(h(7), 0, NVML_NVLINK_ERROR_DL_CRC_FLIT)": 0,
    "nvmlDeviceGetComputeRunningProcesses(h(7))": [],
    "nvmlDeviceGetMigMode(h(7))": [0, 0],
    "nvmlDeviceGetMaxMigDeviceCount(h(7))": 7,
    "nvmlDeviceGetMigDeviceHandleByIndex(h(7), 0)": {"error": NOT_FOUND},
    "nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('GPU-a2020202-5ca1-4e11-9a7e-000000000002'))": 2,
    "nvmlDeviceGetHandleByUUID('GPU-none')": {"error": NOT_FOUND},
    "h(8)": {"error": 2},
    "nvmlDeviceGetSupportedEventTypes(h(7)) & nvmlEventTypeXidCriticalError": 8,
}


def test_without_a_script_there_are_eight_healthy_gpus(libraries: Path) -> None:
    with Asking(libraries, None) as asking:
        asking("nvmlInit()")
        assert {expression: asking(expression) for expression in HEALTHY} == HEALTHY


SCRIPTED: list[tuple[str, object, str, Any]] = [
    ("driver", "570.1", "nvmlSystemGetDriverVersion()", "570.1"),
    ("nvml", "12.570.1", "nvmlSystemGetNVMLVersion()", "12.570.1"),
    ("cuda", 13000, "nvmlSystemGetCudaDriverVersion()", 13000),
    ("gpus", 4, "nvmlDeviceGetCount()", 4),
    ("3.name", "NVIDIA A100-SXM4-80GB", "nvmlDeviceGetName(h(3))", "NVIDIA A100-SXM4-80GB"),
    ("3.uuid", "GPU-1", "nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('GPU-1'))", 3),
    ("3.pci", "00000001:C1:00.0", "nvmlDeviceGetPciInfo(h(3)).domain", 1),
    ("3.minor", 5, "nvmlDeviceGetMinorNumber(h(3))", 5),
    ("3.memory_used", 83886080, "nvmlDeviceGetMemoryInfo(h(3)).used", 83886080),
    ("3.memory_total", 160 * GIB, "nvmlDeviceGetMemoryInfo(h(3), nvmlMemory_v2).free", 64 * GIB),
    ("3.utilization", 0, "nvmlDeviceGetUtilizationRates(h(3)).gpu", 0),
    ("3.power_w", 71.25, "nvmlDeviceGetPowerUsage(h(3))", 71250),
    ("3.power_limit_w", 500, "nvmlDeviceGetEnforcedPowerLimit(h(3))", 500_000),
    ("3.energy_j", 1234.5, "nvmlDeviceGetTotalEnergyConsumption(h(3))", 1_234_500),
    ("3.temperature_c", 93, "nvmlDeviceGetTemperature(h(3), 0)", 93),
    ("3.throttle", "0x48", "nvmlDeviceGetCurrentClocksThrottleReasons(h(3))", 0x48),
    ("3.clock_mhz", 345, "nvmlDeviceGetClockInfo(h(3), NVML_CLOCK_SM)", 345),
    ("3.persistence", 0, "nvmlDeviceGetPersistenceMode(h(3))", 0),
    ("3.ecc_mode", 0, "nvmlDeviceGetTotalEccErrors(h(3), 0, 0)", {"error": NOT_SUPPORTED}),
    ("3.ecc_corrected", 41, "nvmlDeviceGetTotalEccErrors(h(3), 0, NVML_VOLATILE_ECC)", 41),
    ("3.ecc_uncorrected", 2, "nvmlDeviceGetTotalEccErrors(h(3), 1, NVML_VOLATILE_ECC)", 2),
    ("3.ecc_uncorrected", 2, "nvmlDeviceGetTotalEccErrors(h(3), 1, NVML_AGGREGATE_ECC)", 1002),
    ("3.ecc_uncorrected", 2, "nvmlDeviceGetMemoryErrorCounter(h(3), 1, 0, NVML_MEMORY_LOCATION_DEVICE_MEMORY)", 2),
    ("3.remapped_uncorrected", 3, "nvmlDeviceGetRemappedRows(h(3))", [0, 3, 0, 0]),
    ("3.remapped_pending", 1, "nvmlDeviceGetRemappedRows(h(3))", [0, 0, 1, 0]),
    ("3.remapped_failed", 1, "nvmlDeviceGetRemappedRows(h(3))", [0, 0, 0, 1]),
    ("3.retired_corrected", 2, "nvmlDeviceGetRetiredPages(h(3), 0)", [0x1000, 0x2000]),
    ("3.retired_pending", 1, "nvmlDeviceGetRetiredPagesPendingStatus(h(3))", 1),
    ("3.nvlinks", 4, "nvmlDeviceGetNvLinkState(h(3), 4)", {"error": 2}),
    ("3.nvlinks_down", 2, "[nvmlDeviceGetNvLinkState(h(3), link) for link in range(4)]", [0, 0, 1, 1]),
    ("3.nvlink_errors", 7, "nvmlDeviceGetNvLinkErrorCounter(h(3), 0, NVML_NVLINK_ERROR_DL_CRC_FLIT)", 7),
    ("3.nvlink_errors", 7, "[(one.nvmlReturn, one.value.ullVal) for one in nvmlDeviceGetFieldValues(h(3), [38, 45, 9999])]",
     [[0, 7], [0, 0], [NOT_SUPPORTED, 0]]),
    ("3.field.9999", 12, "nvmlDeviceGetFieldValues(h(3), [9999])[0].value.ullVal", 12),
    ("3.processes", "1234:1048576,77:5", "[(one.pid, one.usedGpuMemory) for one in nvmlDeviceGetComputeRunningProcesses(h(3))]",
     [[1234, 1048576], [77, 5]]),
    ("3.mig", 1, "nvmlDeviceGetMigMode(h(3))", [1, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "expression", "answer"), SCRIPTED)
def test_an_answer_is_that_of_the_script_and_of_its_gpu_alone(
    nvml: Asking, script: Script, key: str, value: object, expression: str, answer: Any
) -> None:
    assert nvml(expression) != answer
    script.set(key, value)
    assert nvml(expression) == answer
    if "h(3)" in expression:
        other = expression.replace("h(3)", "h(2)")
        assert nvml(other) != answer
        script.set(key.replace("3.", "all."), value)
        assert nvml(other) == answer
        script.remove(key.replace("3.", "all."))
    script.remove(key)
    assert nvml(expression) != answer


def test_the_energy_counter_of_a_gpu_at_work_grows(nvml: Asking) -> None:
    before = nvml("nvmlDeviceGetTotalEnergyConsumption(h(0))")
    while nvml("nvmlDeviceGetTotalEnergyConsumption(h(0))") <= before:
        pass


def test_parts_of_a_divided_gpu_have_names_and_memory_of_their_own(nvml: Asking, script: Script) -> None:
    script.set("1.mig", 1)
    script.set("1.mig_devices", 3)
    part = "nvmlDeviceGetMigDeviceHandleByIndex(h(1), 2)"
    assert nvml(f"nvmlDeviceGetUUID({part})") == "MIG-b1010101-5ca1-4e11-0002-000000000001"
    assert nvml("nvmlDeviceGetMigDeviceHandleByIndex(h(1), 3)") == {"error": NOT_FOUND}
    assert nvml(f"nvmlDeviceGetMemoryInfo({part}).total") == 47 * GIB
    assert nvml(f"nvmlDeviceGetPowerUsage({part})") == {"error": NOT_SUPPORTED}
    assert nvml("nvmlDeviceGetUtilizationRates(h(1))") == {"error": NOT_SUPPORTED}
    assert nvml(f"nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle({part}))") == 1
    by_name = "nvmlDeviceGetHandleByUUID('MIG-b1010101-5ca1-4e11-0002-000000000001')"
    assert nvml(f"nvmlDeviceGetName({by_name})") == "NVIDIA H200 MIG 3g.71gb"


def test_a_driver_that_does_not_fit_its_library_refuses_at_first(asking: Asking, script: Script) -> None:
    script.set("init", MISMATCH)
    assert asking("nvmlInit()") == {"error": MISMATCH}
    assert asking("nvmlDeviceGetCount()") == {"error": UNINITIALIZED}
    script.remove("init")
    assert asking("nvmlInit()") is None
    assert asking("nvmlDeviceGetCount()") == 8
    assert asking("nvmlShutdown()") is None
    assert asking("nvmlDeviceGetCount()") == {"error": UNINITIALIZED}


def test_one_call_of_one_gpu_fails(nvml: Asking, script: Script) -> None:
    script.set("3.error.power", 999)
    assert nvml("nvmlDeviceGetPowerUsage(h(3))") == {"error": 999}
    assert nvml("nvmlDeviceGetPowerUsage(h(2))") == 612_500
    assert nvml("nvmlDeviceGetTemperature(h(3), 0)") == 61


@pytest.mark.parametrize("expression", [expression for expression in HEALTHY if "(h(7)" in expression])
def test_a_lost_gpu_answers_nothing_but_that(nvml: Asking, script: Script, expression: str) -> None:
    script.set("7.lost", 1)
    assert nvml(expression) == {"error": LOST}
    assert nvml("nvmlDeviceGetPowerUsage(h(6))") == 612_500


def test_a_call_that_hangs_ends_when_the_script_lets_it(nvml: Asking, script: Script) -> None:
    script.set("hang.all", 1)
    nvml.start("nvmlDeviceGetCount()")
    assert not nvml.answered(0.3)
    script.remove("hang.all")
    assert nvml.answer() == 8


def test_memory_of_one_gpu_takes_its_time(nvml: Asking, script: Script) -> None:
    script.set("3.hang.sample", 0.01)
    assert nvml("nvmlDeviceGetMemoryInfo(h(3)).used") == 96 * GIB
    script.set("3.hang.sample", 3600)
    assert nvml("nvmlDeviceGetMemoryInfo(h(2)).used") == 96 * GIB
    nvml.start("nvmlDeviceGetMemoryInfo(h(3)).used")
    assert not nvml.answered(0.3)


def test_a_library_that_crashes_takes_its_process_along(nvml: Asking, script: Script) -> None:
    script.set("crash", 1)
    nvml.start("nvmlDeviceGetCount()")
    assert nvml.process.wait(60) == -6  # SIGABRT


# -- events ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def listening(nvml: Asking, script: Script) -> Asking:
    """A process with an event set of all GPUs but the last, and one Xid from before."""
    script.event(3, 31)
    nvml("events = nvmlEventSetCreate()")
    nvml("[nvmlDeviceRegisterEvents(h(gpu), nvmlEventTypeXidCriticalError, events) for gpu in range(7)]")
    return nvml


NEXT = (
    "(lambda told: (nvmlDeviceGetIndex(told.device), told.eventType, told.eventData))(nvmlEventSetWait_v2(events, {}))"
)


def test_an_xid_is_told_once_and_none_from_before(listening: Asking, script: Script) -> None:
    assert listening(NEXT.format(1)) == {"error": TIMEOUT}
    script.event(5, 79)
    script.event(5, 45)
    assert listening(NEXT.format(1)) == [5, 8, 79]
    assert listening(NEXT.format(1)) == [5, 8, 45]
    assert listening(NEXT.format(1)) == {"error": TIMEOUT}


def test_who_waits_is_woken_by_an_xid(listening: Asking, script: Script) -> None:
    listening.start(NEXT.format(60_000))
    assert not listening.answered(0.1)
    script.event(0, 48)
    assert listening.answer() == [0, 8, 48]


def test_an_xid_of_a_gpu_that_nobody_registered_is_not_told(listening: Asking, script: Script) -> None:
    script.event(7, 79)
    script.event(6, 13)
    assert listening(NEXT.format(1)) == [6, 8, 13]
    assert listening(NEXT.format(1)) == {"error": TIMEOUT}


def test_a_lost_gpu_ends_the_waiting_after_its_xid(listening: Asking, script: Script) -> None:
    script.set("4.lost", 1)
    script.event(4, 79)
    assert listening("nvmlEventSetWait(events, 1).eventData") == 79
    assert listening(NEXT.format(60_000)) == {"error": LOST}


def test_events_that_a_gpu_has_not_cannot_be_registered(nvml: Asking, script: Script) -> None:
    script.set("all.event_types", 0)
    asked = "nvmlDeviceRegisterEvents(h(0), nvmlEventTypeXidCriticalError, nvmlEventSetCreate())"
    assert nvml(asked) == {"error": NOT_SUPPORTED}
    assert nvml("nvmlEventSetFree(nvmlEventSetCreate())") is None


# -- the build ---------------------------------------------------------------------------------------------------------


def test_it_is_compiled_once(libraries: Path) -> None:
    before = (libraries / LIBRARY).stat()
    assert build(libraries) == libraries
    assert (libraries / LIBRARY).stat().st_ino == before.st_ino


def test_the_compiler_has_nothing_to_say(tmp_path: Path) -> None:
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    done = subprocess.run(
        ["cc", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", *sources], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
