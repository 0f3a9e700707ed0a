"""The collector beside the run: what it leaves, and that nothing depends on it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Completed, Gpualert, Started, python, run_dirs, wait_until


def telemetry(directory: Path) -> list[dict[str, Any]]:
    try:
        text = (directory / "telemetry.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def kinds(directory: Path) -> set[str]:
    return {line["kind"] for line in telemetry(directory)}


def collector_of(supervisor: int) -> int:
    """The collector's process id; 0 while there is none."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == supervisor and b"telemetry.collector" in (path / "cmdline").read_bytes():
                return int(path.name)
        except (OSError, IndexError):
            continue
    return 0


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def sampled(plain: Gpualert, running: Started) -> Path:
    """The run's directory, once the collector has written a sample."""
    wait_until(lambda: run_dirs(plain.log_dir), "the run directory")
    directory = run_dirs(plain.log_dir)[0]
    wait_until(lambda: "sample" in kinds(directory), "a sample")
    return directory


# Ends when its standard input does.
UNTIL_TOLD = ["sh", "-c", "echo up; cat; echo done"]


def finished(running: Started) -> Completed:
    assert running.process.stdin is not None
    running.process.stdin.close()
    running.process.stdin = None
    return running.finish()


def start(plain: Gpualert, command: list[str], *options: str, **popen: Any) -> Started:
    import subprocess

    # With a GPU in sight the collector is started sooner.
    environment = {"CUDA_VISIBLE_DEVICES": "0", **popen.pop("env", {})}
    return plain.start(command, *options, env=environment, stdin=subprocess.PIPE, **popen)


def test_a_short_command_pays_for_no_collector(plain: Gpualert) -> None:
    done = plain.run(["true"])
    assert not (done.run_dir / "telemetry.jsonl").exists()


def test_a_run_is_sampled_until_its_end(plain: Gpualert) -> None:
    running = start(plain, UNTIL_TOLD)
    sampled(plain, running)
    done = finished(running)
    lines = telemetry(done.run_dir)
    samples = [line for line in lines if line["kind"] == "sample"]
    assert done.returncode == 0
    assert [line["kind"] for line in lines].count("end") == 1
    assert lines[-1]["kind"] == "end"
    assert samples[0]["processes"] == 2  # the shell and cat
    assert samples[0]["rss"] > 100_000
    assert samples[-1]["log_bytes"] >= len("up\n")
    assert next(line for line in lines if line["kind"] == "peaks")["processes"][0]["peak"] > 100_000
    assert done.stderr == b""


def test_nothing_is_measured_where_that_is_not_wanted(plain: Gpualert) -> None:
    running = start(plain, ["sh", "-c", "sleep 2"], "--no-telemetry")
    done = running.finish()
    assert (done.returncode, (done.run_dir / "telemetry.jsonl").exists()) == (0, False)


def test_the_collector_ends_when_the_supervisor_is_killed(plain: Gpualert) -> None:
    running = start(plain, UNTIL_TOLD)
    directory = sampled(plain, running)
    pid = collector_of(running.process.pid)
    assert pid
    running.process.kill()
    running.process.wait()
    wait_until(lambda: is_gone(pid), "the collector's end")
    assert telemetry(directory)[-1]["kind"] == "end"
    assert running.process.stdin is not None
    running.process.stdin.close()


def test_a_collector_that_dies_is_started_once_more_without_the_driver(plain: Gpualert) -> None:
    running = start(plain, ["sh", "-c", "cat; exit 7"])
    sampled(plain, running)
    first = collector_of(running.process.pid)
    os.kill(first, signal.SIGSEGV)
    wait_until(lambda: collector_of(running.process.pid) not in (0, first), "another one")
    second = collector_of(running.process.pid)
    assert b'"gpus": false' in Path(f"/proc/{second}/cmdline").read_bytes()
    os.kill(second, signal.SIGSEGV)
    wait_until(lambda: is_gone(second), "its end")
    done = finished(running)
    assert (done.returncode, collector_of(running.process.pid)) == (7, 0)
    assert done.json("report.json")["diagnosis"]["class"] == "unknown"
    assert [line for line in done.said if "measur" in line] == [
        "gpualert: measuring the run has failed twice: only its output and its end are watched"
    ]


def test_it_holds_no_descriptor_of_the_job(plain: Gpualert) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    running = start(plain, UNTIL_TOLD, pass_fds=(write,))
    sampled(plain, running)
    pid = collector_of(running.process.pid)
    held = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.exists()}
    assert os.readlink(f"/proc/self/fd/{write}") not in held
    for fd in (read, write):
        os.close(fd)
    assert finished(running).returncode == 0


def test_the_end_of_orphans_is_not_the_end_of_the_collector(plain: Gpualert) -> None:
    command = ["sh", "-c", "sleep 600 & echo up; cat"]
    running = start(plain, command, "--orphan-grace", "10s")
    sampled(plain, running)
    done = finished(running)
    assert (done.returncode, telemetry(done.run_dir)[-1]["kind"]) == (0, "end")


def test_secrets_are_masked_in_what_it_writes(plain: Gpualert) -> None:
    secret = "s3cr3t-token-value"
    running = start(plain, ["sh", "-c", f"echo step 12/100 loss 1.5 {secret}; cat"], env={"MY_TOKEN": secret})
    sampled(plain, running)
    done = finished(running)
    assert secret.encode() not in done.file("telemetry.jsonl")


MANY_WORKERS = """
import os, signal, sys, time
for _ in range(60):
    if not os.fork():
        signal.pause()
print("up", flush=True)
time.sleep(1.5)
for line in open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split():
    os.kill(int(line), signal.SIGKILL)
sys.exit(3)
"""


@pytest.mark.parametrize("repetition", range(3))
def test_the_end_of_many_workers_at_a_terminal_is_no_lost_child(plain: Gpualert, repetition: int) -> None:
    done = plain.run(python(MANY_WORKERS), "--tty", "always", env={"CUDA_VISIBLE_DEVICES": "0"})
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("tty", ["always", "never"])
def test_the_job_is_seen_with_and_without_a_terminal(plain: Gpualert, tty: str) -> None:
    busy = "import time; until = time.monotonic() + 2\nwhile time.monotonic() < until: pass"
    done = plain.run(python(busy), "--tty", tty, env={"CUDA_VISIBLE_DEVICES": "0"})
    first, *_, last = [line for line in telemetry(done.run_dir) if line["kind"] == "sample"]
    assert first["processes"] == 1
    assert last["cpu_s"] > 0.2


def test_a_batch_system_s_signal_to_all_processes_does_not_end_it(plain: Gpualert) -> None:
    running = start(plain, UNTIL_TOLD)
    sampled(plain, running)
    pid = collector_of(running.process.pid)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT, signal.SIGALRM):
        os.kill(pid, number)
    done = finished(running)
    assert (done.returncode, telemetry(done.run_dir)[-1]["kind"]) == (0, "end")
    assert done.said == []
