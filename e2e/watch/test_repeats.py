"""A job that fails again and again: the marks on it count, a digest tells, and a restart of the watcher loses nothing."""

from __future__ import annotations

import json
from typing import Any

from e2e.watch.conftest import Watching
from e2e.watch.plane import LATE, OOM, Plane, message, stamp


def fail_once(
    plane: Plane, watching: Watching, job: dict[str, Any], number: int, *, step: int | None = None, kind: Any = OOM
) -> None:
    """One more pod of a Job that runs a single one, and its end."""
    name = plane.pod(job, 0, "gpu-0", suffix=f"-try{number}")
    cls, summary, root = kind
    text = message(cls, summary.replace("2.00", str(number)), 1, 0, "gpu-0", root.replace("2.00", str(number)))
    if step is not None:
        head, _, last = text.rstrip("\n").rpartition("\n")
        text = f"{head}\n{json.dumps({**json.loads(last), 'progress': {'step': step}}, separators=(',', ':'))}\n"
    plane.fail(watching.namespace, name, 1, text)


def marked(plane: Plane, watching: Watching, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        plane.annotations(watching.namespace, job).get("gpualert.dev/incidents", "[]")
    )
    return found


def settled(plane: Plane, watching: Watching, job: str, count: int) -> list[dict[str, Any]]:
    """The marks of a Job, once so many attempts are through."""

    def through() -> bool:
        rows = marked(plane, watching, job)
        return len(rows) >= count and all(row["state"] in ("told", "held") for row in rows)

    plane.until(through, f"{count} marks\n{watching.said}")
    return marked(plane, watching, job)


def body(mail: Any) -> str:
    return str(mail.get_body(("plain",)).get_content())


def test_of_the_same_again_and_again_a_digest_tells_across_a_restart(plane: Plane, watching: Watching) -> None:
    watching.start()
    job = plane.job(watching.namespace, "loop", 1)
    for number in range(4):
        fail_once(plane, watching, job, number, step=41200)
        settled(plane, watching, "loop", number + 1)
    assert len(watching.mails) == 3
    # All that is known of the four stands on the Job.
    watching.started[0].kill()
    watching.started[0].wait()
    watching.start()
    fail_once(plane, watching, job, 4, step=41200)
    rows = settled(plane, watching, "loop", 5)
    watching.quiet()
    assert [row["state"] for row in rows] == ["told", "told", "told", "held", "told"]
    assert [row["same"] for row in rows] == [1, 2, 3, 4, 5]
    assert len({row["fingerprint"] for row in rows}) == 1
    subjects = [str(mail["Subject"]).strip() for mail in watching.mails]
    assert len(subjects) == 4
    assert subjects[0].startswith("[gpualert] loop failed: cuda_oom")
    assert subjects[2].startswith("[gpualert] loop crash loop: cuda_oom 3 times in ")
    assert subjects[3].startswith("[gpualert] loop crash loop: cuda_oom 5 times in ")
    assert subjects[3].endswith("(same step 41200)")
    text = body(watching.mails[-1])
    assert "do not retry: the same failure 5 times in " in text
    (row,) = [line for line in text.splitlines() if rows[3]["incident"][-20:] in line]
    assert " no " in row
    verdict = json.loads(plane.annotations(watching.namespace, "loop")["gpualert.dev/verdict"])
    assert verdict["retryable"] is False
    assert "nobody told: the same failure 4 times" in watching.said
    assert len(plane.events(watching.namespace)) == 5


def test_one_that_gets_further_or_fails_otherwise_is_told_each_time(plane: Plane, watching: Watching) -> None:
    watching.start()
    job = plane.job(watching.namespace, "further", 1)
    for number, step in enumerate((100, 5000, 9000, 20000)):
        fail_once(plane, watching, job, number, step=step)
        settled(plane, watching, "further", number + 1)
    fail_once(plane, watching, job, 4, step=20000, kind=LATE)
    rows = settled(plane, watching, "further", 5)
    assert [(row["state"], row["same"]) for row in rows] == [("told", 1)] * 5
    assert all("do not retry" not in body(mail) for mail in watching.mails)


def test_jobs_of_a_cron_job_are_attempts_of_one(plane: Plane, watching: Watching) -> None:
    watching.start()
    for number in range(4):
        name = f"nightly-{29412345 + 1440 * number}"
        job = plane.job(watching.namespace, name, 1)
        pod = plane.pod(job, 0, "gpu-0")
        ago = 4000.0 - 1000 * number
        state = {"exitCode": 1, "reason": "Error", "message": message(*OOM[:2], 1, 0, "gpu-0", OOM[2])}
        times = {"startedAt": stamp(ago + 300), "finishedAt": stamp(ago)}
        plane.status(watching.namespace, pod, "Failed", {"terminated": {**state, **times}})
        (row,) = settled(plane, watching, name, 1)
        assert row["same"] == number + 1
        if number == 1:
            # The count stands on the Job before.
            watching.started[0].kill()
            watching.started[0].wait()
            watching.start()
    watching.quiet()
    assert len(watching.mails) == 3


def test_a_job_made_again_under_its_name_goes_on_counting(plane: Plane, watching: Watching) -> None:
    watching.start()
    for number in range(2):
        job = plane.job(watching.namespace, "anew", 1)
        pod = plane.pod(job, 0, "gpu-0", suffix=f"-{number}")
        ago = 4000.0 - 1000 * number
        state = {"exitCode": 1, "reason": "Error", "message": message(*OOM[:2], 1, 0, "gpu-0", OOM[2])}
        times = {"startedAt": stamp(ago + 300), "finishedAt": stamp(ago)}
        plane.status(watching.namespace, pod, "Failed", {"terminated": {**state, **times}})
        (row,) = settled(plane, watching, "anew", 1)
        assert row["same"] == number + 1
        path = f"/apis/batch/v1/namespaces/{watching.namespace}/jobs/anew"
        plane.ask("DELETE", f"{path}?propagationPolicy=Background")
        plane.ask("DELETE", f"/api/v1/namespaces/{watching.namespace}/pods/{pod}?gracePeriodSeconds=0")
    watching.quiet()
    first, second = watching.mails
    assert "Attempts before this one" not in body(first)
    assert "do not retry: the same failure 2 times in " in body(second)


def test_a_job_that_goes_after_it_was_told_is_not_told_again(plane: Plane, watching: Watching) -> None:
    watching.start()
    job = plane.job(watching.namespace, "gone", 1)
    fail_once(plane, watching, job, 0)
    settled(plane, watching, "gone", 1)
    plane.ask("DELETE", f"/apis/batch/v1/namespaces/{watching.namespace}/jobs/gone?propagationPolicy=Background")
    plane.ask("DELETE", f"/api/v1/namespaces/{watching.namespace}/pods/gone-0-try0?gracePeriodSeconds=0")
    watching.quiet(10)
    assert len(watching.mails) == 1


def test_all_turns_it_off(plane: Plane, watching: Watching) -> None:
    watching.config.write_text(watching.config.read_text() + '[notify]\nrepeats = "all"\n')
    watching.start()
    job = plane.job(watching.namespace, "all", 1)
    for number in range(4):
        fail_once(plane, watching, job, number)
        settled(plane, watching, "all", number + 1)
    watching.mail(4)
    assert [row["same"] for row in marked(plane, watching, "all")] == [1, 2, 3, 4]
