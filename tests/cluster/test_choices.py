"""Options, annotations and a function's configuration say the same, and are refused for the same."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from json import dumps
from typing import Any

import pytest
from conftest import PYTHON
from manifest_texts import injected, loaded, pods

from gpualert.cluster.choices import CHOICES, ChoiceError, Options, of_annotations, of_function, told
from gpualert.cluster.inject import InjectError

GOOD: dict[str, tuple[str, Any]] = {
    "image": ("registry.site:5000/gpualert:1@sha256:00", "registry.site:5000/gpualert:1@sha256:00"),
    "image-pull-policy": ("IfNotPresent", "IfNotPresent"),
    "image-pull-secret": ("site, other", ("site", "other")),
    "container": ("a,b", ("a", "b")),
    "log-dir": ("/data//runs/", "/data/runs"),
    "log-volume": ("hostPath:/var/runs", "hostPath:/var/runs"),
    "config-map": ("gpualert", "gpualert"),
    "smtp-secret": ("smtp", "smtp"),
    "notify": ("never", "never"),
    "survivor": ("true", True),
}
BAD = [
    ("image", "a b"),
    ("image", ""),
    ("image-pull-policy", "Sometimes"),
    ("image-pull-secret", "Not A Name"),
    ("container", "a b"),
    ("log-dir", "runs"),
    ("log-dir", "/"),
    ("log-dir", "//"),
    ("log-dir", "/a/../b"),
    ("log-dir", "/a:b"),
    ("log-dir", "/usr"),
    ("log-dir", "/etc/"),
    ("log-dir", "/proc/1"),
    ("log-dir", "/gpualert"),
    ("log-dir", "/gpualert/runs"),
    ("log-dir", "/etc/gpualert-config"),
    ("log-dir", "/etc/gpualert-smtp/x"),
    ("log-volume", "pvc:"),
    ("log-volume", "pvc:A_B"),
    ("log-volume", "hostPath:"),
    ("log-volume", "hostPath:runs"),
    ("log-volume", "hostPath:/a/../.."),
    ("log-volume", "tmpfs"),
    ("config-map", "A"),
    ("smtp-secret", "-"),
    ("notify", "sometimes"),
    ("survivor", "perhaps"),
]
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  template:
    spec:
      containers:
      - name: a
        command: [python, train.py]
      - name: b
        command: [python, train.py]
"""


def _of_options(said: Mapping[str, str], options: Options) -> Options:
    return told(options, said, lambda choice: f"--{choice.name}")


def test_every_choice_is_tried() -> None:
    assert set(GOOD) == {choice.name for choice in CHOICES} == {name for name, _ in BAD}


@pytest.mark.parametrize("name", GOOD)
def test_each_can_be_said_in_each_way(name: str) -> None:
    text, value = GOOD[name]
    choice = next(choice for choice in CHOICES if choice.name == name)
    for options in (
        told(Options("i"), {name: text}, lambda choice: choice.name),
        of_annotations({f"gpualert.dev/{name}": text}, Options("i")),
        of_function({choice.key: text}, Options("i")),
    ):
        assert getattr(options, choice.field) == value


@pytest.mark.parametrize(("name", "text"), BAD)
def test_each_is_refused_for_the_same(name: str, text: str) -> None:
    choice = next(choice for choice in CHOICES if choice.name == name)
    reasons = set()
    way: Callable[[Mapping[str, str], Options], Options]
    for way, said in (
        (_of_options, {name: text}),
        (of_annotations, {f"gpualert.dev/{name}": text}),
        (of_function, {choice.key: text}),
    ):
        with pytest.raises(ChoiceError) as caught:
            way(said, Options("i"))
        reasons.add(str(caught.value).partition("must")[2] or str(caught.value).partition("needs")[2])
    assert len(reasons) == 1
    assert reasons != {""}


@pytest.mark.parametrize("name", GOOD)
def test_option_and_annotation_give_the_same_pod(name: str) -> None:
    text, _ = GOOD[name]
    plain = [] if text == "true" else [text]
    argv = [PYTHON, "-I", "-m", "gpualert", "inject", "--image", "gpualert:1", f"--{name}", *plain]
    done = subprocess.run(argv, input=JOB.encode(), capture_output=True, check=True)
    by_annotation = injected(
        JOB.replace("{name: train}", f"{{name: train, annotations: {{gpualert.dev/{name}: '{text}'}}}}")
    )
    assert pods(done.stdout.decode()) == pods(by_annotation)
    assert name == "log-dir" or pods(by_annotation) != pods(injected(JOB)) or name in ("image", "container")


@pytest.mark.parametrize(
    ("name", "text"), [("notify", "sometimes"), ("log-dir", "/"), ("log-volume", "pvc:"), ("image", "")]
)
def test_a_wrong_option_is_one_line(name: str, text: str) -> None:
    argv = [PYTHON, "-I", "-m", "gpualert", "inject", f"--{name}", text]
    done = subprocess.run(argv, input=JOB, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"gpualert: --{name} ")
    assert done.stderr.count("\n") == 1


def test_annotations_that_nobody_knows_are_refused() -> None:
    text = JOB.replace("{name: train}", "{name: train, annotations: {gpualert.dev/log-volum: 'pvc:runs'}}")
    with pytest.raises(
        InjectError, match=r"Job/train: spec\.template: there is no annotation gpualert\.dev/log-volum \(there"
    ):
        injected(text)
    text = text.replace("log-volum: 'pvc:runs'", "inject: perhaps")
    with pytest.raises(InjectError, match=r"annotation gpualert.dev/inject must be true or false, not 'perhaps'"):
        injected(text)
    with pytest.raises(ChoiceError, match="functionConfig: there is no logvolume"):
        of_function({"logvolume": "x"}, Options("i"))


def test_a_function_says_what_options_say() -> None:
    items = [loaded(JOB)[0]]
    document: dict[str, Any] = {"apiVersion": "config.kubernetes.io/v1", "kind": "ResourceList", "items": items}
    document["functionConfig"] = {"data": {"imagePullPolicy": "Never", "imagePullSecret": "site", "survivor": True}}
    options = Options("gpualert:1", "Never", ("site",), survivor=True)
    assert pods(injected(dumps(document))) == pods(injected(JOB, options))
