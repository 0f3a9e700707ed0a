"""AMD's GPUs by ROCm's own binding (``amdsmi``), where that is there.

Source of calls and units: AMD SMI's Python API (power in watts, memory in bytes, temperature in degrees). The driver
tells of its errors in the kernel's log, not by events. Limits of power are left out: their unit is another one from
release to release.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from gpualert.gpu.visible import ROCM, Candidate, narrowed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from gpualert.gpu.devices import Gpu
    from gpualert.gpu.xid import Xid

PLACE = "/opt/rocm/share/amd_smi"
"""Where ROCm puts the binding beside its library."""
DRIVER = "/sys/module/amdgpu"
SELDOM_S = 60.0
"""How often what slows the clocks is asked: the library takes two looks for it, and waits between them."""
FAILURES_MAX = 3
"""A call that has failed so often in a row is not made again."""
_NEVER = (2, 3, 5)  # AMDSMI_STATUS_{NOT_SUPPORTED,NOT_YET_IMPLEMENTED,FAIL_LOAD_SYMBOL}
_UNKNOWN = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""What the library gives for numbers that it does not have."""
_THROTTLE = {
    "active_ppt_pwr": "power_cap",
    "active_socket_thrm": "socket_thermal",
    "active_hbm_thrm": "memory_thermal",
    "active_vr_thrm": "voltage_regulator_thermal",
    "active_prochot_thrm": "processor_hot",
}


def open_devices(environment: Mapping[str, str], driver: str = DRIVER) -> Amd | None:
    """The job's GPUs of AMD's; None where there are none, or nothing to ask them by.

    Args:
        environment: The job's variables.
        driver: What is there where the driver is loaded.
    """
    if not os.path.exists(driver):
        return None  # without it, loading the binding is for nothing
    if os.path.isdir(PLACE) and PLACE not in sys.path:
        sys.path.append(PLACE)
    try:
        with contextlib.redirect_stdout(None):  # the binding prints where it has looked for its library
            import amdsmi  # noqa: PLC0415  (only where somebody asks)
        amdsmi.amdsmi_init()
        found = Amd(amdsmi, environment)
    except (Exception, SystemExit):  # noqa: BLE001  (the binding raises what its library's absence brings about)
        return None
    return found if found.handles else None


class Amd:
    """The job's GPUs of AMD's."""

    vendor = "amd"

    def __init__(self, binding: ModuleType, environment: Mapping[str, str]) -> None:
        """Find them.

        Args:
            binding: ``amdsmi``, initialised.
            environment: The job's variables.

        Raises:
            binding.AmdSmiException: They cannot be listed.
        """
        self._smi = binding
        self._failures: dict[tuple[int, str], int] = {}
        self._throttle: dict[int, list[str]] = {}
        self._asked_at = -SELDOM_S
        every = list(binding.amdsmi_get_processor_handles())
        uuids = (self._ask(index, "amdsmi_get_gpu_device_uuid", handle) for index, handle in enumerate(every))
        self._uuids = [uuid if isinstance(uuid, str) else "" for uuid in uuids]
        candidates = [Candidate(uuid, self._of_rocm(index, every[index])) for index, uuid in enumerate(self._uuids)]
        self.handles = {index: every[index] for index in narrowed(environment, ROCM, candidates)}

    def _ask(self, index: int, what: str, *arguments: Any) -> Any:
        """What the driver answers; None where it does not. What it never will is not asked again.

        Args:
            index: The GPU's index; -1 for none.
            what: The call.
            arguments: What it takes, its handle first.
        """
        key = (index, f"{what} {arguments[1:]}")
        if self._failures.get(key, 0) >= FAILURES_MAX:
            return None
        try:
            answer = getattr(self._smi, what)(*arguments)
        except Exception as error:  # noqa: BLE001  (the binding has many kinds of them, and older ones lack calls)
            never = isinstance(error, AttributeError) or error.args[:1] in {(code,) for code in _NEVER}
            self._failures[key] = FAILURES_MAX if never else self._failures.get(key, 0) + 1
            return None
        self._failures.pop(key, None)
        return answer

    def _table(self, index: int, what: str, handle: Any) -> dict[str, Any]:
        found = self._ask(index, what, handle)
        return found if isinstance(found, dict) else {}

    def _of_rocm(self, index: int, handle: Any) -> tuple[str, ...]:
        """The names that ROCm has for a GPU, which are not AMD SMI's: ``GPU-`` and its serial number."""
        named = self._table(index, "amdsmi_get_gpu_enumeration_info", handle).get("hip_uuid")
        serial = str(self._table(index, "amdsmi_get_gpu_asic_info", handle).get("asic_serial", ""))
        found = [named] if isinstance(named, str) else []
        if serial.lower().startswith("0x"):
            found.append(f"GPU-{serial[2:].lower()}")
        return tuple(name for name in found if len(name) > len("GPU-"))

    def driver(self) -> dict[str, object]:
        """The driver's version."""
        first = next(iter(self.handles.values()))
        version = self._table(-1, "amdsmi_get_gpu_driver_info", first).get("driver_version")
        return {"driver": version} if isinstance(version, str) and version != "N/A" else {}

    def inventory(self) -> list[Gpu]:
        """Each GPU as it is."""
        return [dict(self._described(index, handle)) for index, handle in self.handles.items()]

    def _described(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        yield from self._named(index)
        pci = self._ask(index, "amdsmi_get_gpu_device_bdf", handle)
        if isinstance(pci, str):
            yield "pci", pci
        name = self._table(index, "amdsmi_get_gpu_asic_info", handle).get("market_name")
        if isinstance(name, str) and name != "N/A":
            yield "name", name
        yield from self._memory(index, handle)
        yield from self._energy(index, handle)
        yield from self._errors(index, handle)

    def sample(self, *, whole: bool = False) -> list[Gpu]:
        """Each GPU as it stands.

        Args:
            whole: Ask now also what is else asked once a minute.
        """
        if whole or time.monotonic() - self._asked_at >= SELDOM_S:
            self._asked_at = time.monotonic()
            self._throttle = {index: self._slowing(index, handle) for index, handle in self.handles.items()}
        return [dict(self._now(index, handle)) for index, handle in self.handles.items()]

    def _slowing(self, index: int, handle: Any) -> list[str]:
        told = self._table(index, "amdsmi_get_violation_status", handle)
        return [name for key, name in _THROTTLE.items() if told.get(key) is True]

    def _now(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        yield from self._named(index)
        yield from self._memory(index, handle)
        yield from _number("utilization", self._table(index, "amdsmi_get_gpu_activity", handle).get("gfx_activity"))
        told = self._table(index, "amdsmi_get_power_info", handle)
        # Which of them there is depends on the generation.
        powers = (told.get(key) for key in ("current_socket_power", "average_socket_power", "socket_power"))
        yield from _number("power_w", next((power for power in powers if _is_number(power)), None))
        yield from self._temperature(index, handle)
        yield from self._energy(index, handle)
        yield from self._errors(index, handle)
        running = self._ask(index, "amdsmi_get_gpu_process_list", handle)
        if isinstance(running, list):
            yield "processes", len(running)
        if self._throttle.get(index):
            yield "throttle", self._throttle[index]

    def _temperature(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        """The hottest place's, else the edge's."""
        kinds, current = self._smi.AmdSmiTemperatureType, self._smi.AmdSmiTemperatureMetric.CURRENT
        for kind in (kinds.JUNCTION, kinds.EDGE):
            degrees = self._ask(index, "amdsmi_get_temp_metric", handle, kind, current)
            if _is_number(degrees):
                yield "temperature_c", degrees
                return

    def _named(self, index: int) -> Iterator[tuple[str, object]]:
        yield "index", index
        if self._uuids[index]:
            yield "uuid", self._uuids[index]

    def _memory(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        vram = self._smi.AmdSmiMemoryType.VRAM
        yield from _number("memory_used", self._ask(index, "amdsmi_get_gpu_memory_usage", handle, vram))
        yield from _number("memory_total", self._ask(index, "amdsmi_get_gpu_memory_total", handle, vram))

    def _energy(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        told = self._table(index, "amdsmi_get_energy_count", handle)
        count, unit = told.get("energy_accumulator", told.get("power")), told.get("counter_resolution")
        if isinstance(count, int) and isinstance(unit, float):
            yield "energy_j", count * unit / 1e6  # the counter's unit is given in microjoules

    def _errors(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        told = self._table(index, "amdsmi_get_gpu_total_ecc_count", handle)
        yield from _number("ecc_corrected", told.get("correctable_count"))
        yield from _number("ecc_uncorrected", told.get("uncorrectable_count"))

    def wait(self, timeout_s: float) -> list[Xid]:
        """Nothing: AMD has no such events.

        Args:
            timeout_s: How long to wait, in seconds.
        """
        time.sleep(timeout_s)
        return []

    def close(self) -> None:
        """Let the driver go."""
        with contextlib.suppress(Exception):
            self._smi.amdsmi_shut_down()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value not in _UNKNOWN


def _number(key: str, value: object) -> Iterator[tuple[str, object]]:
    if _is_number(value):
        yield key, value
