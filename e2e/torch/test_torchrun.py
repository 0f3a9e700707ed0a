"""Real torch with gloo under a real torchrun: ranks that share a directory, on one host and on two."""

from __future__ import annotations

import email
import email.policy
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON, REPOSITORY
from notify.servers import Accepting, accepting

__all__ = ["accepting"]

TORCH = "/usr/bin/python3"
"""Debian's Python has Debian's torch."""
TORCHRUN = (
    TORCH, "-c",
    # torch 1.13 reads --redirects by walking an enumeration, which since Python 3.11 passes over 0 and 3.
    "from torch.distributed.elastic.multiprocessing.api import Std; Std.from_str = classmethod(lambda c, t: c(int(t))); "
    "from torch.distributed.run import main; main()",
)  # fmt: skip
TRAIN = r"""
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank = dist.get_rank()
for step in range(1, 6):
    loss = torch.ones(4) * rank
    dist.all_reduce(loss)
    print(f"step {step} loss {loss[0].item():.3f}", flush=True)
    if step == 3 and rank == int(os.environ["BAD"]):
        exec(os.environ["FAULT"])
"""
FAULTS = {
    "exception": ("raise KeyError('input_ids')", "traceback"),
    "memory": ("raise RuntimeError('[enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: can\\'t allocate memory: you tried to allocate 400000000000 bytes. Error code 12 (Cannot allocate memory)')", "ram_oom"),
    "killed": ("import signal; os.kill(os.getpid(), signal.SIGKILL)", "unknown"),
}  # fmt: skip


def environment(place: Path, server: Accepting, fault: str, bad: int) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GPUALERT", "SLURM", "PMI", "OMPI", "PYTHON"))
    }
    return {
        **kept, "BAD": str(bad), "FAULT": FAULTS[fault][0], "GPUALERT_LOG_DIR": str(place / "logs"),
        "GPUALERT_EMAIL_TO": "oncall@example.org", "GPUALERT_SMTP_HOST": "127.0.0.1", "GPUALERT_SMTP_PORT": str(server.port),
        "GPUALERT_SMTP_SECURITY": "none", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Path:
    made = tmp_path / "train.py"
    made.write_text(TRAIN)
    return made


def standalone() -> list[str]:
    """What --standalone means, but on a port of its own: several of these tests may run at once."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", secrets.token_hex(4)]


def gpualert(*arguments: str) -> list[str]:
    return [PYTHON, "-I", "-m", "gpualert", "run", "--name", "llama", *arguments, "--"]


def mails(server: Accepting) -> list[Any]:
    return [email.message_from_bytes(mail, policy=email.policy.default) for mail in server.inbox.mails]


def report(place: Path) -> dict[str, Any]:
    (path,) = place.glob("shared/*/0/incident/report.json")
    return json.loads(path.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_rank_under_gpualert(
    script: Path, accepting: Callable[..., Accepting], tmp_path: Path, fault: str
) -> None:
    server = accepting()
    torchrun = [*TORCHRUN, *standalone(), "--nproc_per_node", "4", "--no_python"]
    command = [*torchrun, *gpualert("--group-dir", str(tmp_path / "shared")), TORCH, str(script)]
    done = subprocess.run(
        command, env=environment(tmp_path, server, fault, 2), capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 1, done.stderr
    found = report(tmp_path)
    assert found["diagnosis"]["class"] == FAULTS[fault][1], json.dumps(found["ranks"], indent=1)
    assert found["incident"]["roots"] == [2]
    assert len(found["ranks"]) == 4
    (mail,) = mails(server)
    assert f"llama failed: {FAULTS[fault][1]} on rank 2" in mail["Subject"]


def test_torchrun_under_gpualert(script: Path, accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    torchrun = [*TORCHRUN, *standalone(), "--nproc_per_node", "4", str(script)]
    environ = environment(tmp_path, server, "exception", 3)
    done = subprocess.run(
        [*gpualert(), *torchrun], env=environ, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 1, done.stderr
    (mail,) = mails(server)
    assert "llama failed: traceback" in mail["Subject"]
    assert "KeyError: 'input_ids'" in mail.get_body(("plain",)).get_content()


def test_torchruns_own_logs_afterwards(script: Path, accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    torchrun = [
        *TORCHRUN,
        *standalone(),
        "--nproc_per_node",
        "4",
        "--log_dir",
        str(tmp_path / "t"),
        "-r",
        "3",
    ]
    environ = environment(tmp_path, accepting(), "exception", 1)
    subprocess.run([*torchrun, str(script)], env=environ, capture_output=True, timeout=150, check=False)
    told = subprocess.run(
        [PYTHON, "-m", "gpualert", "group", "--format", "json", str(tmp_path / "t")], capture_output=True, check=False
    )
    (found,) = json.loads(told.stdout)
    assert (found["diagnosis"]["class"], found["incident"]["roots"]) == ("traceback", [1])


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two network namespaces with a wire between them."""
    names = [f"gpualert-{secrets.token_hex(3)}" for _ in range(2)]
    wires = [f"w{secrets.token_hex(3)}" for _ in range(2)]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(["ip", "link", "add", wires[0], "type", "veth", "peer", "name", wires[1]], check=True)
    for number, (name, wire) in enumerate(zip(names, wires, strict=True)):
        subprocess.run(["ip", "link", "set", wire, "netns", name], check=True)
        inside = ["ip", "-n", name]
        subprocess.run([*inside, "link", "set", wire, "name", "eth0"], check=True)
        subprocess.run([*inside, "addr", "add", f"10.241.0.{number + 1}/24", "dev", "eth0"], check=True)
        subprocess.run([*inside, "link", "set", "eth0", "up"], check=True)
        subprocess.run([*inside, "link", "set", "lo", "up"], check=True)
    yield names
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False)


def test_over_two_hosts(script: Path, accepting: Callable[..., Accepting], tmp_path: Path, hosts: list[str]) -> None:
    started = []
    for number, name in enumerate(hosts):
        torchrun = [
            *TORCHRUN, "--nnodes", "2", "--node_rank", str(number), "--nproc_per_node", "2",
            "--master_addr", "10.241.0.1", "--master_port", "29511", "--rdzv_id", "two-hosts", "--no_python",
        ]  # fmt: skip
        environ = environment(tmp_path, accepting(), "exception", 3)
        environ |= {"GLOO_SOCKET_IFNAME": "eth0", "NODE_NAME": f"node-{number}"}
        command = [
            "ip",
            "netns",
            "exec",
            name,
            *torchrun,
            *gpualert("--group-dir", str(tmp_path / "shared")),
            TORCH,
            str(script),
        ]
        started.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(1)
    for process in started:
        assert process.wait(150) == 1
    found = report(tmp_path)
    assert (found["diagnosis"]["class"], found["incident"]["roots"], found["incident"]["nodes"]) == (
        "traceback",
        [3],
        ["node-1"],
    )
    assert {row["node"] for row in found["ranks"]} == {"node-0", "node-1"}
    # The mail server is on no wire of theirs: the one mail waits in the shared directory.
    assert len(list(tmp_path.glob("shared/*/0/incident/mail/*.eml"))) == 1
