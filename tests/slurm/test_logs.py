"""Which files hold a job's output, and what srun says in them of its tasks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpualert.slurm import logfiles, script, taskends
from gpualert.slurm.record import Record
from gpualert.slurm.taskends import TaskEnd


def job(directory: Path, **more: object) -> Record:
    known: dict[str, object] = {
        "number": 42,
        "state": "FAILED",
        "name": "llama",
        "user": "ann",
        "work_dir": str(directory),
    }
    return Record(**{**known, **more})  # type: ignore[arg-type]


def names(found: list[logfiles.LogFile]) -> list[tuple[str, int | None]]:
    return [(os.path.basename(log.path), log.task) for log in found]


def make(directory: Path, *listed: str) -> None:
    for name in listed:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("step 1\n")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("slurm-%j.out", "slurm-42.out"),
        ("%x-%5j-%u.txt", "llama-00042-ann.txt"),
        ("%A_%3a-%b.out", "40_017-7.out"),
        ("100%%-%j.out", "100%-42.out"),
        ("a\\%j.out", "a%j.out"),
        ("o-%t-%N-%n-%s.txt", "o-0-gpu01.example-0-batch.txt"),
        ("[x]*-%j.out", "[x]*-42.out"),
    ],
)
def test_patterns_of_the_batch_script_s_output(tmp_path: Path, pattern: str, name: str) -> None:
    make(tmp_path, name, "other-42.out", "x-42.out")
    found = logfiles.find(pattern, job(tmp_path, array=40, task=17), batch=True)
    assert [os.path.basename(log.path) for log in found] == [name]


def test_files_of_tasks_are_ranks_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    make(
        tmp_path,
        *(f"log-42-{task:02}-gpu{task // 8}.txt" for task in range(12)),
        "log-43-00-gpu0.txt",
        "log-42-x-gpu0.txt",
    )
    found = logfiles.find("log-%j-%2t-%N.txt", job(tmp_path))
    assert [(log.task, log.node) for log in found] == [(task, f"gpu{task // 8}") for task in range(12)]


def test_a_file_that_was_there_before_the_job_is_not_its_own(tmp_path: Path) -> None:
    make(tmp_path, "log-0.txt", "log-1.txt")
    now = time.time()
    os.utime(tmp_path / "log-1.txt", (now - 4000, now - 4000))
    assert names(logfiles.find("log-%t.txt", job(tmp_path, started_at=now - 1000))) == [("log-0.txt", 0)]


def test_an_empty_file_says_nothing_of_when_its_task_wrote(tmp_path: Path) -> None:
    (tmp_path / "log-0.txt").touch()
    (log,) = logfiles.find("log-%t.txt", job(tmp_path))
    assert log.written_at is None


@pytest.mark.parametrize(
    ("line", "patterns"),
    [
        ("srun --output=log-%t.txt python train.py", ("log-%t.txt",)),
        ("srun -n 4 -o log-%t.txt -e err-%t.txt python train.py -o model.pt", ("log-%t.txt", "err-%t.txt")),
        ("srun -lo log-%t.txt python train.py", ()),
        ("srun --ntasks 4 --output log-%t.txt --label python train.py --output x", ("log-%t.txt",)),
        ("srun python train.py --output=x", ()),
        ("time /usr/bin/srun -K1 -u \\\n   -ologs/%j.log ./a.out", ("logs/%j.log",)),
        ('if ! srun --output="logs/$SLURM_JOB_ID/%t.log" x; then exit 1; fi', ("logs/42/%t.log",)),
        ("export OUT=runs/${SLURM_JOB_NAME}\nsrun -o ${OUT}/%t.log x", ("runs/llama/%t.log",)),
        ("# srun -o no x", ()),
        ("srun -o /dev/null x", ()),
        ("srun -o none x", ()),
        ("srun -o 'unclosed", ()),
        ("", ()),
    ],
)
def test_where_srun_writes_is_read_from_the_script(tmp_path: Path, line: str, patterns: tuple[str, ...]) -> None:
    assert script.outputs(f"#!/bin/bash\n{line}\n", job(tmp_path)).patterns == patterns


def test_a_name_that_only_the_job_knew_is_not_guessed(tmp_path: Path) -> None:
    told = script.outputs("D=$(mktemp -d)\nsrun -o $D/%t.log x\nsrun -o $E/%t.log x\n", job(tmp_path))
    assert (told.patterns, told.unclear) == ((), ("$D/%t.log", "$E/%t.log"))


def test_how_tasks_ended() -> None:
    text = (
        "step 1\n"
        "srun: error: gpu01: task 2: Exited with exit code 1\n"
        "0: srun: error: gpu01: tasks 0-1: Killed\n"
        "srun: error: gpu02: task 4: Segmentation fault (core dumped)\n"
        "srun: error: gpu02: task 5: Out Of Memory\n"
        "srun: error: gpu02: task 4: Exited with exit code 9\n"
        "srun: error: gpu02: task 6: Completed\n"
        "srun: error: Unable to create step for job 4: task 7: Busy\n"
    )
    assert taskends.read(text) == [
        TaskEnd(2, "gpu01", 1),
        TaskEnd(0, "gpu01", None, 9),
        TaskEnd(1, "gpu01", None, 9),
        TaskEnd(4, "gpu02", None, 11),
        TaskEnd(5, "gpu02", None, 9, out_of_memory=True),
    ]
