"""What is captured where a job hangs: real processes, and what a hostile job puts in the way."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PYTHON, wait_until
from hypothesis import given
from hypothesis import strategies as st

from gpualert.hang import lastlines, scene, stacks, syscalls, tracing, waiting
from gpualert.hang.descriptors import Descriptors
from gpualert.rundir import index, jsontext
from gpualert.telemetry.processes import Process, Tree

_SLEEPS = "import sys, time\nprint('up', flush=True)\ndef wait_here():\n    time.sleep(1000)\nwait_here()\n"


@contextlib.contextmanager
def started(*commands: list[str], **popen: object) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that have said that they are up."""
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, **popen) for command in commands]  # type: ignore[call-overload]
    try:
        for one in running:
            assert one.stdout.readline() == b"up\n"
        yield running
    finally:
        for one in running:
            one.kill()
            one.communicate()


def python(text: str, *arguments: str) -> list[str]:
    return [PYTHON, "-c", text, *arguments]


def tree_of(running: list[subprocess.Popen[bytes]]) -> Tree:
    """A tree of these alone, whatever else this process has started."""
    wanted = {one.pid for one in running}
    tree = Tree(os.getpid())
    tree.sample()
    return Tree(os.getpid(), {one.pid for one in tree.processes() if one.parent == os.getpid()} - wanted)


def told(running: list[subprocess.Popen[bytes]]) -> str:
    tree = tree_of(running)
    tree.sample()
    found = waiting.told(tree.processes(), os.getpid(), time.monotonic() + 60)
    return "\n".join(group["text"] for group in found)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until_told(running: list[subprocess.Popen[bytes]], text: str) -> None:
    wait_until(lambda: text in told(running), text)


def test_equal_processes_are_told_of_together(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with started(*[python(_SLEEPS)] * 3) as running:
        found = scene.capture(tree_of(running), str(tmp_path), time.monotonic() + 60)
    assert found["notes"] == []
    (stack,) = found["stacks"]
    assert stack["pids"] == sorted(one.pid for one in running)
    assert "wait_here (" in stack["text"]
    (kernel,) = found["kernel"]
    assert kernel["pids"] == stack["pids"]
    assert "main thread: asleep in clock_nanosleep" in kernel["text"]
    assert {one["pid"] for one in found["processes"]} == set(stack["pids"])
    assert found["flight"] is None
    assert json.loads(jsontext.dumps(found)) == found


def test_pipes_sockets_files_and_locks_are_named(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    connect = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); print('up', flush=True); "
    os.mkfifo(tmp_path / "queue")
    lock = (tmp_path / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    take = f"import fcntl; f = open({str(tmp_path / 'lock')!r}); print('up', flush=True); fcntl.flock(f, fcntl.LOCK_EX)"
    with started(
        python(connect + "s.recv(1)"),
        python(connect + "import select; select.select([s], [], [])"),
        python(connect + "import select; e = select.epoll(); e.register(s, 1); e.poll()"),
        python(connect + "import select; e = select.poll(); e.register(s, 1); e.poll()"),
        python(f"print('up', flush=True); open({str(tmp_path / 'queue')!r})"),
        python(take),
        ["sh", "-c", "echo up; sleep 1000 | cat"],
    ) as running:
        for call in ("recvfrom(", "pselect6 on", "epoll_wait on", "poll on"):
            until_told(running, call)
        text = told(running)
        lines = {line.partition(":")[0]: line for line in text.splitlines()}
        for one in running[:4]:
            (line,) = [line for head, line in lines.items() if str(one.pid) in head.split()]
            assert f"tcp 127.0.0.1:{port} from 127.0.0.1:" in line
        until_told(running, f"openat of {tmp_path}/queue")
        until_told(running, f"flock(3) on {tmp_path}/lock")
        assert f"held by {os.getpid()}" in told(running)
        until_told(running, "on a pipe from")
        for child in tree_of(running).processes():
            if child.name == "sleep":
                os.kill(child.pid, signal.SIGKILL)
        tree = tree_of(running)
        tree.sample()
        for child in tree.processes():
            if child.parent != os.getpid():
                os.kill(child.pid, signal.SIGKILL)
    listener.close()
    lock.close()


def test_a_stopped_process_is_read_and_stays_stopped() -> None:
    with started(python(_SLEEPS)) as running:
        (one,) = running
        wait_until(lambda: "nanosleep" in Path(f"/proc/{one.pid}/wchan").read_text(), "its sleep")
        one.send_signal(signal.SIGSTOP)
        wait_until(lambda: state(one.pid) == "T", "its stop")
        tree = tree_of(running)
        tree.sample()
        found, _ = stacks.taken(tree.processes(), time.monotonic() + 60)
        assert "wait_here (" in found[0]["text"]
        assert state(one.pid) == "T"
        assert tracing.held(one.pid) == "is stopped"


def test_a_tracer_that_takes_too_long_is_ended_and_leaves_nothing_stopped() -> None:
    attach = (
        "import ctypes, os, sys, time; c = ctypes.CDLL(None); pid = int(sys.argv[1]); "
        "assert c.ptrace(16, pid, 0, 0) == 0; os.waitpid(pid, 0x40000000); time.sleep(1000)"
    )
    with started(python(_SLEEPS)) as running:
        pid = running[0].pid
        done = tracing.run(python(attach, str(pid)), pid, 3.0)
        assert done.why == "late"
        wait_until(lambda: state(pid) == "S", "that it goes on")
        # And where the signal of the attachment comes only afterwards.
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state(pid) == "T", "its stop")
        tracing._let_go(pid)
        wait_until(lambda: state(pid) == "S", "that it goes on")


def test_a_tracer_that_prints_without_end_is_ended() -> None:
    with started(python(_SLEEPS)) as running:
        done = tracing.run(["sh", "-c", "yes"], running[0].pid, 30.0)
    assert (done.why, done.output) == ("late", b"")


def test_without_py_spy_it_is_said_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "program", lambda _name: None)
    one = Process(os.getpid(), 1, 1, name="python", python=True)
    assert stacks.taken([one], time.monotonic() + 60) == (
        [],
        ["no Python stacks: py-spy is not installed (pip install 'gpualert[gpu]')"],
    )


def test_a_tracer_that_may_not_is_told_of_with_what_allows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "program", lambda name: str(spy) if name == "py-spy" else None)
    monkeypatch.setattr(waiting, "may_trace", lambda: "in Kubernetes add SYS_PTRACE")
    with started(python(_SLEEPS)) as running:
        one = Process(running[0].pid, 1, 1, name="python", python=True)
        found, notes = stacks.taken([one], time.monotonic() + 60)
    assert (found, notes) == ([], ["no Python stacks: in Kubernetes add SYS_PTRACE"])


@pytest.mark.root
def test_what_the_kernel_forbids_is_said_without_the_right_to_trace() -> None:
    text = (
        "import sys; sys.path.insert(0, '.'); from gpualert.hang import waiting; "
        "waiting.content = (lambda real: lambda path, limit=65536: b'1\\n' if 'ptrace_scope' in path else real(path, limit))"
        "(waiting.content); print(waiting.may_trace())"
    )
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", sys.executable, "-c", text],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "securityContext.capabilities.add: [SYS_PTRACE]" in done.stdout, done.stderr


def test_output_that_is_no_stack_is_none() -> None:
    for output in (
        b"",
        b"[",
        b"{}",
        b"[1, null]",
        b"[" * 100_000,
        b'[{"frames": 3}]',
        b'[{"frames": [3, {"name": 7}]}]',
    ):
        assert "\x1b" not in stacks._rendered(output)
    text = stacks._rendered(json.dumps([{"thread_name": "a\x1b[2J\n", "frames": [{"name": "f\x00"}]}]).encode())
    assert text == "a?[2J? (idle)\n    f? (?)"


@given(st.text())
def test_any_syscall_line_is_read_or_passed_over(text: str) -> None:
    syscalls.parse(text)


def test_calls_of_both_tables() -> None:
    line = "0 0x3 0x7f39afd8e000 0x20000 0x0 0xffffffff 0x0 0x7ffc09c84618 0x7f39aff052ad"
    call = syscalls.parse(line, "x86_64")
    assert call is not None
    assert (call.name, call.descriptor, call.path) == ("read", 3, None)
    call = syscalls.parse(line.replace("0 0x3", "56 0xffffff9c", 1), "aarch64")
    assert call is not None
    assert (call.name, call.descriptor, call.path) == ("openat", None, 0x7F39AFD8E000)
    assert syscalls.parse("running", "x86_64") is None
    assert syscalls.parse("-1 0x7ffc09c84618 0x7f39aff052ad", "x86_64") is None
    call = syscalls.parse(line.replace("0 ", "9999 ", 1), "x86_64")
    assert call is not None
    assert call.name == "system call 9999"


def test_a_descriptor_that_is_not_there() -> None:
    assert Descriptors({}).describe(os.getpid(), 1 << 30) == "a descriptor that cannot be looked up"


# -- last lines --------------------------------------------------------------------------------------------------------


def test_the_last_line_of_each_rank_with_its_time(tmp_path: Path) -> None:
    early, late = (
        b"[rank0]: step 1\n[default1]:step 1\nno rank here\n",
        b"[rank0]: step 2\x1b[0m\n2: up\n[1,3]<stdout>: x\n",
    )
    (tmp_path / "output.log").write_bytes(early + late)
    records = [index.record(1_780_000_000_000_000, 1, len(early)), index.record(1_780_000_060_000_000, 1, len(late))]
    (tmp_path / "output.idx").write_bytes(index.HEADER + b"".join(records))
    assert lastlines.of(str(tmp_path)) == [
        {"rank": 0, "line": "step 2 [0m", "at": "2026-05-28T20:27:40Z"},
        {"rank": 1, "line": "step 1", "at": "2026-05-28T20:26:40Z"},
        {"rank": 2, "line": "up", "at": "2026-05-28T20:27:40Z"},
        {"rank": 3, "line": "x", "at": "2026-05-28T20:27:40Z"},
    ]


def test_a_log_that_is_none_has_no_last_lines(tmp_path: Path) -> None:
    assert lastlines.of(str(tmp_path)) == []
    os.mkfifo(tmp_path / "output.log")
    assert lastlines.of(str(tmp_path)) == []


@given(st.binary(), st.binary())
def test_any_log_and_index_give_plain_lines(tmp_path_factory: pytest.TempPathFactory, log: bytes, idx: bytes) -> None:
    place = tmp_path_factory.mktemp("run")
    (place / "output.log").write_bytes(b"[rank0]: " + log)
    (place / "output.idx").write_bytes(idx)
    for line in lastlines.of(str(place)):
        assert line["line"].isprintable()
        assert len(line["line"]) <= lastlines.LINE_MAX


def test_long_lines_of_many_ranks_stay_bounded(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"".join(b"[rank%d]: %s\n" % (rank, b"x" * 3000) for rank in range(500)))
    found = lastlines.of(str(tmp_path))
    assert len(found) == lastlines.RANKS_MAX
    assert all(len(line["line"]) == lastlines.LINE_MAX for line in found)


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_scene_is_bounded_and_says_that_there_was_more() -> None:
    big = {
        "processes": [{"command": "x" * 200}] * 100,
        "stacks": [{"pids": [1], "names": [], "text": "y" * 16000}] * 40,
        "kernel": [{"text": "z" * 2000}] * 48,
        "flight": {"text": "f" * 300_000},
        "ranks": [],
        "notes": ["note"] * 1000,
    }
    found = scene._bounded(big)
    assert len(jsontext.dumps(found)) <= scene.SIZE_MAX + 100
    assert found["notes"] == ["note", "more was found than is kept here"]
    assert len(found["stacks"]) >= 5


def test_a_part_that_does_not_answer_or_fails_keeps_no_other() -> None:
    notes: list[str] = []
    parts = scene._Parts(notes, time.monotonic() + 2)
    held: list[float] = []

    def fail(_until: float) -> None:
        raise RuntimeError("broken")

    parts.run("the first", 0.2, lambda _until: time.sleep(1000))
    parts.run("the second", 0.5, fail)
    parts.run("the third", 1.0, held.append)
    assert notes == [
        "the first: what it has to look at does not answer",
        "the second: not found (RuntimeError: broken)",
    ]
    assert len(held) == 1


def test_processes_that_end_while_they_are_looked_at(tmp_path: Path) -> None:
    with started(python(_SLEEPS)) as running:
        tree = tree_of(running)
        tree.sample()
        processes = tree.processes()
        running[0].kill()
        running[0].wait()
        assert waiting.told(processes, os.getpid(), time.monotonic() + 60) == []
        assert stacks.taken(processes, time.monotonic() + 60) == ([], [])
