"""What a run and a job have used up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from measured_job import Gpu, Job, at, gpu

from gpualert.report import building, cost
from gpualert.rundir.reader import Run


def _cost(run: Run, silent_s: float | None = 0.0) -> dict[str, Any]:
    found = building.course_of(run, 3600.0, silent_s)["cost"]
    assert isinstance(found, dict)
    return found


def _with(count: int, **figures: Any) -> Any:
    def gpus(seconds: float) -> list[Gpu]:
        return [
            gpu(n, **{key: value(seconds) if callable(value) else value for key, value in figures.items()})
            for n in range(count)
        ]

    return gpus


def test_gpus_that_only_the_driver_knows_count(tmp_path: Path) -> None:
    job = Job(tmp_path / "r")
    job.inventory(8)
    found = _cost(job.end(), 1800)
    assert (found["gpus"], found["gpu_hours"], found["silent_gpu_hours"]) == (8, 8.0, 4.0)
    assert found["devices"] == [f"GPU-{n:04d}" for n in range(8)]
    assert (found["idle_gpu_hours"], found["energy_kwh"]) == (None, None)


def test_the_environment_outranks_the_driver_and_no_gpu_costs_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path / "two", gpus=2)
    job.inventory(8)
    assert _cost(job.end())["gpu_hours"] == 2.0
    none = Job(tmp_path / "none", gpus=0)
    none.inventory(8)
    assert building.course_of(none.end(), 3600.0, 0.0)["cost"] is None
    assert building.course_of(Job(tmp_path / "cpu").end(), 3600.0, 0.0)["cost"] is None


def test_idle_is_what_came_after_the_last_step(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", gpus=8)
    job.samples(_with(8, utilization=100))  # NCCL's kernels spin
    job.line("progress", 1800, step=41200)
    found = _cost(job.end())
    assert (found["idle_gpu_hours"], found["idle_by"]) == (4.0, "progress")
    lively = Job(tmp_path / "lively", gpus=8)
    lively.line("progress", 3570, step=41200)
    assert _cost(lively.end())["idle_gpu_hours"] == 0.0


def test_without_progress_idle_is_the_time_at_zero_percent(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", gpus=2)
    for seconds in range(0, 3601, 300):
        both = [gpu(0, utilization=95), gpu(1, utilization=95 if seconds < 1800 else 0)]
        job.line("sample", seconds, gpus=both)
    found = _cost(job.end())
    assert found["idle_by"] == "utilization"
    assert found["idle_gpu_hours"] == pytest.approx((3600 - 1500) / 3600)


def test_a_hang_at_the_end_idles_since_its_silence_began(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", gpus=4)
    job.samples(_with(4, utilization=100))
    job.line("hang", 3000, state="suspected", why="stuck", silent_s=600, since=at(900))
    found = _cost(job.end())
    assert (found["idle_gpu_hours"], found["idle_by"]) == (3.0, "hang")


def test_energy_comes_from_the_counters_and_survives_one_that_was_set_back(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", gpus=2)
    job.line("sample", 5, gpus=[gpu(0, energy_j=9e6, power_w=700), gpu(1, energy_j=1e6, power_w=700)])
    job.line("sample", 1800, gpus=[gpu(0, energy_j=9.6e6, power_w=700), gpu(1, energy_j=1e5, power_w=700)])
    job.line("sample", 3600, gpus=[gpu(0, energy_j=10.2e6, power_w=700), gpu(1, energy_j=4e5, power_w=700)])
    found = _cost(job.end())
    assert found["energy_by"] == "counter"
    assert found["energy_kwh"] == pytest.approx((1.2e6 + 1e5 + 3e5) / 3.6e6)


def test_without_counters_energy_is_summed_from_power_and_said_to_be(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", gpus=2)
    job.samples(_with(2, power_w=500), every=60)
    found = _cost(job.end())
    assert found["energy_by"] == "power"
    assert found["energy_kwh"] == pytest.approx(1.0, rel=0.02)
    assert ("energy", "about 0.983 kWh") in cost.words(found)


def test_a_gap_in_the_samples_is_not_made_up(tmp_path: Path) -> None:
    job = Job(tmp_path / "r", gpus=1)
    job.samples(_with(1, power_w=500, utilization=0), every=60, until=600)
    job.line("sample", 3600, gpus=[gpu(0, power_w=500, utilization=0)])
    found = _cost(job.end())
    assert found["idle_gpu_hours"] == pytest.approx(540 / 3600)
    assert found["energy_kwh"] == pytest.approx(500 * 540 / 3.6e6)


def test_ranks_that_share_their_gpus_do_not_count_them_twice() -> None:
    shared = [f"GPU-{n}" for n in range(8)]
    rank = {"gpus": 8, "energy_kwh": 4.0, "energy_by": "counter", "idle_gpu_hours": 2.0, "devices": shared}
    found = cost.together(None, 3600.0, 900.0, [rank] * 8)
    assert found is not None
    assert (found["gpus"], found["gpu_hours"], found["silent_gpu_hours"]) == (8, 8.0, 2.0)
    assert (found["energy_kwh"], found["idle_gpu_hours"], found["energy_by"]) == (4.0, 2.0, "counter")


def test_ranks_of_several_nodes_are_summed_and_silent_ones_are_told_of() -> None:
    ranks: list[dict[str, Any] | None] = [
        {"gpus": 8, "energy_kwh": 4.0, "energy_by": "counter", "devices": [f"GPU-{node}-{n}" for n in range(8)]}
        for node in range(2)
    ]
    found = cost.together(None, 3600.0, None, [*ranks, None])
    assert found is not None
    assert (found["gpus"], found["energy_kwh"], found["ranks_known"], found["idle_gpu_hours"]) == (16, 8.0, 2, None)
    assert cost.together(None, 3600.0, 0.0, [None, None]) is None


def test_only_what_is_worth_a_word_is_said() -> None:
    small = {"gpu_hours": 0.004, "silent_gpu_hours": 0.001, "idle_gpu_hours": None, "energy_kwh": 0.0001}
    assert cost.words(small) == []
    assert cost.words(None) == []
    large = {
        "gpu_hours": 33.0,
        "silent_gpu_hours": 4.5,
        "idle_gpu_hours": 4.1,
        "energy_kwh": 12.34,
        "energy_by": "counter",
    }
    assert cost.words(large) == [("GPU-hours", "33.0"), ("of them idle", "4.1"), ("energy", "12.3 kWh")]
