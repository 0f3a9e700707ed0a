"""What can be measured on this machine: what a run here would know beyond its log, and what is missing for the rest."""

from __future__ import annotations

import os
import threading
from typing import Any

from gpualert.gpu.devices import open_devices
from gpualert.hang import stacks
from gpualert.supervisor.cgroup import ControlGroup
from gpualert.telemetry import kernellog

DRIVER_S = 10.0
"""How long a driver may take to answer."""
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_CAP_SYS_PTRACE = 19  # capabilities(7); its number is in linux/capability.h


def found() -> dict[str, Any]:
    """What there is: ``gpus``, ``driver``, ``stacks``, ``kernel_log`` and ``memory``, each with its state in words."""
    return {**_gpus(), "stacks": _stacks(), "kernel_log": _kernel_log(), "memory": _memory()}


def lines(told: dict[str, Any]) -> list[str]:
    """The same for a person.

    Args:
        told: What ``found`` gives.
    """
    return [
        f"GPUs: {told['gpus']}",
        f"stacks of a hang: {told['stacks']}",
        f"kernel's log: {told['kernel_log']}",
        f"memory: {told['memory']}",
    ]


def _gpus() -> dict[str, Any]:
    answer: list[tuple[str, dict[str, object]]] = []

    def ask() -> None:
        devices = open_devices(dict(os.environ))
        if devices is None:
            answer.append(("none (no driver answers)", {}))
            return
        names = [str(gpu.get("name") or devices.vendor) for gpu in devices.inventory()]
        counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        driver = devices.driver()
        versions = ", ".join(f"{what} {version}" for what, version in driver.items())
        answer.append((f"{counted} ({versions})" if versions else counted, driver))
        devices.close()

    # A GPU that has fallen off the bus may keep its driver from answering.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(DRIVER_S)
    text, driver = answer[0] if answer else (f"the driver has not answered within {DRIVER_S:g} s", {})
    return {"gpus": text, "driver": driver}


def _stacks() -> str:
    if stacks.program("py-spy") is None:
        return "none: py-spy is not installed (pip install 'gpualert[gpu]')"
    scope = _text(YAMA).strip()
    if scope in ("", "0") or _may_trace():
        return "py-spy, and tracing is allowed"
    return f"none: {YAMA} is {scope} (docs/hangs.md says what allows it); what threads wait for is told all the same"


def _may_trace() -> bool:
    """Whether this process has CAP_SYS_PTRACE."""
    effective = next(
        (line for line in _text("/proc/self/status").splitlines() if line.startswith("CapEff:")), "CapEff:0"
    )
    return bool(int(effective.partition(":")[2], 16) >> _CAP_SYS_PTRACE & 1)


def _kernel_log() -> str:
    log = kernellog.KernelLog()
    trouble = log.trouble
    log.close()
    return trouble or "readable"


def _memory() -> str:
    group = ControlGroup()
    if not group.version:
        return "no control group limits this process"
    limit = group.sample().limit
    shown = f"limit {limit / (1 << 30):.1f} GiB" if limit else "no limit"
    return f"control group version {group.version}, {shown}"


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
