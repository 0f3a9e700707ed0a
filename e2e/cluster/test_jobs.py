"""Jobs on a real cluster: what Kubernetes sees of them, and what is left behind."""

from __future__ import annotations

import json
import time

from notify.servers import Inbox

from e2e.cluster.jobs import Namespace, inject, job, told

FAILING = ["sh", "-c", "echo step 1; echo 'ValueError: bad' >&2; exit 3"]


def test_an_injected_job(namespace: Namespace) -> None:
    namespace.apply(inject(job("plain", FAILING), "--log-volume", f"hostPath:{namespace.logs}"))
    state = namespace.ended("plain")
    assert (state["exitCode"], state["reason"]) == (3, "Error")
    assert state["message"].startswith("traceback: ValueError: bad (exit 3)\non node ")
    machine = told(state)
    pod = namespace.pods("plain")[0]
    assert (machine["class"], machine["exit_code"], machine["node"]) == ("traceback", 3, pod["spec"]["nodeName"])
    (run,) = namespace.runs()
    assert sorted((run / "output.log").read_bytes().splitlines()) == [b"ValueError: bad", b"step 1"]
    facts = json.loads((run / "run.json").read_text())
    assert (facts["pod"], facts["namespace"], facts["job"]) == (pod["metadata"]["name"], namespace.name, "plain")
    assert "step 1\n" in namespace.run("logs", "job/plain")
    assert "traceback: ValueError: bad (exit 3)" in namespace.run("describe", "pods")


def test_an_image_with_gpualert_as_its_entrypoint(namespace: Namespace) -> None:
    manifest = job("wrapped", [], image="wrapped").replace(
        "          command: []\n", f"          args: {json.dumps(FAILING)}\n"
    )
    namespace.apply(manifest)
    state = namespace.ended("wrapped")
    assert (state["exitCode"], told(state)["class"]) == (3, "traceback")


def test_a_pod_failure_policy_sees_the_childs_own_code(namespace: Namespace) -> None:
    spec = """\
  backoffLimit: 5
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes: {containerName: main, operator: In, values: [42]}
"""
    manifest = job("policy", ["sh", "-c", "exit 42"], spec=spec).replace("  backoffLimit: 0\n", "")
    namespace.apply(inject(manifest))
    failed = namespace.until(
        lambda: [c for c in namespace.get("job", "policy")["status"].get("conditions", []) if c["type"] == "Failed"],
        "the Job",
    )
    assert failed[0]["reason"] == "PodFailurePolicy"
    assert len(namespace.pods("policy")) == 1


def test_a_deleted_pod_was_terminated_and_is_replaced(namespace: Namespace) -> None:
    spec = """\
  backoffLimit: 0
  podReplacementPolicy: Failed
  podFailurePolicy:
    rules:
      - action: Ignore
        onPodConditions: [{type: DisruptionTarget}]
      - action: Ignore
        onExitCodes: {containerName: main, operator: In, values: [143]}
"""
    manifest = job("stopped", ["sleep", "600"], spec=spec).replace("  backoffLimit: 0\n", "", 1)
    namespace.apply(inject(manifest, "--log-volume", f"hostPath:{namespace.logs}"))
    namespace.until(lambda: namespace.runs(), "the start")
    began = time.monotonic()
    namespace.run("delete", "pod", "-l", "job-name=stopped", "--wait=false")
    namespace.until(lambda: (namespace.runs()[0] / "report.json").exists(), "the report")
    assert time.monotonic() - began < 10
    report = json.loads((namespace.runs()[0] / "report.json").read_text())
    assert (report["diagnosis"]["class"], report["exit"]["signal"]) == ("terminated", 15)
    namespace.until(lambda: len(namespace.runs()) == 2, "the replacement")


def test_an_eviction_is_no_crash(namespace: Namespace) -> None:
    """What kubectl drain asks for, pod by pod."""
    namespace.apply(inject(job("drained", ["sleep", "600"]), "--log-volume", f"hostPath:{namespace.logs}"))
    namespace.until(lambda: namespace.runs(), "the start")
    pod = namespace.pods("drained")[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace.name}}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
    namespace.run("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    namespace.until(lambda: (namespace.runs()[0] / "report.json").exists(), "the report")
    assert namespace.report()["diagnosis"]["class"] == "terminated"


def test_a_preemption_is_no_crash(namespace: Namespace) -> None:
    requests = "          resources: {requests: {cpu: 1200m}}\n"
    namespace.apply(
        inject(job("low", ["sleep", "600"], container=requests), "--log-volume", f"hostPath:{namespace.logs}")
    )
    namespace.until(lambda: namespace.runs(), "the start")
    important = f"e2e-{namespace.name}"
    namespace.apply(
        f"{{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {{name: {important}}}, value: 1000000}}"
    )
    try:
        namespace.apply(job("high", ["true"], pod=f"      priorityClassName: {important}\n", container=requests))
        namespace.until(lambda: (namespace.runs()[0] / "report.json").exists(), "the report")
        assert json.loads((namespace.runs()[0] / "report.json").read_text())["diagnosis"]["class"] == "terminated"
        namespace.until(lambda: namespace.get("job", "high")["status"].get("succeeded"), "the one that came instead")
    finally:
        namespace.run("delete", "priorityclass", important)


def test_an_active_deadline_is_no_crash(namespace: Namespace) -> None:
    manifest = job("late", ["sleep", "600"], spec="  activeDeadlineSeconds: 25\n")
    namespace.apply(inject(manifest, "--log-volume", f"hostPath:{namespace.logs}"))
    namespace.until(lambda: (namespace.runs()[0] / "report.json").exists(), "the report")
    assert namespace.report()["diagnosis"]["class"] == "terminated"


EATER = """\
import time
print('step 41200 loss 1.873', flush=True)
held = []
for _ in range(200):
    held.append(bytearray(4 << 20))
    held[-1][::4096] = b'x' * len(held[-1][::4096])
    time.sleep(0.02)
"""


def test_a_memory_limit_kills_the_child_alone(namespace: Namespace) -> None:
    limits = "          resources: {limits: {memory: 96Mi}, requests: {memory: 96Mi}}\n"
    manifest = job("eater", ["python3", "-c", EATER], container=limits)
    namespace.apply(inject(manifest, "--log-volume", f"hostPath:{namespace.logs}"))
    state = namespace.ended("eater")
    assert (state["exitCode"], told(state)["class"]) == (137, "oom_killer")


def test_a_group_that_is_killed_as_a_whole_is_reported_by_the_survivor(namespace: Namespace) -> None:
    script = "with open('/proc/1/oom_score_adj', 'w') as f: f.write('1000')\n" + EATER.replace("0.02", "0.15")
    limits = "          resources: {limits: {memory: 96Mi}, requests: {memory: 96Mi}}\n"
    manifest = job("group", ["python3", "-c", script], container=limits)
    namespace.apply(inject(manifest, "--log-volume", f"hostPath:{namespace.logs}", "--survivor"))
    state = namespace.ended("group")
    assert state["exitCode"] == 137
    assert "last output" in state["message"]
    namespace.until(lambda: (namespace.runs()[0] / "report.json").exists(), "the survivor's report")
    assert namespace.report()["diagnosis"]["class"] == "oom_killer"
    # The sidecar keeps the Job from nothing.
    namespace.until(lambda: namespace.get("job", "group")["status"].get("failed"), "the Job's end")


def test_a_survivor_lets_a_job_complete(namespace: Namespace) -> None:
    namespace.apply(inject(job("fine", ["true"]), "--survivor"))
    namespace.until(lambda: namespace.get("job", "fine")["status"].get("succeeded"), "the Job's end")


def test_restricted_and_without_a_token(namespace: Namespace) -> None:
    namespace.run("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    pod = """\
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, runAsUser: 1000680000, runAsGroup: 0, seccompProfile: {type: RuntimeDefault}}
"""
    container = """\
          securityContext:
            readOnlyRootFilesystem: true
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
"""
    namespace.apply(inject(job("locked", FAILING, pod=pod, container=container), "--survivor"))
    state = namespace.ended("locked")
    assert (state["exitCode"], told(state)["class"]) == (3, "traceback")


def test_on_failure_the_next_attempt_shares_the_volume(namespace: Namespace) -> None:
    script = "n=$(cat /var/log/gpualert/n 2>/dev/null || echo 0); echo $((n+1)) >/var/log/gpualert/n; echo attempt $n; [ $n -ge 1 ] || exit 5"
    manifest = (
        job("again", ["sh", "-c", script])
        .replace("restartPolicy: Never", "restartPolicy: OnFailure")
        .replace("backoffLimit: 0", "backoffLimit: 4")
    )
    namespace.apply(inject(manifest, "--log-volume", f"hostPath:{namespace.logs}"))
    namespace.until(lambda: namespace.get("job", "again")["status"].get("succeeded"), "the second attempt")
    first, second = namespace.runs()
    assert (
        json.loads((first / "exit.json").read_text())["exit_code"],
        json.loads((second / "exit.json").read_text())["exit_code"],
    ) == (5, 0)
    (status,) = namespace.pods("again")[0]["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    assert json.loads((first / "report.json").read_text())["diagnosis"]["class"] == "unknown"


def test_a_mail_server_beside_the_cluster(namespace: Namespace) -> None:
    from aiosmtpd.controller import Controller

    inbox = Inbox()
    server = Controller(inbox, hostname="10.231.0.1", port=0)
    server.port = 30025
    server.start()
    try:
        environment = """\
          env:
            - {name: GPUALERT_SMTP_HOST, value: 10.231.0.1}
            - {name: GPUALERT_SMTP_PORT, value: "30025"}
            - {name: GPUALERT_SMTP_SECURITY, value: none}
            - {name: GPUALERT_EMAIL_TO, value: oncall@example.org}
"""
        namespace.apply(inject(job("mailed", FAILING, container=environment)))
        namespace.ended("mailed")
        namespace.until(lambda: inbox.mails, "the mail")
    finally:
        server.stop()
    assert len(inbox.mails) == 1
    assert b"mailed failed: traceback" in inbox.mails[0].replace(b"\r\n ", b" ")
