"""The watcher under a storm: 2,000 pods in 50 jobs fail within seconds, on a real API server without kubelets.

python benchmarks/watch.py [--jobs N] [--ranks N]

Needs root for nothing; needs the binaries of e2e/cluster/build.sh (built on first use). Prints a table.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from aiosmtpd.controller import Controller  # noqa: E402

from e2e.watch.plane import LATE, OOM, Plane, environment, message  # noqa: E402

NAMESPACE = "storm"


class Inbox:
    """Counts mails."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    async def handle_DATA(self, _server: object, _session: object, envelope: object) -> str:  # noqa: N802
        """Take one."""
        content = envelope.content.decode("utf-8", "replace")  # type: ignore[attr-defined]
        found = re.search(r"^Subject: *(.*)$", content, re.MULTILINE)
        self.subjects.append(found[1] if found else "")
        return "250 taken"


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def _resident(pid: int) -> float:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def measure(plane: Plane, directory: pathlib.Path, jobs: int, ranks: int) -> dict[str, str]:
    """One storm.

    Args:
        plane: The API server.
        directory: For files.
        jobs: How many jobs.
        ranks: How many pods each has.
    """
    namespace = plane.namespace(f"{NAMESPACE}-{jobs}x{ranks}")
    made = {f"job-{number:03}": plane.job(namespace, f"job-{number:03}", ranks) for number in range(jobs)}
    pods = [(name, rank) for name in made for rank in range(ranks)]
    plane.together(lambda item: plane.pod(made[item[0]], item[1], f"gpu-{item[1] % 100}"), pods)
    inbox, mail, port = Inbox(), _port(), _port()
    controller = Controller(inbox, hostname="127.0.0.1", port=mail, ready_timeout=30)
    controller.start()
    config = directory / "config.toml"
    config.write_text('[watch]\nper_hour = 0\nsettle = "10s"\n')
    command = [sys.executable, "-m", "gpualert", "watch", "--kubeconfig", str(plane.kubeconfig), "-n", namespace]
    command += ["--listen", f"127.0.0.1:{port}", "--config", str(config), "--spool", str(directory / "spool")]
    watcher = subprocess.Popen(command, env=environment(mail), cwd=ROOT, stderr=(directory / "log").open("ab"))
    try:
        plane.until(lambda: "gpualert_leader" in _metrics(port), "the watcher")
        time.sleep(3)

        def fail(item: tuple[str, int]) -> None:
            name, rank = item
            cls, summary, root = OOM if rank == 1 else LATE
            text = message(cls, summary, 1, rank, f"gpu-{rank % 100}", root)
            plane.fail(namespace, f"{name}-{rank}", 1, text, ago=30 if rank == 1 else 5)

        began = time.monotonic()
        plane.together(fail, pods)
        broken = time.monotonic() - began
        plane.until(lambda: len(inbox.subjects) >= jobs, "the mails", 600)
        told = time.monotonic() - began
        time.sleep(5)
        requests = re.findall(r'gpualert_api_requests_total\{resource="([^"]+)",verb="([^"]+)"\} (\S+)', _metrics(port))
        counted = {f"{verb} {resource}": int(float(count)) for resource, verb, count in requests}
        right = sum("cuda_oom on rank 1 " in subject for subject in inbox.subjects)
        return {
            "jobs x ranks": f"{jobs} x {ranks}",
            "all broken after": f"{broken:.0f} s",
            "all told after": f"{told:.0f} s",
            "mails": f"{len(inbox.subjects)}, {right} with the right rank",
            "resident": f"{_resident(watcher.pid):.0f} MiB",
            "requests": f"{sum(counted.values())}: "
            + ", ".join(f"{count} {what}" for what, count in sorted(counted.items())),
        }
    finally:
        watcher.terminate()
        watcher.wait(30)
        controller.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=40)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        plane = Plane(pathlib.Path(name))
        plane.start()
        try:
            rows = [
                measure(plane, pathlib.Path(name), told.jobs, ranks) for ranks in (max(told.ranks // 5, 2), told.ranks)
            ]
        finally:
            plane.stop()
    print("| | " + " | ".join(row["jobs x ranks"] for row in rows) + " |")
    print("|---|" + "---|" * len(rows))
    for key in list(rows[0])[1:]:
        print(f"| {key} | " + " | ".join(row[key] for row in rows) + " |")


if __name__ == "__main__":
    main()
