"""Ranks found in directories of all kinds, and ``gpualert group`` on them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON, Gpualert
from measured_job import Job

from gpualert.diagnosis import Rulebook
from gpualert.group import sources
from gpualert.incident import judge
from gpualert.report import building, incident, making
from gpualert.supervisor.redaction import Redaction

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"
)
LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:6278\n"


def group(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-m", "gpualert", "group", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def answer(*arguments: str | Path) -> list[dict[str, Any]]:
    return json.loads(group("--format", "json", *arguments).stdout)  # type: ignore[no-any-return]


def roots(report: dict[str, Any]) -> list[int]:
    return [row["rank"] for row in report["ranks"] if row["role"] == "root"]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    "pattern", ["log.{}", "rank_{}.txt", "slurm-77_{}.out", "worker-{}.log", "0{}.err", "trainer{}.stderr.log"]
)
def test_one_log_file_for_each_rank(tmp_path: Path, pattern: str) -> None:
    for rank in range(4):
        write(tmp_path / pattern.format(rank), OOM if rank == 2 else LOST)
    write(tmp_path / "README.md", "no log")
    (report,) = answer(tmp_path)
    assert (report["diagnosis"]["class"], roots(report)) == ("cuda_oom", [2])
    done = group(tmp_path)
    assert done.returncode == 1
    assert ": cuda_oom: rank 2: " in done.stdout
    assert "0-1, 3  cascade  peer_lost" in done.stdout


def test_torchruns_logs_each_attempt_by_itself(tmp_path: Path) -> None:
    for attempt, bad in ((0, 1), (1, 3)):
        for rank in range(4):
            write(tmp_path / "run" / f"attempt_{attempt}" / str(rank) / "stderr.log", OOM if rank == bad else LOST)
            write(tmp_path / "run" / f"attempt_{attempt}" / str(rank) / "stdout.log", "step 1 loss 2.0\n")
    first, second = answer(tmp_path)
    assert (first["incident"]["attempt"], roots(first)) == (0, [1])
    assert (second["incident"]["attempt"], roots(second)) == (1, [3])
    assert second["ranks"][0]["name"] == "3/stderr.log"


def test_torchruns_error_file_tells_what_and_when(tmp_path: Path) -> None:
    call = "Traceback (most recent call last):\n  File \"t.py\", line 3, in main\n    x()\nKeyError: 'tokens'\n"
    told = {
        "message": {"message": "KeyError: 'tokens'", "extraInfo": {"py_callstack": call, "timestamp": "1764665000"}}
    }
    for rank in range(2):
        write(tmp_path / "none_x" / "attempt_0" / str(rank) / "stderr.log", "" if rank == 1 else LOST)
    write(tmp_path / "none_x" / "attempt_0" / "1" / "error.json", json.dumps(told))
    (report,) = answer(tmp_path)
    assert (report["diagnosis"]["class"], roots(report)) == ("traceback", [1])
    assert report["incident"]["broke_at"] == "2025-12-02T08:43:20.000Z"


def test_runs_of_gpualert_with_ranks(gpualert: Gpualert) -> None:
    for rank in range(3):
        script = f"echo '{OOM.strip()}'; exit 1" if rank == 1 else f"sleep 1; echo '{LOST.strip()}'; exit 1"
        gpualert.run(["sh", "-c", script], env={"RANK": str(rank), "WORLD_SIZE": "4", "NODE_NAME": f"n{rank}"})
    gpualert.run(["sh", "-c", "exit 1"])  # no rank of anything
    (report,) = answer(gpualert.log_dir)
    assert (report["diagnosis"]["class"], roots(report), report["missing"]) == ("cuda_oom", [1], [3])
    assert report["run"]["node"] == "n1"


def test_a_success_is_shown_when_asked_for(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"log_{rank}.txt", "epoch 1 done\n")
    done = group(tmp_path)
    assert (done.returncode, done.stdout) == (0, "no job failed (--all shows those that did not)\n")
    assert "2 of 2 ranks" in group("--all", tmp_path).stdout


@pytest.mark.parametrize(("make", "said"), [(False, "cannot read"), (True, "holds no ranks")])
def test_a_directory_that_holds_nothing(tmp_path: Path, make: bool, said: str) -> None:
    place = tmp_path / "x"
    if make:
        write(place / "one.log", OOM)
    done = group(place)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpualert: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_hostile_files_stop_nothing(tmp_path: Path) -> None:
    base = tmp_path / "run" / "attempt_0"
    write(base / "0" / "error.json", "[" * 100_000)
    write(base / "1" / "error.json", json.dumps({"message": {"extraInfo": 7, "message": ["x"]}}))
    write(base / "2" / "error.json", json.dumps({"message": "\x1b[31mMemoryError\x1b[0m"}))
    write(base / "0" / "stderr.log", OOM)
    (base / "7").symlink_to("/nowhere")
    os.mkfifo(base / "1" / "stderr.log")
    found = sources.find(str(tmp_path), Rulebook.load())
    assert [rank.rank for rank in found[0].ranks] == [0, 1, 2]
    assert judge(found[0].ranks, rules=Rulebook.load()).cls in ("cuda_oom", "ram_oom")
    assert "\x1b" not in group(tmp_path).stdout


def test_the_cost_of_a_job_is_summed_over_its_ranks_and_shared_gpus_count_once(tmp_path: Path) -> None:
    for rank in range(2):
        job = Job(
            tmp_path / f"20231114T22132{rank}.000000Z-llama-7b-abc12{rank}", rank=rank, world_size=2, job="llama-7b"
        )
        job.inventory(4)
        for seconds in (5, 3600):
            job.line("sample", seconds, gpus=[{"index": n, "energy_j": 1e6 + 500 * seconds} for n in range(4)])
        job.line("progress", 1800, step=41200)
        job.output(f"{OOM}\n", 3000)
        run = job.end(1)
        diagnosis, trouble = building.diagnosed(run, [], Redaction([]))
        making.write(run.path, building.build(run, diagnosis, trouble, Redaction([])))
    (found,) = sources.find(str(tmp_path), Rulebook.load())
    verdict = judge(found.ranks, rules=Rulebook.load())
    cost = incident.build(found.job, verdict, Redaction([]), trouble=[])["cost"]
    assert (cost["gpus"], cost["ranks_known"], cost["idle_by"], cost["energy_by"]) == (4, 2, "ranks", "counter")
    assert cost["gpu_hours"] == pytest.approx(4.0, rel=0.01)
    assert cost["idle_gpu_hours"] == pytest.approx(2.0, rel=0.01)
    assert cost["energy_kwh"] == pytest.approx(4 * 500 * 3595 / 3.6e6)
