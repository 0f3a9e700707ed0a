"""The collector from the bundle in real containers: the driver's library, stacks, and a hang, with nothing installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpu import standin

from e2e.containers.containers import Containers

# What waits for a lock that never comes, three frames deep.
STUCK = """
import threading
print("step 41 loss 1.5", flush=True)
lock = threading.Lock()
lock.acquire()
def collective():
    lock.acquire()
def train():
    collective()
train()
"""


def lines(containers: Containers) -> list[dict[str, Any]]:
    text = (containers.runs()[-1] / "telemetry.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def of(containers: Containers, kind: str) -> dict[str, Any]:
    (found, *_) = [line for line in lines(containers) if line["kind"] == kind]  # ValueError where there is none yet
    return found


@pytest.mark.parametrize("place", ["/usr/local/nvidia/lib64", "/usr/lib64", "/mnt/driver"])
def test_the_driver_s_library_is_found_where_installers_put_it(
    containers: Containers, tmp_path: Path, place: str
) -> None:
    libraries = standin.build(tmp_path / "nvml")
    library = "libnvidia-ml.so.1"
    options = ["-v", f"{libraries}/{library}:{place}/{library}:ro", "-e", "CUDA_VISIBLE_DEVICES=0,1"]
    options += ["-e", "LD_LIBRARY_PATH=/mnt/driver"] if place == "/mnt/driver" else []
    running = containers.start("bookworm", ["sleep", "600"], *options)
    containers.until(lambda: of(containers, "sample"), "a sample")
    containers.until(lambda: of(containers, "inventory"), "the inventory")
    found = of(containers, "inventory")
    assert found["vendor"] == "nvidia"
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]
    subprocess.run(["podman", "stop", running.name], capture_output=True, check=True)
    assert running.wait().code == 143


def test_a_hang_is_ended_and_its_stacks_are_in_the_report(containers: Containers) -> None:
    wanted = ("--hang-after", "3s", "--hang-warmup", "0s", "--hang-action", "terminate", "--kill-after", "5s")
    options = ("--cap-add", "SYS_PTRACE")
    done = containers.run("bookworm", ["python3", "-c", STUCK], *options, gpualert=wanted)
    report = containers.report()
    assert done.code == 143
    assert report["diagnosis"]["class"] == "hang"
    assert report["hang"]["state"] == "terminated"
    told = json.dumps(report["hang"]["scene"]["stacks"])
    assert "collective" in told
    assert "train" in told
    assert containers.message.read_text().startswith("hang: ")
