"""Which files go along, and that none is dropped in silence."""

from __future__ import annotations

import gzip
import os
import subprocess
import time
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from gpualert import artifacts, config


def _fates(patterns: list[str], root: Path, max_file: int = 100_000, max_total: int = 300_000) -> dict[str, str]:
    return {a.path: a.fate for a in _collect(patterns, root, max_file, max_total)}


def _collect(
    patterns: list[str], root: Path, max_file: int = 100_000, max_total: int = 300_000, **more: Any
) -> list[artifacts.Artifact]:
    return artifacts.collect(patterns, str(root), artifacts.Budget(max_file, max_total, **more))


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
    (found,) = _collect(["log.txt"], tmp_path)
    assert (found.fate, found.name) == ("zipped", "log.txt.gz")
    assert gzip.decompress(found.content or b"") == (tmp_path / "log.txt").read_bytes()


def test_the_total_is_a_limit_too_and_named(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_bytes(os.urandom(90_000))
    found = _collect(["*"], tmp_path, 100_000, 200_000)
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
    assert _fates(["../secret", "sub/../../secret", str(tmp_path / "secret")], root) == {
        "../secret": "outside_root", "sub/../../secret": "outside_root", str(tmp_path / "secret"): "outside_root",
    }  # fmt: skip


def test_links_to_directories_lead_nowhere_and_not_in_circles(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.json").write_text("{}")
    (tmp_path / "sub" / "circle").symlink_to(tmp_path)
    assert _fates(["**/*.json"], tmp_path) == {"sub/a.json": "attached"}
    assert _fates(["sub/circle/sub/*.json"], tmp_path) == {"sub/circle/sub/a.json": "attached"}


def _aged(*paths: Path) -> float:
    """A start of a run after which these files have not changed any more; nobody can set back when a file changed."""
    return max(max(path.stat().st_mtime, path.stat().st_ctime) for path in paths) + artifacts.CLOCK_SLACK_S + 1


def _fresh(path: Path, since: float) -> None:
    """A file that has changed after that start."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    os.utime(path, (since + 1, since + 1))


def test_only_what_changed_since_the_start_goes(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    since = _aged(tmp_path / "old.json")
    _fresh(tmp_path / "new.json", since)
    assert _fates(["*.json"], tmp_path) == {"old.json": "attached", "new.json": "attached"}
    found = {a.path: (a.fate, a.size) for a in _collect(["*.json"], tmp_path, changed_since=since)}
    assert found == {"new.json": ("attached", 2), "old.json": ("unchanged", 2)}


def test_a_copy_that_keeps_the_times_of_its_original_has_changed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "original.json").write_text("{}")
    os.utime(tmp_path / "original.json", (1e9, 1e9))
    since = time.time()
    subprocess.run(["cp", "-p", tmp_path / "original.json", tmp_path / "copy.json"], check=True)
    assert (tmp_path / "copy.json").stat().st_mtime == 1e9
    found = _collect(["copy.json"], tmp_path, changed_since=since)
    assert [(a.path, a.fate) for a in found] == [("copy.json", "attached")]


def test_among_many_files_the_changed_one_is_attached_and_the_others_are_counted(tmp_path: Path) -> None:
    old = [tmp_path / f"m{number:04}.json" for number in range(artifacts.MAX_MATCHES + 500)]
    for path in old:
        path.write_text("{}")
    (tmp_path / "a.csv").touch()
    since = _aged(old[-1], tmp_path / "a.csv")
    _fresh(tmp_path / "z-metrics.json", since)
    found = _collect(["*.json", "*.csv"], tmp_path, changed_since=since)
    assert [(a.path, a.fate) for a in found] == [
        ("z-metrics.json", "attached"), ("*.json", "unchanged"), ("a.csv", "unchanged"),
    ]  # fmt: skip
    assert found[1].note.startswith("1500 files that match have not changed since the start")


def test_among_many_dumps_the_metrics_are_attached(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    for number in range(artifacts.MAX_MATCHES + 200):
        (tmp_path / "ckpt" / f"{number}.pt").write_bytes(b"x")
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "metrics.json").write_text("{}")
    found = _collect(["**"], tmp_path, zip_over=0)
    assert (found[0].path, found[0].fate) == ("z/metrics.json", "attached")
    assert (found[-1].fate, len(found)) == ("too_many", artifacts.MAX_MATCHES + 1)
    assert found[-1].note.startswith("201 more files match")


def test_of_many_that_cannot_be_attached_the_first_are_named_and_the_others_counted(tmp_path: Path) -> None:
    for number in range(artifacts.MAX_REFUSED + 20):
        (tmp_path / f"{number}.json").symlink_to("/nowhere")
    (tmp_path / "z.json").write_text("{}")
    found = _collect(["*.json"], tmp_path)
    assert (found[0].path, found[0].fate, len(found)) == ("z.json", "attached", artifacts.MAX_REFUSED + 2)
    assert found[-1].note == "20 more that match cannot be attached either"


def test_what_lies_behind_a_link_out_of_the_root_is_not_even_listed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "private.json").write_text("{}")
    (root / "link").symlink_to(outside)
    for pattern in ("link/**", "link/*.json", "link/private.json", "link/missing.json", str(root / "link" / "*")):
        found = _collect([pattern], root)
        assert [(a.path, a.fate) for a in found] == [(pattern, "outside_root")]
    assert _fates(["**", "{link,root}/**", "*/*"], root) == {
        "**": "no_match", "{link,root}/**": "no_match", "*/*": "no_match",
    }  # fmt: skip


def test_a_directory_is_the_same_by_whichever_links_somebody_came(tmp_path: Path) -> None:
    real, link = tmp_path / "re[a]l", tmp_path / "link"
    (real / "sub").mkdir(parents=True)
    link.symlink_to(real)
    (real / "sub" / "m.json").write_text("{}")
    for root in (real, link):
        for pattern in (
            "link/sub/*.json",
            "link/**/*.json",
            "link/sub/m.json",
            "link/{sub,x}/*.json",
            "re[a]l/sub/m.*",
        ):
            assert _fates([str(tmp_path / pattern)], root) == {"sub/m.json": "attached"}, (root, pattern)
        assert _fates([str(tmp_path / "*.json")], root) == {str(tmp_path / "*.json"): "outside_root"}


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("out.{json,csv}", ["out.{json,csv}"]),
        ("a.json, out.{json,{csv,tsv}} ,b.csv,", ["a.json", "out.{json,{csv,tsv}}", "b.csv"]),
        ("[a,b]*.json,c", ["[a,b]*.json", "c"]),
        ("a{b,c", ["a{b", "c"]),
        ("a}b,c]d", ["a}b", "c]d"]),
        ("a[b,c],d{", ["a[b,c]", "d{"]),
    ],
)
def test_a_comma_in_braces_or_brackets_separates_no_patterns(text: str, patterns: list[str]) -> None:
    settings, problems = config.load({"GPUALERT_ARTIFACTS": text, "GPUALERT_CONFIG": os.devnull})
    assert (settings.artifacts.include, problems) == (patterns, [])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("value", ["m.json", "plot.png", "core.x", "a.ckpt"]),
        ("size", ["a.ckpt", "core.x", "plot.png", "m.json"]),
        ("newest", ["core.x", "m.json", "plot.png", "a.ckpt"]),
        ("given", ["a.ckpt", "core.x", "m.json", "plot.png"]),
    ],
)
def test_what_goes_first(tmp_path: Path, order: Any, expected: list[str]) -> None:
    for number, (name, size) in enumerate([("a.ckpt", 10), ("plot.png", 30), ("m.json", 40), ("core.x", 20)]):
        (tmp_path / name).write_bytes(b"x" * size)
        os.utime(tmp_path / name, (1e9 + number, 1e9 + number))
    assert [a.path for a in _collect(["*"], tmp_path, order=order)] == expected


def test_many_small_files_share_an_archive(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"m{number:02}.json").write_text(f"[{number}]")
    (tmp_path / "big.bin").write_bytes(os.urandom(80_000))
    found = _collect(["*"], tmp_path, zip_over=10)
    archive, others = found[0], {a.path: a for a in found[1:]}
    assert (archive.name, archive.content_type, others["big.bin"].fate) == (
        "artifacts.zip",
        "application/zip",
        "attached",
    )
    with zipfile.ZipFile(BytesIO(archive.content or b"")) as unpacked:
        assert {name: unpacked.read(name) for name in unpacked.namelist()} == {
            f"m{number:02}.json": f"[{number}]".encode() for number in range(30)
        }
    assert {a.fate for path, a in others.items() if path != "big.bin"} == {"in_archive"}
    assert all(a.as_dict()["inside"] == "artifacts.zip" for path, a in others.items() if path != "big.bin")
    assert [a.fate for a in _collect(["m*"], tmp_path, zip_over=0)] == ["attached"] * 30


def test_an_archive_keeps_the_budget_too(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"r{number:02}").write_bytes(os.urandom(2_000))
    found = _collect(["*"], tmp_path, 30_000, 40_000, zip_over=10)
    assert sum(len(a.content or b"") for a in found) <= 40_000
    assert {a.fate for a in found} >= {"in_archive", "over_total"}
    assert len(found) == 51


def test_braces_and_a_bad_pattern(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/x.json", "a/y.csv", "z.csv"):
        (tmp_path / name).write_text("1")
    assert _fates(["{a/*.json,*.csv}"], tmp_path) == {"a/x.json": "attached", "z.csv": "attached"}
    huge = "{" + ",".join(str(n) for n in range(5000)) + "}"
    assert list(_fates([huge, "z.csv"], tmp_path).values()) == ["attached", "no_match"]


def test_a_huge_tree_is_searched_for_a_bounded_time_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MAX_SCANNED", 500)
    for place in range(10):
        (tmp_path / f"d{place}").mkdir()
        for number in range(100):
            (tmp_path / f"d{place}" / f"{number}.bin").touch()
    (tmp_path / "m.json").write_text("{}")
    found = _collect(["**/*.json", "m.json"], tmp_path)
    assert ("...", "not_searched") in [(a.path, a.fate) for a in found]
    assert "m.json" in [a.path for a in found]
    # What lies at a known depth is found without looking anywhere else.
    assert _fates(["*.json"], tmp_path) == {"m.json": "attached"}


def test_past_the_deadline_nothing_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(os.urandom(70_000))
    assert [a.fate for a in _collect(["a.bin"], tmp_path, until=time.monotonic() - 1)] == ["no_time"]


def test_a_file_is_attached_once(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    found = _collect(["*.json", "a.*", str(tmp_path / "a.json")], tmp_path)
    assert [(a.path, a.fate) for a in found] == [("a.json", "attached")]


def test_too_many_matches_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_MATCHES", 3)
    for number in range(5):
        (tmp_path / f"{number}").write_text("x")
    found = _collect(["*"], tmp_path)
    assert [a.fate for a in found] == ["attached"] * 3 + ["too_many"]
    assert "2 more files match" in found[-1].note


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
