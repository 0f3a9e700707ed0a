"""Refusals: who is refused for good is said and given up, who may be served later waits, and nobody holds up others."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable

import fast_mail_parser
import pytest
from conftest import Completed, Gpualert
from notify.failing import environment_for, fail, flush, spool
from notify.servers import Accepting, dialogue

from gpualert.notify import address, delivery
from gpualert.notify import spool as spooling

Misbehaving = Callable[[Callable[[socket.socket], None]], int]


def _told(done: Completed) -> dict[str, tuple[str, str]]:
    notes = done.json("report.json")["notifications"]
    return {who: (n["outcome"], n["detail"]) for n in notes for who in n["to"]}


@pytest.mark.parametrize(
    "answers",
    [{b"RCPT": b"550 5.1.1 nobody\r\n"}, {b"DATA": b"554 no\r\n"}, {b"DATA": b"354 go\r\n", b".": b"554 spam\r\n"}],
)
def test_a_mail_that_is_refused_for_good_is_given_up_and_said(
    plain: Gpualert, misbehaving: Misbehaving, answers: dict[bytes, bytes]
) -> None:
    done = fail(plain, environment_for(misbehaving(lambda c: dialogue(c, answers))))
    assert spool(done) == []
    assert "mail failed (localhost " in done.said[-1]
    assert _told(done)["oncall@example.org"][0] == "failed"
    (kept,) = (done.run_dir / "mail").glob("*.failed")
    assert "given up: localhost " in json.loads(kept.with_suffix(".json").read_text())["last_error"]
    assert flush(plain, {}).stdout == b"nothing is waiting to be sent\n"


@pytest.mark.parametrize(
    "answers",
    [
        {b"MAIL": b"530 5.7.0 log in first\r\n"},
        {b"RCPT": b"450 busy\r\n"},
        {b"RCPT": b"552 5.2.2 mailbox full\r\n"},
        {b"EHLO": b"554 not you\r\n", b"HELO": b"554 not you\r\n"},
        {b"MAIL": b"421 going down\r\n"},
    ],
)
def test_what_may_pass_is_kept(plain: Gpualert, misbehaving: Misbehaving, answers: dict[bytes, bytes]) -> None:
    done = fail(plain, environment_for(misbehaving(lambda c: dialogue(c, answers))))
    assert len(spool(done)) == 1
    assert _told(done)["oncall@example.org"][0] == "spooled"


def test_one_recipient_who_is_put_off_holds_up_nobody_else(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    fail(plain, {"GPUALERT_EMAIL_TO": "first@example.org"})
    fail(plain, {"GPUALERT_EMAIL_TO": "busy@example.org"})
    server = accepting()
    server.inbox.refuse = {"busy@example.org": "451 later"}
    for envelope in plain.log_dir.glob("2*/mail/*.json"):
        envelope.write_text(json.dumps({**json.loads(envelope.read_text()), "attempts": 0}))
    target = delivery.Server("127.0.0.1", server.port, "none")
    results = spooling.retry(str(plain.log_dir), target, time.monotonic() + 30)
    assert [(result.outcome, result.to) for result in results] == [
        ("spooled", ("busy@example.org",)),
        ("sent", ("first@example.org",)),
    ]


@pytest.mark.parametrize("greeting", [b"554 not you\r\n", b"421 busy\r\n"])
def test_a_server_that_is_not_to_be_had_is_asked_once(
    plain: Gpualert, misbehaving: Misbehaving, greeting: bytes
) -> None:
    for _ in range(3):
        fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    for envelope in plain.log_dir.glob("2*/mail/*.json"):
        envelope.write_text(json.dumps({**json.loads(envelope.read_text()), "attempts": 0}))
    target = delivery.Server("127.0.0.1", misbehaving(lambda c: dialogue(c, {}, greeting)), "none")
    assert len(spooling.retry(str(plain.log_dir), target, time.monotonic() + 30)) == 1
    assert len(spooling.flush(str(plain.log_dir), target, time.monotonic() + 30)) == 3
    assert len(spooling.waiting(str(plain.log_dir))) == 3


def test_some_are_refused_for_good_and_some_put_off_and_nobody_is_served(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    server = accepting()
    server.inbox.refuse = {"gone@example.org": "550 no such user", "busy@example.org": "451 later"}
    environment = environment_for(server.port, GPUALERT_EMAIL_TO="gone@example.org,busy@example.org")
    done = fail(plain, environment)
    told = _told(done)
    assert (told["gone@example.org"][0], told["busy@example.org"][0]) == ("failed", "spooled")
    (envelope,) = (done.run_dir / "mail").glob("*.json")
    assert json.loads(envelope.read_text())["to"] == ["busy@example.org"]


def test_one_address_beyond_ascii_blocks_nobody_else(plain: Gpualert, misbehaving: Misbehaving) -> None:
    seen: list[bytes] = []

    def old(connection: socket.socket) -> None:
        """A server without SMTPUTF8 that writes down what it hears."""

        class Spy:
            def __getattr__(self, name: str) -> object:
                return getattr(connection, name)

            def recv(self, size: int) -> bytes:
                data = connection.recv(size)
                seen.append(data)
                return data

        dialogue(Spy(), {b"EHLO": b"250-me\r\n250 8BITMIME\r\n", b"DATA": b"354 go\r\n"})  # type: ignore[arg-type]

    done = fail(plain, environment_for(misbehaving(old), GPUALERT_EMAIL_TO="ünï@example.org,a@example.org"))
    told = _told(done)
    assert told["a@example.org"][0] == "sent"
    assert told["ünï@example.org"][0] == "spooled"
    assert "SMTPUTF8" in told["ünï@example.org"][1]
    heard = b"".join(seen)
    assert heard.count(b"rcpt TO:<a@example.org>") == 1
    assert heard.partition(b"\r\n\r\n")[0].isascii()
    assert b"\r\nTo: a@example.org\r\n" in heard
    (envelope,) = (done.run_dir / "mail").glob("*.json")
    assert json.loads(envelope.read_text())["to"] == ["ünï@example.org"]


def test_people_may_have_names(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    environment = environment_for(
        server.port,
        GPUALERT_EMAIL_TO='Jürgen Müller <juergen@example.org>, "Müller, Jürgen" <j@example.org>, b@bücher.example',
        GPUALERT_EMAIL_FROM="GPU alerts <gpualert@example.org>",
    )
    done = fail(plain, environment)
    ((sender, recipients),) = server.inbox.envelopes
    assert sender == "gpualert@example.org"
    assert recipients == ["juergen@example.org", "j@example.org", "b@xn--bcher-kva.example"]
    headers = fast_mail_parser.parse_email(server.inbox.mails[0]).headers
    assert headers["From"] == ["GPU alerts <gpualert@example.org>"]
    assert "juergen@example.org" in headers["To"][0]
    assert server.inbox.mails[0].partition(b"\r\n\r\n")[0].isascii()
    assert set(_told(done)) == {"juergen@example.org", "j@example.org", "b@bücher.example"}


def test_a_refusal_names_the_address_as_it_was_given(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    server.inbox.refuse = {"b@xn--bcher-kva.example": "550 no such user"}
    environment = environment_for(server.port, GPUALERT_EMAIL_TO="b@bücher.example,a@example.org")
    done = fail(plain, environment)
    assert {who: outcome for who, (outcome, _) in _told(done).items()} == {
        "b@bücher.example": "failed",
        "a@example.org": "sent",
    }
    assert "b@bücher.example: 550 no such user" in done.said[-1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a@b.c", ("a@b.c", "")),
        ("Jürgen Müller <juergen@example.org>", ("juergen@example.org", "Jürgen Müller")),
        ('"Müller, Jürgen" <j@example.org>', ("j@example.org", "Müller, Jürgen")),
        ("Müller, Jürgen <j@example.org>", ("j@example.org", "Müller, Jürgen")),
        (r'"a \"b\" c" <j@example.org>', ("j@example.org", 'a "b" c')),
        ("<j@example.org>", ("j@example.org", "")),
        ("no address", None),
        ("x <y>", None),
        ("x <a@b.c> y", None),
        ("x <a@b.c><d@e.f>", None),
        ("x\r\nBcc: y <a@b.c>", None),
        ("x\u202e <a@b.c>", None),
    ],
)
def test_what_is_an_address(text: str, told: tuple[str, str] | None) -> None:
    mailbox = address.parse(text)
    assert (None if mailbox is None else (mailbox.address, mailbox.name)) == told


def test_names_are_put_together_again() -> None:
    assert address.whole(['"Müller', 'Jürgen" <j@e.org>', "a@b.c"]) == ['"Müller, Jürgen" <j@e.org>', "a@b.c"]
    assert os.path.sep not in address.bare("Jürgen <j@e.org>")
