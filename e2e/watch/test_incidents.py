"""Incidents of all kinds, on a real API server; the states are those that kubelets and controllers write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.watch.conftest import Watching
from e2e.watch.plane import LATE, OOM, Plane, message, stamp


def ranks(plane: Plane, watching: Watching, name: str = "llama", size: int = 8, **job: str) -> dict[str, Any]:
    made = plane.job(watching.namespace, name, size, **job)
    for rank in range(size):
        plane.pod(made, rank, f"gpu-{rank // 2}")
    return made


def break_(
    plane: Plane, watching: Watching, name: str, rank: int, kind: tuple[str, str, str], *, ago: float = 0.0
) -> None:
    cls, summary, root = kind
    plane.fail(
        watching.namespace, f"{name}-{rank}", 1, message(cls, summary, 1, rank, f"gpu-{rank // 2}", root), ago=ago
    )


def verdict(plane: Plane, watching: Watching, name: str = "llama") -> dict[str, Any]:
    told = plane.until(
        lambda: plane.annotations(watching.namespace, name).get("gpualert.dev/verdict"), f"a verdict on {name}"
    )
    return json.loads(told)  # type: ignore[no-any-return]


def roles(report: dict[str, Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in report["ranks"]:
        found.setdefault(row["role"], []).append(row["rank"])
    return found


def attached(mail: Any) -> dict[str, Any]:
    (part,) = [part for part in mail.iter_attachments() if part.get_filename() == "report.json"]
    return json.loads(part.get_content())  # type: ignore[no-any-return]


def test_one_rank_out_of_memory_and_seven_time_outs_are_one_mail_and_one_event(
    plane: Plane, watching: Watching
) -> None:
    watching.start()
    ranks(plane, watching)
    break_(plane, watching, "llama", 3, OOM, ago=10)
    for rank in (0, 1, 2, 4, 5, 6, 7):
        break_(plane, watching, "llama", rank, LATE)
    (mail,) = watching.mail()
    assert mail["Subject"].startswith("[gpualert] llama failed: cuda_oom on rank 3 (gpu-1) after ")
    report = attached(mail)
    assert roles(report) == {"root": [3], "cascade": [0, 1, 2, 4, 5, 6, 7]}
    assert report["incident"]["nodes"] == ["gpu-1"]
    assert report["cost"]["gpu_hours"] > 0
    told = verdict(plane, watching)
    assert (told["class"], told["rank"], told["node"], told["roots"]) == ("cuda_oom", 3, "gpu-1", ["llama-3"])
    (event,) = plane.until(lambda: plane.events(watching.namespace), "the Event")
    assert (event["reason"], event["involvedObject"]["kind"], event["involvedObject"]["name"]) == (
        "CudaOom",
        "Job",
        "llama",
    )
    watching.quiet()
    assert len(watching.mails) == 1
    marks = json.loads(plane.annotations(watching.namespace, "llama")["gpualert.dev/incidents"])
    assert [(mark["attempt"], mark["state"], mark["revision"]) for mark in marks] == [(0, "told", 0)]


def test_a_restart_repeats_nothing_and_loses_nothing(plane: Plane, watching: Watching) -> None:
    first = watching.start()
    ranks(plane, watching, size=2)
    break_(plane, watching, "llama", 0, OOM, ago=5)
    break_(plane, watching, "llama", 1, LATE)
    watching.mail()
    # Between the server's acceptance and the mark a crash would send it again.
    plane.until(
        lambda: '"told"' in plane.annotations(watching.namespace, "llama").get("gpualert.dev/incidents", ""), "the mark"
    )
    first.kill()
    first.wait()
    ranks(plane, watching, "other", size=2)
    break_(plane, watching, "other", 1, OOM, ago=5)
    break_(plane, watching, "other", 0, LATE)
    watching.start()
    _, mail = watching.mail(2)
    assert " other failed: cuda_oom on rank 1 " in mail["Subject"]
    watching.quiet()
    assert len(watching.mails) == 2


def test_what_the_kubelet_says_where_gpualert_says_nothing(plane: Plane, watching: Watching) -> None:
    watching.start()
    job = plane.job(watching.namespace, "bare", 2)
    for rank in range(2):
        plane.pod(job, rank, "gpu-0", wrapped=False)
    plane.fail(watching.namespace, "bare-0", 137, "", reason="OOMKilled", ago=5)
    plane.fail(watching.namespace, "bare-1", 1, LATE[2])
    (mail,) = watching.mail()
    assert "bare failed: oom_killer on rank 0 (gpu-0)" in mail["Subject"]


def test_an_out_of_memory_kill_that_ended_with_exit_0(plane: Plane, watching: Watching) -> None:
    watching.start()
    job = plane.job(watching.namespace, "zero", 1)
    plane.pod(job, 0, "gpu-0", wrapped=False)
    state = {"terminated": {"exitCode": 0, "reason": "OOMKilled", "startedAt": stamp(60), "finishedAt": stamp()}}
    plane.status(watching.namespace, "zero-0", "Succeeded", state)
    (mail,) = watching.mail()
    assert "zero failed: oom_killer" in mail["Subject"]


def test_a_supervisor_killed_with_its_job_leaves_its_last_memory_sample(plane: Plane, watching: Watching) -> None:
    watching.start()
    job = plane.job(watching.namespace, "whole", 2)
    for rank in range(2):
        plane.pod(job, rank, "gpu-0")
    machine = json.dumps(
        {"gpualert": 1, "state": "running", "run_id": "r", "rank": 1, "node": "gpu-0"}, separators=(",", ":")
    )
    text = f'running since 2026-12-01T05:12:00Z; last output 05:58:41Z "step 41200"; memory 63.8 of 64.0 GiB, rising\n{machine}\n'
    plane.fail(watching.namespace, "whole-1", 137, text, ago=5)
    plane.fail(watching.namespace, "whole-0", 1, message(*LATE[:2], 1, 0, "gpu-0", LATE[2]))
    (mail,) = watching.mail()
    assert "whole failed: oom_killer on rank 1 (gpu-0)" in mail["Subject"]


@pytest.mark.parametrize(
    ("reason", "cls"),
    [("ImagePullBackOff", "image_pull"), ("CreateContainerConfigError", "container_config")],
)
def test_a_rank_that_cannot_start(plane: Plane, watching: Watching, reason: str, cls: str) -> None:
    watching.start()
    ranks(plane, watching, "img", size=3)
    plane.status(watching.namespace, "img-2", "Pending", {"waiting": {"reason": reason, "message": "it is not there"}})
    (mail,) = watching.mail()
    assert f"img failed: {cls} on rank 2" in mail["Subject"]
    assert "it is not there" in mail.get_body(("plain",)).get_content()


def test_a_rank_that_finds_no_node(plane: Plane, watching: Watching) -> None:
    watching.configure(unschedulable_after='"2s"')
    watching.start()
    job = plane.job(watching.namespace, "wait", 2)
    plane.pod(job, 0, "gpu-0")
    plane.pod(job, 1, None)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9 nodes: 9 Insufficient nvidia.com/gpu", "lastTransitionTime": stamp(30)}  # fmt: skip
    path = f"/api/v1/namespaces/{watching.namespace}/pods/wait-1/status"
    plane.ask(
        "PATCH", path, {"status": {"phase": "Pending", "conditions": [condition]}}, "application/merge-patch+json"
    )
    (mail,) = watching.mail()
    assert "wait failed: unschedulable on rank 1" in mail["Subject"]


def test_all_preempted_is_no_crash_of_any_rank(plane: Plane, watching: Watching) -> None:
    watching.start()
    ranks(plane, watching, "pre", size=4)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "default-scheduler: preempting to accommodate a higher priority pod", "lastTransitionTime": stamp(2)}  # fmt: skip
    for rank in range(4):
        state = {
            "terminated": {
                "exitCode": 143,
                "reason": "Error",
                "message": "",
                "startedAt": stamp(60),
                "finishedAt": stamp(),
            }
        }
        plane.status(watching.namespace, f"pre-{rank}", "Failed", state, conditions=[condition])
    (mail,) = watching.mail()
    assert "pre failed: evicted on all 4 ranks" in mail["Subject"]
    assert roles(attached(mail)) == {"stopped": [0, 1, 2, 3]}


def test_two_independent_causes_are_both_named(plane: Plane, watching: Watching) -> None:
    watching.start()
    ranks(plane, watching, "two", size=4)
    break_(plane, watching, "two", 0, OOM, ago=6)
    disk = ("disk_full", "no space left on /scratch", "OSError: [Errno 28] No space left on device: '/scratch/x'")
    break_(plane, watching, "two", 3, disk, ago=5)
    for rank in (1, 2):
        break_(plane, watching, "two", rank, LATE)
    (mail,) = watching.mail()
    report = attached(mail)
    assert roles(report) == {"root": [0, 3], "cascade": [1, 2]}
    assert "independently" in report["diagnosis"]["summary"]


def test_a_pod_that_vanished_is_named_as_silent(plane: Plane, watching: Watching) -> None:
    watching.start()
    ranks(plane, watching, "gone", size=4)
    watching.quiet(3)
    plane.ask("DELETE", f"/api/v1/namespaces/{watching.namespace}/pods/gone-2?gracePeriodSeconds=0")
    for rank in (0, 1, 3):
        break_(plane, watching, "gone", rank, LATE)
    (mail,) = watching.mail()
    report = attached(mail)
    assert report["diagnosis"]["class"] == "unknown"
    assert report["diagnosis"]["confidence"] <= 0.5
    assert [row["state"] for row in report["ranks"] if row["rank"] == 2] == ["gone"]
    assert "rank 2" in report["diagnosis"]["summary"]


def test_each_try_of_a_single_pod_is_an_incident_of_its_own(plane: Plane, watching: Watching) -> None:
    watching.start()
    job = plane.job(watching.namespace, "retry", 1)
    for number in range(2):
        name = plane.pod(job, 0, "gpu-0", suffix=f"-try{number}")
        plane.fail(watching.namespace, name, 1, message(*OOM[:2], 1, 0, "gpu-0", OOM[2]))
        watching.mail(number + 1)
        watching.quiet(1.5)
    watching.quiet()
    assert [attached(mail)["incident"]["attempt"] for mail in watching.mails] == [0, 1]


def test_a_container_that_was_started_again_is_two_attempts(plane: Plane, watching: Watching) -> None:
    watching.start()
    job = plane.job(watching.namespace, "again", 1)
    name = plane.pod(job, 0, "gpu-0")
    first = {"terminated": {"exitCode": 1, "message": message(*OOM[:2], 1, 0, "gpu-0", OOM[2]), "startedAt": stamp(60), "finishedAt": stamp(5)}}  # fmt: skip
    plane.status(watching.namespace, name, "Running", {"running": {"startedAt": stamp()}}, restarts=1, last=first)
    (mail,) = watching.mail()
    assert "again failed: cuda_oom (gpu-0)" in mail["Subject"]
    watching.quiet()
    assert len(watching.mails) == 1


def test_the_verdict_changes_when_more_is_known(plane: Plane, watching: Watching) -> None:
    watching.start()
    ranks(plane, watching, "more", size=3)
    for rank in (0, 1):
        break_(plane, watching, "more", rank, LATE)
    watching.mail()
    break_(plane, watching, "more", 2, OOM, ago=30)
    first, second = watching.mail(2)
    assert "unknown" in first["Subject"]
    assert second["Subject"].strip().startswith("[gpualert] update: more failed: cuda_oom on rank 2")
    assert first["References"] == second["References"]
    assert first["Message-ID"] != second["Message-ID"]


def test_a_job_names_its_own_recipients(plane: Plane, watching: Watching) -> None:
    watching.start()
    ranks(plane, watching, "mine", size=1, **{"gpualert.dev/email_to": "me@example.org, you@example.org"})
    break_(plane, watching, "mine", 0, OOM)
    (mail,) = watching.mail()
    assert mail["To"] == "oncall@example.org, me@example.org, you@example.org"


def test_a_job_that_somebody_deletes_is_nobodys_incident(plane: Plane, watching: Watching) -> None:
    watching.start()
    ranks(plane, watching, "del", size=2)
    watching.quiet(3)
    plane.ask("DELETE", f"/apis/batch/v1/namespaces/{watching.namespace}/jobs/del?propagationPolicy=Orphan")
    for rank in range(2):
        plane.fail(
            watching.namespace,
            f"del-{rank}",
            143,
            message("terminated", "stopped from outside by SIGTERM", 143, rank, "gpu-0", ""),
        )
        plane.ask("DELETE", f"/api/v1/namespaces/{watching.namespace}/pods/del-{rank}?gracePeriodSeconds=0")
    watching.quiet(10)
    assert watching.mails == []


def test_a_success_is_no_incident(plane: Plane, watching: Watching) -> None:
    watching.start()
    ranks(plane, watching, "fine", size=2)
    for rank in range(2):
        state = {"terminated": {"exitCode": 0, "message": message("success", "ended without error", 0, rank, "gpu-0", ""), "startedAt": stamp(9), "finishedAt": stamp()}}  # fmt: skip
        plane.status(watching.namespace, f"fine-{rank}", "Succeeded", state)
    watching.quiet(8)
    assert watching.mails == []
    assert "gpualert.dev/verdict" not in plane.annotations(watching.namespace, "fine")
