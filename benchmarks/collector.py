"""What the collector costs beside a job of 73 processes on 8 GPUs, as a Markdown table; ``run.py`` has the row too.

python benchmarks/collector.py [SECONDS]

The GPUs are those of the stand-in library that the tests use, through NVIDIA's own binding: how long a real driver takes
to answer is its own affair, and its time does not count as the collector's share where it sleeps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Row

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.append(str(REPOSITORY / "tests"))
from gpu.standin import build  # noqa: E402  (found only now)

RANKS, WORKERS = 8, 8
START_S = 10.0
"""What the start costs is told apart: it is paid once."""
JOB = """
import subprocess, sys, time
rank = "import subprocess, time\\nfor _ in range(WORKERS): subprocess.Popen(['sleep', '3600'])\\ntime.sleep(3600)"
for _ in range(RANKS):
    subprocess.Popen([sys.executable, "-c", rank])
for step in range(10**9):
    print(f"step {step}/100000 loss {2 - step / 1e6:.4f} lr 3e-4", flush=True)
    time.sleep(0.1)
""".replace("WORKERS", str(WORKERS)).replace("RANKS", str(RANKS))
_TICKS = os.sysconf("SC_CLK_TCK")


def _child_of(supervisor: int, word: bytes) -> int:
    """The process of gpualert's own whose command holds a word."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == supervisor and word in (path / "cmdline").read_bytes():
                    return int(path.name)
            except (OSError, IndexError):
                continue
        time.sleep(0.1)
    raise SystemExit("no collector has come")


def _used(pid: int) -> float:
    """Seconds of processor time of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _peak(pid: int) -> int:
    """Its peak resident memory in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def cost(seconds: float, work: Path) -> list[Row]:
    """Share of a core and memory of the collector.

    Args:
        seconds: How long to measure.
        work: A directory to work in.
    """
    work = work / "collector"  # no other run shall lie here
    libraries = build(work / "nvml")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    argv = [sys.executable, "-I", str(REPOSITORY / "gpualert" / "__main__.py"), "run", "--log-dir", f"{work}/runs"]
    # What the job leaves goes with it.
    argv += ["--orphan-grace", "1s", "--", sys.executable, "-c", JOB]
    job = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    try:
        pid = _child_of(job.pid, b"telemetry.collector")
        time.sleep(START_S)
        began, before, own = time.monotonic(), _used(pid), _used(job.pid)
        time.sleep(seconds)
        taken = time.monotonic() - began
        share, supervisor, peak = (_used(pid) - before) / taken, (_used(job.pid) - own) / taken, _peak(pid)
        run = next((work / "runs").glob("2*"))
        size = (run / "telemetry.jsonl").stat().st_size
        gpus = (run / "telemetry.jsonl").read_text().count('"utilization"')
    finally:
        job.terminate()
        job.wait()
    measured = (
        f"{100 * share:.2f} % of one core, {peak / 1e6:.1f} MB ({before:.2f} s of CPU for the start; supervisor "
        f"{100 * supervisor:.2f} %; {size >> 10} KiB written{'' if gpus else ', and no GPU was seen'})"
    )
    return [
        Row(
            f"collector beside {1 + RANKS * (1 + WORKERS)} processes on 8 GPUs",
            "≤ 0.5 % of one core, ≤ 40 MB",
            measured,
            share <= 0.005 and peak <= 40e6 and gpus > 0,
        )
    ]


def main() -> None:
    """Measure, and print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    print("| what | goal | measured | reached |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpualert-bench-") as directory:
        for row in cost(seconds, Path(directory)):
            print(row)


if __name__ == "__main__":
    main()
