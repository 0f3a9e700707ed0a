"""The lanes and marks that come from the collector's record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measured_job import GIB, Gpu, Job, at, gpu

from gpualert.report import chart, lanes, moments, timeline
from gpualert.rundir.reader import Run
from gpualert.telemetry import record


def _timeline(run: Run) -> dict[str, Any]:
    found = timeline.of(run, None, record.read(run.path))
    assert found is not None
    return found


def _lane(run: Run, name: str) -> dict[str, Any] | None:
    return next((lane for lane in _timeline(run)["lanes"] if lane["name"] == name), None)


def _busy(count: int) -> Any:
    def gpus(seconds: float) -> list[Gpu]:
        return [
            gpu(n, utilization=90 - n if seconds < 1800 else 0, memory_used=(40 + n) * GIB, power_w=400)
            for n in range(count)
        ]

    return gpus


def test_several_gpus_make_one_lane_with_a_band_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    job = Job(tmp_path / "r")
    job.inventory(8)
    job.samples(_busy(8))
    run = job.end()
    lane = _lane(run, "GPU utilisation")
    assert lane is not None
    assert (lane["unit"], lane["limit"]) == ("%", None)
    assert lane["points"][0] == [5.0, 86.5]
    assert lane["band"][0] == [5.0, 83, 90]
    assert lane["points"][-1][1] == 0
    assert len(lane["points"]) <= lanes.POINTS
    memory = _lane(run, "GPU memory")
    assert memory is not None
    assert (memory["limit"], memory["points"][0][1], memory["band"][0][1:]) == (
        80 * GIB,
        47 * GIB,
        [40 * GIB, 47 * GIB],
    )
    power = _lane(run, "GPU power")
    assert power is not None
    assert {value for _, value in power["points"]} == {400}


def test_one_gpu_has_no_band_and_no_lane_of_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path / "r")
    job.samples(_busy(1))
    run = job.end()
    lane = _lane(run, "GPU utilisation")
    assert lane is not None
    assert "band" not in lane
    assert _timeline(run)["gpus"] == []


def test_each_of_several_gpus_has_its_own_lane_in_their_order_but_not_of_too_many(tmp_path: Path) -> None:
    job = Job(tmp_path / "r")
    job.samples(_busy(12))
    found = _timeline(job.end())["gpus"]
    assert [lane["name"] for lane in found] == [f"GPU {n}" for n in range(12)]
    assert all(len(lane["points"]) <= lanes.OWN_POINTS for lane in found)
    many = Job(tmp_path / "many")
    many.samples(_busy(lanes.OWN_MAX + 1), every=300)
    run = many.end()
    assert _timeline(run)["gpus"] == []
    assert _lane(run, "GPU utilisation") is not None


def test_shared_memory_and_pressure_appear_only_where_they_tell_something(tmp_path: Path) -> None:
    quiet = Job(tmp_path / "quiet")
    quiet.samples(lambda _: [], shm_used=6 << 20, shm_size=64 << 20, psi={"memory_some": 0.9, "of": "group"})
    run = quiet.end()
    assert _timeline(run)["lanes"] == []
    full = Job(tmp_path / "full")
    full.samples(
        lambda _: [],
        shm_used=lambda seconds: int(seconds / 3600 * (63 << 20)),
        shm_size=64 << 20,
        psi=lambda seconds: {"memory_some": 40.0 if seconds > 3000 else 0.0, "of": "group"},
    )
    run = full.end()
    shm, pressure = _lane(run, "shared memory"), _lane(run, "memory pressure")
    assert shm is not None
    assert pressure is not None
    assert shm["limit"] == 64 << 20
    assert max(value for _, value in shm["points"]) > 62 << 20
    assert chart.said(pressure) == "up to 40 % waiting"


def test_training_steps_stand_still_while_no_progress_was_written_down(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", duration=3600)
    for seconds in range(60, 1201, 30):
        job.line("progress", seconds, step=1000 + 3 * seconds)
    job.line("progress", 2400, step=1000 + 3 * 1260)
    lane = _lane(job.end(), "training steps")
    assert lane is not None
    rates = dict(lane["points"])
    assert lane["points"][0][0] == 60
    assert rates[600.0] == 3.0
    assert rates[1500.0] == rates[2100.0] == 0.0
    # The sixty seconds' worth of steps after the pause were made at its end.
    assert rates[2370.0] == rates[2340.0] == 3.0
    assert lane["points"][-1][1] == 0.0


def test_a_counter_that_begins_anew_takes_no_steps_back(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", duration=300)
    for seconds in range(0, 301, 30):
        job.line("progress", seconds, step=seconds % 150)
    lane = _lane(job.end(), "training steps")
    assert lane is not None
    assert all(0 <= rate <= 1.01 for _, rate in lane["points"])
    assert max(rate for _, rate in lane["points"]) > 0.9


def test_a_record_that_holds_only_the_first_and_the_last_progress_makes_no_spike(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", duration=100_000)
    for seconds in range(30, 3001, 30):
        job.line("progress", seconds, step=seconds)
    job.line("progress", 99_990, step=99_990)
    lane = _lane(job.end(), "training steps")
    assert lane is not None
    assert max(rate for _, rate in lane["points"]) <= 1.01


def test_the_steps_of_a_run_of_days_are_drawn_to_its_end(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", duration=150_000)
    for seconds in range(30, 150_001, 30):
        job.line("progress", seconds, step=seconds if seconds < 75_000 else 75_000 + (seconds - 75_000) // 5)
    lane = _lane(job.end(), "training steps")
    assert lane is not None
    first, second = (
        [rate for at_s, rate in lane["points"] if early == (at_s < 75_000)][1:-1] for early in (True, False)
    )
    assert (min(first), max(first)) == pytest.approx((1.0, 1.0), rel=0.01)
    assert (min(second), max(second)) == pytest.approx((0.2, 0.2), rel=0.01)


def test_xids_hangs_and_the_kernels_words_are_marked(tmp_path: Path) -> None:
    job = Job(tmp_path / "r")
    job.line("hang", 700, state="suspected", why="no output for 10m", silent_s=600, since=at(100))
    job.line("hang", 900, state="over", silent_s=800, since=at(100))
    job.line("kernel", 2990, text="NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.", about="own")
    job.line("xid", 3000, code=79, gpu=3, uuid="GPU-0003", **{"class": "gpu_lost"})
    job.line("kernel", 3010, text="Memory cgroup out of memory: Killed process 17 (python)", about="own")
    job.line("kernel", 3020, text="nfs: server store not responding", about="node")
    job.line("hang", 3500, state="suspected", why="no output for 8m", silent_s=480, since=at(3030))
    marks = _timeline(job.end())["marks"]
    assert [(mark["at_s"], mark["kind"], mark["label"], mark.get("to_s")) for mark in marks] == [
        (100.0, "hang", "hang (13m20s)", 900.0),
        (3000.0, "xid", "Xid 79 on GPU 3", None),
        (3010.0, "kernel", "kernel: Memory cgroup out of memory: Kil", None),
        (3020.0, "node", "kernel: nfs: server store not responding", None),
        (3030.0, "hang", "hang (9m30s)", 3600.0),
    ]


def test_xids_go_before_the_nodes_kernel_lines_when_there_are_too_many(tmp_path: Path) -> None:
    job = Job(tmp_path / "r")
    for number in range(40):
        job.line("kernel", 10 + number, text=f"nfs: server store{number} not responding", about="node")
    job.line("xid", 5, code=94)
    marks = _timeline(job.end())["marks"]
    assert len(marks) == moments.MARKS
    assert marks[0]["label"] == "Xid 94"


def test_the_mail_takes_the_most_telling_lanes() -> None:
    names = ["output", "training steps", "GPU utilisation", "GPU memory", "GPU power", "host memory", "shared memory",
             "memory pressure"]  # fmt: skip
    told = {"duration_s": 10, "lanes": [{"name": name} for name in names]}
    kept = [lane["name"] for lane in chart.telling(told)]
    assert kept == ["output", "training steps", "GPU utilisation", "GPU memory", "host memory", "memory pressure"]
    assert chart.telling(None) == []


def test_a_share_is_drawn_against_all_and_a_band_reaches_to_its_highest() -> None:
    lane = {"name": "GPU utilisation", "unit": "%", "limit": None, "points": [[0.0, 25], [50.0, 50]],
            "band": [[0.0, 0, 50], [50.0, 50, 50]]}  # fmt: skip
    drawn = chart.draw({"duration_s": 100.0, "lanes": [lane], "marks": [], "gpus": [lane]})
    assert drawn is not None
    (one,) = drawn.lanes
    assert one.said == "38 % on average"
    middle = one.bottom - (one.bottom - one.top) / 2
    assert one.band == f"M8.0,{middle} L480.0,{middle} L480.0,{middle} L8.0,{one.bottom:.1f} Z"
    assert [(small.name, small.bottom - small.top) for small in drawn.own] == [("GPU utilisation", chart.SMALL)]
    assert chart.spark(lane, 100.0, 4) == "▂▂▄▄"


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.sampled_from([
    "gpus", "psi", "shm_used", "shm_size", "step", "code", "gpu", "text", "about", "state", "since", "scene", "processes",
    "driver", "vendor", "silent_s", "why",
])  # fmt: skip
_FIGURE = st.none() | st.integers(-1, 2**62) | st.floats(0, 200)
_GPUS = st.lists(
    st.fixed_dictionaries({}, optional={
        "index": _FIGURE, "uuid": st.none() | st.text(max_size=4), "name": st.none() | st.text(), "utilization": _FIGURE,
        "memory_used": _FIGURE, "memory_total": _FIGURE, "power_w": _FIGURE, "energy_j": _FIGURE, "temperature_c": _FIGURE,
        "ecc_corrected": _FIGURE, "lost": st.none() | st.booleans(), "throttle": st.none() | st.lists(st.text()),
    }),
    max_size=3,
)  # fmt: skip
_LINES = st.lists(
    st.tuples(
        st.sampled_from(["sample", "inventory", "xid", "kernel", "progress", "hang", "peaks"]),
        st.dictionaries(_FIELDS, _ANY, max_size=6) | st.fixed_dictionaries({"gpus": _GPUS}),
        st.integers(0, 3600),
    ),
    max_size=12,
)


@given(_LINES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_whatever_the_record_holds_a_report_is_made_drawn_and_finite(tmp_path: Path, lines: list[Any]) -> None:
    from gpualert.report import building, cost, hang, machine, page, scene

    path = tmp_path / "r"
    if not path.exists():
        Job(path).end()
    text = [json.dumps({**fields, "at": at(seconds), "kind": kind}) for kind, fields, seconds in lines]
    (path / record.NAME).write_text("\n".join(text))
    found = building.course_of(Run.read(str(path)), 3600.0, 60.0)
    assert math.isfinite(json.loads(json.dumps(found, allow_nan=False))["timeline"]["duration_s"])
    chart.draw(found["timeline"])
    machine.lines(found["machine"])
    machine.details(found["machine"])
    cost.words(found["cost"])
    if found["hang"] is not None:
        scene.stacks_text(found["hang"]["scene"])
        assert hang.line(found["hang"]).isprintable()
    assert page.environment() is not None
