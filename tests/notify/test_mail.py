"""The mail of a real run: whole at a server that accepts, in the spool at any other; the status is the child's."""

from __future__ import annotations

import base64
import gzip
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_mail_parser
import pytest
from conftest import PYTHON, Gpualert
from hypothesis import given, settings
from hypothesis import strategies as st
from notify.failing import SCRIPT, environment_for, fail, flush, spool
from notify.servers import MISBEHAVIOURS, REFUSING, Accepting, dialogue, line


def test_an_accepted_mail_arrives_whole(plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    (tmp_path / "metrics.json").write_text('{"loss": 1}')
    (tmp_path / "big.bin").write_bytes(os.urandom(200_000))
    environment = environment_for(
        server.port, GPUALERT_ARTIFACTS_MAX_FILE="100k", GPUALERT_NODE_NAME="gpu-17", RANK="3"
    )
    done = plain.run(
        ["sh", "-c", SCRIPT], "--name", "llama-7b", "--artifact", "*.json", "--artifact", "*.bin", "--artifact", "no/*.txt",
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.said[-1].endswith(" · mailed to oncall@example.org")
    assert server.inbox.envelopes == [("gpualert@example.org", ["oncall@example.org"])]
    assert spool(done) == []
    mail = fast_mail_parser.parse_email(server.inbox.mails[0])
    assert mail.subject.startswith("[gpualert] llama-7b failed: cuda_oom on rank 3 (gpu-17) after ")
    text = mail.text_plain[0]
    for part in ("CUDA out of memory on GPU 0, asked for 2.00 GiB", "PYTORCH_CUDA_ALLOC_CONF", 'File "train.py", line 3',
                 "step 3 loss 1.0", "metrics.json", "big.bin", "no/*.txt", "no match", "too large"):  # fmt: skip
        assert part in text, part
        assert part.replace('"', "&#34;") in mail.text_html[0] or part in mail.text_html[0], part
    files = {a.filename: a.content for a in mail.attachments}
    assert gzip.decompress(files["output.log.gz"]) == done.log
    assert json.loads(files["report.json"])["diagnosis"]["class"] == "cuda_oom"
    assert files["metrics.json"] == b'{"loss": 1}'
    assert "big.bin" not in files
    headers = {key.lower(): value for key, value in mail.headers.items()}
    assert headers["auto-submitted"] == ["auto-generated"]
    assert headers["message-id"][0].startswith("<")
    report = done.json("report.json")
    assert [(n["outcome"], n["to"]) for n in report["notifications"]] == [("sent", ["oncall@example.org"])]
    fates = {a["path"]: a["fate"] for a in report["artifacts"]}
    assert fates == {"output.log": "zipped", "metrics.json": "attached", "big.bin": "too_large", "no/*.txt": "no_match"}


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_over_tls_with_a_password(plain: Gpualert, accepting: Callable[..., Accepting], security: str) -> None:
    password = "correct horse battery"
    server = accepting(security, password=password)
    environment = environment_for(
        server.port, security, GPUALERT_SMTP_CA_FILE=str(server.ca_file), GPUALERT_SMTP_USERNAME="bot",
        GPUALERT_SMTP_PASSWORD=password,
    )  # fmt: skip
    done = fail(plain, environment)
    assert done.returncode == 3
    assert (len(server.inbox.mails), server.inbox.logins) == (1, ["bot"]), done.stderr
    for path in done.run_dir.rglob("*"):
        assert not path.is_file() or password.encode() not in path.read_bytes(), path
    assert password.encode() not in server.inbox.mails[0]


def test_a_wrong_password_is_said_without_being_shown(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting("starttls", password="right")
    environment = environment_for(
        server.port, "starttls", GPUALERT_SMTP_CA_FILE=str(server.ca_file), GPUALERT_SMTP_USERNAME="bot",
        GPUALERT_SMTP_PASSWORD="wrong-password",
    )  # fmt: skip
    done = fail(plain, environment)
    assert (done.returncode, len(spool(done))) == (3, 1)
    assert "mail spooled (localhost refused the login of bot (535))" in done.said[-1]
    assert b"wrong-password" not in done.stderr + done.file("report.json") + done.file("reporter.log")


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_a_server_that_misbehaves_costs_nothing_but_the_mail(
    gpualert: Gpualert, misbehaving: Callable[[Callable[[socket.socket], None]], int], name: str
) -> None:
    port = misbehaving(MISBEHAVIOURS[name])
    done = fail(gpualert, environment_for(port), "--report-deadline", "8s")
    assert done.returncode == 3
    fate, ending = ("failed", "*.failed") if name in REFUSING else ("spooled", "*.eml")
    assert len(list((done.run_dir / "mail").glob(ending))) == 1
    own = [line for line in done.stderr.decode().splitlines() if "gpualert" in line]
    assert own == done.said
    assert f"mail {fate} (" in done.said[-1]
    notification = done.json("report.json")["notifications"][0]
    assert (notification["outcome"], bool(notification["detail"])) == (fate, True)


def test_a_refused_connection_and_an_unknown_name(plain: Gpualert) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed_port = probe.getsockname()[1]
    done = fail(plain, environment_for(closed_port))
    assert (done.returncode, len(spool(done))) == (3, 1)
    assert "mail spooled (localhost: Connection refused); gpualert flush" in done.said[-1]


def test_plain_text_is_never_used_when_starttls_was_asked_for(
    plain: Gpualert, misbehaving: Callable[[Callable[[socket.socket], None]], int]
) -> None:
    seen: list[bytes] = []

    def without_starttls(connection: socket.socket) -> None:
        connection.sendall(b"220 hello\r\n")
        while True:
            seen.append(line(connection))
            connection.sendall(b"250 fine\r\n")

    done = fail(plain, environment_for(misbehaving(without_starttls), "starttls"))
    assert (done.returncode, len(spool(done))) == (3, 1)
    assert "offers no STARTTLS" in done.said[-1]
    assert not any(command.upper().startswith((b"MAIL", b"AUTH", b"DATA")) for command in seen)


def test_a_server_that_refuses_starttls_gets_no_mail(
    plain: Gpualert, misbehaving: Callable[[Callable[[socket.socket], None]], int]
) -> None:
    answers = {b"EHLO": b"250-me\r\n250 STARTTLS\r\n", b"STARTTLS": b"454 not now\r\n"}
    done = fail(plain, environment_for(misbehaving(lambda c: dialogue(c, answers)), "starttls"))
    assert (done.returncode, len(spool(done))) == (3, 1)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({}, "certificate of localhost is not valid"),
        ({"host": "other.example.org"}, "certificate of localhost is not valid"),
        ({"days": -10}, "certificate of localhost is not valid"),
    ],
)
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_bad_certificate_is_refused(
    plain: Gpualert, accepting: Callable[..., Accepting], security: str, kind: dict[str, Any], words: str
) -> None:
    server = accepting(security, **kind)
    more = {"GPUALERT_SMTP_CA_FILE": str(server.ca_file)} if kind else {}
    done = fail(plain, environment_for(server.port, security, **more))
    assert (done.returncode, len(spool(done)), server.inbox.mails) == (3, 1, [])
    assert words in done.said[-1]


def test_a_password_is_not_sent_without_tls_except_to_ourselves(plain: Gpualert) -> None:
    environment = environment_for(
        9, "none", GPUALERT_SMTP_HOST="192.0.2.1", GPUALERT_SMTP_USERNAME="bot", GPUALERT_SMTP_PASSWORD="hunter2x"
    )
    done = fail(plain, environment, "--report-deadline", "4s")
    assert (done.returncode, len(spool(done))) == (3, 1)
    assert b"hunter2x" not in done.stderr


def test_a_server_that_echoes_the_login_does_not_bring_the_password_to_the_disk(
    plain: Gpualert, misbehaving: Callable[[Callable[[socket.socket], None]], int]
) -> None:
    password = "correct-horse"

    def echo(connection: socket.socket) -> None:
        connection.sendall(b"220 hello\r\n")
        while True:
            command = line(connection)
            if command.upper().startswith(b"EHLO"):
                connection.sendall(b"250-me\r\n250 AUTH PLAIN LOGIN\r\n")
            else:
                connection.sendall(b"535 you said " + command.strip() + b"\r\n")

    environment = environment_for(misbehaving(echo), GPUALERT_SMTP_USERNAME="bot", GPUALERT_SMTP_PASSWORD=password)
    done = fail(plain, environment)
    flushed = flush(plain, environment)
    everything = done.stderr + flushed.stdout + flushed.stderr
    everything += b"".join(path.read_bytes() for path in done.run_dir.rglob("*") if path.is_file())
    for secret in (
        password,
        base64.b64encode(f"\0bot\0{password}".encode()).decode(),
        base64.b64encode(password.encode()).decode(),
    ):
        assert secret.encode() not in everything
    assert "refused the login of bot (535)" in done.said[-1]


@pytest.mark.parametrize("password", ["pässwörd-模型", "plain-ascii"])
def test_any_password_can_be_used(plain: Gpualert, accepting: Callable[..., Accepting], password: str) -> None:
    server = accepting("starttls", password=password)
    environment = environment_for(
        server.port, "starttls", GPUALERT_SMTP_CA_FILE=str(server.ca_file), GPUALERT_SMTP_USERNAME="bot",
        GPUALERT_SMTP_PASSWORD=password,
    )  # fmt: skip
    done = fail(plain, environment)
    assert len(server.inbox.mails) == 1, done.said


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read (No such file or directory)"), ("junk", "holds no certificate")]
)
def test_a_bad_ca_file_is_named(plain: Gpualert, tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    done = fail(plain, environment_for(9, "starttls", GPUALERT_SMTP_CA_FILE=str(path)))
    assert f"smtp.ca_file {path} {words}" in done.said[-1]


def test_a_small_limit_of_the_server_drops_attachments_by_name(
    plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    (tmp_path / "noise.bin").write_bytes(os.urandom(150_000))
    server = accepting(size=60_000)
    done = plain.run(["sh", "-c", SCRIPT], "--artifact", "noise.bin", env=environment_for(server.port), cwd=tmp_path)
    assert len(server.inbox.mails[0]) <= 60_000
    mail = fast_mail_parser.parse_email(server.inbox.mails[0])
    assert "Not attached, because the server takes at most 60000 bytes: noise.bin" in mail.text_plain[0]
    assert [a.filename for a in mail.attachments] == ["report.json.gz", "output.log.gz"]
    assert "not attached: noise.bin" in done.json("report.json")["notifications"][0]["detail"]
    assert {a["path"]: a["fate"] for a in done.json("report.json")["artifacts"]}["noise.bin"] == "over_server_limit"


@pytest.mark.parametrize(
    ("when", "code", "count"), [("always", 0, 1), ("failure", 0, 0), ("never", 1, 0), ("failure", 1, 1)]
)
def test_who_is_told_when(
    plain: Gpualert, accepting: Callable[..., Accepting], when: str, code: int, count: int
) -> None:
    server = accepting()
    done = plain.run(["sh", "-c", f"exit {code}"], "--notify", when, env=environment_for(server.port))
    assert (done.returncode, len(server.inbox.mails)) == (code, count)


def test_a_dry_run_prints_and_sends_nothing(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    done = fail(plain, environment_for(server.port), "--dry-run")
    assert server.inbox.mails == []
    assert any(line.startswith("gpualert: | Subject: [gpualert] llama-7b failed: cuda_oom") for line in done.said)
    assert all(line.startswith("gpualert: ") for line in done.stderr.decode().splitlines()[4:])


def test_a_dry_run_needs_no_recipient(plain: Gpualert) -> None:
    done = fail(plain, {}, "--dry-run")
    assert done.said[0].startswith("gpualert: | From: gpualert@")
    assert "gpualert: | To: undisclosed-recipients:;" in done.said


def test_names_beyond_ascii_arrive(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    environment = environment_for(server.port, GPUALERT_EMAIL_TO="ünï@example.org,b@bücher.example")
    done = plain.run(["sh", "-c", "exit 1"], "--name", "übung-模型", env=environment)
    assert fast_mail_parser.parse_email(server.inbox.mails[0]).subject.startswith("[gpualert] übung-模型 failed: ")
    assert server.inbox.envelopes[0][1] == ["ünï@example.org", "b@xn--bcher-kva.example"]
    assert done.said[-1].endswith("mailed to ünï@example.org, b@bücher.example")
    done = plain.run(["false"], env=environment_for(server.port, GPUALERT_EMAIL_TO="b@bücher.example"))
    assert b"\r\nTo: b@xn--bcher-kva.example\r\n" in server.inbox.mails[1]


def test_addresses_beyond_ascii_wait_for_a_server_that_takes_them(
    plain: Gpualert, misbehaving: Callable[[Callable[[socket.socket], None]], int]
) -> None:
    done = fail(plain, environment_for(misbehaving(lambda c: dialogue(c, {})), GPUALERT_EMAIL_TO="ünï@example.org"))
    assert len(spool(done)) == 1
    assert "SMTPUTF8" in done.said[-1]


def test_secrets_of_the_environment_do_not_travel(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    script = "echo ValueError: token abcdef-secret-42 >&2; exit 1"
    plain.run(["sh", "-c", script], env=environment_for(server.port, WANDB_API_KEY="abcdef-secret-42"))
    mail = fast_mail_parser.parse_email(server.inbox.mails[0])
    assert "abcdef-secret-42" not in mail.text_plain[0] + mail.text_html[0] + mail.subject
    assert "[masked]" in mail.text_plain[0]


def test_check_sends_a_test_mail(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    argv = [PYTHON, "-I", "-m", "gpualert", "check", "--send-test-mail"]
    done = subprocess.run(
        argv, env={**plain._environment(None), **environment_for(server.port)}, capture_output=True, check=False
    )
    assert (done.returncode, len(server.inbox.mails)) == (0, 1), done.stderr
    assert b"localhost has taken the test mail for oncall@example.org" in done.stdout


@given(st.text(), st.text(), st.text())
@settings(max_examples=200, deadline=None)
def test_no_header_can_be_smuggled_in(name: str, node: str, cls: str) -> None:
    from gpualert.notify import message, notice

    report: dict[str, Any] = {
        "run": {"name": name, "node": node, "rank": 1, "run_id": name, "argv": [name]},
        "exit": {"exit_code": 1, "duration_s": 1.0},
        "diagnosis": {"class": cls or "x", "summary": name, "root": None, "evidence": [], "suggestions": [node],
                      "confidence": 0.5, "family": "code", "retryable": False, "node_suspect": False},
        "artifacts": [], "notifications": [], "trouble": [], "made_at": "now", "gpualert": "0", "silent_s": None,
        "quotes": {"context": [], "traceback": [], "tail": [name]},
    }  # fmt: skip
    made = notice.make("ended", report, [], "/runs/x")
    mail = message.compose(made, [], "a@example.org", ["b@example.org"])
    data = mail.as_bytes(policy=message.POLICY)
    head = data.partition(b"\r\n\r\n")[0]
    names = [line.split(b":")[0] for line in head.split(b"\r\n") if not line.startswith((b" ", b"\t"))]
    assert names == [
        b"Subject", b"From", b"To", b"Date", b"Message-ID", b"In-Reply-To", b"References", b"Auto-Submitted",
        b"X-GPUAlert-Event", b"X-GPUAlert-Run", b"X-GPUAlert-Class", b"MIME-Version", b"Content-Type",
    ]  # fmt: skip
    assert max(map(len, data.split(b"\r\n"))) <= 998
