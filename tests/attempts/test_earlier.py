"""Finding a job's earlier attempts among run directories, whatever else lies there."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpualert.attempts import earlier

BEGAN = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)


def stamp(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def run_id(at: datetime, name: str = "llama-7b", end: str = "aaaaaa") -> str:
    return f"{at.strftime('%Y%m%dT%H%M%S.%f')}Z-{name}-{end}"


def made(log_dir: Path, minutes_ago: float, *, lasted_s: float = 30.0, name: str = "llama-7b", **more: Any) -> Path:
    """A run directory as the supervisor and the reporter leave it."""
    at = BEGAN - timedelta(minutes=minutes_ago)
    directory = log_dir / run_id(at, name, f"{len(list(log_dir.iterdir())):06d}")
    directory.mkdir()
    facts = {"name": name, "argv": ["train"], "host": "h", "run_id": directory.name, "started_at": stamp(at)}
    end = {"exit_code": 1, "duration_s": lasted_s, "ended_at": stamp(at + timedelta(seconds=lasted_s))}
    report = {"diagnosis": {"class": "cuda_oom", "summary": "s", "root": {"text": "OOM 2 GiB"}}, "run": {}, "exit": {}}
    for file, value in (("run.json", facts), ("exit.json", end), ("report.json", report)):
        (directory / file).write_text(json.dumps(value | more.get(file.partition(".")[0], {})))
    return directory


OWN: dict[str, Any] = {"name": "llama-7b", "argv": ["train"], "host": "h", "started_at": stamp(BEGAN)}


def found(log_dir: Path, **facts: Any) -> list[str]:
    return [one.run_id for one in earlier.of_run(str(log_dir / run_id(BEGAN)), OWN | facts)]


def test_the_same_job_newest_first(tmp_path: Path) -> None:
    first, second = made(tmp_path, 20), made(tmp_path, 10)
    made(tmp_path, 15, name="other")
    made(tmp_path, -5)
    assert found(tmp_path) == [second.name, first.name]


def test_what_an_attempt_tells(tmp_path: Path) -> None:
    rows = [
        {"channel": "email", "to": ["a@example.org"], "outcome": "sent", "at": "2026-12-02T11:51:00Z"},
        {"channel": "webhook", "to": [], "outcome": "failed", "at": "2026-12-02T11:55:00Z"},
    ]
    progress = {"at": "2026-12-02T11:50:20Z", "step": 41200, "epoch": 3, "rate": 1.5}
    report = {"progress": progress, "notifications": rows, "attempt": {
        "fingerprint": "f", "number": 4, "same": 2, "first_at": stamp(BEGAN), "last_at": stamp(BEGAN)}}  # fmt: skip
    made(tmp_path, 10, run={"node": "gpu-17"}, exit={"log_bytes": 12}, report=report)
    (one,) = earlier.of_run(str(tmp_path / run_id(BEGAN)), OWN)
    assert (one.cls, one.step, one.epoch, one.rate, one.log_bytes, one.node, one.number, one.duration_s) == (
        "cuda_oom", 41200, 3, 1.5, 12, "gpu-17", 4, 30.0,
    )  # fmt: skip
    assert one.told_at == datetime(2026, 12, 2, 11, 51, tzinfo=UTC).timestamp()
    assert not one.held


@pytest.mark.parametrize(
    ("outcomes", "told", "held"),
    [(["held"], False, True), (["spooled"], True, False), (["failed"], False, False), ([], False, False)],
)
def test_who_was_told(tmp_path: Path, outcomes: list[str], told: bool, held: bool) -> None:
    rows = [{"outcome": outcome, "at": "2026-12-02T11:51:00Z"} for outcome in outcomes]
    made(tmp_path, 10, report={"notifications": rows})
    (one,) = earlier.of_run(str(tmp_path / run_id(BEGAN)), OWN)
    assert (one.told_at is not None, one.held) == (told, held)


def test_runs_side_by_side_are_no_attempts_of_each_other(tmp_path: Path) -> None:
    made(tmp_path, 1, lasted_s=90)
    # Four at once, before: one attempt.
    for _ in range(4):
        made(tmp_path, 10, lasted_s=60)
    assert len(found(tmp_path)) == 1


def test_ranks_are_no_attempts_of_each_other(tmp_path: Path) -> None:
    for rank in range(4):
        made(tmp_path, 10, run={"rank": rank})
    assert len(found(tmp_path, rank=2)) == 1
    assert found(tmp_path, rank=7) == []


def test_the_clocks_of_two_hosts_may_differ_a_little(tmp_path: Path) -> None:
    made(tmp_path, 1, lasted_s=65, run={"host": "other"})
    made(tmp_path, 10, lasted_s=600, run={"host": "other"})
    assert len(found(tmp_path)) == 1


def test_what_is_older_than_a_month_is_another_story(tmp_path: Path) -> None:
    made(tmp_path, 31 * 24 * 60)
    kept = made(tmp_path, 29 * 24 * 60)
    assert found(tmp_path) == [kept.name]


def test_no_more_than_two_hundred_are_looked_at(tmp_path: Path) -> None:
    for number in range(earlier.LOOKED_AT + 5):
        made(tmp_path, 10 + number)
    for number in range(50):
        made(tmp_path, 1000 + number, name="other")
    assert len(found(tmp_path)) == earlier.LOOKED_AT


def test_jobs_of_a_cron_job_are_attempts_of_one(tmp_path: Path) -> None:
    job = {"namespace": "ml", "job": "nightly-29412345"}
    before = made(tmp_path, 10, name="nightly-29412345", run=job)
    own = OWN | {"namespace": "ml", "job": "nightly-29413785"}
    listed = earlier.of_run(str(tmp_path / run_id(BEGAN, "nightly-29413785")), own)
    assert [one.run_id for one in listed] == [before.name]


def test_runs_that_go_on_or_are_not_reported_are_passed_over(tmp_path: Path) -> None:
    (made(tmp_path, 10) / "exit.json").unlink()
    (made(tmp_path, 11) / "report.json").unlink()
    quiet = made(tmp_path, 12, exit={"exit_code": 0})
    (quiet / "report.json").unlink()
    (one,) = earlier.of_run(str(tmp_path / run_id(BEGAN)), OWN)
    assert (one.run_id, one.cls) == (quiet.name, "success")


@pytest.mark.parametrize("file", ["run.json", "exit.json", "report.json"])
@pytest.mark.parametrize("kind", ["fifo", "directory", "nuls", "deep", "empty", "gone"])
def test_a_damaged_directory_hides_no_other(tmp_path: Path, file: str, kind: str) -> None:
    kept = made(tmp_path, 20)
    broken = made(tmp_path, 10) / file
    broken.unlink()
    if kind == "fifo":
        os.mkfifo(broken)
    elif kind == "directory":
        broken.mkdir()
    elif kind == "nuls":
        broken.write_bytes(b"\0" * 1000)
    elif kind == "deep":
        broken.write_bytes(b"[" * 100_000)
    elif kind == "empty":
        broken.write_bytes(b"")
    assert found(tmp_path) == [kept.name]


@pytest.mark.parametrize(
    "report",
    [
        {"progress": {"step": "many", "at": "never"}, "attempt": 7, "notifications": [1, {"outcome": "sent"}]},
        {"progress": [1], "attempt": {"number": -1}, "notifications": "none"},
        {"diagnosis": {"class": "x", "summary": "", "root": {"text": "\ud800 \0"}}},
    ],
)
def test_forged_values_are_no_values(tmp_path: Path, report: dict[str, Any]) -> None:
    made(tmp_path, 10, report=report)
    (one,) = earlier.of_run(str(tmp_path / run_id(BEGAN)), OWN)
    assert (one.step, one.number) == (None, 0)


def test_a_run_without_a_start_or_a_name_has_no_attempts(tmp_path: Path) -> None:
    made(tmp_path, 10)
    assert list(earlier.of_run(str(tmp_path / "stray"), OWN)) == []
    assert found(tmp_path, started_at="yesterday") == []
