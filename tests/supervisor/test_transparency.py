"""The child finds everything as it would without gpualert."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import ENTRY, PYTHON, Gpualert, fast, python

LOOK = """
import json, os, resource, signal, sys
state = {}
for line in open("/proc/self/status"):
    if line.startswith(("SigBlk", "SigIgn", "Umask")):
        key, value = line.split()
        state[key] = value
state["limits"] = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")}
state["fds"] = sorted(int(f) for f in os.listdir("/proc/self/fd") if int(f) > 2 and os.path.exists(f"/proc/self/fd/{f}"))
state["cwd"] = os.getcwd()
state["group"] = os.getpgrp() == int(os.environ.get("EXPECTED_GROUP", "0"))
json.dump(state, open(os.environ["STATE"], "w"))
"""


def _compare(plain: Gpualert, tmp_path: Path, **popen: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a command sees with gpualert and without."""
    # SIGPIPE and SIGXFSZ differ only in the interpreter that looks, the same both times.
    look = ["/bin/sh", "-c", 'exec "$@"', "sh", PYTHON, "-c", LOOK]
    with_it, without = tmp_path / "with", tmp_path / "without"
    plain.run(look, env={"STATE": str(with_it)}, **popen)
    environment = plain._environment({"STATE": str(without)})
    subprocess.run(look, env=environment, check=True, stdin=subprocess.DEVNULL, capture_output=True, **popen)
    return json.loads(with_it.read_text()), json.loads(without.read_text())


def test_signals_limits_umask_descriptors_and_directory_are_as_without(plain: Gpualert, tmp_path: Path) -> None:
    def prepare() -> None:
        os.umask(0o027)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGCHLD})
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTTOU, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_NOFILE, (321, 654))
        resource.setrlimit(resource.RLIMIT_STACK, (5 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    seen, expected = _compare(plain, tmp_path, preexec_fn=prepare, cwd=tmp_path)
    assert seen == expected


@pytest.mark.parametrize("number", [signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_an_ignored_signal_stays_ignored_for_the_child_alone(plain: Gpualert, number: signal.Signals) -> None:
    done = plain.run(["grep", "SigIgn", "/proc/self/status"], preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    assert int(done.stdout.split()[1], 16) >> (number - 1) & 1
    assert done.returncode == 0


def test_pipe_and_file_size_signals_are_default_again(plain: Gpualert) -> None:
    done = plain.run(["grep", "SigIgn", "/proc/self/status"])
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1
    assert not ignored >> (signal.SIGXFSZ - 1) & 1


def test_inherited_descriptors_are_there_under_their_numbers(plain: Gpualert, tmp_path: Path) -> None:
    file = (tmp_path / "data").open("w+")
    file.write("inherited")
    file.flush()

    def prepare() -> None:
        os.dup2(file.fileno(), 7)
        os.dup2(file.fileno(), 23)

    seen, expected = _compare(plain, tmp_path, preexec_fn=prepare, close_fds=False)
    assert seen["fds"] == expected["fds"]
    assert {7, 23} <= set(seen["fds"])
    file.close()


def _environment_of(plain: Gpualert, environment: dict[bytes, bytes], *options: str) -> dict[bytes, bytes]:
    argv = plain.argv(list(options), ["/bin/cat", "/proc/self/environ"])
    done = subprocess.run(argv, env=environment, capture_output=True, check=True)
    return dict(entry.split(b"=", 1) for entry in done.stdout.split(b"\0") if entry)


def test_the_environment_is_byte_for_byte_the_same(plain: Gpualert) -> None:
    given = {
        b"PATH": b"/usr/bin:/bin",
        b"ODD": b"\xff\xfe broken",
        b"PYTHONPATH": b"/poison:/more/poison",
        b"LD_LIBRARY_PATH": b"/poison",
        b"EMPTY": b"",
        b"LINES": b"one\ntwo",
    }
    assert _environment_of(plain, given, "--no-env-hints") == given


def test_hints_are_set_only_where_unset(plain: Gpualert) -> None:
    given = {b"PATH": b"/usr/bin:/bin", b"PYTHONUNBUFFERED": b""}
    seen = _environment_of(plain, given)
    assert seen == {**given, b"PYTHONFAULTHANDLER": b"1"}


def test_the_interpreters_own_locale_variable_does_not_leak(plain: Gpualert) -> None:
    for given in ({b"PATH": b"/bin"}, {b"PATH": b"/bin", b"LC_CTYPE": b"C.UTF-8"}, {b"PATH": b"/bin", b"LANG": b"C"}):
        assert _environment_of(plain, given, "--no-env-hints") == given


def test_poison_in_python_variables_does_not_reach_gpualert(plain: Gpualert, tmp_path: Path) -> None:
    for name in ("posix", "gpualert", "structlog", "pydantic", "json", "re", "click", "time"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('poisoned')\n")
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nonexistent", "PYTHONSTARTUP": "/nonexistent"}
    done = plain.run(["sh", "-c", "echo $PYTHONPATH; exit 4"], env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, f"{tmp_path}\n".encode())
    assert done.json("report.json")["diagnosis"]["class"] == "unknown"


def test_arguments_arrive_as_they_are(plain: Gpualert) -> None:
    odd = ["", " ", "a\nb", "ü", "-", "--", "\udcff"]
    done = plain.run([PYTHON, "-c", "import sys, os; print([os.fsencode(a) for a in sys.argv[1:]])", *odd])
    assert done.stdout.decode().strip() == str([os.fsencode(argument) for argument in odd])


def test_the_programs_own_name_is_as_given(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "cat /proc/$$/cmdline"])
    assert done.stdout.split(b"\0")[0] == b"sh"


def test_standard_input_is_the_childs(plain: Gpualert) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"through\n")
    os.close(write_end)
    done = plain.run(["cat"], stdin=read_end)
    os.close(read_end)
    assert done.stdout == b"through\n"


def test_a_removed_working_directory_stops_nothing(plain: Gpualert, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = plain.run(["/bin/echo", "here"], cwd=gone, preexec_fn=lambda: os.rmdir(gone))
    assert (done.returncode, done.stdout) == (0, b"here\n")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_a_closed_descriptor_stays_closed(gpualert: Gpualert, tmp_path: Path, closed: tuple[int, ...]) -> None:
    seen = tmp_path / "seen"
    command = ["sh", "-c", f"ls /proc/$$/fd > {seen}; echo out; echo err >&2; exit 3"]

    def prepare() -> None:
        for fd in closed:
            os.close(fd)

    # unshare itself needs its descriptors, so the closing happens inside.
    argv = gpualert.argv([], command)
    closing = " ".join(f"{fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    at = argv.index("--") + 1 if gpualert.pid1 else 0
    argv[at:at] = ["sh", "-c", f'exec "$@" {closing}', "sh"]
    done = subprocess.run(
        argv, capture_output=True, env=gpualert._environment(None), stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 3
    # The shell has opened the file under the lowest free number, so compare with the same without gpualert.
    bare = subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *command], capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    assert bare.returncode == 3
    expected = seen.read_text().split()
    subprocess.run(argv, capture_output=True, env=gpualert._environment(None), stdin=subprocess.DEVNULL, check=False)
    assert seen.read_text().split() == expected
    assert done.stdout == bare.stdout


def test_job_control_group_is_ours_by_default(plain: Gpualert) -> None:
    done = plain.run(python("import os; print(os.getpgrp() == os.getpgid(os.getppid()))"))
    assert done.stdout == b"True\n"


def test_gpualert_says_nothing_for_a_clean_success(gpualert: Gpualert) -> None:
    done = gpualert.run(["sh", "-c", "echo out; echo err >&2"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\n", b"err\n")


LOADED = """
import sys
before = set(sys.modules)
import gpualert.supervisor.main, gpualert.supervisor.supervision, gpualert.supervisor.launch
real = gpualert.supervisor.launch.spawn
def spawn(*arguments, **named):
    sys.stderr.write("\\n".join(sorted(set(sys.modules))) + "\\n")
    return real(*arguments, **named)
gpualert.supervisor.launch.spawn = spawn
gpualert.supervisor.main.run(sys.argv[1:])
"""


def test_nothing_slow_and_nothing_foreign_is_imported_before_the_launch(plain: Gpualert) -> None:
    program = f"import sys; sys.path.insert(0, {str(ENTRY.parent.parent)!r})\n" + LOADED
    done = subprocess.run(
        [*fast(), "-c", program, "--log-dir", str(plain.log_dir), "true"], capture_output=True, check=True
    )
    loaded = set(done.stderr.decode().split())
    heavy = {"os", "typing", "json", "subprocess", "argparse", "logging", "threading", "signal", "re", "collections"}
    assert loaded & heavy == set()
    ours = {name for name in loaded if name.startswith("gpualert.") and name.count(".") >= 1}
    assert {name.split(".")[1] for name in ours} == {"supervisor", "rundir"}
    site = {"pydantic", "structlog", "re2", "click", "jinja2", "kubernetes"}
    assert loaded & site == set()
