"""Memory limits for real: the child killed while PID 1 lives, and PID 1 killed with it."""

from __future__ import annotations

import json

from e2e.containers.containers import Containers

EATER = """
import time
print('step 41200 loss 1.873', flush=True)
held = []
for _ in range(200):
    held.append(bytearray(4 << 20))
    held[-1][::4096] = b'x' * len(held[-1][::4096])
    time.sleep(0.02)
"""


def test_the_child_alone_is_killed(containers: Containers) -> None:
    done = containers.run("bookworm", ["python3", "-c", EATER], "--memory", "96m", "--memory-swap", "96m")
    assert done.code == 137
    diagnosis = containers.report()["diagnosis"]
    assert diagnosis["class"] == "oom_killer"
    assert any("oom_kill 1" in evidence["text"] for evidence in diagnosis["evidence"])
    group = json.loads((containers.runs()[-1] / "exit.json").read_text())["cgroup"]
    assert (group["oom_kill"], group["memory_limit"]) == (1, 96 << 20)
    assert containers.message.read_text().startswith("oom_killer: ")
    assert "gpualert: oom_killer: " in done.stderr


def test_pid_1_is_killed_with_it_and_the_next_start_reports_it(containers: Containers) -> None:
    # The child makes PID 1 the kernel's first choice, as if the whole group had to go.
    spared = "with open('/proc/1/oom_score_adj', 'w') as f: f.write('1000')\n" + EATER.replace("0.02", "0.15")
    limits = ("--memory", "96m", "--memory-swap", "96m", "--user", "0")
    done = containers.run("bookworm", ["python3", "-c", spared], *limits)
    assert done.code == 137
    (first,) = containers.runs()
    assert not (first / "exit.json").exists()
    # What a survivor would find in `kubectl describe pod`.
    message = containers.message.read_text()
    assert message.startswith("running since ")
    assert "last output" in message.splitlines()[0]
    assert '"step 41200 loss 1.873"' in message.splitlines()[0]
    assert " of 0.094 GiB, rising" in message
    again = containers.run("bookworm", ["true"])
    assert again.code == 0
    containers.until(lambda: (first / "report.json").exists(), "the report of the interrupted run")
    diagnosis = json.loads((first / "report.json").read_text())["diagnosis"]
    assert diagnosis["class"] == "oom_killer", diagnosis
