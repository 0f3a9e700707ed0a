"""The spool when the machine dies: stopped at each call that changes anything, it neither loses nor halves a mail.

What a power cut would also lose, data that was not synced, is seen in the order of the calls: nothing is sent or renamed
before it is on the disk.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PYTHON
from notify.servers import Accepting, accepting

from gpualert.notify import delivery, spool

__all__ = ["accepting"]

DRIVER = """
import sys, time
from email.message import EmailMessage
from gpualert.notify import delivery, message, spool
mail = EmailMessage(message.POLICY)
mail["Subject"], mail["Message-ID"] = "test", "<only@example.org>"
mail.set_content("begin\\n" + "x" * 60 + "\\n" * 2000 + "end\\n")
path = spool.put(sys.argv[1], mail, "a@example.org", ["b@example.org"], "mail")
server = delivery.Server("127.0.0.1", int(sys.argv[2]), "none")
print(spool.send(path, server, time.monotonic() + 20))
"""
CALLS = ("mkdir", "openat", "write", "fsync", "rename", "unlink", "flock", "connect", "sendto")
WHOLE_CALLS_MAX = 40


def _drive(run: Path, port: int, *strace: str) -> subprocess.CompletedProcess[bytes]:
    run.mkdir(exist_ok=True)
    command = [PYTHON, "-I", "-c", DRIVER, str(run), str(port)]
    return subprocess.run(
        ["strace", "-f", "-qq", *strace, "--", *command], capture_output=True, check=False, timeout=120
    )


def _first(run: Path, port: int, call: str, trace: Path) -> int:
    """How many calls of that name come before the spool's first; the interpreter's own start is not at stake."""
    _drive(run, port, "-y", "-o", str(trace), "-e", f"trace={call}")
    lines = [line for line in trace.read_text().splitlines() if f"{call}(" in line]
    mine = [number for number, line in enumerate(lines) if str(run) in line or call not in ("openat", "mkdir", "write")]
    return mine[0] if mine else len(lines)


@pytest.mark.parametrize("call", CALLS)
def test_stopped_at_each_call(accepting: Callable[..., Accepting], tmp_path: Path, call: str) -> None:
    probe = accepting()
    skipped = _first(tmp_path / "probe", probe.port, call, tmp_path / "trace")
    stopped = 0
    for number in range(skipped + 1, skipped + WHOLE_CALLS_MAX):
        server, run = accepting(), tmp_path / f"{call}{number}"
        done = _drive(run, server.port, "-o", "/dev/null", "-e", f"inject={call}:signal=SIGKILL:when={number}")
        if done.returncode == 0:
            break  # there are no more such calls
        stopped += 1
        arrived = len(server.inbox.mails)
        wrote = bool(list(run.glob("mail/*.eml")))
        noted = (run / "mail" / "told.jsonl").exists() and b'"sent"' in (run / "mail" / "told.jsonl").read_bytes()
        target = delivery.Server("127.0.0.1", server.port, "none")
        results = spool.flush(str(tmp_path), target, time.monotonic() + 20)
        assert [result.outcome for result in results] == (["sent"] if wrote else []), (call, number, results)
        # A mail is either whole in the spool, or was never promised: put() had not returned. What a note says to have
        # been taken is not sent again.
        mails = server.inbox.mails
        assert len(mails) == arrived + (wrote and not noted)
        assert arrived <= 1
        for mail in mails:
            assert b"begin" in mail
            assert b"end\r\n" in mail
            assert b"<only@example.org>" in mail
        if arrived and wrote:  # accepted, but not yet removed: the one duplicate that nobody can rule out
            assert call in ("sendto", "unlink", "write", "openat", "fsync", "flock")
        assert not list(run.glob("mail/*.eml"))
    else:
        pytest.fail("the driver never came to its end")
    assert stopped, f"no {call} was met"


def test_nothing_is_sent_or_renamed_before_it_is_on_the_disk(
    accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    server, trace = accepting(), tmp_path / "trace"
    done = _drive(tmp_path / "run", server.port, "-y", "-o", str(trace), "-e", "trace=fsync,rename,unlink,connect")
    assert done.returncode == 0
    told = []
    for line in trace.read_text().splitlines():
        found = re.search(r"(fsync|rename|unlink|connect)\((.*)", line)
        if found and (str(tmp_path / "run") in line or f"htons({server.port})" in line):
            what = found[2].replace(str(tmp_path / "run"), "").split(")")[0]
            told.append((found[1], re.sub(r"\d+\.tmp|\d+<|[<>\"]", "", what).strip()))
    names = [call for call, _ in told]
    at = {
        name: [i for i, (call, what) in enumerate(told) if call == "rename" and name in what]
        for name in (".json", ".eml")
    }
    # File synced, renamed, directory synced; for the envelope first, then for the mail; only then the server.
    for name in (".json", ".eml"):
        (renamed,) = at[name]
        assert told[renamed - 1][0] == "fsync"
        assert name in told[renamed - 1][1]
        assert "fsync" in names[renamed + 1 : renamed + 3]
    connected = names.index("connect")
    assert at[".json"][0] < at[".eml"][0] < connected
    assert told[connected - 1][0] == "fsync"
    assert names.index("unlink") > connected
    assert names[-1] == "fsync"
