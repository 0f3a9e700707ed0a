"""What is put into a pod changes neither its quality of service nor who can read what."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_texts import injected, pods
from ruamel.yaml import YAML

from gpualert.cluster.additions import is_guaranteed
from gpualert.cluster.choices import Options

SURVIVOR = Options("gpualert:1", survivor=True)


def _pod(container: str = "", spec: str = "", options: Options = SURVIVOR) -> dict[str, Any]:
    text = f"kind: Pod\napiVersion: v1\nspec:\n  containers:\n  - name: a\n    command: [x]\n{container}{spec}"
    (found,) = pods(injected(text, options))
    return found


def _inits(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in found["initContainers"]}


def test_every_container_has_its_share_of_the_termination_messages() -> None:
    spec = "  - name: b\n  initContainers: [{name: i}, {name: j}]\n"
    for options, number in ((Options("gpualert:1"), "5"), (SURVIVOR, "6")):
        (variable,) = [
            e for e in _pod(spec=spec, options=options)["containers"][0]["env"] if e["name"] == "GPUALERT_CONTAINERS"
        ]
        assert variable["value"] == number


@pytest.mark.parametrize(
    ("resources", "guaranteed"),
    [
        ("limits: {cpu: 2, memory: 1Gi}, requests: {cpu: '2000m', memory: 1024Mi}", True),
        ("limits: {cpu: 2, memory: 1Gi, nvidia.com/gpu: 8}", True),
        ("limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 1}", False),
        ("limits: {memory: 1Gi}", False),
        ("requests: {cpu: 2, memory: 1Gi}", False),
        ("limits: {cpu: 0, memory: 1Gi}", False),
    ],
)
def test_what_is_guaranteed_stays_guaranteed(resources: str, guaranteed: bool) -> None:
    found = _pod(f"    resources: {{{resources}}}\n")
    assert is_guaranteed(found) == guaranteed
    for options in (SURVIVOR, Options("gpualert:1")):
        assert is_guaranteed(_pod(f"    resources: {{{resources}}}\n", options=options)) == guaranteed
    told = YAML(typ="safe").load(f"{{{resources}}}")
    limits = {key: value for key, value in told.get("limits", {}).items() if key != "nvidia.com/gpu"}
    assert _inits(found)["gpualert-install"]["resources"].get("limits", {}) == limits


def test_an_init_container_that_is_not_guaranteed_makes_the_pod_so() -> None:
    found = _pod("    resources: {limits: {cpu: 1, memory: 1Gi}}\n", "  initContainers: [{name: i}]\n")
    assert _inits(found)["gpualert-attend"]["resources"] == {
        "requests": {"cpu": "10m", "memory": "64Mi"},
        "limits": {"memory": "256Mi"},
    }


def test_a_pod_with_a_size_of_its_own_divides_it_itself() -> None:
    assert "resources" not in _inits(_pod(spec="  resources: {limits: {cpu: 1, memory: 1Gi}}\n"))["gpualert-attend"]


def test_the_survivor_is_who_the_container_is() -> None:
    identity = "runAsUser: 1234, runAsGroup: 5678, seLinuxOptions: {level: 's0:c1,c2'}"
    found = _pod(
        f"    securityContext: {{{identity}, privileged: true}}\n", "  securityContext: {runAsUser: 0, fsGroup: 7}\n"
    )
    context = _inits(found)["gpualert-attend"]["securityContext"]
    assert {key: context[key] for key in ("runAsUser", "runAsGroup", "seLinuxOptions", "runAsNonRoot")} == {
        "runAsUser": 1234, "runAsGroup": 5678, "seLinuxOptions": {"level": "s0:c1,c2"}, "runAsNonRoot": True,
    }  # fmt: skip
    assert "privileged" not in context
    assert found["securityContext"] == {"runAsUser": 0, "fsGroup": 7}


def test_a_survivor_of_root_is_not_told_to_be_somebody_else() -> None:
    context = _inits(_pod("    securityContext: {runAsUser: 0}\n"))["gpualert-attend"]["securityContext"]
    assert (context["runAsUser"], "runAsNonRoot" in context) == (0, False)
    context = _inits(_pod())["gpualert-attend"]["securityContext"]
    assert ("runAsUser" in context, context["runAsNonRoot"]) == (False, True)
