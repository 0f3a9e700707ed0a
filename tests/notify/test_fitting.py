"""The mail always fits: less and less goes along, what was left out is named, and the verdict is always there."""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import fast_mail_parser
import pytest
from conftest import Completed, Gpualert
from notify.failing import SCRIPT, environment_for, flush, spool
from notify.servers import Accepting, line

from gpualert.notify import fitting, message

NOISY = (
    "for i in $(seq 300); do echo \"step $i $(head -c 60 /dev/urandom | od -An -tx1 | tr -d ' \\n')\"; done\n" + SCRIPT
)


class Choosy:
    """A server that tells no SIZE, and refuses what is larger than it likes."""

    def __init__(self, most: int, answer: bytes = b"552 too much", *, offers: int = 0, closes: bool = False) -> None:
        self.most, self.answer, self.offers, self.closes = most, answer, offers, closes
        self.connections = 0
        self.refused: list[int] = []
        self.mails: list[bytes] = []

    def __call__(self, connection: socket.socket) -> None:
        self.connections += 1
        connection.sendall(b"220 hello\r\n")
        while True:
            command = line(connection).upper()
            if command.startswith(b"EHLO") and self.offers:
                connection.sendall(b"250-me\r\n250 SIZE %d\r\n" % self.offers)
            elif not command.startswith(b"DATA"):
                connection.sendall(b"250 fine\r\n")
            else:
                connection.sendall(b"354 go\r\n")
                data = bytearray()
                while not data.endswith(b"\r\n.\r\n"):
                    data += connection.recv(65536)
                if len(data) <= self.most:
                    self.mails.append(bytes(data[:-3]))
                    connection.sendall(b"250 taken\r\n")
                else:
                    self.refused.append(len(data))
                    connection.sendall(self.answer + b"\r\n")
                    if self.closes:
                        return


def _fail(plain: Gpualert, directory: Path, environment: dict[str, str], *options: str) -> Completed:
    (directory / "noise.bin").write_bytes(os.urandom(300_000))
    return plain.run(["sh", "-c", NOISY], "--artifact", "*.bin", *options, env=environment, cwd=directory)


def _fates(done: Completed) -> dict[str, str]:
    return {a["path"]: a["fate"] for a in done.json("report.json")["artifacts"]}


@pytest.mark.parametrize("most", [100_000, 30_000, 9_000, 4_000])
def test_a_server_that_tells_no_size_gets_the_mail_in_one_connection(
    plain: Gpualert, misbehaving: Callable[[Callable[[socket.socket], None]], int], tmp_path: Path, most: int
) -> None:
    server = Choosy(most)
    done = _fail(plain, tmp_path, environment_for(misbehaving(server)))
    (mail,) = server.mails
    assert (len(mail) <= most, server.connections, spool(done)) == (True, 1, [])
    assert b"cuda_oom" in mail
    assert server.refused == sorted(server.refused, reverse=True)
    assert _fates(done)["noise.bin"] == "over_server_limit"
    assert done.json("report.json")["notifications"][0]["outcome"] == "sent"


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("answer", [b"552 5.3.4 too much", b"554 5.3.4 too much", b"552 no"])
def test_a_refusal_after_a_cut_by_size_is_believed_too(
    plain: Gpualert,
    misbehaving: Callable[[Callable[[socket.socket], None]], int],
    tmp_path: Path,
    answer: bytes,
    closes: bool,
) -> None:
    server = Choosy(20_000, answer, offers=200_000, closes=closes)
    done = _fail(plain, tmp_path, environment_for(misbehaving(server)))
    assert len(server.mails) == 1
    assert all(size <= 200_100 for size in server.refused)
    assert spool(done) == []


def test_a_learnt_limit_is_remembered(
    plain: Gpualert, misbehaving: Callable[[Callable[[socket.socket], None]], int], tmp_path: Path
) -> None:
    def once(connection: socket.socket) -> None:
        refusing.closes = True
        refusing(connection)
        time.sleep(60)

    refusing = Choosy(20_000)

    def then_silent(connection: socket.socket) -> None:
        if refusing.connections:
            time.sleep(60)
        once(connection)

    done = _fail(plain, tmp_path, environment_for(misbehaving(then_silent)), "--report-deadline", "6s")
    (envelope,) = (done.run_dir / "mail").glob("*.json")
    limit = json.loads(envelope.read_text())["limit"]
    assert limit <= refusing.refused[0] // 2
    patient = Choosy(20_000)
    assert flush(plain, environment_for(misbehaving(patient))).returncode == 0
    assert len(patient.mails) == 1
    assert all(size <= limit + 10 for size in patient.refused)


def test_a_full_mailbox_is_no_matter_of_size(
    plain: Gpualert, misbehaving: Callable[[Callable[[socket.socket], None]], int], tmp_path: Path
) -> None:
    server = Choosy(0, b"552 5.2.2 mailbox full")
    done = _fail(plain, tmp_path, environment_for(misbehaving(server)))
    assert (len(server.refused), len(spool(done))) == (1, 1)


@pytest.mark.parametrize("size", [60_000, 20_000, 8_000, 3_000])
def test_the_mail_fits_whatever_size_a_server_takes(
    plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path, size: int
) -> None:
    server = accepting(size=size)
    done = _fail(plain, tmp_path, environment_for(server.port))
    (mail,) = server.inbox.mails
    assert len(mail) <= size
    told = fast_mail_parser.parse_email(mail)
    assert "cuda_oom" in told.subject
    assert "CUDA out of memory" in told.text_plain[0]
    assert f"the server takes at most {size} bytes" in " ".join(told.text_plain[0].split())
    assert _fates(done)["noise.bin"] == "over_server_limit"


@pytest.mark.parametrize("most", ["40k", "9k", "100"])
def test_the_budget_is_that_of_the_whole_mail(
    plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path, most: str
) -> None:
    for number in range(200):
        (tmp_path / f"a-file-with-quite-a-long-name-{number:04d}.bin").write_bytes(os.urandom(70_000))
    server = accepting()
    _fail(plain, tmp_path, environment_for(server.port, GPUALERT_ARTIFACTS_MAX_TOTAL=most))
    (mail,) = server.inbox.mails
    assert len(mail) <= {"40k": 40_000, "9k": 9_000, "100": 3_000}[most]
    assert "cuda_oom" in fast_mail_parser.parse_email(mail).subject


def test_the_report_is_compressed_before_anything_is_taken_off(
    plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    for number in range(300):
        (tmp_path / f"{number:04d}.bin").write_bytes(b"")
    every = {"GPUALERT_ARTIFACTS_CHANGED_ONLY": "0"}  # whatever the time between their making and the run
    whole = accepting()
    _fail(plain, tmp_path, environment_for(whole.port) | every)
    server = accepting(size=len(whole.inbox.mails[0]) - 20_000)
    done = _fail(plain, tmp_path, environment_for(server.port) | every)
    files = {a.filename: a.content for a in fast_mail_parser.parse_email(server.inbox.mails[0]).attachments}
    assert json.loads(gzip.decompress(files["report.json.gz"]))["diagnosis"]["class"] == "cuda_oom"
    assert "noise.bin" in files
    assert "over_server_limit" not in _fates(done).values()


def test_files_of_one_name_are_told_apart(plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    for name, size in (("a", 1_000), ("b", 150_000), ("c", 2_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plot.png").write_bytes(os.urandom(size))
    server = accepting(size=100_000)
    done = plain.run(["sh", "-c", SCRIPT], "--artifact", "*/plot.png", env=environment_for(server.port), cwd=tmp_path)
    fates = _fates(done)
    assert [fates[f"{name}/plot.png"] for name in "abc"] == ["attached", "over_server_limit", "attached"]
    mail = fast_mail_parser.parse_email(server.inbox.mails[0])
    names = {a.filename: len(a.content) for a in mail.attachments}
    assert {name: size for name, size in names.items() if "plot" in name} == {"plot.png": 1_000, "c_plot.png": 2_000}
    text, page = mail.text_plain[0], mail.text_html[0]
    rows = {
        row.split()[-1] if "(" not in row else row.split(" (")[0].split()[-1]: row
        for row in text.splitlines()
        if "plot.png" in row and row.startswith("  ")
    }
    assert "over server limit" in rows["b/plot.png"]
    assert "attached as c_plot.png" in rows["c/plot.png"]
    assert page.index("Not attached, because") < page.index("</html>")
    assert page.rstrip().endswith("</html>")
    report = json.loads(gzip.decompress({a.filename: a.content for a in mail.attachments}["report.json.gz"]))
    assert {a["path"]: a["fate"] for a in report["artifacts"]} == fates


def test_what_lies_in_an_archive_shares_its_fate(
    plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    for number in range(12):
        (tmp_path / f"{number}.dat").write_bytes(os.urandom(9_000))
    server = accepting(size=60_000)
    done = plain.run(["sh", "-c", SCRIPT], "--artifact", "*.dat", env=environment_for(server.port), cwd=tmp_path)
    fates = _fates(done)
    assert {fate for path, fate in fates.items() if path.endswith((".dat", ".zip"))} == {"over_server_limit"}


def _foreign(count: int) -> EmailMessage:
    mail = EmailMessage(message.POLICY)
    mail["Subject"] = "x"
    mail.set_content("text\n" * 400)
    mail.add_alternative("<html><body><p>text</p></body></html>", subtype="html")
    for number in range(count):
        mail.add_attachment(
            os.urandom(40_000 + 99 * number), maintype="application", subtype="octet-stream", filename=f"{number}"
        )
    return mail


def test_a_mail_without_a_report_loses_its_largest_attachments() -> None:
    mail = _foreign(400)
    fitted = fitting.fit(mail, fitting.Limit(1_000_000, "it is so"), directory="/x")
    assert 850_000 < len(fitted.data) <= 1_000_000
    assert fitted.removed[:2] == ("399", "398")
    text, page = (fitted.message.get_body((kind,)).get_content() for kind in ("plain", "html"))  # type: ignore[union-attr]
    assert all(name in text and name in page for name in ("399", "398"))
    assert page.rstrip().endswith("</html>")


@pytest.mark.parametrize("limit", [2_000, 1_000, 10])
def test_a_mail_without_a_report_loses_the_end_of_its_text(limit: int) -> None:
    fitted = fitting.fit(_foreign(2), fitting.Limit(limit, "it is so"), directory="/x")
    assert fitted.smallest
    assert len(fitted.data) <= max(limit, 800)


def test_a_report_that_is_none_in_a_mail_is_treated_as_any_attachment() -> None:
    for content in (b"[" * 200_000, b'{"artifacts": 3}', b"\xff", b"null"):
        mail = _foreign(1)
        mail.add_attachment(content, maintype="application", subtype="json", filename="report.json")
        fitted: Any = fitting.fit(mail, fitting.Limit(20_000, "it is so"), directory="/x")
        assert len(fitted.data) <= 20_000
