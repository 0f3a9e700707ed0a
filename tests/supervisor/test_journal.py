"""The run directory: there before the child, true afterwards, and closed by somebody else when its supervisor dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON, Gpualert, fast, python, run_dirs, wait_until

RUN_ID = re.compile(r"^\d{8}T\d{6}\.\d{6}Z-[A-Za-z0-9._-]+-[0-9a-z]{6}$")


def test_the_durable_log_is_there_before_the_child_starts(gpualert: Gpualert) -> None:
    done = gpualert.run(["sh", "-c", f"cat {gpualert.log_dir}/2*/run.json; ls {gpualert.log_dir}/2*"])
    facts, _, names = done.stdout.decode().partition("\n")
    assert json.loads(facts)["argv"][0] == "sh"
    assert {"run.json", "output.log", "output.idx", "events.jsonl"} <= set(names.split())


def test_it_is_on_the_disk_before_the_child_starts(plain: Gpualert, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    argv = [
        "strace",
        "-f",
        "-y",
        "-e",
        "trace=fsync,fdatasync,execve",
        "-o",
        str(trace),
        *plain.argv([], ["/bin/true"]),
    ]
    subprocess.run(argv, check=True, env=plain._environment(None), capture_output=True)
    calls = trace.read_text().splitlines()
    launched = next(n for n, call in enumerate(calls) if 'execve("/bin/true"' in call)
    before = "\n".join(calls[:launched])
    assert re.search(r"fsync\(\d+<[^>]*/run\.json>", before)
    assert re.search(r"fsync\(\d+<[^>]*/logs/2[^/>]*>", before)
    assert re.search(r"fsync\(\d+<[^>]*/logs>", before)


def test_run_ids_sort_by_time_are_clean_and_unique(plain: Gpualert) -> None:
    name = "a/b c\n../ünï\x1b[31m"
    first = plain.run(["true"], "--name", name)
    plain.run(["true"], "--name", name)
    ids = [path.name for path in run_dirs(plain.log_dir)]
    assert all(RUN_ID.match(run_id) for run_id in ids)
    assert len(set(ids)) == 2
    run = json.loads((plain.log_dir / ids[0] / "run.json").read_text())
    assert (run["name"], run["run_id"]) == (name, ids[0])
    assert first.returncode == 0
    assert os.readlink(plain.log_dir / "latest") == ids[1]


def test_facts_of_the_run(plain: Gpualert, tmp_path: Path) -> None:
    done = plain.run(["sh", "-c", "exit 0", "\udcff"], cwd=tmp_path, env={"HF_TOKEN": "hunter2-secret"})
    run = done.json("run.json")
    assert run["schema"] == 1
    assert run["argv"] == ["sh", "-c", "exit 0", "\ufffd"]
    assert (run["cwd"], run["host"], run["uid"]) == (str(tmp_path), os.uname().nodename, os.getuid())
    datetime.fromisoformat(run["started_at"])
    assert run["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_secrets_are_masked_in_what_gpualert_quotes(plain: Gpualert) -> None:
    secret = "s3cr3t-token-value"
    done = plain.run(
        ["sh", "-c", f"echo ValueError: bad {secret} >&2; exit 1", secret],
        env={"MY_TOKEN": secret, "API_KEY": "short", "SECRET_FLAG": "true"},
    )
    for name in ("run.json", "report.json", "report.html", "exit.json", "events.jsonl", "reporter.log"):
        assert secret.encode() not in done.file(name), name
    assert secret not in "".join(done.said)
    assert "[masked]" in "".join(done.said)
    assert secret.encode() in done.log


def _everything(directory: Path) -> bytes:
    """The names and the content of all files in a directory, but for the output."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "output.log"]
    return b"".join(str(path).encode() + path.read_bytes() for path in files)


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (["--name", "run-s3cr3t-token-value"], ["false"]),
        ([], ["/nope/s3cr3t-token-value"]),
        ([], ["s3cr3t-token-value"]),
        (["--termination-log", "/nope/s3cr3t-token-value"], ["false"]),
        (["--termination-log", "/nope/s3cr3t-token-value"], ["true"]),
        (["--config", "/nope/s3cr3t-token-value"], ["true"]),
        (["--s3cr3t-token-value"], ["true"]),
        (["--timeout", "s3cr3t-token-value"], ["true"]),
    ],
)
def test_secrets_in_what_gpualert_was_told_are_masked(plain: Gpualert, options: list[str], command: list[str]) -> None:
    secret = "s3cr3t-token-value"
    done = plain.run(command, *options, env={"MY_TOKEN": secret})
    assert secret not in done.stderr.decode()
    if done.returncode == 125:
        assert "[masked]" in done.stderr.decode()
        return
    assert secret.encode() not in _without_options(_everything(done.run_dir))
    assert secret not in done.run_dir.name
    if "true" not in command:
        assert "masked" in done.run_dir.name or "--termination-log" in options


def _without_options(data: bytes) -> bytes:
    """Without the configuration's path in ``run.json``: the reporter has to read it."""
    return re.sub(rb'"config": "[^"]*"', b"", data)


def test_a_secret_with_a_slash_leaves_no_part_in_the_name(plain: Gpualert) -> None:
    done = plain.run(["/nope/s3cr3t/token-value"], env={"MY_TOKEN": "s3cr3t/token-value"})
    assert (done.returncode, b"token-value" in _everything(done.run_dir)) == (127, False)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x"}, (3, 1, 8, "torchrun")),
        (
            {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16", "SLURM_JOB_NAME": "pre"},
            (5, 1, 16, "slurm"),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (None, None, None, None)),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            (2, 0, 4, "openmpi"),
        ),
        ({"JOB_COMPLETION_INDEX": "7"}, (7, None, None, "kubernetes")),
        ({"RANK": "many"}, (None, None, None, None)),
    ],
)
def test_rank_facts_come_from_the_launchers(plain: Gpualert, environment: dict[str, str], expected: Any) -> None:
    run = plain.run(["true"], env=environment).json("run.json")
    assert (run["rank"], run["local_rank"], run["world_size"], run["launcher"]) == expected


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"GPUALERT_JOB_NAME": "job", "POD_NAME": "pod", "SLURM_JOB_NAME": "slurm"}, "job"),
        ({"POD_NAME": "pod", "SLURM_JOB_NAME": "slurm"}, "pod"),
        ({"SLURM_JOB_NAME": "slurm"}, "slurm"),
        ({"GPUALERT_NAME": "given", "POD_NAME": "pod"}, "given"),
        ({}, "true"),
    ],
)
def test_the_name_is_as_given_else_of_job_pod_slurm_job_or_command(
    plain: Gpualert, environment: dict[str, str], name: str
) -> None:
    assert plain.run(["/bin/true"], env=environment).json("run.json")["name"] == name


def test_cluster_facts_come_from_the_downward_api(plain: Gpualert) -> None:
    environment = {
        "GPUALERT_POD_NAME": "p-0",
        "POD_NAMESPACE": "ml",
        "GPUALERT_NODE_NAME": "gpu-17",
        "JOB_NAME": "llama",
    }
    run = plain.run(["true"], env=environment).json("run.json")
    assert (run["pod"], run["namespace"], run["node"], run["job"], run["name"]) == (
        "p-0",
        "ml",
        "gpu-17",
        "llama",
        "llama",
    )


def test_what_happened_is_in_the_events_and_the_exit(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done"])
    started.wait_for(b"ready")
    os.kill(started.process.pid, signal.SIGUSR1)
    done = started.finish()
    names = [event["event"] for event in done.events if event["event"] != "memory"]
    assert names == ["launched", "signal", "exited"]
    end = done.json("exit.json")
    assert (end["exit_code"], end["signal"], end["forwarded"], end["interrupted"]) == (3, None, [signal.SIGUSR1], False)
    assert end["log_bytes"] == 6
    assert end["truncated"] is False
    assert end["rusage"]["max_rss_bytes"] > 0
    assert end["duration_s"] > 0
    assert all(datetime.fromisoformat(event["at"]) for event in done.events)


def test_arrival_times_grow_and_cover_the_log(plain: Gpualert) -> None:
    from gpualert.rundir import index

    done = plain.run(["sh", "-c", "echo a; sleep 0.1; echo b; sleep 0.1; echo c"])
    records = list(index.records(done.file("output.idx")))
    assert sum(length for _, _, length in records) == len(done.log)
    times = [at for at, _, _ in records]
    assert times == sorted(times)
    assert len(set(times)) == 3


@pytest.mark.parametrize("place", ["/proc/nope", "/proc/a/b/c", "/sys/nope", "/dev/null/x", "/proc/" + "a/" * 1500])
def test_a_place_where_nothing_can_be_made_is_given_up(plain: Gpualert, tmp_path: Path, place: str) -> None:
    plain.log_dir = Path(place)
    done = plain.run(["echo", "ran"], env={"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    (line,) = done.said
    assert re.match(rf"gpualert: cannot write /\S+ \([A-Z][a-z ]+\): keeping the log in {tmp_path}/", line), line


def test_parents_are_made_however_many_are_missing(tmp_path: Path) -> None:
    from gpualert.rundir.writer import make_directories

    deep = str(tmp_path) + "/a" * 1500
    try:
        make_directories(deep + "//")
        assert os.path.isdir(deep)
        make_directories(deep)
    finally:
        subprocess.run(["rm", "-rf", f"{tmp_path}/a"], check=True)  # deeper than pytest could tidy up
    with pytest.raises(NotADirectoryError):
        make_directories("/dev/null/x/y")


def test_many_runs_share_a_directory_at_once(plain: Gpualert) -> None:
    started = [plain.start(["sh", "-c", "echo ready; sleep 0.3"]) for _ in range(8)]
    assert [one.finish().returncode for one in started] == [0] * 8
    assert len(run_dirs(plain.log_dir)) == 8
    assert list((plain.log_dir / ".open").iterdir()) == []


WRITER = "import os\nfor n in range(10**7): os.write(1, b'%08d\\n' % n)\n"


@pytest.mark.parametrize("wait_s", [0.0, 0.02, 0.1, 0.4, 0.9])
def test_a_killed_supervisor_loses_no_byte_that_it_had_read(plain: Gpualert, wait_s: float) -> None:
    options = ["--log-max-bytes", "2GiB"]
    process = subprocess.Popen(
        plain.argv(options, python(WRITER)),
        stdout=subprocess.DEVNULL,
        env=plain._environment(None),
        start_new_session=True,
    )
    wait_until(lambda: run_dirs(plain.log_dir)[0].joinpath("output.log").stat().st_size >= 0, "the log")
    time.sleep(wait_s)
    process.kill()
    process.wait()
    _end_group(process.pid)
    log = run_dirs(plain.log_dir)[0].joinpath("output.log").read_bytes()
    whole = log[: len(log) // 9 * 9]
    assert whole == b"".join(b"%08d\n" % n for n in range(len(log) // 9))
    json.loads(run_dirs(plain.log_dir)[0].joinpath("run.json").read_text())


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _interrupt(plain: Gpualert, script: str = "echo ready; sleep 60", *options: str) -> Path:
    """A run whose supervisor was killed with its child."""
    process = subprocess.Popen(
        plain.argv(list(options), ["sh", "-c", script]),
        stdout=subprocess.DEVNULL,
        env=plain._environment(None),
        start_new_session=True,
    )
    wait_until(lambda: b"ready" in run_dirs(plain.log_dir)[-1].joinpath("output.log").read_bytes(), "output")
    _end_group(process.pid)
    process.wait()
    return run_dirs(plain.log_dir)[-1]


def test_the_next_run_closes_an_interrupted_one(plain: Gpualert) -> None:
    interrupted = _interrupt(plain)
    assert not (interrupted / "exit.json").exists()
    assert plain.run(["true"]).returncode == 0
    wait_until(lambda: (interrupted / "report.json").exists(), "the survivor's report")
    end = json.loads((interrupted / "exit.json").read_text())
    assert (end["interrupted"], end["exit_code"], end["signal"]) == (True, None, None)
    assert json.loads((interrupted / "report.json").read_text())["diagnosis"]["class"] == "lost"
    wait_until(lambda: list((plain.log_dir / ".open").iterdir()) == [], "the mark to go")


def test_a_run_that_goes_on_is_never_closed(plain: Gpualert, tmp_path: Path) -> None:
    started = plain.start(["sh", "-c", f"echo ready; until [ -e {tmp_path}/enough ]; do sleep 0.05; done"])
    started.wait_for(b"ready")
    running = run_dirs(plain.log_dir)[0]
    plain.run(["true"])
    subprocess.run(
        [*plain.python, "-m", "gpualert", "runs", "--log-dir", str(plain.log_dir)], check=True, capture_output=True
    )
    assert not (running / "exit.json").exists()
    (tmp_path / "enough").touch()
    assert started.finish().json("exit.json")["interrupted"] in (True, False)
    assert json.loads((running / "exit.json").read_text())["interrupted"] is False


def test_a_reused_process_id_proves_nothing(plain: Gpualert) -> None:
    from gpualert.rundir import survivor
    from gpualert.rundir.reader import Run

    interrupted = _interrupt(plain)
    facts = json.loads((interrupted / "run.json").read_text())
    facts["pid"] = os.getpid()  # a living process, but not that one
    (interrupted / "run.json").write_text(json.dumps(facts))
    assert survivor.is_alive(Run.read(str(interrupted))) is False


def test_a_run_of_another_host_counts_as_alive_while_its_journal_moves(plain: Gpualert) -> None:
    from gpualert.rundir import survivor
    from gpualert.rundir.reader import Run

    interrupted = _interrupt(plain)
    facts = json.loads((interrupted / "run.json").read_text())
    facts["boot_id"] = "another"
    (interrupted / "run.json").write_text(json.dumps(facts))
    assert survivor.is_alive(Run.read(str(interrupted))) is True
    os.utime(interrupted / "events.jsonl", (1, 1))
    assert survivor.is_alive(Run.read(str(interrupted))) is False


def test_report_closes_an_interrupted_run_once(plain: Gpualert) -> None:
    interrupted = _interrupt(plain)
    command = [PYTHON, "-I", "-m", "gpualert", "report", "--log-dir", str(plain.log_dir), "latest"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in both]
    assert any(b"lost: the supervisor was killed together with the job" in out for out, _ in outputs)
    assert (interrupted / "exit.json").exists()


def test_a_survivor_that_was_killed_half_way_is_followed_by_another(plain: Gpualert) -> None:
    from gpualert.rundir import survivor
    from gpualert.rundir.reader import Run

    interrupted = _interrupt(plain)
    survivor.close(Run.read(str(interrupted)))  # as far as exit.json, and no further
    plain.run(["true"])
    wait_until(lambda: (interrupted / "report.json").exists(), "the second survivor's report")
    assert json.loads((interrupted / "report.json").read_text())["diagnosis"]["class"] == "lost"


@pytest.mark.root
def test_a_short_run_as_pid_1_lets_the_survivor_finish(plain: Gpualert) -> None:
    interrupted = _interrupt(plain)
    plain.pid1 = True
    plain.run(["true"])
    assert json.loads((interrupted / "report.json").read_text())["diagnosis"]["class"] == "lost"


def test_memory_near_the_limit_at_the_end_makes_it_an_out_of_memory_kill(plain: Gpualert) -> None:
    interrupted = _interrupt(plain)
    sample = {"at": "2026-12-01T00:00:00.000000Z", "event": "memory", "current": 990, "working_set": 985, "limit": 1000,
              "peak": 995, "oom_kill": 0, "pids_max_events": 0}  # fmt: skip
    with (interrupted / "events.jsonl").open("a") as file:
        file.write(json.dumps(sample) + "\n" + '{"cut short')
    plain.run(["true"])
    wait_until(lambda: (interrupted / "report.json").exists(), "the survivor's report")
    diagnosis = json.loads((interrupted / "report.json").read_text())["diagnosis"]
    assert diagnosis["class"] == "oom_killer"


def test_an_interrupted_bounded_log_is_put_together(plain: Gpualert) -> None:
    text = "import os, time\nfor n in range(20000): os.write(1, b'%08d\\n' % n)\nos.write(1, b'ready'); time.sleep(60)"
    process = subprocess.Popen(
        plain.argv(["--log-max-bytes", "40k"], python(text)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=plain._environment(None),
        start_new_session=True,
    )
    wait_until(
        lambda: any(b"ready" in f.read_bytes() for f in run_dirs(plain.log_dir)[0].glob("output.tail-*.log")), "tail"
    )
    _end_group(process.pid)
    process.communicate()
    directory = run_dirs(plain.log_dir)[0]
    subprocess.run([PYTHON, "-I", "-m", "gpualert", "report", str(directory)], check=True, capture_output=True)
    log = (directory / "output.log").read_bytes()
    assert log.startswith(b"00000000\n00000001\n")
    assert b"bytes of output are not kept here" in log
    assert b"00019999\n" in log
    assert list(directory.glob("output.tail-*")) == []


def test_the_supervisor_needs_no_third_party_package(plain: Gpualert) -> None:
    plain.python = fast()
    done = plain.run(["sh", "-c", "echo x; exit 0"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"x\n", b"")
    assert done.json("report.json")["diagnosis"]["class"] == "success"
    assert shutil.which("sh")


def test_memory_is_sampled_but_written_only_when_it_tells_something(plain: Gpualert) -> None:
    done = plain.run(["sleep", "3"])
    samples = [event for event in done.events if event["event"] == "memory"]
    assert 1 <= len(samples) <= 3
    assert samples[0]["current"] > 0


@pytest.mark.parametrize("as_pid1", [False, pytest.param(True, marks=pytest.mark.root)])
def test_a_sidecar_closes_an_interrupted_run_and_ends_on_sigterm(plain: Gpualert, as_pid1: bool) -> None:
    interrupted = _interrupt(plain)
    argv = [PYTHON, "-I", "-m", "gpualert", "attend", "--log-dir", str(plain.log_dir), "--every", "0.2"]
    sidecar = subprocess.Popen((["unshare", "--pid", "--fork", "--mount-proc"] if as_pid1 else []) + argv)
    wait_until(lambda: (interrupted / "report.json").exists(), "the sidecar's report")
    pid = sidecar.pid
    if as_pid1:
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    os.kill(pid, signal.SIGTERM)
    assert sidecar.wait(60) == 0
