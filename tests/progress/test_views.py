"""Where people see how far a training got: from the collector's record, else from the end of the log."""

from __future__ import annotations

import html
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON, Gpualert

from gpualert.notify import notice
from gpualert.report import page, progress, terminal, termination
from gpualert.rundir import index
from gpualert.rundir.clock import rfc3339
from gpualert.rundir.reader import Run
from gpualert.telemetry.record import NAME, Record

START = 1_780_000_000.0
OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
TRAINING = f"for i in $(seq 41190 41200); do echo epoch 3 step $i/50000 loss 1.873; done; echo '{OOM}' >&2; exit 1"
RECORDED: dict[str, Any] = {
    "at": rfc3339(int((START + 95) * 1e6)), "format": "lines", "step": 41_000, "total": 50_000, "unit": "step", "epoch": 3,
    "loss": 1.9, "rate": 3.1, "slower": 0.42, "since": rfc3339(int(START * 1e6)), "finish_in_s": 2903.2,
}  # fmt: skip


def _call(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUALERT_")}
    argv = [PYTHON, "-I", "-m", "gpualert", *arguments]
    return subprocess.run(argv, env=environment, capture_output=True, check=False, timeout=60)


def _directory(path: Path, pieces: list[tuple[float, bytes]], *, indexed: bool = True) -> Run:
    """A run directory with pieces of output that came so many seconds after the start."""
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"run_id": "r", "started_at": rfc3339(int(START * 1e6))}))
    last = rfc3339(int((START + pieces[-1][0]) * 1e6))
    (path / "exit.json").write_text(json.dumps({"exit_code": 1, "duration_s": 100.0, "last_output_at": last}))
    (path / "output.log").write_bytes(b"".join(data for _, data in pieces))
    records = [index.record(int((START + at) * 1e6), index.STDOUT, len(data)) for at, data in pieces]
    if indexed:
        (path / "output.idx").write_bytes(index.HEADER + b"".join(records))
    return Run.read(str(path))


def test_a_failed_training_says_how_far_it_got(plain: Gpualert, tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    done = plain.run(["sh", "-c", TRAINING], "--termination-log", str(message), "--name", "llama")
    found = done.json("report.json")["progress"]
    assert (found["step"], found["total"], found["epoch"], found["loss"]) == (41_200, 50_000, 3, 1.873)
    assert "finish_in_s" not in found
    assert "gpualert:   got to step 41200 of 50000 (82 %), epoch 3, loss 1.873" in done.said
    assert ", at step 41200 of 50000 (82 %), epoch 3, last output " in message.read_text().splitlines()[1]
    shown = html.unescape(done.file("report.html").decode())
    assert "<dt>got to</dt><dd>step 41200 of 50000 (82 %), epoch 3</dd>" in shown
    assert "<th>progress</th><td>step 41200 of 50000 (82 %), epoch 3, loss 1.873" in shown
    told = _call("report", "--log-dir", str(plain.log_dir)).stdout.decode().splitlines()
    assert told[2].startswith("got to step 41200 of 50000 (82 %), epoch 3, loss 1.873")
    row = _call("runs", "--log-dir", str(plain.log_dir)).stdout.decode().splitlines()[1]
    assert " cuda_oom             41200/50000 82%  " in row


def test_a_success_says_nothing_more_but_the_list_of_runs_shows_it(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "for i in 1 2 3; do echo step $i/3 loss 0.5; done"])
    assert done.said == []
    (row,) = json.loads(_call("runs", "--log-dir", str(plain.log_dir), "--format", "json").stdout)
    assert (row["class"], row["progress"]["step"], row["progress"]["total"]) == ("success", 3, 3)


def test_a_run_without_training_says_nothing_of_progress(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "echo hello; exit 3"])
    assert done.json("report.json")["progress"] is None
    assert not any("got to" in line for line in done.said)
    assert b">progress<" not in done.file("report.html")
    row = _call("runs", "--log-dir", str(plain.log_dir)).stdout.decode().splitlines()[1]
    assert row.split()[-2] == "-"


def test_the_list_shows_how_far_a_run_is_that_goes_on(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "echo step 7/50 loss 2.5; exec sleep 60"])
    try:
        started.wait_for(b"step 7/50")
        rows = json.loads(_call("runs", "--log-dir", str(plain.log_dir), "--format", "json").stdout)
        assert [(row["state"], row["progress"]["step"]) for row in rows] == [("running", 7)]
        refused = _call("report", "--log-dir", str(plain.log_dir)).stderr.decode()
        assert "is still running: step 7 of 50 (14 %), loss 2.5" in refused
    finally:
        started.process.terminate()
        started.finish()


def test_the_end_of_the_log_is_read_at_the_pace_in_which_it_came(tmp_path: Path) -> None:
    pieces = [(float(at), f"step {at * 4}/50000 loss 2.5\n".encode()) for at in range(0, 300, 2)]
    found = progress.of(_directory(tmp_path / "r", [*pieces, (400.0, b"goodbye\n")]))
    assert found is not None
    assert found["step"] == 298 * 4
    assert START + 290 <= _seconds(found["at"]) <= START + 300  # not when the last output came
    assert found["rate"] == pytest.approx(4, rel=0.1)


def _seconds(moment: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(moment).timestamp()


def test_without_an_index_the_last_output_is_the_time(tmp_path: Path) -> None:
    found = progress.of(_directory(tmp_path / "r", [(1.0, b"step 7/50 loss 2.5\n"), (40.0, b"end\n")], indexed=False))
    assert found == {
        "at": rfc3339(int((START + 40) * 1e6)), "format": "lines", "step": 7, "total": 50, "unit": "step", "loss": 2.5,
    }  # fmt: skip


def test_a_bar_that_was_cut_by_two_pieces_is_read(tmp_path: Path) -> None:
    bar = "\r 10%|█         | 400/4000 [01:02<33:21,  1.94it/s]".encode()
    run = _directory(tmp_path / "r", [(1.0, bar), (20.0, bar.replace(b"400/", b"440/")[:30]), (40.0, bar[30:])])
    found = progress.of(run)
    assert found is not None
    assert (found["step"], found["total"]) == (440, 4000)


def _recorded(directory: Path, *lines: dict[str, Any]) -> None:
    record = Record(str(directory))
    for line in lines:
        record.add("progress", line)
        record.add("sample", {"rss": 1})
    record.close()


def test_what_the_collector_recorded_is_brought_up_to_date_by_the_log(tmp_path: Path) -> None:
    run = _directory(tmp_path / "r", [(99.0, b"epoch 3 step 41200/50000 loss 1.873\n")])
    _recorded(tmp_path / "r", {**RECORDED, "step": 100}, RECORDED)
    found = progress.of(run)
    kept = {name: RECORDED[name] for name in ("format", "total", "unit", "epoch", "rate", "slower", "since")}
    assert found == {**kept, "at": rfc3339(int((START + 99) * 1e6)), "step": 41_200, "loss": 1.873}


def test_a_new_epoch_in_the_log_is_newer_than_a_higher_step_of_the_last_one(tmp_path: Path) -> None:
    bar = "Epoch 4:   1%|▏| 10/1000 [00:01<01:39, 10.0it/s, v_num=3, loss=0.4]\n"
    run = _directory(tmp_path / "r", [(99.0, bar.encode())])
    _recorded(tmp_path / "r", {**RECORDED, "format": "lightning", "step": 990, "total": 1000, "epoch": 3})
    found = progress.of(run)
    assert found is not None
    assert (found["step"], found["epoch"], found["loss"], found["rate"]) == (10, 4, 0.4, 3.1)


def test_a_log_that_tells_of_no_step_leaves_what_was_recorded(tmp_path: Path) -> None:
    run = _directory(tmp_path / "r", [(99.0, b"goodbye\n")])
    _recorded(tmp_path / "r", RECORDED)
    assert progress.of(run) == {name: value for name, value in RECORDED.items() if name != "finish_in_s"}
    assert progress.of(run, goes_on=True) == RECORDED


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\0\0\0\0",
        b'{"at": "2026-12-01T05:12:00Z", "kind": "progress", "step": 5',
        b'{"at": "yesterday", "kind": "progress", "step": 5}',
        b'{"kind": "progress", "step": 5}',
        b'{"at": "2026-12-01T05:12:00Z", "kind": "sample", "text": "progress", "step": 5}',
        b'["progress"]',
        b'"progress"',
        b'{"kind": "progress", "a": ' + b"[" * 100_000 + b"}",
    ],
)
def test_a_record_that_is_none_is_passed_over(tmp_path: Path, line: bytes) -> None:
    run = _directory(tmp_path / "r", [(99.0, b"step 7 loss 2.5\n")])
    (tmp_path / "r" / NAME).write_bytes(line + b"\n")
    found = progress.of(run)
    assert found is not None
    assert found["step"] == 7


def test_forged_values_of_a_record_are_dropped(tmp_path: Path) -> None:
    run = _directory(tmp_path / "r", [(99.0, b"goodbye\n")])
    forged = {
        "kind": "progress", "at": RECORDED["at"], "step": 5, "total": "many", "epoch": 1e300, "loss": [1], "rate": -1,
        "slower": 7, "unit": "x" * 1000, "more": {"a": 1},
    }  # fmt: skip
    (tmp_path / "r" / NAME).write_text(json.dumps(forged) + "\n")
    assert progress.of(run) == {"at": RECORDED["at"], "step": 5, "unit": "x" * 40}


@pytest.mark.parametrize("name", [NAME, "output.log", "output.idx"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    run = _directory(tmp_path / "r", [(99.0, b"step 7 loss 2.5\n")])
    (tmp_path / "r" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "r" / name)
    found = progress.of(run)
    assert (found or {}).get("step") == (None if name == "output.log" else 7)


def _report(diagnosis: str | None, found: dict[str, Any] | None) -> dict[str, Any]:
    judged: dict[str, Any] = {
        "class": diagnosis, "family": "gpu", "confidence": 0.9, "summary": "it broke", "root": None, "evidence": [],
        "suggestions": [], "retryable": False, "node_suspect": False,
    }  # fmt: skip
    return {
        "run": {"run_id": "r", "name": "llama", "node": "gpu-17"}, "exit": {"exit_code": 1, "duration_s": 11_520.0},
        "diagnosis": judged if diagnosis else None, "silent_s": 4.0, "cost": None, "progress": found, "timeline": None,
        "quotes": {"context": [], "traceback": [], "tail": ["the last line"]}, "artifacts": [], "notifications": [],
        "trouble": [], "made_at": "2026-12-01T05:12:00Z", "gpualert": "0",
    }  # fmt: skip


def test_a_mail_of_a_run_that_goes_on_says_how_far_it_is_and_how_long_it_needs() -> None:
    told = notice.make("progress", _report(None, RECORDED), [], "/logs/r")
    assert told.subject == "[gpualert] llama is running (gpu-17) since 3h12m: step 41000 of 50000 (82 %), epoch 3"
    assert "progress step 41000 of 50000 (82 %), epoch 3, about 48m23s left" in told.text
    assert "42 % slower than before since" in told.text
    assert told.short.startswith("step 41000 of 50000 (82 %), epoch 3, loss 1.9, 3.1 steps/s, 42 % slower")
    assert "about" in told.html


def test_a_mail_of_a_failure_says_how_far_it_got() -> None:
    told = notice.make("ended", _report("cuda_oom", RECORDED), [], "/logs/r")
    assert "got to step 41000 of 50000 (82 %), epoch 3" in told.text
    assert " left" not in told.text
    assert told.short.splitlines()[1].startswith("got to step 41000 of 50000 (82 %), epoch 3, loss 1.9, 42 % slower")


def test_reports_of_earlier_versions_have_no_progress() -> None:
    report = _report("cuda_oom", None)
    del report["progress"]
    assert "got to" not in terminal.block(report, "/logs/r", "")
    assert b", at " not in termination.text(report, "/logs/r", 4096)
    assert "got to" not in page.render(report)
    assert "got to" not in notice.make("ended", report, [], "/logs/r").text


@pytest.mark.parametrize("room", [200, 400, 4096])
def test_a_termination_message_with_progress_keeps_to_its_room(room: int) -> None:
    message = termination.text(_report("cuda_oom", RECORDED), "/logs/r", room)
    assert len(message) <= room
    assert message.startswith(b"cuda_oom: it broke (exit 1)\n")
    assert json.loads(message.splitlines()[-1])["gpualert"] == 1


def test_units_that_hold_what_a_terminal_would_act_on_are_shown_harmless() -> None:
    report = _report("cuda_oom", {**RECORDED, "unit": "\x1b[2J\n"})
    assert "\x1b" not in terminal.block(report, "/logs/r", "")
    assert "\x1b" not in notice.make("ended", report, [], "/logs/r").text
    assert "\x1b" not in notice.make("ended", report, [], "/logs/r").short
    assert b"\x1b" not in termination.text(report, "/logs/r", 4096)
