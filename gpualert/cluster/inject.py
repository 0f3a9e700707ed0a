"""Putting gpualert into the pods of a document, and taking it out again exactly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpualert.cluster import additions, podspecs
from gpualert.cluster.additions import BUNDLE, INSTALL, LAUNCHER
from gpualert.cluster.checks import InjectError, check
from gpualert.cluster.choices import INJECT, MARK, ChoiceError, Options, of_annotations, of_function, wanted
from gpualert.cluster.removal import BEFORE_COMMAND, LeftError, is_injected, recorded, removal_of, wrapped_line
from gpualert.cluster.splicing import Extend, Operation, Put, Replace, edit, share_again
from gpualert.cluster.yamltree import ManifestError, Path, Tree

if TYPE_CHECKING:
    from gpualert.cluster.podspecs import PodTemplate
    from gpualert.cluster.splicing import Shared

__all__ = ["InjectError", "inject_document"]

RESOURCE_LIST = "ResourceList"


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
        except LeftError as error:
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
        records = [(template, recorded(template)) for template in found]
        copies = [(tuple(path), was) for _, record in records for path, was in record.get("shared", [])]
        shared[:] = dict.fromkeys(copies)
        return [operation for template, record in records for operation in removal_of(tree, template, record)]

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


def _one(
    tree: Tree, found: PodTemplate | podspecs.Beyond, options: Options, copied: Shared, notes: list[str]
) -> list[Operation]:
    """What to do to one pod."""
    if isinstance(found, podspecs.Beyond):
        if _asked(found.annotations, found.where):
            if found.loses:
                why = f'{found.why}, or leave it out with the annotation {INJECT}: "false"'
                raise LeftError(found, f"{found.where}: {why}")
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
        raise LeftError(found, why) from None


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
        change.operations.append(Extend((*path, "command"), BEFORE_COMMAND, front=True))
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
