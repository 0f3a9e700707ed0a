"""Putting gpualert into the pods of a document, and taking it out again exactly."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from gpualert.cluster import additions, podspecs
from gpualert.cluster.additions import BUNDLE, INSTALL, LAUNCHER
from gpualert.cluster.checks import InjectError, check
from gpualert.cluster.choices import INJECT, MARK, ChoiceError, Options, of_annotations, of_function, wanted
from gpualert.cluster.splicing import Delete, DeleteItems, Extend, Operation, Put, Replace, Restore, edit, share_again
from gpualert.cluster.yamltree import ManifestError, Path, Tree

if TYPE_CHECKING:
    from gpualert.cluster.podspecs import PodTemplate
    from gpualert.cluster.splicing import Shared

__all__ = ["InjectError", "inject_document"]

RESOURCE_LIST = "ResourceList"
_BEFORE_COMMAND = [LAUNCHER, "run", "--"]
_BEFORE_LINE = " ".join(_BEFORE_COMMAND) + " "
_ONE_COMMAND = re.compile(r"[\w./@%+,:-][\w./=:@%+, -]*", re.ASCII)


class _LeftError(Exception):
    """One pod cannot be wrapped, and may be left as it is."""

    def __init__(self, template: PodTemplate | podspecs.Beyond, why: str) -> None:
        super().__init__(why)
        self.path = template.path


def inject_document(text: str, options: Options, *, take_out: bool, skip: bool, notes: list[str]) -> str:
    """Put gpualert into the pods of one document, or take it out; what has it is brought up to date.

    Args:
        text: The document.
        options: What to put in; annotations of a workload or pod say other for it.
        take_out: Whether to take it out instead.
        skip: Whether pods that cannot be wrapped are left as they are.
        notes: Gets what a person should know: what was left, and why.

    Returns:
        The document; what is not gpualert's is in it byte for byte.

    Raises:
        InjectError: A pod cannot be wrapped.
        ManifestError: The document cannot be edited.
    """
    left: dict[Path, str] = {}
    while True:
        said: list[str] = []
        try:
            written = _attempt(text, options, left, said, take_out=take_out)
        except _LeftError as error:
            if not skip:
                raise InjectError(str(error)) from None
            left[error.path] = f"{error}: left as it is"
        except ManifestError as error:
            if not skip:
                raise
            notes.append(f"{error}: left as it is")
            return text
        else:
            notes += [*left.values(), *said]
            return written


def _attempt(text: str, options: Options, left: dict[Path, str], notes: list[str], *, take_out: bool) -> str:
    shared: list[tuple[Path, str]] = []

    def removal(tree: Tree, _: Shared) -> list[Operation]:
        found = [template for template in _templates(tree) if template.path not in left and is_injected(template)]
        records = [(template, _record(template)) for template in found]
        copies = [(tuple(path), was) for _, record in records for path, was in record.get("shared", [])]
        shared[:] = dict.fromkeys(copies)
        return [operation for template, record in records for operation in _removal(tree, template, record)]

    def injection(tree: Tree, copied: Shared) -> list[Operation]:
        notes.clear()
        value = tree.value(tree.root) if tree.root else None
        chosen = _of_function(value, options)
        return [
            operation
            for found in podspecs.find(value)
            if found.path not in left
            for operation in _one(tree, found, chosen, copied, notes)
        ]

    if MARK in text:
        text = share_again(edit(text, removal), shared)
    return text if take_out else edit(text, injection)


def _templates(tree: Tree) -> list[PodTemplate]:
    found = podspecs.find(tree.value(tree.root)) if tree.root else iter(())
    return [template for template in found if isinstance(template, podspecs.PodTemplate)]


def _of_function(document: Any, options: Options) -> Options:
    """The options with those of a kustomize function's input over them."""
    if not isinstance(document, dict) or document.get("kind") != RESOURCE_LIST:
        return options
    function = document.get("functionConfig")
    data = function.get("data") if isinstance(function, dict) else None
    try:
        return of_function(data, options) if isinstance(data, dict) else options
    except ChoiceError as error:
        raise InjectError(str(error)) from None


def is_injected(template: PodTemplate) -> bool:
    """Whether gpualert is in a pod already, put there by us."""
    return MARK in _own_annotations(template)


def _own_annotations(template: PodTemplate) -> dict[str, Any]:
    metadata = template.holder.get("metadata")
    told = metadata.get("annotations") if isinstance(metadata, dict) else None
    return told if isinstance(told, dict) else {}


def _one(
    tree: Tree, found: PodTemplate | podspecs.Beyond, options: Options, copied: Shared, notes: list[str]
) -> list[Operation]:
    """What to do to one pod."""
    if isinstance(found, podspecs.Beyond):
        if _asked(found.annotations, found.where):
            if found.loses:
                why = f'{found.why}, or leave it out with the annotation {INJECT}: "false"'
                raise _LeftError(found, f"{found.where}: {why}")
            notes.append(f"{found.where}: {found.why}")
        return []
    try:
        if not _asked(found.annotations, found.where):
            return []
        options = of_annotations(found.annotations, options)
        if found.left is not None:
            notes.append(f"{found.where}: not wrapped: {found.left}")
            return []
        if _has_it_already(found.spec):
            notes.append(f"{found.where}: has gpualert already, from its chart or the admission policy: left as it is")
            return []
        return _injection(tree, found, options, copied, notes)
    except (InjectError, ChoiceError) as error:
        why = str(error) if isinstance(error, InjectError) else f"{found.where}: {error}"
        raise _LeftError(found, why) from None


def _asked(annotations: dict[str, str], where: str) -> bool:
    try:
        return wanted(annotations)
    except ChoiceError as error:
        raise InjectError(f"{where}: {error}") from None


def _has_it_already(spec: dict[str, Any]) -> bool:
    return all(
        any(isinstance(row, dict) and row.get("name") == name for row in rows)
        for key, name in (("initContainers", INSTALL), ("volumes", BUNDLE))
        for rows in [spec[key] if isinstance(spec.get(key), list) else []]
    )


class _Injection:
    """One pod's: what is to be done, and what has to be remembered to undo it."""

    def __init__(self, tree: Tree, template: PodTemplate) -> None:
        self.tree = tree
        self.template = template
        self.spec = (*template.path, "spec")
        self.operations: list[Operation] = []
        self.record: dict[str, Any] = {"v": 1, "containers": {}, "created": []}

    def extend(self, holder: dict[str, Any], path: Path, label: str, rows: list[Any], *, front: bool = False) -> None:
        """Put rows into a list, which is made where there is none."""
        if not rows:
            return
        key = str(path[-1])
        if key not in holder:
            self.record["created"].append(label)
            self.operations.append(Put(path[:-1], key, rows))
        elif holder[key] is None:
            self.record.setdefault("nulls", {})[label] = text_of(self.tree, path)
            self.operations.append(Replace(path, rows))
        else:
            self.operations.append(Extend(path, rows, front))


def text_of(tree: Tree, path: Path) -> str:
    """The text of a value, without its anchor."""
    steps = tree.steps(path)
    if not steps:
        return ""
    node = steps[-1].via or steps[-1].node
    return tree.text[tree.content_start(node) : node.end]


def _injection(
    tree: Tree, template: PodTemplate, options: Options, copied: Shared, notes: list[str]
) -> list[Operation]:
    spec = template.spec
    if template.left_without_command is not None and not _commands(template, options):
        notes.append(f"{template.where}: not wrapped: {template.left_without_command}")
        return []
    chosen = check(template, options)
    change = _Injection(tree, template)
    for number, container in enumerate(spec["containers"]):
        if any(container is one for one in chosen):
            _wrap(change, container, (*change.spec, "containers", number), options)
    rows = additions.volumes(options)
    change.extend(spec, (*change.spec, "volumes"), "volumes", rows)
    change.record["volumes"] = [row["name"] for row in rows]
    # First of all: another init container may be slow, and a volume that is filled early harms nobody.
    rows = additions.init_containers(template, chosen[0], options)
    change.extend(spec, (*change.spec, "initContainers"), "initContainers", rows, front=True)
    change.record["init"] = [row["name"] for row in rows]
    have = [row.get("name") for row in spec.get("imagePullSecrets") or []]
    added = [name for name in dict.fromkeys(options.image_pull_secret) if name not in have]
    change.extend(spec, (*change.spec, "imagePullSecrets"), "imagePullSecrets", [{"name": name} for name in added])
    if added:
        change.record["pull"] = added
    if template.line is not None:
        _wrap_line(change, template.line)
    if copied:
        change.record["shared"] = copied
    _mark(change)
    return change.operations


def _commands(template: PodTemplate, options: Options) -> bool:
    """Whether any container that is meant has a command."""
    containers = [row for row in template.spec["containers"] if isinstance(row, dict)]
    meant = [row for row in containers if "*" in options.container or row.get("name") in options.container]
    return any(row.get("command") for row in (meant if options.container else containers[:1]))


def _wrap(change: _Injection, container: dict[str, Any], path: Path, options: Options) -> None:
    """Put the launcher in front of a container's command, and give it what it needs."""
    name = container["name"]
    record: dict[str, Any] = {}
    if not change.template.carries:
        # $(VAR) in it is still the kubelet's to fill in, args still follow.
        change.operations.append(Extend((*path, "command"), _BEFORE_COMMAND, front=True))
    taken = [entry["name"] for entry in container.get("env") or []]
    rows = [row for row in additions.environment(change.template, container, options) if row["name"] not in taken]
    change.extend(container, (*path, "env"), f"{name}.env", rows)
    record["env"] = [row["name"] for row in rows]
    rows = additions.mounts(options)
    change.extend(container, (*path, "volumeMounts"), f"{name}.volumeMounts", rows)
    record["mounts"] = [row["name"] for row in rows]
    if "terminationMessagePolicy" not in container and not change.template.carries:
        change.operations.append(Put(path, "terminationMessagePolicy", "FallbackToLogsOnError"))
        record["policy"] = True
    change.record["containers"][name] = record


def wrapped_line(line: str) -> str:
    """A shell line under gpualert: as it is where it is one command, else for a shell.

    Args:
        line: The line.
    """
    line = line.strip()
    simple = _ONE_COMMAND.fullmatch(line) and "=" not in line.split()[0]
    return _BEFORE_LINE + (line if simple else f"sh -c {shlex.quote(line)}")


def _wrap_line(change: _Injection, path: Path) -> None:
    tree = change.tree
    steps = tree.steps(path)
    line = tree.value(steps[-1].node) if steps else ""
    if line.lstrip().startswith(LAUNCHER) or not line.strip() or steps is None:
        return
    node = steps[-1].via or steps[-1].node
    change.record["line"] = [list(path), text_of(tree, path), tree.column(node.start)]
    change.operations.append(Replace(path, wrapped_line(line)))


def _mark(change: _Injection) -> None:
    path, holder = change.template.path, change.template.holder
    metadata = holder.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    record, operations = change.record, change.operations

    def text() -> str:
        return json.dumps(record, separators=(",", ":"), sort_keys=True)

    if "metadata" not in holder:
        record["created"] += ["metadata", "annotations"]
        operations.append(Put(path, "metadata", {"annotations": {MARK: text()}}, first=True))
    elif metadata is None:
        record.setdefault("nulls", {})["metadata"] = text_of(change.tree, (*path, "metadata"))
        operations.append(Replace((*path, "metadata"), {"annotations": {MARK: text()}}))
    elif "annotations" not in metadata:
        record["created"].append("annotations")
        operations.append(Put((*path, "metadata"), "annotations", {MARK: text()}))
    elif annotations is None:
        record.setdefault("nulls", {})["annotations"] = text_of(change.tree, (*path, "metadata", "annotations"))
        operations.append(Replace((*path, "metadata", "annotations"), {MARK: text()}))
    else:
        operations.append(Put((*path, "metadata", "annotations"), MARK, text()))


# Taking it out


def _record(template: PodTemplate) -> dict[str, Any]:
    """What the mark says.

    Raises:
        _LeftError: It is damaged.
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
        raise _LeftError(template, f"{template.where}: {why}") from None
    return dict(record)


def _removal(tree: Tree, template: PodTemplate, record: dict[str, Any]) -> list[Operation]:
    spec, path = template.spec, (*template.path, "spec")
    found: list[Operation] = []
    for number, container in enumerate(spec["containers"]):
        row = record["containers"].get(str(container.get("name"))) if isinstance(container, dict) else None
        if row is None:
            continue
        here: Path = (*path, "containers", number)
        command = container.get("command")
        if isinstance(command, list) and command[:3] == _BEFORE_COMMAND and len(command) > 3:
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
