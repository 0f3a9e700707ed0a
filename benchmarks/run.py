"""Every figure that gpualert promises, measured beside its baseline in one run on this machine, as a Markdown table.

python benchmarks/run.py            the whole measurement (about ten minutes, 3 GB of disk)
python benchmarks/run.py --quick    smaller sizes, fewer runs (about one minute)
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from collector import cost
from measure import Row, paired, spent

REPOSITORY = Path(__file__).resolve().parent.parent
ENTRY = REPOSITORY / "gpualert" / "__main__.py"
BARE = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
OURS = sys.executable
OOM = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 188, in <module>\n'
    "    main()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.21 GiB is free.\n"
)
# yes(1) repeats a line faster than any reader takes it.
LINE = "x" * 79


class Sizes:
    """How much is measured."""

    def __init__(self, *, quick: bool) -> None:
        self.startups = 10 if quick else 60
        self.runs = 3 if quick else 9
        self.bytes = (64 if quick else 512) << 20
        self.memory = (200 if quick else 10_240) << 20
        self.log = (64 if quick else 1024) << 20
        self.watched_s = 20.0 if quick else 60.0


def startup(sizes: Sizes, work: Path) -> list[Row]:
    """The whole process around ``true``, against the bare interpreter, tini, and nothing."""
    run = f"{BARE} -IS {ENTRY} run --log-dir {work}/runs -- true"
    commands = [run, f"{BARE} -IS -c pass", "true"]
    tini = shutil.which("tini")
    commands += [f"{tini} -s -- true"] if tini else []
    ours, bare, nothing, *rest = paired(commands, sizes.startups)
    against_tini = f", tini {1000 * rest[0]:.1f} ms" if rest else " (tini is not installed)"
    measured = f"{1000 * ours:.1f} ms, bare interpreter {1000 * bare:.1f} ms, a shell's `true` {1000 * nothing:.1f} ms"
    return [
        Row("start to end of `gpualert run -- true`", "≤ 2.0 × bare interpreter", f"{ours / bare:.2f} × ({measured}{against_tini})",
            ours / bare <= 2.0),
    ]  # fmt: skip


def throughput(sizes: Sizes, work: Path) -> list[Row]:
    """Output to disk and through us to a reader, against tee and cat."""
    rows = []
    kinds = (
        ("output in large writes", f"head -c {sizes.bytes} /dev/zero", 1.3),
        ("output in lines of 80 bytes", f"sh -c 'yes {LINE} | head -c {sizes.bytes}'", 0.9),
    )
    for what, source, goal in kinds:
        ours = f"{BARE} -IS {ENTRY} run --log-dir {work}/runs --log-max-bytes 8GiB -- {source} | cat >/dev/null"
        tee = f"{source} | tee {work}/tee.out | cat >/dev/null"
        cat = f"{source} | cat | cat >/dev/null"

        def tidy() -> None:
            shutil.rmtree(work / "runs", ignore_errors=True)
            (work / "tee.out").unlink(missing_ok=True)

        mine, theirs, plain = paired([ours, tee, cat], sizes.runs, tidy)
        measured = f"{theirs / mine:.2f} × ({_rate(sizes.bytes, mine)}, tee {_rate(sizes.bytes, theirs)}, cat {_rate(sizes.bytes, plain)})"
        rows.append(Row(what, f"≥ {goal} × tee", measured, theirs / mine >= goal))
    return rows


def _rate(count: int, taken: float) -> str:
    return f"{count / taken / 1e6:.0f} MB/s"


def memory(sizes: Sizes, work: Path) -> list[Row]:
    """The supervisor's peak resident memory after little and much output."""

    def peak(count: int) -> int:
        command = ["sh", "-c", f"head -c {count} /dev/zero; echo ready >&2; exec sleep 600"]
        argv = [BARE, "-IS", str(ENTRY), "run", "--log-dir", f"{work}/runs", "--log-max-bytes", "1GiB", "--", *command]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None  # for the type checker
        process.stderr.readline()
        time.sleep(1.0)
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(signal.SIGTERM)
        process.communicate()
        shutil.rmtree(work / "runs", ignore_errors=True)
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))

    little, much = peak(1 << 20), peak(sizes.memory)
    measured = (
        f"{much / 1024:.1f} MiB after {sizes.memory / (1 << 30):.1f} GiB of output, {little / 1024:.1f} MiB after 1 MiB"
    )
    return [Row("supervisor's peak memory", "≤ 16 MB, the same after 10 GB", measured, much * 1024 <= 16e6)]


def large_log(path: Path, size: int) -> None:
    """Write a log of a long training run with the cause in its middle and idle chatter after it."""
    before = b"".join(
        b"2026-12-01 05:%02d:%02d,%03d INFO trainer: epoch %d step %d | loss %.4f | lr 3.0e-04 | 12.3k tokens/s\n"
        % (n // 60 % 60, n % 60, n % 1000, n // 500, n, 2 + 1 / (n + 1))
        for n in range(8000)
    )
    after = b"rank 1: waiting for peers, nothing to do here, still alive, queue empty, polling again\n" * 8000
    with path.open("wb") as file:
        while file.tell() < size // 2:
            file.write(before)
        file.write(OOM.encode())
        while file.tell() < size:
            file.write(after)


def reporting(sizes: Sizes, work: Path) -> list[Row]:
    """From a failure to its report, and a large log to its class."""
    log, big = work / "ten.log", work / "big.log"
    large_log(log, 10 << 20)
    taken = []
    for _ in range(sizes.runs):
        shutil.rmtree(work / "runs", ignore_errors=True)
        message = work / "message"
        command = ["sh", "-c", f"cat {log}; exit 1"]
        argv = [
            OURS,
            "-I",
            str(ENTRY),
            "run",
            "--log-dir",
            f"{work}/runs",
            "--termination-log",
            str(message),
            "--",
            *command,
        ]
        subprocess.run(argv, check=False, capture_output=True)
        ended = next((work / "runs").glob("2*/exit.json")).stat().st_mtime
        # The termination message is written after report.json.
        taken.append(message.stat().st_mtime - ended)
    report = sorted(taken)[len(taken) // 2]
    rows = [
        Row("failure to report.json and termination message, log of 10 MB", "≤ 0.5 s", f"{report:.2f} s", report <= 0.5)
    ]
    large_log(big, sizes.log)
    classify = [OURS, "-I", "-m", "gpualert", "classify", "--exit-code", "1"]
    for what, path, seconds_goal, memory_goal in (
        ("classify 10 MB, interpreter's start included", log, 0.3, None),
        (f"classify {sizes.log >> 20} MB, cause in the middle", big, 5.0, 150e6),
    ):
        found = subprocess.run([*classify, str(path)], check=True, capture_output=True).stdout
        took, peak = min(spent([*classify, "--format", "json", str(path)]) for _ in range(3))
        right = found.startswith(b"cuda_oom")
        text = f"{took:.2f} s, {peak / 1024:.0f} MiB{'' if right else ', and the answer is wrong'}"
        goal = f"≤ {seconds_goal:g} s" + (f", ≤ {memory_goal / 1e6:.0f} MB" if memory_goal else "")
        met = right and took <= seconds_goal and (memory_goal is None or peak * 1024 <= memory_goal)
        rows.append(Row(what, goal, text, met))
    return rows


def collector(sizes: Sizes, work: Path) -> list[Row]:
    """What measuring a run costs beside it."""
    return cost(sizes.watched_s, work)


def machine() -> str:
    """What this was measured on."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    version = subprocess.run([BARE, "-V"], capture_output=True, text=True, check=True).stdout.strip()
    return (
        f"{os.cpu_count()} × {model}, Linux {platform.release()}; supervisor by {version}, reporter by "
        f"Python {platform.python_version()}; medians of runs taken in turn"
    )


def main() -> None:
    """Measure everything and print the table."""
    if set(sys.argv[1:]) - {"--quick"}:
        sys.exit(__doc__)
    sizes = Sizes(quick="--quick" in sys.argv)
    # The classifier's own output is not wanted in the table.
    quiet = os.dup(1)
    print(f"Measured {time.strftime('%Y-%m-%d')} on {machine()}.\n")
    print("| what | goal | measured | reached |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpualert-bench-") as directory:
        for part in (startup, throughput, memory, reporting, collector):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                rows = part(sizes, Path(directory))
            finally:
                os.dup2(quiet, 1)
            for row in rows:
                print(row, flush=True)
    print("\nClassification is measured by benchmarks/classification.py.")


if __name__ == "__main__":
    main()
