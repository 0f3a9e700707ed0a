"""The wall: whatever becomes of the reporter, status and message are there."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ENTRY, PYTHON, REPOSITORY, Completed, Gpualert, fast, run_dirs, wait_until

FAIL = ["sh", "-c", "echo 'ValueError: x' >&2; exit 7"]


def _broken(plain: Gpualert, body: str, *options: str) -> Completed:
    """gpualert with a reporter that does something else instead of its work."""
    program = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
import gpualert.supervisor.reporter as reporter
reporter._START = {("import os, signal, sys, time; " + body)!r} + " #{{module}}"
from gpualert.supervisor.main import run
run(sys.argv[1:])
"""
    argv = [
        *plain.python,
        "-c",
        program.replace("{{module}}", "{module}"),
        "--log-dir",
        str(plain.log_dir),
        *options,
        "--",
        *FAIL,
    ]
    done = subprocess.run(argv, capture_output=True, env=plain._environment(None), timeout=60, check=False)
    return Completed(done.returncode, done.stdout, done.stderr, plain.log_dir)


@pytest.mark.parametrize(
    "body",
    [
        "os._exit(0)",
        "os._exit(9)",
        "os.kill(os.getpid(), 9)",
        "os.abort()",
        "sys.stdout.write('x' * 100000)",
        "raise MemoryError",
        "time.sleep(600)",
        "signal.signal(15, signal.SIG_IGN); time.sleep(600)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "os.fork(); signal.signal(15, signal.SIG_IGN); time.sleep(600)",
        "import no_such_module_anywhere",
    ],
)
def test_a_broken_reporter_costs_neither_status_nor_message(plain: Gpualert, tmp_path: Path, body: str) -> None:
    message = tmp_path / "message"
    done = _broken(plain, body, "--report-deadline", "2s", "--termination-log", str(message))
    assert done.returncode == 7
    assert message.read_text().startswith("unknown: the command failed, and no report could be made in time (exit 7)\n")
    assert json.loads(message.read_text().splitlines()[-1])["exit_code"] == 7
    assert "gpualert: unknown: the command failed, and no report could be made in time (exit 7)" in done.said
    again = subprocess.run([PYTHON, "-I", str(ENTRY), "report", str(done.run_dir)], capture_output=True, check=True)
    assert b"traceback: ValueError: x" in again.stdout


def test_an_interpreter_without_packages_still_says_the_plain_words(plain: Gpualert) -> None:
    plain.python = fast()
    done = plain.run(["sh", "-c", "exit 4"])
    assert done.returncode == 4
    assert done.json("exit.json")["exit_code"] == 4
    assert done.said


@pytest.mark.parametrize("wait_s", [0.0, 0.03, 0.08, 0.15, 0.25])
def test_a_reporter_that_is_killed_at_any_moment(plain: Gpualert, tmp_path: Path, wait_s: float) -> None:
    message = tmp_path / "message"
    started = plain.start(FAIL, "--termination-log", str(message))
    wait_until(lambda: (run_dirs(plain.log_dir)[0] / "reporter.log").exists(), "the reporter")
    time.sleep(wait_s)
    children = Path(f"/proc/{started.process.pid}/task/{started.process.pid}/children")
    try:
        for pid in children.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    except (ProcessLookupError, FileNotFoundError):
        pass  # it was quicker
    done = started.finish()
    assert done.returncode == 7
    assert message.read_text().startswith(("unknown: ", "traceback: "))
    assert json.loads(message.read_text().splitlines()[-1])["exit_code"] == 7
    assert len([line for line in done.said if line.startswith(("gpualert: unknown", "gpualert: traceback"))]) == 1


def test_a_late_stop_signal_shortens_the_deadline_and_ends_nothing(plain: Gpualert) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
import gpualert.supervisor.reporter as reporter
reporter._START = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600) #{{module}}"
reporter.DEADLINE_AFTER_STOP_S = 1.0
from gpualert.supervisor.main import run
run(sys.argv[1:])
"""
    argv = [*plain.python, "-c", program, "--log-dir", str(plain.log_dir), "--report-deadline", "1h", "--", *FAIL]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=plain._environment(None))
    wait_until(lambda: (run_dirs(plain.log_dir)[0] / "reporter.log").exists(), "the reporter")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 7


def test_the_reporter_runs_in_a_session_of_its_own_with_an_absolute_name(plain: Gpualert) -> None:
    body = "open(sys.argv[2] + '/seen', 'w').write(repr([os.getsid(0) == os.getpid(), sys.executable, sys.flags.isolated]))"
    done = _broken(plain, body, "--report-deadline", "20s")
    alone, executable, isolated = eval(done.file("seen"))
    assert (alone, executable.startswith("/"), isolated) == (True, True, 1)


def test_a_quiet_success_starts_no_reporter(plain: Gpualert) -> None:
    done = plain.run(["echo", "fine"])
    assert not (done.run_dir / "reporter.log").exists()
    assert done.json("report.json")["diagnosis"]["class"] == "success"


def test_a_success_with_nan_to_the_end_is_reported(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "echo 'step 1 loss 2.0'; echo 'step 2 loss nan'; echo 'step 3 loss nan'"])
    assert done.returncode == 0
    assert done.json("report.json")["diagnosis"]["class"] == "nan_loss"
    assert done.said[0].startswith("gpualert: nan_loss: ")


def test_a_success_after_an_uncaught_traceback_is_warned_of(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", f"{PYTHON} -c 'import json; json.loads(\"x\")' | tee /dev/null"])
    diagnosis = done.json("report.json")["diagnosis"]
    assert (done.returncode, diagnosis["class"]) == (0, "success")
    assert "was not caught, but the exit code is 0" in diagnosis["warnings"][0]
    assert any("note: line" in line for line in done.said)


def test_trouble_is_four_lines_at_most(plain: Gpualert, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[run]\ntimeout = "never"\ntty = 3\nkill_after = []\norphan_grace = "x"\nsignal_group = "perhaps"\n'
    )
    done = plain.run(["true"], "--config", str(config))
    assert done.returncode == 0
    assert len(done.said) == 4
    assert done.said[-1].endswith("(further trouble is only recorded)")
    assert len(done.json("exit.json")["trouble"]) == 5


def test_an_unknown_key_is_trouble_and_not_an_error(plain: Gpualert, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[smtp]\nhsot = "mail"\n')
    done = plain.run(["false"], "--config", str(config))
    assert done.returncode == 1
    trouble = done.json("report.json")["trouble"]
    assert trouble == [f"{config}: smtp.hsot is unknown; did you mean smtp.host?: ignored"]


MISTAKES = {
    "GPUALERT_SMTP_PORT": "abc",
    "GPUALERT_SMTP_SECURITY": "ssl",
    "GPUALERT_BOGUS": "1",
    "GPUALERT_TTY": "perhaps",
    "GPUALERT_RULES": "/nope",
}


def test_each_mistake_in_the_settings_is_said_once_when_a_run_fails(plain: Gpualert) -> None:
    done = plain.run(FAIL, env=MISTAKES)
    assert done.returncode == 7
    trouble = done.json("report.json")["trouble"]
    for word in ("GPUALERT_SMTP_PORT", "GPUALERT_SMTP_SECURITY", "GPUALERT_BOGUS", "GPUALERT_TTY", "/nope"):
        assert sum(word in line for line in trouble) == 1, word
        assert sum(word in line for line in done.said) <= 1, word
    lines = [line for line in done.said if any(line.startswith(f"gpualert: {told}") for told in trouble)]
    assert len(lines) == 4
    assert lines[-1].endswith(" (and 1 more in report.json)")
    assert any(line.startswith("gpualert: traceback: ValueError: x") for line in done.said)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("GPUALERT_SMTP_PORT", "abc", "GPUALERT_SMTP_PORT: smtp.port must be a valid integer"),
        ("GPUALERT_SMTP_SECURITY", "ssl", "GPUALERT_SMTP_SECURITY: smtp.security must be 'starttls', 'tls' or 'none'"),
        ("GPUALERT_RULES", "/nope", "/nope"),
    ],
)
def test_a_mistake_in_the_reporters_settings_is_said(plain: Gpualert, name: str, value: str, said: str) -> None:
    done = plain.run(FAIL, env={name: value})
    (line,) = [line for line in done.said if said in line]
    assert done.json("report.json")["trouble"] == [line.removeprefix("gpualert: ")]
    # A success that is worth a report says it as well; a plain one has no reporter that could.
    done = plain.run(["sh", "-c", "echo ValueError: survived"], env={name: value})
    assert [line for line in done.said if said in line] == [line]


def test_a_broken_file_of_rules_is_said(plain: Gpualert, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("[[rule]\n")
    done = plain.run(FAIL, env={"GPUALERT_RULES": str(tmp_path)})
    (line,) = [line for line in done.said if "rules.toml" in line]
    assert line.endswith(": own rules are ignored")


def test_a_success_whose_traceback_is_far_from_the_end_is_warned_of(plain: Gpualert) -> None:
    script = f"{PYTHON} -c 'import json; json.loads(\"x\")'; yes 'step' | head -c 9000000"
    done = plain.run(["sh", "-c", script], stdout=subprocess.DEVNULL)
    assert "was not caught, but the exit code is 0" in done.json("report.json")["diagnosis"]["warnings"][0]
    assert any("note: line" in line for line in done.said)


def test_hints_name_the_directory_where_no_default_place_is(plain: Gpualert) -> None:
    done = _broken(plain, "time.sleep(600)", "--report-deadline", "1s")
    (hint,) = [line for line in done.said if "was not ready" in line]
    command = hint.rpartition(": ")[2]
    assert command == f"gpualert report {done.run_dir}"
    argv = [PYTHON, "-I", str(ENTRY), *command.split()[1:]]
    assert b"ValueError: x" in subprocess.run(argv, capture_output=True, check=True).stdout


def test_the_hint_to_flush_works(plain: Gpualert, tmp_path: Path) -> None:
    plain.log_dir = tmp_path / "log's dir"
    done = plain.run(FAIL, "--email-to", "a@example.org")
    (hint,) = [line for line in done.said if "spooled" in line]
    command = hint.partition("; ")[2].removesuffix(" sends it")
    argv = [PYTHON, "-I", str(ENTRY), *shlex.split(command)[1:]]
    flushed = subprocess.run(argv, capture_output=True, check=False, env=plain._environment(None), text=True)
    assert flushed.stdout.startswith("spooled to a@example.org")


def test_the_hint_names_a_directory_of_last_resort(plain: Gpualert, tmp_path: Path) -> None:
    plain.log_dir = Path("/proc/nope")
    (tmp_path / "tmp").mkdir()
    done = plain.run(FAIL, "--email-to", "a@example.org", env={"TMPDIR": str(tmp_path / "tmp")})
    (place,) = (tmp_path / "tmp").iterdir()
    assert done.said[0] == f"gpualert: cannot write /proc/nope (No such file or directory): keeping the log in {place}"
    assert any(line.endswith(f"; gpualert flush --log-dir {place} sends it") for line in done.said)


def test_in_a_default_place_the_hint_is_short(plain: Gpualert, tmp_path: Path) -> None:
    argv = [*plain.python, str(ENTRY), "run", "--email-to", "a@example.org", "--", *FAIL]
    environment = plain._environment({"XDG_STATE_HOME": str(tmp_path)})
    if os.access("/var/log", os.W_OK):
        argv[4:4] = ["--log-dir", str(tmp_path / "gpualert")]
    done = subprocess.run(argv, capture_output=True, check=False, env=environment, text=True)
    assert "; gpualert flush sends it\n" in done.stderr


def test_a_password_from_a_file_is_masked(plain: Gpualert, tmp_path: Path) -> None:
    for number, name in enumerate(("GPUALERT_SMTP_PASSWORD_FILE", "GPUALERT_WEBHOOK_SECRET_FILE")):
        secret = f"pass-from-file-{number}"
        (tmp_path / name).write_text(secret + "\n")
        done = plain.run(["sh", "-c", f"echo ValueError: {secret}; exit 1"], env={name: str(tmp_path / name)})
        for file in ("report.json", "report.html", "exit.json", "reporter.log"):
            assert secret.encode() not in done.file(file), file
        assert secret not in "".join(done.said)
        assert "ValueError: [masked]" in "".join(done.said)
        again = subprocess.run(
            [PYTHON, "-I", str(ENTRY), "report", "--again", str(done.run_dir)],
            capture_output=True, check=True, env=plain._environment({name: str(tmp_path / name)}),
        )  # fmt: skip
        assert secret.encode() not in again.stdout
