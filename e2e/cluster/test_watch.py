"""The watcher on a real cluster: Indexed Jobs of eight ranks whose processes fail as a training job's do.

The ranks are a small stand-in for a process group: each step they wait for each other's files on a volume of the node, and
abort with a watchdog's words when one does not come (torch itself would be an image of gigabytes).
"""

from __future__ import annotations

import email
import email.policy
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON
from notify.servers import Accepting, accepting

from e2e.cluster.jobs import PREFIX, Namespace, inject

__all__ = ["accepting"]

RANKS = 8
STAND_IN = r"""
import os, sys, time
rank, size, place = int(os.environ["JOB_COMPLETION_INDEX"]), 8, "/var/log/gpualert/sync"
os.makedirs(place, exist_ok=True)
def all_reduce(step, limit):
    open(f"{place}/{step}-{rank}", "w").close()
    end = time.monotonic() + limit
    while any(not os.path.exists(f"{place}/{step}-{other}") for other in range(size)):
        if time.monotonic() > end:
            work = f"WorkNCCL(SeqNum={step}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={1000 * limit})"
            print(f"[rank{rank}]:[E1202 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {1000 * limit + 3} milliseconds before timing out.", file=sys.stderr, flush=True)
            os.abort()
        time.sleep(0.1)
OOM = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
for step in range(1, 5):
    print(f"step {step} loss 2.{step}", flush=True)
    all_reduce(step, 100 if step == 1 else 10)
    if step == 2:
        FAULT
print("done")
"""
FAULTS = {
    "oom": 'if rank == 3: raise OOM("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.21 GiB is free.")',
    "limit": "held = [bytearray(10 << 20) for _ in range(1000)] if rank == 3 else None",
    "silent": "if rank == 5: time.sleep(3600)",
    "two": 'if rank == 1: raise OOM("CUDA out of memory. Tried to allocate 2.00 GiB.")\n        if rank == 6: raise OSError(28, "No space left on device", "/scratch/x")',
    "none": "time.sleep(3600)",
}


class Watching:
    """The watcher, beside the cluster, over a namespace of a test's own."""

    def __init__(self, namespace: Namespace, server: Accepting, directory: Path) -> None:
        self.namespace, self.server = namespace, server
        self.log = directory / "watch.log"
        config = directory / "config.toml"
        config.write_text('[watch]\nsettle = "20s"\nunschedulable_after = "5s"\n')
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUALERT")}
        environment |= {
            "GPUALERT_EMAIL_TO": "oncall@example.org", "GPUALERT_SMTP_HOST": "127.0.0.1", "PYTHONWARNINGS": "ignore",
            "GPUALERT_SMTP_PORT": str(server.port), "GPUALERT_SMTP_SECURITY": "none",
        }  # fmt: skip
        command = [PYTHON, "-m", "gpualert", "watch", "-n", namespace.name, "--listen", "", "--config", str(config)]
        command += ["--spool", str(directory / "spool")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def run(self, name: str, fault: str, *options: str, image: str = "bookworm", container: str = "") -> None:
        """An Indexed Job of eight ranks."""
        script = STAND_IN.replace("FAULT", FAULTS[fault])
        manifest = f"""\
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  completions: {RANKS}
  parallelism: {RANKS}
  completionMode: Indexed
  backoffLimit: 0
  backoffLimitPerIndex: 0
  maxFailedIndexes: {RANKS}
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 5
      containers:
        - name: main
          image: {PREFIX}/{image}:latest
          imagePullPolicy: IfNotPresent
          command: ["python3", "-c", {json.dumps(script)}]
{container}
""".replace("  backoffLimit: 0\n", "")
        self.namespace.apply(inject(manifest, "--log-volume", f"hostPath:{self.namespace.logs}", *options))

    @property
    def mails(self) -> list[Any]:
        return [email.message_from_bytes(mail, policy=email.policy.default) for mail in self.server.inbox.mails]

    def mail(self) -> Any:
        """The one mail."""
        self.namespace.until(lambda: self.mails, f"the mail\n{self.log.read_text()}")
        time.sleep(12)  # for what must not come
        (mail,) = self.mails
        return mail

    def report(self, mail: Any) -> dict[str, Any]:
        (part,) = [part for part in mail.iter_attachments() if part.get_filename() == "report.json"]
        return json.loads(part.get_content())  # type: ignore[no-any-return]

    def events(self) -> list[dict[str, Any]]:
        found = self.namespace.get("events")["items"]
        return [event for event in found if event.get("reportingComponent") == "gpualert.dev/watch"]


@pytest.fixture
def watching(namespace: Namespace, accepting: Callable[..., Accepting], tmp_path: Path) -> Iterator[Watching]:
    made = Watching(namespace, accepting(), tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def roots(report: dict[str, Any]) -> list[int]:
    return sorted(row["rank"] for row in report["ranks"] if row["role"] == "root")


def test_one_rank_out_of_memory_and_the_others_time_out(watching: Watching) -> None:
    watching.run("oom", "oom")
    mail = watching.mail()
    node = watching.namespace.pods("oom")[0]["spec"]["nodeName"]
    assert str(mail["Subject"]).strip().startswith(f"[gpualert] oom failed: cuda_oom on rank 3 ({node}) after ")
    report = watching.report(mail)
    assert roots(report) == [3]
    assert {row["class"] for row in report["ranks"] if row["role"] == "cascade"} == {"nccl_timeout"}
    assert report["incident"]["broke_at"] < min(row["broke_at"] for row in report["ranks"] if row["rank"] != 3)
    (event,) = watching.events()
    assert (event["reason"], event["involvedObject"]["name"]) == ("CudaOom", "oom")
    assert "cuda_oom: rank 3" in watching.namespace.run("describe", "job", "oom")
    verdict = json.loads(watching.namespace.get("job", "oom")["metadata"]["annotations"]["gpualert.dev/verdict"])
    assert (verdict["class"], verdict["rank"], verdict["node"]) == ("cuda_oom", 3, node)


def test_one_rank_killed_by_its_memory_limit(watching: Watching) -> None:
    watching.run(
        "limit", "limit", container="          resources: {limits: {memory: 100Mi}, requests: {memory: 10Mi}}\n"
    )
    mail = watching.mail()
    assert "limit failed: oom_killer on rank 3" in mail["Subject"]
    assert roots(watching.report(mail)) == [3]


def test_one_rank_silent_and_then_gone(watching: Watching) -> None:
    watching.run("quiet", "silent")
    pods = watching.namespace.until(
        lambda: [p for p in watching.namespace.pods("quiet") if p["status"].get("phase") == "Running"], "the ranks"
    )
    (victim,) = [
        pod for pod in watching.namespace.pods("quiet")
        if pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == "5"
    ]  # fmt: skip
    assert pods
    watching.namespace.until(lambda: (watching.namespace.logs / "sync" / "2-5").exists(), "the second step")
    watching.namespace.run("delete", "pod", victim["metadata"]["name"], "--force", "--grace-period=0")
    mail = watching.mail()
    report = watching.report(mail)
    assert report["diagnosis"]["confidence"] <= 0.5
    assert "rank 5" in report["diagnosis"]["summary"]


def test_two_independent_causes(watching: Watching) -> None:
    watching.run("two", "two")
    report = watching.report(watching.mail())
    assert roots(report) == [1, 6]
    assert {row["class"] for row in report["ranks"] if row["role"] == "root"} == {"cuda_oom", "disk_full"}


def test_all_evicted(watching: Watching) -> None:
    watching.run("evicted", "none")
    watching.namespace.until(lambda: (watching.namespace.logs / "sync" / "2-7").exists(), "the second step")
    for pod in watching.namespace.pods("evicted"):
        name = pod["metadata"]["name"]
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": watching.namespace.name},
        }
        path = f"/api/v1/namespaces/{watching.namespace.name}/pods/{name}/eviction"
        watching.namespace.run("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    mail = watching.mail()
    report = watching.report(mail)
    assert report["diagnosis"]["class"] in ("evicted", "terminated")
    assert roots(report) == []


def test_an_image_that_is_not_there(watching: Watching) -> None:
    watching.run("image", "oom", image="not-there")
    mail = watching.mail()
    assert "image failed: image_pull" in mail["Subject"]
    assert watching.events()


def test_pods_without_gpualert_are_read_by_their_logs(watching: Watching) -> None:
    script = STAND_IN.replace("FAULT", FAULTS["oom"]).replace("/var/log/gpualert/sync", "/sync")
    watching.namespace.apply(
        f"""\
apiVersion: batch/v1
kind: Job
metadata: {{name: plain}}
spec:
  completions: {RANKS}
  parallelism: {RANKS}
  completionMode: Indexed
  backoffLimitPerIndex: 0
  maxFailedIndexes: {RANKS}
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: {PREFIX}/bookworm:latest
          imagePullPolicy: IfNotPresent
          command: ["python3", "-c", {json.dumps(script)}]
          volumeMounts: [{{name: sync, mountPath: /sync}}]
      volumes: [{{name: sync, hostPath: {{path: {watching.namespace.logs}}}}}]
"""
    )
    mail = watching.mail()
    assert "plain failed: cuda_oom on rank 3" in mail["Subject"]
    assert roots(watching.report(mail)) == [3]
