"""Jobs that work for a moment, say so, and then hang, each in a way of its own; and what each needs around it."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conftest import PYTHON

TORCH = "/usr/bin/python3"
"""Debian's Python has Debian's torch."""
STALLFS = Path(__file__).with_name("stallfs.py")

# Two ranks as processes of one parent; each runs the text after it has joined the group.
_RANKS = r"""
import os, subprocess, sys
environ = dict(os.environ, WORLD_SIZE="2", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME=os.environ.get("WIRE", "lo"))
before = [os.environ.get(f"BEFORE{rank}", "").split() for rank in (0, 1)]
ranks = [
    subprocess.Popen([*before[rank], "/usr/bin/python3", sys.argv[1]], env={**environ, "RANK": str(rank)})
    for rank in (0, 1)
]
for rank in ranks:
    rank.wait()
"""
_JOIN = r"""
import datetime, os, signal, sys, threading, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=2, timeout=datetime.timedelta(hours=1))
def train_step(step):
    loss = torch.ones(1000) * rank
    dist.all_reduce(loss)
    print(f"[rank{rank}]: step {step} loss {loss[0].item():.3f}", flush=True)
for step in range(1, 6):
    train_step(step)
"""
_DEADLOCK = (
    _JOIN
    + r"""
def wait_for_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
if rank == 1:
    wait_for_lock()
train_step(6)
"""
)
_STOPPED_PEER = (
    _JOIN
    + r"""
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
for step in range(6, 40):
    train_step(step)
    time.sleep(0.5)
"""
)
_LOST_PEER = (
    _JOIN
    + r"""
import subprocess
time.sleep(1)
subprocess.run(os.environ[f"CUT{rank}"].split(), check=True)
dist.all_reduce(torch.ones(1000000))
print("unreached", flush=True)
"""
)
_LOADER = r"""
import threading, time, torch
from torch.utils.data import DataLoader, Dataset
class Shards(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index == 20:
            decode_image()
        return torch.ones(4)
def decode_image():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
for step, batch in enumerate(DataLoader(Shards(), batch_size=4, num_workers=2)):
    print(f"step {step}", flush=True)
"""
_GRANDCHILD = r"""
import subprocess, sys
worker = subprocess.Popen(
    [sys.executable, "-c", "import os, signal\nprint('step 1', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('step 2', flush=True)"]
)
print("started", flush=True)
worker.wait()
"""
_STALLED = r"""
import os, sys
print("step 1", flush=True)
def read_shard(path):
    with open(path, "rb") as file:
        while file.read(65536):
            pass
read_shard(os.environ["SHARD"])
"""
_PIPE = r"""
import os, subprocess, sys
print("step 1", flush=True)
reader = subprocess.Popen(["sleep", "100000"], stdin=subprocess.PIPE)
def hand_over(pipe):
    while True:
        os.write(pipe, b"x" * 4096)
hand_over(reader.stdin.fileno())
"""


@dataclass
class Job:
    """A job that hangs.

    Attributes:
        command: How it is started.
        environ: Its variables.
        last: What it prints last.
        cleanup: Takes away what it hangs in, so that its processes can end.
    """

    command: list[str]
    environ: dict[str, str]
    last: str
    cleanup: Callable[[], None] = lambda: None


def _environ(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUALERT", "SLURM", "PYTHON"))}
    return {**kept, **more}


def _ranks(text: str, place: Path, last: str, **more: str) -> Job:
    script, parent = place / "train.py", place / "launch.py"
    script.write_text(text)
    parent.write_text(_RANKS)
    meet = more.pop("MEET", f"file://{place}/meet-{secrets.token_hex(4)}")
    return Job([TORCH, str(parent), str(script)], _environ(MEET=meet, **more), last)


def deadlock(place: Path) -> Job:
    """One rank does not enter the collective that the other waits in."""
    return _ranks(_DEADLOCK, place, "step 5")


def stopped_peer(place: Path) -> Job:
    """One rank is stopped by a signal."""
    return _ranks(_STOPPED_PEER, place, "step 5")


def _script(place: Path, text: str, last: str, interpreter: str = PYTHON, **more: str) -> Job:
    script = place / "train.py"
    script.write_text(text)
    return Job([interpreter, str(script)], _environ(OMP_NUM_THREADS="1", **more), last)


def loader(place: Path) -> Job:
    """A DataLoader's worker hangs; the training waits for its batch."""
    return _script(place, _LOADER, "step 4", TORCH)


def grandchild(place: Path) -> Job:
    """A grandchild is stopped by a signal."""
    return _script(place, _GRANDCHILD, "step 1")


def pipe(place: Path) -> Job:
    """It writes into a pipe that nobody reads."""
    return _script(place, _PIPE, "step 1")


def stalled(place: Path) -> Job:
    """The file system that it reads from stops answering."""
    mount = place / "data"
    mount.mkdir()
    server = subprocess.Popen([PYTHON, str(STALLFS), str(mount)], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"mounted\n"

    def unmount() -> None:
        server.kill()
        server.wait()
        subprocess.run(["umount", "-l", str(mount)], check=False)

    job = _script(place, _STALLED, "step 1", SHARD=str(mount / "shard-17.tar"))
    job.cleanup = unmount
    return job


def lost_peer(place: Path) -> Job:
    """The network between two ranks goes away."""
    names = [f"gpualert-{secrets.token_hex(3)}" for _ in range(2)]
    wires = [f"w{secrets.token_hex(3)}" for _ in range(2)]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(["ip", "link", "add", wires[0], "type", "veth", "peer", "name", wires[1]], check=True)
    for number, (name, wire) in enumerate(zip(names, wires, strict=True)):
        subprocess.run(["ip", "link", "set", wire, "netns", name], check=True)
        inside = ["ip", "-n", name]
        subprocess.run([*inside, "link", "set", wire, "name", "eth0"], check=True)
        subprocess.run([*inside, "addr", "add", f"10.242.0.{number + 1}/24", "dev", "eth0"], check=True)
        subprocess.run([*inside, "link", "set", "eth0", "up"], check=True)
        subprocess.run([*inside, "link", "set", "lo", "up"], check=True)

    def remove() -> None:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    # Frames for a station that is not there: as with a switch that has failed, they vanish without a word.
    cut = "ip neigh replace 10.242.0.{} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"
    job = _ranks(
        _LOST_PEER, place, "step 5", MEET="tcp://10.242.0.1:29513", WIRE="eth0", CUT0=cut.format(2), CUT1=cut.format(1),
        BEFORE0=f"ip netns exec {names[0]}", BEFORE1=f"ip netns exec {names[1]}",
    )  # fmt: skip
    job.cleanup = remove
    return job


ALL: dict[str, Callable[[Path], Job]] = {
    "deadlock": deadlock, "stopped-peer": stopped_peer, "lost-peer": lost_peer, "loader": loader,
    "grandchild": grandchild, "stalled": stalled, "pipe": pipe,
}  # fmt: skip
