"""Which of a node's GPUs are the job's, by the variables that CUDA and ROCm go by.

Source: NVIDIA, CUDA C++ Programming Guide, "CUDA Environment Variables": indices, UUIDs or the start of one, MIG ids;
what comes after the first entry that fits none is not looked at. ``NVIDIA_VISIBLE_DEVICES`` is for the container's
runtime: inside of the container there are only those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CUDA, ROCM = ("CUDA_VISIBLE_DEVICES",), ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
ENTRIES_MAX = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU of the node.

    Attributes:
        uuid: Its UUID.
        parts: The UUIDs of the MIG devices on it.
    """

    uuid: str
    parts: tuple[str, ...] = ()


def chosen(text: str | None, candidates: Sequence[Candidate]) -> list[int]:
    """The indices of the GPUs that a variable names, in order of index.

    Args:
        text: The variable's value; None where it is not set.
        candidates: The node's GPUs, by index.
    """
    if text is None:
        return list(range(len(candidates)))
    found: list[int] = []
    for entry in text.split(",")[:ENTRIES_MAX]:
        index = _index(entry.strip(), candidates)
        if index is None:
            break
        found.append(index)
    return sorted(set(found))


def _index(entry: str, candidates: Sequence[Candidate]) -> int | None:
    """The GPU that an entry names; None where it names none, or several."""
    if entry.isascii() and entry.isdigit() and len(entry) < 6:
        return int(entry) if int(entry) < len(candidates) else None
    if entry.startswith("MIG-GPU-"):  # MIG-GPU-<UUID>/<GPU instance>/<compute instance>, of older drivers
        entry = entry.removeprefix("MIG-").partition("/")[0]
    if not entry.startswith(("GPU-", "MIG-")) or len(entry) <= len("GPU-"):
        return None
    fitting = [
        index
        for index, one in enumerate(candidates)
        if any(name.lower().startswith(entry.lower()) for name in (one.uuid, *one.parts))
    ]
    return fitting[0] if len(fitting) == 1 else None


def narrowed(environment: Mapping[str, str], names: Sequence[str], candidates: Sequence[Candidate]) -> list[int]:
    """The GPUs that all of some variables leave, the first one first: what it leaves is counted anew by the next.

    Args:
        environment: Variables and values.
        names: The variables.
        candidates: The node's GPUs, by index.
    """
    left = list(range(len(candidates)))
    for name in names:
        there = [candidates[index] for index in left]
        left = [left[index] for index in chosen(environment.get(name), there)]
    return left
