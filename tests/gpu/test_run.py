"""Runs on GPUs that fail, end to end: what the driver told during the run decides what the report says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Completed, Gpualert, Started, run_dirs, wait_until
from gpu.standin import LIBRARY, Script, environment

NCCL_TIMEOUT = (
    "[rank3]:[E1202 05:12:00.000000000 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1024, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds "
    "before timing out."
)
ILLEGAL_ACCESS = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 88, in <module>\n'
    "    loss.backward()\n"
    "RuntimeError: CUDA error: an illegal memory access was encountered"
)
JOB = """
import sys
print("up", flush=True)
sys.stdin.read()
print(sys.argv[1], flush=True)
sys.exit(int(sys.argv[2]))
"""
OFTEN = ("--hang-after", "5s")
"""The collector looks twice a second then; no run is watched for hangs in its first ten minutes."""


class Run:
    """A run on four GPUs that goes on until it is told to end."""

    def __init__(self, plain: Gpualert, driver: dict[str, str], last_words: str, code: int) -> None:
        visible = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "NODE_NAME": "gpu-17"}
        command = ["python3", "-c", JOB, last_words, str(code)]
        env = {**visible, **driver}
        self.plain = plain
        self.running: Started = plain.start(command, *OFTEN, env=env, stdin=subprocess.PIPE)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """What the collector has written."""
        text = (run_dirs(self.plain.log_dir)[0] / "telemetry.jsonl").read_text()
        return [line for raw in text.splitlines() if raw.endswith("}") and (line := json.loads(raw))["kind"] == kind]

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs of the last sample."""
        gpus: list[dict[str, Any]] = self.lines("sample")[-1].get("gpus", [])
        return gpus

    def again(self) -> None:
        """Wait until a second collector, which leaves GPUs alone, has taken a sample."""

        def command_of_second() -> bool:
            children = Path("/proc").glob("[0-9]*/stat")
            mine = [path.parent for path in children if self._is_child(path)]
            return any(b'"gpus": false' in (path / "cmdline").read_bytes() for path in mine)

        wait_until(command_of_second, "a second collector")
        before = len(self.lines("sample"))
        wait_until(lambda: len(self.lines("sample")) > before and not self.gpus(), "a sample of its")

    def _is_child(self, stat: Path) -> bool:
        try:
            return int(stat.read_text().rpartition(")")[2].split()[1]) == self.running.process.pid
        except OSError:
            return False  # it has gone

    def watched(self) -> None:
        """Wait until its GPUs are watched."""
        wait_until(lambda: self.lines("inventory") and self.gpus(), "the GPUs in a sample")

    def told(self, code: int) -> None:
        """Wait until an Xid is written down."""
        wait_until(lambda: code in [line["code"] for line in self.lines("xid")], f"Xid {code}")

    def end(self) -> Completed:
        """Let it end."""
        assert self.running.process.stdin is not None
        self.running.process.stdin.close()
        self.running.process.stdin = None
        return self.running.finish()


def _evidence(done: Completed) -> list[tuple[str, str]]:
    return [(one["role"], one["text"]) for one in done.json("report.json")["diagnosis"]["evidence"]]


def test_a_dead_collective_beside_a_gpu_off_the_bus_is_the_gpu(
    plain: Gpualert, libraries: Path, script: Script
) -> None:
    run = Run(plain, environment(libraries, script), NCCL_TIMEOUT, 1)
    run.watched()
    script.event(2, 79)
    script.set("2.lost", 1)
    run.told(79)
    done = run.end()
    assert done.returncode == 1
    report = done.json("report.json")
    found = report["diagnosis"]
    assert (found["class"], found["node_suspect"], report["run"]["node"]) == ("gpu_lost", True, "gpu-17")
    assert found["summary"] == "Xid 79 on GPU 2: the GPU has fallen off the bus"
    assert found["confidence"] >= 0.9
    (role, text), *others = _evidence(done)
    assert role == "root"
    assert text.startswith("Xid 79 on GPU 2 (00000000:38:00.0) at ")
    assert ("cascade", NCCL_TIMEOUT) in others
    assert ("confirmation", "GPU 2 is lost, or needs a reset, says the driver's library") in others
    assert any("gpu_lost: Xid 79 on GPU 2" in line for line in done.said)
    assert run.lines("xid")[0] | {"at": ""} == {
        "at": "",
        "kind": "xid",
        "code": 79,
        "gpu": 2,
        "uuid": "GPU-a2020202-5ca1-4e11-9a7e-000000000002",
        "pci": "00000000:38:00.0",
        "meaning": "the GPU has fallen off the bus",
        "action": run.lines("xid")[0]["action"],
        "class": "gpu_lost",
        "application": False,
    }


def test_a_programs_own_xid_confirms_its_illegal_access(plain: Gpualert, libraries: Path, script: Script) -> None:
    run = Run(plain, environment(libraries, script), ILLEGAL_ACCESS, 1)
    run.watched()
    script.event(1, 31)
    run.told(31)
    done = run.end()
    found = done.json("report.json")["diagnosis"]
    assert (found["class"], found["node_suspect"]) == ("cuda_illegal_access", False)
    assert found["confidence"] >= 0.98
    assert [text for role, text in _evidence(done) if role == "confirmation" and text.startswith("Xid 31 on GPU 1 ")]


def test_an_xid_from_before_the_run_is_not_its_own(plain: Gpualert, libraries: Path, script: Script) -> None:
    script.event(2, 79)
    run = Run(plain, environment(libraries, script), NCCL_TIMEOUT, 1)
    run.watched()
    done = run.end()
    found = done.json("report.json")["diagnosis"]
    assert found["class"] == "nccl_timeout"
    assert run.lines("xid") == []
    assert not [text for _, text in _evidence(done) if "Xid" in text]
    assert b"Xid 79" not in done.file("report.html")


def test_an_xid_of_a_run_that_succeeds_is_a_warning(plain: Gpualert, libraries: Path, script: Script) -> None:
    run = Run(plain, environment(libraries, script), "saved the model", 0)
    run.watched()
    script.event(3, 94)
    run.told(94)
    done = run.end()
    found = done.json("report.json")["diagnosis"]
    assert (done.returncode, found["class"]) == (0, "success")
    assert [text for text in found["warnings"] if text.startswith("Xid 94 on GPU 3 ")]


def test_memory_errors_that_only_a_counter_shows_are_found(plain: Gpualert, libraries: Path, script: Script) -> None:
    script.set("1.ecc_uncorrected", 4)  # from before
    run = Run(plain, environment(libraries, script), NCCL_TIMEOUT, 1)
    run.watched()
    script.set("1.ecc_uncorrected", 6)
    wait_until(lambda: run.gpus()[1]["ecc_uncorrected"] == 6, "the counter in a sample")
    done = run.end()
    found = done.json("report.json")["diagnosis"]
    assert found["class"] == "gpu_ecc"
    assert "GPU 1" in found["summary"]
    assert "2 " in found["summary"]


def test_the_report_has_the_gpus_and_what_they_cost(plain: Gpualert, libraries: Path, script: Script) -> None:
    script.set("all.energy_j", 1000)
    script.set("all.utilization", 0)
    run = Run(plain, environment(libraries, script), "failed", 7)
    run.watched()
    script.set("all.energy_j", 1000 + 3.6e6)
    wait_until(lambda: run.gpus()[3]["energy_j"] > 1000, "the counter in a sample")
    done = run.end()
    report = done.json("report.json")
    cost = report["cost"]
    assert (cost["gpus"], cost["energy_kwh"], cost["energy_by"]) == (4, 4.0, "counter")
    assert 0 < cost["idle_gpu_hours"] <= cost["gpu_hours"]
    assert cost["idle_by"] == "utilization"
    inventory = run.lines("inventory")
    assert len(inventory) == 1
    assert inventory[0]["driver"] == {"driver": "550.54.15", "cuda": "12.4", "nvml": "12.550.54.15"}
    assert [(gpu["index"], gpu["name"]) for gpu in inventory[0]["gpus"]] == [(gpu, "NVIDIA H200") for gpu in range(4)]
    assert b"NVIDIA H200" in done.file("report.html")


# -- drivers that fail -------------------------------------------------------------------------------------------------


def _sampled_without_gpus(run: Run) -> Completed:
    """A run of which everything is measured but GPUs, to its end."""
    wait_until(lambda: run.lines("sample"), "a sample")
    return _ended_without_gpus(run)


def _ended_without_gpus(run: Run) -> Completed:
    done = run.end()
    assert (done.returncode, done.log) == (0, b"up\ndone\n")
    assert done.said == []
    assert run.lines("inventory") == run.lines("xid") == []
    assert not any("gpus" in line for line in run.lines("sample"))
    assert run.lines("end")
    assert done.json("exit.json")["trouble"] == []
    return done


def test_without_a_driver_nothing_is_said_of_gpus(plain: Gpualert, tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_text("this is no library\n")
    driver = {"LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "GPU-of-nobody"}
    _sampled_without_gpus(Run(plain, driver, "done", 0))


@pytest.mark.parametrize("error", [9, 18, 999])
def test_a_driver_that_does_not_start_is_no_trouble(
    plain: Gpualert, libraries: Path, script: Script, error: int
) -> None:
    script.set("init", error)
    _sampled_without_gpus(Run(plain, environment(libraries, script), "done", 0))


def test_a_library_that_crashes_at_once_costs_the_gpus_alone(plain: Gpualert, libraries: Path, script: Script) -> None:
    script.set("crash", 1)
    run = Run(plain, environment(libraries, script), "done", 0)
    run.again()
    _ended_without_gpus(run)


def test_a_library_that_crashes_later_leaves_the_run_measured_without_gpus(
    plain: Gpualert, libraries: Path, script: Script
) -> None:
    run = Run(plain, environment(libraries, script), "done", 0)
    run.watched()
    script.set("crash", 1)
    run.again()
    done = run.end()
    assert (done.returncode, done.log) == (0, b"up\ndone\n")
    assert done.said == []
    assert run.lines("end")


def test_a_driver_that_hangs_does_not_hold_the_end_up(plain: Gpualert, libraries: Path, script: Script) -> None:
    run = Run(plain, environment(libraries, script), NCCL_TIMEOUT, 1)
    run.watched()
    script.event(2, 79)
    run.told(79)
    script.set("hang.all", 1)
    done = run.end()  # which fails when it takes a minute
    assert done.returncode == 1
    assert done.json("report.json")["diagnosis"]["class"] == "gpu_lost"
    script.remove("hang.all")
