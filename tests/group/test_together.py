"""Ranks that share a directory: real processes, one report, one mail."""

from __future__ import annotations

import email
import email.policy
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON, REPOSITORY
from notify.servers import Accepting

PATIENCE_S = 60.0


class Ranks:
    """The ranks of one job as ``torchrun --no-python gpualert run`` would start them."""

    def __init__(self, place: Path, server: Accepting, size: int) -> None:
        self.place, self.server, self.size = place, server, size
        self.group = place / "shared"
        self.started: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, rank: int, script: str, *, prefix: tuple[str, ...] = (), **more: str) -> subprocess.Popen[bytes]:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("GPUALERT", "SLURM", "PMI", "OMPI"))},
            "RANK": str(rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "job-7",
            "NODE_NAME": f"node-{rank // 2}", "GPUALERT_GROUP_DIR": str(self.group), "GPUALERT_LOG_DIR": str(self.place / "logs"),
            "GPUALERT_EMAIL_TO": "oncall@example.org", "GPUALERT_SMTP_HOST": "127.0.0.1", "GPUALERT_SMTP_PORT": str(self.server.port),
            "GPUALERT_SMTP_SECURITY": "none", **more,
        }  # fmt: skip
        command = [*prefix, PYTHON, "-m", "gpualert", "run", "--name", "llama", "--", "sh", "-c", script]
        process = subprocess.Popen(
            command, env=environment, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.started[rank] = process
        return process

    def wait(self) -> dict[int, int]:
        return {rank: process.wait(PATIENCE_S) for rank, process in self.started.items()}

    def said(self, rank: int) -> str:
        pipe = self.started[rank].stderr
        assert pipe is not None
        return pipe.read().decode()

    @property
    def mails(self) -> list[Any]:
        return [email.message_from_bytes(mail, policy=email.policy.default) for mail in self.server.inbox.mails]

    def until(self, done: Callable[[], object], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < until, f"{what} did not come"
            time.sleep(0.05)

    def registered(self, count: int) -> None:
        self.until(lambda: len(list(self.group.glob("*/0/rank-*.json"))) >= count, "the ranks")

    def report(self) -> dict[str, Any]:
        (path,) = self.group.glob("*/0/incident/report.json")
        return json.loads(path.read_text())  # type: ignore[no-any-return]


@pytest.fixture
def ranks(tmp_path: Path, accepting: Callable[..., Accepting]) -> Iterator[Ranks]:
    made = Ranks(tmp_path, accepting(), 4)
    yield made
    for process in made.started.values():
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


OOM = "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.21 GiB is free.' >&2; exit 1"
LOST = "echo 'RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:6278' >&2; exit 1"


def test_the_last_to_end_tells_of_all(ranks: Ranks) -> None:
    for rank in (0, 1, 3):
        ranks.start(rank, f"while [ ! -e {ranks.place}/broken ]; do sleep 0.1; done; sleep 1.{rank}; {LOST}")
    ranks.registered(3)
    ranks.start(2, f"sleep 1; touch {ranks.place}/broken; {OOM}")
    assert ranks.wait() == {0: 1, 1: 1, 2: 1, 3: 1}
    (mail,) = ranks.mails
    assert mail["Subject"].startswith("[gpualert] llama failed: cuda_oom on rank 2 (node-1) after ")
    report = ranks.report()
    assert [(row["rank"], row["role"], row["class"]) for row in report["ranks"]] == [
        (2, "root", "cuda_oom"), (0, "cascade", "peer_lost"), (1, "cascade", "peer_lost"), (3, "cascade", "peer_lost"),
    ]  # fmt: skip
    assert report["diagnosis"]["suggestions"]
    text = mail.get_body(("plain",)).get_content()
    assert "0-1, 3  cascade  peer_lost" in text
    said = [ranks.said(rank) for rank in range(4)]
    assert sum("mailed to oncall@example.org" in words for words in said) == 1
    assert "told together with the other ranks, 3 ranks are still there" in said[2]


def test_no_mail_when_all_end_well(ranks: Ranks) -> None:
    for rank in range(4):
        ranks.start(rank, "sleep 0.5")
    assert set(ranks.wait().values()) == {0}
    assert ranks.mails == []


def test_a_rank_that_lives_tells_when_the_group_stands_still(ranks: Ranks) -> None:
    for rank in (0, 1, 2):
        ranks.start(rank, "sleep 300", GPUALERT_GROUP_SETTLE="2s")
    ranks.registered(3)
    ranks.start(3, OOM)
    ranks.until(lambda: ranks.mails, "the mail")
    (mail,) = ranks.mails
    assert "cuda_oom on rank 3 (node-1)" in mail["Subject"]
    assert {row["state"] for row in ranks.report()["ranks"]} == {"failed", "running"}
    for rank in (0, 1, 2):
        ranks.started[rank].send_signal(signal.SIGTERM)
    ranks.wait()
    assert len(ranks.mails) == 1  # the verdict is the same


def test_a_rank_killed_with_its_supervisor_is_named(ranks: Ranks) -> None:
    for rank in (0, 1, 2):
        ranks.start(rank, f"while [ ! -e {ranks.place}/broken ]; do sleep 0.1; done; sleep 40; {LOST}")
    ranks.start(3, "sleep 300")
    ranks.registered(4)
    ranks.started[3].kill()
    ranks.started[3].wait()
    (ranks.place / "broken").touch()
    ranks.wait()
    (mail,) = ranks.mails
    assert "rank 3 (node-1)" in mail["Subject"]
    assert ranks.report()["diagnosis"]["class"] == "lost"


def test_a_second_run_of_the_same_job_starts_anew(ranks: Ranks) -> None:
    for _ in range(2):
        for rank in range(4):
            ranks.start(rank, f"sleep 1; {OOM}" if rank == 1 else f"sleep 2; {LOST}")
        ranks.wait()
    assert len(ranks.mails) == 2
    assert len({mail["Message-ID"] for mail in ranks.mails}) == 2


def test_without_a_rank_the_directory_is_ignored_and_that_is_said(ranks: Ranks) -> None:
    process = ranks.start(0, "exit 3", RANK="", LOCAL_RANK="")
    assert process.wait(PATIENCE_S) == 3
    assert "--group-dir is ignored: no variable tells the rank" in ranks.said(0)
    assert len(ranks.mails) == 1


def test_a_shared_directory_that_cannot_be_written_costs_only_the_togetherness(ranks: Ranks) -> None:
    ranks.group.write_text("a file")
    process = ranks.start(0, OOM)
    assert process.wait(PATIENCE_S) == 1
    assert "this rank is told of on its own" in ranks.said(0)
    assert len(ranks.mails) == 1


@pytest.mark.root
def test_ranks_on_two_hosts(ranks: Ranks) -> None:
    """Two hosts as far as one machine can be two: network, host name, processes and IPC of their own, one directory."""
    hosts = ("unshare", "--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")
    for rank in range(4):
        script = f"sleep 1; {OOM}" if rank == 3 else f"sleep 3; {LOST}"
        # Without a network there is no mail server to reach: the incident's mail waits in the shared directory.
        ranks.start(
            rank, script, prefix=(*hosts, "sh", "-c", f'hostname node-{rank // 2}; exec "$@"', "sh"), NODE_NAME=""
        )
    assert set(ranks.wait().values()) == {1}
    report = ranks.report()
    assert (report["diagnosis"]["class"], report["incident"]["roots"], report["incident"]["nodes"]) == (
        "cuda_oom",
        [3],
        ["node-1"],
    )
    assert [row["node"] for row in report["ranks"]] == ["node-1", "node-0", "node-0", "node-1"]
    (mail,) = ranks.group.glob("*/0/incident/mail/*.eml")
    assert b"cuda_oom on rank 3 (node-1)" in mail.read_bytes()
