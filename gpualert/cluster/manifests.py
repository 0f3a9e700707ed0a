"""A stream of manifests: taken apart at its documents, so that each can be edited and the rest stays byte for byte."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent, DocumentEndEvent, DocumentStartEvent

from gpualert.cluster.yamltree import MAX_DEPTH, ManifestError, first_line, parser

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ManifestError", "rewrite"]

# Without one of these there is no workload: most of what a chart renders need not be looked at closely.
_WORDS = ("containers", "entrypoint", "TrainJob")


def rewrite(text: str, change: Callable[[str], str]) -> str:
    """Change the documents of a stream.

    Args:
        text: Documents of YAML or JSON, with ``---`` between them.
        change: Gives a document's new text; gets it with its directives, ``---`` and comments.

    Returns:
        The stream; what is no workload is in it byte for byte.

    Raises:
        ManifestError: A document cannot be parsed.
    """
    borders = [*_borders(text), len(text)]
    pieces = [text[: borders[0]]]
    for number, (begin, end) in enumerate(pairwise(borders)):
        piece = text[begin:end]
        try:
            pieces.append(change(piece) if any(word in piece for word in _WORDS) else piece)
        except ManifestError as error:
            raise ManifestError(f"document {number + 1}: {error}") from None
    return "".join(pieces)


def _borders(text: str) -> list[int]:
    """Where documents start; comments before the first belong to it."""
    found: list[int] = []
    depth, ended = 0, None
    try:
        for event in parser().parse(text):
            if isinstance(event, DocumentStartEvent):
                # Directives come before where a document starts, but only after a line that ends the one before.
                found.append((event.start_mark.index if ended is None else ended) if found else 0)
            elif isinstance(event, DocumentEndEvent):
                ended = event.end_mark.index if event.explicit else None
            elif isinstance(event, CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    raise ManifestError(f"document {len(found)} is nested more than {MAX_DEPTH} deep")
            elif isinstance(event, CollectionEndEvent):
                depth -= 1
    except YAMLError as error:
        raise ManifestError(f"document {max(len(found), 1)} is no YAML: {first_line(error)}") from None
    return found
