"""NVIDIA's GPUs by NVML, through NVIDIA's own binding (``nvidia-ml-py``).

What is not supported is not asked again; a GPU that does not answer because it is lost is ``lost``. Source of calls
and units: NVIDIA, NVML API Reference Guide (power in milliwatts, energy in millijoules since the driver was loaded).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from typing import TYPE_CHECKING, Any

from gpualert.gpu.visible import CUDA, Candidate, narrowed
from gpualert.gpu.xid import NOTICES, Xid
from gpualert.rundir.clock import now_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from gpualert.gpu.devices import Gpu

LIBRARY = "libnvidia-ml.so.1"
PLACES = (
    "/usr/local/nvidia/lib64", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib", "/run/nvidia/driver/usr/lib64",
)  # fmt: skip
"""Where drivers are put that no loader knows of: by GKE's installer, by distributions, in WSL, by the GPU operator."""
_PATHS = ("LD_LIBRARY_PATH", "_GPUALERT_ENV_LD_LIBRARY_PATH")
"""The second is where the bundle's launcher puts the first."""
SELDOM_S = 60.0
"""How often what changes seldom, or is slow to ask, is asked."""
EVENTS_MAX = 64
_XID = 8  # nvmlEventTypeXidCriticalError; a double bit error comes as Xid 48
_TIMEOUT = 10  # NVML_ERROR_TIMEOUT
_LOST = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
_NEVER = (2, 3, 13)  # NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND
_THROTTLE = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
_LINK_ERRORS = (38, 45, 52, 59)
"""NVML_FI_DEV_NVLINK_{CRC_FLIT,CRC_DATA,REPLAY,RECOVERY}_ERROR_COUNT_TOTAL."""
_ENABLED = 1
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0


def open_devices(environment: Mapping[str, str]) -> Nvml | None:
    """The job's GPUs of NVIDIA's; None where there are none, or the driver does not answer as it should.

    Args:
        environment: The job's variables.
    """
    try:
        import pynvml  # noqa: PLC0415  (only where somebody asks)
    except ImportError:
        return None
    _load(environment)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None  # no driver, or one whose parts do not fit together
    try:
        found = Nvml(pynvml, environment)
    except pynvml.NVMLError:
        return None
    return found if found.handles else None


def _load(environment: Mapping[str, str]) -> None:
    """Load the library by its path where it has none by its name: then the binding finds it loaded."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(LIBRARY)
        return
    listed = [part for name in _PATHS for part in environment.get(name, "").split(":")]
    for directory in dict.fromkeys((*listed, *PLACES)):
        path = os.path.join(directory, LIBRARY)
        if directory.startswith("/") and os.path.isfile(path):
            with contextlib.suppress(OSError):
                ctypes.CDLL(path)
                return


class Nvml:
    """The job's GPUs of NVIDIA's."""

    vendor = "nvidia"

    def __init__(self, binding: ModuleType, environment: Mapping[str, str]) -> None:
        """Find them, and register for events.

        Args:
            binding: ``pynvml``, initialised.
            environment: The job's variables.

        Raises:
            binding.NVMLError: They cannot be counted.
        """
        self._nvml = binding
        self._refused: set[tuple[int, str]] = set()
        self._lost: set[int] = set()
        self._seldom: dict[int, Gpu] = {}
        self._asked_at = -SELDOM_S
        every = {}
        for index in range(binding.nvmlDeviceGetCount()):
            with contextlib.suppress(binding.NVMLError):  # one that is lost already
                every[index] = binding.nvmlDeviceGetHandleByIndex(index)
        candidates = [Candidate(str(self._uuid(index, handle)), self._parts(handle)) for index, handle in every.items()]
        chosen = narrowed(environment, CUDA, candidates)
        there = list(every.items())
        self.handles = dict(there[place] for place in chosen)
        self._uuids = {there[place][0]: candidates[place] for place in chosen}
        self._pci = {index: str(self._of_bus(index) or "") for index in self.handles}
        self._events = self._register()

    # -- asking --------------------------------------------------------------------------------------------------------

    def _ask(self, index: int, what: str, *arguments: Any) -> Any:
        """What the driver answers; None where it does not. What it never will is not asked again.

        Args:
            index: The GPU's index; -1 for none.
            what: The call.
            arguments: What it takes, its handle first.
        """
        key = (index, f"{what} {arguments[1:]}")
        if key in self._refused:
            return None
        try:
            return getattr(self._nvml, what)(*arguments)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", 0)
            if code in _LOST:
                self._lost.add(index)
            if code in _NEVER:
                self._refused.add(key)
        except (AttributeError, ValueError, ctypes.ArgumentError):  # a binding without the call, an answer that is none
            self._refused.add(key)
        return None

    def _uuid(self, index: int, handle: Any) -> str:
        return _text(self._ask(index, "nvmlDeviceGetUUID", handle))

    def _of_bus(self, index: int) -> str | None:
        info = self._ask(index, "nvmlDeviceGetPciInfo", self.handles[index])
        return _text(info.busId) if info is not None else None

    def _parts(self, handle: Any) -> tuple[str, ...]:
        """The UUIDs of a GPU's MIG devices."""
        nvml, found = self._nvml, []
        try:
            if nvml.nvmlDeviceGetMigMode(handle)[0] != _ENABLED:
                return ()
            for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(nvml.NVMLError):  # so many there could be
                    part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                    found.append(_text(nvml.nvmlDeviceGetUUID(part)))
        except nvml.NVMLError:
            return ()
        return tuple(found)

    # -- what there is -------------------------------------------------------------------------------------------------

    def driver(self) -> dict[str, object]:
        """Versions of driver, CUDA and NVML."""
        cuda = self._ask(-1, "nvmlSystemGetCudaDriverVersion")
        found = {
            "driver": _text(self._ask(-1, "nvmlSystemGetDriverVersion")),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else "",
            "nvml": _text(self._ask(-1, "nvmlSystemGetNVMLVersion")),
        }
        return {key: value for key, value in found.items() if value}

    def inventory(self) -> list[Gpu]:
        """Each GPU as it is."""
        return [_known(self._described(index, handle)) for index, handle in self.handles.items()]

    def _described(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        parts = self._uuids[index].parts
        yield "index", index
        yield "uuid", self._uuids[index].uuid
        yield "pci", self._pci[index]
        yield "name", _text(self._ask(index, "nvmlDeviceGetName", handle))
        memory = self._ask(index, "nvmlDeviceGetMemoryInfo", handle)
        yield "memory_total", memory.total if memory is not None else None
        limit = self._ask(index, "nvmlDeviceGetEnforcedPowerLimit", handle)
        yield "power_limit_w", limit / 1000 if limit is not None else None
        mode = self._ask(index, "nvmlDeviceGetEccMode", handle)
        yield "ecc_mode", mode[0] == _ENABLED if mode is not None else None
        yield "mig", ",".join(parts) if parts else None
        yield "energy_j", self._energy(index, handle)
        yield from self._counters(index, handle)

    # -- how it stands -------------------------------------------------------------------------------------------------

    def sample(self, *, whole: bool = False) -> list[Gpu]:
        """Each GPU as it stands.

        Args:
            whole: Ask now also what is else asked once a minute.
        """
        self._lost.clear()
        seldom = whole or time.monotonic() - self._asked_at >= SELDOM_S
        if seldom:
            self._asked_at = time.monotonic()
        return [self._sampled(index, handle, seldom=seldom) for index, handle in self.handles.items()]

    def _sampled(self, index: int, handle: Any, *, seldom: bool) -> Gpu:
        found = _known(self._now(index, handle))
        if seldom:
            self._seldom[index] = _known(self._seldom_asked(index, handle))
        found.update(self._seldom.get(index, {}))
        if index in self._lost:
            found["lost"] = True
        return found

    def _now(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        yield "index", index
        yield "uuid", self._uuids[index].uuid
        memory = self._ask(index, "nvmlDeviceGetMemoryInfo", handle)
        yield "memory_used", memory.used if memory is not None else None
        yield "memory_total", memory.total if memory is not None else None
        rates = self._ask(index, "nvmlDeviceGetUtilizationRates", handle)
        yield "utilization", rates.gpu if rates is not None else None
        power = self._ask(index, "nvmlDeviceGetPowerUsage", handle)
        yield "power_w", power / 1000 if power is not None else None
        yield "energy_j", self._energy(index, handle)
        yield "temperature_c", self._ask(index, "nvmlDeviceGetTemperature", handle, 0)
        reasons = self._ask(index, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        yield "throttle", [name for bit, name in _THROTTLE.items() if reasons & bit] if reasons is not None else None
        yield from self._errors(index, handle)

    def _energy(self, index: int, handle: Any) -> float | None:
        """The energy counter, in joules."""
        energy = self._ask(index, "nvmlDeviceGetTotalEnergyConsumption", handle)
        return energy / 1000 if energy is not None else None

    def _errors(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        for name, kind in (("ecc_corrected", _CORRECTED), ("ecc_uncorrected", _UNCORRECTED)):
            yield name, self._ask(index, "nvmlDeviceGetTotalEccErrors", handle, kind, _VOLATILE)

    def _seldom_asked(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        running = self._ask(index, "nvmlDeviceGetComputeRunningProcesses", handle)
        yield "processes", len(running) if running is not None else None
        rows = self._ask(index, "nvmlDeviceGetRemappedRows", handle)
        if rows is not None:
            yield "remapped_rows", rows[0] + rows[1]
            yield "remap_pending", int(rows[2])
            yield "remap_failed", int(rows[3])
        values = self._ask(index, "nvmlDeviceGetFieldValues", handle, list(_LINK_ERRORS))
        counted = [value.value.ullVal for value in values or () if value.nvmlReturn == 0]
        yield "nvlink_errors", sum(counted) if counted else None

    def _counters(self, index: int, handle: Any) -> Iterator[tuple[str, object]]:
        """The counters of errors as they stand before the job: what is there already is not its doing."""
        yield from self._errors(index, handle)
        yield from self._seldom_asked(index, handle)
        causes = (0, 1)  # NVML_PAGE_RETIREMENT_CAUSE_{MULTIPLE_SINGLE_BIT_ECC_ERRORS,DOUBLE_BIT_ECC_ERROR}
        pages = [self._ask(index, "nvmlDeviceGetRetiredPages", handle, cause) for cause in causes]
        yield "retired_pages", sum(len(page) for page in pages if page is not None) if any(pages) else None

    # -- events --------------------------------------------------------------------------------------------------------

    def _register(self) -> Any:
        """An event set with all GPUs; None where the driver has no events."""
        events = self._ask(-1, "nvmlEventSetCreate")
        if events is None:
            return None
        for index, handle in self.handles.items():
            supported = self._ask(index, "nvmlDeviceGetSupportedEventTypes", handle)
            if supported is None or supported & _XID:
                self._ask(index, "nvmlDeviceRegisterEvents", handle, _XID, events)
        return events

    def wait(self, timeout_s: float) -> list[Xid]:
        """The Xids since the last call.

        Args:
            timeout_s: How long to wait for the first, in seconds.
        """
        found: list[Xid] = []
        if self._events is None:
            time.sleep(timeout_s)
            return found
        left_ms = max(int(timeout_s * 1000), 1)
        while len(found) < EVENTS_MAX:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, left_ms)
            except self._nvml.NVMLError as error:
                if getattr(error, "value", 0) != _TIMEOUT and not found:
                    time.sleep(timeout_s)  # a GPU is lost: the driver answers at once, and must not be asked for ever
                break
            left_ms = 1  # the others that came with it
            xid = self._xid(event)
            if xid is not None:
                found.append(xid)
        return found

    def _xid(self, event: Any) -> Xid | None:
        """An event as an Xid."""
        code = int(event.eventData)
        index = next((index for index in self.handles if self._is_same(index, event.device)), None)
        if index is None or code in NOTICES:
            return None  # another's GPU, or no error
        return Xid(code, index, self._uuids[index].uuid, self._pci[index], now_us())

    def _is_same(self, index: int, device: Any) -> bool:
        """Whether an event's device is one of the handles: by address."""
        mine, theirs = (ctypes.cast(handle, ctypes.c_void_p).value for handle in (self.handles[index], device))
        return mine == theirs

    def close(self) -> None:
        """Let the driver go."""
        with contextlib.suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()


def _text(value: object) -> str:
    """A text of the driver's, which older bindings give as bytes."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _known(pairs: Iterator[tuple[str, object]]) -> Gpu:
    return {key: value for key, value in pairs if value is not None and value != ""}
