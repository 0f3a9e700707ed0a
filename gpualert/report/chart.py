"""The timeline drawn: shapes for the page's inline SVG, and a line of block characters for mails and terminals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpualert.report import wording

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, LEFT, RIGHT = 960, 8, 8
LANE, SMALL, GAP, TOP, BOTTOM = 64, 28, 30, 26, 24
BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_COLUMNS = 60
MAIL_LANES = 6
_WORTH = (
    "output", "GPU utilisation", "host memory", "GPU memory", "training steps", "memory pressure", "shared memory",
    "GPU power",
)  # fmt: skip
"""Which lanes go before others where there is room for few."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One curve with its scale.

    Attributes:
        name: What it shows.
        top: The y of its upper edge.
        bottom: The y of its lower edge.
        area: The SVG path of the area under the curve.
        line: The SVG path of the curve.
        band: The SVG path of the area between the lowest and the highest of several; empty where it is one alone.
        limit_y: The y of the limit's line; None where there is none.
        said: Its mean or its highest value, in words.
    """

    name: str
    top: float
    bottom: float
    area: str
    line: str
    band: str
    limit_y: float | None
    said: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment.

    Attributes:
        x: Where it is.
        kind: ``signal``, ``cause`` or another of the timeline's.
        label: What happened, and when after the start.
        anchor: On which side of the line the label stands (``start`` or ``end``).
        row: Which of the label's rows, so that neighbours do not overlap.
        to_x: Where it ended, when it lasted; None for a moment.
    """

    x: float
    kind: str
    label: str
    anchor: str
    row: int
    to_x: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything a template needs to draw the timeline.

    Attributes:
        width: Of the drawing.
        height: Of the drawing.
        top: Where the first lane's headline may begin.
        lanes: The curves, each below the other on one time axis.
        marks: The moments, across all curves.
        ticks: Positions and words of the time axis.
        words: The same for those who cannot see it.
        own: The curve of each GPU alone, smaller, in a drawing of its own; empty where there is one GPU or none.
        own_height: Of that drawing.
    """

    width: int
    height: int
    top: int
    lanes: list[Lane]
    marks: list[Mark]
    ticks: list[tuple[float, str, str]]
    words: str
    own: list[Lane]
    own_height: int


def draw(timeline: dict[str, Any] | None) -> Chart | None:
    """The timeline as shapes; None where there is nothing to draw.

    Args:
        timeline: The report's ``timeline``.
    """
    if not timeline or not timeline["lanes"]:
        return None
    duration = timeline["duration_s"]

    def x(at: float) -> float:
        return float(round(LEFT + (WIDTH - LEFT - RIGHT) * at / duration, 1))

    marks = _marks(timeline["marks"], x)
    top = TOP + 14 * max((mark.row for mark in marks), default=-1)
    lanes = [
        _lane(lane, top + 20 + number * (LANE + GAP), x, duration) for number, lane in enumerate(timeline["lanes"])
    ]
    height = round(lanes[-1].bottom + BOTTOM)
    steps = ((0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1, "end"))
    ticks = [(x(duration * part), anchor, wording.duration(duration * part) if part else "0") for part, anchor in steps]
    words = "; ".join(f"{lane.name} {lane.said}" for lane in lanes)
    own = [
        _lane(lane, 18 + number * (SMALL + 20), x, duration, SMALL)
        for number, lane in enumerate(timeline.get("gpus") or [])
    ]
    told = f"Over {wording.duration(duration)}: {words}"
    return Chart(WIDTH, height, top, lanes, marks, ticks, told, own, round(own[-1].bottom + 6) if own else 0)


def scale_of(lane: dict[str, Any]) -> float:
    """The value at the upper edge of a lane.

    Args:
        lane: A lane of the report's ``timeline``.
    """
    band = [row[2] for row in lane.get("band") or []]
    values = [value for _, value in lane["points"]]
    return float(max([*values, *band, lane["limit"] or 0, 100 if lane["unit"] == "%" else 0]) or 1)


def said(lane: dict[str, Any]) -> str:
    """What a lane shows, in words: ``71 % on average``, or ``up to 63.8 GiB of 64.0 GiB``.

    Args:
        lane: A lane of the report's ``timeline``.
    """
    values = [value for _, value in lane["points"]]
    if lane["unit"] == "%":
        return f"{sum(values) / len(values):.0f} % on average"
    high = max([*values, *(row[2] for row in lane.get("band") or [])])
    limit = f" of {amount(lane['limit'], lane['unit'])}" if lane["limit"] else ""
    return f"up to {amount(high, lane['unit'])}{limit}"


def _lane(lane: dict[str, Any], top: float, x: Callable[[float], float], duration: float, height: float = LANE) -> Lane:
    points, limit, scale = lane["points"], lane["limit"], scale_of(lane)
    bottom = top + height

    def y(value: float) -> float:
        return float(round(bottom - height * min(value / scale, 1.0), 1))

    if lane["unit"].endswith("/s"):  # a rate holds until the next point
        ends = [at for at, _ in points[1:]] + [duration]
        corners = [
            corner for (at, v), end in zip(points, ends, strict=True) for corner in ((x(at), y(v)), (x(end), y(v)))
        ]
    else:
        corners = [(x(at), y(value)) for at, value in points]
    line = "M" + " L".join(f"{a},{b}" for a, b in corners)
    area = f"{line} L{corners[-1][0]},{bottom} L{corners[0][0]},{bottom} Z"
    rows = lane.get("band") or []
    edge = [(x(at), y(high)) for at, _, high in rows] + [(x(at), y(low)) for at, low, _ in reversed(rows)]
    band = "M" + " L".join(f"{a},{b}" for a, b in edge) + " Z" if edge else ""
    return Lane(lane["name"], top, bottom, area, line, band, y(limit) if limit else None, said(lane))


def _marks(marks: list[dict[str, Any]], x: Callable[[float], float]) -> list[Mark]:
    drawn: list[Mark] = []
    free_from: list[float] = []
    for mark in marks:
        at = x(mark["at_s"])
        label = f"{mark['label']} at {wording.duration(mark['at_s'])}"
        room = 6.6 * len(label) + 12  # at a font size of 12
        anchor = "end" if at + room > WIDTH else "start"
        left = at - room if anchor == "end" else at
        row = next((number for number, free in enumerate(free_from) if free <= left), len(free_from))
        if row == len(free_from):
            free_from.append(0.0)
        free_from[row] = left + room
        to = x(mark["to_s"]) if mark.get("to_s") is not None else None
        drawn.append(Mark(at, mark["kind"], label, anchor, row, to))
    return drawn


def amount(value: float, unit: str) -> str:
    """A value with its unit, in words."""
    if unit.startswith("bytes"):
        return wording.size(value) + unit[len("bytes") :]
    return f"{value:.3g} {unit}" if value < 100 and unit.endswith("/s") else f"{value:.0f} {unit}"


def telling(timeline: dict[str, Any] | None, count: int = MAIL_LANES) -> list[dict[str, Any]]:
    """The lanes that tell the most, in their order.

    Args:
        timeline: The report's ``timeline``.
        count: How many at most.
    """
    lanes = (timeline or {}).get("lanes") or []
    ranked = sorted(lanes, key=lambda lane: _WORTH.index(lane["name"]) if lane["name"] in _WORTH else len(_WORTH))
    return [lane for lane in lanes if any(lane is kept for kept in ranked[:count])]


def spark(lane: dict[str, Any], duration: float, columns: int = SPARK_COLUMNS) -> str:
    """A lane as a line of block characters, which every mail program and terminal can show.

    Args:
        lane: A lane of the report's ``timeline``.
        duration: The run's, in seconds.
        columns: How many characters.
    """
    values: list[float | None] = [None] * columns
    for at, value in lane["points"]:
        column = min(int(at / duration * columns), columns - 1)
        known = values[column]
        values[column] = value if known is None else max(known, value)
    scale = max([lane["limit"] or 0, 100 if lane["unit"] == "%" else 0, *(v for v in values if v is not None)]) or 1
    last, drawn = 0.0, []
    for value in values:
        last = last if value is None else value
        level = min(math.ceil(len(BLOCKS) * last / scale), len(BLOCKS))
        drawn.append(BLOCKS[level - 1] if level > 0 else " ")
    return "".join(drawn)
