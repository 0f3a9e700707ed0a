"""Whose pods are: the job that a person knows, which attempt of it, and which rank a pod is.

Sources of the labels: Kubernetes "Well-Known Labels" and "Indexed Job", JobSet ``api/jobset/v1alpha2``, Kubeflow
training-operator ``pkg/apis/kubeflow.org/v1``, LeaderWorkerSet ``api/leaderworkerset/v1``, KubeRay
``ray-operator/controllers/ray/utils``, Volcano ``pkg/apis/batch/v1alpha1``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpualert.watch.slim import Object

JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")
UID_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")
INDEX = "batch.kubernetes.io/job-completion-index"
PLURALS = {
    ("batch", "Job"): "jobs",
    ("jobset.x-k8s.io", "JobSet"): "jobsets",
    ("kubeflow.org", "PyTorchJob"): "pytorchjobs",
    ("kubeflow.org", "TFJob"): "tfjobs",
    ("kubeflow.org", "MPIJob"): "mpijobs",
    ("kubeflow.org", "XGBoostJob"): "xgboostjobs",
    ("kubeflow.org", "PaddleJob"): "paddlejobs",
    ("kubeflow.org", "JAXJob"): "jaxjobs",
    ("trainer.kubeflow.org", "TrainJob"): "trainjobs",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): "leaderworkersets",
    ("ray.io", "RayJob"): "rayjobs",
    ("ray.io", "RayCluster"): "rayclusters",
    ("batch.volcano.sh", "Job"): "jobs",
    ("apps", "StatefulSet"): "statefulsets",
    ("apps", "ReplicaSet"): "replicasets",
    ("", "Pod"): "pods",
}
VERSIONS = {
    "batch": "v1", "jobset.x-k8s.io": "v1alpha2", "kubeflow.org": "v1", "trainer.kubeflow.org": "v1alpha1",
    "leaderworkerset.x-k8s.io": "v1", "ray.io": "v1", "batch.volcano.sh": "v1alpha1", "apps": "v1", "": "v1",
}  # fmt: skip
"""The version asked for where a pod's labels name the owner, but no reference tells its version."""
JOB_KINDS = frozenset(key for key in PLURALS if key[0] not in ("apps", ""))
"""Kinds that run to an end: their pods are watched unless somebody says otherwise."""


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """What a person calls the job.

    Attributes:
        namespace: Its namespace.
        group: Its API group; empty for the core.
        version: The version of that group.
        kind: Its kind.
        name: Its name.
        part: Which part of it runs and fails by itself (a group of a LeaderWorkerSet); empty for the whole.
    """

    namespace: str
    group: str
    version: str
    kind: str
    name: str
    part: str = ""

    @property
    def path(self) -> str | None:
        """Its path in the API; None for a kind whose plural is not known."""
        plural = PLURALS.get((self.group, self.kind))
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{self.namespace}/{plural}/{self.name}" if plural else None

    @property
    def api_version(self) -> str:
        """``batch/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        """``Job ml/llama``."""
        return f"{self.kind} {self.namespace}/{self.name}{f' group {self.part}' if self.part else ''}"


@dataclass(frozen=True, slots=True)
class Place:
    """A pod's place in its job.

    Attributes:
        owner: The job.
        slot: What a pod that takes its place has too (completion index, worker name); empty where nothing tells.
        rank: Its rank, as far as labels tell.
        attempt: Which attempt of the job it belongs to, where the controller says so; None where it is to be counted.
    """

    owner: Owner
    slot: str
    rank: int | None
    attempt: int | None


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() and len(text) < 9 else None


def _reference(reference: dict[str, Any] | None) -> tuple[str, str, str, str]:
    """Group, version, kind and name of an owner reference; empty where there is none."""
    if not reference:
        return "", "", "", ""
    group, _, version = str(reference.get("apiVersion") or "").rpartition("/")
    return group, version, str(reference.get("kind") or ""), str(reference.get("name") or "")


def place_of(pod: Object, jobs: dict[tuple[str, str], Object] | None = None) -> Place:
    """A pod's place.

    Args:
        pod: The pod, slimmed.
        jobs: Jobs by namespace and name, where a Job may itself belong to something.
    """
    meta = pod["metadata"]
    labels, notes, namespace = meta["labels"], meta["annotations"], meta["namespace"]
    group, version, kind, name = _reference(meta["owner"])
    index = _number(labels.get(INDEX) or notes.get(INDEX))

    def owner(of: str, its_kind: str, its_name: str, part: str = "") -> Owner:
        return Owner(namespace, of, version if of == group else VERSIONS[of], its_kind, its_name, part)

    if "jobset.sigs.k8s.io/jobset-name" in labels:
        job = _number(labels.get("jobset.sigs.k8s.io/job-index"))
        attempt = _number(
            labels.get("jobset.sigs.k8s.io/restart-attempt") or notes.get("jobset.sigs.k8s.io/restart-attempt")
        )
        slot = f"{labels.get('jobset.sigs.k8s.io/replicatedjob-name', '')}/{job}/{index}"
        only = labels.get("jobset.sigs.k8s.io/job-global-index", "0") == "0"
        return Place(
            owner("jobset.x-k8s.io", "JobSet", labels["jobset.sigs.k8s.io/jobset-name"]),
            slot, index if only else None, attempt,
        )  # fmt: skip
    if "training.kubeflow.org/job-name" in labels:
        role, number = (
            labels.get("training.kubeflow.org/replica-type", "").lower(),
            labels.get("training.kubeflow.org/replica-index"),
        )
        its_kind = kind if (group, kind) in PLURALS else "PyTorchJob"
        return Place(
            owner("kubeflow.org", its_kind, labels["training.kubeflow.org/job-name"]), f"{role}/{number}",
            _kubeflow_rank(role, _number(number)), None,
        )  # fmt: skip
    if "leaderworkerset.sigs.k8s.io/name" in labels:
        part, worker = (
            labels.get("leaderworkerset.sigs.k8s.io/group-index", ""),
            labels.get("leaderworkerset.sigs.k8s.io/worker-index"),
        )
        return Place(
            owner("leaderworkerset.x-k8s.io", "LeaderWorkerSet", labels["leaderworkerset.sigs.k8s.io/name"], part),
            str(worker), _number(worker), None,
        )  # fmt: skip
    if "ray.io/cluster" in labels:
        from_job = labels.get("ray.io/originated-from-crd") == "RayJob"
        its_name = labels.get("ray.io/originated-from-cr-name") if from_job else None
        return Place(
            owner("ray.io", "RayJob" if its_name else "RayCluster", its_name or labels["ray.io/cluster"]),
            "" if labels.get("ray.io/node-type") != "head" else "head",
            0 if labels.get("ray.io/node-type") == "head" else None, None,
        )  # fmt: skip
    if group == "batch.volcano.sh" or "volcano.sh/job-name" in labels:
        number = _number(labels.get("volcano.sh/task-index"))
        return Place(
            owner("batch.volcano.sh", "Job", labels.get("volcano.sh/job-name") or name), meta["name"], number, None
        )
    named = next((labels[label] for label in JOB_LABELS if label in labels), None)
    if (group, kind) == ("batch", "Job") or named:
        job_name = name if kind == "Job" else str(named)
        above = (jobs or {}).get((namespace, job_name), {}).get("metadata", {}).get("owner")
        top = _reference(above)
        if (top[0], top[2]) in JOB_KINDS:  # a TrainJob's or MPIJob's launcher
            return Place(Owner(namespace, top[0], top[1], top[2], top[3]), f"{job_name}/{index}", index, None)
        return Place(owner("batch", "Job", job_name), "" if index is None else str(index), index, None)
    rank = _number(labels.get("gpualert.dev/rank") or labels.get("apps.kubernetes.io/pod-index"))
    if "gpualert.dev/job" in labels:
        # Bare pods that say they belong together: the mark goes on the one that is first by name.
        return Place(Owner(namespace, "", "v1", "Pod", "", labels["gpualert.dev/job"]), meta["name"], rank, None)
    if kind:
        return Place(Owner(namespace, group, version, kind, name), meta["name"], rank, None)
    return Place(Owner(namespace, "", "v1", "Pod", meta["name"]), "", rank, None)


def _kubeflow_rank(role: str, number: int | None) -> int | None:
    """PyTorchJob: the master is rank 0, worker i is i + 1; where there is no master the workers begin at 0."""
    if number is None:
        return None
    return number if role in ("master", "chief", "launcher") else number + 1 if role == "worker" else None


def is_watched(pod: Object, place: Place, only: str) -> bool:
    """Whether a pod's failures are incidents.

    Args:
        pod: The pod, slimmed.
        place: Its place.
        only: ``jobs`` (what runs to an end), ``gpus`` (only of that what has GPUs) or ``labelled``.
    """
    said = pod["metadata"]["labels"].get("gpualert.dev/watch") or pod["metadata"]["annotations"].get(
        "gpualert.dev/watch"
    )
    if said is not None:
        return said.lower() in ("true", "yes", "1")
    if only == "labelled":
        return False
    wrapped = bool(pod["wrapped"]) or "gpualert.dev/injected" in pod["metadata"]["annotations"]
    if only == "gpus":
        return bool(pod["gpus"]) or wrapped
    owner = place.owner
    return wrapped or (owner.group, owner.kind) in JOB_KINDS or bool(owner.part)
