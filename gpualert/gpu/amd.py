"""AMD's GPUs by ROCm's own binding (``amdsmi``), where that is there.

Source of calls and units: AMD SMI's Python API (power in watts, memory in bytes, temperature in degrees). The driver
tells of its errors in the kernel's log, not by events.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from gpualert.gpu.visible import ROCM, Candidate, narrowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from gpualert.gpu.devices import Gpu
    from gpualert.gpu.xid import Xid

PLACE = "/opt/rocm/share/amd_smi"
"""Where ROCm puts the binding beside its library."""
DRIVER = "/sys/module/amdgpu"


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
        self._refused: set[tuple[int, str]] = set()
        every = list(binding.amdsmi_get_processor_handles())
        uuids = [
            str(self._ask(i, "uuid", binding.amdsmi_get_gpu_device_uuid, one) or "") for i, one in enumerate(every)
        ]
        chosen = narrowed(environment, ROCM, [Candidate(uuid) for uuid in uuids])
        self.handles = {index: every[index] for index in chosen}
        self._uuids = uuids

    def _ask(self, index: int, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """What the driver answers; None where it does not, and then it is not asked again."""
        if (index, what) in self._refused:
            return None
        try:
            return call(*arguments)
        except Exception:  # noqa: BLE001  (the binding has many kinds of them)
            self._refused.add((index, what))
            return None

    def driver(self) -> dict[str, object]:
        """The driver's version."""
        first = next(iter(self.handles.values()))
        told = self._ask(-1, "driver", self._smi.amdsmi_get_gpu_driver_info, first) or {}
        version = told.get("driver_version")
        return {"driver": version} if isinstance(version, str) and version != "N/A" else {}

    def inventory(self) -> list[Gpu]:
        """Each GPU as it is."""
        return [dict(self._described(index, handle)) for index, handle in self.handles.items()]

    def _described(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        smi = self._smi
        yield from self._named(index)
        pci = self._ask(index, "pci", smi.amdsmi_get_gpu_device_bdf, handle)
        if isinstance(pci, str):
            yield "pci", pci
        name = (self._ask(index, "name", smi.amdsmi_get_gpu_asic_info, handle) or {}).get("market_name")
        if isinstance(name, str):
            yield "name", name
        yield from self._memory(index, handle)
        yield from self._energy(index, handle)
        yield from self._errors(index, handle)

    def sample(self, *, whole: bool = False) -> list[Gpu]:  # noqa: ARG002  (all is asked each time)
        """Each GPU as it stands.

        Args:
            whole: As for all; nothing is left for later here.
        """
        return [dict(self._now(index, handle)) for index, handle in self.handles.items()]

    def _now(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        smi = self._smi
        yield from self._named(index)
        yield from self._memory(index, handle)
        told = self._ask(index, "activity", smi.amdsmi_get_gpu_activity, handle) or {}
        yield from _number("utilization", told.get("gfx_activity"))
        told = self._ask(index, "power", smi.amdsmi_get_power_info, handle) or {}
        # Which of them there is depends on the generation.
        powers = (told.get(key) for key in ("current_socket_power", "average_socket_power", "socket_power"))
        yield from _number("power_w", next((power for power in powers if isinstance(power, int | float)), None))
        kinds, current = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
        for kind in (kinds.JUNCTION, kinds.EDGE):
            degrees = self._ask(index, f"temperature {kind}", smi.amdsmi_get_temp_metric, handle, kind, current)
            if degrees is not None:
                yield from _number("temperature_c", degrees)
                break
        yield from self._energy(index, handle)
        yield from self._errors(index, handle)
        running = self._ask(index, "processes", smi.amdsmi_get_gpu_process_list, handle)
        if running is not None:
            yield "processes", len(running)

    def _named(self, index: int) -> Iterator[tuple[str, object]]:
        yield "index", index
        if self._uuids[index]:
            yield "uuid", self._uuids[index]

    def _memory(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        smi, vram = self._smi, self._smi.AmdSmiMemoryType.VRAM
        yield from _number("memory_used", self._ask(index, "used", smi.amdsmi_get_gpu_memory_usage, handle, vram))
        yield from _number("memory_total", self._ask(index, "total", smi.amdsmi_get_gpu_memory_total, handle, vram))

    def _energy(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        told = self._ask(index, "energy", self._smi.amdsmi_get_energy_count, handle) or {}
        count, unit = told.get("energy_accumulator"), told.get("counter_resolution")
        if isinstance(count, int) and isinstance(unit, float):
            yield "energy_j", count * unit / 1e6  # the counter's unit is given in microjoules

    def _errors(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        told = self._ask(index, "ecc", self._smi.amdsmi_get_gpu_total_ecc_count, handle) or {}
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
        self._ask(-1, "shut down", self._smi.amdsmi_shut_down)


def _number(key: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value
