"""The confusions of a classifier as a picture: one square for each pair of true and found class."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

CELL, LABELS, TOP = 16, 150, 150


def confusion(pairs: Sequence[tuple[str, str]], title: str) -> str:
    """An SVG of the confusion matrix: rows are true classes, columns found ones, each row's shade its share.

    Args:
        pairs: True and found class of each log.
        title: What stands above it.
    """
    counts = Counter(pairs)
    names = sorted({name for pair in pairs for name in pair})
    total = Counter(truth for truth, _ in pairs)
    width, height = LABELS + CELL * len(names) + 10, TOP + CELL * len(names) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="#fff"/><text x="4" y="14" font-size="12">{escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        place = CELL * number + 12
        parts.append(f'<text x="{LABELS - 4}" y="{TOP + place}" text-anchor="end">{escape(name)}</text>')
        x = LABELS + place - 2
        parts.append(f'<text transform="translate({x},{TOP - 4}) rotate(-60)">{escape(name)}</text>')
    for row, truth in enumerate(names):
        for column, found in enumerate(names):
            share = counts[(truth, found)] / total[truth] if total[truth] else 0.0
            colour = "27,110,60" if truth == found else "179,38,30"
            parts.append(
                f'<rect x="{LABELS + CELL * column}" y="{TOP + CELL * row}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="rgba({colour},{share:.2f})" stroke="#ddd" stroke-width="0.5">'
                f"<title>{escape(truth)} taken for {escape(found)}: {counts[(truth, found)]}</title></rect>"
            )
    return "\n".join([*parts, "</svg>", ""])
