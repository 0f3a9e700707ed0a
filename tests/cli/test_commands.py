"""The commands as a person types them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON, Gpualert, run_dirs
from measured_job import Job

from gpualert import __version__, config
from gpualert.config.loading import known_keys
from gpualert.supervisor.options import OPTIONS
from gpualert.telemetry.record import Record

OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


def call(*arguments: str, data: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUALERT_")}
    argv = [PYTHON, "-I", "-m", "gpualert", *arguments]
    return subprocess.run(
        argv, input=data, capture_output=True, env={**environment, **(env or {})}, check=False, timeout=60
    )


def test_classify_answers_in_words_and_in_json(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"step 1\n{OOM}\n")
    words = call("classify", "--exit-code", "1", str(log))
    assert words.returncode == 0
    assert words.stdout.decode().startswith("cuda_oom: CUDA out of memory, asked for 2.00 GiB\n")
    answer = json.loads(call("classify", "--exit-code", "1", "--format", "json", "-", data=log.read_bytes()).stdout)
    assert (answer["path"], answer["class"], answer["family"], answer["root"]) == (
        "-", "cuda_oom", "gpu", {"line": 2, "text": OOM},
    )  # fmt: skip
    assert set(answer) == {
        "path", "class", "family", "confidence", "summary", "root", "evidence", "suggestions", "retryable", "node_suspect",
    }  # fmt: skip


def test_classify_with_a_signal(tmp_path: Path) -> None:
    answer = json.loads(call("classify", "--signal", "11", "--format", "json", "-").stdout)
    assert answer["class"] == "segfault"


def test_a_batch_is_answered_line_by_line_in_its_order(tmp_path: Path) -> None:
    rows = [{"id": n, "log": f"{OOM}\n" if n % 2 else "", "exit_code": n % 2, "signal": None} for n in range(6)]
    batch = tmp_path / "batch.jsonl"
    batch.write_text("\n".join(json.dumps(row) for row in rows))
    done = call("classify", "--batch", str(batch))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(a["id"], a["class"]) for a in answers] == [(n, "cuda_oom" if n % 2 else "success") for n in range(6)]
    assert call("classify", "--batch", "-", data=batch.read_bytes()).stdout == done.stdout


@pytest.mark.parametrize(
    ("arguments", "data", "message"),
    [
        (["classify"], b"", "no log to classify"),
        (["classify", "/no/such/log"], b"", "cannot read /no/such/log (No such file or directory)"),
        (["classify", "/"], b"", "cannot read / (Is a directory)"),
        (["classify", "--batch", "-"], b"{nonsense", "line 1: not JSON"),
        (["classify", "--batch", "-"], b"[]\n", 'line 1: must be an object with "id" and "log"'),
        (
            ["classify", "--batch", "-"],
            b'{"id":1,"log":"","exit_code":"x"}',
            "line 1: exit_code must be a number from 0 to 255",
        ),
        (["classify", "--exit-code", "300", "-"], b"", "300 is not in the range"),
        (["explain", "nonsense"], b"", "there is no class nonsense (gpualert explain lists them)"),
        (["report", "--log-dir", "/no/such"], b"", "there is no run in /no/such"),
        (["report", "/tmp"], b"", "is not a run directory"),
        (["nonsense"], b"", "No such command 'nonsense'"),
    ],
)
def test_bad_input_gets_one_clear_line(arguments: list[str], data: bytes, message: str) -> None:
    done = call(*arguments, data=data)
    assert done.returncode in (1, 2)
    assert message in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_control_characters_of_a_log_do_not_reach_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "x\x1b[2J.log"
    log.write_bytes(b"\x1b]0;owned\x07ValueError: \x1b[31mred\x1b[0m \x9b2J\n")
    for arguments in (
        ["classify", "--exit-code", "1", str(log), str(log)],
        ["classify", str(tmp_path / "none\x1b[2J")],
    ):
        done = call(*arguments)
        assert not any(c in done.stdout + done.stderr for c in b"\x1b\x07\x9b")


@pytest.fixture
def two_runs(plain: Gpualert) -> Gpualert:
    plain.run(["sh", "-c", "echo out; echo err >&2; echo out2"], "--name", "first")
    plain.run(["sh", "-c", f"echo '{OOM}' >&2; exit 1"], "--name", "second")
    return plain


def test_runs_lists_the_newest_first(two_runs: Gpualert) -> None:
    rows = json.loads(call("runs", "--log-dir", str(two_runs.log_dir), "--format", "json").stdout)
    assert [(r["name"], r["class"], r["exit_code"], r["state"]) for r in rows] == [
        ("second", "cuda_oom", 1, "ended"), ("first", "success", 0, "ended"),
    ]  # fmt: skip
    table = call("runs", "--log-dir", str(two_runs.log_dir), "--limit", "1").stdout.decode().splitlines()
    assert table[0].split() == ["STARTED", "TOOK", "EXIT", "CLASS", "PROGRESS", "RUN"]
    assert call("runs", "--log-dir", str(two_runs.log_dir), "--limit", "1", "--format", "text").stdout.decode() == (
        "\n".join(table) + "\n"
    )
    assert len(table) == 2
    assert "cuda_oom" in table[1]


@pytest.mark.parametrize("which", ["latest", "second", "id", "path", "prefix"])
def test_a_run_is_found_by_id_name_path_or_latest(two_runs: Gpualert, which: str) -> None:
    path = run_dirs(two_runs.log_dir)[1]
    name = {"id": path.name, "path": str(path), "prefix": path.name[:-3]}.get(which, which)
    done = call("report", "--log-dir", str(two_runs.log_dir), name)
    assert done.stdout.decode().startswith("cuda_oom: CUDA out of memory, asked for 2.00 GiB\nsecond: exit 1 after ")


def test_an_ambiguous_name_is_said(two_runs: Gpualert) -> None:
    assert b"fits 2 runs" in call("report", "--log-dir", str(two_runs.log_dir), "20").stderr


def test_a_report_can_be_made_again(two_runs: Gpualert) -> None:
    path = run_dirs(two_runs.log_dir)[1]
    before = json.loads((path / "report.json").read_text())
    (path / "report.json").unlink()
    again = json.loads(call("report", "--format", "json", str(path)).stdout)
    assert again["diagnosis"] == before["diagnosis"]
    assert json.loads((path / "report.json").read_text())["diagnosis"] == before["diagnosis"]
    (path / "output.log").write_text("ZeroDivisionError: x\n")
    assert (
        json.loads(call("report", "--again", "--format", "json", str(path)).stdout)["diagnosis"]["class"] == "div_zero"
    )


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"run_id": 5, "argv": "x", "options": [1]}', b"\xff\xfe", b'{"argv": [1, null, {}]}']
)
def test_damaged_files_of_a_run_are_survived(two_runs: Gpualert, damage: bytes) -> None:
    path = run_dirs(two_runs.log_dir)[1]
    for name in ("run.json", "exit.json", "report.json", "output.idx", "events.jsonl"):
        kept = (path / name).read_bytes()
        (path / name).write_bytes(damage)
        for command in (["report", str(path)], ["report", "--again", str(path)], ["logs", str(path)],
                        ["logs", "--timestamps", "--stream", "stderr", str(path)],
                        ["runs", "--log-dir", str(two_runs.log_dir)]):  # fmt: skip
            done = call(*command)
            assert b"Traceback" not in done.stderr, (name, command, done.stderr)
        (path / name).write_bytes(kept)


def test_logs_are_the_bytes_or_one_stream_or_timed(two_runs: Gpualert) -> None:
    path = str(run_dirs(two_runs.log_dir)[0])
    assert sorted(call("logs", path).stdout.splitlines()) == [b"err", b"out", b"out2"]
    assert call("logs", path, "--stream", "stderr").stdout == b"err\n"
    assert call("logs", path, "--stream", "stdout").stdout == b"out\nout2\n"
    timed = call("logs", path, "--stream", "stdout", "--timestamps").stdout.decode().splitlines()
    assert [line.split(" ", 1)[1] for line in timed] == ["out", "out2"]
    assert all(line[:4].isdigit() and line[26] == "Z" for line in timed)


def test_logs_are_objects_a_line(plain: Gpualert) -> None:
    script = r"printf 'caf\303\251 \033[2J\302\233 \377\n'; printf 'no end' >&2"
    path = str(plain.run(["sh", "-c", script]).run_dir)
    done = call("logs", path, "--format", "json")
    rows = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda row: str(row["stream"]))
    assert [(row["stream"], row["text"]) for row in rows] == [
        ("stderr", "no end"), ("stdout", "caf\xe9 \x1b[2J\x9b \ufffd"),
    ]  # fmt: skip
    assert all(row["at"][:4].isdigit() and row["at"].endswith("Z") for row in rows)
    assert not any(c in done.stdout.decode() for c in "\x1b\x9b")
    only = call("logs", path, "--format", "json", "--stream", "stderr")
    assert [json.loads(line)["text"] for line in only.stdout.splitlines()] == ["no end"]


def test_where_no_line_is_decisive_the_report_shows_the_last_ones(plain: Gpualert) -> None:
    script = "for i in $(seq 40); do echo step $i of a quiet job; done; exit 3"
    done = plain.run(["sh", "-c", script])
    assert done.json("report.json")["diagnosis"]["class"] == "unknown"
    text = call("report", str(done.run_dir)).stdout.decode()
    shown = text.partition("\nthe last lines\n")[2].partition("\n\n")[0].splitlines()
    assert shown == [f"  step {number} of a quiet job" for number in range(26, 41)]


def test_attend_says_what_it_has_closed(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "echo $$; exec sleep 600"])
    started.wait_for(b"\n")
    path = run_dirs(plain.log_dir)[0]
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait()
    os.kill(int((path / "output.log").read_bytes()), signal.SIGKILL)
    argv = [
        PYTHON,
        "-I",
        "-m",
        "gpualert",
        "attend",
        "--log-dir",
        str(plain.log_dir),
        "--every",
        "0.2",
        "--format",
        "json",
    ]
    attending = subprocess.Popen(argv, env=plain._environment(None), stdout=subprocess.PIPE)
    assert attending.stdout is not None
    told = json.loads(attending.stdout.readline())
    attending.terminate()
    assert attending.communicate(timeout=60)[0] == b""
    report = json.loads((path / "report.json").read_text())
    assert told == {
        "run_id": path.name, "class": "lost", "summary": report["diagnosis"]["summary"], "path": str(path),
    }  # fmt: skip


def test_logs_follows_a_run_to_its_end(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "for i in 1 2 3; do echo line $i; sleep 0.4; done"])
    started.wait_for(b"line 1")
    done = call("logs", "--follow", "--log-dir", str(plain.log_dir))
    assert done.stdout == b"line 1\nline 2\nline 3\n"
    started.finish()


def test_a_reader_of_ours_that_goes_away_is_no_error(two_runs: Gpualert) -> None:
    log = run_dirs(two_runs.log_dir)[0] / "output.log"
    log.write_bytes(b"x" * 100 + b"\n" * 3_000_000)
    argv = f"{PYTHON} -I -m gpualert logs {log.parent} | head -c 10"
    done = subprocess.run(["sh", "-c", argv], capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"x" * 10, b"")


@pytest.mark.parametrize(
    "command", ["runs", "report", "logs", "version", "explain", "check", "completion bash", "classify --exit-code 1 -"]
)
def test_an_answer_that_cannot_be_written_is_one_line(two_runs: Gpualert, command: str) -> None:
    def ask(where: str) -> subprocess.CompletedProcess[str]:
        argv = ["sh", "-c", f"echo x | {PYTHON} -I -m gpualert {command} {where}"]
        environment = two_runs._environment({"GPUALERT_LOG_DIR": str(two_runs.log_dir)})
        return subprocess.run(argv, capture_output=True, text=True, env=environment, check=False, timeout=60)

    full, closed = ask(">/dev/full"), ask(">&-")
    assert full.returncode == 1
    assert re.fullmatch(r"gpualert: cannot .*No space left on device\)?\n", full.stderr), full.stderr
    assert (closed.returncode, closed.stderr) == (1, "gpualert: stdout is closed: there is nowhere to answer\n")


def test_what_works_without_an_answer_works_with_stdout_closed(two_runs: Gpualert) -> None:
    argv = ["sh", "-c", f"exec {PYTHON} -I -m gpualert flush --log-dir {two_runs.log_dir} >&-"]
    done = subprocess.run(argv, capture_output=True, check=False, env=two_runs._environment(None))
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_hint_to_follow_a_run_works(plain: Gpualert, tmp_path: Path) -> None:
    started = plain.start(["sh", "-c", f"echo ready; until [ -e {tmp_path}/enough ]; do sleep 0.05; done"])
    started.wait_for(b"ready")
    said = call("report", "--log-dir", str(plain.log_dir)).stderr.decode()
    command = re.findall(r"\((gpualert logs --follow \S+) shows its output\)", said)[0]
    (tmp_path / "enough").touch()
    assert call(*command.split()[1:]).stdout == b"ready\n"
    started.finish()


def test_a_run_that_hangs_is_shown_and_marked_while_it_does(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "echo ready; read line; echo $line"], "--no-telemetry", stdin=subprocess.PIPE)
    started.wait_for(b"ready")
    (path,) = run_dirs(plain.log_dir)
    record = Record(str(path))
    scene = {"stacks": [{"pids": [7], "names": ["sh"], "text": "read (sh)"}], "notes": ["no \x1b[31mtracing"]}
    record.add("hang", {"state": "suspected", "why": "no output for 31m", "silent_s": 1860.0, "scene": scene})
    words = call("report", "--log-dir", str(plain.log_dir), "latest")
    assert words.returncode == 0
    text = words.stdout.decode()
    assert text.startswith("hangs: no output for 31m\n")
    for said in ("process 7: sh\n    read (sh)\n", "note: no  [31mtracing", "the job still runs", "ready\n", str(path)):
        assert said in text
    told = json.loads(call("report", "--log-dir", str(plain.log_dir), "--format", "json").stdout)
    assert (told["diagnosis"], told["hang"]["state"], told["hang"]["action"]) == (None, "suspected", "notify")
    rows = json.loads(call("runs", "--log-dir", str(plain.log_dir), "--format", "json").stdout)
    assert (rows[0]["state"], rows[0]["ending"]) == ("hanging", "hanging")
    record.add("hang", {"state": "over", "why": "there is output again", "silent_s": 1900.0})
    record.close()
    assert b"still running" in call("report", "--log-dir", str(plain.log_dir)).stderr
    rows = json.loads(call("runs", "--log-dir", str(plain.log_dir), "--format", "json").stdout)
    assert rows[0]["state"] == "running"
    assert started.process.stdin is not None
    started.process.stdin.write(b"on\n")
    started.process.stdin.close()
    started.process.stdin = None
    assert started.finish().returncode == 0


def test_a_report_in_words_tells_of_cost_and_machine(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", duration=7200, argv=["python", "train.py"])
    job.inventory(8)
    job.line("progress", 3600, step=41200)
    job.output(f"{OOM}\n", 7100)
    job.end(1)
    text = call("report", str(tmp_path / "r")).stdout.decode()
    assert "\ncost\n  GPU-hours      16.0\n  of them idle   8.0\n" in text
    assert "\nmachine\n  GPUs           8 x NVIDIA H100 80GB HBM3; driver 550.54.15, CUDA 12.4\n" in text


def test_a_run_that_goes_on_has_no_report_yet(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "echo ready; sleep 1.5"])
    started.wait_for(b"ready")
    done = call("report", "--log-dir", str(plain.log_dir))
    assert b"is still running" in done.stderr
    assert json.loads(call("runs", "--log-dir", str(plain.log_dir), "--format", "json").stdout)[0]["state"] == "running"
    started.finish()


def test_check_is_strict_and_names_everything(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[smtp]\nhsot = "x"\nport = 99999\npassword = "x"\n[emial]\nto = []\n[run]\ntimeout = "soon"\n')
    done = call("check", "--config", str(path), env={"GPUALERT_TTY": "perhaps", "GPUALERT_SMTP_HSOT": "x"})
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1
    for part in (
        f"{path}: smtp.hsot is unknown; did you mean smtp.host?", "smtp.port must be less than or equal to 65535",
        "smtp.password belongs in password_file or GPUALERT_SMTP_PASSWORD", "emial is unknown",
        "run.timeout must be a duration", "GPUALERT_TTY: run.tty must be 'auto', 'always' or 'never'",
        "GPUALERT_SMTP_HSOT is unknown; did you mean GPUALERT_SMTP_HOST?",
    ):  # fmt: skip
        assert any(part in line for line in lines), part
    good = tmp_path / "good.toml"
    good.write_text('[smtp]\nhost = "mail.example.org"\n[email]\nto = ["a@example.org"]\n')
    first, *machine = call("check", "--config", str(good)).stdout.decode().splitlines()
    assert first == "the configuration is right"
    assert [line.partition(":")[0] for line in machine] == ["GPUs", "stacks of a hang", "kernel's log", "memory"]


def test_check_shows_no_address_that_is_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[notify]\nurls = ["slack://T0K3NA/T0K3NB/T0K3NC/#ml", "T0K3N"]\nwhen = "ntfy://T0K3N"\n'
        '[webhook]\nurl = "https://user:T0K3N@hooks.example.org:8443/T0K3N?T0K3N=1"\n'
    )
    done = call("check", "--config", str(path), "--format", "json", env={"GPUALERT_TTY": "slack://T0K3N"})
    settings = json.loads(done.stdout)["settings"]
    assert settings["notify"]["urls"] == ["slack://[masked]", "[masked]"]
    assert settings["webhook"]["url"] == "https://hooks.example.org:8443/[masked]"
    words = call("check", "--config", str(path), env={"GPUALERT_TTY": "slack://T0K3N"})
    assert words.returncode == 1
    assert b"T0K3N" not in done.stdout + done.stderr + words.stdout + words.stderr
    for url, shown in (
        ("http://127.0.0.1:80", "http://127.0.0.1:80"), ("http://T0K3N@h/", "http://h/[masked]"), ("T0K3N", "[masked]"),
        ("http://[T0K3N", "[masked]"), ("http://h?T0K3N", "http://h/[masked]"), ("http://h:T0K3N/", "[masked]"),
    ):  # fmt: skip
        checked = call("check", "--format", "json", env={"GPUALERT_CONFIG": os.devnull, "GPUALERT_WEBHOOK_URL": url})
        assert json.loads(checked.stdout)["settings"]["webhook"]["url"] == shown
    settings, _ = config.load({"GPUALERT_CONFIG": str(path)})
    assert "T0K3N" not in repr(settings)
    assert settings.webhook.url == "https://user:T0K3N@hooks.example.org:8443/T0K3N?T0K3N=1"


def test_an_address_in_a_wrong_variable_is_not_said(plain: Gpualert) -> None:
    done = plain.run(["true"], env={"GPUALERT_NOTIFY": "slack://T0K3NA/T0K3NB"})
    assert "not 'slack://...'" in done.said[0]
    for path in done.run_dir.rglob("*"):
        assert not path.is_file() or b"T0K3N" not in path.read_bytes(), path


def test_every_command_has_help_with_what_it_takes() -> None:
    commands = [
        "run",
        "classify",
        "explain",
        "report",
        "runs",
        "logs",
        "attend",
        "flush",
        "check",
        "version",
        "completion",
    ]
    top = call("--help").stdout.decode()
    for command in commands:
        assert f"  {command} " in top
        text = call(command, "--help").stdout.decode()
        assert f"Usage: gpualert {command}" in text
    text = call("run", "--help").stdout.decode()
    for option in OPTIONS:
        assert (option.flag or option.off_flag) in text
        assert option.environment in text


def test_version_and_completion() -> None:
    assert call("version").stdout.startswith(b"gpualert 0.")
    assert call("--version").stdout.startswith(b"gpualert 0.")
    for shell in ("bash", "zsh", "fish"):
        assert b"_GPUALERT_COMPLETE" in call("completion", shell).stdout


def test_explain_tells_of_every_class() -> None:
    listed = call("explain").stdout.decode()
    for name in ("cuda_oom", "gpu_ecc", "lost", "image_pull"):
        assert name in listed
        assert "what to do" in call("explain", name).stdout.decode()


def test_what_is_imported_for_run_is_not_the_command_line(plain: Gpualert) -> None:
    program = "import sys; sys.argv = ['gpualert', 'run', '--no-such']; from gpualert.__main__ import main\ntry: main()\nfinally: pass"
    done = subprocess.run([PYTHON, "-X", "importtime", "-c", program], capture_output=True, check=False)
    assert b"click" not in done.stderr
    assert b"gpualert.supervisor.main" in done.stderr


def test_time_of_day_is_not_needed(two_runs: Gpualert) -> None:
    rows: list[dict[str, Any]] = json.loads(call("runs", "--log-dir", str(two_runs.log_dir), "--format", "json").stdout)
    assert all(row["started_at"] <= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + "Z" for row in rows)
    assert sys.version_info >= (3, 11)


def _init(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "etc" / "config.toml"
    return subprocess.run(
        [PYTHON, "-I", "-m", "gpualert", "init", "--config", str(path), *arguments],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip


def test_init_writes_a_configuration_that_is_right_and_says_every_key(tmp_path: Path) -> None:
    done = _init(
        tmp_path, "--email-to", 'a@example.org,"b"@example.org'.replace('"', ""), "--smtp-host", "mx.example.org"
    )
    path = tmp_path / "etc" / "config.toml"
    assert (done.returncode, done.stdout) == (0, f"wrote {path}\n"), done.stderr
    settings, problems = config.load(environment={}, config=str(path))
    assert problems == []
    assert (settings.email.to, settings.smtp.host) == (["a@example.org", "b@example.org"], "mx.example.org")
    text = path.read_text()
    section, named = "", set()
    for line in text.splitlines():
        found = re.match(r"\[(\w+)\]|#? ?(\w+) = ", line)
        if found and found[1]:
            section = found[1] + "."
        elif found and found[2]:
            named.add(section + found[2])
    assert named == set(known_keys())
    # Every line that is commented out is one that could be used.
    live = re.sub(r"(?m)^# (\w+ = )", r"\1", text)
    _, wrong = config.load(environment={}, config=str(_written(tmp_path / "live.toml", live)))
    assert [str(problem) for problem in wrong if "cannot be read" not in problem.message] == []


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_init_replaces_nothing_unasked(tmp_path: Path) -> None:
    _init(tmp_path)
    path = tmp_path / "etc" / "config.toml"
    path.write_text("name = 'mine'\n")
    done = _init(tmp_path)
    assert (done.returncode, path.read_text()) == (1, "name = 'mine'\n")
    assert "--force replaces it" in done.stderr
    assert _init(tmp_path, "--force").returncode == 0
    assert (tmp_path / "etc" / "config.toml.old").read_text() == "name = 'mine'\n"
    assert _init(tmp_path, "--force", "--email-to", "nobody").returncode == 2


def _converse(path: Path, conversation: list[tuple[str, str]], *arguments: str) -> tuple[int, str]:
    """Hold a conversation with ``gpualert init`` at a terminal; all that it says comes back."""
    argv = [PYTHON, "-I", "-m", "gpualert", "init", "--config", str(path), *arguments]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(PYTHON, argv, {"PATH": os.environ["PATH"]})
    said, heard = "", 0
    try:
        for question, answer in [*conversation, ("", "")]:
            while not question or question not in said[heard:]:
                said += os.read(terminal, 65536).decode()
            heard = len(said)
            os.write(terminal, answer.encode() + b"\n")
    except OSError:
        pass  # it has ended
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), said


def test_init_asks_at_a_terminal_and_keeps_the_password_apart(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "config.toml"
    status, said = _converse(path, [
        ("Mail failures to", "oncall@example.org"), ("Mail server", "127.0.0.1"), ("Security", "none"), ("Port", "2525"),
        ("User name", "bot"), ("Mails come from", "bot@example.org"), ("Password", "s3cret pass"), ("test mail?", "n"),
    ])  # fmt: skip
    assert (status, "s3cret" in said) == (0, False)
    kept = tmp_path / "etc" / "smtp-password"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("s3cret pass\n", 0o600)
    settings, problems = config.load(environment={}, config=str(path))
    assert problems == []
    assert (settings.smtp.username, settings.smtp.port, settings.smtp.security) == ("bot", 2525, "none")
    assert settings.smtp.password is not None
    assert settings.smtp.password.get_secret_value() == "s3cret pass"
    assert "s3cret" not in path.read_text()


def test_init_asks_again_where_an_answer_is_none_and_before_it_replaces_a_password(tmp_path: Path) -> None:
    path, kept = tmp_path / "config.toml", tmp_path / "smtp-password"
    kept.write_text("the old one\n")
    answers = [
        ("Mail failures to", "a@example.org, nobody"), ("nobody is not a mail address", "a@example.org"),
        ("Mail server", "smtps://mx.example.org"), ("is not the name of a server", "mx.example.org:465"),
        ("mx.example.org:465 is not", "::1"), ("Security", "tls"), ("Port", "99999"), ("Port", ""), ("User name", "bot"),
        ("Mails come from", "not an address"), ("not an address is not a mail address", "bot@example.org"),
    ]  # fmt: skip
    replace = f"{kept} is there already. Replace the password in it?"
    status, said = _converse(path, [*answers, (replace, "n"), ("test mail?", "n")])
    assert (status, kept.read_text()) == (0, "the old one\n"), said
    settings, problems = config.load(environment={}, config=str(path))
    assert (settings.email.to, settings.email.from_, problems) == (["a@example.org"], "bot@example.org", [])
    assert (settings.smtp.host, settings.smtp.port, settings.smtp.password_file) == ("::1", 465, str(kept))
    status, said = _converse(
        path, [*answers, (replace, "y"), ("Password", "the new one"), ("test mail?", "n")], "--force"
    )
    assert (status, kept.read_text(), "the new one" in said) == (0, "the new one\n", False), said
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.toml", "config.toml.old", "smtp-password"]
    assert not any("the old one" in file.read_text() for file in tmp_path.iterdir())


@pytest.mark.parametrize("given", [("--email-from", "not an address"), ("--email-to", "x"), ("--smtp-host", "a b")])
def test_init_refuses_a_wrong_option_before_it_asks_or_writes_anything(tmp_path: Path, given: tuple[str, str]) -> None:
    status, said = _converse(tmp_path / "config.toml", [], *given)
    assert (status, "Mail failures to" in said, list(tmp_path.iterdir())) == (2, False, [])
    assert f"{given[1]} is not" in said


def test_init_answers_a_program(tmp_path: Path) -> None:
    done = _init(tmp_path, "--format", "json", "--email-to", "a@example.org")
    assert json.loads(done.stdout) == {"path": str(tmp_path / "etc" / "config.toml"), "problems": []}


def test_answers_for_programs(plain: Gpualert, tmp_path: Path) -> None:
    environment = {
        **plain._environment(None),
        "GPUALERT_LOG_DIR": str(plain.log_dir),
        "GPUALERT_EMAIL_TO": "a@example.org",
    }
    plain.run(["sh", "-c", "exit 3"], env=environment)

    def ask(*arguments: str) -> Any:
        argv = [PYTHON, "-I", "-m", "gpualert", *arguments, "--format", "json"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        return json.loads(done.stdout)

    assert ask("version")["gpualert"] == __version__
    assert ask("runs")[0]["exit_code"] == 3
    assert ask("report")["exit"]["exit_code"] == 3
    assert [entry["outcome"] for entry in ask("flush")] == ["spooled"]
    checked = ask("check")
    assert checked["problems"] == ["smtp.host is not set: mail would only be spooled"]
    assert checked["settings"]["email"]["to"] == ["a@example.org"]
