"""Broken hardware in a group: the rank whose GPU it was is named, whoever heard of it, and also one that hangs on it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpualert.diagnosis import Rulebook
from gpualert.group import hardware, members, sources, together
from gpualert.group.hardware import Heard
from gpualert.incident import Verdict, judge
from gpualert.report import building, making
from gpualert.rundir.clock import rfc3339
from gpualert.rundir.reader import Run

NCCL = (
    "[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)\n"
)
RULES = Rulebook.load()


def _row(code: int = 79, place: int = 3, at: str = "2026-12-01T05:18:30Z", **more: Any) -> dict[str, Any]:
    row = {"at": at, "code": code, "gpu": place, "pci": f"0000:c{place}:00.0", "place": place, "class": "gpu_lost"}
    return {**row, "text": f"Xid {code} on GPU {place}", **more}


def _heard(rank: int, host: str, local: int | None, *rows: dict[str, Any], skew_s: float = 0.0) -> Heard:
    run = {"host": host, "node": f"node-{host}", "local_rank": local}
    return Heard.of(rank, run, {"hardware": list(rows)}, None, RULES, skew_s)


def test_what_all_ranks_of_a_node_heard_is_told_once_of_the_rank_whose_gpu_it_was() -> None:
    heard = [_heard(8 + n, "b", n, _row()) for n in range(8)]
    (fact,) = hardware.facts(heard, RULES)
    assert (fact.rank, fact.node, fact.reason, fact.message) == (11, "node-b", "Xid 79", "Xid 79 on GPU 3")
    assert fact.finding is not None
    assert (fact.finding.cls, fact.finding.node_suspect) == ("gpu_lost", True)


def test_the_only_rank_of_a_node_has_all_its_gpus() -> None:
    (fact,) = hardware.facts([_heard(0, "a", 0), _heard(1, "b", 0, _row())], RULES)
    assert fact.rank == 1


def test_where_no_rank_has_that_number_the_one_that_heard_it_has_the_gpu() -> None:
    (fact,) = hardware.facts([_heard(0, "a", None, _row()), _heard(1, "a", None)], RULES)
    assert fact.rank == 0


def test_the_same_on_two_nodes_is_told_of_both() -> None:
    facts = hardware.facts([_heard(0, "a", 3, _row()), _heard(1, "b", 3, _row())], RULES)
    assert [fact.rank for fact in facts] == [0, 1]


def test_a_clock_that_is_ahead_is_put_right() -> None:
    facts = hardware.facts([_heard(0, "a", 3, _row()), _heard(1, "b", 3, _row(), skew_s=60.0)], RULES)
    assert facts[0].at is not None
    assert facts[1].at == facts[0].at - 60.0


@pytest.mark.parametrize(
    "rows",
    [None, 7, [7], [{}], [_row(at="soon")], [{**_row(), "class": "cuda_oom"}], [{**_row(), "code": -1}], [{**_row(), "text": 7}]],
)  # fmt: skip
def test_what_somebody_scribbled_is_passed_over(rows: object) -> None:
    heard = Heard.of(0, {"host": "a"}, {"hardware": rows}, None, RULES)
    assert hardware.facts([heard], RULES) == ()


# -- groups and run directories on a disk ------------------------------------------------------------------------------

Make = Callable[..., Path]
BEGAN = time.time() - 900


def _at(seconds: float) -> str:
    return rfc3339(int((BEGAN + seconds) * 1e6))


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the run directory of a rank that ended in a time-out after 700 s, or that still runs."""

    def made(rank: int, *xids: dict[str, Any], ended: bool = True, log: str = NCCL) -> Path:
        stamp = _at(0)[:19].replace("-", "").replace(":", "")
        path = tmp_path / "logs" / f"{stamp}.{rank:06d}Z-llama-abcdef"
        path.mkdir(parents=True)
        run = {
            "run_id": path.name, "name": "llama", "rank": rank, "local_rank": rank, "world_size": 4, "host": "gpu-17",
            "node": "gpu-17", "pid": os.getpid(), "started_at": _at(0), "directory": str(path), "at": _at(0),
        }  # fmt: skip
        (path / "run.json").write_text(json.dumps(run))
        (path / "output.log").write_text(log)
        gpus = [{"index": n, "pci": f"0000:c{n}:00.0"} for n in range(4)]
        lines = [{"at": _at(1), "kind": "inventory", "gpus": gpus}, *xids]
        (path / "telemetry.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if ended:
            end = {
                "exit_code": 1,
                "signal": None,
                "ended_at": _at(700),
                "last_output_at": _at(700),
                "duration_s": 700.0,
            }
            (path / "exit.json").write_text(json.dumps(end))
        return path

    return made


def _xid(gpu: int) -> dict[str, Any]:
    return {"at": _at(95), "kind": "xid", "code": 79, "gpu": gpu, "pci": f"0000:c{gpu}:00.0"}


def _register(group: Path, path: Path) -> None:
    """What the supervisor of a rank and its reporter leave in the group's directory."""
    group.mkdir(exist_ok=True)
    run = Run.read(str(path))
    base = group / f"rank-{run.facts['rank']:05d}"
    base.with_suffix(".json").write_text(json.dumps(run.facts))
    if run.exit is not None:
        base.with_suffix(".end").write_text(json.dumps({**run.exit, "at": rfc3339(int(time.time() * 1e6))}))
        mask = making.redaction()
        report = building.build(run, building.diagnosed(run, [], mask)[0], [], mask)
        members.note(str(group), report)


def _verdict(group: Path) -> Verdict:
    return together.verdict_of(members.read(str(group)), RULES)


def test_a_rank_with_a_lost_gpu_is_named_against_time_outs(make: Make, tmp_path: Path) -> None:
    for rank in range(4):
        _register(tmp_path / "group", make(rank, _xid(2)))
    found = _verdict(tmp_path / "group")
    assert (found.cls, [rank.rank for rank in found.roots], found.node_suspect) == ("gpu_lost", [2], True)
    assert [(fact.reason, fact.rank) for fact in found.facts] == [("Xid 79", 2)]
    assert {part.cls for part in found.parts if part.role != "root"} == {"nccl_timeout"}


def test_a_rank_that_hangs_on_a_lost_gpu_is_named_by_its_run_directory(make: Make, tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        _register(tmp_path / "group", make(rank))
    _register(tmp_path / "group", make(2, _xid(2), ended=False, log="step 1 loss 2\n"))
    found = _verdict(tmp_path / "group")
    assert (found.cls, [rank.rank for rank in found.roots]) == ("gpu_lost", [2])


def test_a_neighbour_tells_of_a_rank_whose_directory_nobody_can_read(make: Make, tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        _register(tmp_path / "group", make(rank, _xid(2)))
    silent = make(2, ended=False, log="step 1 loss 2\n")
    _register(tmp_path / "group", silent)
    silent.rename(tmp_path / "elsewhere")
    found = _verdict(tmp_path / "group")
    assert (found.cls, [rank.rank for rank in found.roots]) == ("gpu_lost", [2])


def test_time_outs_without_an_error_of_hardware_name_nobody(make: Make, tmp_path: Path) -> None:
    for rank in range(4):
        _register(tmp_path / "group", make(rank))
    found = _verdict(tmp_path / "group")
    assert (found.cls, found.roots, found.facts) == ("nccl_timeout", (), ())


def test_a_directory_of_another_run_is_not_believed(make: Make, tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        _register(tmp_path / "group", make(rank))
    hanging = make(2, _xid(2), ended=False)
    _register(tmp_path / "group", hanging)
    facts = json.loads((hanging / "run.json").read_text())
    (hanging / "run.json").write_text(json.dumps({**facts, "run_id": "20200101T000000.000000Z-other-abcdef"}))
    assert _verdict(tmp_path / "group").facts == ()


def test_run_directories_in_one_log_directory_name_the_rank_too(make: Make, tmp_path: Path) -> None:
    for rank in range(4):
        make(rank, _xid(2))
    (one,) = sources.find(str(tmp_path / "logs"), RULES)
    found = judge(one.ranks, one.facts, expected=one.expected, rules=RULES)
    assert (found.cls, [rank.rank for rank in found.roots], found.node_suspect) == ("gpu_lost", [2], True)
