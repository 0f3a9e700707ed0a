"""Broken hardware in a group: whose GPU it was that the drivers of its nodes told of.

Every rank of a node hears of all the job's GPUs there, so what one heard may be about another: torchrun's ranks use the
GPU with their local number. A rank that hangs on a broken GPU has no report; its run directory tells, where it can be
read from here.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpualert.diagnosis.machine import GPU_HARDWARE
from gpualert.incident.model import Finding, MachineFact
from gpualert.report import measured
from gpualert.report.timeline import seconds_of
from gpualert.rundir import shapes
from gpualert.rundir.reader import Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpualert.diagnosis import Rulebook

SURE = 0.95
ROWS_MAX = 16
TEXT_MAX = 300

ROWS = shapes.listed(
    shapes.table(
        {
            "at": shapes.moment,
            **dict.fromkeys(("code", "gpu", "place"), shapes.count),
            **dict.fromkeys(("pci", "class", "text"), shapes.text),
        },
        {"pci": "", "place": None},
        ("at", "code", "class", "text"),
    )
)
"""``hardware`` of ``report.json``, which lies where other ranks, and jobs, can write."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a rank heard of broken hardware.

    Attributes:
        rank: Its number.
        host: Where it ran, as far as it is to be told from other hosts.
        node: The node as people know it.
        local: Its number on that host; None when unknown.
        skew_s: How far its clock is ahead of the others', in seconds.
        rows: ``hardware`` of its report.
    """

    rank: int
    host: str
    node: str | None
    local: int | None
    skew_s: float
    rows: Sequence[dict[str, Any]]

    @classmethod
    def of(
        cls,
        rank: int,
        run: dict[str, Any],
        report: dict[str, Any] | None,
        path: object,
        rules: Rulebook,
        skew_s: float = 0.0,
    ) -> Heard:
        """What a rank heard, by its report, or else by its run directory.

        Args:
            rank: Its number.
            run: What it registered with, or its ``run.json``.
            report: Its report; None before there is one.
            path: Its run directory.
            rules: Classes and rules.
            skew_s: How far its clock is ahead of the others', in seconds.
        """
        local, node = run.get("local_rank"), run.get("node") or run.get("host")
        rows = ROWS(report.get("hardware")) if report is not None else _by_directory(path, run.get("run_id"), rules)
        return cls(
            rank,
            str(run.get("host") or node or rank),
            str(node) if node else None,
            local if isinstance(local, int) else None,
            skew_s,
            rows[:ROWS_MAX] if isinstance(rows, list) else (),
        )


def _by_directory(path: object, run_id: object, rules: Rulebook) -> list[dict[str, Any]]:
    """What the run directory of a rank without a report tells; nothing where it is not here, or another run's."""
    if not isinstance(path, str) or not os.path.isfile(os.path.join(path, "run.json")):
        return []
    run = Run.read(path)
    return measured.rows(measured.broken(run, rules)) if run.run_id == run_id else []


def facts(heard: Iterable[Heard], rules: Rulebook) -> tuple[MachineFact, ...]:
    """What the drivers told, each once, of the rank whose GPU it was.

    Args:
        heard: What each rank heard.
        rules: Classes and rules.
    """
    listed = sorted(heard, key=lambda one: one.rank)
    ranks = Counter(one.host for one in listed)
    by_place = {(one.host, one.local): one for one in listed if one.local is not None}
    found: dict[tuple[object, ...], MachineFact] = {}
    for one in listed:
        for row in one.rows:
            if row["class"] not in GPU_HARDWARE:
                continue
            owner = one if ranks[one.host] == 1 else by_place.get((one.host, row["place"]), one)
            key = (one.host, row["code"], row["pci"], row.get("gpu"))
            at = seconds_of(row["at"])
            found.setdefault(key, _fact(owner, row, None if at is None else at - one.skew_s, rules))
    return tuple(found.values())


def _fact(owner: Heard, row: dict[str, Any], at: float | None, rules: Rulebook) -> MachineFact:
    known, text = rules.classes[row["class"]], row["text"][:TEXT_MAX]
    finding = Finding(
        known.name, known.family, SURE, text, None, (), None, known.advice, known.retryable, known.node_suspect
    )
    return MachineFact(f"Xid {row['code']}", text, owner.node, owner.rank, None, at, finding)
