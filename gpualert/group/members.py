"""The members of a group: what the ranks of a job have written into the directory that they share."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpualert.group import hardware
from gpualert.incident.model import Finding, Rank
from gpualert.report import building, making, recall
from gpualert.report.timeline import seconds_of
from gpualert.rundir import regular, shapes, survivor
from gpualert.rundir.reader import Run
from gpualert.rundir.writer import replace_file
from gpualert.supervisor.membership import name_of

if TYPE_CHECKING:
    from gpualert.diagnosis import Rulebook
    from gpualert.incident.model import MachineFact
    from gpualert.supervisor.redaction import Redaction

STALE_S = 30.0
"""A rank touches its file every 5 s; after this long without, it is gone."""
GATHERING_S = 30.0
"""How long the ranks of a job may take to start."""
MAX_JSON = 4 << 20
TAIL = 20


@dataclass(frozen=True, slots=True)
class Member:
    """One rank in a group's directory.

    Attributes:
        rank: Its number.
        registered: What it wrote when it came.
        quiet_s: How long ago it gave its last sign of life, in seconds by the file server's clock.
        ended: How it ended; None while it has not.
        reported: What its reporter made of that; None before.
        skew_s: How far its clock is ahead of the file server's, in seconds.
    """

    rank: int
    registered: dict[str, Any]
    quiet_s: float
    ended: dict[str, Any] | None = None
    reported: dict[str, Any] | None = None
    skew_s: float = 0.0

    @property
    def lives(self) -> bool:
        """Whether it runs, as far as anybody can see."""
        return self.ended is None and self.quiet_s < STALE_S

    @property
    def at_work(self) -> bool:
        """Whether its own reporter is still to come, and will look at the group then."""
        failed = self.ended is not None and self.ended.get("exit_code") != 0
        return failed and self.reported is None and self.quiet_s < STALE_S


@dataclass(frozen=True, slots=True)
class Members:
    """A group as it stands.

    Attributes:
        directory: Where it is.
        listed: Its members by rank.
        age_s: How long it is there, in seconds.
        troubles: What could not be read.
    """

    directory: str
    listed: tuple[Member, ...]
    age_s: float
    troubles: tuple[str, ...] = field(default=())

    @property
    def expected(self) -> int | None:
        """How many ranks there should be."""
        sizes = [member.registered.get("world_size") for member in self.listed]
        return max((size for size in sizes if isinstance(size, int)), default=None)

    @property
    def gathering(self) -> bool:
        """Whether ranks may still be on their way: some are missing, and the first came a moment ago."""
        return len(self.listed) < (self.expected or 0) and self.age_s < GATHERING_S

    @property
    def failed(self) -> bool:
        """Whether a member has failed, or is gone without having ended."""
        return any(
            (member.ended is not None and member.ended.get("exit_code") != 0)
            or (member.ended is None and not member.lives)
            for member in self.listed
        )


def read(directory: str) -> Members:
    """Read a group.

    Args:
        directory: The group's directory of one attempt.

    Raises:
        OSError: It cannot be listed.
    """
    now, members, troubles = survivor.server_now(directory), [], []
    for name in sorted(os.listdir(directory)):
        if not name.startswith("rank-") or not name.endswith(".json"):
            continue
        base = os.path.join(directory, name[: -len(".json")])
        registered = _json(base + ".json")
        rank = registered.get("rank") if registered else None
        if registered is None or not isinstance(rank, int):
            troubles.append(f"{base}.json cannot be read")
            continue
        ended = _json(base + ".end")
        at = seconds_of((ended or registered).get("at"))
        written = _mtime(base + (".end" if ended else ".json"))
        # Written in the same moment by the two clocks; a beat that came later says nothing of ours.
        skew = at - written if ended is not None and at is not None and written is not None else 0.0
        heard = max((t for t in (_mtime(base + ".json"), _mtime(base + ".end")) if t is not None), default=now)
        members.append(Member(rank, registered, max(now - heard, 0.0), ended, _json(base + ".report"), skew))
    starts = [at for member in members if (at := seconds_of(member.registered.get("at"))) is not None]
    age = max(now - min(starts), 0.0) if starts else GATHERING_S
    return Members(directory, tuple(sorted(members, key=lambda member: member.rank)), age, tuple(troubles))


def _mtime(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _json(path: str) -> dict[str, Any] | None:
    try:
        data = regular.content(path, MAX_JSON)
        value = shapes.loads((data or b"").decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def note(directory: str, report: dict[str, Any]) -> None:
    """Let the group know what a rank's report says.

    Args:
        directory: The group's directory.
        report: The rank's report.

    Raises:
        OSError: It cannot be written.
    """
    quotes = report["quotes"]
    told = {
        "diagnosis": report["diagnosis"],
        "progress": report.get("progress"),
        "broke_at": (report.get("timeline") or {}).get("cause_at"),
        "last_output_at": report["exit"].get("last_output_at"),
        "hardware": report.get("hardware", []),
        "cost": report.get("cost"),
        "quotes": {**quotes, "tail": quotes["tail"][-TAIL:]},
    }
    path = os.path.join(directory, name_of(int(report["run"]["rank"])) + ".report")
    replace_file(path, json.dumps(told, ensure_ascii=False).encode("utf-8", "replace"), durable=False)


def rank_of(member: Member) -> Rank:
    """What a verdict over ranks wants to know of a member.

    Args:
        member: The member; of one that is gone, its run directory tells more where it can be read from here.
    """
    run, end = member.registered, member.ended or {}
    reported = member.reported or {}
    found = Rank(
        f"{run.get('host') or '?'}:{run.get('pid') or '?'}",
        member.rank,
        _text(run.get("node")) or _text(run.get("host")),
        "running",
        started_at=seconds_of(run.get("started_at")),
        skew_s=member.skew_s if abs(member.skew_s) > 1 else 0.0,
        log=_text(run.get("directory")),
        run_id=_text(run.get("run_id")),
        gpus=run.get("gpus") if isinstance(run.get("gpus"), int) else None,
        cost=shapes.cost_of(reported),
    )
    if member.ended is None:
        return found if member.lives else _gone(found)
    finding = Finding.of(reported.get("diagnosis"))
    code, signal = end.get("exit_code"), end.get("signal")
    return replace(
        found,
        state="succeeded" if code == 0 else "failed",
        finding=finding or (Finding("success", "success") if code == 0 else None),
        exit_code=code if isinstance(code, int) else None,
        signal=signal if isinstance(signal, int) else None,
        broke_at=seconds_of(reported.get("broke_at")),
        last_output_at=seconds_of(end.get("last_output_at")),
        ended_at=seconds_of(end.get("ended_at")),
    )


def hardware_of(group: Members, rules: Rulebook) -> tuple[MachineFact, ...]:
    """What the drivers of the ranks' nodes told of broken hardware.

    Args:
        group: The group.
        rules: Classes and rules.
    """
    heard = (
        hardware.Heard.of(
            member.rank,
            member.registered,
            member.reported,
            member.registered.get("directory"),
            rules,
            member.skew_s if abs(member.skew_s) > 1 else 0.0,
        )
        for member in group.listed
    )
    return hardware.facts(heard, rules)


def _gone(rank: Rank) -> Rank:
    """A rank whose supervisor died with it: its run directory may hold the last memory sample and output."""
    if rank.log is not None and os.path.isfile(os.path.join(rank.log, "run.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            run = Run.read(rank.log)
            if run.run_id == rank.run_id and not survivor.is_alive(run):
                closed = run if run.exit is not None else survivor.as_interrupted(run)
                diagnosis, _ = building.diagnosed(closed, [], recall.recalling(making.redaction(), run.path)[0])
                end = closed.exit or {}
                return replace(
                    rank,
                    state="failed",
                    finding=Finding.from_diagnosis(diagnosis),
                    last_output_at=seconds_of(end.get("last_output_at")),
                    ended_at=seconds_of(end.get("ended_at")),
                )
    return replace(rank, state="gone")


def quotes_of(member: Member, mask: Redaction) -> dict[str, Any] | None:
    """What is quoted from a member's log, masked once more."""
    quotes = (member.reported or {}).get("quotes")
    if not isinstance(quotes, dict) or not all(
        isinstance(quotes.get(k), list) for k in ("context", "traceback", "tail")
    ):
        return None
    found = building.masked(quotes, mask)
    assert isinstance(found, dict)  # noqa: S101  (mypy: a dict stays one)
    return found


def _text(value: Any) -> str | None:
    return str(value) if value else None
