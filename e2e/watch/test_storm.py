"""Storms and faults: many incidents, a watcher that is killed, an API server that restarts, a mail server that is down."""

from __future__ import annotations

import collections
import json
import random
import re
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from notify.servers import Accepting

from e2e.watch.conftest import Watching
from e2e.watch.plane import LATE, OOM, Plane, message

KILLS = 50
JOBS = 30


def make(plane: Plane, watching: Watching, names: list[str], ranks: int) -> None:
    jobs = {name: plane.job(watching.namespace, name, ranks) for name in names}
    plane.together(
        lambda item: plane.pod(jobs[item[0]], item[1], f"gpu-{item[1] % 8}"),
        [(n, r) for n in names for r in range(ranks)],
    )


def break_all(plane: Plane, watching: Watching, names: list[str], ranks: int) -> None:
    def fail(item: tuple[str, int]) -> None:
        name, rank = item
        cls, summary, root = OOM if rank == 1 else LATE
        text = message(cls, summary, 1, rank, f"gpu-{rank % 8}", root)
        plane.fail(watching.namespace, f"{name}-{rank}", 1, text, ago=30 if rank == 1 else 5)

    plane.together(fail, [(name, rank) for name in names for rank in range(ranks)])


def told(plane: Plane, watching: Watching) -> dict[str, str]:
    """Each job's mark: ``told``, ``telling``, ``digest``."""
    items = plane.ask("GET", f"/apis/batch/v1/namespaces/{watching.namespace}/jobs")["items"]
    marks = {
        item["metadata"]["name"]: (item["metadata"].get("annotations") or {}).get("gpualert.dev/incidents", "[]")
        for item in items
    }
    return {name: (json.loads(text) or [{"state": ""}])[-1]["state"] for name, text in marks.items()}


def jobs_of(mails: list[Any]) -> collections.Counter[str]:
    found = (re.search(r"\[gpualert\] (\S+) failed: cuda_oom on rank 1", str(mail["Subject"])) for mail in mails)
    return collections.Counter(match[1] for match in found if match)


@pytest.mark.timeout(900)
def test_killed_fifty_times_with_api_server_and_mail_server_failing_too(
    plane: Plane, watching: Watching, accepting: Callable[..., Accepting]
) -> None:
    watching.configure(per_hour=0, settle='"2s"')
    chance = random.Random(20261202)
    names = [f"job-{number:02}" for number in range(JOBS)]
    make(plane, watching, names, 2)
    server, working = watching.server, watching.server.port
    for kill in range(KILLS):
        if kill % 10 == 0:
            break_all(plane, watching, names[kill // 10 * 6 : kill // 10 * 6 + 6], 2)
        if kill == 15:
            plane.kill_server()
        if kill == 18:
            plane.start_server()
        # For a third of the time nobody listens where mails go.
        server.port = 9 if kill % 3 == 2 else working
        process = watching.start()
        time.sleep(chance.uniform(1.0, 4.5))
        process.kill()
        process.wait()
    server.port = working
    watching.start()
    plane.until(
        lambda: all(state == "told" for state in told(plane, watching).values()),
        f"all marks\n{watching.said[-3000:]}",
        300,
    )
    counted = jobs_of(watching.mails)
    assert set(counted) == set(names)
    twice = {name: count for name, count in counted.items() if count > 1}
    # A crash between the server's acceptance and the mark repeats a mail, under the same Message-ID.
    ids = collections.Counter(str(mail["Message-ID"]) for mail in watching.mails)
    assert len(ids) == JOBS
    print(f"{JOBS} incidents, {KILLS} kills, {sum(counted.values())} mails, of them repeated: {twice}")
    assert sum(counted.values()) <= JOBS + KILLS
    assert max(counted.values()) <= 3


def test_two_watchers_are_one(plane: Plane, watching: Watching) -> None:
    watching.configure(per_hour=0)
    lease = ("--lease-namespace", watching.namespace)
    first = watching.start(*lease, GPUALERT_POD_NAME="first")
    watching.start(*lease, GPUALERT_POD_NAME="second")
    names = [f"pair-{number}" for number in range(6)]
    make(plane, watching, names, 2)
    break_all(plane, watching, names[:3], 2)
    watching.mail(3)
    plane.until(lambda: [told(plane, watching)[name] for name in names[:3]] == ["told"] * 3, "the marks")
    first.kill()
    first.wait()
    break_all(plane, watching, names[3:], 2)
    watching.mail(6)
    watching.quiet()
    assert jobs_of(watching.mails) == collections.Counter(names)
    (lease_now,) = plane.ask("GET", f"/apis/coordination.k8s.io/v1/namespaces/{watching.namespace}/leases")["items"]
    assert lease_now["spec"]["holderIdentity"] == "second"


def test_a_mail_server_that_is_down_for_a_while(plane: Plane, watching: Watching) -> None:
    port, watching.server.port = watching.server.port, 9
    watching.start()
    make(plane, watching, ["down"], 2)
    break_all(plane, watching, ["down"], 2)
    plane.until(lambda: told(plane, watching)["down"] == "telling", "the mark")
    # The pods are gone before the server is back, and so is the watcher: the report is kept on the Job.
    watching.started[0].kill()
    for rank in range(2):
        plane.ask("DELETE", f"/api/v1/namespaces/{watching.namespace}/pods/down-{rank}?gracePeriodSeconds=0")
    watching.server.port = port
    watching.start()
    (mail,) = watching.mail()
    assert "down failed: cuda_oom on rank 1 (gpu-1)" in mail["Subject"]
    plane.until(lambda: told(plane, watching)["down"] == "told", "the mark")
    assert "gpualert.dev/pending" not in plane.annotations(watching.namespace, "down")


def test_of_a_storm_most_come_in_one_digest(plane: Plane, watching: Watching) -> None:
    watching.configure(per_hour=3, digest_every='"6s"')
    watching.start()
    names = [f"storm-{number}" for number in range(9)]
    make(plane, watching, names, 2)
    break_all(plane, watching, names, 2)
    plane.until(lambda: all(state == "told" for state in told(plane, watching).values()), f"all marks\n{watching.said}")
    single = jobs_of(watching.mails)
    assert len(single) == 3
    digests = [mail for mail in watching.mails if "more incidents in" in mail.get_body(("plain",)).get_content()]
    text = "".join(mail.get_body(("plain",)).get_content() for mail in digests)
    assert all(f"Job {name}" in text for name in names if name not in single)


CHART = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "create"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch", "patch"]},
]


def grant(plane: Plane, namespace: str, user: str, rules: list[dict[str, Any]]) -> None:
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    plane.ask("POST", f"{base}/roles", {"metadata": {"name": user}, "rules": rules})
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
    plane.ask("POST", f"{base}/rolebindings", {"metadata": {"name": user}, "subjects": [subject], "roleRef": role})


@pytest.fixture
def user(plane: Plane, watching: Watching) -> str:
    name = f"user-{watching.namespace}"
    plane.user(name)
    plane.kill_server()
    plane.start_server()
    return name


def test_in_one_namespace_with_the_charts_rights_alone(plane: Plane, watching: Watching, user: str) -> None:
    grant(plane, watching.namespace, user, CHART)
    watching.start(kubeconfig=plane.credentials(user, f"token-of-{user}"))
    make(plane, watching, ["rights"], 2)
    break_all(plane, watching, ["rights"], 2)
    watching.mail()
    plane.until(lambda: told(plane, watching)["rights"] == "told", "the mark")
    assert len(plane.events(watching.namespace)) == 1
    assert watching.said == ""


@pytest.mark.parametrize(
    ("lacks", "says", "works"),
    [
        ("list pods", "may not list and watch pods in namespace", False),
        ("jobs", "may not list and watch jobs in namespace", True),
        ("patch jobs", "may not be patched", True),
        ("create events", "no Event on Job", True),
    ],
)
def test_a_missing_permission_is_named(
    plane: Plane, watching: Watching, user: str, lacks: str, says: str, works: bool
) -> None:
    rules = json.loads(json.dumps(CHART))
    if lacks == "list pods":
        rules = rules[1:]
    elif lacks == "jobs":
        rules = rules[:3]
    elif lacks == "patch jobs":
        rules[3]["verbs"].remove("patch")
    else:
        rules[2]["verbs"].remove("create")
    grant(plane, watching.namespace, user, rules)
    process = watching.start(kubeconfig=plane.credentials(user, f"token-of-{user}"))
    make(plane, watching, ["less"], 2)
    break_all(plane, watching, ["less"], 2)
    if works:
        watching.mail()
        plane.until(lambda: says in watching.said, f"the words\n{watching.said}")
        watching.quiet()
        assert len(watching.mails) == 1
    else:
        assert process.wait(60) == 1
        assert says in watching.said
        assert watching.said.count("\n") == 1


def test_metrics_and_probes(plane: Plane, watching: Watching) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    watching.start("--listen", f"127.0.0.1:{port}")

    def page(name: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=5) as answer:
            return str(answer.read().decode())

    plane.until(lambda: page("readyz") == "ok\n", "the watcher")
    assert page("healthz") == "ok\n"
    make(plane, watching, ["measured"], 2)
    break_all(plane, watching, ["measured"], 2)
    watching.mail()
    metrics = plane.until(lambda: page("metrics") if 'class="cuda_oom"' in page("metrics") else "", "the count")
    assert 'gpualert_incidents_total{class="cuda_oom",family="gpu"} 1.0' in metrics
    assert "gpualert_incident_detection_seconds_count 1.0" in metrics
    assert "gpualert_leader 1.0" in metrics
    assert re.search(r"gpualert_gpu_hours_lost_total 0\.[1-9]", metrics)
