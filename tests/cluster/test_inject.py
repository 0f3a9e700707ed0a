"""``gpualert inject``: every kind of workload, twice the same, taken out exactly, refused with a reason."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
from conftest import PYTHON, REPOSITORY
from manifest_texts import pods
from ruamel.yaml import YAML

POD = """\
containers:
  - name: main   # trains
    image: "pytorch:2.9"
    command: ["python", "train.py", "--pod=$(POD)"]
    args:
      - --epochs
      - '3'
    env:
      - name: POD
        valueFrom: {fieldRef: {fieldPath: metadata.name}}
    securityContext:
      runAsUser: 1000
    livenessProbe:
      exec: {command: [cat, /tmp/alive]}
    terminationMessagePath: /dev/mine
    terminationMessagePolicy: File
  - name: proxy
    image: envoy
restartPolicy: Never
# the end
"""
KINDS: dict[str, tuple[str, str]] = {
    "Pod": ("v1", "spec:\n{2}"),
    "Job": ("batch/v1", "spec:\n  backoffLimit: 3\n  template:\n    spec:\n{6}"),
    "CronJob": (
        "batch/v1",
        "spec:\n  schedule: '0 3 * * *'\n  jobTemplate:\n    spec:\n      template:\n        spec:\n{10}",
    ),
    "Deployment": ("apps/v1", "spec:\n  template:\n    metadata: {labels: {a: b}}\n    spec:\n{6}"),
    "StatefulSet": ("apps/v1", "spec:\n  template:\n    spec:\n{6}"),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        "spec:\n  replicatedJobs:\n    - name: workers\n      template:\n        spec:\n          template:\n            spec:\n{14}",
    ),
    "PyTorchJob": (
        "kubeflow.org/v1",
        "spec:\n  pytorchReplicaSpecs:\n    Master:\n      template:\n        spec:\n{10}    Worker:\n      template:\n        spec:\n{10}",
    ),
    "MPIJob": ("kubeflow.org/v2beta1", "spec:\n  mpiReplicaSpecs:\n    Worker:\n      template:\n        spec:\n{10}"),
    "TrainingRuntime": (
        "trainer.kubeflow.org/v1alpha1",
        "spec:\n  template:\n    spec:\n      replicatedJobs:\n        - name: node\n          template:\n            spec:\n"
        "              template:\n                spec:\n{18}",
    ),
    "RayJob": ("ray.io/v1", "spec:\n  rayClusterSpec:\n    headGroupSpec:\n      template:\n        spec:\n{10}"),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        "spec:\n  leaderWorkerTemplate:\n    workerTemplate:\n      spec:\n{8}",
    ),
}


def _manifest(kind: str, pod: str = POD, annotations: str = "") -> str:
    version, body = KINDS[kind]
    for depth in (2, 6, 8, 10, 14, 18):
        body = body.replace(f"{{{depth}}}", textwrap.indent(pod, " " * depth))
    metadata = "metadata:\n  name: train\n" + (
        f"  annotations:\n{textwrap.indent(annotations, '    ')}" if annotations else ""
    )
    return f"# a comment\napiVersion: {version}\nkind: {kind}\n{metadata}{body}"


def _run(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [PYTHON, "-I", "-m", "gpualert", "inject", *arguments]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=False)


def _injected(text: str, *arguments: str) -> str:
    done = _run(text, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_twice_the_same_and_taken_out_exactly(kind: str) -> None:
    text = _manifest(kind)
    once = _injected(text)
    assert _injected(once) == once
    assert _injected(once, "--remove") == text
    for pod in pods(once):
        main, proxy = pod["containers"]
        assert main["command"] == ["/gpualert/bin/gpualert", "run", "--", "python", "train.py", "--pod=$(POD)"]
        assert main["args"] == ["--epochs", "3"]
        assert main["terminationMessagePolicy"] == "File"
        assert {e["name"]: e.get("value") for e in main["env"]}["GPUALERT_TERMINATION_LOG"] == "/dev/mine"
        assert {e["name"]: e.get("value") for e in main["env"]}["GPUALERT_CONTAINERS"] == "3"
        assert (main["livenessProbe"], main["securityContext"]) == (
            {"exec": {"command": ["cat", "/tmp/alive"]}},
            {"runAsUser": 1000},
        )
        assert proxy == {"name": "proxy", "image": "envoy"}
        assert [c["name"] for c in pod["initContainers"]] == ["gpualert-install"]
        assert {v["name"] for v in pod["volumes"]} == {"gpualert-bundle", "gpualert-log"}
    # Comments, quotes and order are as they were.
    kept = [line for line in once.splitlines() if "gpualert" not in line.lower()]
    for line in text.splitlines():
        assert line in kept or "command" in line or "metadata: {" in line, line


def test_other_options_bring_it_up_to_date() -> None:
    text = _manifest("Job")
    options = ("--image", "registry.site/gpualert:1", "--log-volume", "pvc:runs", "--notify", "always", "--smtp-secret", "smtp",
               "--config-map", "gpualert", "--survivor", "--image-pull-secret", "site", "--image-pull-policy", "IfNotPresent")  # fmt: skip
    changed = _injected(_injected(text), *options)
    assert changed == _injected(text, *options)
    assert _injected(changed, "--remove") == text
    (pod,) = pods(changed)
    assert pod["imagePullSecrets"] == [{"name": "site"}]
    install, attend = pod["initContainers"]
    assert (install["image"], install["imagePullPolicy"]) == ("registry.site/gpualert:1", "IfNotPresent")
    assert (attend["restartPolicy"], attend["command"][:2]) == ("Always", ["/gpualert/bin/gpualert", "attend"])
    assert {v["name"]: v for v in pod["volumes"]}["gpualert-log"]["persistentVolumeClaim"] == {"claimName": "runs"}
    environment = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    assert environment["GPUALERT_SMTP_PASSWORD_FILE"] == "/etc/gpualert-smtp/password"
    assert environment["GPUALERT_CONFIG"] == "/etc/gpualert-config/config.toml"
    assert environment["GPUALERT_NOTIFY"] == "always"
    assert "PASSWORD" not in changed.replace("GPUALERT_SMTP_PASSWORD_FILE", "")


def test_annotations_say_the_same_for_one() -> None:
    text = _manifest("Job", annotations="gpualert.dev/notify: never\ngpualert.dev/log-volume: hostPath:/var/runs\n")
    (pod,) = pods(_injected(text))
    assert {v["name"]: v for v in pod["volumes"]}["gpualert-log"]["hostPath"]["path"] == "/var/runs"
    left_out = _manifest("Job", annotations="gpualert.dev/inject: 'false'\n")
    assert _injected(left_out) == left_out
    # Whoever says so later gets it taken out.
    once = _injected(_manifest("Job", annotations="a: b\n"))
    later = once.replace("    a: b\n", "    a: b\n    gpualert.dev/inject: 'false'\n", 1)
    assert "gpualert/bin" not in _injected(later)


def test_which_container() -> None:
    pod = POD.replace("    image: envoy\n", "    image: envoy\n    command: [envoy]\n")
    assert [len(c["command"]) for c in pods(_injected(_manifest("Job", pod)))[0]["containers"]] == [6, 1]
    assert [
        len(c["command"]) for c in pods(_injected(_manifest("Job", pod), "--container", "proxy"))[0]["containers"]
    ] == [3, 4]
    assert [len(c["command"]) for c in pods(_injected(_manifest("Job", pod), "--container", "*"))[0]["containers"]] == [
        6,
        4,
    ]
    text = _manifest("Pod", pod, annotations="kubectl.kubernetes.io/default-container: proxy\n")
    assert [len(c["command"]) for c in pods(_injected(text))[0]["containers"]] == [3, 4]
    done = _run(_manifest("Job", pod), "--container", "nobody")
    assert (done.returncode, "there is no container nobody (there are main, proxy)" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('    command: ["python", "train.py", "--pod=$(POD)"]\n', "", "has no command, so only its image knows"),
        ("restartPolicy: Never\n", "os: {name: windows}\n", "runs on Windows"),
        ("restartPolicy: Never\n", "nodeSelector: {kubernetes.io/os: windows}\n", "runs on Windows"),
        (
            "restartPolicy: Never\n",
            "volumes: [{name: gpualert-log, emptyDir: {}}]\n",
            "a volume is called gpualert-log already",
        ),
        ("  - name: proxy\n", "  - name: gpualert-install\n", "a container is called gpualert-install already"),
        (
            "    args:\n",
            "    volumeMounts: [{name: x, mountPath: /gpualert/}]\n    args:\n",
            "mounted at /gpualert already",
        ),
        ('["python", "train.py", "--pod=$(POD)"]', "python train.py", "command must be a list of texts"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_with_the_reason(old: str, new: str, why: str) -> None:
    pod = POD.replace(old, new)
    assert pod != POD
    text = _manifest("Job", pod)
    done = _run(text)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpualert: Job/train: spec.template: ")
    assert done.stderr.count("\n") == 1
    assert why in done.stderr
    done = _run(text, "--skip-unwrappable")
    assert (done.returncode, done.stdout) == (0, text)
    assert done.stderr.rstrip().endswith(": left as it is")


def test_what_is_no_workload_goes_through_byte_for_byte() -> None:
    text = textwrap.dedent("""\
        # start
        apiVersion: v1
        kind: ConfigMap
        metadata:   {name: x}
        data:
            spec: |
              containers: [{name: a}]
        ---
        apiVersion: apiextensions.k8s.io/v1
        kind: CustomResourceDefinition
        spec: {versions: [{schema: {openAPIV3Schema: {properties: {spec: {properties: {containers: {type: array}}}}}}}]}
        --- # empty
        ---
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
        ...
        """)
    assert _injected(text) == text
    assert _injected("") == ""


def test_lists_and_streams() -> None:
    item = textwrap.indent(_manifest("Job").partition("\n")[2], "    ")
    text = f"apiVersion: v1\nkind: List\nitems:\n  - {item.lstrip()}"
    once = _injected(text)
    assert len(pods(once)) == 1
    assert "gpualert-install" in once
    assert _injected(once) == once
    stream = _manifest("Job") + "---\n" + _manifest("CronJob")
    assert len([pod for pod in pods(_injected(stream)) if "initContainers" in pod]) == 2
    assert _injected(_injected(stream), "--remove") == stream


def test_as_a_kustomize_function() -> None:
    item = textwrap.indent(_manifest("Job").partition("\n")[2], "  ")
    text = (
        "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"
        "functionConfig:\n  apiVersion: v1\n  kind: ConfigMap\n  data:\n    image: site/gpualert:2\n    survivor: 'true'\n"
        f"items:\n- {item.lstrip()}"
    )
    written = YAML(typ="safe").load(_injected(text))
    assert written["kind"] == "ResourceList"
    (pod,) = pods(json.dumps(written["items"]))
    assert [c["name"] for c in pod["initContainers"]] == ["gpualert-install", "gpualert-attend"]
    assert pod["initContainers"][0]["image"] == "site/gpualert:2"


@pytest.mark.parametrize("text", ["a: [", "\x00", "kind: Job\n\tx: 1", "- - -\n &", "{{ .Values.x }}"])
def test_no_yaml_is_said_in_one_line(text: str) -> None:
    done = _run(text)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)
    assert done.stderr.count("\n") <= 1


def test_a_damaged_mark_is_refused() -> None:
    once = _injected(_manifest("Job"))
    done = _run(once.replace('"v":1', '"v":'), "--remove")
    assert (done.returncode, "is damaged" in done.stderr) == (1, True)


@pytest.mark.parametrize("version", ["1.29", "1.31", "1.34", "1.37"])
def test_what_is_written_is_valid(tmp_path: Path, version: str) -> None:
    built_in = [
        kind for kind in KINDS if "/" not in KINDS[kind][0] or KINDS[kind][0].split("/")[0] in ("batch", "apps")
    ]
    spec = POD.replace("restartPolicy: Never\n", "")
    path = tmp_path / "all.yaml"
    texts = []
    for kind in built_in:
        pod = POD if kind in ("Job", "Pod", "CronJob") else spec
        text = _manifest(kind, pod)
        if kind in ("Deployment", "StatefulSet"):
            text = text.replace(
                "spec:\n  template:\n", "spec:\n  selector: {matchLabels: {a: b}}\n  serviceName: s\n  template:\n", 1
            )
            text = text if kind == "StatefulSet" else text.replace("  serviceName: s\n", "")
            text = (
                text
                if "labels" in text
                else text.replace("  template:\n    spec:", "  template:\n    metadata: {labels: {a: b}}\n    spec:")
            )
        texts.append(text)
    path.write_text(_injected("---\n".join(texts), "--survivor", "--smtp-secret", "s"))
    tool = Path(PYTHON).parent / "kubernetes-validate"
    done = subprocess.run([tool, "--strict", "-k", version, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


EXAMPLES = [
    *(REPOSITORY / "examples").glob("*.yaml"),
    *(p for p in (REPOSITORY / "k8s").rglob("*.yaml") if p.name != "kustomization.yaml"),
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_wrapped_twice_the_same_and_taken_out_exactly(path: Path) -> None:
    text = path.read_text()
    once = _injected(text, "--skip-unwrappable", "--survivor")
    assert _injected(once, "--skip-unwrappable", "--survivor") == once
    assert _injected(once, "--remove") == text
    assert ("gpualert-install" in once) == ("k8s/examples/" in str(path) or "gpualert-install" in text)


EXAMPLE_CHART = """\
# Source: training-example/templates/job.yaml
apiVersion: batch/v1
kind: Job
metadata:
  name: release
spec:
  backoffLimit: 0
  template:
    spec:
      containers:
      - command: [python, -c, raise ValueError('a failing example')]
        image: python:3.12-slim
        imagePullPolicy: IfNotPresent
        name: train
        resources:
          limits:
            memory: 512Mi
          requests:
            cpu: 100m
            memory: 128Mi
      restartPolicy: Never
"""


def test_the_example_chart_is_wrapped_twice_the_same_and_left_when_its_library_has_wrapped_it() -> None:
    # helm/example as Helm renders it with gpualert.enabled=false, and (in what matters) with true.
    once = _injected(EXAMPLE_CHART)
    assert _injected(once) == once
    assert _injected(once, "--remove") == EXAMPLE_CHART
    wrapped = re.sub(r"(?s)    metadata:\n      annotations:\n.*?\n    spec", "    spec", once)
    assert "gpualert.dev/injected" not in wrapped
    done = _run(wrapped)
    assert (done.returncode, done.stdout) == (0, wrapped)
    assert "has gpualert already" in done.stderr


def test_bytes_go_through_as_they_are(tmp_path: Path) -> None:
    argv = [PYTHON, "-I", "-m", "gpualert", "inject"]
    for text in (
        "\ufeff" + _manifest("Job").replace("\n", "\r\n"),
        _manifest("Job").replace("a comment", "\u00e9\U0001f600"),
    ):
        data = text.encode()
        once = subprocess.run(argv, input=data, capture_output=True, check=True).stdout
        assert once.startswith(data[:20])
        assert b"gpualert-install" in once
        assert subprocess.run([*argv, "--remove"], input=once, capture_output=True, check=True).stdout == data
    (tmp_path / "a.yaml").write_text(_manifest("Job"))
    (tmp_path / "b.yaml").write_text(_manifest("Pod"))
    both = _injected("", "-f", str(tmp_path / "a.yaml"), "-f", str(tmp_path / "b.yaml"))
    assert both == _injected(_manifest("Job")) + "---\n" + _injected(_manifest("Pod"))


def test_what_an_older_gpualert_put_in_is_taken_out() -> None:
    # As 0.1.0 wrote it, before it edited text.
    record = {"containers": {"a": {"env": ["GPUALERT_NODE_NAME"], "mounts": ["gpualert-bundle"], "policy": True}},
              "created": ["a.volumeMounts", "volumes", "initContainers", "annotations"], "init": ["gpualert-install"],
              "v": 1, "volumes": ["gpualert-bundle"]}  # fmt: skip
    text = f"""\
apiVersion: v1
kind: Pod
metadata:
  name: p
  annotations:
    gpualert.dev/injected: '{json.dumps(record)}'
spec:
  containers:
  - name: a
    command: [/gpualert/bin/gpualert, run, --, python]
    env:
    - name: A
      value: b
    - name: GPUALERT_NODE_NAME
      value: x
    volumeMounts:
    - name: gpualert-bundle
      mountPath: /gpualert
    terminationMessagePolicy: FallbackToLogsOnError
  volumes:
  - name: gpualert-bundle
    emptyDir: {{}}
  initContainers:
  - name: gpualert-install
"""
    without = (
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: a\n    command: [python]\n"
        "    env:\n    - name: A\n      value: b\n"
    )
    assert _injected(text, "--remove") == without
