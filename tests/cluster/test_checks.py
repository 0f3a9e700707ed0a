"""What cannot be wrapped is refused in one line that says why, and left as it was."""

from __future__ import annotations

import pytest
from manifest_texts import injected, noted, pods

from gpualert.cluster.choices import Options
from gpualert.cluster.inject import InjectError
from gpualert.cluster.manifests import ManifestError

ALL = Options("gpualert:1", log_volume="pvc:runs", config_map="c", smtp_secret="s", survivor=True)


def _pod(container: str = "", spec: str = "") -> str:
    return f"kind: Pod\napiVersion: v1\nmetadata: {{name: p}}\nspec:\n  containers:\n  - name: a\n    command: [x]\n{container}{spec}"


WINDOWS = """\
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/os, operator: %s, values: [%s]}]
"""


@pytest.mark.parametrize(
    ("container", "spec", "why"),
    [
        ("", "  os: linux\n", "os must be a mapping, not 'linux'"),
        ("", "  nodeSelector: [a]\n", r"nodeSelector must be a mapping, not \['a'\]"),
        ("", "  securityContext: 1\n", "securityContext must be a mapping, not 1"),
        ("", "  initContainers: [foo]\n", r"initContainers\[0\] must be a mapping, not 'foo'"),
        ("", "  initContainers: foo\n", "initContainers must be a list, not 'foo'"),
        ("", "  volumes: [foo]\n", r"volumes\[0\] must be a mapping"),
        ("", "  volumes: [{emptyDir: {}}]\n", r"volumes\[0\] has no name"),
        ("", "  imagePullSecrets: [foo]\n", r"imagePullSecrets\[0\] must be a mapping"),
        ("    volumeMounts: [foo]\n", "", r"container a: volumeMounts\[0\] must be a mapping"),
        ("    env: {A: b}\n", "", "container a: env must be a list"),
        ("    env: [A]\n", "", r"container a: env\[0\] must be a mapping"),
        ("    resources: big\n", "", "container a: resources must be a mapping"),
        ("    securityContext: []\n", "", "container a: securityContext must be a mapping"),
        ("  - foo\n", "", r"containers\[1\] must be a mapping, not 'foo'"),
        ("  - image: x\n", "", r"containers\[1\] has no name"),
        ("", WINDOWS % ("In", "windows"), "runs on Windows"),
        ("", WINDOWS % ("NotIn", "linux"), "runs on Windows"),
        ("", "  nodeSelector: {beta.kubernetes.io/os: windows}\n", "runs on Windows"),
        (
            "    volumeMounts: [{name: x, mountPath: /etc/gpualert-config/}]\n",
            "",
            "mounted at /etc/gpualert-config already",
        ),
        ("    volumeMounts: [{name: x, mountPath: //etc/gpualert-smtp}]\n", "", "already"),
        ("    volumeMounts: [{name: x, mountPath: /var/log/./gpualert}]\n", "", "mounted at /var/log/gpualert already"),
        ("    volumeMounts: [{name: x, mountPath: /gpualert/data}]\n", "", "mounted at /gpualert/data already"),
        (
            "    env: [{name: GPUALERT_LOG_DIR, value: /data}]\n",
            "",
            "sets GPUALERT_LOG_DIR to /data, and runs are to be kept in",
        ),
        (
            "    env: [{name: GPUALERT_LOG_DIR, valueFrom: {}}]\n",
            "",
            "sets GPUALERT_LOG_DIR to something that is known later",
        ),
    ],
)
def test_it_is_refused_in_one_line(container: str, spec: str, why: str) -> None:
    text = _pod(container, spec)
    with pytest.raises(InjectError, match=why) as caught:
        injected(text, ALL)
    assert str(caught.value).startswith("Pod/p: spec: ")
    assert "\n" not in str(caught.value)
    written, notes = noted(text, ALL, skip=True)
    assert written == text
    assert [note.endswith(": left as it is") for note in notes] == [True]


@pytest.mark.parametrize(
    ("operator", "values"), [("In", "linux, windows"), ("In", "linux"), ("NotIn", "windows"), ("Exists", "")]
)
def test_what_may_run_on_linux_is_wrapped(operator: str, values: str) -> None:
    assert "gpualert-install" in injected(_pod(spec=WINDOWS % (operator, values)))


def test_a_log_dir_of_the_containers_own_that_is_the_same_is_fine() -> None:
    text = _pod("    env: [{name: GPUALERT_LOG_DIR, value: /data}]\n")
    once = injected(text, Options("gpualert:1", log_dir="/data"))
    assert [row["name"] for row in pods(once)[0]["containers"][0]["env"]].count("GPUALERT_LOG_DIR") == 1
    assert injected(once, take_out=True) == text


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "{a: " * 3000 + "}" * 3000])
def test_what_is_nested_too_deep_is_refused_in_one_line(value: str) -> None:
    with pytest.raises(ManifestError, match="nested more than 200 deep"):
        injected(_pod(spec=f"  x: {value}\n"))


def test_what_is_left_as_it_is_is_left_as_it_is() -> None:
    # The first container could be wrapped, the second cannot; and what was wrapped before stays wrapped.
    text = _pod("  - name: b\n    image: x\n")
    everything = Options("gpualert:1", container=("*",))
    assert noted(text, everything, skip=True)[0] == text
    once = injected(text)
    written, notes = noted(once, everything, skip=True)
    assert written == once
    assert len(notes) == 1
    # Of two pods the one that can be wrapped is.
    written, notes = noted(f"{text}---\n{_pod()}", everything, skip=True)
    assert written == f"{text}---\n{injected(_pod(), everything)}"
    assert len(notes) == 1


def test_what_runs_under_gpualert_already_is_not_wrapped_again() -> None:
    text = _pod().replace("[x]", "[/gpualert/bin/gpualert, run, --, x]")
    with pytest.raises(InjectError, match="container a runs under gpualert already"):
        injected(text)
    # What the library template or the admission policy has wrapped goes through.
    text = _pod(
        spec="  initContainers: [{name: gpualert-install, image: x}]\n  volumes: [{name: gpualert-bundle, emptyDir: {}}]\n"
    )
    written, notes = noted(text)
    assert written == text
    assert notes == ["Pod/p: spec: has gpualert already, from its chart or the admission policy: left as it is"]
