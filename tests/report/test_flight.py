"""The flight recorder's files in the report of a collective that timed out."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Gpualert, python

JOB = """
import pickle, sys
prefix, fails = sys.argv[1], sys.argv[2]
def entry(seq, state):
    return {{"frames": [{{"name": "step", "filename": "/app/train.py", "line": 44}}], "record_id": seq, "pg_id": 0,
            "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
            "profiling_name": "nccl:all_reduce", "time_created_ns": 1780000000 * 10**9, "state": state, "is_p2p": False,
            "input_sizes": [[3]], "output_sizes": [[3]], "retired": False}}
for rank in range(2):
    entries = [entry(7, "completed")] + ([entry(8, "scheduled")] if rank else [])
    groups = {{"0": {{"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}}
    with open(prefix + str(rank), "wb") as file:
        pickle.dump({{"version": "2.5", "pg_config": groups, "entries": entries}}, file)
print("{line}", file=sys.stderr)
sys.exit(1)
"""
TIMED_OUT = (
    "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds before timing out."
)


@pytest.mark.parametrize("relative", [False, True])
def test_the_rank_that_never_came_is_named(plain: Gpualert, tmp_path: Path, *, relative: bool) -> None:
    (tmp_path / "traces").mkdir()
    command = [*python(JOB.format(line=TIMED_OUT)), f"{tmp_path}/traces/rank_", "yes"]
    prefix = "traces/rank_" if relative else f"{tmp_path}/traces/rank_"
    done = plain.run(command, env={"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix}, cwd=tmp_path)
    diagnosis = done.json("report.json")["diagnosis"]
    assert diagnosis["class"] == "nccl_timeout"
    assert diagnosis["evidence"][-1]["text"].startswith("flight recorder: rank 0 never entered all_reduce #8")
    assert diagnosis["evidence"][-1]["role"] == "confirmation"


def test_a_failure_of_another_kind_has_nothing_from_it(plain: Gpualert, tmp_path: Path) -> None:
    command = [*python(JOB.format(line="ValueError: bad value")), f"{tmp_path}/rank_", "yes"]
    done = plain.run(command, env={"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/rank_"})
    assert not [e for e in done.json("report.json")["diagnosis"]["evidence"] if "flight" in e["text"]]
