"""Finding pod templates in manifests of any kind: wherever a ``spec`` holds a list of named containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where a pod's own labels name the job that it belongs to, by the group of the kind that owns it.
JOB_LABELS = {
    "batch": "batch.kubernetes.io/job-name",
    "jobset.x-k8s.io": "jobset.sigs.k8s.io/jobset-name",
    "kubeflow.org": "training.kubeflow.org/job-name",
    "trainer.kubeflow.org": "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.x-k8s.io": "leaderworkerset.sigs.k8s.io/name",
    "ray.io": "ray.io/cluster",
}


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A pod, or what a workload makes pods from.

    Attributes:
        holder: The mapping that has ``spec`` and may have ``metadata``.
        spec: The pod's spec.
        path: Where it is, for messages (``Job/train: spec.template``).
        job_label: The label by which such pods know their job; None where there is none.
        workload: The workload's own ``metadata``; empty where it has none.
    """

    holder: dict[str, Any]
    spec: dict[str, Any]
    path: str
    job_label: str | None
    workload: dict[str, Any]

    @property
    def annotations(self) -> dict[str, str]:
        """The workload's annotations with the pod's own over them."""
        found: dict[str, str] = {}
        for metadata in (self.workload, self.holder.get("metadata")):
            told = metadata.get("annotations") if isinstance(metadata, dict) else None
            if isinstance(told, dict):
                found.update({str(key): str(value) for key, value in told.items()})
        return found


def find(document: object) -> Iterator[PodTemplate]:
    """The pod templates of one document, also of those that a list holds.

    Args:
        document: A manifest as parsed.
    """
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        return
    if isinstance(document.get("items"), list) and document["kind"].endswith("List"):
        for item in document["items"]:
            yield from find(item)
        return
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = f"{document['kind']}/{metadata.get('name') or metadata.get('generateName') or '?'}"
    group = str(document.get("apiVersion") or "").rpartition("/")[0]
    yield from _below(document, name, [], JOB_LABELS.get(group), metadata)


def _below(
    node: dict[str, Any], name: str, path: list[str], job_label: str | None, workload: dict[str, Any]
) -> Iterator[PodTemplate]:
    spec = node.get("spec")
    if isinstance(spec, dict) and _has_containers(spec):
        yield PodTemplate(node, spec, f"{name}: {'.'.join(path) or 'spec'}", job_label, workload)
        return
    for key, value in node.items():
        if isinstance(value, dict) and key not in ("metadata", "status", "data", "stringData"):
            yield from _below(value, name, [*path, str(key)], job_label, workload)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _below(item, name, [*path, f"{key}[{number}]"], job_label, workload)


def _has_containers(spec: dict[str, Any]) -> bool:
    containers = spec.get("containers")
    return (
        isinstance(containers, list)
        and bool(containers)
        and all(isinstance(container, dict) and isinstance(container.get("name"), str) for container in containers)
    )
