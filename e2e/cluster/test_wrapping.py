"""What the library template and the admission policy make of a pod: the same, and only where it harms nothing."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

from e2e.cluster.jobs import PATIENCE_S, Namespace, kubectl

HELM = REPOSITORY / "helm"
COMMAND = ["python", "train.py"]
GUARANTEED = {"cpu": "1", "memory": "1Gi"}
OURS = ("gpualert-install", "gpualert-attend")
LABEL = f"e2e-{secrets.token_hex(4)}"
"""The label's value: policies of other tests wrap other pods."""


def _helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)


def _pod(main: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "x", "command": COMMAND, **(main or {})}], **spec}


def _dry_run(namespace: str, spec: dict[str, Any], label: str = "disabled") -> subprocess.CompletedProcess[str]:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"gpualert.dev/inject": label}},
        "spec": spec,
    }
    argv = [
        "kubectl",
        "--namespace",
        namespace,
        "create",
        "--dry-run=server",
        "--validate=strict",
        "-o",
        "json",
        "-f",
        "-",
    ]
    return subprocess.run(argv, input=json.dumps(pod), capture_output=True, text=True, check=False)


class Library:
    """A chart of a test's own that owns a pod and wraps it."""

    def __init__(self, directory: Path, namespace: Namespace) -> None:
        self.chart = directory / "chart"
        self.namespace = namespace.name
        (self.chart / "templates").mkdir(parents=True)
        (self.chart / "charts").mkdir()
        (self.chart / "charts" / "gpualert-lib").symlink_to(HELM / "gpualert-lib")
        (self.chart / "Chart.yaml").write_text("apiVersion: v2\nname: own\nversion: 0.1.0\n")
        (self.chart / "templates" / "pod.yaml").write_text(
            '{{ include "gpualert.wrap" (dict "pod" .Values.pod "options" .Values.options) }}\n'
        )

    def template(self, spec: dict[str, Any], options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        values = self.chart.parent / "values.json"
        values.write_text(json.dumps({"pod": spec, "options": options}))
        return _helm("template", "r", str(self.chart), "--values", str(values))

    def wrap(self, spec: dict[str, Any]) -> dict[str, Any]:
        options = {
            "survivor": True,
            "configMap": "gpualert",
            "smtpSecret": "gpualert",
            "imagePullSecrets": ["registry"],
        }
        done = self.template(spec, options)
        assert done.returncode == 0, done.stderr
        checked = subprocess.run(
            ["kubectl", "create", "--dry-run=client", "-o", "json", "-f", "-"],
            input="apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n" + "".join(f"  {line}\n" for line in done.stdout.splitlines() if line != "---"),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        made = _dry_run(self.namespace, json.loads(checked.stdout)["spec"])
        assert made.returncode == 0, made.stderr
        found: dict[str, Any] = json.loads(made.stdout)
        return found


class Admission:
    """The chart's policy, for pods that have this test's label."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace.name

    def wrap(self, spec: dict[str, Any]) -> dict[str, Any]:
        made = _dry_run(self.namespace, spec, LABEL)
        assert made.returncode == 0, made.stderr
        found: dict[str, Any] = json.loads(made.stdout)
        return found


Way = Library | Admission


@pytest.fixture
def policy(namespace: Namespace) -> Iterator[Namespace]:
    """The admission policy, whose configuration is in a test's namespace; once the API server knows it."""
    release = f"w-{namespace.name}"
    values = f"admission.enabled=true,admission.survivor=true,smtp.password=x,admission.namespaces={{{namespace.name}}}"
    done = _helm(
        "template", release, str(HELM / "gpualert"), "--namespace", "elsewhere", "--set", f"{values},image.pullSecrets={{registry}}",
        "--set", "admission.apiVersion=v1beta1,nameOverride=gpualert", "--show-only", "templates/admission.yaml",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rendered = done.stdout.replace("gpualert.dev/inject: enabled", f"gpualert.dev/inject: {LABEL}")
    rendered = rendered.replace(f'"{release}-gpualert"', '"gpualert"')
    kubectl("apply", "-f", "-", text=rendered)
    # Until it takes effect, which a dry run shows; one that is not right is never known.
    namespace.until(
        lambda: OURS[0] in _dry_run(namespace.name, _pod(), LABEL).stdout, f"the policy (within {PATIENCE_S:g} s)"
    )
    yield namespace
    kubectl("delete", "-f", "-", "--ignore-not-found", text=rendered)


@pytest.fixture(params=["library", "admission"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    """Each way to wrap a pod."""
    if request.param == "library":
        return Library(tmp_path, request.getfixturevalue("namespace"))
    return Admission(request.getfixturevalue("policy"))


def _main(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = [container for container in pod["spec"]["containers"] if container["name"] == "main"]
    return dict(found)


def _init(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [container for container in pod["spec"]["initContainers"] if container["name"] == name]
    return dict(found)


def _env(container: dict[str, Any]) -> dict[str, Any]:
    """Variables, of which no name may come twice."""
    rows = container.get("env", [])
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: row.get("value", row.get("valueFrom")) for row in rows}


def _mounts(container: dict[str, Any]) -> dict[str, str]:
    found = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
    return {place: name for place, name in found.items() if "serviceaccount" not in place}


def test_all_that_is_needed_and_nothing_twice(way: Way) -> None:
    spec = _pod(
        {
            "terminationMessagePath": "/dev/mine",
            "env": [
                {"name": "GPUALERT_NAME", "value": "mine"},
                {"name": "GPUALERT_NODE_NAME", "value": "mine"},
                {"name": "OTHER", "value": "1"},
            ],
        },
        initContainers=[{"name": "fetch", "image": "x"}],
    )
    spec["containers"].append({"name": "proxy", "image": "x"})
    pod = way.wrap(spec)
    main, attend, install = _main(pod), _init(pod, "gpualert-attend"), _init(pod, "gpualert-install")
    assert main["command"] == ["/gpualert/bin/gpualert", "run", "--", *COMMAND]
    assert [container["name"] for container in pod["spec"]["initContainers"]] == [*OURS, "fetch"]
    told = _env(main)
    # The kubelet gives each 12288 bytes / (2 containers + 3 init containers).
    assert told["GPUALERT_CONTAINERS"] == "5"
    assert (told["GPUALERT_NODE_NAME"], told["GPUALERT_NAME"], told["OTHER"]) == ("mine", "mine", "1")
    assert told["GPUALERT_TERMINATION_LOG"] == "/dev/mine"
    assert told["GPUALERT_CONFIG"] == "/etc/gpualert-config/config.toml"
    # The survivor knows what the command's gpualert knows, and nothing else of the container's.
    assert _env(attend) == {k: v for k, v in told.items() if k not in ("OTHER", "GPUALERT_TERMINATION_LOG")}
    mounts = {
        "/var/log/gpualert": "gpualert-log", "/etc/gpualert-config": "gpualert-config", "/etc/gpualert-smtp": "gpualert-smtp",
    }  # fmt: skip
    assert _mounts(main) == {"/gpualert": "gpualert-bundle", **mounts}
    assert _mounts(attend) == mounts
    assert _mounts(install) == {"/target": "gpualert-bundle"}
    assert {"name": "registry"} in pod["spec"]["imagePullSecrets"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["gpualert-bundle"]["emptyDir"] == {"sizeLimit": "200Mi"}
    assert volumes["gpualert-config"]["configMap"]["name"] == "gpualert"


@pytest.mark.parametrize(
    ("resources", "others", "quality"),
    [
        ({"limits": GUARANTEED}, {"limits": GUARANTEED}, "Guaranteed"),
        ({"limits": {**GUARANTEED, "nvidia.com/gpu": "1"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}}, {"limits": GUARANTEED}, "Guaranteed"),
        ({"limits": GUARANTEED}, {}, "Burstable"),
        ({"requests": {"cpu": "1"}}, {"limits": GUARANTEED}, "Burstable"),
        ({"limits": {"nvidia.com/gpu": "1"}}, {}, "BestEffort"),
        ({}, {}, "BestEffort"),
    ],
)  # fmt: skip
def test_the_quality_of_service_stays(
    way: Way, resources: dict[str, Any], others: dict[str, Any], quality: str
) -> None:
    spec = _pod({"resources": resources})
    spec["containers"].append({"name": "proxy", "image": "x", "resources": others})
    assert json.loads(_dry_run(way.namespace, spec).stdout)["status"]["qosClass"] == quality
    pod = way.wrap(spec)
    assert pod["status"]["qosClass"] == quality
    attend = _init(pod, "gpualert-attend").get("resources", {})
    assert (attend != {}) == (quality != "BestEffort")
    install = _init(pod, "gpualert-install").get("resources", {})
    assert "nvidia.com/gpu" not in install.get("limits", {})
    assert (install != {}) == (quality != "BestEffort")


@pytest.mark.parametrize(
    ("pod", "container", "user", "group"),
    [
        ({}, {}, None, None),
        ({}, {"runAsUser": 0}, 0, None),
        ({"runAsUser": 0}, {}, 0, None),
        ({"runAsUser": 0}, {"runAsUser": 1000, "runAsGroup": 50}, 1000, 50),
        ({"runAsUser": 1000680000, "runAsGroup": 0, "fsGroup": 7}, {}, 1000680000, None),
    ],
)
def test_the_survivor_is_the_commands_own_user(
    way: Way, pod: dict[str, Any], container: dict[str, Any], user: int | None, group: int | None
) -> None:
    spec = way.wrap(_pod({"securityContext": container}, securityContext=pod))
    attend, install = (_init(spec, name)["securityContext"] for name in ("gpualert-attend", "gpualert-install"))
    assert (attend.get("runAsUser"), attend.get("runAsGroup")) == (user, group)
    assert attend["runAsNonRoot"] == (user != 0)
    assert install["runAsNonRoot"] == (pod.get("runAsUser") != 0)
    assert "runAsUser" not in install


def test_a_restricted_namespace_takes_pods_that_are_so_container_by_container(way: Way) -> None:
    kubectl("label", "namespace", way.namespace, "pod-security.kubernetes.io/enforce=restricted")
    context = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert _init(way.wrap(_pod({"securityContext": context})), "gpualert-install")


def test_a_log_directory_of_the_commands_own(way: Way) -> None:
    own = {"name": "GPUALERT_LOG_DIR", "value": "/data/logs"}
    pod = way.wrap(_pod({"env": [own]}))
    assert _env(_main(pod))["GPUALERT_LOG_DIR"] == "/data/logs"
    assert _mounts(_main(pod))["/data/logs"] == "gpualert-log"
    attend = _init(pod, "gpualert-attend")
    assert attend["command"][-1] == "/data/logs"
    assert _mounts(attend)["/data/logs"] == "gpualert-log"
    # On a volume of its own, which the survivor shares.
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/other"}]
    pod = way.wrap(_pod({"env": [own], "volumeMounts": mounts}, volumes=[{"name": "data", "emptyDir": {}}]))
    assert "gpualert-log" not in json.dumps(pod)
    assert _mounts(_init(pod, "gpualert-attend"))["/data"] == "data"
    assert "/other" not in _mounts(_init(pod, "gpualert-attend"))


EMPTY: dict[str, Any] = {"emptyDir": {}}
UNWRAPPABLE: list[tuple[dict[str, Any], str]] = [
    (_pod({"command": None}), "has no command"),
    (_pod(volumes=[{"name": "gpualert-log", **EMPTY}]), "a volume is called gpualert-log already"),
    (_pod(initContainers=[{"name": "gpualert-install", "image": "x"}]), "a container is called gpualert-install already"),
    (_pod({"volumeMounts": [{"name": "v", "mountPath": "/gpualert/"}]}, volumes=[{"name": "v", **EMPTY}]), "mounted at /gpualert/ already"),
    (_pod({"volumeMounts": [{"name": "v", "mountPath": "/var/log/gpualert"}]}, volumes=[{"name": "v", **EMPTY}]), "mounted at /var/log/gpualert already"),
    (_pod(os={"name": "windows"}), "runs on Windows"),
    (_pod(nodeSelector={"kubernetes.io/os": "windows"}), "runs on Windows"),
    (_pod({"env": [{"name": "GPUALERT_LOG_DIR", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}), "set the option logDir instead"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "why"), UNWRAPPABLE, ids=[why for _, why in UNWRAPPABLE])
def test_the_library_says_why_it_cannot(tmp_path: Path, namespace: Namespace, spec: dict[str, Any], why: str) -> None:
    done = Library(tmp_path, namespace).template(spec, {})
    assert done.returncode != 0
    assert "gpualert.wrap: " in done.stderr
    assert why in done.stderr


def test_the_policy_leaves_such_pods_as_they_are(policy: Namespace) -> None:
    for spec, _ in UNWRAPPABLE:
        bare, labelled = _dry_run(policy.name, spec), _dry_run(policy.name, spec, LABEL)
        assert labelled.returncode == 0, labelled.stderr
        one, other = (re.sub(r"kube-api-access-\w+", "kube-api-access-x", done.stdout) for done in (labelled, bare))
        assert json.loads(one)["spec"] == json.loads(other)["spec"]
    wrapped = _pod({"command": ["/usr/local/bin/gpualert", "run", "--", "true"]})
    assert "initContainers" not in json.loads(_dry_run(policy.name, wrapped, LABEL).stdout)["spec"]


def test_pods_of_a_namespace_without_the_configuration_are_not_told_of_one(policy: Namespace) -> None:
    made = _dry_run("default", _pod(), LABEL)
    pod = json.loads(made.stdout)
    assert _main(pod)["command"][0] == "/gpualert/bin/gpualert"
    for word in ("GPUALERT_CONFIG", "GPUALERT_SMTP_PASSWORD_FILE", "gpualert-config", "gpualert-smtp"):
        assert word not in made.stdout


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"imagePulPolicy": "Always"}, "there is no option imagePulPolicy"),
        ({"container": "other"}, "there is no container other"),
        ({"logVolume": {"emptyDir": {}, "hostPath": {"path": "/x"}}}, "logVolume is one volume, not emptyDir and hostPath"),
    ],
)  # fmt: skip
def test_wrong_options_of_the_library(tmp_path: Path, namespace: Namespace, options: dict[str, Any], why: str) -> None:
    done = Library(tmp_path, namespace).template(_pod(), options)
    assert done.returncode != 0
    assert why in done.stderr


def test_options_of_the_library(tmp_path: Path, namespace: Namespace) -> None:
    claim = {"emptyDir": None, "persistentVolumeClaim": {"claimName": "runs"}}
    library = Library(tmp_path, namespace)
    done = library.template(_pod(), {"image": None, "logVolume": claim, "survivor": True, "survivorUser": 0})
    assert done.returncode == 0, done.stderr
    assert "image: gpualert:0.1.0" in done.stdout
    assert "claimName: runs" in done.stdout
    assert "runAsUser: 0" in done.stdout
    off = library.template(_pod(), {"enabled": False})
    assert "gpualert" not in off.stdout.replace("charts/gpualert-lib", "")
