"""Whose GPU it is that something is told of: this rank's, another rank's of the same node, or another job's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import signs

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ownership:
    """The job's GPUs, and which of them is this rank's own."""

    def __init__(self, watched: Sequence[dict[str, Any]], facts: dict[str, Any]) -> None:
        """Take what is known.

        Args:
            watched: The GPUs of the collector's inventory.
            facts: ``run.json``.
        """
        self._watched = watched
        self._local = facts.get("local_rank")
        self._one_each = _one_each(facts, len(watched))

    def place(self, told: dict[str, Any]) -> int | None:
        """The place among the job's GPUs of the one that something is told of; None where it is not among them.

        Args:
            told: A line or a row that names a GPU.
        """
        for matches in (_same_uuid, _same_bus, _same_index):
            for place, row in enumerate(self._watched):
                if matches(told, row):
                    return place
        return None

    def knows(self, told: dict[str, Any]) -> bool:
        """Whether something is told of a GPU of the job; where nobody has listed them, of any.

        Args:
            told: A line or a row that names a GPU.
        """
        return not self._watched or self.place(told) is not None

    def neighbours(self, told: dict[str, Any]) -> bool:
        """Whether the GPU is another rank's.

        Args:
            told: A line or a row that names a GPU.
        """
        place = self.place(told)
        return self._one_each and place is not None and place != self._local


def _one_each(facts: dict[str, Any], gpus: int) -> bool:
    """Whether each rank of the node has one of its GPUs, the one with its local number, as torchrun's ranks have."""
    local, rank, size = facts.get("local_rank"), facts.get("rank"), facts.get("world_size")
    if not isinstance(local, int) or not isinstance(rank, int) or not isinstance(size, int) or not 0 <= local < gpus:
        return False
    # The first rank of a node may be its only one, with all GPUs: then the ranks' numbers count nodes.
    return gpus > 1 and (local > 0 or (size >= gpus and size % gpus == 0 and rank % gpus == 0))


def _same_uuid(told: dict[str, Any], row: dict[str, Any]) -> bool:
    return bool(told.get("uuid")) and told.get("uuid") == row.get("uuid")


def _same_bus(told: dict[str, Any], row: dict[str, Any]) -> bool:
    one, other = told.get("pci"), row.get("pci")
    return isinstance(one, str) and isinstance(other, str) and bool(one) and signs.bus(one) == signs.bus(other)


def _same_index(told: dict[str, Any], row: dict[str, Any]) -> bool:
    index = told.get("gpu", told.get("index"))
    exact = any(told.get(name) and row.get(name) for name in ("uuid", "pci"))
    return not exact and index is not None and index == row.get("index")
