"""A real API server with its etcd, and nothing behind it: pods and their states are written through the API.

No kubelet, so thousands of pods cost nothing; no controllers, so nothing but the test changes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from e2e.cluster import cluster

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TOKEN = "token-of-a-plane-on-loopback"
PATIENCE_S = 120.0


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def stamp(seconds_ago: float = 0.0) -> str:
    """RFC 3339, as Kubernetes writes it."""
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Plane:
    """An API server.

    Attributes:
        kubeconfig: Its administrator's credentials.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.binaries = subprocess.run(
            [REPOSITORY / "e2e" / "cluster" / "build.sh"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.split()[-1]
        self.port, self.etcd_port = _port(), _port()
        self.kubeconfig = self.credentials("admin", TOKEN)
        self._tokens = {TOKEN: 'admin,admin,"system:masters"'}
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def credentials(self, user: str, token: str) -> Path:
        """A kubeconfig for a token."""
        path = self.directory / f"kubeconfig-{user}"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "c", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }  # fmt: skip
        path.write_text(json.dumps(config))
        return path

    def user(self, name: str) -> Path:
        """Credentials of somebody who has no rights yet; the server must be started after this."""
        self._tokens[f"token-of-{name}"] = f"{name},{name}"
        return self.credentials(name, f"token-of-{name}")

    def start(self) -> None:
        """Start both, and wait until they answer."""
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{_port()}"
        log = (self.directory / "etcd.log").open("ab")
        self._etcd = subprocess.Popen(
            [f"{self.binaries}/etcd", "--data-dir", str(self.directory / "etcd"), "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"default={peer}", "--unsafe-no-fsync"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        key = self.directory / "sa.key"
        if not key.exists():
            subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self.start_server()

    def start_server(self) -> None:
        (self.directory / "tokens.csv").write_text("".join(f"{token},{who}\n" for token, who in self._tokens.items()))
        log = (self.directory / "apiserver.log").open("ab")
        key = str(self.directory / "sa.key")
        self._server = subprocess.Popen(
            [f"{self.binaries}/kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{self.etcd_port}",
             "--secure-port", str(self.port), "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1",
             "--cert-dir", str(self.directory / "certs"), "--token-auth-file", str(self.directory / "tokens.csv"),
             "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.233.0.0/24",
             "--service-account-key-file", key, "--service-account-signing-key-file", key,
             "--service-account-issuer", "https://e2e.invalid", "--endpoint-reconciler-type", "none",
             "--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition,Priority"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.until(lambda: self.ask("GET", "/readyz") == "ok", "the API server")

    def kill_server(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def stop(self) -> None:
        for process in (self._server, self._etcd):
            if process is not None:
                process.kill()
                process.wait()

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """One request; JSON where the answer is JSON."""
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def until(self, condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
        end = time.monotonic() + patience_s
        while True:
            found = None
            with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
                found = condition()
            if found:
                return found
            assert time.monotonic() < end, f"waited in vain for {what}"
            time.sleep(0.2)

    # -- what tests make ---------------------------------------------------------------------------------------------

    def namespace(self, name: str) -> str:
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def job(self, namespace: str, name: str, ranks: int, **annotations: str) -> dict[str, Any]:
        """An Indexed Job that no controller minds."""
        container = {"name": "main", "image": "train"}
        found: dict[str, Any] = self.ask("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", {
            "metadata": {"name": name, "annotations": {key.replace("_", "-"): text for key, text in annotations.items()}},
            "spec": {
                "completions": ranks, "parallelism": ranks, "completionMode": "Indexed",
                "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
            },
        })  # fmt: skip
        return found

    def pod(self, job: dict[str, Any], rank: int, node: str | None, *, suffix: str = "", wrapped: bool = True) -> str:
        """A running pod of a Job; its name."""
        meta = job["metadata"]
        name = f"{meta['name']}-{rank}{suffix}"
        command = ["/gpualert/bin/gpualert", "run", "--", "python", "train.py"] if wrapped else ["python", "train.py"]
        container = {
            "name": "main",
            "image": "train",
            "command": command,
            "resources": {"limits": {"nvidia.com/gpu": "8"}},
        }
        self.ask("POST", f"/api/v1/namespaces/{meta['namespace']}/pods", {
            "metadata": {
                "name": name,
                "labels": {"batch.kubernetes.io/job-name": meta["name"], "batch.kubernetes.io/job-completion-index": str(rank)},
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}],
            },
            "spec": {"containers": [container], "restartPolicy": "Never", **({"nodeName": node} if node else {})},
        })  # fmt: skip
        if node:
            self.status(meta["namespace"], name, "Running", {"running": {"startedAt": stamp(60)}})
        return name

    def status(self, namespace: str, pod: str, phase: str, state: dict[str, Any], **more: Any) -> None:
        """What a kubelet would write."""
        row = {
            "name": "main",
            "image": "train",
            "imageID": "",
            "ready": False,
            "restartCount": more.pop("restarts", 0),
            "state": state,
        }
        if "last" in more:
            row["lastState"] = more.pop("last")
        body = {"status": {"phase": phase, "startTime": stamp(60), "containerStatuses": [row], **more}}
        self.ask("PATCH", f"/api/v1/namespaces/{namespace}/pods/{pod}/status", body, "application/merge-patch+json")

    def fail(
        self, namespace: str, pod: str, code: int, message: str, *, ago: float = 0.0, reason: str = "Error"
    ) -> None:
        state = {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "message": message,
                "startedAt": stamp(60),
                "finishedAt": stamp(ago),
            }
        }
        self.status(namespace, pod, "Failed", state)

    def annotations(self, namespace: str, job: str) -> dict[str, str]:
        found = self.ask("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}")["metadata"].get("annotations")
        return found or {}

    def events(self, namespace: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [event for event in found if event["source"].get("component") == "gpualert"]

    def together(self, work: Callable[[Any], Any], items: list[Any]) -> None:
        """Do something for many things at once."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, items))


def message(cls: str, summary: str, code: int, rank: int, node: str, root: str, at: str | None = None) -> str:
    """A termination message as gpualert writes it."""
    machine = {
        "gpualert": 1, "class": cls, "family": "", "exit_code": code, "signal": None, "run_id": f"run-{rank}",
        "rank": rank, "node": node, "log": f"/var/log/gpualert/run-{rank}", "root": root,
    }  # fmt: skip
    if at:
        machine["at"] = at
    return f"{cls}: {summary} (exit {code})\nrank {rank} on node {node}\n{root}\ntry: a smaller batch\n{json.dumps(machine, separators=(',', ':'))}\n"


OOM = (
    "cuda_oom",
    "CUDA out of memory on GPU 0, asked for 2.00 GiB",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
)
LATE = ("nccl_timeout", "a collective operation timed out (ALLREDUCE, number 4711)",
        "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)")  # fmt: skip


def environment(mail_port: int) -> dict[str, str]:
    """The watcher's settings."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GPUALERT")}
    return {
        **kept,
        "GPUALERT_EMAIL_TO": "oncall@example.org",
        "GPUALERT_SMTP_HOST": "127.0.0.1",
        "GPUALERT_SMTP_PORT": str(mail_port),
        "GPUALERT_SMTP_SECURITY": "none",
        "PYTHONWARNINGS": "ignore",
    }


__all__ = ["LATE", "OOM", "Plane", "cluster", "environment", "message", "stamp"]
