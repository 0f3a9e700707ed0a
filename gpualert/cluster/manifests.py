"""A stream of manifests: read, changed document by document, and written so that the rest stays as it was."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

if TYPE_CHECKING:
    from collections.abc import Callable

_SEPARATOR = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)
_INDENTED_LIST = re.compile(r"^( *)[^\s#-][^\n]*:[ \t]*(?:#[^\n]*)?\n(?: *#[^\n]*\n)*( *)- ", re.MULTILINE)


class ManifestError(Exception):
    """The stream is no YAML; the message says where."""


def rewrite(text: str, change: Callable[[Any], bool]) -> str:
    """Change the documents of a stream.

    Args:
        text: Documents of YAML or JSON, with ``---`` between them.
        change: Changes a document in place; returns whether it has.

    Returns:
        The stream; documents that were not changed are in it byte for byte.

    Raises:
        ManifestError: A document cannot be parsed.
    """
    pieces: list[str] = []
    start = 0
    borders = [(found.start(), found.end()) for found in _SEPARATOR.finditer(text)] + [(len(text), len(text))]
    for number, (begin, end) in enumerate(borders):
        pieces.append(_one(text[start:begin], change, number + 1))
        pieces.append(text[begin:end])
        start = end
    return "".join(pieces)


def _one(text: str, change: Callable[[Any], bool], number: int) -> str:
    if not text.strip():
        return text
    yaml = _yaml(text)
    try:
        document = yaml.load(text)
        changed = document is not None and change(document)
    except YAMLError as error:
        first = " ".join(str(error).split())[:200]
        raise ManifestError(f"document {number} is no YAML: {first}") from None
    if not changed:
        return text
    written = io.StringIO()
    yaml.dump(document, written)
    lead = "\n" if text.startswith("\n") else ""
    return lead + written.getvalue().lstrip("\n") if text.endswith("\n") else lead + written.getvalue().strip("\n")


def _yaml(text: str) -> Any:
    """The library, set to write as the document is written: its quotes, its comments, its indentation of lists."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 1 << 20
    found = _INDENTED_LIST.search(text)
    if found is not None and len(found[2]) > len(found[1]):
        offset = len(found[2]) - len(found[1])
        yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    return yaml
