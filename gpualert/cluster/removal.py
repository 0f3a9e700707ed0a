"""Taking gpualert out of a pod again, by what the annotation remembers."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from gpualert.cluster.additions import LAUNCHER
from gpualert.cluster.choices import MARK
from gpualert.cluster.splicing import Delete, DeleteItems, Operation, Replace, Restore
from gpualert.cluster.yamltree import ManifestError, Path, Tree

if TYPE_CHECKING:
    from gpualert.cluster.podspecs import Beyond, PodTemplate

BEFORE_COMMAND = [LAUNCHER, "run", "--"]
_BEFORE_LINE = " ".join(BEFORE_COMMAND) + " "
_ONE_COMMAND = re.compile(r"[\w./@%+,:-][\w./=:@%+, -]*", re.ASCII)


class LeftError(Exception):
    """One pod cannot be wrapped, and may be left as it is."""

    def __init__(self, template: PodTemplate | Beyond, why: str) -> None:
        super().__init__(why)
        self.path = template.path


def is_injected(template: PodTemplate) -> bool:
    """Whether gpualert is in a pod already, put there by us."""
    return MARK in _own_annotations(template)


def _own_annotations(template: PodTemplate) -> dict[str, Any]:
    metadata = template.holder.get("metadata")
    told = metadata.get("annotations") if isinstance(metadata, dict) else None
    return told if isinstance(told, dict) else {}


def wrapped_line(line: str) -> str:
    """A shell line under gpualert: as it is where it is one command, else for a shell.

    Args:
        line: The line.
    """
    line = line.strip()
    simple = _ONE_COMMAND.fullmatch(line) and "=" not in line.split()[0]
    return _BEFORE_LINE + (line if simple else f"sh -c {shlex.quote(line)}")


def recorded(template: PodTemplate) -> dict[str, Any]:
    """What a pod's mark says.

    Raises:
        LeftError: It is damaged.
    """
    try:
        record = json.loads(_own_annotations(template)[MARK])
        rows = record["containers"].values()
        names = [record["created"], record["volumes"], record["init"], record.get("pull", [])]
        names += [row[key] for row in rows for key in ("env", "mounts")]
        "".join([name for part in names for name in part])
        [(list(path), str(was)) for path, was in record.get("shared", [])]
        "".join([str(key) + was for key, was in record.get("nulls", {}).items()])
        _, _, _ = record.get("line", ([], "", 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"the annotation {MARK} is damaged ({error}): take gpualert out by hand"
        raise LeftError(template, f"{template.where}: {why}") from None
    return dict(record)


def removal_of(tree: Tree, template: PodTemplate, record: dict[str, Any]) -> list[Operation]:
    """What takes gpualert out of a pod.

    Args:
        tree: The document.
        template: The pod.
        record: What its mark says.
    """
    spec, path = template.spec, (*template.path, "spec")
    found: list[Operation] = []
    for number, container in enumerate(spec["containers"]):
        row = record["containers"].get(str(container.get("name"))) if isinstance(container, dict) else None
        if row is None:
            continue
        here: Path = (*path, "containers", number)
        command = container.get("command")
        if isinstance(command, list) and command[:3] == BEFORE_COMMAND and len(command) > 3:
            found.append(DeleteItems((*here, "command"), (0, 1, 2)))
        found += _drop(tree, container, (*here, "env"), row["env"], record, f"{container['name']}.env")
        found += _drop(
            tree, container, (*here, "volumeMounts"), row["mounts"], record, f"{container['name']}.volumeMounts"
        )
        if row.get("policy") and "terminationMessagePolicy" in container:
            found.append(Delete((*here, "terminationMessagePolicy")))
    found += _drop(tree, spec, (*path, "volumes"), record["volumes"], record, "volumes")
    found += _drop(tree, spec, (*path, "initContainers"), record["init"], record, "initContainers")
    found += _drop(tree, spec, (*path, "imagePullSecrets"), record.get("pull", []), record, "imagePullSecrets")
    if "line" in record:
        found += _unwrap_line(tree, record["line"])
    return [*found, *_unmark(template, record)]


def _drop(
    tree: Tree, holder: dict[str, Any], path: Path, names: list[str], record: dict[str, Any], label: str
) -> list[Operation]:
    """Take entries out of a list by name; the list too, where it was ours and nothing is left in it."""
    rows = holder.get(str(path[-1]))
    if not isinstance(rows, list):
        return []
    ours = [number for number, row in enumerate(rows) if isinstance(row, dict) and row.get("name") in names]
    if not ours:
        return []
    if len(ours) < len(rows):
        return [DeleteItems(path, ours)]
    if label in record.get("nulls", {}):
        return [Restore(path, record["nulls"][label])]
    steps = tree.steps(path)
    if label in record["created"] or (steps is not None and not steps[-1].node.flow):
        return [Delete(path)]
    return [DeleteItems(path, ours)]


def _unmark(template: PodTemplate, record: dict[str, Any]) -> list[Operation]:
    metadata, created, nulls = (*template.path, "metadata"), record["created"], record.get("nulls", {})
    alone = len(_own_annotations(template)) == 1
    only_annotations = alone and len(template.holder["metadata"]) == 1
    if only_annotations and "metadata" in nulls:
        return [Restore(metadata, nulls["metadata"])]
    if only_annotations and "metadata" in created:
        return [Delete(metadata)]
    if alone and "annotations" in nulls:
        return [Restore((*metadata, "annotations"), nulls["annotations"])]
    if alone and "annotations" in created:
        return [Delete((*metadata, "annotations"))]
    return [Delete((*metadata, "annotations", MARK))]


def _unwrap_line(tree: Tree, remembered: Any) -> list[Operation]:
    path, was, column = tuple(remembered[0]), str(remembered[1]), remembered[2]
    steps = tree.steps(path)
    line = tree.value(steps[-1].node) if steps else None
    if steps is None or not isinstance(line, str) or not line.startswith(_BEFORE_LINE):
        return []
    if wrapped_line(str(_value_of(was))) == line and not tree.is_json and tree.column(steps[-1].node.start) == column:
        return [Restore(path, was)]
    rest = line.removeprefix(_BEFORE_LINE)
    try:
        words = shlex.split(rest) if rest.startswith("sh -c ") else []
    except ValueError:  # somebody has changed it
        words = []
    return [Replace(path, words[2] if len(words) == 3 else rest)]


def _value_of(text: str) -> Any:
    """What a text of YAML stands for; nothing where it stands for nothing by itself."""
    try:
        value = Tree(f"value: {text}\n")
        return value.value(value.root)["value"] if value.root else None
    except ManifestError:
        return None
