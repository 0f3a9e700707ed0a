"""Manifests as people write them: every style of YAML that is allowed, at random."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from ruamel.yaml import YAML

from gpualert.cluster.choices import Options
from gpualert.cluster.inject import inject_document
from gpualert.cluster.manifests import rewrite

WORDS = ["python", "train.py", "--epochs=3", "a b", "x: y", "$(POD)", "it's", 'say "hi"', "", "7", "true", "~", "#no", "é", "-", "line\nline\n", "tail\n\n", "no break\nhere"]  # fmt: skip
COMMANDS = [["python", "train.py"], ["sh", "-c", "echo a\necho b\n"], ["torchrun", "--nnodes=$(N)", "t.py"], ["/run"]]
LOOSE = ["+1", "0x1F", "TRUE", "~", "2001-12-14t21:59:43.10-05:00", "null", "False", "0o17", ".5"]
"""Plain scalars that a rewriter would write otherwise."""


class Loose(str):
    """A plain scalar that stays as it is."""

    __slots__ = ()


def _maybe(random: Random, holder: dict[str, Any], key: str, *values: Any) -> None:
    value = random.choice([..., ..., None, [], *values])
    if value is not ...:
        holder[key] = value


def container(random: Random, name: str) -> dict[str, Any]:
    """A container with a command, and some of what containers have."""
    rest: dict[str, Any] = {"command": list(random.choice(COMMANDS))}
    if random.random() < 0.5:
        rest["image"] = random.choice(["pytorch:2.9", "registry.site:5000/a/b@sha256:00"])
    if random.random() < 0.4:
        rest["args"] = random.choices(WORDS, k=random.randint(1, 3))
    _maybe(
        random, rest, "env", [{"name": "A", "value": random.choice(WORDS)}], [{"name": "GPUALERT_NOTIFY", "value": "x"}]
    )
    _maybe(random, rest, "volumeMounts", [{"name": "data", "mountPath": "/data"}])
    if random.random() < 0.3:
        rest["resources"] = {"limits": {"cpu": Loose(random.choice(["1", "+1", "0.5"])), "memory": "1Gi"}}
    if random.random() < 0.3:
        rest["x"] = {"loose": [Loose(word) for word in random.choices(LOOSE, k=2)]}
    if random.random() < 0.2:
        rest["terminationMessagePolicy"] = "File"
    rows = list(rest.items())
    random.shuffle(rows)
    rows.insert(random.choice([0, 0, len(rows)]), ("name", name))
    return dict(rows)


def pod(random: Random) -> dict[str, Any]:
    """A pod's spec."""
    spec: dict[str, Any] = {"containers": [container(random, name) for name in "abc"[: random.randint(1, 3)]]}
    _maybe(random, spec, "volumes", [{"name": "data", "emptyDir": {}}])
    _maybe(random, spec, "initContainers", [{"name": "first", "image": "x", "command": ["true"]}])
    if random.random() < 0.5:
        spec["restartPolicy"] = "Never"
    rows = list(spec.items())
    random.shuffle(rows)
    return dict(rows)


def template(random: Random) -> dict[str, Any]:
    """A pod template."""
    holder: dict[str, Any] = {"spec": pod(random)}
    _maybe(
        random,
        holder,
        "metadata",
        {"labels": {"a": "b"}},
        {"annotations": None},
        {"annotations": {}},
        {"annotations": {"c": "d"}},
    )
    if holder.get("metadata") == []:
        holder["metadata"] = {}
    return holder if random.random() < 0.5 else dict(reversed(holder.items()))


def workload(random: Random) -> dict[str, Any]:
    """A Pod, a Job, a PyTorchJob or a List of them."""
    kind = random.choice(["Pod", "Job", "PyTorchJob", "PyTorchJob", "List"])
    if kind == "List":
        return {"apiVersion": "v1", "kind": "List", "items": [workload(random) for _ in range(random.randint(1, 2))]}
    head = {"apiVersion": {"Pod": "v1", "Job": "batch/v1"}.get(kind, "kubeflow.org/v1"), "kind": kind}
    if kind == "Pod":
        return {**head, **template(random)}
    if kind == "Job":
        return {**head, "metadata": {"name": "j"}, "spec": {"template": template(random)}}
    master = template(random)
    worker = random.choice([master, {**template(random), "spec": master["spec"]}, template(random)])
    replicas = {"Master": {"template": master}, "Worker": {"replicas": 3, "template": worker}}
    return {**head, "metadata": {"name": "p"}, "spec": {"pytorchReplicaSpecs": replicas}}


class Writer:
    """Writes plain data as YAML, each time otherwise."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.anchors: list[tuple[str, Any]] = []
        self.names = 0
        self.sharing = random.random() < 0.5
        self.comments = random.random() < 0.7
        self.flows = random.choice([0.0, 0.1, 0.5])
        self.indent = random.choice([2, 2, 4, 3])

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def document(self, value: Any) -> str:
        if self.chance(0.15):
            text = json.dumps(value, ensure_ascii=self.chance(0.5), indent=self.random.choice([None, 2, "\t"]))
            text = self.random.choice(["", "--- ", "---\n"]) + text
        else:
            start = self.random.choice(["", "---\n", "# top\n---\n", "%YAML 1.1\n---\n", "\n\n# c\n", "--- # c\n"])
            text = (
                start
                + "\n".join(self.block(value, 0))
                + self.random.choice(["\n", "\n", "\n# end\n", "\n\n", "\n...\n"])
            )
        if self.chance(0.3) and not text.endswith(("\n\n", "...\n")) and "|" not in text and ">" not in text:
            text = text.rstrip("\n")
        return text.replace("\n", "\r\n") if self.chance(0.25) else text

    def anchor(self) -> str:
        """An anchor, sometimes."""
        self.names += 1
        return f"&n{self.names} " if self.sharing and self.chance(0.3) else ""

    def keep(self, anchor: str, value: Any) -> None:
        """An anchored value that is complete can be shared from here on."""
        if anchor:
            self.anchors.append((anchor.strip("& "), value))

    def alias(self, value: Any) -> str | None:
        """An alias of an equal value, sometimes."""
        if not self.sharing or not value:
            return None
        equal = [
            name
            for name, other in self.anchors
            if json.dumps(other) == json.dumps(value) and type(other) is type(value)
        ]
        return f"*{self.random.choice(equal)}" if equal and self.chance(0.8) else None

    def noise(self, indent: int) -> list[str]:
        if not self.comments or not self.chance(0.15):
            return []
        return self.random.choice(
            [[""], [" " * indent + "# a comment"], ["# at the margin"], [" " * (indent + 2) + "# deep", ""]]
        )

    def tail(self) -> str:
        return self.random.choice(["  # why", " #"]) if self.comments and self.chance(0.1) else ""

    def block(self, value: Any, indent: int) -> list[str]:
        """Lines of a collection that is not empty."""
        return self.mapping(value, indent) if isinstance(value, dict) else self.sequence(value, indent)

    def mapping(self, value: dict[str, Any], indent: int) -> list[str]:
        lines: list[str] = []
        rest = dict(value)
        bases = [(n, v) for n, v in self.anchors if isinstance(v, dict) and v and all(k in value for k in v)]
        if self.sharing and bases and self.chance(0.5):
            name, base = self.random.choice(bases)
            lines.append(" " * indent + f"<<: *{name}")
            rest = {
                key: inner
                for key, inner in value.items()
                if json.dumps(base.get(key, ...), default=str) != json.dumps(inner)
            }
        for key, inner in rest.items():
            lines += self.noise(indent) if lines else []
            head = " " * indent + (json.dumps(key) if self.chance(0.1) else key) + ":"
            lines += self.under(head, inner, indent)
        return lines

    def under(self, head: str, value: Any, indent: int) -> list[str]:
        """A value after ``key:`` or ``-``."""
        alias = self.alias(value)
        if alias is not None:
            return [f"{head} {alias}{self.tail()}"]
        if not isinstance(value, (dict, list)):
            return self.scalar(head, value, indent)
        if not value or self.chance(self.flows):
            anchor = self.anchor() if value else ""
            line = f"{head} {anchor}{self.flow(value)}{self.tail()}"
            self.keep(anchor, value)
            return [line]
        anchor = self.anchor().rstrip()
        deeper = indent + (self.indent if isinstance(value, dict) else self.random.choice([0, 2, 2, 4]))
        comment = self.noise(deeper)
        lines = [f"{head}{' ' if anchor else ''}{anchor}{self.tail()}", *comment, *self.block(value, deeper)]
        self.keep(anchor, value)
        return lines

    def sequence(self, value: list[Any], indent: int) -> list[str]:
        lines: list[str] = []
        for item in value:
            lines += self.noise(indent) if lines else []
            if isinstance(item, dict) and item and not self.chance(self.flows) and self.alias(item) is None:
                gap = self.random.choice([1, 1, 1, 3])
                anchor = self.anchor().rstrip()
                inner = self.mapping(item, indent + 1 + gap)
                self.keep(anchor, item)
                if anchor:
                    lines += [" " * indent + "- " + anchor, *inner]
                else:
                    lines += [" " * indent + "-" + " " * gap + inner[0].lstrip(" "), *inner[1:]]
            else:
                lines += self.under(" " * indent + "-", item, indent)
        return lines

    def scalar(self, head: str, value: Any, indent: int) -> list[str]:
        if value is None:
            return [head + self.random.choice(["", " ~", " null", " "]) + self.tail()]
        if isinstance(value, str) and not isinstance(value, Loose) and "\n" in value and self.chance(0.7):
            chomping = {0: "-", 1: "", 2: "+"}[len(value) - len(value.rstrip("\n"))]
            lines = value.rstrip("\n").split("\n") + [""] * (len(value) - len(value.rstrip("\n")) - 1)
            return [f"{head} |{chomping}{self.tail()}", *[" " * (indent + 2) + line if line else "" for line in lines]]
        return [f"{head} {self.one_line(value)}{self.tail()}"]

    def one_line(self, value: Any) -> str:
        if isinstance(value, Loose) or not isinstance(value, str):
            return str(value)
        if value.isidentifier() and value not in ("true", "null") and self.chance(0.7):
            return value
        if "\n" not in value and self.chance(0.5):
            return "'" + value.replace("'", "''") + "'"
        return json.dumps(value, ensure_ascii=self.chance(0.5))

    def flow(self, value: Any) -> str:
        alias = self.alias(value)
        if alias is not None:
            return f"{alias} "
        if value is None:
            return self.random.choice(["null", "~"])
        if not isinstance(value, (dict, list)):
            return self.one_line(value)
        space, comma = self.random.choice(
            [("", ", "), (" ", ","), ("", ",\n" + " " * 30), ("\n" + " " * 30, ",\n" + " " * 30)]
        )
        rows = (
            [f"{key}: {self.flow(inner)}" for key, inner in value.items()]
            if isinstance(value, dict)
            else [self.flow(inner) for inner in value]
        )
        opened, closed = "{}" if isinstance(value, dict) else "[]"
        trailing = "," if rows and self.chance(0.1) else ""
        return opened + space + comma.join(rows) + trailing + space + closed


def injected(text: str, options: Options | None = None, *, take_out: bool = False, skip: bool = False) -> str:
    """A stream with gpualert in its pods, or without it."""
    return noted(text, options, take_out=take_out, skip=skip)[0]


def noted(
    text: str, options: Options | None = None, *, take_out: bool = False, skip: bool = False
) -> tuple[str, list[str]]:
    """The same, and what was said about it."""
    notes: list[str] = []
    options = options or Options("gpualert:1")

    def change(piece: str) -> str:
        return inject_document(piece, options, take_out=take_out, skip=skip, notes=notes)

    return rewrite(text, change), notes


def loaded(text: str) -> list[Any]:
    """The documents, with nothing shared any more."""
    return [_apart(document) for document in YAML(typ="safe", pure=True).load_all(text)]


def _apart(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _apart(inner) for key, inner in value.items()}
    return [_apart(inner) for inner in value] if isinstance(value, list) else value


def pods(text: str) -> list[dict[str, Any]]:
    """Every pod spec in a stream."""
    found: list[dict[str, Any]] = []

    def look(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("containers"), list):
                found.append(node)
            for value in node.values():
                look(value)
        elif isinstance(node, list):
            for value in node:
                look(value)

    for document in loaded(text):
        look(document)
    return found
