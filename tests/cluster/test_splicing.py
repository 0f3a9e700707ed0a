"""Text that is not ours stays byte for byte; what aliases share is edited once, or copied first."""

from __future__ import annotations

import json

import pytest
from manifest_texts import injected, loaded, pods

from gpualert.cluster.choices import Options
from gpualert.cluster.yamltree import ManifestError

LAUNCHER = ["/gpualert/bin/gpualert", "run", "--"]
TRAIN = [*LAUNCHER, "python", "train.py"]
HEAD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n"
ALL = Options("gpualert:1", container=("*",))


def _exact(text: str, options: Options | None = None) -> str:
    """Injected, after a look at whether twice is once and removal leaves no trace."""
    once = injected(text, options)
    assert once != text
    assert injected(once, options) == once
    assert injected(once, options, take_out=True) == text
    return once


PYTORCH = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: p}
spec:
  pytorchReplicaSpecs:
    Master:
      template:
        spec: %s
          containers: %s
            - name: pytorch
              command: [python, train.py]
    Worker:
      template:
        spec: %s
"""


@pytest.mark.parametrize(
    ("master", "containers", "worker"),
    [("&spec", "", "*spec"), ("", "&c", "\n          containers: *c"), ("&spec", "", "\n          <<: *spec")],
)
def test_a_spec_that_master_and_worker_share_is_wrapped_once_in_each(master: str, containers: str, worker: str) -> None:
    once = _exact(PYTORCH % (master, containers, worker))
    assert [pod["containers"][0]["command"] for pod in pods(once)] == [TRAIN, TRAIN]
    assert [[row["name"] for row in pod["initContainers"]] for pod in pods(once)] == [["gpualert-install"]] * 2


def test_a_spec_that_is_shared_stays_shared_when_both_get_the_same() -> None:
    once = _exact(PYTORCH % ("&spec", "", "*spec"))
    assert "spec: *spec\n" in once
    assert once.count("gpualert-install\n") == 1


def test_a_spec_that_is_shared_is_copied_when_one_pod_wants_something_else() -> None:
    text = (PYTORCH % ("&spec", "", "*spec")).replace(
        "    Worker:\n      template:\n",
        "    Worker:\n      template:\n        metadata: {annotations: {gpualert.dev/inject: 'false'}}\n",
    )
    once = _exact(text)
    assert [pod["containers"][0]["command"] for pod in pods(once)] == [TRAIN, TRAIN[3:]]


def test_a_command_that_containers_share() -> None:
    text = HEAD + "  containers:\n  - name: a\n    command: &c [python, train.py]\n  - name: b\n    command: *c\n"
    assert [row["command"] for row in pods(_exact(text))[0]["containers"]] == [TRAIN, TRAIN[3:]]
    assert [row["command"] for row in pods(_exact(text, ALL))[0]["containers"]] == [TRAIN, TRAIN]
    only_b = Options("gpualert:1", container=("b",))
    assert [row["command"] for row in pods(_exact(text, only_b))[0]["containers"]] == [TRAIN[3:], TRAIN]


def test_merge_keys() -> None:
    text = (
        HEAD
        + "  containers:\n  - &base\n    name: a\n    command: [python, train.py]\n    env: []\n  - <<: *base\n    name: b\n"
    )
    for names, commands in {("a",): [TRAIN, TRAIN[3:]], ("b",): [TRAIN[3:], TRAIN], ("*",): [TRAIN, TRAIN]}.items():
        found = pods(_exact(text, Options("gpualert:1", container=names)))[0]["containers"]
        assert [row["command"] for row in found] == commands
        wrapped = [row["name"] for row in found if row["env"]]
        assert wrapped == (["a", "b"] if names == ("*",) else list(names))


def test_an_alias_of_what_it_is_in_is_refused_in_one_line() -> None:
    with pytest.raises(ManifestError, match=r"\*x is inside of what it stands for"):
        injected(HEAD + "  containers: &x\n  - name: a\n    command: *x\n")


def test_aliases_of_aliases_are_refused() -> None:
    bombs = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 9))
    with pytest.raises(ManifestError, match="too large"):
        injected(f"x0: &x0 [lol]\n{bombs}kind: Job\nspec: {{template: {{spec: {{containers: [{{name: a}}]}}}}}}\n")


def test_comments_stay_where_they_are() -> None:
    text = HEAD + (
        "  containers:\n  - name: a\n    command:\n    # first\n    - python   # the program\n    - train.py\n"
        "    # about the environment\n    env:\n    - name: A   # a\n      value: b\n    # end of the environment\n\n"
        "    # about the image\n    image: x\n  # the end of the containers\n\n  # when to restart\n  restartPolicy: Never\n# the end\n"
    )
    once = _exact(text)
    assert [line for line in once.splitlines() if line in text.splitlines() and "#" in line] == [
        line for line in text.splitlines() if "#" in line
    ]
    lines = once.splitlines()
    assert "GPUALERT" in lines[lines.index("    # end of the environment") - 1].upper()
    assert "terminationMessagePolicy" in lines[lines.index("  # the end of the containers") - 1]


def test_what_is_not_ours_is_not_written_anew() -> None:
    text = HEAD + (
        "  containers:\n      -   name: a\n          command:   [ python,train.py ]\n          env:\n          -  name: A\n"
        '             value: ~\n          -\n             name: B\n             value: "\\x41\\u00e9\\\n               more"\n'
        "          args:\n          - 'one\n\n            two'\n          - >-\n            folded\n            text\n          - |+\n            kept\n\n"
        "          x: [+1, TRUE, 0o17, 2001-12-14t21:59:43.10-05:00, .5, ~ ]\n          lifecycle:\n          volumeMounts: null\n"
        "  initContainers:\n    - {name: i,   image: x}\n  volumes: [ ]\n  affinity:\n...\n"
    )
    once = _exact(text)
    for line in text.splitlines():
        if "command" not in line and "volume" not in line:
            assert line in once.splitlines()
    assert loaded(once)[0]["spec"]["containers"][0]["command"] == TRAIN


@pytest.mark.parametrize("indent", [None, 4, "\t"])
@pytest.mark.parametrize(
    "metadata", [{}, {"metadata": {}}, {"metadata": {"annotations": {"a": "b"}}}, {"metadata": None}]
)
def test_json_stays_json(indent: int | str | None, metadata: dict[str, object]) -> None:
    container = {"name": "a", "command": ["python", "train.py"], "env": None, "args": ["\U0001f600\u00e9", "\t"]}
    document = {"apiVersion": "v1", "kind": "Pod", **metadata, "spec": {"containers": [container], "volumes": []}}
    for separators in ((",", ":"), (", ", ": ")):
        text = json.dumps(document, indent=indent, separators=separators)
        once = json.loads(_exact(text, Options("gpualert:1", survivor=True)))
        assert once["spec"]["containers"][0]["command"] == TRAIN
        assert len(once["spec"]["initContainers"]) == 2
        assert len(once["spec"]["containers"][0]["env"]) == 6


JOB = HEAD + "  containers:\n  - name: a\n    command: [python, train.py]\n"


@pytest.mark.parametrize(
    "text",
    [
        JOB.replace("\n", "\r\n"),
        JOB.rstrip("\n"),
        JOB.replace("\n", "\r\n").rstrip("\r\n"),
        '--- {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", "command": ["python", "train.py"]}]}}\n',
        "--- {kind: Pod, apiVersion: v1, spec: {containers: [{name: a, command: [python, train.py]}]}}\n--- # more\na: b\n",
        f"%YAML 1.1\n---\n{JOB}",
        f"# c\n%YAML 1.1\n# d\n---\n{JOB}...\n%YAML 1.2\n---\n{JOB}",
        f"a: b\n--- # c\n{JOB}...\n# d\n",
    ],
)
def test_line_ends_directives_and_documents_on_the_line_of_their_start(text: str) -> None:
    once = _exact(text)
    assert pods(once)[0]["containers"][0]["command"] == TRAIN
    assert ("\r\n" in text) == ("\r\n" in once)
    assert once.count("\r\n") in (0, once.count("\n"))


def test_a_block_text_that_the_end_of_the_file_cuts_off_is_refused() -> None:
    text = HEAD + "  containers:\n  - name: a\n    command:\n    - |\n      python"
    with pytest.raises(ManifestError, match="end the file with a line break"):
        injected(text)
    assert _exact(text + "\n")


def test_keys_after_a_question_mark_are_refused() -> None:
    with pytest.raises(ManifestError, match="question mark"):
        injected(HEAD + "  ? containers\n  : - name: a\n      command: [x]\n")


def test_a_key_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ManifestError, match="line 7: the key name is there twice"):
        injected(HEAD + "  containers:\n  - name: a\n    name: b\n    command: [x]\n")


def test_what_another_tool_has_written_anew_is_taken_out_all_the_same() -> None:
    document = loaded(_exact(JOB))[0]
    assert json.loads(injected(json.dumps(document), take_out=True)) == loaded(JOB)[0]


def test_what_people_add_later_stays() -> None:
    once = _exact(JOB)
    later = once.replace("    env:\n", "    env:\n    - name: MINE\n      value: x\n").replace(
        "  volumes:\n", "  volumes:\n  - name: mine\n    emptyDir: {}\n"
    )
    assert later != once
    (document,) = loaded(injected(later, take_out=True))
    assert document["spec"]["containers"][0]["env"] == [{"name": "MINE", "value": "x"}]
    assert document["spec"]["volumes"] == [{"name": "mine", "emptyDir": {}}]
    assert loaded(injected(injected(later), take_out=True)) == [document]
