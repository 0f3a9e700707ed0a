"""What the watcher keeps of the objects of the API: a pod takes 2 kB instead of 20."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

LABELS = (
    "batch.kubernetes.io/job-name", "job-name", "batch.kubernetes.io/controller-uid", "controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid", "jobset.sigs.k8s.io/replicatedjob-name",
    "jobset.sigs.k8s.io/job-index", "jobset.sigs.k8s.io/job-global-index", "jobset.sigs.k8s.io/restart-attempt",
    "training.kubeflow.org/job-name", "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index",
    "training.kubeflow.org/job-role",
    "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index",
    "leaderworkerset.sigs.k8s.io/worker-index", "leaderworkerset.sigs.k8s.io/group-key",
    "ray.io/cluster", "ray.io/node-type", "ray.io/originated-from-cr-name", "ray.io/originated-from-crd",
    "apps.kubernetes.io/pod-index", "volcano.sh/job-name", "volcano.sh/task-index",
    "gpualert.dev/watch", "gpualert.dev/job", "gpualert.dev/rank",
)  # fmt: skip
"""Labels by which pods know their job and their place in it."""
ANNOTATIONS = (
    "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/restart-attempt", "gpualert.dev/email-to",
    "gpualert.dev/watch", "gpualert.dev/injected", "leaderworkerset.sigs.k8s.io/size", "gpualert.dev/incidents",
    "gpualert.dev/verdict",
)  # fmt: skip
GPU_RESOURCES = ("nvidia.com/", "amd.com/gpu", "habana.ai/", "gpu.intel.com/", "aws.amazon.com/neuron")
WORLD_SIZE = ("WORLD_SIZE", "GPUALERT_COMPLETIONS")


def _some(mapping: Any, keys: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(mapping, dict):
        return {}
    return {key: str(mapping[key]) for key in keys if key in mapping}


def pod(raw: Object) -> Object:
    """A pod: who it is, whose it is, and how its containers stand.

    Args:
        raw: The pod as the API gives it.
    """
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    controller = next((ref for ref in meta.get("ownerReferences") or [] if ref.get("controller")), None)
    conditions = [
        {key: row[key] for key in ("type", "status", "reason", "message", "lastTransitionTime") if row.get(key)}
        for row in status.get("conditions") or []
        if row.get("type") in ("DisruptionTarget", "PodScheduled") or str(row.get("type")).startswith("gpualert.dev/")
    ]
    containers = {row["name"]: row for row in spec.get("containers") or [] if "name" in row}
    return {
        "metadata": {
            "name": meta["name"],
            "namespace": meta.get("namespace", ""),
            "uid": meta["uid"],
            "created": meta.get("creationTimestamp"),
            "deleted": meta.get("deletionTimestamp"),
            "labels": _some(meta.get("labels"), LABELS),
            "annotations": _some(meta.get("annotations"), ANNOTATIONS),
            "owner": {key: controller.get(key) for key in ("apiVersion", "kind", "name", "uid")}
            if controller
            else None,
        },
        "node": spec.get("nodeName"),
        "gpus": sum(_gpus(container) for container in containers.values()),
        "world_size": next((size for c in containers.values() if (size := _world_size(c)) is not None), None),
        "order": list(containers),
        "wrapped": [name for name, container in containers.items() if _is_wrapped(container)],
        "with_gpu": [name for name, container in containers.items() if _gpus(container)],
        "phase": status.get("phase"),
        "reason": status.get("reason"),
        "message": status.get("message"),
        "started": status.get("startTime"),
        "conditions": conditions,
        "containers": [_container(row) for row in status.get("containerStatuses") or []],
        "init": [row for row in map(_container, status.get("initContainerStatuses") or []) if _is_stuck(row)],
    }


def _gpus(container: Object) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    counts = [str(count) for name, count in limits.items() if str(name).startswith(GPU_RESOURCES)]
    return sum(int(count) for count in counts if count.isdigit())


def _world_size(container: Object) -> int | None:
    for row in container.get("env") or []:
        if row.get("name") in WORLD_SIZE and str(row.get("value") or "").isdigit():
            return int(row["value"])
    return None


def _is_wrapped(container: Object) -> bool:
    command = [str(part) for part in [*(container.get("command") or []), *(container.get("args") or [])][:2]]
    return bool(command) and str(command[0]).rpartition("/")[2] == "gpualert"


def _container(row: Object) -> Object:
    return {
        "name": row.get("name"),
        "restarts": row.get("restartCount") or 0,
        "state": _state(row.get("state")),
        "last": _state(row.get("lastState")),
    }


def _state(state: Any) -> Object:
    """One container state: ``kind`` and what belongs to it."""
    for kind in ("terminated", "running", "waiting"):
        told = (state or {}).get(kind)
        if isinstance(told, dict):
            keys = ("exitCode", "signal", "reason", "message", "startedAt", "finishedAt")
            return {"kind": kind, **{key: told[key] for key in keys if told.get(key) is not None}}
    return {}


def _is_stuck(row: Object) -> bool:
    state = row["state"]
    return state.get("kind") == "waiting" or bool(state.get("kind") == "terminated" and state.get("exitCode") != 0)


def job(raw: Object) -> Object:
    """A Job: how many pods it wants, how it ended, and what has been told of it.

    Args:
        raw: The Job as the API gives it.
    """
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    controller = next((ref for ref in meta.get("ownerReferences") or [] if ref.get("controller")), None)
    return {
        "metadata": {
            "name": meta["name"],
            "namespace": meta.get("namespace", ""),
            "uid": meta["uid"],
            "deleted": meta.get("deletionTimestamp"),
            "labels": _some(meta.get("labels"), LABELS),
            "annotations": {
                key: text for key, text in (meta.get("annotations") or {}).items() if key.startswith("gpualert.dev/")
            },
            "owner": {key: controller.get(key) for key in ("apiVersion", "kind", "name", "uid")}
            if controller
            else None,
        },
        "completions": spec.get("completions"),
        "parallelism": spec.get("parallelism"),
        "indexed": spec.get("completionMode") == "Indexed",
        "conditions": [
            {key: row.get(key) for key in ("type", "reason", "message", "lastTransitionTime")}
            for row in status.get("conditions") or []
            if row.get("status") == "True"
        ],
    }


def node(raw: Object) -> Object:
    """A node: its conditions that are not as they should be, its taints, and its last heartbeat.

    Args:
        raw: The node as the API gives it.
    """
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    kept = []
    for row in status.get("conditions") or []:
        is_ready = row.get("type") == "Ready"
        if is_ready or row.get("status") == "True" or (row.get("status") == "Unknown"):
            kept.append({key: row.get(key) for key in ("type", "status", "reason", "message", "lastTransitionTime")})
    beats = [row.get("lastHeartbeatTime") for row in status.get("conditions") or [] if row.get("type") == "Ready"]
    taints = [
        {key: row.get(key) for key in ("key", "effect", "value", "timeAdded")} for row in spec.get("taints") or []
    ]
    return {
        "metadata": {
            "name": meta["name"],
            "uid": meta["uid"],
            "labels": _some(meta.get("labels"), ("gpualert.dev/suspect",)),
        },
        "unschedulable": bool(spec.get("unschedulable")),
        "conditions": kept,
        "taints": taints,
        "beat": beats[0] if beats else None,
    }
