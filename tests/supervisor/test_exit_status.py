"""The exit status is the child's own, in every case."""

from __future__ import annotations

import signal
import subprocess

import pytest
from conftest import ENTRY, PYTHON, Gpualert, python

DEADLY = [
    number
    for number in signal.valid_signals()
    if number
    not in {
        signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN,
        signal.SIGTTOU,
    }
]  # fmt: skip

DIE = """
import os, signal
if {0} != 9:
    signal.signal({0}, signal.SIG_DFL)
os.kill(os.getpid(), {0})
"""


@pytest.mark.parametrize("first", range(0, 256, 32))
def test_every_exit_code_is_returned(gpualert: Gpualert, first: int) -> None:
    # A quiet failure needs no report here: the deadline of 0 has the supervisor say the plain words.
    for code in range(first, first + 32):
        done = gpualert.run(["sh", "-c", f"exit {code}"], "--report-deadline", "0")
        assert done.returncode == code
        assert done.json("exit.json")["exit_code"] == code


@pytest.mark.parametrize("first", range(0, len(DEADLY), 8))
def test_death_by_every_signal_is_returned(gpualert: Gpualert, first: int) -> None:
    for number in DEADLY[first : first + 8]:
        done = gpualert.run(python(DIE.format(int(number))), "--report-deadline", "0")
        assert done.returncode == (128 + number if gpualert.pid1 else -number), number
        assert done.json("exit.json")["signal"] == number


def test_a_core_dump_is_the_childs_alone(plain: Gpualert, tmp_path: object) -> None:
    import resource

    def allow_cores() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    work = plain.log_dir.parent / "work"
    work.mkdir()
    done = plain.run(
        python("import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()"),
        preexec_fn=allow_cores,
        cwd=work,
    )
    assert done.returncode == -signal.SIGABRT
    assert list(work.iterdir()) == []


def test_a_missing_command_is_127_and_said(gpualert: Gpualert) -> None:
    done = gpualert.run(["no-such-command-here"])
    assert done.returncode == 127
    assert "command_not_found: no-such-command-here: command not found (exit 127" in done.said[0]
    assert done.json("report.json")["diagnosis"]["class"] == "command_not_found"
    assert done.json("exit.json")["launch_error"]["errno"] == 2


def _script(plain: Gpualert, content: bytes, mode: int) -> str:
    path = plain.log_dir.parent / "program"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_a_file_without_the_execute_bit_is_126(plain: Gpualert) -> None:
    done = plain.run([_script(plain, b"#!/bin/sh\n", 0o644)])
    assert done.returncode == 126
    assert "Permission denied" in done.said[0]
    assert done.json("report.json")["diagnosis"]["class"] == "not_executable"


def test_a_directory_is_126(plain: Gpualert) -> None:
    done = plain.run(["/"])
    assert done.returncode == 126
    assert "is a directory" in done.said[0]


def test_a_binary_for_another_machine_is_126_and_said_plainly(plain: Gpualert) -> None:
    foreign = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf3\x00" + bytes(100)
    done = plain.run([_script(plain, foreign, 0o755)])
    assert done.returncode == 126
    assert "a program for another kind of machine" in done.said[0]


def test_a_script_without_an_interpreter_line_runs_through_sh(plain: Gpualert) -> None:
    done = plain.run([_script(plain, b'echo "$0 $1"; exit 7\n', 0o755), "word"])
    assert (done.returncode, done.stdout) == (7, f"{plain.log_dir.parent}/program word\n".encode())


def test_a_script_whose_interpreter_is_missing_is_127_and_names_it(plain: Gpualert) -> None:
    done = plain.run([_script(plain, b"#!/no/such/interpreter\n", 0o755)])
    assert done.returncode == 127
    assert "its interpreter /no/such/interpreter does not exist" in done.said[0]


def test_the_path_is_searched_as_execvp_does(plain: Gpualert) -> None:
    folder = plain.log_dir.parent / "bin"
    folder.mkdir()
    (folder / "tool").write_text("#!/bin/sh\necho found\n")
    (folder / "tool").chmod(0o755)
    assert plain.run(["tool"], env={"PATH": f"/nonexistent:{folder}"}).stdout == b"found\n"
    assert plain.run(["tool"], env={"PATH": "/nonexistent:"}, cwd=folder).stdout == b"found\n"
    (folder / "tool").chmod(0o644)
    assert plain.run(["tool"], env={"PATH": str(folder)}).returncode == 126


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-such-option", "true"], "unknown option '--no-such-option'"),
        (["--log-dri", "x", "true"], "did you mean --log-dir?"),
        ([], "no command to run"),
        (["--"], "no command to run"),
        (["--timeout", "soon", "true"], "--timeout must be a duration such as 90s, 30m or 3h12m, not 'soon'"),
        (["--timeout"], "--timeout needs a value"),
        (["--notify", "sometimes", "true"], "must be one of failure, always, never"),
        (["--signal-group=yes", "true"], "--signal-group takes no value"),
    ],
)
def test_a_wrong_call_is_125_and_says_what_to_do(arguments: list[str], message: str) -> None:
    done = subprocess.run([PYTHON, "-I", str(ENTRY), "run", *arguments], capture_output=True, check=False)
    assert done.returncode == 125
    assert done.stderr.decode().count("\n") == 1
    assert done.stderr.decode().startswith("gpualert: ")
    assert message in done.stderr.decode()


def test_options_of_the_command_are_not_ours(plain: Gpualert) -> None:
    done = subprocess.run(
        [PYTHON, "-I", str(ENTRY), "run", "--log-dir", str(plain.log_dir), "echo", "--timeout", "x", "--", "-y"],
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"--timeout x -- -y\n"
