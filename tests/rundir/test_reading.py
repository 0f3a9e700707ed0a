"""Reading run directories that are damaged, or made by somebody who means no good: every reader survives them."""

from __future__ import annotations

import io
import json
import os
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpualert.cli.reading import report, runs
from gpualert.report import making
from gpualert.rundir import shapes, survivor
from gpualert.rundir.reader import Run

RUN_ID = "20261201T051200.123456Z-job-abc123"
FACTS: dict[str, Any] = {
    "schema": 1, "run_id": RUN_ID, "name": "job", "argv": ["python", "train.py"], "cwd": "/", "host": "h", "pid": 1,
    "started_at": "2026-12-01T05:12:00.000000Z", "rank": 0, "world_size": 2, "gpus": 1, "node": "n", "options": {},
    "cgroup": {"version": 2, "limit": 1 << 30}, "boot_id": "x", "pid_start": 1, "pid_ns": "1",
}  # fmt: skip
END: dict[str, Any] = {
    "schema": 1, "exit_code": 1, "signal": None, "launch_error": None, "ended_at": "2026-12-01T05:13:00.000000Z",
    "duration_s": 60.0, "last_output_at": "2026-12-01T05:12:50.000000Z", "forwarded": [15], "timed_out": False,
    "stopped_before_end_s": 3.0, "timeout_s": None, "rusage": {"user_s": 1.0, "system_s": 1.0, "max_rss_bytes": 5},
    "cgroup": {"oom_kill": 0, "memory_peak": 1, "memory_limit": 2, "memory_last": 1, "pids_max_events": 0},
    "log_bytes": 9, "truncated": False, "gap": None, "trouble": ["x"], "interrupted": False,
}  # fmt: skip
REPORT: dict[str, Any] = {
    "schema": 1, "run": FACTS, "exit": END, "silent_s": 1.0, "trouble": ["x"], "made_at": "2026-12-01T05:13:01.000000Z",
    "diagnosis": {
        "class": "traceback", "family": "code", "confidence": 0.9, "summary": "s", "root": {"line": 1, "text": "t"},
        "evidence": [{"line": 1, "text": "t", "class": "traceback", "role": "root", "rank": None}],
        "suggestions": ["do"], "warnings": ["w"], "retryable": False, "node_suspect": False,
    },
    "artifacts": [{"path": "p", "size": 1, "fate": "attached", "note": ""}],
    "notifications": [{"channel": "email", "to": ["a@b.c"], "outcome": "sent", "detail": "", "at": "2026-12-01T05:13:01Z"}],
}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"at": "2026-12-01T05:12:01.000000Z", "event": "memory", "current": 1, "working_set": 1, "limit": 2, "oom_kill": 0},
    {"at": "2026-12-01T05:12:02.000000Z", "event": "signal", "signal": 15, "name": "SIGTERM", "forwarded": True},
    {"at": "2026-12-01T05:12:03.000000Z", "event": "memory", "current": 2, "working_set": 2, "limit": 2, "oom_kill": 0},
]

WORDS = st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "1e400", "-1", "1" * 400, "true", "null", '"text"', '"\\ud800"', "[1]", "[]", "{}",
     '{"line": "x"}', '[{"path": 1}]', '"9999-12-31T23:59:59-23:59"', '"2026-12-01"', '"\\u0000"', "[[[[[[]]]]]]", "1e17"]
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every part of a plain value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in _places(item, (*path, key)))]


def _damaged(value: Any, place: tuple[Any, ...], word: str | None) -> str:
    """JSON of ``value`` with another word at one place; with None that place is left out."""
    copy = json.loads(json.dumps(value))
    if not place:
        return word or ""
    at = copy
    for key in place[:-1]:
        at = at[key]
    if word is None:
        del at[place[-1]]
    else:
        at[place[-1]] = "@@damage@@"
    return json.dumps(copy).replace('"@@damage@@"', word or "")


@st.composite
def directories(draw: st.DrawFn) -> dict[str, str]:
    """The files of a run directory, up to three places of each damaged."""
    files = {}
    for name, value in (("run.json", FACTS), ("exit.json", END), ("report.json", REPORT)):
        text = json.dumps(value)
        if draw(st.booleans()):
            text = _damaged(value, draw(st.sampled_from(_places(value))), draw(st.none() | WORDS))
        files[name] = text
    if draw(st.booleans()):
        del files[draw(st.sampled_from(sorted(files)))]
    place = draw(st.sampled_from(_places(EVENTS[0])))
    lines = [json.dumps(event) for event in EVENTS]
    lines.insert(draw(st.integers(0, 3)), _damaged(EVENTS[0], place, draw(st.none() | WORDS)))
    files["events.jsonl"] = "\n".join(lines)
    return files


def _ask(command: Any, *arguments: str) -> str:
    done = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert done.exit_code in (0, 1), done.output
    return done.output


@given(directories())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_reader_survives_a_damaged_directory(tmp_path: Path, files: dict[str, str]) -> None:
    path = tmp_path / RUN_ID
    path.mkdir(exist_ok=True)
    for old in path.iterdir():
        if old.is_file():
            old.unlink()
    for name, text in files.items():
        (path / name).write_text(text)
    (path / "output.log").write_text("ValueError: x\n")
    os.utime(path / "events.jsonl", (1, 1))
    assert _ask(runs, "--log-dir", str(tmp_path)).count("\n") == 2
    json.loads(_ask(runs, "--log-dir", str(tmp_path), "--format", "json"), parse_constant=_fail)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        run = Run.read(str(path))
        if survivor.is_open(run):
            survivor.is_alive(run)
            run = survivor.close(run)
        log = making.logger(str(path))
        made = making.make(run, making.settings_of(run, log), making.redaction(), log)
        making.write(str(path), made)
        if "report.json" in files:
            (path / "report.json").write_text(files["report.json"])
    _ask(report, str(path))
    _ask(report, "--again", "--format", "json", str(path))


def _fail(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner:
    st.lists(inner) | st.dictionaries(st.sampled_from(sorted({*FACTS, *END, *REPORT})), inner), max_leaves=30))  # fmt: skip
def test_a_shape_gives_what_fits_or_nothing(value: Any) -> None:
    for shape in (shapes.RUN, shapes.EXIT, shapes.REPORT, shapes.EVENT):
        found = shape(value)
        assert found is shapes.MISSING or shape(found) == found


@pytest.mark.parametrize(
    ("shape", "value"), [(shapes.RUN, FACTS), (shapes.EXIT, END), (shapes.REPORT, REPORT), (shapes.EVENT, EVENTS[0])]
)
def test_what_is_right_stays_as_it_is(shape: shapes.Shape, value: dict[str, Any]) -> None:
    assert shape(value) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": NaN}', {"a": None}), ("[1e400, -1e999]", [None, None]), ("9" * 5000, None), ('"\\ud800x"', "?x")],
)
def test_numbers_without_end_and_texts_that_cannot_be_written(text: str, value: Any) -> None:
    assert shapes.loads(text) == value


@pytest.mark.parametrize("text", ["[" * 100 + "]" * 100, "[" * 100_000, '{"a":' * 50 + "1" + "}" * 50])
def test_nesting_without_end_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        shapes.loads(text)


@pytest.mark.parametrize("name", ["run.json", "exit.json", "report.json", "events.jsonl"])
def test_a_pipe_or_a_device_in_place_of_a_file_is_passed_over(tmp_path: Path, name: str) -> None:
    path = tmp_path / RUN_ID
    for make in (os.mkfifo, lambda p: os.symlink("/dev/zero", p), os.mkdir):
        path.mkdir()
        make(path / name)
        began = time.monotonic()
        run = Run.read(str(path))
        assert (run.facts, run.exit, run.report, list(run.events())) == ({}, None, None, [])
        assert time.monotonic() - began < 60
        (path / name).rmdir() if (path / name).is_dir() else (path / name).unlink()
        path.rmdir()
