"""The search of a success's log: all of it for a traceback, its end for every alarming word."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpualert.supervisor import quiet

HEAD = b"Traceback (most recent call last):\n"


@pytest.mark.parametrize("shift", [*range(-len(HEAD), 2), 5000])
def test_a_traceback_is_found_wherever_two_pieces_meet(
    tmp_path: Path, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "END_BYTES", 1000)
    path = tmp_path / "output.log"
    path.write_bytes(b"." * (quiet.PIECE + shift) + HEAD + b"." * 100_000)
    watch = quiet.Watch(str(path))
    assert not watch.is_quiet()
    assert watch.alarmed


@pytest.mark.parametrize("step", [1, 7, 33, 34, 100])
def test_a_traceback_is_found_in_a_log_that_grows_between_looks(tmp_path: Path, step: int) -> None:
    path = tmp_path / "output.log"
    path.touch()
    watch, text = quiet.Watch(str(path)), b"step\n" * 10 + HEAD + b"step\n"
    for start in range(0, len(text), step):
        with path.open("ab") as file:
            file.write(text[start : start + step])
        assert watch.look(quiet.LOOK_BYTES)
    assert watch.alarmed


def test_a_plain_log_is_quiet_and_a_word_at_its_end_is_not(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"step\n" * 2_000_000)
    assert quiet.Watch(str(path)).is_quiet()
    path.write_bytes(b"step\n" * 2_000_000 + b"loss nan\n")
    assert not quiet.Watch(str(path)).is_quiet()
    assert not quiet.Watch(str(tmp_path / "none")).is_quiet()
