"""What the machine showed while a run went on, each as one sign: what it speaks for, how surely, and over which text.

A sign never speaks alone: ``joining.py`` weighs it against what log and exit status say. What an Xid means is in
``gpualert.gpu.xid``; the classes of the kernel's words are those of the rules for the same lines in a log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpualert.diagnosis.amounts import moment
from gpualert.diagnosis.machine import GPU_HARDWARE, Xid
from gpualert.diagnosis.rulebook import LEVELS
from gpualert.diagnosis.text import clean, shorten
from gpualert.gpu.xid import NOTICES, meaning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpualert.diagnosis.machine import GpuFault, KernelLine, Machine
    from gpualert.diagnosis.rulebook import Rule, Rulebook

Strength = Literal["hardware", "counter", "kernel", "application", "context"]
"""The driver's word on a broken part; a counter or state that says the same less surely; the kernel's word on the job's
processes or mounts; an error that a program can bring about by itself; what only stands beside the run."""

HARMLESS = frozenset({45, 93, 121}) | NOTICES
"""Xids that end nothing: 45 follows any other error, and a killed process; on the others the GPU goes on."""
MILD = frozenset({63, 92})
"""Xids of what the driver has put right, or will at the next reset of the GPU."""
LONG_BEFORE_S = 3600.0
"""An error that came so long before the end, with nothing to tell whether training went on, is hardly what ended it."""
FOLLOWS_HARDWARE = frozenset(
    {"nccl_timeout", "nccl_error", "peer_lost", "rendezvous_timeout", "cuda_runtime", "cuda_illegal_access",
     "gpu_library", "cuda_unavailable", "gpu_xid", "runtime_error", "native_abort", "segfault", "hang", "unknown",
     "lost", "dataloader_worker"}
)  # fmt: skip
"""Classes that a GPU's breaking brings about; all others are complete causes of their own."""
FOLLOWS_COUNTER = FOLLOWS_HARDWARE - {"cuda_illegal_access", "segfault", "hang", "rendezvous_timeout", "lost"}
FOLLOWS_LINKS = frozenset({"nccl_error", "cuda_runtime"})
"""Errors of links are counted, and put right, in sound machines too; a time-out may be any rank's doing."""
FOLLOWS_CRASH = frozenset(
    {"unknown", "dataloader_worker", "nccl_timeout", "nccl_error", "peer_lost", "native_abort", "hang"}
)
"""Classes of what is seen from outside when a process has crashed."""
_GPU_TEXT = re.compile(r"cuda|gpu|nccl|nvml|nvidia|cudnn|cublas", re.IGNORECASE)
_NOTHING_ELSE = frozenset({"unknown"})
_SURE, _BY_STATE, _BY_COUNTER, _BY_LINKS, _BY_KERNEL, _BY_PROGRAM, _LONG_BEFORE = 0.95, 0.85, 0.8, 0.6, 0.85, 0.6, 0.6


@dataclass(frozen=True, slots=True)
class Sign:
    """Something that the machine showed.

    Attributes:
        cls: The class it speaks for.
        text: What it was, where and when, in one line.
        summary: The same for a person, shorter.
        strength: What kind of word it is.
        confidence: How sure a diagnosis by it alone is, 0..1.
        over: The classes that it explains, so that it decides over text that shows them.
        at: When, in seconds since 1970; None when unknown.
        survived: Training went on after it.
        deadly: No process can go on with that GPU, so that a stop that came later only ended what had broken.
        xid: The Xid, where it tells of broken hardware, whoever's GPU it is.
    """

    cls: str
    text: str
    summary: str
    strength: Strength
    confidence: float
    over: frozenset[str] = frozenset()
    at: float | None = None
    survived: bool = False
    deadly: bool = False
    xid: Xid | None = None

    def explains(self, cls: str, text: str) -> bool:
        """Whether it brings about what a log shows.

        Args:
            cls: The class that the log shows.
            text: The log's decisive line; empty where none decides.
        """
        if cls in self.over:
            return True
        # An exception without a class of its own is a cause like any other, unless it speaks of the GPU.
        return cls == "traceback" and bool(self.over & {"runtime_error"}) and _GPU_TEXT.search(text) is not None


def of(machine: Machine, rules: Rulebook) -> list[Sign]:
    """All signs, those that decide first in front.

    Args:
        machine: What was measured.
        rules: Classes and rules.
    """
    xids = [*machine.xids, *_xids_of_kernel(machine)]
    listed = [
        *(_of_xid(xid, machine) for xid in _once(xids)),
        *(sign for fault in machine.faults for sign in _of_fault(fault)),
        *(sign for line in machine.kernel for sign in _of_kernel(line, rules)),
    ]
    return sorted(listed, key=_place)


def broken(listed: Iterable[Sign]) -> tuple[Sign, ...]:
    """Those of them by which the driver told of broken hardware, and that training did not go on after.

    Args:
        listed: Signs.
    """
    return tuple(sign for sign in listed if sign.xid is not None and not sign.survived)


def _place(sign: Sign) -> tuple[bool, int, float, int, float]:
    """Stronger words first; of errors of hardware the more exact ones, and among these the first."""
    order = ("hardware", "counter", "kernel", "application", "context").index(sign.strength)
    exact = GPU_HARDWARE.index(sign.cls) if sign.cls in GPU_HARDWARE else len(GPU_HARDWARE)
    if sign.cls == "gpu_ecc":
        exact = 0  # a memory error may take the GPU off the bus, and a loss may show as one: the first counts
    return sign.survived, order, -sign.confidence, exact, sign.at if sign.at is not None else float("inf")


# -- GPUs --------------------------------------------------------------------------------------------------------------


def _gpu(index: int | None, pci: str) -> str:
    return f"GPU {index}" if index is not None else f"the GPU at {pci}" if pci else "a GPU"


def _where(index: int | None, pci: str) -> str:
    return f"GPU {index} ({pci})" if index is not None and pci else _gpu(index, pci)


def _of_xid(xid: Xid, machine: Machine) -> Sign:
    known = meaning(xid.code)
    cls, means = known.cls or "gpu_xid", f": {known.text}"
    text = f"Xid {xid.code} on {_where(xid.gpu, xid.pci)} at {moment(xid.at)}{means}"
    summary = f"Xid {xid.code} on {_gpu(xid.gpu, xid.pci)}{means}"
    told = None if known.application or xid.code in HARMLESS | MILD else xid
    if xid.neighbour or xid.code in HARMLESS:
        return Sign(cls, text, summary, "context", 0.0, at=xid.at, survived=xid.survived, xid=told)
    if known.application:
        return Sign("gpu_xid", text, summary, "application", _BY_PROGRAM, _NOTHING_ELSE, xid.at, xid.survived)
    if xid.code in MILD:
        return Sign(cls, text, summary, "counter", _BY_COUNTER, FOLLOWS_COUNTER, xid.at, xid.survived)
    before = machine.ended_at - xid.at if machine.ended_at is not None else 0.0
    sure = _LONG_BEFORE if before > LONG_BEFORE_S else _SURE
    deadly = not xid.survived and not xid.printed_after
    return Sign(cls, text, summary, "hardware", sure, FOLLOWS_HARDWARE, xid.at, xid.survived, deadly, told)


def _of_fault(fault: GpuFault) -> Iterator[Sign]:
    where, short = _where(fault.gpu, fault.pci), _gpu(fault.gpu, fault.pci)
    found = []
    if fault.lost:
        what = "is lost, or needs a reset, says the driver's library"
        found.append(("gpu_lost", what, _BY_STATE, FOLLOWS_COUNTER))
    if fault.ecc_uncorrected:
        what = f"counted {fault.ecc_uncorrected} uncorrectable memory error{'s' if fault.ecc_uncorrected > 1 else ''}"
        found.append(("gpu_ecc", what, _BY_COUNTER, FOLLOWS_COUNTER))
    if fault.remap_failed:
        found.append(("gpu_ecc", "could not remap a row of its memory", _BY_COUNTER, FOLLOWS_COUNTER))
    if fault.nvlink_errors:
        what = f"counted {fault.nvlink_errors} NVLink error{'s' if fault.nvlink_errors > 1 else ''} during the run"
        found.append(("nvlink_error", what, _BY_LINKS, FOLLOWS_LINKS))
    for cls, what, confidence, over in found:
        if fault.neighbour:
            yield Sign(cls, f"{where} {what}", f"{short} {what}", "context", 0.0)
        else:
            yield Sign(cls, f"{where} {what}", f"{short} {what}", "counter", confidence, over)


# -- the kernel --------------------------------------------------------------------------------------------------------

_XID_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): (\d{1,3})\b")
_SAME_S = 60.0
"""The driver's library and the kernel's log tell of the same error within moments."""
_OF_PROCESS = frozenset({"segfault", "native_abort"})
_CRASH = {"io_error": FOLLOWS_CRASH | {"traceback"}}


def _xids_of_kernel(machine: Machine) -> Iterator[Xid]:
    """Xids that the kernel's log tells of; of the job's GPUs alone."""
    for line in machine.kernel:
        found = _XID_LINE.search(line.text) if line.own else None
        if found:
            yield Xid(int(found[2]), None, found[1].lower(), line.at)


def bus(pci: str) -> str:
    """Bus and device of an address, however that is written: ``c1:00`` for ``00000000:C1:00.0``.

    Args:
        pci: The address.
    """
    return ":".join(pci.lower().partition(".")[0].split(":")[-2:])


def _once(xids: Iterable[Xid]) -> list[Xid]:
    kept: list[Xid] = []
    for xid in xids:
        if not any(
            xid.code == other.code and bus(xid.pci) == bus(other.pci) and abs(xid.at - other.at) <= _SAME_S
            for other in kept
        ):
            kept.append(xid)
    return kept


def _best(matched: Iterable[Rule]) -> Rule | None:
    return max(matched, key=lambda rule: rule.level, default=None)


def _of_kernel(line: KernelLine, rules: Rulebook) -> Iterator[Sign]:
    if _XID_LINE.search(line.text):
        return  # told as what it is; of another job's GPU it says nothing here
    best = _best(rule for rule in rules.matches(line.text) if rule.level > LEVELS["symptom"])
    text = f"kernel at {moment(line.at)}: {shorten(line.text, 240)}"
    cls = best.cls if best is not None else "unknown"
    if not line.own or best is None:
        yield Sign(cls, text, text, "context", 0.0, at=line.at)
    elif rules.classes[cls].family == "hardware":
        yield Sign(cls, text, shorten(line.text, 160), "hardware", _SURE, FOLLOWS_HARDWARE, line.at)
    elif cls in _OF_PROCESS or cls in _CRASH:
        over = _CRASH.get(cls, FOLLOWS_CRASH) - {cls}
        yield Sign(cls, text, f"the kernel: {shorten(line.text, 160)}", "kernel", _BY_KERNEL, over, line.at)
    else:
        yield Sign(cls, text, text, "kernel", 0.0, at=line.at)


def cleaned(text: str, limit: int = 160) -> str:
    """A text of somebody else's as one line without a full stop that can be quoted anywhere.

    Args:
        text: The text.
        limit: How many characters it may have.
    """
    return shorten(clean(text.replace("\n", " ").encode("utf-8", "replace")).strip(" ."), limit)
