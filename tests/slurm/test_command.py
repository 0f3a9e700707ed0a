"""The command, with Slurm's commands played back: what no test cluster has (accounting, jobs that are forgotten)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON
from notify.servers import Accepting, accepting

__all__ = ["accepting"]

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
FORGOTTEN = "slurm_load_jobs error: Invalid job id specified"
SHIM = """#!/bin/sh
# Answers the calls one after another as told; the last answer stays.
base={base}; name=${{0##*/}}
echo "$name $*" >>$base/calls
n=$(($(cat $base/$name.count 2>/dev/null || echo 0) + 1)); echo $n >$base/$name.count
case "$*" in
*"show job"*) name=jobs ;;
*"show node"*) name=nodes ;;
*batch_script*) name=script ;;
esac
for i in $n $(seq $n -1 1); do
    if [ -e $base/$name.$i ]; then
        status=$(cat $base/$name.$i.status)
        if [ $status = 0 ]; then cat $base/$name.$i; else cat $base/$name.$i >&2; fi
        exit $status
    fi
done
"""


@dataclass
class Fake:
    """Slurm's commands, which answer from files."""

    base: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.base / "bin").mkdir()
        for name in ("squeue", "scontrol", "sacct"):
            path = self.base / "bin" / name
            path.write_text(SHIM.format(base=self.base))
            path.chmod(0o755)

    def answer(self, name: str, text: str, *, at: int = 1, status: int = 0) -> None:
        (self.base / f"{name}.{at}").write_text(text)
        (self.base / f"{name}.{at}.status").write_text(str(status))

    def calls(self, name: str) -> list[str]:
        return [line for line in (self.base / "calls").read_text().splitlines() if line.startswith(name)]

    def job(self, number: int, state: str, *, extra: str = "", code: str = "1:0", log: str = "") -> str:
        """A record of scontrol."""
        path = self.base / f"slurm-{number}.out"
        if log:
            path.write_text(log)
        return (
            f"JobId={number} {extra}JobName=llama UserId=ann(1001) GroupId=ml(1001) JobState={state} Reason=None Restarts=0 "
            f"ExitCode={code} TimeLimit=1:00:00 SubmitTime=2026-12-02T09:13:50 StartTime=2026-12-02T09:13:52 "
            f"EndTime=2026-12-02T12:25:52 NodeList=gpu01 NumNodes=1 NumTasks=1 Command=/x WorkDir={self.base} StdErr={path} "
            f"StdIn=/dev/null StdOut={path} Power=\n"
        )

    def watch(self, *arguments: object, format: str = "json") -> subprocess.CompletedProcess[str]:  # noqa: A002
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GPUALERT_")}
        argv = [PYTHON, "-I", "-m", "gpualert", "slurm", "--every", "1s", "--log-dir", str(self.base / "logs")]
        return subprocess.run(
            [*argv, "--format", format, *map(str, arguments)],
            env={**kept, "PATH": f"{self.base}/bin:{os.environ['PATH']}", "SQUEUE_STATES": "R", **self.environment},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {row["job"]: row for row in map(json.loads, done.stdout.splitlines())}


def queued(number: int, state: str, label: str = "", array: int = 0, task: str = "N/A") -> str:
    return f"{number}|{array or number}|{task}|{label or number}|{state}|None\n"


def accounted(label: str, state: str, code: str, place: Path) -> str:
    times = "2026-12-02T09:13:50|2026-12-02T09:13:52|2026-12-02T12:25:52"
    raw = label.partition("_")[0]
    return f"{label}|{raw}|{state}|{code}|llama|ann|{times}|gpu01||cpu=1|1:00:00|{place}\n"


def test_a_job_that_slurmctld_has_forgotten_is_known_by_the_accounting(fake: Fake) -> None:
    (fake.base / "slurm-42.out").write_text(f"{OOM}\n")
    fake.answer("jobs", FORGOTTEN, status=1)
    fake.answer("sacct", accounted("42", "FAILED", "1:0", fake.base))
    done = fake.watch(42)
    assert (done.returncode, done.stderr) == (1, "")
    assert (rows(done)["42"]["state"], rows(done)["42"]["diagnosis"]["class"]) == ("FAILED", "cuda_oom")


def test_a_task_that_is_forgotten_while_its_array_still_runs_is_reported_in_the_end(fake: Fake) -> None:
    task = "ArrayJobId=40 ArrayTaskId={} "
    one, two = (
        fake.job(41, "FAILED", extra=task.format(1), log=f"{OOM}\n"),
        fake.job(40, "RUNNING", extra=task.format(2)),
    )
    ended = fake.job(40, "COMPLETED", extra=task.format(2), code="0:0")
    fake.answer("jobs", one + two)
    fake.answer("squeue", queued(41, "FAILED", "40_1", 40, "1") + queued(40, "RUNNING", "40_2", 40, "2"))
    fake.answer("squeue", queued(40, "RUNNING", "40_2", 40, "2"), at=2)
    fake.answer("squeue", queued(40, "COMPLETED", "40_2", 40, "2"), at=3)
    fake.answer("jobs", ended, at=4)
    fake.answer("sacct", "Slurm accounting storage is disabled", status=1)
    row = rows(fake.watch(40))["40"]
    assert [(rank["rank"], rank["role"], rank["class"]) for rank in row["ranks"]] == [
        (1, "root", "cuda_oom"),
        (2, "fine", "success"),
    ]


def test_a_job_whose_end_nobody_saw_is_judged_by_its_log_and_said_so(fake: Fake) -> None:
    fake.answer("jobs", fake.job(42, "RUNNING", code="0:0", log=f"{OOM}\n"))
    fake.answer("jobs", FORGOTTEN, at=2, status=1)
    fake.answer("squeue", "")
    done = fake.watch(42)
    assert (done.returncode, rows(done)["42"]["state"], rows(done)["42"]["diagnosis"]["class"]) == (
        1,
        "UNKNOWN",
        "cuda_oom",
    )
    assert "nobody saw the end of 42, and Slurm has forgotten it" in rows(done)["42"]["trouble"]


def test_what_the_environment_says_to_slurm_s_commands_changes_nothing(fake: Fake) -> None:
    shim = fake.base / "bin" / "squeue"
    shim.write_text(shim.read_text() + '[ -z "$SQUEUE_STATES" ] || echo filtered >>$base/calls\n')
    fake.answer("jobs", fake.job(42, "COMPLETED", code="0:0"))
    assert fake.watch(42).returncode == 0
    assert "filtered" not in (fake.base / "calls").read_text()


def test_a_success_with_a_step_that_failed_says_so(fake: Fake) -> None:
    fake.answer("jobs", fake.job(42, "COMPLETED", code="0:0"))
    step = accounted("42.0", "FAILED", "1:0", fake.base)
    fake.answer("sacct", accounted("42", "COMPLETED", "0:0", fake.base) + step)
    done = fake.watch(42, format="text")
    assert done.stdout == "42 (llama): ended well after 3h12m; but of its steps 42.0 FAILED\n"


def test_missing_commands_are_named(tmp_path: Path) -> None:
    argv = [PYTHON, "-I", "-m", "gpualert", "slurm", "42"]
    done = subprocess.run(argv, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "squeue and scontrol not found: run this where Slurm's commands are" in done.stderr


def test_the_controller_s_silence_is_an_error_where_once_is_enough(fake: Fake) -> None:
    text = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    shim = fake.base / "bin" / "scontrol"
    shim.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 1\n")
    done = fake.watch("--once", 42)
    assert (done.returncode, done.stderr) == (2, f"gpualert: {text}\n")


def test_a_hundred_failed_tasks_cost_slurm_as_many_calls_as_one(fake: Fake) -> None:
    extra = "ArrayJobId=40 ArrayTaskId={} "
    fake.answer("jobs", "".join(fake.job(100 + n, "FAILED", extra=extra.format(n), log=f"{OOM}\n") for n in range(100)))
    fake.answer("squeue", "".join(queued(100 + n, "FAILED", f"40_{n}", 40, str(n)) for n in range(100)))
    row = rows(fake.watch(40))["40"]
    assert row["diagnosis"]["summary"].startswith("100 of 100 tasks failed; tasks 0-99: CUDA out of memory")
    assert (len(fake.calls("squeue")), len(fake.calls("scontrol")), len(fake.calls("sacct"))) == (1, 4, 1)


def test_another_job_of_the_same_number_is_kept_beside_the_older_one(
    fake: Fake, accepting: Callable[..., Accepting]
) -> None:
    server = accepting()
    fake.environment = {
        "GPUALERT_SMTP_HOST": "127.0.0.1", "GPUALERT_SMTP_PORT": str(server.port), "GPUALERT_SMTP_SECURITY": "none",
        "GPUALERT_EMAIL_TO": "ops@example.org",
    }  # fmt: skip
    record = fake.job(42, "FAILED", log=f"{OOM}\n")
    fake.answer("jobs", record)
    fake.answer("squeue", queued(42, "FAILED"))
    assert [fake.watch(42).returncode for _ in range(2)] == [1, 1]
    assert len(server.inbox.mails) == 1
    fake.answer("jobs", record.replace("SubmitTime=2026-12-02", "SubmitTime=2026-12-01"))
    assert fake.watch(42).returncode == 1
    assert (len(server.inbox.mails), len(list((fake.base / "logs").iterdir()))) == (2, 2)
