"""What a pod says of itself to its API server, which stands in here for the real one."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.apiserver import ApiServer, refusal
from notify.servers import certificate

from gpualert.cluster import podapi

POD = "/api/v1/namespaces/ml/pods/llama-0/status"
RUN = {"namespace": "ml", "pod": "llama-0"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """An API server that knows the pod, and the service account in it."""
    pem, key = certificate(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    server = ApiServer(context)
    (tmp_path / "token").write_text("of-the-pod")
    (tmp_path / "ca.crt").write_bytes(pem.read_bytes())
    monkeypatch.setattr(podapi, "ACCOUNT", str(tmp_path))
    monkeypatch.setattr(podapi, "TIMEOUT_S", 60.0)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
    server.put(POD)
    yield server
    server.down()


def _say(report: dict[str, Any]) -> list[str]:
    return podapi.HangSaying(report).finish(time.monotonic() + 60)


def _hang(state: str, why: str) -> dict[str, Any]:
    return {"run": RUN, "hang": {"state": state, "why": why}}


def _conditions(server: ApiServer) -> list[tuple[str, str, str, str]]:
    rows = [request.body["status"]["conditions"] for request in server.seen("patch")]
    return [(row["type"], row["status"], row["reason"], row["message"]) for (row,) in rows]


def test_a_hang_is_a_condition_and_an_event_of_its_pod_and_is_taken_back(server: ApiServer) -> None:
    assert _say(_hang("suspected", "no output for 31m")) == []
    assert _say(_hang("over", "output again")) == []
    assert _conditions(server) == [
        ("gpualert.dev/hang", "True", "Hang", "no output for 31m"),
        ("gpualert.dev/hang", "False", "GoesOn", "output again"),
    ]
    events = [request.body for request in server.seen("post")]
    assert [(e["reason"], e["type"], e["message"], e["involvedObject"]["name"]) for e in events] == [
        ("Hang", "Warning", "hang: no output for 31m", "llama-0"),
        ("GoesOn", "Normal", "goes_on: output again", "llama-0"),
    ]
    patch = server.seen("patch")[0]
    assert patch.headers["Content-Type"] == podapi.STRATEGIC
    assert patch.headers["Authorization"] == "Bearer of-the-pod"


def test_without_the_right_to_it_nothing_is_lost_but_this(server: ApiServer) -> None:
    server.fail("patch", refusal(403, "Forbidden"))
    server.fail("post", refusal(403, "Forbidden"))
    assert _say(_hang("suspected", "")) == [
        "condition: the API server answered 403", "event: the API server answered 403",
    ]  # fmt: skip
    server.down()
    (trouble,) = _say(_hang("suspected", ""))
    assert trouble.startswith("condition: ")


def test_outside_a_cluster_nothing_is_said(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert _say(_hang("suspected", "no output")) == []
    assert server.requests == []


def test_an_end_is_said_as_before_and_a_success_is_not(server: ApiServer) -> None:
    diagnosis = {"class": "gpu_lost", "family": "hardware", "summary": "the GPU has fallen off the bus"}
    assert podapi.Saying({"run": RUN, "diagnosis": diagnosis}).finish(time.monotonic() + 60) == []
    assert podapi.Saying({"run": RUN, "diagnosis": {**diagnosis, "class": "success"}}).finish(time.monotonic()) == []
    assert _conditions(server) == [
        ("gpualert.dev/hardware", "True", "gpu_lost", "gpu_lost: the GPU has fallen off the bus")
    ]
    (event,) = [request.body for request in server.seen("post")]
    assert (event["reason"], event["type"]) == ("GpuLost", "Warning")
