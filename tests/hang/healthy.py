"""Jobs that say little and are healthy: what a detector of hangs must not take for one."""

from __future__ import annotations

import sys
from dataclasses import dataclass

TORCH = "/usr/bin/python3"
"""Debian's Python has Debian's torch."""


@dataclass(frozen=True)
class Healthy:
    """A job.

    Attributes:
        command: How it is started, in an empty directory.
        pause_s: The longest that it neither works nor says anything, as it is written here.
        record_s: How long it is recorded.
    """

    command: list[str]
    pause_s: float = 0.0
    record_s: float = 75.0


def _shell(text: str, **more: float) -> Healthy:
    return Healthy(["sh", "-c", text], **more)


def _python(text: str, interpreter: str = sys.executable, **more: float) -> Healthy:
    return Healthy([interpreter, "-c", text], **more)


_DOWNLOAD = r"""
import http.server, threading, time, urllib.request, os
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b"x" * 30000)
            time.sleep(0.3)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
if os.fork() == 0:
    server.serve_forever()
server.server_close()
with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}") as source, open("weights", "wb") as target:
    while data := source.read(65536):
        target.write(data)
"""
_COMPILE = r"""
i=0
while :; do
  i=$((i+1))
  awk -v n=$i 'BEGIN { for (f = 0; f < 400; f++) printf "double f%d(double x) { double s = 0; for (int k = 1; k < %d; k++) s += x / k - k * x; return s; }\n", f, f + n }' > unit.c
  gcc -O2 -c unit.c -o unit.o
done
"""
_SQLITE = r"""
import random, sqlite3
base = sqlite3.connect("index.db")
base.execute("create table sample (id integer, text text)")
while True:
    base.executemany("insert into sample values (?, ?)", ((random.randrange(10**9), "x" * 40) for _ in range(200000)))
    base.execute("create index if not exists by_id on sample (id)")
    base.commit()
"""
_CHECKPOINT = r"""
import os, pickle, time
state = [os.urandom(1 << 20) for _ in range(32)]
print("step 100 saving", flush=True)
while True:
    with open("checkpoint", "wb") as file:
        pickle.dump(state, file)
        os.fsync(file.fileno())
    time.sleep(1)
"""
_EVALUATION = r"""
import torch
torch.set_num_threads(1)
print("epoch 1 evaluating", flush=True)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
with torch.no_grad():
    while True:
        model(torch.rand(512, 256)).sum().item()
"""
_LOADER = r"""
import time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 10000
    def __getitem__(self, index):
        time.sleep(2.5)
        return torch.ones(4)
for step, batch in enumerate(DataLoader(Slow(), batch_size=2, num_workers=2)):
    print(f"step {step}", flush=True)
"""
_TRAINING = r"""
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10**6):
    end = time.monotonic() + 3
    while time.monotonic() < end:
        loss = model(torch.rand(64, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
"""
_RANKS = r"""
import datetime, os, subprocess, sys, time
rank = os.environ.get("RANK")
if rank is None:
    ranks = [subprocess.Popen([sys.executable, "-c", os.environ["TEXT"]], env={**os.environ, "RANK": str(n)}) for n in (0, 1)]
    sys.exit(max(one.wait() for one in ranks))
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=int(rank), world_size=2)
while True:
    value = torch.rand(1000)
    for _ in range(200):
        value = (value * 1.01).sin()
    dist.all_reduce(value)
    time.sleep(0.02)
"""
_POLL = r"""
import os, time
while not os.path.exists("go"):
    print(time.strftime("waiting for the cluster, %H:%M:%S"), flush=True)
    time.sleep(8)
"""
_QUIET_POLL = r"""
import os, time
print("waiting for the data set", flush=True)
for turn in range(1000):
    time.sleep(6)
    if turn % 3 == 2:
        print(f"{turn} of 1000 shards", flush=True)
"""
_LOCK = r"""
import fcntl, os, time
lock = open("lock", "w")
if os.fork() == 0:
    fcntl.flock(lock, fcntl.LOCK_EX)
    time.sleep(22)
    os._exit(0)
lock = open("lock", "w")
time.sleep(1)
print("waiting for the lock", flush=True)
fcntl.flock(lock, fcntl.LOCK_EX)
while True:
    sum(range(10**6))
"""
_BURSTS = r"""
import time
print("started", flush=True)
while True:
    end = time.monotonic() + 3
    while time.monotonic() < end:
        sum(range(10**5))
    time.sleep(87)
"""
_MAPPED = r"""
import mmap, os
with open("tensors", "wb") as file:
    for _ in range(64):
        file.write(os.urandom(1 << 20))
while True:
    with open("tensors", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        sum(held[at] for at in range(0, len(held), 4096))
"""
_STOPPED = r"""
import os, signal, subprocess, sys, time
job = subprocess.Popen([sys.executable, "-c", "import time\nfor step in range(10**6):\n    time.sleep(0.5)\n    sum(range(10**6))\n    print('step', step, flush=True)"])
time.sleep(20)
job.send_signal(signal.SIGSTOP)
time.sleep(18)
job.send_signal(signal.SIGCONT)
job.wait()
"""

ALL: dict[str, Healthy] = {
    "gzip": _shell("while :; do head -c 300000000 /dev/urandom | gzip -6 > out.gz; done"),
    "xz": _shell("while :; do head -c 100000000 /dev/urandom | xz -0 > out.xz; done"),
    "sort": _shell("while :; do head -c 30000000 /dev/urandom | od -An -v -tx8 -w8 | sort -S 32M > sorted; done"),
    "sqlite-index": _python(_SQLITE),
    "compile": _shell(_COMPILE),
    "download": _python(_DOWNLOAD),
    "dd-fsync": _shell("while :; do dd if=/dev/zero of=out bs=4k count=4000 oflag=dsync status=none; done"),
    "du": _shell("while :; do du -s /usr >/dev/null; sleep 1; done"),
    "checkpoint": _python(_CHECKPOINT),
    "evaluation": _python(_EVALUATION, TORCH),
    "slow-loader": _python(_LOADER, TORCH, pause_s=6.0),
    "training": _python(_TRAINING, TORCH),
    "quiet-ranks": _python(f"import os\nos.environ['TEXT'] = {_RANKS!r}\nexec({_RANKS!r})", TORCH),
    "poll": _python(_POLL, pause_s=9.0),
    "shards": _python(_QUIET_POLL, pause_s=19.0),
    "lock": _python(_LOCK, pause_s=24.0),
    "bursts": _python(_BURSTS, pause_s=88.0, record_s=285.0),
    "mapped": _python(_MAPPED),
    "stopped": _python(_STOPPED, pause_s=19.0),
}
