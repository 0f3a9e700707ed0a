"""What was seen from outside of a job, and what it means for the ranks that it concerns.

Sources of the reasons: Kubernetes' node lifecycle controller (``NodeNotReady``), taint eviction
(``TaintManagerEviction``, ``DeletionByTaintManager``), eviction API (``EvictionByEvictionAPI``), scheduler
(``Preempted``, ``PreemptionByScheduler``, ``FailedScheduling``), pod garbage collector (``DeletionByPodGC``), kubelet
(``Evicted``, ``TerminationByKubelet``, ``OOMKilled``, ``ErrImagePull`` ...), Job controller (``DeadlineExceeded``);
node-problem-detector and gpud, whose conditions on nodes speak of GPU, Xid, NVLink or ECC; Slurm's states.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpualert.diagnosis import diagnose
from gpualert.incident.model import Finding

if TYPE_CHECKING:
    from gpualert.diagnosis.rulebook import Rulebook

REASONS = {
    "node_lost": (
        "NotReady", "NodeNotReady", "NodeLost", "Unreachable", "NodeUnreachable", "NodeStatusUnknown", "NodeDown",
        "NODE_FAIL", "DeletionByPodGC",
    ),
    "evicted": (
        "Evicted", "EvictionByEvictionAPI", "TaintManagerEviction", "DeletionByTaintManager", "Preempted", "Preempting",
        "PreemptionByScheduler", "PreemptionByKubeScheduler", "TerminationByKubelet", "Drained", "Draining",
        "SystemOOMEvicted", "SpotInterruption", "JobSuspended", "PREEMPTED", "NodeShutdown", "Shutdown", "Terminated",
    ),
    "terminated": ("Killing", "Deleted", "Cancelled", "CANCELLED", "TIMEOUT", "DRAINED"),
    "deadline_exceeded": ("DeadlineExceeded", "DEADLINE"),
    "oom_killer": ("OOMKilled", "OOMKilling", "SystemOOM", "OUT_OF_MEMORY"),
    "image_pull": ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"),
    "container_config": (
        "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "FailedMount", "FailedAttachVolume",
        "FailedCreatePodSandBox", "CreatePodSandboxError", "ContainerCannotRun", "StartError",
    ),
    "unschedulable": ("Unschedulable", "FailedScheduling", "SchedulingGated"),
}  # fmt: skip
_CLASSES = {reason.lower(): cls for cls, reasons in REASONS.items() for reason in reasons}
_SURE = 0.9
_ABOUT_GPU = re.compile(r"xid|sxid|nvlink|nvswitch|ecc|gpu|fallen off|fabric", re.IGNORECASE)
"""What a node's condition must speak of for its words to be read as a log line."""


def meaning(reason: str, message: str, rules: Rulebook) -> Finding | None:
    """What something seen from outside means.

    Args:
        reason: Its reason, as the one who saw it calls it.
        message: What was said of it.
        rules: Classes and rules.

    Returns:
        A finding; None where it means nothing for a job's end.
    """
    cls = _CLASSES.get(reason.lower())
    if cls is not None and cls in rules.classes:
        known = rules.classes[cls]
        text = f"{reason}: {message}" if message else f"{reason}: {known.meaning}"
        return Finding(
            cls, known.family, _SURE, text[:300], None, (), None, known.advice, known.retryable, known.node_suspect
        )
    if not _ABOUT_GPU.search(f"{reason} {message}"):
        return None
    found = Finding.from_diagnosis(diagnose(f"{reason}: {message}\n".encode("utf-8", "replace"), rules=rules))
    return found if found.family == "hardware" else None
