"""Who is missing in a collective: the flight recorder's dumps of all ranks, compared group by group.

A rank that has not entered what the others wait in is the one to look at; the others are its victims. What a dump says
is the job's word: values that do not fit are passed over.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpualert.rundir.clock import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT = 256
"""How many of a group's newest collectives are compared, besides those that have not ended."""
RING = 1000
"""A dump of so many entries may have lost older ones: a group that is not in it may be one of those."""
GROUPS_MAX, FRAMES_MAX, RANKS_MAX, NAME_MAX = 16, 12, 100_000, 120
_WRAPPERS = ("/torch/distributed/", "torch/distributed/c10d_logger.py", "/torch/utils/_contextlib.py")
"""Where the call of a collective always passes: the line above is the job's."""

Group = tuple[str, str]
"""A process group's name and its description."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A collective as one rank has recorded it.

    Attributes:
        seq: Its number within its group.
        name: Which collective (``all_reduce``).
        state: ``scheduled``, ``started`` or ``completed``.
        created_us: When the rank entered it, in microseconds since 1970; 0 where that is not known.
        sizes: Shapes of what goes in, as text.
        frames: Where it was called, the innermost first.
    """

    seq: int
    name: str
    state: str
    created_us: int
    sizes: str
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank has recorded.

    Attributes:
        rank: The rank.
        members: The ranks of each group, where that is told.
        entries: The newest collectives of each group, by number.
        recorded: How many entries the recorder held.
    """

    rank: int
    members: dict[Group, tuple[int, ...]]
    entries: dict[Group, dict[int, Entry]]
    recorded: int = 0

    @classmethod
    def of(cls, rank: int, value: Any) -> Dump:
        """Take over what a dump holds.

        Args:
            rank: Whose it is.
            value: The plain value in the file.

        Raises:
            ValueError: It is no dump of a flight recorder.
        """
        if not isinstance(value, dict) or not isinstance(value.get("entries", []), list) or "version" not in value:
            raise ValueError("it is no dump of a flight recorder")
        members: dict[Group, tuple[int, ...]] = {}
        config = value.get("pg_config")
        for told in list(config.values())[:4096] if isinstance(config, dict) else []:
            if isinstance(told, dict):
                members[_text(told.get("name")), _text(told.get("desc"))] = _ranks(told.get("ranks"))
        entries: dict[Group, dict[int, Entry]] = {}
        for told in value.get("entries", []):
            if not isinstance(told, dict) or told.get("is_p2p") is True:
                continue
            group, seq = _group(told.get("process_group")), told.get("collective_seq_id")
            if group is not None and isinstance(seq, int) and not isinstance(seq, bool) and seq > 0:
                entries.setdefault(group, {})[seq] = _entry(seq, told)
        return cls(
            rank, members, {group: _newest(found) for group, found in entries.items()}, len(value.get("entries", []))
        )


def _newest(entries: dict[int, Entry]) -> dict[int, Entry]:
    ordered = sorted(entries.items())
    open_ones = [item for item in ordered[:-KEPT] if item[1].state != "completed"]
    return dict([*open_ones[:KEPT], *ordered[-KEPT:]])


def _entry(seq: int, told: dict[str, Any]) -> Entry:
    created = told.get("time_created_ns")
    frames = told.get("frames")
    return Entry(
        seq,
        _text(told.get("profiling_name")).rpartition(":")[2] or "collective",
        _text(told.get("state")) or "scheduled",
        created // 1000 if isinstance(created, int) and 0 < created < 1 << 62 else 0,
        str(told.get("input_sizes"))[:NAME_MAX] if isinstance(told.get("input_sizes"), list) else "",
        tuple(_frame(frame) for frame in frames[:64] if isinstance(frame, dict)) if isinstance(frames, list) else (),
    )


def _text(value: Any) -> str:
    return "".join(letter for letter in value[:NAME_MAX] if letter.isprintable()) if isinstance(value, str) else ""


def _frame(told: dict[Any, Any]) -> str:
    path = told.get("filename")
    shown = path[-NAME_MAX:] if isinstance(path, str) else ""
    line = told.get("line")
    return f"{_text(told.get('name'))} ({_text(shown)}:{line if isinstance(line, int) else '?'})"


def _group(told: Any) -> Group | None:
    if isinstance(told, tuple | list) and len(told) >= 2:
        return _text(told[0]), _text(told[1])
    return (told[:NAME_MAX], "") if isinstance(told, str) else None


def _ranks(told: Any) -> tuple[int, ...]:
    try:
        value = json.loads(told[: 8 * RANKS_MAX]) if isinstance(told, str) else told
    except (ValueError, RecursionError):
        return ()
    if not isinstance(value, list | tuple):
        return ()
    return tuple(rank for rank in value[:RANKS_MAX] if isinstance(rank, int) and 0 <= rank < RANKS_MAX)


# -- what they say together --------------------------------------------------------------------------------------------


def findings(dumps: Sequence[Dump]) -> dict[str, Any]:
    """What the dumps of a job's ranks say together.

    Args:
        dumps: One for each rank, as far as there are any.

    Returns:
        ``ranks`` (that have a dump) and ``groups``: for each group in which somebody waits ``group``, ``text`` (one
        sentence), ``collective``, ``seq``, ``lagging`` (ranks to look at), ``waiting``, ``missing`` (members without a
        dump), ``since`` (RFC 3339), ``frames`` (where the lagging rank was last seen) and ``waiting_frames``. Empty
        where there are no dumps.
    """
    if not dumps:
        return {}
    groups = dict.fromkeys(group for dump in dumps for group in dump.entries)
    told = [found for group in groups if (found := _compare(group, dumps)) is not None]
    told.sort(key=lambda found: (not found["lagging"], found["since"] or "~"))
    return {"ranks": sorted(dump.rank for dump in dumps), "groups": told[:GROUPS_MAX]}


def _compare(group: Group, dumps: Sequence[Dump]) -> dict[str, Any] | None:
    """What a group waits for; None where nobody waits."""
    members = next((dump.members[group] for dump in dumps if dump.members.get(group)), ())
    told = {
        dump.rank: dump.entries.get(group, {})
        for dump in dumps
        if group in dump.entries or (dump.rank in members and dump.recorded < RING)
    }
    pending = {
        rank: min((entry.seq for entry in entries.values() if entry.state != "completed"), default=None)
        for rank, entries in told.items()
    }
    waited = [seq for seq in pending.values() if seq is not None]
    if not waited:
        return None
    seq = min(waited)
    inside = {rank: entries[seq] for rank, entries in told.items() if seq in entries}
    late = sorted(rank for rank, entries in told.items() if max(entries, default=0) < seq)
    waiting = sorted(rank for rank, entry in inside.items() if entry.state != "completed")
    missing = sorted(set(members) - told.keys())
    name = Counter(inside[rank].name for rank in waiting).most_common(1)[0][0]
    other = sorted(rank for rank, entry in inside.items() if entry.name != name)
    lagging = late or other
    created = [inside[rank].created_us for rank in waiting if inside[rank].created_us]
    since = seconds(max(created)) if created else None
    what = f"{name} #{seq} (group {group[1] or group[0] or '?'})"
    if late:
        text = f"{_named(late)} never entered {what}"
    elif other:
        calls = Counter(inside[rank].name for rank in other).most_common(1)[0][0]
        text = f"{_named(other)} {'calls' if len(other) == 1 else 'call'} {calls} where the others call {what}"
    elif missing:
        text = f"{_named(missing)} left no recording; the others are in {what}"
    else:
        text = f"all ranks have entered {what}, and it does not end: a GPU, or what connects them"
    if lagging and waiting:
        text += f"; {_named(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for it"
    if since:
        text += f" since {since}"
    return {
        "group": group[1] or group[0],
        "text": text,
        "collective": name,
        "seq": seq,
        "lagging": lagging[:256],
        "waiting": waiting[:256],
        "missing": missing[:256],
        "since": since,
        "frames": _last_frames(told[lagging[0]]) if lagging else [],
        "waiting_frames": _outside(inside[waiting[0]].frames),
    }


def _last_frames(entries: dict[int, Entry]) -> list[str]:
    return _outside(entries[max(entries)].frames) if entries else []


def _outside(frames: tuple[str, ...]) -> list[str]:
    """Where the job called the collective, without PyTorch's own wrappers around it."""
    own = [frame for frame in frames if not any(wrapper in frame for wrapper in _WRAPPERS)]
    return list((own or list(frames))[:FRAMES_MAX])


def _named(ranks: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:8])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{', ...' if len(runs) > 8 else ''}"
