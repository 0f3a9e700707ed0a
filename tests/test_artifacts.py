"""Which files go along, and that none is dropped in silence."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from gpualert import artifacts


def _fates(patterns: list[str], root: Path, max_file: int = 100_000, max_total: int = 300_000) -> dict[str, str]:
    return {a.path: a.fate for a in artifacts.collect(patterns, str(root), max_file, max_total)}


def test_every_match_has_a_fate_and_so_has_a_pattern_without_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("small")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("x" * 90_000)
    (tmp_path / "sub" / "c.bin").write_bytes(os.urandom(150_000))
    assert _fates(["**/*.txt", "**/*.bin", "nothing/*"], tmp_path) == {
        "a.txt": "attached", "sub/b.txt": "zipped", "sub/c.bin": "too_large", "nothing/*": "no_match",
    }  # fmt: skip


def test_what_is_zipped_unzips_to_the_same(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("line\n" * 100_000)
    (found,) = artifacts.collect(["log.txt"], str(tmp_path), 100_000, 100_000)
    assert (found.fate, found.name) == ("zipped", "log.txt.gz")
    assert gzip.decompress(found.content or b"") == (tmp_path / "log.txt").read_bytes()


def test_the_total_is_a_limit_too_and_named(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_bytes(os.urandom(90_000))
    found = artifacts.collect(["*"], str(tmp_path), 100_000, 200_000)
    assert [a.fate for a in found] == ["attached", "attached", "over_total", "over_total"]
    assert "are left of artifacts.max_total" in found[2].note
    assert sum(len(a.content or b"") for a in found) <= 200_000


def test_links_out_of_the_root_devices_and_fifos_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("x")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "null").symlink_to("/dev/null")
    (root / "inside").symlink_to(root / "real")
    (root / "real").write_text("x")
    (root / "dangling").symlink_to(root / "missing")
    os.mkfifo(root / "fifo")
    assert _fates(["*"], root) == {
        "dangling": "unreadable", "fifo": "not_a_file", "inside": "attached", "link": "outside_root", "null": "outside_root",
        "real": "attached",
    }  # fmt: skip
    assert (
        _fates(["../secret"], root) == {str(root) + "/../secret": "outside_root"}
        or "outside_root" in _fates(["../secret"], root).values()
    )


def test_a_file_is_attached_once(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    found = artifacts.collect(["*.json", "a.*", str(tmp_path / "a.json")], str(tmp_path), 10_000, 10_000)
    assert [(a.path, a.fate) for a in found] == [("a.json", "attached")]


def test_too_many_matches_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_MATCHES", 3)
    for number in range(5):
        (tmp_path / f"{number}").write_text("x")
    assert [a.fate for a in artifacts.collect(["*"], str(tmp_path), 100, 1000)] == ["attached"] * 3 + ["too_many"]


def test_a_log_within_the_budget_goes_whole(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"line\n" * 200_000)
    packed = artifacts.pack_log(str(log), 100_000)
    assert (packed.fate, gzip.decompress(packed.content or b"")) == ("zipped", log.read_bytes())


def test_of_a_larger_log_head_and_tail_go_and_the_gap_is_said(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"head" + os.urandom(3_000_000) + b"tail")
    packed = artifacts.pack_log(str(log), 500_000)
    content = gzip.decompress(packed.content or b"")
    assert packed.fate == "shortened"
    assert len(packed.content or b"") <= 500_000
    assert content.startswith(b"head")
    assert content.endswith(b"tail")
    assert b"bytes are left out here; the whole log is in the run directory]" in content
    assert "of 3000008 bytes" in packed.note


def test_a_missing_log_is_said(tmp_path: Path) -> None:
    assert artifacts.pack_log(str(tmp_path / "none"), 1000).fate == "unreadable"
