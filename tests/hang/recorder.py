"""Records what a detector of hangs sees of real jobs, one look a second, for playing it back at other speeds.

python tests/hang/recorder.py [NAME...]     (from the repository; all healthy jobs and all hangs when none is named)

Each recording is one gzip file of JSON lines beside this one: bytes of output, processor seconds, bytes moved, step and
states. GPUs are not in them: this needs no machine that has any.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDINGS = Path(__file__).resolve().parent / "recordings"
_STEP = re.compile(rb"step (\d+)")
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]


def looks(run: Any, seconds: float) -> Iterator[dict[str, Any]]:
    """What is seen of a watched job, one look a second.

    Args:
        run: The job (``e2e.hang.watching.Watched``).
        seconds: For how long.
    """
    began = time.monotonic()
    for number in range(1, int(seconds) + 1):
        time.sleep(max(began + number - time.monotonic(), 0))
        moment = run.moment()
        steps = _STEP.findall(run.output().encode()[-4096:])
        yield {
            "at": round(moment.at_s - began, 3), "log": moment.log_bytes, "cpu": round(moment.cpu_s, 2),
            "io": moment.io_bytes, "step": int(steps[-1]) if steps else None, "states": dict(moment.states),
        }  # fmt: skip


def write(name: str, lines: list[dict[str, Any]]) -> None:
    """Keep a recording.

    Args:
        name: Of what.
        lines: Its looks.
    """
    RECORDINGS.mkdir(exist_ok=True)
    with (RECORDINGS / f"{name}.jsonl.gz").open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as file:
        file.writelines(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def record(name: str) -> None:
    """Record one job.

    Args:
        name: A healthy one, or ``hang-`` and one that hangs.
    """
    from hang import healthy

    from e2e.hang import jobs
    from e2e.hang.watching import Watched, watched

    with tempfile.TemporaryDirectory() as place:
        if name.startswith("hang-"):
            with watched(jobs.ALL[name.removeprefix("hang-")], Path(place)) as run:
                write(name, list(looks(run, 60)))
            return
        job = healthy.ALL[name]
        with contextlib.chdir(place):
            run = Watched(job.command, dict(os.environ, OMP_NUM_THREADS="1"), Path(place))
            try:
                write(name, list(looks(run, job.record_s)))
            finally:
                run.end(lambda: None)


def main() -> None:
    """Record what is named."""
    from hang import healthy

    from e2e.hang import jobs

    names = sys.argv[1:] or [*healthy.ALL, *(f"hang-{name}" for name in jobs.ALL)]
    if len(names) == 1:
        record(names[0])
        return
    # Each by itself: a job that is recorded must not be a sibling of others.
    running: list[subprocess.Popen[bytes]] = []
    for name in names:
        running = [one for one in running if one.poll() is None]
        while len(running) >= 4:
            time.sleep(1)
            running = [one for one in running if one.poll() is None]
        running.append(subprocess.Popen([sys.executable, __file__, name]))
    for one in running:
        one.wait()


if __name__ == "__main__":
    main()
