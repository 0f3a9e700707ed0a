"""What was measured beside a run, as plain data: the GPUs' driver, the kernel, memory, and whether the run hung.

All of it comes from the run directory, which the job itself may write to: it is evidence of what happened, and a
diagnosis weighs it against the log (``gpualert.diagnosis.joining``).
"""

from __future__ import annotations

from dataclasses import dataclass

GPU_HARDWARE = ("gpu_lost", "gpu_ecc", "nvlink_error", "gpu_xid")
"""The classes that an Xid may speak for, the most exact first."""


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that NVIDIA's driver reported on one of the job's GPUs while the run went on.

    Attributes:
        code: Its number.
        gpu: The GPU's index; None when unknown.
        pci: Its address on the bus; empty when unknown.
        at: When the driver reported it, in seconds since 1970.
        survived: Training went on after it.
        printed_after: Output went on for longer than a minute after it, before anybody stopped the run.
        place: Its place among the job's GPUs, from 0; None when unknown.
        neighbour: The GPU is another rank's of the same node.
    """

    code: int
    gpu: int | None
    pci: str
    at: float
    survived: bool = False
    printed_after: bool = False
    place: int | None = None
    neighbour: bool = False


@dataclass(frozen=True, slots=True)
class GpuFault:
    """Something wrong with a GPU by its counters and states, from the first sample to the last.

    Attributes:
        gpu: The GPU's index; None when unknown.
        pci: Its address on the bus; empty when unknown.
        lost: The driver's library called it lost, or in need of a reset, in the last sample.
        ecc_uncorrected: How many uncorrectable memory errors were counted during the run.
        remap_failed: A row could not be remapped during the run.
        nvlink_errors: How many errors of its links were counted during the run.
        neighbour: The GPU is another rank's of the same node.
    """

    gpu: int | None
    pci: str = ""
    lost: bool = False
    ecc_uncorrected: int = 0
    remap_failed: bool = False
    nvlink_errors: int = 0
    neighbour: bool = False


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A line of the kernel's log from the time of the run.

    Attributes:
        text: The line.
        own: It is about this job's processes, GPUs or mounts; otherwise about the node.
        at: When it was written, in seconds since 1970.
    """

    text: str
    own: bool
    at: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """How much of the time all processes waited for memory at once, just before the end.

    Attributes:
        full: The share in percent, over the kernel's last ten seconds (``full avg10`` of ``memory.pressure``).
        rising: It was higher than before.
        of_machine: It was measured over the whole machine, since the control group has no measure of its own.
    """

    full: float
    rising: bool
    of_machine: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    """The run was suspected of hanging, and had not gone on when it ended.

    Attributes:
        silent_s: How long it had not moved when the suspicion arose, or until it was ended, in seconds.
        why: What shows that it did not move.
        since: When it had moved for the last time, in seconds since 1970; None when unknown.
        terminated: gpualert ended the run because of it.
        log_bytes: How long the log was while nothing moved, in bytes: what is after that was printed when the run was
            stopped; None when unknown.
    """

    silent_s: float
    why: str = ""
    since: float | None = None
    terminated: bool = False
    log_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured beside a run.

    Attributes:
        ended_at: When the run ended, in seconds since 1970; None when unknown.
        xids: What the driver reported, the first of each kind and GPU, in order of time.
        faults: GPUs whose counters or states show that something is wrong.
        gpus: How many GPUs were watched for Xids; 0 when none, or nothing tells.
        kernel: Lines of the kernel's log, in order of time.
        pressure: How processes waited for memory just before the end; None when unknown.
    """

    ended_at: float | None = None
    xids: tuple[Xid, ...] = ()
    faults: tuple[GpuFault, ...] = ()
    gpus: int = 0
    kernel: tuple[KernelLine, ...] = ()
    pressure: Pressure | None = None
