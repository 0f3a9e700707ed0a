"""How durations, sizes and endings read; the page; the termination message's text."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from typing import Any

import pytest
from conftest import Gpualert
from hypothesis import given
from hypothesis import strategies as st

from gpualert.report import page, terminal, termination, wording


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.004, "4ms"),
        (0.3, "0.3s"),
        (12.4, "12s"),
        (247, "4m07s"),
        (11520, "3h12m"),
        (183600, "2d03h"),
        (None, "an unknown time"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5 bytes"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5120.0 GiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert wording.size(count) == text


def test_endings_and_places() -> None:
    assert wording.ending({"exit_code": 1}) == "exit 1"
    assert wording.ending({"signal": 9}) == "signal 9, SIGKILL"
    assert wording.ending({"signal": 36}) == "signal 36"
    assert wording.ending({}) == "no exit status"
    assert wording.place({"rank": 3, "world_size": 8, "node": "gpu-17"}) == "rank 3 of 8 on node gpu-17"
    assert wording.place({"host": "n1"}) == "on n1"


def _report(text: str, **diagnosis: Any) -> dict[str, Any]:
    found = {
        "class": "traceback", "family": "code", "confidence": 0.9, "summary": text, "root": {"line": 3, "text": text},
        "evidence": [{"line": 3, "text": text, "class": "traceback", "role": "root", "rank": None}], "suggestions": [text],
        "retryable": False, "node_suspect": False, **diagnosis,
    }  # fmt: skip
    return {
        "run": {"name": text, "run_id": "r", "argv": [text], "node": text}, "exit": {"exit_code": 1, "duration_s": 1.0},
        "diagnosis": found, "artifacts": [{"path": text, "size": 1, "fate": "attached", "note": text}], "notifications": [],
        "trouble": [text], "made_at": "now", "gpualert": "0", "timeline": None, "cost": None, "silent_s": None,
        "quotes": {"context": [[3, text]], "traceback": [text], "tail": [text]},
    }  # fmt: skip


@given(st.text(), st.integers(300, 4096))
def test_a_termination_message_fits_is_valid_and_cannot_be_forged(text: str, room: int) -> None:
    message = termination.text(_report(text), "/runs/r", room)
    assert len(message) <= room
    lines = message.decode("utf-8").splitlines()
    machine = [line for line in message.decode("utf-8").split("\n") if line.startswith("{")]
    assert len(machine) == 1
    assert json.loads(machine[0])["class"] == "traceback"
    assert lines[0].startswith("traceback: ")
    assert message.index(b"(exit 1)") < 500


@given(st.text())
def test_the_block_is_lines_of_ours_alone(text: str) -> None:
    block = terminal.block(_report(text), "/runs/r", text and "mailed to x")
    assert block
    assert all(line.startswith("gpualert: ") for line in block.split("\n")[:-1])
    assert all(c.isprintable() or c == "\n" for c in block)


def test_a_clean_success_has_no_block() -> None:
    assert terminal.block(_report("x", **{"class": "success"}), "/runs/r", "") == ""


def test_markup_in_a_log_stays_text_in_the_page() -> None:
    evil = '<script>alert(1)</script><img src=x onerror="x">&amp;'
    html = page.render(_report(evil))
    assert "<script" not in html
    assert "<img" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 8
    assert "default-src 'none'" in html


def test_colour_comes_after_the_prefix_and_adds_no_words() -> None:
    plain = terminal.block(_report("x"), "/runs/r", "mailed to x")
    coloured = terminal.block(_report("x"), "/runs/r", "mailed to x", colour=True)
    assert all(line.startswith("gpualert: ") for line in coloured.split("\n")[:-1])
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain != coloured


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({}, False)],
)
def test_only_a_terminal_that_wants_it_is_coloured(
    plain: Gpualert, environment: dict[str, str], coloured: bool
) -> None:
    ours, theirs = pty.openpty()
    variables = {key: value for key, value in os.environ.items() if key not in ("TERM", "NO_COLOR")}
    process = subprocess.Popen(
        plain.argv(["--tty", "never"], ["sh", "-c", "echo 'ValueError: x'; exit 3"]), env={**variables, **environment},
        stdout=subprocess.DEVNULL, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        said += piece
    os.close(ours)
    assert process.wait() == 3
    assert b"gpualert: " in said
    assert (b"\x1b[" in said) is coloured
