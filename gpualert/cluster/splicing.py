"""Edits of a YAML document's text: entries are put in and taken out, and every other byte stays.

What is asked for is said by path. Where a path leads through an alias or a merge key, the text there is other
people's too: when all who share it get the same edits, it is edited once; else the alias is first replaced by what it
stands for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from gpualert.cluster.yamltree import MERGE, ManifestError, Path, Step, Tree, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpualert.cluster.yamltree import Node

_QUANTITY = r"[0-9]+(m|[KMGT]i)"
_PLAIN_IN_BLOCK = re.compile(rf"[A-Za-z/][\w./-]*(:[\w./-]+)*|{_QUANTITY}", re.ASCII)
_PLAIN_IN_FLOW = re.compile(rf"[A-Za-z/][\w./-]*|{_QUANTITY}", re.ASCII)
_OTHER_TYPES = re.compile(r"(true|false|yes|no|on|off|y|n|null)", re.IGNORECASE)
_ONE_LINE = 90
_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Put:
    """A new key of a mapping, after or before the others."""

    parent: Path
    key: str
    value: Any
    first: bool = False


@dataclass(frozen=True, slots=True)
class Extend:
    """New items of a list, after or before the others."""

    path: Path
    items: Sequence[Any]
    front: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Another value in a value's place."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Restore:
    """The text that was in a value's place."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Delete:
    """A key of a mapping, gone."""

    path: Path


@dataclass(frozen=True, slots=True)
class DeleteItems:
    """Items of a list, gone; a list of braces and brackets may be left empty."""

    path: Path
    numbers: Sequence[int]


Operation: TypeAlias = Put | Extend | Replace | Restore | Delete | DeleteItems
Shared: TypeAlias = "list[tuple[Path, str]]"
"""Where an alias (``*name``), or nothing because of a merge key (``<<``), was before a copy was put there."""


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str
    depth: int
    trail: tuple[Step, ...] = field(compare=False)


def edit(text: str, operations: Callable[[Tree, Shared], list[Operation]]) -> str:
    """A document with edits made.

    Args:
        text: The document.
        operations: What to do, given the document and what had to be copied for it so far.

    Raises:
        ManifestError: The document is written so that it cannot be edited.
    """
    shared: Shared = []
    for _ in range(_ROUNDS):
        tree = Tree(text)
        splicer = _Splicer(tree)
        for operation in operations(tree, shared):
            splicer.do(operation)
        copies = splicer.copies or _conflicts(tree, splicer.edits)
        if not copies:
            return _splice(text, splicer.edits)
        shared += [(path, was) for path, was, _ in copies]
        text = _splice(text, [made for _, _, made in copies])
    raise ManifestError("its aliases are too entangled")


def share_again(text: str, shared: Shared) -> str:
    """A document with the aliases again that copies were made of, where they are still the same.

    Args:
        text: The document.
        shared: What was copied, in that order.
    """
    for path, was in reversed(shared):
        text = _share_one(Tree(text), path, was)
    return text


def _share_one(tree: Tree, path: Path, was: str) -> str:
    steps = tree.steps(path)
    if steps is None or not path or steps[-1].via or any(step.merged for step in steps):
        return tree.text
    node, parent = steps[-1].node, steps[-2].node
    if was == MERGE:
        sources = parent.own(MERGE)
        bare = Tree(tree.text) if sources is not None else None
        inherited = _inherited(bare, path) if bare is not None else None
        if bare is None or inherited is None or bare.written(inherited) != tree.written(node):
            return tree.text
        splicer = _Splicer(tree)
        splicer.do(Delete(path))
        return _splice(tree.text, splicer.edits)
    target = next((a for a in reversed(tree.anchors) if a.anchor == was[1:] and a.end <= node.start), None)
    if target is None or tree.written(target) != tree.written(node):
        return tree.text
    return tree.text[: node.start] + was + tree.text[node.end :]


def _inherited(tree: Tree, path: Path) -> Node | None:
    """What a merge key gives under the last key of a path, whatever the mapping itself has."""
    steps = tree.steps(path[:-1])
    if steps is None:
        return None
    mapping = steps[-1].node
    mapping.pairs = [(key, value) for key, value in mapping.pairs if key.text != path[-1]]
    found = tree.members(mapping).get(str(path[-1]))
    return found[0].real() if found else None


def _conflicts(tree: Tree, edits: list[_Edit]) -> list[tuple[Path, str, _Edit]]:
    """Copies that have to be made first, since not all who share a text get the same edits."""
    uses: dict[tuple[int, int | None], set[_Edit]] = {}
    for made in edits:
        for step in made.trail:
            uses.setdefault((id(step.node), id(step.via) if step.via else None), set()).add(made)
    found = []
    for path, alias in tree.places():
        node = alias.real()
        if uses.get((id(node), id(alias)), set()) != uses.get((id(node), None), set()):
            copy = _Edit(alias.start, alias.end, tree.written(node), alias.depth, ())
            found.append((path, f"*{alias.text}", copy))
    return found


def _splice(text: str, edits: list[_Edit]) -> str:
    """Make edits; of those at one place the innermost comes first."""
    pieces: list[str] = []
    position = 0
    for made in sorted(dict.fromkeys(edits), key=lambda made: (made.start, -made.depth)):
        if made.start < position:
            raise ManifestError("two edits are in each other's way")
        pieces += [text[position : made.start], made.text]
        position = made.end
    return "".join([*pieces, text[position:]])


class _Splicer:
    """Turns operations into edits of one tree's text."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.text = tree.text
        self.edits: list[_Edit] = []
        self.copies: list[tuple[Path, str, _Edit]] = []

    def do(self, operation: Operation) -> None:
        match operation:
            case Put(parent, key, value, first):
                steps = self._steps(parent)
                if steps is not None:
                    self._put(steps, key, value, first=first)
            case Extend(path, items, front):
                steps = self._steps(path)
                if steps is not None:
                    self._extend(steps, items, front=front)
            case Replace(path, value):
                steps = self._steps(path)
                if steps is not None:
                    self._replace(steps, self._flow(value))
            case Restore(path, text):
                steps = self._steps(path)
                if steps is not None:
                    self._replace(steps, text)
            case Delete(path):
                steps = self._steps(path)
                if steps is not None:
                    self._delete(steps[:-1], str(path[-1]))
            case DeleteItems(path, numbers):
                steps = self._steps(path)
                if steps is not None:
                    for first_number, last_number in _runs(numbers):
                        self._delete_items(steps, first_number, last_number)

    def _steps(self, path: Path) -> list[Step] | None:
        """The way to a node; None where a copy has to be made first."""
        steps = self.tree.steps(path)
        if steps is None:
            raise ManifestError(f"there is no {'.'.join(map(str, path))}")
        for number, step in enumerate(steps):
            if step.merged:
                mapping, key = steps[number - 1].node, str(path[number - 1])
                copier = _Splicer(self.tree)
                copier._put([Step(mapping, None, merged=False)], key, _Text(self.tree.written(step.node)), first=False)
                (made,) = copier.edits
                if made not in [other for _, _, other in self.copies]:
                    self.copies.append((path[:number], MERGE, made))
                return None
        return steps

    def _edit(self, start: int, end: int, text: str, steps: list[Step]) -> None:
        self.edits.append(_Edit(start, end, text, steps[-1].node.depth, tuple(steps)))

    # Mappings

    def _put(self, steps: list[Step], key: str, value: Any, *, first: bool) -> None:
        tree, node = self.tree, steps[-1].node
        if node.kind != "map":
            raise ManifestError(f"line {tree.line(node.start)}: no mapping")
        if node.flow:
            entry = f"{self._key(key, node)}: {self._flow(value)}"
            self._put_in_flow(steps, [entry], node.pairs[0][0].start if node.pairs else None, first=first)
            return
        column = tree.column(node.pairs[0][0].start)
        self._refuse_explicit(node)
        lines = self._entry(key, value, column)
        if first:
            lines.append(" " * column)
            self._edit(node.pairs[0][0].start, node.pairs[0][0].start, tree.newline.join(lines)[column:], steps)
        else:
            self._append(steps, lines)

    def _put_in_flow(self, steps: list[Step], entries: list[str], begin: int | None, *, first: bool) -> None:
        node = steps[-1].node
        opened = self.tree.content_start(node) + 1
        if begin is None:
            self._edit(opened, opened, ", ".join(entries), steps)
            return
        gap = self.text[opened:begin]
        gap = gap if gap.isspace() and ("\n" in gap or "\r" in gap) else " "
        if first:
            self._edit(begin, begin, "".join([f"{entry},{gap}" for entry in entries]), steps)
        else:
            last = node.items[-1].end if node.items else max(node.pairs[-1][0].end, node.pairs[-1][1].end)
            comma = " ," if self.text[last - 1] == ":" else ","  # "a:," would be a text
            self._edit(last, last, comma + gap + f",{gap}".join(entries), steps)

    def _append(self, steps: list[Step], lines: list[str]) -> None:
        """Lines after the last of a block collection."""
        node, newline = steps[-1].node, self.tree.newline
        end = self.tree.line_end(node.end)
        if node.unended and end == len(self.text):
            raise ManifestError("it ends within a block text: end the file with a line break")
        self._edit(end, end, "".join([newline + line for line in lines]), steps)

    def _refuse_explicit(self, node: Node) -> None:
        for key, _ in node.pairs:
            if re.search(r"(^|[\r\n ])\?\s*\Z", self.text[max(0, key.start - 80) : key.start]):
                raise ManifestError(f"line {self.tree.line(key.start)}: keys after a question mark cannot be edited")

    def _delete(self, steps: list[Step], key: str) -> None:
        tree, node = self.tree, steps[-1].node
        number = next(n for n, (name, _) in enumerate(node.pairs) if name.text == key)
        name, value = node.pairs[number]
        end = max(name.end, value.end)
        if len(node.pairs) == 1:
            inner = tree.content_start(node) + 1 if node.flow else name.start
            self._edit(inner, end, "" if node.flow else "{}", steps)
        elif number == 0:
            self._edit(name.start, node.pairs[1][0].start, "", steps)
        elif node.flow:
            self._edit(max(part.end for part in node.pairs[number - 1]), end, "", steps)
        else:
            self._edit(tree.break_before(name.start), tree.line_end(end), "", steps)

    # Lists

    def _extend(self, steps: list[Step], items: Sequence[Any], *, front: bool) -> None:
        tree, node = self.tree, steps[-1].node
        if node.kind != "list":
            raise ManifestError(f"line {tree.line(node.start)}: no list")
        if node.flow:
            entries = [self._flow(item) for item in items]
            self._put_in_flow(steps, entries, node.items[0].start if node.items else None, first=front)
            return
        dash = tree.dash(node.items[0])
        column = tree.column(dash)
        lines = [line for item in items for line in self._item(item, column)]
        if front:
            lines.append(" " * column)
            self._edit(dash, dash, tree.newline.join(lines)[column:], steps)
        else:
            self._append(steps, lines)

    def _delete_items(self, steps: list[Step], first: int, last: int) -> None:
        tree, node = self.tree, steps[-1].node
        items = node.items
        if first == 0 and last == len(items) - 1:
            start = tree.content_start(node) + 1 if node.flow else tree.dash(items[0])
            self._edit(start, items[last].end, "" if node.flow else "[]", steps)
        elif node.flow:
            span = (items[0].start, items[last + 1].start) if first == 0 else (items[first - 1].end, items[last].end)
            self._edit(*span, "", steps)
        elif first == 0:
            self._edit(tree.dash(items[0]), tree.dash(items[last + 1]), "", steps)
        else:
            start = tree.break_before(tree.dash(items[first]))
            self._edit(start, tree.line_end(items[last].end), "", steps)

    # Values

    def _replace(self, steps: list[Step], text: str) -> None:
        step = steps[-1]
        node = step.via or step.node
        if node.tag:
            raise ManifestError(f"line {self.tree.line(node.start)}: the value has the tag {node.tag}")
        if step.via is None and node.anchor:
            start, trail = self.tree.content_start(node), steps
        else:
            start, trail = node.start, steps[:-1]
        if (
            node.text == ""
            and not node.style
            and node.kind == "scalar"
            and self.text[start - 1 : start] not in ":\t "
            and not node.anchor
        ):
            raise ManifestError(f"line {self.tree.line(start)}: a key without a colon")
        if text == "" and self.text[start - 1] == " ":  # it came with a space of its own
            start -= 1
        before = self.text[start - 1 : start]
        if before and text and not before.isspace() and before not in "[{," and not self._is_quoted_key(steps, start):
            text = f" {text}"
        self.edits.append(_Edit(start, node.end, text, node.depth, tuple(trail)))

    def _is_quoted_key(self, steps: list[Step], start: int) -> bool:
        """Whether a value stands right after ``"key":`` of JSON."""
        return len(steps) > 1 and steps[-2].node.flow and self.text[start - 2 : start] == '":'

    def _key(self, key: str, node: Node) -> str:
        plain = not self.tree.is_json and not (node.pairs and node.pairs[0][0].style == '"')
        return key if plain else quoted(key)

    def _flow(self, value: Any) -> str:
        return flow(value, json=self.tree.is_json)

    @cached_property
    def _indents(self) -> tuple[int, int]:
        """How far this document indents mappings in mappings, and lists in mappings."""
        mapping: int | None = None
        listed: int | None = None
        for key, value in self.tree.entries():
            if value.flow or value.kind not in ("map", "list"):
                continue
            if value.kind == "map" and mapping is None:
                mapping = self.tree.column(value.pairs[0][0].start) - self.tree.column(key.start)
            elif value.kind == "list" and listed is None:
                listed = self.tree.column(self.tree.dash(value.items[0])) - self.tree.column(key.start)
        return mapping or 2, 2 if listed is None else listed

    def _entry(self, key: str, value: Any, column: int) -> list[str]:
        head = " " * column + key + ":"
        listed = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
        one_line = _scalar(value) if isinstance(value, str) else flow(value, json=False)
        if not isinstance(value, (list, dict)) or (not listed and len(one_line) <= _ONE_LINE):
            return [f"{head} {one_line}"]
        if isinstance(value, dict):
            return [
                head,
                *[
                    line
                    for name, inner in value.items()
                    for line in self._entry(name, inner, column + self._indents[0])
                ],
            ]
        return [head, *[line for item in value for line in self._item(item, column + self._indents[1])]]

    def _item(self, item: Any, column: int) -> list[str]:
        if not isinstance(item, dict):
            return [" " * column + "- " + (_scalar(item) if isinstance(item, str) else flow(item, json=False))]
        lines = [line for name, inner in item.items() for line in self._entry(name, inner, column + 2)]
        return [" " * column + "- " + lines[0][column + 2 :], *lines[1:]]


class _Text(str):
    """Text of the document itself."""

    __slots__ = ()


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers as spans of neighbours."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _scalar(text: str) -> str:
    if isinstance(text, _Text):
        return text
    if _PLAIN_IN_BLOCK.fullmatch(text) and not _OTHER_TYPES.fullmatch(text):
        return text
    if '"' in text and text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return quoted(text)


def flow(value: Any, *, json: bool) -> str:
    """A value on one line.

    Args:
        value: Texts, numbers, truth values, lists and mappings.
        json: Whether every text has to be quoted.
    """
    if isinstance(value, _Text):
        return value
    if isinstance(value, str):
        plain = not json and _PLAIN_IN_FLOW.fullmatch(value) and not _OTHER_TYPES.fullmatch(value)
        return value if plain else quoted(value)
    if isinstance(value, dict):
        pairs = [f"{quoted(name) if json else name}: {flow(inner, json=json)}" for name, inner in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join([flow(inner, json=json) for inner in value]) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
