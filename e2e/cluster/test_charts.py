"""The charts and plain manifests without waiting for any pod: lint, a matrix of values, schemas, the API server's own word."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import pytest
from conftest import PYTHON, REPOSITORY

from e2e.cluster.jobs import Namespace, inject

CHART = str(REPOSITORY / "helm" / "gpualert")
CONFIG = 'config={"name":"x","notify":{"when":"always","urls":["json://a/b"]},"smtp":{"host":"mx","port":25},"artifacts":{"max_file":1000}}'
CHOICES = [
    [
        [],
        [
            "--set",
            "admission.enabled=true,admission.apiVersion=v1beta1,admission.survivor=true,admission.notify=always",
        ],
    ],
    [[], ["--set", "smtp.password=secret"], ["--set", "smtp.existingSecret=mine"]],
    [[], ["--set", "flush.enabled=true,flush.claimName=runs", "--set", "image.pullSecrets={a,b}"]],
    [
        [],
        [
            "--set",
            "podReports.namespaces={train,other}",
            "--set",
            "image.registry=registry.site/x",
            "--set-json",
            CONFIG,
        ],
    ],
]
MATRIX = [[word for part in choice for word in part] for choice in product(*CHOICES)]
VERSIONS = ("1.29", "1.31", "1.34", "1.37")


def _helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)


def test_lint() -> None:
    assert _helm("dependency", "update", str(REPOSITORY / "helm" / "example")).returncode == 0
    done = _helm("lint", "--strict", CHART, str(REPOSITORY / "helm" / "example"))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", MATRIX, ids=[str(number) for number in range(len(MATRIX))])
def test_every_combination_of_values_is_valid(tmp_path: Path, namespace: Namespace, values: list[str]) -> None:
    done = _helm("template", "release", CHART, "--namespace", namespace.name, *values)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "all.yaml"
    built_in = "\n---\n".join(part for part in done.stdout.split("\n---\n") if "MutatingAdmissionPolicy" not in part)
    path.write_text(built_in)
    tool = Path(PYTHON).parent / "kubernetes-validate"
    for version in VERSIONS:
        checked = subprocess.run([tool, "--strict", "-k", version, path], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    rendered = done.stdout.replace("namespace: train\n", f"namespace: {namespace.name}\n").replace(
        "namespace: other\n", f"namespace: {namespace.name}\n"
    )
    namespace.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=rendered)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["--set", "admission.enabled=yes please"], "admission"),
        (["--set", "notaky=1"], "notaky"),
        (["--set", "flush.enabled=true"], "claimName"),
        (["--set", "config.smtp.password=x"], "would be readable by everybody"),
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
def test_every_kustomization_is_accepted_by_the_api_server(namespace: Namespace, path: Path) -> None:
    built = namespace.run("kustomize", str(path.parent))
    own = "\n---\n".join(part for part in built.split("\n---\n") if _is_built_in(part))
    namespace.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=own)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "k8s" / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_can_be_applied_as_it_is_and_wrapped(namespace: Namespace, path: Path) -> None:
    text = path.read_text()
    if path.name == "kustomization.yaml":
        return
    for manifest in (text, inject(text)):
        own = "\n---\n".join(part for part in manifest.split("\n---\n") if _is_built_in(part))
        if own:
            namespace.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=own)


def _is_built_in(manifest: str) -> bool:
    """Whether an API server without further kinds knows it."""
    return not any(group in manifest for group in ("jobset.x-k8s.io/", "kubeflow.org/"))
