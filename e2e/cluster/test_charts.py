"""The charts and plain manifests without waiting for any pod: lint, a matrix of values, schemas, the API server's own word."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON, REPOSITORY
from ruamel.yaml import YAML

from e2e.cluster.jobs import Namespace, inject
from gpualert import config

CHART = str(REPOSITORY / "helm" / "gpualert")
CONFIG = 'config={"name":"x","notify":{"when":"always","urls":["json://a/b"]},"smtp":{"host":"mx","port":25},"artifacts":{"max_file":1000}}'
ADMISSION = "admission.enabled=true,admission.apiVersion=v1beta1"
CHOICES = [
    [
        [],
        ["--set", f"{ADMISSION},admission.survivor=true,admission.survivorUser=0,admission.notify=always"],
        ["--set", f"{ADMISSION},admission.namespaces={{train,other}},admission.logVolume.persistentVolumeClaim.claimName=runs"],
    ],
    [[], ["--set", "smtp.password=secret"], ["--set", "smtp.existingSecret=mine"]],
    [
        [],
        ["--set", "flush.enabled=true,flush.claimName=runs", "--set", "image.pullSecrets={a,b}"],
        ["--set-json", 'networkPolicy={"mailServers":[{"ipBlock":{"cidr":"10.0.0.25/32"}}]}', "--set", "flush.enabled=true,flush.claimName=runs,nameOverride=other"],
    ],
    [
        [],
        ["--set", "podReports.namespaces={train,other},podReports.serviceAccounts={jobs}", "--set", "image.registry=registry.site/x", "--set-json", CONFIG],
        ["--set", "image=null,config=null,smtp=null,tests=null,networkPolicy=null"],
    ],
    [
        [],
        ["--set", "watch.enabled=false"],
        ["--set", "watch.namespaces={train,other},watch.replicas=2,watch.priorityClassName=high,watch.nodeSelector.a=b"],
        ["--set-json", 'config={"watch":{"label_nodes":true,"per_hour":3}}', "--set-json", 'watch.tolerations=[{"operator":"Exists"}]'],
    ],
]  # fmt: skip
MATRIX = [[word for part in choice for word in part] for choice in product(*CHOICES)]
EXAMPLES = sorted(p for p in (REPOSITORY / "k8s" / "examples").glob("*.yaml") if p.name != "kustomization.yaml")
VERSIONS = ("1.28", "1.29", "1.31", "1.34", "1.37")


def _helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)


def test_lint() -> None:
    assert _helm("dependency", "update", str(REPOSITORY / "helm" / "example")).returncode == 0
    done = _helm("lint", "--strict", CHART, str(REPOSITORY / "helm" / "example"))
    assert done.returncode == 0, done.stdout


def test_every_combination_of_values_is_valid(tmp_path: Path, namespace: Namespace) -> None:
    """Each document that some combination renders, once: most come from many."""
    documents: dict[str, list[str]] = {}
    for values in MATRIX:
        done = _helm("template", "release", CHART, "--namespace", namespace.name, *values)
        assert done.returncode == 0, (values, done.stderr)
        text = re.sub("namespace: (train|other)$", f"namespace: {namespace.name}", done.stdout, flags=re.MULTILINE)
        for part in re.split("^---\n", text, flags=re.MULTILINE):
            if part.strip():
                documents.setdefault(part, values)
    assert len(documents) > len({part.partition("\n")[0] for part in documents}) == 8  # every template, in variants
    path = tmp_path / "all.yaml"
    path.write_text("\n---\n".join(part for part in documents if "MutatingAdmissionPolicy" not in part))
    _validate(path)
    namespace.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", text="\n---\n".join(documents))


def _validate(path: Path, versions: tuple[str, ...] = VERSIONS) -> None:
    """By the schemas of Kubernetes versions, without an API server."""
    tool = Path(PYTHON).parent / "kubernetes-validate"
    for version in versions:
        checked = subprocess.run([tool, "--strict", "-k", version, path], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def _rendered(*values: str) -> list[dict[str, Any]]:
    done = _helm("template", "release", CHART, "--namespace", "own", *values)
    assert done.returncode == 0, done.stderr
    return [document for document in YAML(typ="safe").load_all(done.stdout) if document]


def test_configuration_and_secret_are_in_every_namespace_that_is_named() -> None:
    documents = _rendered("--set", "admission.namespaces={train,own,other},smtp.password=x")
    for kind in ("ConfigMap", "Secret"):
        places = [(d["metadata"]["namespace"], d["metadata"]["name"]) for d in documents if d["kind"] == kind]
        assert places == [(name, "release-gpualert") for name in ("own", "train", "other")]


@pytest.mark.parametrize(
    ("smtp", "port"),
    [({}, 587), ({"security": "starttls"}, 587), ({"security": "tls"}, 465), ({"security": "none"}, 25), ({"security": "tls", "port": 2525}, 2525)],
)  # fmt: skip
def test_flush_may_talk_to_the_mail_servers_port_and_no_other_pod_to_anybody(smtp: dict[str, Any], port: int) -> None:
    values = {"config": {"smtp": smtp}, "flush": {"enabled": True, "claimName": "runs"}}
    documents = _rendered(
        "--set-json",
        f"config={json.dumps(values['config'])}",
        "--set-json",
        f"flush={json.dumps(values['flush'])}",
        "--set",
        "watch.enabled=false",
    )
    general, flush = (d["spec"] for d in documents if d["kind"] == "NetworkPolicy")
    assert (general["policyTypes"], "ingress" in general, "egress" in general) == (["Ingress", "Egress"], False, False)
    assert [one["port"] for rule in flush["egress"] for one in rule["ports"]] == [53, 53, port]
    pods = [d["metadata"] for d in documents if d["kind"] == "Pod"]
    pods += [d["spec"]["jobTemplate"]["spec"]["template"]["metadata"] for d in documents if d["kind"] == "CronJob"]
    assert len(pods) == 2
    assert all(general["podSelector"]["matchLabels"].items() <= pod["labels"].items() for pod in pods)


def test_rights_are_those_of_named_service_accounts() -> None:
    for values, accounts in (("", ["default"]), (",podReports.serviceAccounts={jobs,more}", ["jobs", "more"])):
        documents = _rendered("--set", f"watch.enabled=false,podReports.namespaces={{train}}{values}")
        (binding,) = [d for d in documents if d["kind"] == "RoleBinding"]
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": name, "namespace": "train"} for name in accounts
        ]


def test_what_gpualert_reads_is_what_the_values_say(tmp_path: Path) -> None:
    values = {"name": None, "smtp": {"host": "mx", "port": 25, "helo": None, "ca_file": 'a"b'}, "artifacts": {"max_file": 10_000_000_000},
              "run": {"kill_after": 1.5}, "notify": {"urls": ["json://a/b"], "on_start": True}, "email": None}  # fmt: skip
    (found,) = [d for d in _rendered("--set-json", f"config={json.dumps(values)}") if d["kind"] == "ConfigMap"]
    path = tmp_path / "config.toml"
    path.write_text(found["data"]["config.toml"])
    settings, problems = config.load({}, config=str(path))
    assert problems == []
    assert (settings.smtp.host, settings.smtp.port, settings.smtp.ca_file, settings.smtp.helo) == (
        "mx",
        25,
        'a"b',
        None,
    )
    assert (settings.artifacts.max_file, settings.run.kill_after) == (10_000_000_000, 1.5)
    assert (settings.notify.urls, settings.notify.on_start) == (["json://a/b"], True)


def test_the_plain_manifests_are_what_the_chart_renders() -> None:
    sys.path.insert(0, str(REPOSITORY / "helm"))
    import plain  # type: ignore[import-not-found, unused-ignore]  # (a script)

    for one in plain.PLAIN:
        assert one.path.read_text() == one.rendered(), "run python helm/plain.py"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["--set", "admission.enabled=yes please"], "admission"),
        (["--set", "notaky=1"], "notaky"),
        (["--set", "flush.enabled=true"], "claimName"),
        (["--set", "config.smtp.password=x"], "would be readable by everybody"),
        (["--set", "config.webhook.secret=x"], "would be readable by everybody"),
        (["--set", "config.smtp.host.name=x"], "/config/smtp/host"),
        (["--set", "config.smtp.hots=x"], "hots"),
        (["--set", "config.name=42"], "/config/name"),
        (
            [
                "--set",
                "admission.logVolume.emptyDir.a=b,admission.logVolume.hostPath.path=/x,admission.enabled=true,admission.apiVersion=v1",
            ],
            "is one volume",
        ),
        (["--set", "admission.enabled=true"], "serves no MutatingAdmissionPolicy"),
    ],
)
def test_wrong_values_are_refused(values: list[str], why: str) -> None:
    done = _helm("template", "release", CHART, *values)
    assert done.returncode != 0
    assert why in done.stderr


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "k8s").rglob("kustomization.yaml")), ids=lambda path: path.parent.name
)
def test_every_kustomization_is_accepted_by_the_api_server(namespace: Namespace, path: Path, tmp_path: Path) -> None:
    built = namespace.run("kustomize", str(path.parent))
    # The overlay's namespace is not made by a dry run.
    own = built
    for name in ("team-a", "gpualert"):
        own = re.sub(f"^( *namespace: |  name: ){name}$", rf"\g<1>{namespace.name}", own, flags=re.MULTILINE)
    namespace.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=own)
    text = tmp_path / "all.yaml"
    text.write_text("\n---\n".join(part for part in own.split("\n---\n") if "MutatingAdmissionPolicy" not in part))
    if "kind" in text.read_text():
        # The schema of 1.28 wants onPodConditions in rules on exit codes too; its API server does not.
        _validate(text, VERSIONS[1:] if "podFailurePolicy" in own else VERSIONS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_be_applied_as_it_is_and_wrapped(namespace: Namespace, path: Path) -> None:
    text = path.read_text()
    for manifest in (text, inject(text)):
        own = "\n---\n".join(part for part in manifest.split("\n---\n") if _is_built_in(part))
        if own:
            namespace.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=own)


def _is_built_in(manifest: str) -> bool:
    """Whether an API server without further kinds knows it."""
    return not any(group in manifest for group in ("jobset.x-k8s.io/", "kubeflow.org/"))
