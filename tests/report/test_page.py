"""The timeline, its drawing, and the page: from real runs and from run directories written for the purpose."""

from __future__ import annotations

import json
import os
import re
import signal
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from conftest import Gpualert, run_dirs, wait_until
from hypothesis import given
from hypothesis import strategies as st

from gpualert.report import chart, moments, page, timeline
from gpualert.rundir import index
from gpualert.rundir.clock import rfc3339
from gpualert.rundir.reader import Run

START = 1_700_000_000_000_000


def _directory(path: Path, pieces: list[tuple[float, bytes]], events: list[dict[str, Any]], duration: float) -> Run:
    """A run directory as the supervisor leaves it: pieces of output with their times in seconds, and events."""
    path.mkdir(exist_ok=True)
    (path / "run.json").write_text(json.dumps({"run_id": "r", "started_at": rfc3339(START)}))
    ended = rfc3339(START + round(duration * 1e6))
    (path / "exit.json").write_text(json.dumps({"ended_at": ended, "duration_s": duration, "exit_code": 1}))
    (path / "output.log").write_bytes(b"".join(data for _, data in pieces))
    records = [index.record(START + round(at * 1e6), index.STDOUT, len(data)) for at, data in pieces]
    (path / "output.idx").write_bytes(index.HEADER + b"".join(records))
    stamped = [{**event, "at": rfc3339(START + round(event["at"] * 1e6))} for event in events]
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in stamped))
    return Run.read(str(path))


def _memory(at: float, used: int, limit: int = 1000) -> dict[str, Any]:
    return {"at": at, "event": "memory", "current": used, "working_set": used, "limit": limit}


def test_output_memory_signals_and_the_decisive_line(tmp_path: Path) -> None:
    pieces = [(1.0, b"a" * 99 + b"\n"), (50.0, b"b" * 199 + b"\n"), (90.0, b"the cause\n"), (91.0, b"after\n")]
    events = [_memory(0, 100), _memory(60, 900), {"at": 95.0, "event": "signal", "name": "SIGTERM"}, _memory(99, 990)]
    found = timeline.of(_directory(tmp_path / "r", pieces, events, 120.0), root_line=3)
    assert found is not None
    assert (found["duration_s"], found["cause_at"]) == (120.0, rfc3339(START + 90_000_000))
    output, memory = found["lanes"]
    assert sum(rate for _, rate in output["points"]) == 100 + 200 + 10 + 6
    assert [at for at, rate in output["points"] if rate] == [1.0, 50.0, 90.0, 91.0]
    assert (memory["limit"], memory["points"]) == (1000, [[0.0, 100], [60.0, 900], [99.0, 990]])
    assert [(mark["at_s"], mark["label"]) for mark in found["marks"]] == [(90.0, "decisive line"), (95.0, "SIGTERM")]


def _marks(path: Path, events: list[dict[str, Any]], cgroup: Any = None) -> list[tuple[float, str, str]]:
    run = _directory(path, [(1.0, b"a\n"), (90.0, b"the cause\n")], events, 120.0)
    assert run.exit is not None
    run.exit["cgroup"] = cgroup
    found = timeline.of(run, root_line=2)
    assert found is not None
    return [(mark["at_s"], mark["kind"], mark["label"]) for mark in found["marks"]]


def test_limits_kills_trouble_and_stops_are_marked(tmp_path: Path) -> None:
    events = [
        {"at": 0, "event": "trouble", "message": "a mistake in the configuration"},
        {"at": 0, "event": "launched"},
        {**_memory(1, 100), "oom_kill": 3},
        {"at": 5, "event": "stopped"},
        {"at": 6, "event": "continued"},
        {**_memory(10, 100), "oom_kill": 3},
        {**_memory(20, 100), "oom_kill": 4},
        {
            "at": 30,
            "event": "trouble",
            "message": "cannot write /runs/r/output.log (No space left on device): and so on",
        },
        {**_memory(40, 100), "oom_kill": 6},
        {"at": 100, "event": "timeout", "after_s": 100},
        {"at": 119, "event": "exited"},
        {"at": 119.5, "event": "trouble", "message": "the reporter was slow"},
    ]
    assert _marks(tmp_path / "r", events, {"oom_kill": 4}) == [
        (1, "oom", "out-of-memory kill"), (5, "stopped", "stopped"), (6, "continued", "continued"),
        (20, "oom", "out-of-memory kill"), (30, "trouble", "trouble: cannot write /runs/r/output.log"),
        (40, "oom", "2 out-of-memory kills"), (90, "cause", "decisive line"), (100, "timeout", "time limit"),
    ]  # fmt: skip


def test_of_many_marks_the_ones_that_matter_stay(tmp_path: Path) -> None:
    events = [{"at": at, "event": "signal", "name": f"SIG{at % 50}"} for at in range(1, 101)]
    events += [{"at": 101 + n / 100, "event": "stopped"} for n in range(50)] + [{"at": 2, "event": "timeout"}]
    events += [{"at": 3 + n / 100, "event": "signal", "name": "SIGUSR1"} for n in range(50)]
    marks = _marks(tmp_path / "r", events)
    assert len(marks) == moments.MARKS
    assert {(90, "cause", "decisive line"), (2, "timeout", "time limit")} < set(marks)
    assert [mark for mark in marks if mark[1] == "stopped"] == []
    alike = _marks(tmp_path / "s", events[-50:])
    assert [mark[0] for mark in alike] == [3.46, 3.47, 3.48, 3.49, 90]


def test_a_real_run_that_was_stopped_continued_and_timed_out_is_marked_so(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", "echo $$; while :; do sleep 0.1; done"], "--timeout", "4s", "--tty", "never")
    started.wait_for(b"\n")
    path = run_dirs(plain.log_dir)[0]
    child = int((path / "output.log").read_bytes())
    for number, event in ((signal.SIGSTOP, "stopped"), (signal.SIGCONT, "continued")):
        os.kill(child, number)
        wait_until(lambda event=event: f'"{event}"' in (path / "events.jsonl").read_text(), event)
    done = started.finish()
    kinds = [mark["kind"] for mark in done.json("report.json")["timeline"]["marks"]]
    assert kinds == ["stopped", "continued", "timeout"]


def test_a_clock_that_was_set_back_and_a_missing_index_harm_nothing(tmp_path: Path) -> None:
    run = _directory(tmp_path / "r", [(5.0, b"x\n"), (-3600.0, b"y\n")], [_memory(-50, 1), _memory(500, 2)], 10.0)
    found = timeline.of(run, root_line=2)
    assert found is not None
    assert all(0 <= at <= 10 for lane in found["lanes"] for at, _ in lane["points"])
    assert all(0 <= mark["at_s"] <= 10 for mark in found["marks"])
    (tmp_path / "r" / "output.idx").write_bytes(b"garbage")
    (tmp_path / "r" / "events.jsonl").write_bytes(b"\xff{")
    bare = timeline.of(run, root_line=1)
    assert bare is not None
    assert (bare["lanes"], bare["marks"], bare["cause_at"]) == ([], [], None)
    assert timeline.of(Run(str(tmp_path))) is None


_POINTS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e15)).map(list), min_size=1, max_size=130)
_LANES = st.fixed_dictionaries({
    "name": st.text(), "unit": st.sampled_from(["bytes", "bytes/s", "%"]), "limit": st.none() | st.integers(0, 2**60),
    "points": _POINTS,
})  # fmt: skip
_MARKS = st.fixed_dictionaries(
    {"at_s": st.floats(0, 100), "kind": st.sampled_from(["signal", "cause"]), "label": st.text()}
)


@given(st.lists(_LANES, min_size=1, max_size=4), st.lists(_MARKS, max_size=20))
def test_whatever_the_numbers_the_drawing_stays_on_the_canvas(lanes: list[Any], marks: list[Any]) -> None:
    drawn = chart.draw({"start": "", "duration_s": 100.0, "lanes": lanes, "marks": marks, "cause_at": None})
    assert drawn is not None
    for lane in drawn.lanes:
        for x, y in re.findall(r"(-?[\d.e+]+),(-?[\d.e+]+)", lane.area):
            assert 0 <= float(x) <= drawn.width
            assert lane.top - 0.1 <= float(y) <= lane.bottom + 0.1
    assert all(0 <= mark.x <= drawn.width for mark in drawn.marks)
    for lane in lanes:
        assert len(chart.spark(lane, 100.0)) == chart.SPARK_COLUMNS


def test_labels_that_would_overlap_stand_in_rows(tmp_path: Path) -> None:
    marks = [{"at_s": at, "kind": "signal", "label": "SIGTERM"} for at in (10.0, 10.5, 60.0, 99.0)]
    lane = {"name": "output", "unit": "bytes/s", "limit": None, "points": [[0.0, 1.0]]}
    drawn = chart.draw({"start": "", "duration_s": 100.0, "lanes": [lane], "marks": marks, "cause_at": None})
    assert drawn is not None
    assert [mark.row for mark in drawn.marks] == [0, 1, 0, 0]
    assert [mark.anchor for mark in drawn.marks] == ["start", "start", "start", "end"]


def test_sparks_show_the_shape() -> None:
    lane = {"name": "m", "unit": "bytes", "limit": 80, "points": [[0.0, 0], [25.0, 20], [50.0, 40], [75.0, 80]]}
    assert chart.spark(lane, 100.0, 8) == "  ▂▂▄▄██"


def test_the_page_of_a_real_run_is_made_from_its_report_alone(plain: Gpualert) -> None:
    script = "echo before; echo 'ValueError: bad <b>value</b>' >&2; sleep 0.3; exit 1"
    done = plain.run(["sh", "-c", script], env={"CUDA_VISIBLE_DEVICES": "0,1"})
    report = done.json("report.json")
    assert page.render(report) == done.file("report.html").decode()
    assert report["cost"]["gpu_hours"] > 0
    html = done.file("report.html").decode()
    assert "bad &lt;b&gt;value&lt;/b&gt;" in html
    assert "<b>value" not in html
    drawing = ET.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    assert drawing.attrib["role"] == "img"
    assert "output up to" in drawing.attrib["aria-label"]
    # Nothing is fetched and nothing runs.
    assert not re.search(r"<script|<link|<img|<iframe|src=|@import|url\(", html)
    assert "default-src 'none'" in html
