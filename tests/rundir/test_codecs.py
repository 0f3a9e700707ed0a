"""The codecs of the run directory: JSON text, index, termination text, times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpualert.rundir import clock, index, jsontext, termination, writer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(VALUES)
def test_json_text_reads_back_as_the_same(value: object) -> None:
    text = jsontext.dumps(value)
    assert "\n" not in text
    assert json.loads(text) == value


@given(st.binary())
def test_bytes_that_are_no_utf8_become_replacement_characters(data: bytes) -> None:
    text = jsontext.dumps(data.decode("utf-8", "surrogateescape"))
    text.encode("utf-8")
    assert json.loads(text) == data.decode("utf-8", "replace") or "\ufffd" in text


@pytest.mark.parametrize(("value", "text"), [(float("nan"), "null"), (float("inf"), "null"), (0.1 + 0.2, "0.3")])
def test_numbers_without_a_json_form_are_null(value: float, text: str) -> None:
    assert jsontext.dumps(value) == text


def test_what_has_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="no JSON for set"):
        jsontext.dumps({1})


@given(st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 255), st.integers(0, 2**56 - 1))), st.integers(0, 15))
def test_index_records_read_back_and_a_cut_one_is_passed_over(records: list[tuple[int, int, int]], cut: int) -> None:
    data = index.HEADER + b"".join(index.record(*one) for one in records) + b"x" * cut
    assert list(index.records(data)) == records


def test_a_foreign_index_is_refused() -> None:
    with pytest.raises(ValueError, match="not an index"):
        list(index.records(b"something else, and long enough"))


@given(st.binary(max_size=6000), st.binary(max_size=6000), st.integers(64, 4096))
def test_a_termination_message_is_valid_utf8_within_its_room(own: bytes, ours: bytes, room: int) -> None:
    text, own_bytes = termination.join(own, ours, room)
    assert len(text) <= room
    text.decode("utf-8")
    assert 0 <= own_bytes <= len(text)


@given(st.text(min_size=1), st.integers(0, 64))
def test_cutting_never_splits_a_character(text: str, limit: int) -> None:
    data = text.encode("utf-8", "replace")
    cut = termination.cut(data, limit)
    assert len(cut) <= limit
    assert data.decode("utf-8").startswith(cut.decode("utf-8"))


def test_the_pods_limit_is_shared_by_its_containers() -> None:
    assert [termination.room(n) for n in (None, 1, 3, 4, 12)] == [4096, 4096, 4096, 3072, 1024]


def test_times_are_rfc_3339_in_utc() -> None:
    assert clock.rfc3339(1_764_565_920_123_456) == "2025-12-01T05:12:00.123456Z"
    assert clock.compact(1_764_565_920_123_456) == "20251201T051200.123456Z"


@given(st.text())
def test_a_clean_name_holds_only_harmless_characters(name: str) -> None:
    cleaned = writer.clean_name(name)
    assert 0 < len(cleaned) <= 60
    assert set(cleaned) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
    assert not cleaned.startswith((".", "-"))


def test_two_runs_in_the_same_microsecond_get_names_of_their_own(tmp_path: Path) -> None:
    ids = {writer.new_run_id(1, "x") for _ in range(100)}
    assert len(ids) == 100


def test_a_file_is_replaced_whole_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    writer.replace_file(str(path), b"one")
    writer.replace_file(str(path), b"two")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"two"
    with pytest.raises(OSError, match="Is a directory"):
        writer.replace_file(str(tmp_path), b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
