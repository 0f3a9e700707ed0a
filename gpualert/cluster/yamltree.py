"""A YAML document as nodes that know where their text is, so that text can be put between them."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.tokens import BlockEntryToken

if TYPE_CHECKING:
    from collections.abc import Iterator

Path: TypeAlias = "tuple[str | int, ...]"
"""Keys and numbers from the document's root."""

MAX_DEPTH = 200
MAX_EXPANDED = 1 << 20
MERGE = "<<"
_NULL = re.compile(r"|~|null|Null|NULL")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PROPERTIES = re.compile(r"(?:[&!][^\s,\[\]{}]*\s*)*")
_COLON = re.compile(r"\s*:")
_BLOCK_HEADER = re.compile(r"(?:[&!]\S*\s+)*[|>](\S*)")
_SAFE_IN_FLOW = re.compile(r"[0-9A-Za-z_./+~-][\w./+~-]*|[0-9][\w:.+-]*", re.ASCII)
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


class ManifestError(Exception):
    """The stream is no YAML, or none that can be edited; the message says where."""


@dataclass(slots=True, eq=False)
class Node:
    """A part of a document.

    Attributes:
        kind: What it is; an ``alias`` stands for its ``target``.
        start: Where its text starts, with anchor and tag.
        end: Where its content ends: before comments and empty lines that follow.
        flow: Whether it is written with brackets or braces.
        depth: How many collections are around it.
        text: A scalar's text; an alias's name.
        style: A scalar's quotes, ``|`` or ``>``; empty for none.
        anchor: Its anchor; empty for none.
        tag: Its tag where one is written.
        items: A list's.
        pairs: A mapping's.
        target: What an alias stands for.
        unended: Whether it ends in a block text that the file's end cuts off.
    """

    kind: Literal["scalar", "list", "map", "alias"]
    start: int
    end: int
    flow: bool
    depth: int
    text: str = ""
    style: str = ""
    anchor: str = ""
    tag: str = ""
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    target: Node | None = None
    unended: bool = False

    def real(self) -> Node:
        """The node itself, or what it is an alias of."""
        return self.target or self

    def own(self, key: str) -> Node | None:
        """The value that a mapping itself has under a key."""
        return next((value for name, value in self.pairs if name.kind == "scalar" and name.text == key), None)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a path.

    Attributes:
        node: Where it leads.
        via: The alias that led there, if one did.
        merged: Whether it came out of a merge key.
    """

    node: Node
    via: Node | None
    merged: bool


def parser() -> Any:
    """The YAML library, set to give positions."""
    return YAML(typ="safe", pure=True)


class Tree:
    """One document.

    Args:
        text: The document, with directives and ``---``.

    Raises:
        ManifestError: It cannot be parsed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.root: Node | None = None
        self.anchors: list[Node] = []
        self.aliases: list[Node] = []
        self._values: dict[int, Any] = {}
        self._written: dict[int, str] = {}
        try:
            self._build()
        except YAMLError as error:
            raise ManifestError(first_line(error)) from None
        self.is_json = self.root is not None and self.root.flow
        breaks = re.search(r"\r\n|\n|\r", text)
        self.newline = breaks[0] if breaks else "\n"

    def _build(self) -> None:
        stack: list[tuple[Node, list[Node]]] = []
        named: dict[str, Node] = {}
        for event in parser().parse(self.text):
            start, end = event.start_mark.index, event.end_mark.index
            if isinstance(event, (MappingEndEvent, SequenceEndEvent)):
                node, children = stack.pop()
                self._close(node, children, end)
                continue
            if isinstance(event, AliasEvent):
                target = named.get(event.anchor)
                if target is None:
                    raise ManifestError(f"there is no anchor {event.anchor} before *{event.anchor}")
                if any(target is node for node, _ in stack):
                    raise ManifestError(f"*{event.anchor} is inside of what it stands for")
                node = Node("alias", start, end, flow=True, depth=len(stack), text=event.anchor, target=target)
                self.aliases.append(node)
            elif isinstance(event, ScalarEvent):
                node = self._scalar(event, len(stack))
            elif isinstance(event, (MappingStartEvent, SequenceStartEvent)):
                kind: Literal["map", "list"] = "map" if isinstance(event, MappingStartEvent) else "list"
                node = Node(kind, start, end, bool(event.flow_style), len(stack))
                node.tag = str(event.tag or "")
            else:
                continue
            if not isinstance(event, AliasEvent) and event.anchor:
                node.anchor = event.anchor
                named[event.anchor] = node
                self.anchors.append(node)
            if stack:
                stack[-1][1].append(node)
            else:
                self.root = node
            if node.kind in ("map", "list"):
                stack.append((node, []))
                if len(stack) > MAX_DEPTH:
                    raise ManifestError(f"nested more than {MAX_DEPTH} deep")

    def _close(self, node: Node, children: list[Node], end: int) -> None:
        if node.kind == "list":
            node.items = children
        else:
            node.pairs = list(zip(children[::2], children[1::2], strict=True))
            for key, value in node.pairs:
                self._place_empty(key, value)
            names = [key.text for key, _ in node.pairs if key.kind == "scalar"]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ManifestError(f"line {self.line(node.start)}: the key {twice} is there twice")
        node.end = end if node.flow else max(child.end for child in children)
        node.unended = not node.flow and children[-1].unended

    def _place_empty(self, key: Node, value: Node) -> None:
        """Put an empty value right after its colon; the library takes it for a part of what follows."""
        if value.kind == "scalar" and value.start == value.end and not value.anchor and not value.tag:
            colon = _COLON.match(self.text, key.end)
            value.start = value.end = colon.end() if colon else key.end

    def _scalar(self, event: Any, depth: int) -> Node:
        start, end = event.start_mark.index, event.end_mark.index
        node = Node("scalar", start, end, flow=True, depth=depth, text=event.value)
        node.style = str(event.style or "")
        node.tag = str(event.tag or "")
        if node.style in ("|", ">"):
            raw = self.text[start:end]
            header = _BLOCK_HEADER.match(raw)
            chomping = header[1] if header else ""
            node.unended = not raw.endswith(("\n", "\r")) and "-" not in chomping
            kept = raw.rstrip("\r\n")
            if "+" in chomping and raw != kept:  # the empty lines are the text's own
                kept = raw[:-2] if raw.endswith("\r\n") else raw[:-1]
            node.end = start + len(kept)
        return node

    def line(self, position: int) -> int:
        """The number of a position's line, from 1."""
        return self.text.count("\n", 0, position) + 1

    def column(self, position: int) -> int:
        """How far from the start of its line a position is."""
        return position - (max(self.text.rfind("\n", 0, position), self.text.rfind("\r", 0, position)) + 1)

    def line_end(self, position: int) -> int:
        """Where the line of a position ends, before its line break."""
        found = re.compile(r"[\r\n]").search(self.text, position)
        return found.start() if found else len(self.text)

    def break_before(self, position: int) -> int:
        """Where the line break before the line of a position starts."""
        start = position - self.column(position)
        return start - (2 if self.text[:start].endswith("\r\n") else 1)

    @cached_property
    def _dashes(self) -> list[int]:
        return [token.start_mark.index for token in parser().scan(self.text) if isinstance(token, BlockEntryToken)]

    def dash(self, item: Node) -> int:
        """Where the ``-`` of an item of a block list is."""
        return self._dashes[bisect_left(self._dashes, item.start) - 1]

    def content_start(self, node: Node) -> int:
        """Where a node starts after anchor and tag."""
        found = _PROPERTIES.match(self.text, node.start, node.end)
        return found.end() if found else node.start

    # What a node is worth

    def value(self, node: Node) -> Any:
        """A node as plain data; aliases and merge keys are followed.

        Numbers, truth values and null are such as YAML 1.2 says, every other text is a text.
        """
        node = node.real()
        if id(node) not in self._values:
            self._values[id(node)] = self._value(node)
        return self._values[id(node)]

    def _value(self, node: Node) -> Any:
        if node.kind == "list":
            return [self.value(item) for item in node.items]
        if node.kind == "map":
            return {name: self.value(found) for name, (found, _) in self.members(node).items()}
        if node.style or node.tag or not node.text.isascii():
            return node.text
        if _NULL.fullmatch(node.text):
            return None
        if _BOOL.fullmatch(node.text):
            return node.text.lower() == "true"
        if _INT.fullmatch(node.text):
            return int(node.text, 10 if node.text.lstrip("+-").isdigit() else 0) if len(node.text) < 40 else node.text
        return float(node.text.replace(".inf", "inf").replace(".nan", "nan")) if _is_float(node.text) else node.text

    def members(self, node: Node) -> dict[str, tuple[Node, bool]]:
        """A mapping's values by key, and whether they come out of a merge key."""
        found: dict[str, tuple[Node, bool]] = {}
        for key, value in node.pairs:
            if key.text != MERGE or key.style:
                found[key.real().text] = (value, False)
        for key, value in node.pairs:
            if key.text == MERGE and not key.style:
                sources = value.real().items if value.real().kind == "list" else [value]
                for source in sources:
                    if source.real().kind == "map":
                        for name, (inherited, _) in self.members(source.real()).items():
                            found.setdefault(name, (inherited, True))
        return found

    def steps(self, path: Path) -> list[Step] | None:
        """The nodes along a path, the root first; None where it leads nowhere."""
        if self.root is None:
            return None
        found = [Step(self.root, None, merged=False)]
        for name in path:
            node, merged = found[-1].node, False
            inner: Node | None = None
            if node.kind == "map" and name == MERGE:
                inner = node.own(MERGE)
            elif node.kind == "map":
                inner, merged = self.members(node).get(str(name), (None, False))
            elif node.kind == "list" and isinstance(name, int) and name < len(node.items):
                inner = node.items[name]
            if inner is None:
                return None
            found.append(Step(inner.real(), inner if inner.kind == "alias" else None, merged))
        return found

    def places(self) -> Iterator[tuple[Path, Node]]:
        """Every alias, and its path."""
        waiting: list[tuple[Path, Node]] = [((), self.root)] if self.root else []
        while waiting:
            path, node = waiting.pop()
            if node.kind == "alias":
                yield path, node
            waiting.extend(((*path, number), item) for number, item in enumerate(node.items))
            waiting.extend(((*path, key.text), value) for key, value in node.pairs)

    def entries(self) -> Iterator[tuple[Node, Node]]:
        """Every key of every mapping with its value, in their order."""
        waiting = [self.root] if self.root else []
        while waiting:
            node = waiting.pop()
            yield from node.pairs
            waiting.extend(reversed([*node.items, *(value for _, value in node.pairs)]))

    def written(self, node: Node) -> str:
        """A node's value on one line, with braces and brackets, as it can stand anywhere in the document.

        Raises:
            ManifestError: It is too long: aliases of aliases.
        """
        node = node.real()
        if id(node) not in self._written:
            text = self._written[id(node)] = self._write(node)
            if len(text) > MAX_EXPANDED:
                raise ManifestError(f"line {self.line(node.start)}: aliases of aliases make more than a megabyte")
        return self._written[id(node)]

    def _write(self, node: Node) -> str:
        if node.kind == "list":
            return "[" + ", ".join([self.written(item) for item in node.items]) + "]"
        if node.kind == "map":
            members = self.members(node).items()
            return "{" + ", ".join([f"{_key(name)}: {self.written(inner)}" for name, (inner, _) in members]) + "}"
        tag = f"{self.text[node.start : self.content_start(node)].split('&')[0].strip()} " if node.tag else ""
        if node.style or node.tag:
            return tag + quoted(node.text)
        if node.text == "":
            return "null"
        return node.text if _SAFE_IN_FLOW.fullmatch(node.text) else quoted(node.text)


def _is_float(text: str) -> bool:
    return _FLOAT.fullmatch(text) is not None and any(character.isdigit() for character in text)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z][\w./-]*", name) else quoted(name)


def quoted(text: str) -> str:
    """A text in double quotes, as JSON and YAML both read it."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


def first_line(error: YAMLError) -> str:
    """What is wrong, in one line."""
    return " ".join(str(error).split())[:200]
