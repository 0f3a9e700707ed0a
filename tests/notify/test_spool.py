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
from notify.servers import Accepting, dialogue

from gpualert.notify import spool as spooling
from gpualert.notify.message import POLICY


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
    assert notes[("a@example.org",)][0] == "sent"
    assert notes[("gone@example.org",)] == ("failed", "gone@example.org: 550 no such user")
    assert notes[("busy@example.org",)] == ("spooled", "busy@example.org: 451 later")
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
    assert [path.name for path in (run_dirs(plain.log_dir)[0] / "mail").iterdir()] == ["told.jsonl"]
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
    assert kept == [".expired", ".json", ".jsonl"]
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
    assert [path.name.rpartition("-")[0] for path in spool(done)] == ["progress"]
    assert b"is running since 2" in spool(done)[0].read_bytes()


POISON = {
    "0inf": '{"from": "a@b.c", "to": ["x@y.z"], "attempts": 1e999}',
    "0nan": '{"from": "a@b.c", "to": ["x@y.z"], "attempts": 1, "last_try_at": NaN}',
    "0deep": "[" * 200_000,
    "0text": '{"from": "a@b.c", "to": ["x@y.z"], "attempts": "many"}',
    "0nobody": '{"from": "a@b.c", "to": []}',
    "0big": '{"from": "a@b.c", "to": ["' + "x" * (2 << 20) + '@y.z"]}',
    "0list": "[1]",
}
"""Envelopes that are none."""


def _poison(mail: Path) -> None:
    for name, content in POISON.items():
        (mail / f"{name}.eml").write_bytes(b"Message-ID: <x@y>\r\nSubject: x\r\n\r\nx\r\n")
        (mail / f"{name}.json").write_text(content)
    for name in ("0fifo", "0link", "0directory"):
        (mail / f"{name}.eml").write_bytes(b"Message-ID: <x@y>\r\n\r\nx\r\n")
    os.mkfifo(mail / "0fifo.json")
    (mail / "0link.json").symlink_to("/dev/zero")
    (mail / "0directory.json").mkdir()


def _attend(plain: Gpualert) -> list[str]:
    return [PYTHON, "-I", "-m", "gpualert", "attend", "--every", "0.1s", "--log-dir", str(plain.log_dir)]


def _watch(plain: Gpualert) -> list[str]:
    return [PYTHON, "-I", "-m", "gpualert", "flush", "--watch", "--every", "0.1s", "--log-dir", str(plain.log_dir)]


@pytest.mark.parametrize("command", [_attend, _watch])
def test_poisoned_envelopes_stop_no_automatic_sending_and_are_said_once(
    plain: Gpualert, accepting: Callable[..., Accepting], command: Callable[[Gpualert], list[str]]
) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    _age(done, attempts=0)
    _poison(done.run_dir / "mail")
    server = accepting()
    process = subprocess.Popen(
        command(plain),
        env={**plain._environment(None), **environment_for(server.port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    wait_until(lambda: len(server.inbox.mails) == 1, "the mail")
    second = fail(plain, {"GPUALERT_EMAIL_TO": "b@example.org"})  # several more looks meanwhile
    _age(second, attempts=0)
    wait_until(lambda: len(server.inbox.mails) == 2, "the second mail")
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Traceback" not in said
    for name in (*POISON, "0fifo", "0link", "0directory"):
        assert said.count(f"/{name}.eml".encode()) == 1, (name, said)


def test_poisoned_envelopes_stop_no_next_run(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    _age(done, attempts=0)
    _poison(done.run_dir / "mail")
    server = accepting()
    fail(plain, environment_for(server.port))
    wait_until(lambda: len(server.inbox.mails) == 2, "the earlier run's mail")


@pytest.fixture
def failed_volume(plain: Gpualert, tmp_path: Path) -> Gpualert:
    """gpualert whose log directory cannot be made; its temporary directories are the test's own."""
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    return Gpualert(tmp_path / "file" / "logs", environment={"TMPDIR": str(tmp_path / "temporary")})


def _wait_in_a_temporary_directory(failed_volume: Gpualert, tmp_path: Path) -> Path:
    done = failed_volume.run(["false"], env={"GPUALERT_EMAIL_TO": "a@example.org"})
    assert "gpualert flush" in done.said[-1]
    (mail,) = (tmp_path / "temporary").glob("gpualert-*/2*/mail/*.eml")
    envelope = mail.with_suffix(".json")
    envelope.write_text(json.dumps({**json.loads(envelope.read_text()), "attempts": 0}))
    return mail


def _flush(plain: Gpualert, environment: dict[str, str]) -> None:
    flush(plain, environment)


def _next_run(plain: Gpualert, environment: dict[str, str]) -> None:
    plain.run(["sh", "-c", "exit 1"], env={**environment, "GPUALERT_EMAIL_TO": "b@example.org"})


def _attend_once(plain: Gpualert, environment: dict[str, str]) -> None:
    plain.log_dir.mkdir()
    process = subprocess.Popen(_attend(plain), env={**plain._environment(None), **environment})
    wait_until(lambda: not list(Path(environment["TMPDIR"]).glob("gpualert-*/2*/mail/*.eml")), "the mail to go")
    process.terminate()
    process.wait(60)


@pytest.mark.parametrize("by", [_flush, _next_run, _attend_once])
def test_what_waits_in_a_temporary_directory_is_sent_too(
    failed_volume: Gpualert,
    plain: Gpualert,
    accepting: Callable[..., Accepting],
    tmp_path: Path,
    by: Callable[[Gpualert, dict[str, str]], None],
) -> None:
    mail = _wait_in_a_temporary_directory(failed_volume, tmp_path)
    server = accepting()
    by(plain, {**failed_volume.environment, **environment_for(server.port)})
    wait_until(lambda: not mail.exists(), "the mail to go")
    assert ["a@example.org"] in [recipients for _, recipients in server.inbox.envelopes]


def test_a_temporary_directory_that_others_may_write_is_none_of_ours(
    failed_volume: Gpualert, plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    mail = _wait_in_a_temporary_directory(failed_volume, tmp_path)
    ours = mail.parent.parent.parent
    server = accepting()
    environment = {**failed_volume.environment, **environment_for(server.port)}
    ours.chmod(0o777)
    flush(plain, environment)
    ours.chmod(0o700)
    ours.rename(tmp_path / "elsewhere")
    ours.symlink_to(tmp_path / "elsewhere")
    flush(plain, environment)
    assert server.inbox.mails == []


def test_a_mail_that_comes_while_the_older_is_sent_is_not_lost(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    server = accepting()
    server.inbox.hold_s = 1.0
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    (path,) = spool(done)
    message = path.read_bytes()
    argv = [PYTHON, "-I", "-m", "gpualert", "flush", "--log-dir", str(plain.log_dir)]
    process = subprocess.Popen(argv, env={**plain._environment(None), **environment_for(server.port)})
    wait_until(lambda: server.inbox.receiving == 1, "the mail to be on its way")
    import email
    from email.message import EmailMessage

    newer = email.message_from_bytes(message.replace(b"llama-7b", b"newer-one"), policy=POLICY)
    assert isinstance(newer, EmailMessage)
    name = path.stem.rpartition("-")[0]
    second = spooling.put(str(done.run_dir), newer, "g@example.org", ["b@example.org"], name)
    assert process.wait(60) == 0
    assert [str(left) for left in spool(done)] == [second]
    server.inbox.hold_s = 0
    flush(plain, environment_for(server.port))
    assert [recipients for _, recipients in server.inbox.envelopes] == [["a@example.org"], ["b@example.org"]]
    assert spool(done) == []


def test_a_newer_mail_of_the_same_name_takes_the_older_ones_place(plain: Gpualert) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    (path,) = spool(done)
    import email
    from email.message import EmailMessage

    same = email.message_from_bytes(path.read_bytes(), policy=POLICY)
    assert isinstance(same, EmailMessage)
    second = spooling.put(str(done.run_dir), same, "g@example.org", ["b@example.org"], path.stem.rpartition("-")[0])
    assert [str(left) for left in spool(done)] == [second]
    assert len(list((done.run_dir / "mail").glob("*.json"))) == 1


def test_a_spool_of_an_earlier_version_is_sent(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    (path,) = spool(done)
    name = path.stem.rpartition("-")[0]
    path.with_suffix(".json").unlink()
    path.rename(path.with_name(f"{name}.eml"))
    old = {"from": "g@example.org", "to": ["x@example.org"], "attempts": 3, "spooled_at": time.time(),
           "last_error": "no", "last_try_at": time.time()}  # fmt: skip
    path.with_name(f"{name}.json").write_text(json.dumps(old))
    server = accepting()
    assert flush(plain, environment_for(server.port)).returncode == 0
    assert [recipients for _, recipients in server.inbox.envelopes] == [["x@example.org"]]
    assert {file.suffix for file in (done.run_dir / "mail").iterdir()} == {".jsonl"}


def _shown(plain: Gpualert, done: Completed) -> str:
    argv = [PYTHON, "-I", "-m", "gpualert", "report", str(done.run_dir)]
    return subprocess.run(argv, env=plain._environment(None), capture_output=True, check=True).stdout.decode()


def test_the_report_tells_of_what_was_sent_later(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org,nobody at all"})
    assert "spooled      a@example.org" in _shown(plain, done)
    flush(plain, environment_for(accepting().port))
    notes = {tuple(n["to"]): n["outcome"] for n in done.json("report.json")["notifications"]}
    assert notes == {("a@example.org",): "sent", ("nobody at all",): "skipped"}
    assert "sent         a@example.org" in _shown(plain, done)
    page = done.file("report.html").decode()
    assert "<th>sent</th>" in page
    assert "<th>spooled</th>" not in page


def test_the_report_tells_of_what_has_expired_or_failed(
    plain: Gpualert, misbehaving: Callable[[Callable[[socket.socket], None]], int]
) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    _age(done, spooled_at=time.time() - 8 * 86400)
    flush(plain, {})
    assert done.json("report.json")["notifications"][0]["outcome"] == "expired"
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    flush(plain, environment_for(misbehaving(lambda c: dialogue(c, {b"RCPT": b"550 nobody\r\n"}))))
    assert done.json("report.json")["notifications"][0]["outcome"] == "failed"
    assert "failed       a@example.org (localhost refused a@example.org: 550 nobody)" in _shown(plain, done)


def test_the_report_tells_of_each_recipient(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    server.inbox.refuse = {"busy@example.org": "451 later"}
    environment = environment_for(server.port, GPUALERT_EMAIL_TO="a@example.org,busy@example.org")
    done = fail(plain, environment)

    def told() -> dict[str, str]:
        return {who: n["outcome"] for n in done.json("report.json")["notifications"] for who in n["to"]}

    assert told() == {"a@example.org": "sent", "busy@example.org": "spooled"}
    server.inbox.refuse = {}
    assert flush(plain, environment).returncode == 0
    assert told() == {"a@example.org": "sent", "busy@example.org": "sent"}


def test_a_mail_that_waits_is_overtaken_by_the_end(plain: Gpualert) -> None:
    script = "for i in $(seq 120); do echo step $i; sleep 0.1; done; exit 1"
    done = plain.run(
        ["sh", "-c", script], "--notify-start", "--progress-every", "10s", env={"GPUALERT_EMAIL_TO": "a@example.org"}
    )
    assert done.returncode == 1
    (mail,) = spool(done)
    assert b"Subject: [gpualert] sh failed: " in mail.read_bytes()
    assert len(list((done.run_dir / "mail").iterdir())) == 2


def test_a_start_that_comes_late_is_not_told_any_more(plain: Gpualert) -> None:
    from datetime import UTC, datetime

    from gpualert.notify import tell
    from gpualert.report import building, making
    from gpualert.report.running import so_far
    from gpualert.rundir.reader import Run

    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    run = Run.read(str(done.run_dir))
    settings = making.settings_of(run, making.logger(run.path))
    settings.email.to = ["a@example.org"]
    report = building.running(so_far(run), datetime.now(UTC), making.redaction())
    told = tell(run.path, "started", report, settings, [], making.redaction(), time.monotonic() + 30, print)
    assert [entry.outcome for entry in told] == ["skipped"]
    assert len(spool(done)) == 1


def test_flush_says_what_is_wrong_with_the_configuration(plain: Gpualert, tmp_path: Path) -> None:
    plain.log_dir.mkdir()
    missing = flush(plain, {"GPUALERT_CONFIG": str(tmp_path / "none.toml")})
    assert b"gpualert: " + bytes(tmp_path / "none.toml") + b": cannot be read" in missing.stderr
    (tmp_path / "some.toml").write_text('[smtp]\nhsot = "x"\n')
    unknown = flush(plain, {"GPUALERT_CONFIG": str(tmp_path / "some.toml")})
    assert b"smtp.hsot is unknown; did you mean smtp.host?" in unknown.stderr
    assert unknown.returncode == 0
