"""From records and logs to the verdict: what a task's log says, what Slurm saw, and what neither says."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpualert.diagnosis import Rulebook
from gpualert.incident import Verdict, judge
from gpualert.slurm import evidence
from gpualert.slurm.record import Node, Record, Step
from gpualert.slurm.script import Outputs

RULES = Rulebook.load()
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
WATCHDOG = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1) ran for 600029 milliseconds before timing out."
KILLED = "slurmstepd: error: Detected 1 oom_kill event in StepId=42.0. Some of the step tasks have been OOM Killed.\n"
NOW = float(int(time.time()))
NONE = Outputs()
TASKS = Outputs(("log-%t.txt",))


def job(directory: Path, **more: object) -> Record:
    base = Record(
        42, "FAILED", "llama", "ann", "NonZeroExitCode", 1, started_at=NOW - 3600, ended_at=NOW, nodes=("gpu01",),
        work_dir=str(directory), stdout=str(directory / "slurm-42.out"), stderr=str(directory / "slurm-42.out"),
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def write(directory: Path, **logs: str | tuple[str, float]) -> None:
    """``log_0`` is ``log-0.txt``, ``batch`` the script's; with how many seconds before the end it was written last."""
    for name, told in logs.items():
        text, before = told if isinstance(told, tuple) else (told, 0.0)
        path = directory / ("slurm-42.out" if name == "batch" else f"{name.replace('_', '-')}.txt")
        path.write_text(text)
        os.utime(path, (NOW - before, NOW - before))


def verdict(
    records: Record | Sequence[Record], outputs: Outputs = NONE, nodes: Sequence[Node] = ()
) -> tuple[Verdict, evidence.Evidence]:
    listed = [records] if isinstance(records, Record) else records
    found = evidence.gather(listed, outputs, nodes, RULES)
    return judge(found.ranks, found.facts, expected=found.expected, rules=RULES), found


def roles(judged: Verdict) -> dict[int | str, str]:
    return {part.rank.name if part.rank.rank is None else part.rank.rank: part.role for part in judged.parts}


def test_a_task_killed_for_memory_is_named_by_srun_and_the_step_s_daemon(tmp_path: Path) -> None:
    write(
        tmp_path, log_0=f"step 1\n{WATCHDOG}\n", log_1=("step 1\n", 600.0), log_2=f"step 1\n{WATCHDOG}\n",
        batch=KILLED + "srun: error: gpu01: task 1: Out Of Memory\nsrun: error: gpu01: tasks 0,2: Exited with exit code 6\n",
    )  # fmt: skip
    judged, _ = verdict(job(tmp_path, state="OUT_OF_MEMORY", exit_code=None), TASKS)
    assert (judged.cls, roles(judged)) == ("oom_killer", {0: "cascade", 1: "root", 2: "cascade"})


def test_a_task_that_was_only_killed_is_explained_by_the_daemon_s_word_in_the_script_s_log(tmp_path: Path) -> None:
    write(tmp_path, log_0="step 1\n", log_1="step 1\n", batch=KILLED + "srun: error: gpu01: task 1: Killed\n")
    judged, _ = verdict(job(tmp_path, exit_code=137), TASKS)
    assert (judged.cls, roles(judged)) == ("oom_killer", {0: "fine", 1: "root"})


def test_what_the_script_does_after_its_tasks_is_not_blamed_on_them(tmp_path: Path) -> None:
    write(
        tmp_path, log_0="step 1\n", log_1="step 1\n", batch="mv: cannot create regular file: No space left on device\n"
    )
    judged, _ = verdict(job(tmp_path), TASKS)
    assert (judged.cls, roles(judged)) == ("disk_full", {0: "fine", 1: "fine", "batch script": "root"})


def test_a_failed_job_is_never_called_a_success(tmp_path: Path) -> None:
    write(tmp_path, log_0="step 1\n", log_1="step 1\n", batch="step 1\n")
    assert verdict(job(tmp_path), TASKS)[0].cls == "unknown"
    assert verdict(job(tmp_path, exit_code=0))[0].cls == "unknown"
    assert verdict(job(tmp_path, state="UNKNOWN", exit_code=None))[0].cls == "unknown"


def test_the_time_limit_is_said_with_how_long_nothing_was_printed(tmp_path: Path) -> None:
    write(tmp_path, batch=("step 1\n", 1800.0))
    judged, found = verdict(job(tmp_path, state="TIMEOUT", exit_code=None, signal=15, time_limit="01:00:00"))
    assert judged.cls == "terminated"
    assert found.told[0].message == "the time limit of 01:00:00 was reached, 30m00s after the last output"


def test_a_cause_in_the_log_outranks_the_time_limit_that_ended_what_was_left(tmp_path: Path) -> None:
    write(tmp_path, log_0=(f"{OOM}\n", 1800.0), log_1="step 1\n", batch="")
    judged, _ = verdict(job(tmp_path, state="TIMEOUT", exit_code=None, signal=15), TASKS)
    assert (judged.cls, roles(judged)[0]) == ("cuda_oom", "root")


@pytest.mark.parametrize(
    ("state", "cls"),
    [
        ("PREEMPTED", "evicted"),
        ("CANCELLED", "terminated"),
        ("DEADLINE", "deadline_exceeded"),
        ("NODE_FAIL", "node_lost"),
        ("BOOT_FAIL", "node_lost"),
        ("OUT_OF_MEMORY", "oom_killer"),
        ("LAUNCH_FAILED", "unknown"),
    ],
)
def test_states_that_say_why(tmp_path: Path, state: str, cls: str) -> None:
    write(tmp_path, batch="step 1\n")
    judged, found = verdict(job(tmp_path, state=state, exit_code=None))
    assert (judged.cls, found.told[0].reason) == (cls, state)


def test_who_cancelled_is_said_where_the_accounting_knows(tmp_path: Path) -> None:
    write(tmp_path, batch="step 1\n")
    _, found = verdict(job(tmp_path, state="CANCELLED", cancelled_by="1001"))
    assert found.told[0].message == "cancelled by user 1001"


def test_only_the_ranks_of_a_node_that_is_gone_were_lost_with_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        log_0=f"{WATCHDOG}\n",
        log_1=("step 1\n", 900.0),
        batch="srun: error: gpu01: task 0: Exited with exit code 6\nsrun: error: gpu02: task 1: Killed\n",
    )
    failed = job(tmp_path, state="NODE_FAIL", exit_code=None, nodes=("gpu01", "gpu02"), tasks=2)
    judged, _ = verdict(
        failed, TASKS, [Node("gpu01", "IDLE"), Node("gpu02", "DOWN+NOT_RESPONDING", "Not responding", NOW - 5)]
    )
    assert (judged.cls, judged.nodes, roles(judged)) == ("node_lost", ("gpu02",), {0: "cascade", 1: "root"})


def test_what_is_said_of_a_drained_node_s_gpu_explains_a_symptom_on_it(tmp_path: Path) -> None:
    write(tmp_path, batch=f"{WATCHDOG}\n")
    drained = Node("gpu01", "IDLE+DRAIN", "NHC: GPU 3 has fallen off the bus", NOW - 5)
    judged, _ = verdict(job(tmp_path, exit_code=6), nodes=[drained])
    assert (judged.cls, judged.family, judged.node_suspect) == ("gpu_lost", "hardware", True)


def test_what_was_said_of_a_failed_node_s_gpu_outranks_slurm_s_own_line_in_the_log(tmp_path: Path) -> None:
    write(
        tmp_path,
        batch="slurmstepd: error: *** JOB 42 ON gpu01 CANCELLED AT 2026-12-02T09:33:02 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
    )
    down = Node("gpu01", "DOWN", "NVRM: Xid 79, GPU has fallen off the bus", NOW - 1)
    assert verdict(job(tmp_path, state="NODE_FAIL", exit_code=None), nodes=[down])[0].cls == "gpu_lost"
    assert verdict(job(tmp_path, state="NODE_FAIL", exit_code=None))[0].cls == "node_lost"


def test_a_node_that_was_drained_at_another_time_or_for_another_job_says_nothing(tmp_path: Path) -> None:
    write(tmp_path, batch=f"{WATCHDOG}\n")
    text = "NHC: GPU 3 has fallen off the bus"
    others = [Node("gpu01", "DRAIN", text, NOW - 7200), Node("gpu09", "DRAIN", text, NOW - 5)]
    _, found = verdict(job(tmp_path, exit_code=6), nodes=others)
    assert found.told == ()


def test_a_rank_that_a_step_should_have_had_is_missing(tmp_path: Path) -> None:
    write(
        tmp_path,
        log_0=f"{WATCHDOG}\n",
        log_1=f"{WATCHDOG}\n",
        batch="srun: error: gpu01: tasks 0-1: Exited with exit code 6\n",
    )
    judged, _ = verdict(job(tmp_path, tasks=3, steps=(Step("batch", "FAILED", 1), Step("0", "FAILED", 3))), TASKS)
    assert (judged.missing, judged.cls) == ((2,), "nccl_timeout")


def test_ranks_of_components_are_numbered_through_whatever_gaps_their_names_have(tmp_path: Path) -> None:
    # Slurm 22.05 was seen to name the tasks 0, 1, 2 of such a job 0, 2, 3.
    write(
        tmp_path,
        log_0="step 1\n",
        log_2="step 1\n",
        log_3=f"{OOM}\n",
        batch="srun: error: gpu02: task 1: Exited with exit code 5\n",
    )
    one = job(tmp_path, het=42, component=0)
    judged, _ = verdict([one, replace(one, number=43, component=1, nodes=("gpu02",), tasks=2)], TASKS)
    assert [(rank.rank, rank.node, rank.exit_code) for rank in judged.roots] == [(2, "gpu02", 5)]


def test_logs_that_nobody_here_can_see_are_said_to_be_missing(tmp_path: Path) -> None:
    _, found = verdict(job(tmp_path))
    assert found.trouble == (
        f"no log at {tmp_path}/slurm-42.out that this machine can see since the job started: judged by Slurm's word "
        "alone; name the logs by --logs",
    )
