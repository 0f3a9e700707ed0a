"""Finding pod templates in manifests of any kind: wherever a ``spec`` holds a list of containers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpualert.cluster.yamltree import ManifestError, Path

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where a pod's own labels name the job that it belongs to, by the group of the kind that owns it.
JOB_LABELS = {
    "batch": "batch.kubernetes.io/job-name",
    "batch.volcano.sh": "volcano.sh/job-name",
    "jobset.x-k8s.io": "jobset.sigs.k8s.io/jobset-name",
    "kubeflow.org": "training.kubeflow.org/job-name",
    "trainer.kubeflow.org": "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.x-k8s.io": "leaderworkerset.sigs.k8s.io/name",
    "ray.io": "ray.io/cluster",
}
# What has a ``spec.containers`` too, but changes other people's pods with it or matches them.
_NO_TEMPLATES = ("podTemplateOverrides", "podSpecPatches", "runtimePatches", "metadata", "status", "data", "stringData")
_NO_WORKLOADS = ("kyverno.io", "monitoring.coreos.com", "apiextensions.k8s.io", "admissionregistration.k8s.io")
_MAX_DEPTH, _MAX_VISITED = 60, 200_000
_SSHD = "the MPI operator starts the image's sshd in it, and the launcher reports what a rank does"
_RAY = "KubeRay makes its command"
_SUBMITTER = "it only submits the entrypoint, which runs under gpualert on the head"


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A pod, or what a workload makes pods from.

    Attributes:
        path: Where in the document the mapping is that has ``spec`` and may have ``metadata``.
        holder: That mapping as plain data.
        where: The same for people (``Job/train: spec.template``).
        job_label: The label by which such pods know their job; None where there is none.
        workload: The workload's own ``metadata``; empty where it has none.
        left_without_command: Why a container without a command may stay as it is; None where that is a mistake.
        left: Why the pod stays as it is; None where it is to be wrapped.
        line: The path of a shell line that runs in this pod and is wrapped in the command's place.
        carries: Whether only the bundle is put in, for a shell line that runs here.
    """

    path: Path
    holder: dict[str, Any]
    where: str
    job_label: str | None
    workload: dict[str, Any]
    left_without_command: str | None = None
    left: str | None = None
    line: Path | None = None
    carries: bool = False

    @property
    def spec(self) -> dict[str, Any]:
        """The pod's spec."""
        found: dict[str, Any] = self.holder["spec"]
        return found

    @property
    def annotations(self) -> dict[str, str]:
        """The workload's annotations with the pod's own over them."""
        found: dict[str, str] = {}
        for metadata in (self.workload, self.holder.get("metadata")):
            told = metadata.get("annotations") if isinstance(metadata, dict) else None
            if isinstance(told, dict):
                found.update({str(key): _text(value) for key, value in told.items()})
        return found


@dataclass(frozen=True, slots=True)
class Beyond:
    """A workload whose pods are made from what is not in it.

    Attributes:
        path: Where in the document it is.
        where: Which, for people.
        why: Why it is not wrapped, and what to do.
        loses: Whether something that would have to be wrapped is not.
        annotations: The workload's.
    """

    path: Path
    where: str
    why: str
    loses: bool
    annotations: dict[str, str]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def find(document: object, path: Path = (), inherited: tuple[str, str] = ("", "")) -> Iterator[PodTemplate | Beyond]:
    """The pod templates of one document, also of those that a list holds.

    Args:
        document: A manifest as plain data.
        path: Where in the file it is.
        inherited: apiVersion and kind for what has none itself, as the items of a JobList.

    Raises:
        ManifestError: There is too much of it: aliases of aliases.
    """
    if not isinstance(document, dict):
        return
    version, kind = (document.get(key) or given for key, given in zip(("apiVersion", "kind"), inherited, strict=True))
    if not isinstance(kind, str) or not kind or not isinstance(version, str):
        return
    if isinstance(document.get("items"), list) and kind.endswith("List"):
        given = ("", "") if kind in ("List", "ResourceList") else (version, kind.removesuffix("List"))
        for number, item in enumerate(document["items"]):
            yield from find(item, (*path, "items", number), given)
        return
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = f"{kind}/{metadata.get('name') or metadata.get('generateName') or '?'}"
    group = version.rpartition("/")[0]
    if group in _NO_WORKLOADS:
        return
    whole = PodTemplate(path, document, name, JOB_LABELS.get(group), metadata)
    beyond = _beyond(whole, kind, group)
    if beyond is not None:
        yield beyond
    templates = [replace(found, where=f"{name}: {_dotted(found.path[len(path) :])}") for found in _below(whole)]
    for found in templates:
        yield _placed(found, whole, kind, group)


def _dotted(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "spec"


def _below(whole: PodTemplate) -> Iterator[PodTemplate]:
    waiting: list[tuple[Path, Any]] = [(whole.path, whole.holder)]
    visited = 0
    while waiting:
        path, node = waiting.pop()
        visited += 1
        if visited > _MAX_VISITED:
            raise ManifestError(f"{whole.where}: too large, or aliases of aliases")
        if isinstance(node, list):
            waiting.extend(((*path, number), item) for number, item in reversed(list(enumerate(node))))
        elif isinstance(node, dict):
            if _is_pod(node.get("spec")):
                yield replace(whole, path=path, holder=node)
            elif len(path) < _MAX_DEPTH:
                inner = [(key, value) for key, value in node.items() if key not in _NO_TEMPLATES]
                waiting.extend(((*path, key), value) for key, value in reversed(inner))


def _is_pod(spec: object) -> bool:
    containers = spec.get("containers") if isinstance(spec, dict) else None
    return isinstance(containers, list) and any(isinstance(container, dict) for container in containers)


def _placed(found: PodTemplate, whole: PodTemplate, kind: str, group: str) -> PodTemplate:
    """A template with what its kind makes of it."""
    inside = found.path[len(whole.path) :]
    if kind == "MPIJob" and "Worker" in inside:
        return replace(found, left_without_command=_SSHD)
    if group != "ray.io":
        return found
    spec = whole.holder.get("spec")
    if kind != "RayJob" or not isinstance(spec, dict) or not isinstance(spec.get("entrypoint"), str):
        return replace(found, left_without_command=_RAY)
    if "submitterPodTemplate" in inside:
        return replace(found, left=_SUBMITTER)
    # Ray runs the line on the head, unless it is told what the line needs: then wherever that is free.
    anywhere = any(spec.get(f"entrypoint{need}") for need in ("NumCpus", "NumGpus", "Resources"))
    if "headGroupSpec" in inside:
        return replace(found, line=(*whole.path, "spec", "entrypoint"), carries=True)
    if anywhere:
        return replace(found, carries=True)
    return replace(found, left="the entrypoint runs on the head, and is wrapped there")


def _beyond(whole: PodTemplate, kind: str, group: str) -> Beyond | None:
    spec = whole.holder.get("spec")
    if not isinstance(spec, dict):
        return None
    annotations = whole.annotations
    if group == "trainer.kubeflow.org" and kind == "TrainJob":
        trainer = spec.get("trainer")
        command = trainer.get("command") if isinstance(trainer, dict) else None
        if not command:
            return Beyond(
                whole.path,
                whole.where,
                "its pods come from its runtime: inject the TrainingRuntime",
                False,
                annotations,
            )
        if isinstance(command, list) and command[:2] == ["/gpualert/bin/gpualert", "run"]:
            return None
        why = (
            "spec.trainer.command takes the place of its runtime's: inject the TrainingRuntime, "
            "and begin this command with /gpualert/bin/gpualert run --"
        )
        return Beyond(whole.path, whole.where, why, True, annotations)
    if group == "ray.io" and kind == "RayJob" and spec.get("entrypoint") and "rayClusterSpec" not in spec:
        why = (
            "its entrypoint runs on a cluster that is there already: put the bundle into that cluster's image, "
            "and begin the entrypoint with /gpualert/bin/gpualert run --"
        )
        return Beyond(whole.path, whole.where, why, True, annotations)
    return None
