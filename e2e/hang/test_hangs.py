"""Real hangs: each is noticed, and what is captured says what it waits for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S

from e2e.hang import jobs
from e2e.hang.watching import Watched, watched
from gpualert.hang import scene

AFTER_S = 4.0


def captured(job: Watched) -> dict[str, Any]:
    return scene.capture(job.tree, str(job.directory), time.monotonic() + 25)


def stacks(found: dict[str, Any]) -> str:
    return "\n".join(stack["text"] for stack in found["stacks"])


def kernel(found: dict[str, Any]) -> str:
    return "\n".join(group["text"] for group in found["kernel"])


@pytest.mark.parametrize("kind", jobs.ALL)
def test_every_hang_is_noticed_once(kind: str, tmp_path: Path) -> None:
    with watched(jobs.ALL[kind], tmp_path) as run:
        suspicion, rhythm = run.told(AFTER_S)
        assert suspicion.silent_s >= AFTER_S
        assert "no output for" in suspicion.why
        for _ in range(10):
            time.sleep(0.25)
            assert rhythm.observe(run.moment()) is None


def test_the_rank_that_does_not_enter_a_collective(tmp_path: Path) -> None:
    with watched(jobs.deadlock, tmp_path) as run:
        run.told(AFTER_S)
        found = captured(run)
        texts = [stack["text"] for stack in found["stacks"]]
        assert any("all_reduce" in text and "train_step (" in text for text in texts), found
        assert any("wait_for_lock (" in text and "all_reduce" not in text for text in texts), found
        assert {line["rank"]: line["line"] for line in found["ranks"]} == {
            0: "step 5 loss 1.000",
            1: "step 5 loss 1.000",
        }
        assert {one["rank"] for one in found["processes"] if "rank" in one} == {0, 1}


def test_a_rank_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    with watched(jobs.stopped_peer, tmp_path) as run:
        suspicion, rhythm = run.told(AFTER_S)
        assert suspicion.rule == "stopped"
        assert "1 of them stopped by a signal" in suspicion.why
        found = captured(run)
        assert "main thread: stopped by a signal" in kernel(found)
        # What is stopped is read without being attached to, and stays as it is.
        assert "os.kill" not in stacks(found)
        (stopped,) = [one["pid"] for one in found["processes"] if one["state"] == "T"]
        assert run.tree.sample().states["T"] == 1
        os.kill(stopped, signal.SIGCONT)
        over, _ = run.told(AFTER_S, "over", rhythm)
        assert over.rule == "stopped"


def test_a_peer_whose_network_is_gone(tmp_path: Path) -> None:
    with watched(jobs.lost_peer, tmp_path) as run:
        run.told(AFTER_S)
        until = time.monotonic() + PATIENCE_S
        while "and not acknowledged" not in (text := kernel(captured(run))):
            assert time.monotonic() < until, text  # the kernel tries again after 0.2, 0.4, 0.8 ... seconds
        assert "tcp 10.242.0." in text


def test_a_worker_of_a_data_loader(tmp_path: Path) -> None:
    with watched(jobs.loader, tmp_path) as run:
        run.told(AFTER_S)
        text = stacks(captured(run))
        assert "decode_image (" in text
        assert "_next_data (" in text


def test_a_grandchild_that_is_stopped(tmp_path: Path) -> None:
    with watched(jobs.grandchild, tmp_path) as run:
        suspicion, rhythm = run.told(AFTER_S)
        assert suspicion.rule == "stopped"
        (stopped,) = [one.pid for one in run.tree.processes() if one.state == "T"]
        os.kill(stopped, signal.SIGCONT)
        over, _ = run.told(AFTER_S, "over", rhythm)
        assert "there is output again" in over.why


def test_a_file_system_that_does_not_answer(tmp_path: Path) -> None:
    with watched(jobs.stalled, tmp_path) as run:
        run.told(AFTER_S)
        began = time.monotonic()
        found = captured(run)
        assert time.monotonic() - began < PATIENCE_S
        assert f"on {tmp_path}/data/shard-17.tar" in kernel(found)
        assert "read_shard (" in stacks(found)


def test_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    with watched(jobs.pipe, tmp_path) as run:
        run.told(AFTER_S)
        found = captured(run)
        (reader,) = [one["pid"] for one in found["processes"] if one["name"] == "sleep"]
        assert f"on a pipe to {reader} (sleep)" in kernel(found)
        assert "hand_over (" in stacks(found)
