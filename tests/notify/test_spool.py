"""The spool: every mail is kept until a server has taken it, and sent once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import fast_mail_parser
import pytest
from conftest import PYTHON, Completed, Gpualert, run_dirs, wait_until
from notify.failing import environment_for, fail, flush, spool
from notify.servers import Accepting

from gpualert.notify import spool as spooling


def test_no_server_at_all_spools(plain: Gpualert) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    assert len(spool(done)) == 1
    assert "mail spooled (smtp.host is not set)" in done.said[-1]


def test_nothing_is_sent_after_we_have_given_up(
    plain: Gpualert, accepting: Callable[..., Accepting], misbehaving: Callable[[Callable[[socket.socket], None]], int]
) -> None:
    server = accepting("tls")

    def slowly(connection: socket.socket) -> None:
        """A relay that lets a conversation through, late."""
        with socket.create_connection(("127.0.0.1", server.port)) as inner:
            time.sleep(2.5)
            connection.settimeout(0.05)
            inner.settimeout(0.05)
            until = time.monotonic() + 20
            while time.monotonic() < until:
                for source, target in ((connection, inner), (inner, connection)):
                    try:
                        data = source.recv(65536)
                    except TimeoutError:
                        continue
                    if not data:
                        return
                    target.sendall(data)

    done = fail(
        plain,
        environment_for(misbehaving(slowly), "tls", GPUALERT_SMTP_CA_FILE=str(server.ca_file)),
        "--report-deadline",
        "4s",
    )
    assert len(spool(done)) + len(server.inbox.mails) == 1
    second = accepting()
    flush(plain, environment_for(second.port))
    assert len(server.inbox.mails) + len(second.inbox.mails) == 1


def test_some_recipients_refused_others_served(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    server.inbox.refuse = {"gone@example.org": "550 no such user", "busy@example.org": "451 later"}
    environment = environment_for(
        server.port, GPUALERT_EMAIL_TO="a@example.org,gone@example.org,busy@example.org,no address"
    )
    done = fail(plain, environment)
    assert server.inbox.envelopes[0][1] == ["a@example.org"]
    notes = {tuple(n["to"]): (n["outcome"], n["detail"]) for n in done.json("report.json")["notifications"]}
    assert notes[("no address",)] == ("skipped", "is not a mail address")
    outcome, detail = notes[("a@example.org",)]
    assert (outcome, "gone@example.org (550" in detail, "later: busy@example.org" in detail) == ("sent", True, True)
    server.inbox.refuse = {}
    assert flush(plain, environment).returncode == 0
    assert server.inbox.envelopes[1][1] == ["busy@example.org"]
    assert spool(done) == []


def test_flush_sends_what_is_left_exactly_once_also_two_at_a_time(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    for _ in range(3):
        done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    server = accepting()
    server.inbox.hold_s = 0.3
    environment = environment_for(server.port)
    argv = [PYTHON, "-I", "-m", "gpualert", "flush", "--log-dir", str(plain.log_dir)]
    both = [subprocess.Popen(argv, env={**plain._environment(None), **environment}) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(server.inbox.mails) == 3
    assert len({fast_mail_parser.parse_email(m).headers["Message-ID"][0] for m in server.inbox.mails}) == 3
    assert spool(done) == []
    assert flush(plain, environment).stdout == b"nothing is waiting to be sent\n"


def test_a_flush_that_is_killed_loses_nothing(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    server = accepting()
    server.inbox.hold_s = 600
    argv = [PYTHON, "-I", "-m", "gpualert", "flush", "--log-dir", str(plain.log_dir)]
    process = subprocess.Popen(argv, env={**plain._environment(None), **environment_for(server.port)})
    wait_until(lambda: server.inbox.receiving == 1, "the mail to be on its way")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(spool(done)) == 1
    server.inbox.hold_s = 0
    second = accepting()
    assert flush(plain, environment_for(second.port)).returncode == 0
    assert len(second.inbox.mails) == 1


def test_a_poisoned_spool_file_stops_nothing_else(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    mail = done.run_dir / "mail"
    (mail / "0empty.eml").write_bytes(b"")
    (mail / "0empty.json").write_text('{"from": "a@b.c", "to": ["x@y.z"]}')
    (mail / "0foreign.eml").write_bytes(b"\xff" * 100)
    (mail / "0broken.eml").write_bytes(b"Subject: x\r\n\r\n")
    (mail / "0broken.json").write_text("{")
    os.mkfifo(mail / "0fifo.eml")
    (mail / "0header.eml").write_bytes(b"Message-ID: <\r\nSubject: x\r\n\r\nx")
    (mail / "0header.json").write_text('{"from": "a@b.c", "to": ["x@y.z"]}')
    server = accepting()
    flushed = flush(plain, environment_for(server.port))
    assert [rcpt for _, rcpts in server.inbox.envelopes for rcpt in rcpts].count("a@example.org") == 1
    assert flushed.returncode == 1
    assert flushed.stdout.count(b"broken: ") + flushed.stdout.count(b"sent to x@y.z") == 5
    assert b"Traceback" not in flushed.stderr


def test_a_mail_that_was_interrupted_with_its_run_is_sent_once_by_the_survivor(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    server = accepting()
    environment = environment_for(server.port)
    process = subprocess.Popen(
        plain.argv([], ["sh", "-c", "echo ready; sleep 60"]),
        env={**plain._environment(None), **environment},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: any(b"ready" in p.read_bytes() for p in plain.log_dir.glob("2*/output.log")), "output")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(2):
        plain.run(["true"], env=environment)
    wait_until(lambda: len(server.inbox.mails) >= 1, "the survivor's mail")
    wait_until(lambda: list((plain.log_dir / ".open").iterdir()) == [], "the sweeps to end")
    plain.run(["true"], env=environment)
    assert len(server.inbox.mails) == 1
    assert "lost" in fast_mail_parser.parse_email(server.inbox.mails[0]).subject


def _age(done: Completed, **fields: float) -> None:
    """Make the waiting mail's envelope older."""
    (path,) = (done.run_dir / "mail").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_next_run_sends_what_has_waited_long_enough(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    first = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    server = accepting()
    environment = environment_for(server.port)
    fail(plain, environment)
    assert len(server.inbox.mails) == 1  # a minute has not gone by
    (envelope,) = (run_dirs(plain.log_dir)[0] / "mail").glob("*.json")
    envelope.write_text(json.dumps({**json.loads(envelope.read_text()), "last_try_at": time.time() - 61}))
    fail(plain, environment)
    wait_until(lambda: len(server.inbox.mails) == 3, "the earlier run's mail")
    assert list((run_dirs(plain.log_dir)[0] / "mail").iterdir()) == []
    assert first.returncode == 3


@pytest.mark.parametrize(("attempts", "pause"), [(1, 60), (2, 120), (3, 240), (20, 4 * 3600)])
def test_pauses_grow(plain: Gpualert, tmp_path: Path, attempts: int, pause: float) -> None:
    mail = tmp_path / "m.eml"
    for ago, due in ((pause - 5, False), (pause + 5, True), (-3600, True)):
        told = {"from": "a@b.c", "to": ["x@y.z"], "attempts": attempts, "last_try_at": time.time() - ago}
        mail.with_suffix(".json").write_text(json.dumps(told))
        assert spooling.is_due(str(mail)) is due


def test_what_nobody_takes_expires_with_a_trace(plain: Gpualert) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    _age(done, spooled_at=time.time() - 8 * 86400)
    flushed = flush(plain, {})
    assert flushed.returncode == 1
    assert b"expired to a@example.org: " in flushed.stdout
    assert b"email.keep" in flushed.stdout
    kept = sorted(path.suffix for path in (done.run_dir / "mail").iterdir())
    assert kept == [".expired", ".json"]
    assert flush(plain, {}).stdout == b"nothing is waiting to be sent\n"


def test_flush_watch_goes_on_until_it_is_told_to_end(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    argv = [PYTHON, "-I", "-m", "gpualert", "flush", "--watch", "--every", "0.2s", "--format", "json",
            "--log-dir", str(plain.log_dir)]  # fmt: skip
    plain.log_dir.mkdir()
    watching = subprocess.Popen(
        argv, env={**plain._environment(None), **environment_for(server.port)}, stdout=subprocess.PIPE
    )
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    _age(done, last_try_at=0)
    wait_until(lambda: len(server.inbox.mails) == 1, "the mail")
    watching.terminate()
    said, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert [json.loads(line)["outcome"] for line in said.splitlines()] == ["sent"]
    assert spool(done) == []


def test_a_newer_progress_mail_takes_the_place_of_one_that_waits(plain: Gpualert) -> None:
    script = "for i in $(seq 215); do echo step $i; sleep 0.1; done"
    done = plain.run(["sh", "-c", script], "--progress-every", "10s", env={"GPUALERT_EMAIL_TO": "a@example.org"})
    assert done.returncode == 0
    assert [path.name for path in spool(done)] == ["progress.eml"]
    assert b"since 20s" in spool(done)[0].read_bytes()
