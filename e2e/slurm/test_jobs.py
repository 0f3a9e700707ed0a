"""Jobs without any wrapper, on a real Slurm: one incident of each that fails, told once, with the task that broke first."""

from __future__ import annotations

import email
import email.policy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, PYTHON, wait_until
from notify.servers import Accepting

from e2e.slurm.slurm import Slurm

pytestmark = pytest.mark.timeout(300)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
WATCHDOG = (
    "[rank$SLURM_PROCID]:[E1202 ProcessGroupNCCL.cpp:616] [Rank $SLURM_PROCID] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)


@dataclass
class Watched:
    """What ``gpualert slurm`` did."""

    returncode: int
    stdout: str
    stderr: str
    log_dir: Path

    def rows(self) -> dict[str, Any]:
        return {row["job"]: row for row in map(json.loads, self.stdout.splitlines())}


@dataclass
class Bench:
    """Submits jobs and watches them, with a mail server."""

    slurm: Slurm
    server: Accepting
    place: Path
    count: int = 0
    log_dir: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log_dir = self.place / "logs"

    def submit(self, script: str, *options: str) -> int:
        self.count += 1
        return self.slurm.submit(self.place / f"job{self.count}", script, *options)

    def argv(self, *arguments: object) -> list[str]:
        options = ["--log-dir", str(self.log_dir), "--every", "1s"]
        return [PYTHON, "-I", "-m", "gpualert", "slurm", *options, *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self.slurm.environment,
            "GPUALERT_SMTP_HOST": "127.0.0.1",
            "GPUALERT_SMTP_PORT": str(self.server.port),
            "GPUALERT_SMTP_SECURITY": "none",
            "GPUALERT_EMAIL_TO": "ops@example.org",
        }

    def watch(self, *arguments: object) -> Watched:
        done = subprocess.run(
            self.argv(*arguments), env=self.environment, capture_output=True, text=True, check=False, timeout=240
        )
        return Watched(done.returncode, done.stdout, done.stderr, self.log_dir)

    def report(self, *arguments: object) -> dict[str, Any]:
        """The one report of the one job that is watched, which failed."""
        done = self.watch("--format", "json", *arguments)
        assert done.returncode == 1, done.stderr
        (row,) = done.rows().values()
        assert json.loads((Path(row["directory"]) / "report.json").read_text())["diagnosis"] == row["diagnosis"]
        assert (Path(row["directory"]) / "report.html").exists()
        return dict(row)

    def mails(self) -> list[EmailMessage]:
        return [email.message_from_bytes(raw, policy=email.policy.default) for raw in self.server.inbox.mails]


@pytest.fixture
def bench(slurm: Slurm, accepting: Callable[..., Accepting], tmp_path: Path) -> Bench:
    return Bench(slurm, accepting(), tmp_path)


def body(mail: EmailMessage) -> str:
    part = mail.get_body(("plain",))
    assert part is not None
    return str(part.get_content())


def python(text: str) -> str:
    return f"{sys.executable} -c '{text}'"


def ranks(report: dict[str, Any]) -> dict[int, tuple[str, str | None]]:
    return {row["rank"]: (row["role"], row["class"]) for row in report["ranks"]}


def test_a_traceback_is_reported_with_its_line_and_mailed_once_however_often_it_is_watched(bench: Bench) -> None:
    job = bench.submit(
        python('import json; json.loads(open("/nonexistent/config.json").read())'), "--job-name=llama 7b"
    )
    done = bench.watch(job)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{job} (llama 7b): file_not_found: "), done.stdout
    assert (
        f"  slurm-{job}.out:3  FileNotFoundError: [Errno 2] No such file or directory: '/nonexistent/config.json'"
        in done.stdout
    )
    assert f"kept in {bench.log_dir}/slurm-{job} · mailed to ops@example.org" in done.stdout
    (mail,) = bench.mails()
    assert mail["Subject"].startswith("[gpualert] llama 7b failed: file_not_found (node1) after "), mail["Subject"]
    assert "/nonexistent/config.json" in body(mail)
    again = bench.watch(job)
    assert (again.returncode, len(bench.mails())) == (1, 1)
    assert "told already" in again.stdout


def test_a_job_that_ends_well_is_said_to_and_nobody_is_told(bench: Bench) -> None:
    job = bench.submit("echo step 1")
    done = bench.watch(job)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{job} (train.sbatch): ended well after ")
    assert (bench.mails(), (bench.log_dir / f"slurm-{job}").exists()) == ([], False)


def test_an_out_of_memory_text_is_found_where_output_and_errors_are_two_files(bench: Bench) -> None:
    job = bench.submit(f"echo step 1 loss 2.1\necho '{OOM}' >&2\nexit 1", "--output=o-%x-%j.txt", "--error=e-%4j.txt")
    report = bench.report(job)
    assert report["diagnosis"]["class"] == "cuda_oom"
    assert report["diagnosis"]["root"]["log"].endswith(f"/e-{job:04}.txt")
    assert report["exit"]["exit_code"] == 1


def test_scancel_is_a_stop_from_outside(bench: Bench) -> None:
    job = bench.submit("echo step 1; sleep 300")
    bench.slurm.wait_running(job)
    bench.slurm.ask("scancel", str(job))
    report = bench.report(job)
    assert (report["state"], report["diagnosis"]["class"]) == ("CANCELLED", "terminated")
    assert report["facts"][0]["reason"] == "CANCELLED"


def test_a_job_that_is_cancelled_before_it_starts_is_said_so(bench: Bench) -> None:
    job = bench.submit("true", "--hold")
    bench.slurm.ask("scancel", str(job))
    report = bench.report(job)
    assert report["diagnosis"]["class"] == "terminated"
    assert report["facts"][0]["message"] == "cancelled before it started"
    assert report["trouble"] == []


def test_the_time_limit_is_named(bench: Bench) -> None:
    job = bench.submit("echo step 1; sleep 300", "--time=10")
    bench.slurm.wait_running(job)
    # A limit has at least a minute; its end can be moved.
    bench.slurm.ask("scontrol", "update", f"job={job}", "EndTime=now+1")
    report = bench.report(job)
    assert (report["state"], report["diagnosis"]["class"]) == ("TIMEOUT", "terminated")
    assert "time limit" in report["diagnosis"]["summary"]


def test_a_node_that_fails_is_named_with_what_was_said_of_it(bench: Bench) -> None:
    job = bench.submit("echo step 1; sleep 300", "--no-requeue", "--nodelist=node2")
    bench.slurm.wait_running(job)
    bench.slurm.ask(
        "scontrol", "update", "nodename=node2", "state=down", "reason=NVRM: Xid 79, GPU has fallen off the bus"
    )
    try:
        report = bench.report(job)
    finally:
        bench.slurm.ask("scontrol", "update", "nodename=node2", "state=resume")
    assert report["state"] == "NODE_FAIL"
    assert (report["diagnosis"]["family"], report["diagnosis"]["node_suspect"]) == ("hardware", True)
    assert report["incident"]["nodes"] == ["node2"]
    assert "fallen off the bus" in report["facts"][0]["message"]


def test_a_job_that_another_one_displaced_is_called_preempted_and_no_crash(bench: Bench) -> None:
    job = bench.submit("echo step 1; sleep 300", "--partition=low", "--exclusive", "--nodelist=node1", "--no-requeue")
    bench.slurm.wait_running(job)
    other = bench.submit("true", "--partition=high", "--exclusive", "--nodelist=node1")
    report = bench.report(job)
    assert (report["state"], report["diagnosis"]["class"]) == ("PREEMPTED", "evicted")
    assert bench.watch(other).returncode == 0


def test_an_array_is_one_mail_with_a_table_of_its_tasks(bench: Bench) -> None:
    bad = "ModuleNotFoundError: No module named 'flash_attn'"
    script = f"[ $SLURM_ARRAY_TASK_ID = 2 ] && {{ {python('import flash_attn')}; exit 1; }}; echo step 1"
    job = bench.submit(script, "--array=0-3%2")
    report = bench.report(job)
    assert report["diagnosis"]["class"] == "missing_module"
    assert report["diagnosis"]["root"]["text"] == bad
    assert ranks(report) == {
        0: ("fine", "success"), 1: ("fine", "success"), 2: ("root", "missing_module"), 3: ("fine", "success"),
    }  # fmt: skip
    assert report["diagnosis"]["summary"].startswith("1 of 4 tasks failed; task 2: ")
    (mail,) = bench.mails()
    assert " on task 2 (node" in mail["Subject"]
    assert "The tasks" in body(mail)
    one = bench.report(f"{job}_2")
    assert (one["diagnosis"]["class"], Path(one["directory"]).name) == ("missing_module", f"slurm-{job}_2")
    assert bench.watch(f"{job}_[0-1]").returncode == 0


def test_of_an_array_s_tasks_those_that_say_why_come_first(bench: Bench) -> None:
    script = f'[ $SLURM_ARRAY_TASK_ID = 2 ] && {{ echo "{OOM}"; exit 1; }}; [ $SLURM_ARRAY_TASK_ID = 3 ] || kill -9 $$'
    report = bench.report(bench.submit(script, "--array=0-3"))
    assert (report["diagnosis"]["class"], report["incident"]["roots"]) == ("cuda_oom", [2, 0, 1])
    assert report["diagnosis"]["summary"].startswith("3 of 4 tasks failed; task 2: CUDA out of memory")
    assert "; tasks 0-1: ended by SIGKILL" in report["diagnosis"]["summary"]


def test_the_task_that_broke_first_is_named_by_the_logs_of_all_tasks(bench: Bench) -> None:
    script = (
        f"cat > task.sh <<'END'\nif [ $SLURM_PROCID = 2 ]; then echo '{OOM}'; exit 1; fi\n"
        f'while [ ! -e go ]; do sleep 0.2; done; echo "{WATCHDOG}"; exit 6\nEND\n'
        "LOGS=logs/$SLURM_JOB_NAME\nmkdir -p $LOGS\n(sleep 8; touch go) &\n"
        "srun -n4 --kill-on-bad-exit=0 \\\n  -o $LOGS/%j-%2t.log bash task.sh -o not-a-log"
    )
    job = bench.submit(script, "--ntasks=4")
    report = bench.report(job)
    assert report["diagnosis"]["class"] == "cuda_oom"
    assert ranks(report) == {
        0: ("cascade", "nccl_timeout"), 1: ("cascade", "nccl_timeout"), 2: ("root", "cuda_oom"),
        3: ("cascade", "nccl_timeout"),
    }  # fmt: skip
    assert [row["exit_code"] for row in sorted(report["ranks"], key=lambda row: row["rank"])] == [6, 6, 1, 6]
    assert report["diagnosis"]["root"]["log"].endswith(f"/logs/train.sbatch/{job}-02.log")
    (mail,) = bench.mails()
    assert "failed: cuda_oom on rank 2 (node1)" in mail["Subject"]


def test_one_log_with_labels_names_the_task_too(bench: Bench) -> None:
    job = bench.submit(
        f"srun -l bash -c 'echo step 1; [ $SLURM_PROCID = 1 ] && {{ echo \"{OOM}\"; exit 1; }}; exit 0'", "-n2"
    )
    report = bench.report(job)
    assert (report["diagnosis"]["class"], report["run"]["rank"], report["run"]["world_size"]) == ("cuda_oom", 1, 2)


def test_a_task_that_is_killed_without_a_word_is_named_by_what_srun_says(bench: Bench) -> None:
    script = "srun -o %t.log bash -c 'echo step 1; [ $SLURM_PROCID = 3 ] && kill -9 $$; exit 0'"
    report = bench.report(bench.submit(script, "-n4"))
    assert report["incident"]["roots"] == [3]
    assert {row["rank"]: row["signal"] for row in report["ranks"]}[3] == 9


def test_a_task_that_fails_without_a_word_is_named_also_where_all_share_a_log(bench: Bench) -> None:
    report = bench.report(bench.submit("srun bash -c 'echo step 1; exit $((SLURM_PROCID == 1))'", "-n3"))
    assert (report["diagnosis"]["class"], report["run"]["rank"]) == ("unknown", 1)
    assert "task 1 on node1 ended first (exit 1), and its output does not say why" in report["diagnosis"]["summary"]


def test_the_components_of_a_heterogeneous_job_are_one_job(bench: Bench) -> None:
    script = (
        "srun --het-group=0,1 --output=%j-%t.txt bash -c "
        f"'echo step 1; [ $SLURM_PROCID = 2 ] && {{ echo \"{OOM}\"; exit 5; }}; exit 0'"
    )
    job = bench.submit(script, "-n1", ":", "-n2")
    report = bench.report(f"{job}+1")
    assert (report["job"], report["diagnosis"]["class"]) == (str(job), "cuda_oom")
    assert {rank: role for rank, (role, _) in ranks(report).items()} == {0: "fine", 1: "fine", 2: "root"}
    assert {row["rank"]: (row["node"], row["exit_code"]) for row in report["ranks"]}[2] == ("node2", 5)
    assert len(bench.mails()) == 1
    # Named by any of its numbers it is the same job, and told already.
    assert "told already" in bench.watch(job + 1).stdout


def test_a_requeued_job_is_watched_through_and_its_attempt_is_named(bench: Bench) -> None:
    job = bench.submit(f'[ "$SLURM_RESTART_COUNT" ] && {{ echo "{OOM}"; exit 1; }}; echo begun; sleep 300', "--requeue")
    log = bench.place / f"job{bench.count}" / f"slurm-{job}.out"
    wait_until(lambda: log.exists() and "begun" in log.read_text(), "the first attempt")
    watcher = subprocess.Popen(
        bench.argv("--format", "json", job), env=bench.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    bench.slurm.ask("scontrol", "requeue", str(job))
    wait_until(lambda: bench.slurm.state(job) == "PENDING", "the job to be queued again")
    # Slurm holds a requeued job back for two minutes; started in the second of its requeue, slurmd takes it for killed.
    bench.slurm.ask("scontrol", "update", f"job={job}", "StartTime=now+3")
    stdout, _ = watcher.communicate(timeout=240)
    row = json.loads(stdout)
    assert (watcher.returncode, row["incident"]["attempt"], row["diagnosis"]["class"]) == (1, 1, "cuda_oom"), row
    assert Path(row["directory"]).name == f"slurm-{job}-1"
    assert row["facts"][0]["message"] == "Slurm requeued the job once before this attempt"


def test_unknown_ids_are_refused_at_once(bench: Bench) -> None:
    job = bench.submit("sleep 300")
    done = bench.watch(job, 4_000_000)
    assert done.returncode == 2
    assert done.stderr.startswith("gpualert: Slurm knows no job 4000000: "), done.stderr
    assert bench.watch("4711x").returncode == 2
    bench.slurm.ask("scancel", str(job))


def test_once_reports_what_has_ended_and_says_what_has_not(bench: Bench) -> None:
    bad, good = bench.submit(f"echo '{OOM}'; exit 1"), bench.submit("sleep 300")
    wait_until(lambda: bench.slurm.state(bad) == "FAILED", "the job to fail")
    done = bench.watch("--once", bad, good)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"gpualert: not ended yet: {good}")
    assert done.stdout.startswith(f"{bad} (train.sbatch): cuda_oom: ")
    bench.slurm.ask("scancel", str(good))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_watch_and_leaves_the_job_alone(bench: Bench, number: signal.Signals) -> None:
    job = bench.submit("sleep 300")
    bench.slurm.wait_running(job)
    watcher = subprocess.Popen(bench.argv(job), env=bench.environment, stderr=subprocess.PIPE, text=True)
    status = Path(f"/proc/{watcher.pid}/status")

    def caught() -> bool:
        line = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
        return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(caught, "the handlers")
    watcher.send_signal(number)
    _, said = watcher.communicate(timeout=PATIENCE_S * 2)
    assert (watcher.returncode, bench.slurm.state(job)) == (128 + number, "RUNNING")
    assert said.splitlines()[-1] == f"gpualert: stopped by {number.name}; not ended yet: {job}"
    bench.slurm.ask("scancel", str(job))


def test_many_jobs_are_asked_for_in_one_call(bench: Bench, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    shim = tmp_path / "bin" / "squeue"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\necho "$@" >>{calls}\nexec /usr/bin/squeue "$@"\n')
    shim.chmod(0o755)
    jobs = [bench.submit(f"exit {n}") for n in range(3)]
    environment = {**bench.environment, "PATH": f"{shim.parent}:{os.environ['PATH']}"}
    done = subprocess.run(bench.argv(*jobs), env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 1
    listed = calls.read_text().splitlines()
    assert listed[0].split("-j ")[1].split()[0] == ",".join(map(str, jobs))
    assert len(bench.mails()) == 2


def test_a_slurmctld_that_is_down_is_waited_for(slurm: Slurm, bench: Bench) -> None:
    job = bench.submit(f"while [ ! -e go ]; do sleep 0.2; done; echo '{OOM}'; exit 1")
    bench.slurm.wait_running(job)
    watcher = subprocess.Popen(
        bench.argv(job), env=bench.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    slurm.end("slurmctld")
    assert watcher.stderr is not None
    while "Slurm does not answer" not in (line := watcher.stderr.readline()):
        assert line, "the watcher ended"
    slurm.start_controller()
    (bench.place / "job1" / "go").touch()
    stdout, _ = watcher.communicate(timeout=240)
    assert (watcher.returncode, len(bench.mails())) == (1, 1)
    assert stdout.startswith(f"{job} (train.sbatch): cuda_oom: ")
