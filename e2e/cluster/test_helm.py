"""The charts on a real cluster: admission, the library template, and gpualert as Helm's post-renderer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from conftest import PYTHON, REPOSITORY
from notify.servers import Inbox

from e2e.cluster.jobs import PREFIX, Namespace, inject, job, kubectl, told

CHARTS = REPOSITORY / "helm"
FAILING = ["sh", "-c", "echo 'ValueError: bad' >&2; exit 3"]
IMAGE = ["--set", f"image.repository={PREFIX}/gpualert", "--set", "image.tag=latest,watch.enabled=false"]


def _helm(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        ["helm", *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_admission_policy_wraps_what_is_labelled(namespace: Namespace) -> None:
    release = f"gpualert-{namespace.name}"
    options = [
        "--set",
        "admission.enabled=true",
        "--set",
        "admission.survivor=true",
        "--set",
        f"admission.logVolume.hostPath.path={namespace.logs}",
    ]
    _helm("install", release, str(CHARTS / "gpualert"), "--namespace", namespace.name, *options, *IMAGE)  # fmt: skip
    try:
        namespace.run("label", "namespace", namespace.name, "gpualert.dev/inject=enabled")

        def wrapped() -> bool:
            # The API server takes a moment to know a new policy.
            name = f"admitted-{len(namespace.get('jobs')['items'])}"
            namespace.apply(job(name, FAILING))
            pods = namespace.until(lambda: namespace.pods(name), "the pod")
            return bool(pods[0]["spec"].get("initContainers"))

        namespace.until(wrapped, "the policy to be known")
        name = f"admitted-{len(namespace.get('jobs')['items']) - 1}"
        state = namespace.ended(name)
        assert (state["exitCode"], told(state)["class"]) == (3, "traceback")
        containers = namespace.pods(name)[0]["spec"]["containers"]
        assert containers[0]["command"] == ["/gpualert/bin/gpualert", "run", "--", *FAILING]
        assert json.loads((namespace.runs()[-1] / "run.json").read_text())["job"] == name
        # Whoever does not want it says so on the pod.
        opted_out = job("out", FAILING).replace(
            "    spec:\n      restartPolicy",
            "    metadata: {labels: {gpualert.dev/inject: disabled}}\n    spec:\n      restartPolicy",
        )
        namespace.apply(opted_out)
        assert "message" not in namespace.ended("out")
        # A container whose command only its image knows is left alone.
        bare = job("bare", FAILING, image="wrapped").replace(
            f"          command: {json.dumps(FAILING)}\n", f"          args: {json.dumps(FAILING)}\n"
        )
        namespace.apply(bare)
        assert told(namespace.ended("bare"))["class"] == "traceback"
        assert "initContainers" not in namespace.pods("bare")[0]["spec"]
        _helm("test", release, "--namespace", namespace.name)
    finally:
        _helm("uninstall", release, "--namespace", namespace.name)
    assert release not in kubectl("get", "mutatingadmissionpolicies")


def test_a_chart_that_uses_the_library_template(namespace: Namespace) -> None:
    _helm("dependency", "update", str(CHARTS / "example"))
    _helm("install", "lib", str(CHARTS / "example"), "--namespace", namespace.name, "--set", f"image={PREFIX}/bookworm:latest",
          "--set-json", f"command={json.dumps(['python3', '-c', 'raise ValueError(42)'])}",
          "--set", f"gpualert.image={PREFIX}/gpualert:latest")  # fmt: skip
    state = namespace.ended("lib", container="train")
    assert (state["exitCode"], told(state)["class"]) == (1, "traceback")
    assert state["message"].startswith("traceback: ValueError: 42 (exit 1)")


def test_as_helms_post_renderer(namespace: Namespace, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: plain\nversion: 0.1.0\n")
    (chart / "templates" / "job.yaml").write_text(job("rendered", FAILING))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gpualert"
    program.write_text(f'#!/bin/sh\nexec {PYTHON} -I -m gpualert "$@"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HELM_PLUGINS": str(tmp_path / "plugins")}
    version = _helm("version", "--short")
    arguments = ["--image", f"{PREFIX}/gpualert:latest", "--image-pull-policy", "IfNotPresent"]
    if version.startswith("v4"):
        (tmp_path / "plugins").mkdir()
        (tmp_path / "plugins" / "gpualert").symlink_to(CHARTS / "post-renderer")
    else:
        arguments = ["inject", *arguments]
    options = [word for argument in arguments for word in ("--post-renderer-args", argument)]
    _helm(
        "install",
        "r",
        str(chart),
        "--namespace",
        namespace.name,
        "--post-renderer",
        "gpualert",
        *options,
        **environment,
    )
    state = namespace.ended("rendered")
    assert (state["exitCode"], told(state)["class"]) == (3, "traceback")


def test_a_condition_that_a_failure_policy_acts_on_and_an_event(namespace: Namespace) -> None:
    """The rights are the chart's; the pods of this cluster reach its API server at the bridge's address."""
    server = json.loads(kubectl("config", "view", "-o", "json", "--minify"))["clusters"][0]["cluster"]["server"]
    host, _, port = server.removeprefix("https://").partition(":")
    _helm(
        "install",
        "rights",
        str(CHARTS / "gpualert"),
        "--namespace",
        namespace.name,
        "--set",
        f"podReports.namespaces={{{namespace.name}}}",
        *IMAGE,
    )
    spec = """\
  backoffLimit: 6
  podFailurePolicy:
    rules:
      - action: FailJob
        onPodConditions: [{type: gpualert.dev/hardware}]
"""
    reach = f"          env: [{{name: KUBERNETES_SERVICE_HOST, value: {host}}}, {{name: KUBERNETES_SERVICE_PORT, value: '{port or 443}'}}]\n"
    ecc = ["sh", "-c", "echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2; exit 1"]
    manifest = job("broken", ecc, spec=spec, container=reach).replace("  backoffLimit: 0\n", "", 1)
    namespace.apply(inject(manifest))
    failed = namespace.until(
        lambda: [c for c in namespace.get("job", "broken")["status"].get("conditions", []) if c["type"] == "Failed"],
        "the Job",
    )
    assert failed[0]["reason"] == "PodFailurePolicy"
    assert "gpualert.dev/hardware" in failed[0]["message"]
    (pod,) = namespace.pods("broken")
    (own,) = [c for c in pod["status"]["conditions"] if c["type"] == "gpualert.dev/hardware"]
    assert (own["status"], own["reason"]) == ("True", "gpu_ecc")
    events = [e for e in namespace.get("events")["items"] if e["source"].get("component") == "gpualert"]
    assert [(e["reason"], e["type"], e["involvedObject"]["name"]) for e in events] == [
        ("GpuEcc", "Warning", pod["metadata"]["name"])
    ]


def test_the_charts_watcher_tells_of_a_job(namespace: Namespace) -> None:
    """Two replicas as the chart makes them, in a namespace that enforces restricted pod security; mail beside the cluster."""
    from aiosmtpd.controller import Controller

    server = json.loads(kubectl("config", "view", "-o", "json", "--minify"))["clusters"][0]["cluster"]["server"]
    host, _, port = server.removeprefix("https://").partition(":")
    inbox = Inbox()
    mail = Controller(inbox, hostname="10.231.0.1", port=0)
    mail.port = 30026
    mail.start()
    config_values = {
        "email": {"to": ["oncall@example.org"]}, "watch": {"settle": "10s"},
        "smtp": {"host": "10.231.0.1", "port": 30026, "security": "none"},
    }  # fmt: skip
    environment = [
        {"name": "KUBERNETES_SERVICE_HOST", "value": host},
        {"name": "KUBERNETES_SERVICE_PORT", "value": port},
    ]
    namespace.run("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    _helm(
        "install", "w", str(CHARTS / "gpualert"), "--namespace", namespace.name, *IMAGE,
        "--set", f"image.watchRepository={PREFIX}/gpualert-watch,watch.enabled=true,watch.replicas=2,watch.namespaces={{{namespace.name}}}",
        "--set-json", f"config={json.dumps(config_values)}", "--set-json", f"watch.env={json.dumps(environment)}",
    )  # fmt: skip
    try:
        deployment = "w-gpualert-watch"
        namespace.until(
            lambda: namespace.get("deployment", deployment)["status"].get("readyReplicas") == 2,
            f"the watcher\n{namespace.run('logs', f'deployment/{deployment}', check=False)}",
        )
        restricted = """\
      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
"""
        container = "          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}\n"
        namespace.apply(inject(job("told", FAILING, pod=restricted, container=container)))
        namespace.until(lambda: inbox.mails, "the mail")
        verdict = namespace.until(
            lambda: namespace.get("job", "told")["metadata"]["annotations"].get("gpualert.dev/verdict"), "the verdict"
        )
        assert json.loads(verdict)["class"] == "traceback"
        namespace.until(lambda: "Traceback" in namespace.run("get", "events"), "the Event")
        assert namespace.run("logs", f"deployment/{deployment}", "--all-pods=true") == ""
    finally:
        mail.stop()
        _helm("uninstall", "w", "--namespace", namespace.name)
    assert len(inbox.mails) == 1
    assert b"told failed: traceback" in inbox.mails[0].replace(b"\r\n ", b" ")
