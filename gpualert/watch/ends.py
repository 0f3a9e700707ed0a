"""How a pod ended, or stands: from its state and its termination message to what a verdict over ranks wants to know.

Source of the states: Kubernetes API reference, ``PodStatus`` and ``ContainerState``; of the disruption reasons:
"Pod disruption conditions".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import Facts, diagnose
from gpualert.incident.model import Finding, MachineFact, Rank
from gpualert.incident.outside import meaning
from gpualert.report.timeline import seconds_of

if TYPE_CHECKING:
    from gpualert.diagnosis.rulebook import Rulebook
    from gpualert.watch.owners import Place
    from gpualert.watch.slim import Object

SLACK_S = 1.5
"""Kubernetes' times are whole seconds."""
OWN_CONTAINERS = ("gpualert-attend", "gpualert-flush")
STUCK_REASONS = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
)  # fmt: skip
"""Reasons for which a container waits that time alone does not mend."""
_MEMORY = re.compile(r"memory (\d+(?:\.\d+)?) of (\d+(?:\.\d+)?) GiB")
_NEAR = 0.88


@dataclass(frozen=True, slots=True)
class Life:
    """One start of a pod's container: a restarted container has had several.

    Attributes:
        pod: The pod, slimmed.
        number: Which start it is, from 0.
        state: The container's state in it.
        container: Its name.
    """

    pod: Object
    number: int
    state: Object
    container: str

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state.get("kind") == "terminated" or self.pod["phase"] in ("Failed", "Succeeded")

    @property
    def failed(self) -> bool:
        """Whether it has ended badly, or cannot start."""
        if self.state.get("kind") == "terminated":
            return self.state.get("exitCode") != 0 or self.state.get("reason") == "OOMKilled"
        return self.pod["phase"] == "Failed" or stuck(self.pod, self.state) is not None

    @property
    def machine(self) -> dict[str, Any] | None:
        """What gpualert says of it in the termination message; None where it says nothing."""
        return machine_line(str(self.state.get("message") or ""))


def main_container(pod: Object) -> str | None:
    """The container whose end is the job's: what gpualert wraps, else what has GPUs, else the first."""
    names = [name for name in pod["order"] if name not in OWN_CONTAINERS]
    for listed in (pod["wrapped"], pod["with_gpu"], names):
        for name in listed:
            if name in names:
                return str(name)
    return None


def lives(pod: Object) -> list[Life]:
    """What can be seen of a pod's lives: the present one, and the one before.

    Args:
        pod: The pod, slimmed.
    """
    main = main_container(pod)
    rows = [row for row in pod["containers"] if row["name"] not in OWN_CONTAINERS]
    # Of several containers the one that has failed speaks for the pod.
    failed = [row for row in rows if row["state"].get("kind") == "terminated" and row["state"].get("exitCode") != 0]
    row = next((row for row in failed if row["name"] == main), None) or next(iter(failed), None)
    row = row or next((row for row in rows if row["name"] == main), None) or next(iter(rows), None)
    if row is None:
        return [Life(pod, 0, {}, main or "")]
    found = [Life(pod, row["restarts"], row["state"], row["name"])]
    if row["restarts"] and row["last"]:
        found.insert(0, Life(pod, row["restarts"] - 1, row["last"], row["name"]))
    return found


def machine_line(message: str) -> dict[str, Any] | None:
    """The JSON at the end of a termination message; a forged one says no more than a forged log would.

    Args:
        message: The message.
    """
    for line in reversed(message.rstrip().splitlines()):
        if line.startswith('{"gpualert"'):
            try:
                told = json.loads(line)
            except (ValueError, RecursionError):
                return None
            return told if isinstance(told, dict) else None
    return None


def stuck(pod: Object, state: Object) -> tuple[str, str] | None:
    """Why a pod cannot start, as reason and message; None where nothing says that it cannot.

    Args:
        pod: The pod, slimmed.
        state: The state of its main container.
    """
    for row in (state, *(init["state"] for init in pod["init"])):
        if row.get("kind") == "waiting" and row.get("reason") in STUCK_REASONS:
            return str(row["reason"]), str(row.get("message") or "")
    return None


def unschedulable(pod: Object) -> tuple[float | None, str] | None:
    """Since when a pod finds no node (seconds since 1970), and why; None where it has one, or is not looked at yet."""
    for row in pod["conditions"]:
        if (
            row["type"] == "PodScheduled"
            and row.get("status") == "False"
            and row.get("reason") in ("Unschedulable", "SchedulingGated")
        ):
            return seconds_of(row.get("lastTransitionTime")), str(row.get("message") or "")
    return None


def disruption(pod: Object) -> tuple[str, str, float | None] | None:
    """Who disrupted a pod, as reason, message and time; None where nobody did."""
    for row in pod["conditions"]:
        if row["type"] == "DisruptionTarget" and row.get("status") == "True":
            return str(row.get("reason")), str(row.get("message") or ""), seconds_of(row.get("lastTransitionTime"))
    if pod["reason"] in ("Evicted", "Preempted", "Preempting", "NodeLost", "Terminated", "NodeShutdown", "Shutdown"):
        return str(pod["reason"]), str(pod["message"] or ""), None
    return None


def rank_of(life: Life, place: Place, rules: Rulebook, *, gone: bool = False, log: bytes | None = None) -> Rank:
    """What a verdict over ranks wants to know of one life of a pod.

    Args:
        life: The life.
        place: The pod's place in its job.
        rules: Classes and rules.
        gone: The pod has been deleted.
        log: The end of its log, where gpualert was not in it.
    """
    pod, state, told = life.pod, life.state, life.machine or {}
    name, rank = pod["metadata"]["name"], told.get("rank")
    found = Rank(
        f"{name} (start {life.number + 1})" if life.number else name,
        rank if isinstance(rank, int) and not isinstance(rank, bool) else place.rank,
        pod["node"],
        "running",
        started_at=seconds_of(state.get("startedAt")) or seconds_of(pod["started"]),
        slack_s=SLACK_S,
        log=str(told["log"])[:300] if told.get("log") else None,
        run_id=str(told["run_id"])[:200] if told.get("run_id") else None,
        gpus=pod["gpus"] or None,
    )
    if state.get("kind") == "terminated":
        return _terminated(found, life, rules, log)
    blocked = stuck(pod, state)
    if blocked is not None:
        return replace(found, state="waiting", finding=meaning(*blocked, rules), broke_at=seconds_of(pod["started"]))
    waits = unschedulable(pod)
    if waits is not None:
        return replace(found, state="waiting", finding=meaning("Unschedulable", waits[1], rules), broke_at=waits[0])
    if pod["phase"] == "Failed":
        finding = meaning(str(pod["reason"] or ""), str(pod["message"] or ""), rules) if pod["reason"] else None
        return replace(found, state="failed", finding=finding)
    if pod["phase"] == "Succeeded":
        return replace(found, state="succeeded", finding=Finding("success", "success"))
    if gone:
        return replace(found, state="gone", ended_at=seconds_of(pod["metadata"]["deleted"]))
    return replace(found, state="waiting" if pod["phase"] == "Pending" else "running")


def _terminated(found: Rank, life: Life, rules: Rulebook, log: bytes | None) -> Rank:
    state, told = life.state, life.machine or {}
    code = state.get("exitCode")
    code = code if isinstance(code, int) else None
    signal = state.get("signal") or (code - 128 if code is not None and 128 < code < 193 else None)
    finding = _finding(life, rules, code, log)
    succeeded = code == 0 and state.get("reason") != "OOMKilled" and (finding is None or finding.cls == "success")
    return replace(
        found,
        state="succeeded" if succeeded else "failed",
        finding=finding or (Finding("success", "success") if succeeded else None),
        exit_code=code,
        signal=signal,
        broke_at=seconds_of(told.get("at")),
        ended_at=seconds_of(state.get("finishedAt")),
    )


def _finding(life: Life, rules: Rulebook, code: int | None, log: bytes | None) -> Finding | None:
    """What a container's end means: gpualert's word, the kubelet's, the log's, in this order."""
    state, told = life.state, life.machine or {}
    if told.get("class") and told.get("class") in rules.classes:
        known = rules.classes[str(told["class"])]
        finding = Finding.of({**told, "family": known.family, "summary": _summary(state, known.name)})
        assert finding is not None  # noqa: S101  (mypy: it has a class)
        return replace(
            finding,
            confidence=finding.confidence if "confidence" in told else 0.85,
            suggestions=_advice(state) or known.advice,
            retryable=known.retryable,
            node_suspect=known.node_suspect,
        )
    if told.get("class"):
        return Finding.of({**told, "summary": _summary(state, str(told["class"])), "suggestions": _advice(state)})
    if state.get("reason") in ("OOMKilled", "ContainerCannotRun", "StartError", "DeadlineExceeded"):
        return meaning(str(state["reason"]), _kubelets(state), rules)
    if told.get("state") == "running" and code == 137:
        return _died_with_its_supervisor(state, rules)
    if log is not None:
        facts = Facts(code if code is None or code >= 0 else None, state.get("signal"))
        return Finding.from_diagnosis(diagnose(log, facts, rules=rules))
    if code == 0:
        return Finding("success", "success")
    return Finding.from_diagnosis(diagnose(_kubelets(state).encode(), Facts(code), rules=rules))


def _kubelets(state: Object) -> str:
    """What the kubelet or the container said: a message without gpualert's line is the log's end, or what it wrote."""
    return str(state.get("message") or "").strip()


def _summary(state: Object, cls: str) -> str:
    """The summary in a termination message, from its first line: ``<class>: <summary> (exit 1)``."""
    for line in _kubelets(state).splitlines():
        if line.startswith(f"{cls}: "):
            text = line[len(cls) + 2 :]
            return text.rpartition(" (")[0] or text
    return cls


def _advice(state: Object) -> tuple[str, ...]:
    lines = (line for line in _kubelets(state).splitlines() if line.startswith("try: "))
    return tuple(line[len("try: ") :] for line in lines)


def _died_with_its_supervisor(state: Object, rules: Rulebook) -> Finding:
    """A provisional message is all that is left: was memory near its limit?"""
    first = _kubelets(state).partition("\n")[0][:300]
    memory = _MEMORY.search(first)
    near = memory is not None and float(memory[2]) > 0 and float(memory[1]) >= _NEAR * float(memory[2])
    cls = "oom_killer" if near else "lost"
    known = rules.classes[cls]
    text = f"killed together with its supervisor; {first}"
    return Finding(
        cls, known.family, 0.9 if near else 0.5, text, None, (), None, known.advice, known.retryable, known.node_suspect
    )


def facts_of(life: Life, rules: Rulebook) -> list[MachineFact]:
    """What the cluster did to a pod.

    Args:
        life: The pod's life that it happened in.
        rules: Classes and rules.
    """
    done = disruption(life.pod)
    if done is None:
        return []
    reason, message, at = done
    name = life.pod["metadata"]["name"]
    named = f"{name} (start {life.number + 1})" if life.number else name
    return [MachineFact(reason, message, life.pod["node"], None, named, at, meaning(reason, message, rules))]


def wants_log(life: Life) -> bool:
    """Whether only its log can say why it failed: gpualert was not in it, and the kubelet does not know."""
    if not life.failed or life.state.get("kind") != "terminated":
        return False
    return life.machine is None and life.state.get("reason") not in ("OOMKilled", "ContainerCannotRun", "StartError")
