"""Webhook and services: each told by itself, none able to hurt another or the run."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import Any

import fast_mail_parser
import pytest
from apprise.plugins.discord import NotifyDiscord
from apprise.plugins.slack import NotifySlack
from apprise.plugins.telegram import NotifyTelegram
from conftest import Gpualert
from notify.failing import environment_for, fail
from notify.receivers import Receiver
from notify.servers import Accepting, silent

from gpualert.notify import services
from gpualert.notify.notice import Notice
from gpualert.notify.outcome import Told

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


def _told(done: Any) -> dict[str, tuple[str, str]]:
    return {n["channel"]: (n["outcome"], n["detail"]) for n in done.json("report.json")["notifications"]}


def test_a_webhook_gets_the_report_signed(plain: Gpualert, receiving: Callable[..., Receiver], tmp_path: Path) -> None:
    server = receiving()
    (tmp_path / "secret").write_text(SECRET + "\n")
    done = fail(plain, {
        "GPUALERT_WEBHOOK_URL": f"http://127.0.0.1:{server.port}/hooks/T0P-53CR3T?x=1",
        "GPUALERT_WEBHOOK_SECRET_FILE": str(tmp_path / "secret"),
    })  # fmt: skip
    assert (done.returncode, _told(done)) == (3, {"webhook": ("sent", "")})
    assert done.said[-1].endswith(" · posted to http://127.0.0.1")
    assert server.paths == ["/hooks/T0P-53CR3T?x=1"]
    headers, body = server.headers[0], server.bodies[0]
    told = json.loads(body)
    assert (told["type"], told["data"]["diagnosis"]["class"], told["data"]["run"]["name"]) == (
        "run.failed", "cuda_oom", "llama-7b",
    )  # fmt: skip
    # As the Standard Webhooks specification has it, worked out here by itself.
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(base64.b64decode(SECRET.removeprefix("whsec_")), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    for path in done.run_dir.rglob("*"):
        assert not path.is_file() or b"T0P-53CR3T" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("answers", "outcome", "posts"),
    [
        ((503,), ("sent", ""), 2),
        ((500, 429, 502), ("failed", "it answered 502"), 3),
        ((404,), ("failed", "it answered 404"), 1),
        ((302,), ("failed", "it answered 302"), 1),
    ],
)
def test_what_may_pass_is_tried_again(
    plain: Gpualert, receiving: Callable[..., Receiver], answers: tuple[int, ...], outcome: tuple[str, str], posts: int
) -> None:
    server = receiving(*answers)
    done = fail(plain, {"GPUALERT_WEBHOOK_URL": f"http://127.0.0.1:{server.port}/"})
    assert (done.returncode, _told(done)["webhook"], len(server.bodies)) == (3, outcome, posts)
    assert len({headers["webhook-id"] for headers in server.headers}) == 1


def test_a_webhook_over_tls_wants_a_certificate_that_is_trusted(
    plain: Gpualert, receiving: Callable[..., Receiver]
) -> None:
    server = receiving(tls=True)
    url = f"https://localhost:{server.port}/"
    done = fail(plain, {"GPUALERT_WEBHOOK_URL": url})
    assert _told(done)["webhook"] == ("failed", "its certificate is not valid (self-signed certificate)")
    assert server.bodies == []
    done = fail(plain, {"GPUALERT_WEBHOOK_URL": url, "GPUALERT_WEBHOOK_CA_FILE": str(server.ca_file)})
    assert _told(done)["webhook"] == ("sent", "")
    done = fail(plain, {"GPUALERT_WEBHOOK_URL": url, "GPUALERT_WEBHOOK_CA_FILE": "/nowhere.pem"})
    assert _told(done)["webhook"][1].startswith("webhook.ca_file /nowhere.pem cannot be used")


@pytest.mark.parametrize("url", ["ftp://x/", "nonsense", "http://", "http://[::1/"])
def test_a_bad_url_is_said(plain: Gpualert, url: str) -> None:
    done = fail(plain, {"GPUALERT_WEBHOOK_URL": url})
    assert done.returncode == 3
    assert _told(done)["webhook"][0] in ("skipped", "failed")


def test_services_by_url(plain: Gpualert, receiving: Callable[..., Receiver], tmp_path: Path) -> None:
    server = receiving()
    (tmp_path / "urls").write_text(f"# chats\n\njson://127.0.0.1:{server.port}/from-file\n")
    done = fail(plain, {
        "GPUALERT_NOTIFY_URLS": f"ntfy://127.0.0.1:{server.port}/t0p1c-53cr3t, json://127.0.0.1:{server.port}/a,b",
        "GPUALERT_NOTIFY_URLS_FILE": str(tmp_path / "urls"),
    })  # fmt: skip
    assert done.returncode == 3
    outcomes = [(n["channel"], n["outcome"]) for n in done.json("report.json")["notifications"]]
    assert outcomes == [("ntfy", "sent"), ("JSON", "sent"), ("JSON", "sent")]
    assert sorted(path.strip("/") for path in server.paths) == ["", "a%2Cb", "from-file"]
    told = [json.loads(body) for body in server.bodies]
    assert all("[gpualert] llama-7b failed: cuda_oom" in t["title"] for t in told)
    assert all("CUDA out of memory" in t["message"] and "try: PYTORCH" in t["message"] for t in told)
    for path in done.run_dir.rglob("*"):
        assert not path.is_file() or b"53cr3t" not in path.read_bytes(), path


def test_what_is_wrong_with_a_service_is_said_without_its_secret(
    plain: Gpualert, receiving: Callable[..., Receiver]
) -> None:
    refusing = receiving(500, 500, 500)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = probe.getsockname()[1]
    done = fail(plain, {
        "GPUALERT_NOTIFY_URLS": f"json://127.0.0.1:{refusing.port}/p4th-53cr3t json://127.0.0.1:{closed}/p4th-53cr3t "
        "nosuch://53cr3t-token",
        "GPUALERT_NOTIFY_URLS_FILE": "/nowhere",
    })  # fmt: skip
    outcomes = [(n["channel"], n["outcome"]) for n in done.json("report.json")["notifications"]]
    assert outcomes == [("notify", "failed"), ("JSON", "failed"), ("JSON", "failed"), ("nosuch", "skipped")]
    details = [n["detail"] for n in done.json("report.json")["notifications"]]
    assert details[0] == "notify.urls_file cannot be read (No such file or directory)"
    assert all(details)
    assert (
        b"53cr3t" not in done.file("report.json") + done.file("report.html") + done.file("reporter.log") + done.stderr
    )


LOGGED = "ValueError: <module> & <b>x</b> @everyone <!channel> <@U123> <@&55> @here <!here|x> a@example.org"
UNCALLED = (
    "ValueError: <module> & <b>x</b> @\u200beveryone <!\u200bchannel> <@\u200bU123> <@\u200b&55> @\u200bhere "
    "<!\u200bhere|x> a@example.org"
)


def _notice() -> Notice:
    report: dict[str, Any] = {"run": {"run_id": "r"}, "exit": {"exit_code": 1}, "diagnosis": {"class": "traceback"}}
    return Notice("ended", report, f"[gpualert] x failed: {LOGGED}", f"> {LOGGED}", "", "")


def _call(url: str) -> Told:
    (told,) = services.call(url, 1, _notice(), time.monotonic() + 30)
    return told


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # Apprise looks for it
def test_a_log_is_text_for_every_chat_and_calls_nobody(
    receiving: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = receiving(answer=b"ok")  # as Slack says it; the others do not read it
    here = f"http://127.0.0.1:{server.port}"
    monkeypatch.setattr(NotifyTelegram, "notify_url", f"{here}/bot")
    monkeypatch.setattr(NotifySlack, "webhook_url", here)
    monkeypatch.setattr(NotifyDiscord, "notify_url", here)
    for url in ("tgram://123456789:abcdefg_hijklmnop/12315544/", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#ml",
                f"discord://{'i' * 24}/{'t' * 64}", f"json://127.0.0.1:{server.port}/"):  # fmt: skip
        assert _call(url).outcome == "sent", url
    telegram, slack, discord, plain_text = (json.loads(body) for body in server.bodies)
    assert telegram["parse_mode"] == "HTML"
    assert unescape(telegram["text"]).count(UNCALLED) == 2
    assert not re.search(r"<(module|b>x|[!@])", telegram["text"])
    shown = json.dumps(slack, ensure_ascii=False)
    assert unescape(unescape(shown)).count(UNCALLED) >= 1
    assert not re.search(r"<[!@#]", shown)
    assert UNCALLED in json.dumps(discord, ensure_ascii=False)
    assert "allowed_mentions" not in discord
    assert (plain_text["title"], plain_text["message"]) == (f"[gpualert] x failed: {UNCALLED}", f"> {UNCALLED}")


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # Apprise looks for it
def test_each_service_is_told_what_is_wrong_with_itself_alone(receiving: Callable[..., Receiver]) -> None:
    slow, refusing = receiving(403, hold_s=1.0), receiving(500)
    with ThreadPoolExecutor(2) as pool:
        urls = [f"json://127.0.0.1:{slow.port}/", f"form://127.0.0.1:{refusing.port}/"]
        first, second = pool.map(_call, urls)
    assert (first.outcome, second.outcome) == ("failed", "failed")
    assert (first.channel, second.channel) == ("JSON", "Form")
    assert "JSON" in first.detail
    assert "Form" not in first.detail
    assert "JSON" not in second.detail


def test_one_channel_that_hangs_costs_no_other(
    plain: Gpualert,
    accepting: Callable[..., Accepting],
    receiving: Callable[..., Receiver],
    misbehaving: Callable[[Callable[[socket.socket], None]], int],
) -> None:
    server, hook, hanging = accepting(), receiving(), misbehaving(silent)
    environment = environment_for(
        server.port,
        GPUALERT_WEBHOOK_URL=f"http://127.0.0.1:{hook.port}/",
        GPUALERT_NOTIFY_URLS=f"json://127.0.0.1:{hanging}/ json://127.0.0.1:{hook.port}/",
    )
    done = fail(plain, environment, "--report-deadline", "5s")
    assert done.returncode == 3
    outcomes = [n["outcome"] for n in done.json("report.json")["notifications"]]
    assert outcomes == ["sent", "sent", "failed", "sent"]
    assert (len(server.inbox.mails), len(hook.bodies)) == (1, 2)


def test_a_success_tells_nobody_unless_asked(plain: Gpualert, receiving: Callable[..., Receiver]) -> None:
    server = receiving()
    environment = {"GPUALERT_WEBHOOK_URL": f"http://127.0.0.1:{server.port}/"}
    assert plain.run(["true"], env=environment).returncode == 0
    assert server.bodies == []
    assert plain.run(["true"], "--notify", "always", env=environment).returncode == 0
    assert [json.loads(body)["type"] for body in server.bodies] == ["run.succeeded"]


def test_a_run_that_goes_on_tells_how_it_is_doing(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    script = "for i in $(seq 130); do echo step $i loss 1.0; sleep 0.1; done; exit 3"
    options = ("--name", "long-job", "--notify-start", "--progress-every", "10s")
    done = plain.run(["sh", "-c", script], *options, env=environment_for(server.port))
    assert done.returncode == 3
    mails = [fast_mail_parser.parse_email(mail) for mail in server.inbox.mails]
    subjects = [mail.subject for mail in mails]
    assert len(subjects) == 3
    assert subjects[0] == "[gpualert] long-job started"
    assert re.fullmatch(r"\[gpualert\] long-job is running since \d+s: step \d+", subjects[1])
    assert subjects[2].startswith("[gpualert] long-job failed: ")
    assert "step 9" in mails[1].text_plain[0]
    assert re.search(r"(?m)^ *progress +step \d+, loss 1(?:, [\d.]+ \S+)?\r?$", mails[1].text_plain[0])
    assert re.search(r"got to step 130(?:,|$)", mails[2].text_plain[0])
    assert "output" in mails[1].text_plain[0]
    # One thread, and no id twice.
    assert len({mail.headers["References"][0] for mail in mails}) == 1
    assert len({mail.headers["Message-ID"][0] for mail in mails}) == 3


def test_reruns_and_ranks_of_a_job_are_one_thread(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    for rank in ("0", "1"):
        fail(plain, environment_for(server.port, RANK=rank, GPUALERT_JOB_NAME="llama", GPUALERT_POD_NAMESPACE="ml"))
    fail(plain, environment_for(server.port, GPUALERT_JOB_NAME="other", GPUALERT_POD_NAMESPACE="ml"))
    headers = [fast_mail_parser.parse_email(mail).headers for mail in server.inbox.mails]
    threads = [h["References"][0] for h in headers]
    assert threads[0] == threads[1] != threads[2]
    assert threads == [h["In-Reply-To"][0] for h in headers]
    assert len({h["Message-ID"][0] for h in headers}) == 3
