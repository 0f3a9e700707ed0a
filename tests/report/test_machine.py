"""What the report tells of the machine."""

from __future__ import annotations

import json
from pathlib import Path

from measured_job import GIB, Gpu, Job, gpu

from gpualert.report import building, devices, machine, page
from gpualert.rundir import shapes
from gpualert.supervisor.redaction import Redaction


def _sick(seconds: float) -> list[Gpu]:
    healthy = gpu(0, utilization=80, memory_used=30 * GIB, temperature_c=61, power_w=500, ecc_corrected=7)
    late = seconds > 3000
    sick = gpu(
        1, utilization=70, memory_used=79 * GIB if late else 40 * GIB, temperature_c=88, ecc_uncorrected=2 if late else 0,
        throttle=["hw_thermal_slowdown"] if late else [], remap_pending=int(late), lost=late,
    )  # fmt: skip
    return [healthy, sick]


def _job(path: Path) -> Job:
    job = Job(path)
    job.inventory(2)
    psi = {"memory_some": 31.0, "memory_full": 12.0, "io_full": 0.2, "of": "group"}
    job.samples(_sick, shm_used=60 << 20, shm_size=64 << 20, psi=psi)
    job.line("xid", 3001, code=79, gpu=1, uuid="GPU-0001")
    job.line("xid", 3002, code=79, gpu=1, uuid="GPU-0001")
    job.line("xid", 3003, code=31, gpu=0, uuid="GPU-0000")
    job.line("kernel", 3001, text="NVRM: Xid (PCI:0000:11:00): 79, GPU has fallen off the bus.", about="own")
    job.line("peaks", 3600, processes=[
        {"pid": 100 + n, "name": name, "peak": n * GIB}
        for n, name in enumerate(["sh", "pt_data_worker", "pt_data_worker", "python \x1b[31mtrain.py", "tee"])
    ])  # fmt: skip
    return job


def test_a_machine_in_a_few_lines_of_what_is_worth_a_word(tmp_path: Path) -> None:
    found = building.course_of(_job(tmp_path / "r").end(), 3600.0, 0.0)["machine"]
    assert machine.lines(found) == [
        ("GPUs", "2 x NVIDIA H100 80GB HBM3; driver 550.54.15, CUDA 12.4"),
        ("GPU memory", "up to 79.0 GiB of 80.0 GiB on GPU 1"),
        ("GPU use", "75 % on average (70 to 80 %), up to 88 °C"),
        ("GPU 0", "Xid 31"),
        (
            "GPU 1",
            "lost; Xid 79; 2 uncorrectable ECC errors; a remapping waits for a reset; throttled (hw thermal slowdown)",
        ),
        ("most memory", "tee (104) 4.0 GiB, python  [31mtrain.py (103) 3.0 GiB, pt_data_worker (102) 2.0 GiB"),
        ("shared memory", "up to 60.0 MiB of 64.0 MiB"),
        ("pressure", "memory, some waited up to 31 %, memory, all waited up to 12 % (of the container)"),
    ]


def test_counters_from_before_the_run_are_not_the_runs(tmp_path: Path) -> None:
    found = building.course_of(_job(tmp_path / "r").end(), 3600.0, 0.0)["machine"]
    assert "ecc_corrected" not in found["gpus"][0]
    assert devices.table(found["gpus"])[0] == (
        "0", "NVIDIA H100 80GB HBM3 0000:10:00.0", "30.0 GiB of 80.0 GiB", "80 %", "500 W", "61 °C", "Xid 31",
    )  # fmt: skip


def test_a_healthy_machine_is_short_in_the_mail_and_complete_on_the_page(tmp_path: Path) -> None:
    job = Job(tmp_path / "r")
    job.samples(lambda _: [], shm_used=1 << 20, shm_size=64 << 20, psi={"memory_some": 0.2, "of": "machine"})
    found = building.course_of(job.end(), 3600.0, 0.0)["machine"]
    assert machine.lines(found) == []
    assert machine.details(found) == [
        ("shared memory", "up to 1.0 MiB of 64.0 MiB"),
        ("pressure", "memory, some waited up to 0 % (of the whole machine)"),
    ]
    assert building.course_of(Job(tmp_path / "bare").end(), 3600.0, 0.0)["machine"] is None


def test_the_page_shows_the_machine_from_a_report_that_was_read_again(tmp_path: Path) -> None:
    run = _job(tmp_path / "r").end()
    diagnosis, trouble = building.diagnosed(run, [], Redaction([]))
    report = building.build(run, diagnosis, trouble, Redaction([]))
    again = shapes.REPORT(shapes.loads(json.dumps(report)))
    html = page.render(again)
    assert html == page.render(report)
    assert "<h2>The machine</h2>" in html
    assert "GPU has fallen off the bus" in html
    assert html.count("\x1b") == 0


def test_a_report_whose_machine_somebody_has_scribbled_into_is_shown_as_far_as_it_fits() -> None:
    told = {
        "gpus": [{"index": "x", "memory_peak": 10**30, "xids": [1, "79"]}, 7], "processes": [{"pid": 1}, "x"],
        "shm": {"peak": 3}, "pressure": {"memory_some": "much", "of": 3}, "kernel": [{"text": "no time"}], "driver": "x",
    }  # fmt: skip
    found = shapes.MACHINE(told)
    assert machine.lines(found) == [("GPUs", "of unknown model"), ("GPU ?", "Xid 79")]
    assert machine.details(found) == []
