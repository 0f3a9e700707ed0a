"""What is seen only with rights in the whole cluster (nodes), and the kinds of other projects, on an API server alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from notify.servers import Accepting

from e2e.watch.conftest import Watching
from e2e.watch.plane import LATE, OOM, Plane, message, stamp
from e2e.watch.test_incidents import attached, roles


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """An API server of this file's own: the watcher sees all of it."""
    made = Plane(tmp_path_factory.mktemp("alone"))
    try:
        made.start()
        made.namespace("train")
        yield made
    finally:
        made.stop()


@pytest.fixture
def everywhere(alone: Plane, accepting: Callable[..., Accepting], tmp_path: Path) -> Iterator[Watching]:
    made = Watching(alone, "train", accepting(), tmp_path)
    made.configure(label_nodes="true")
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def node(plane: Plane, name: str, *conditions: dict[str, Any]) -> None:
    plane.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    tell(plane, name, *conditions)


def tell(plane: Plane, name: str, *conditions: dict[str, Any]) -> None:
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "lastHeartbeatTime": stamp(),
        "lastTransitionTime": stamp(9000),
    }
    listed = {row["type"]: row for row in (ready, *conditions)}
    body = {"status": {"conditions": list(listed.values())}}
    plane.ask("PATCH", f"/api/v1/nodes/{name}/status", body, "application/merge-patch+json")


def everywhere_start(watching: Watching) -> None:
    import subprocess

    from conftest import PYTHON

    from e2e.watch.plane import environment

    command = [PYTHON, "-m", "gpualert", "watch", "--kubeconfig", str(watching.plane.kubeconfig), "--listen", ""]
    command += ["--config", str(watching.config), "--spool", str(watching.directory / "spool")]
    log = (watching.directory / "watch.log").open("ab")
    watching.started.append(subprocess.Popen(command, env=environment(watching.server.port), stderr=log, stdout=log))


def test_a_node_that_is_lost_is_the_root_and_its_rank_too(alone: Plane, everywhere: Watching) -> None:
    for name in ("n0", "n1"):
        node(alone, name)
    job = alone.job("train", "lost", 4)
    for rank in range(4):
        alone.pod(job, rank, f"n{rank // 2}")
    everywhere_start(everywhere)
    tell(alone, "n1", {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.", "lastTransitionTime": stamp()})  # fmt: skip
    for rank in range(2):
        alone.fail("train", f"lost-{rank}", 1, message(*LATE[:2], 1, rank, "n0", LATE[2]))
    (mail,) = everywhere.mail()
    assert "lost failed: node_lost on ranks 2-3 (n1)" in mail["Subject"]
    report = attached(mail)
    assert roles(report) == {"root": [2, 3], "cascade": [0, 1]}
    assert report["facts"][0]["reason"] == "NotReady"
    alone.until(
        lambda: (
            alone.ask("GET", "/api/v1/nodes/n1")["metadata"].get("labels", {}).get("gpualert.dev/suspect")
            == "node_lost"
        ),
        "the label",
    )
    assert "gpualert.dev/suspect" not in (alone.ask("GET", "/api/v1/nodes/n0")["metadata"].get("labels") or {})
    assert "unschedulable" not in (alone.ask("GET", "/api/v1/nodes/n1").get("spec") or {})


def test_an_xid_on_a_node_explains_a_time_out_there_but_not_one_from_before(alone: Plane, everywhere: Watching) -> None:
    xid = {
        "type": "XidError",
        "status": "True",
        "reason": "GPUXid79",
        "message": "NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus.",
    }
    node(alone, "x0")
    node(alone, "x1", {**xid, "lastTransitionTime": stamp()})
    node(alone, "x2", {**xid, "lastTransitionTime": stamp(7200)})
    job = alone.job("train", "xid", 3)
    for rank in range(3):
        alone.pod(job, rank, f"x{rank}")
        alone.fail("train", f"xid-{rank}", 1, message(*LATE[:2], 1, rank, f"x{rank}", LATE[2]))
    everywhere_start(everywhere)
    (mail,) = everywhere.mail()
    assert "xid failed: gpu_lost on rank 1 (x1)" in mail["Subject"]
    assert roles(attached(mail)) == {"root": [1], "cascade": [0, 2]}


def pod(plane: Plane, name: str, labels: dict[str, str], owner: dict[str, Any] | None, text: str) -> None:
    container = {
        "name": "main",
        "image": "train",
        "command": ["gpualert", "run", "--", "x"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    references = [owner] if owner else []
    plane.ask("POST", "/api/v1/namespaces/train/pods", {
        "metadata": {"name": name, "labels": labels, "ownerReferences": references},
        "spec": {"containers": [container], "restartPolicy": "Never", "nodeName": "k0"},
    })  # fmt: skip
    plane.fail("train", name, 1, text)


@pytest.mark.parametrize("kind", ["PyTorchJob", "JobSet", "LeaderWorkerSet", "bare pods"])
def test_pods_of_other_kinds_are_one_incident(alone: Plane, everywhere: Watching, kind: str) -> None:
    """Their CRDs are not installed here: the marks go on the pods."""
    name = f"k-{kind.lower().replace(' ', '-')}"
    uid = "12345678-0000-0000-0000-000000000000"
    for index in range(3):
        bad = index == 1
        kind_of = OOM if bad else LATE
        text = message(kind_of[0], kind_of[1], 1, index, "k0", kind_of[2])
        owner: dict[str, Any] | None = {"kind": kind, "name": name, "uid": uid, "controller": True}
        if kind == "PyTorchJob":
            role = "master" if index == 0 else "worker"
            labels = {
                "training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": role,
                "training.kubeflow.org/replica-index": str(max(index - 1, 0)),
            }  # fmt: skip
            owner = {**owner, "apiVersion": "kubeflow.org/v1"} if owner else None
        elif kind == "JobSet":
            labels = {
                "jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                "jobset.sigs.k8s.io/job-index": str(index), "jobset.sigs.k8s.io/restart-attempt": "2",
                "batch.kubernetes.io/job-name": f"{name}-workers-{index}",
            }  # fmt: skip
            owner = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": f"{name}-workers-{index}",
                "uid": uid,
                "controller": True,
            }
        elif kind == "LeaderWorkerSet":
            labels = {
                "leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/group-index": "4",
                "leaderworkerset.sigs.k8s.io/worker-index": str(index),
            }  # fmt: skip
            owner = {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": f"{name}-4",
                "uid": uid,
                "controller": True,
            }
        else:
            labels, owner = {"gpualert.dev/job": name, "gpualert.dev/rank": str(index)}, None
        pod(alone, f"{name}-{index}", labels, owner, text)
    everywhere_start(everywhere)
    mails = everywhere.mail()
    (mail,) = [mail for mail in mails if name in mail["Subject"]]
    assert f"{name} failed: cuda_oom on rank 1 (k0)" in mail["Subject"]
    report = attached(mail)
    assert (roles(report), report["incident"]["attempt"]) == (
        {"root": [1], "cascade": [0, 2]},
        2 if kind == "JobSet" else 0,
    )
    alone.until(
        lambda: (
            json.loads(
                alone.ask("GET", f"/api/v1/namespaces/train/pods/{name}-0")["metadata"]["annotations"][
                    "gpualert.dev/incidents"
                ]
            )[0]["state"]
            == "told"
        ),
        "the mark",
    )
