"""Finding the ranks of jobs in a directory, whatever kept their logs: gpualert, torchrun, or one file for each rank.

Sources: PyTorch "torchrun" (``--log-dir``: ``<run id>/attempt_<n>/<local rank>/stdout.log``, ``stderr.log`` and
``error.json``, the file of TORCHELASTIC_ERROR_FILE); what schedulers' file name patterns make (``slurm-%j_%t.out``,
``log.3``, ``rank_3.txt``, ``worker-3.log``).
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import Facts, diagnose, excerpt
from gpualert.group import hardware, members, together
from gpualert.incident.model import Finding, MachineFact, Rank
from gpualert.report import building, incident, making, recall
from gpualert.report.timeline import seconds_of
from gpualert.rundir import shapes, survivor
from gpualert.rundir.reader import Run, run_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpualert.diagnosis.rulebook import Rulebook
    from gpualert.supervisor.redaction import Redaction

_ATTEMPT = re.compile(r"attempt_(\d+)$")
_RANK_FILE = re.compile(r"^(?P<stem>.*?)(?P<rank>\d{1,5})(?P<end>(?:\.(?:log|txt|out|err|stderr|stdout))*)$")
_STREAMS = ("stdout.log", "stderr.log")
ERROR_FILE = "error.json"
MAX_ERROR_BYTES = 1 << 20
MAX_FILES = 20_000
TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Found:
    """One attempt of one job.

    Attributes:
        job: Whose it is.
        ranks: What is known of its ranks.
        expected: How many there should be; None where nothing tells.
        logs: Where the log of each rank is, by the rank's name.
        troubles: What could not be read.
        facts: What was seen of its machines.
    """

    job: incident.Job
    ranks: tuple[Rank, ...]
    expected: int | None = None
    logs: dict[str, str] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()
    facts: tuple[MachineFact, ...] = ()


def find(directory: str, rules: Rulebook) -> list[Found]:
    """All jobs of which a directory holds something.

    Args:
        directory: A group directory, a log directory of ``gpualert run``, a ``--log-dir`` of torchrun, or one with a
            log file for each rank.
        rules: Classes and rules.

    Raises:
        OSError: It cannot be listed.
    """
    found = [*_groups(directory, rules), *_run_directories(directory, rules), *_torchrun(directory, rules)]
    return found or list(_files(directory, rules))


# -- gpualert's own ----------------------------------------------------------------------------------------------------


def shared(directory: str) -> list[str]:
    """The directories below one that ranks share, one for each attempt of a job.

    Args:
        directory: The directory of ``--group-dir``, or one below it.

    Raises:
        OSError: It cannot be listed.
    """

    def has_ranks(path: str) -> bool:
        return any(name.startswith("rank-") and name.endswith(".json") for name in _names(path))

    return [path for path in _directories(directory, depth=2) if has_ranks(path)]


def _groups(directory: str, rules: Rulebook) -> Iterator[Found]:
    for path in shared(directory):
        group = members.read(path)
        if group.listed:
            ranks = tuple(members.rank_of(member) for member in group.listed)
            logs = {rank.name: os.path.join(rank.log, "output.log") for rank in ranks if rank.log}
            seen = members.hardware_of(group, rules)
            yield Found(together.job_of(group), ranks, group.expected, logs, group.troubles, seen)


def _run_directories(directory: str, rules: Rulebook) -> Iterator[Found]:
    jobs: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for name in run_ids(directory):
        run = Run.read(os.path.join(directory, name))
        if isinstance(run.facts.get("rank"), int):
            jobs[_job_key(run)].append(run)
    for runs in jobs.values():
        newest: dict[int, Run] = {}
        for run in sorted(runs, key=lambda run: run.run_id):
            newest[run.facts["rank"]] = run  # of a rank that was started again the last one counts
        first = min(newest.values(), key=lambda run: run.run_id)
        ranks = tuple(rank_of_run(run) for run in newest.values())
        sizes = [run.facts.get("world_size") for run in newest.values()]
        job = incident.Job(
            first.run_id,
            str(first.facts.get("job") or first.facts.get("name") or first.run_id),
            str(first.facts.get("launcher") or "") or None,
            str(first.facts["namespace"]) if first.facts.get("namespace") else None,
            first.facts["attempt"] if isinstance(first.facts.get("attempt"), int) else 0,
            directory,
        )
        expected = max((size for size in sizes if isinstance(size, int)), default=None)
        logs = {rank.name: os.path.join(rank.log or "", "output.log") for rank in ranks}
        heard = [hardware.Heard.of(n, run.facts, run.report, run.path, rules) for n, run in newest.items()]
        yield Found(job, ranks, expected, logs, facts=hardware.facts(heard, rules))


def _job_key(run: Run) -> tuple[str, ...]:
    facts = run.facts
    names = ("group", "namespace", "job", "slurm_job_id", "name", "attempt", "world_size")
    return tuple(str(facts.get(name)) for name in names)


def rank_of_run(run: Run) -> Rank:
    """What a verdict over ranks wants to know of a run.

    Args:
        run: The run.
    """
    facts = run.facts
    lives = run.exit is None and survivor.is_alive(run)
    if run.exit is None and not lives:
        run = survivor.as_interrupted(run)
    end, report = run.exit or {}, run.report
    finding = None
    if not lives:
        finding = Finding.of(report["diagnosis"]) if report else None
        if finding is None:
            mask, _ = recall.recalling(making.redaction(), run.path)
            finding = Finding.from_diagnosis(building.diagnosed(run, [], mask)[0])
    code, signal = end.get("exit_code"), end.get("signal")
    return Rank(
        str(facts.get("pod") or run.run_id),
        facts.get("rank"),
        str(facts.get("node") or facts.get("host") or "") or None,
        "running" if lives else "succeeded" if code == 0 else "failed",
        finding,
        code if isinstance(code, int) else None,
        signal if isinstance(signal, int) else None,
        seconds_of(facts.get("started_at")),
        seconds_of(((report or {}).get("timeline") or {}).get("cause_at")),
        seconds_of(end.get("last_output_at")),
        seconds_of(end.get("ended_at")),
        log=run.path,
        run_id=run.run_id,
        gpus=facts.get("gpus") if isinstance(facts.get("gpus"), int) else None,
        cost=shapes.cost_of(report or {}),
    )


# -- torchrun ----------------------------------------------------------------------------------------------------------


def _torchrun(directory: str, rules: Rulebook) -> Iterator[Found]:
    for path in _directories(directory, depth=3):
        attempt = _ATTEMPT.search(path)
        if attempt is None:
            continue
        ranks, logs, troubles = [], {}, []
        for name in _names(path):
            place = os.path.join(path, name)
            if not name.isdigit() or not os.path.isdir(place):
                continue
            files = [os.path.join(place, stream) for stream in _STREAMS if os.path.isfile(os.path.join(place, stream))]
            error = _error_file(os.path.join(place, ERROR_FILE))
            if not files and error is None:
                continue
            try:
                ranks.append(_of_files(int(name), files, rules, error))
            except OSError as problem:
                troubles.append(f"{place}: {problem.strerror}")
            if files:
                logs[ranks[-1].name] = files[-1]
        if ranks:
            name = os.path.basename(os.path.dirname(path))
            job = incident.Job(f"{name}-{attempt[1]}", name, "torchrun", None, int(attempt[1]), path)
            yield Found(job, tuple(ranks), None, logs, tuple(troubles))


def _error_file(path: str) -> tuple[str, float | None] | None:
    """The text of the exception that a rank recorded, and when; None where it recorded none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            told: Any = json.loads(file.read(MAX_ERROR_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    message = told.get("message") if isinstance(told, dict) else None
    if isinstance(message, str):
        return message, None
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stamp = str(extra.get("timestamp") or "")
    text = str(extra.get("py_callstack") or "") + "\n" + str(message.get("message") or "")
    return text, float(stamp) if stamp.isdigit() else None


# -- one file for each rank --------------------------------------------------------------------------------------------


def _files(directory: str, rules: Rulebook) -> Iterator[Found]:
    stems: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for name in _names(directory):
        path = os.path.join(directory, name)
        matched = _RANK_FILE.match(name)
        if matched and os.path.isfile(path):
            stems[matched["stem"], matched["end"]][int(matched["rank"])] = path
    for (stem, end), files in sorted(stems.items()):
        if len(files) < 2:
            continue
        name = stem.rstrip("._- ") or os.path.basename(os.path.abspath(directory))
        ranks, logs, troubles = [], {}, []
        for number, path in sorted(files.items()):
            try:
                rank = _of_files(number, [path], rules, None)
            except OSError as problem:
                troubles.append(f"{path}: {problem.strerror}")
                continue
            ranks.append(rank)
            logs[rank.name] = path
        yield Found(
            incident.Job(f"{stem}*{end}", name, None, None, 0, directory), tuple(ranks), None, logs, tuple(troubles)
        )


def _of_files(number: int, files: list[str], rules: Rulebook, error: tuple[str, float | None] | None) -> Rank:
    """A rank by its logs alone: what its exit status was nobody knows, only whether the logs show a failure."""
    best, last = None, None
    for path in files:
        finding = Finding.from_diagnosis(diagnose(path, Facts(rank=number), rules=rules))
        last = max(last or 0.0, os.stat(path).st_mtime)
        if best is None or (finding.confidence, finding.cls != "unknown") > (best.confidence, best.cls != "unknown"):
            best = finding
    if error is not None:
        text, at = error
        told = Finding.from_diagnosis(diagnose(text.encode("utf-8", "replace"), Facts(1, rank=number), rules=rules))
        best = told if best is None or best.cls == "unknown" or told.confidence >= best.confidence else best
        return Rank(f"rank {number}", number, None, "failed", best, broke_at=at, last_output_at=last, ended_at=last)
    silent = best is None or best.cls == "unknown"
    return Rank(
        _name(files[-1]),
        number,
        None,
        "running" if silent else "failed",
        None if silent else best,
        last_output_at=last,
        log=files[-1],
    )


def _name(path: str) -> str:
    """A log's name; of one that torchrun named like all others, with its directory's."""
    name = os.path.basename(path)
    return os.path.join(os.path.basename(os.path.dirname(path)), name) if name in _STREAMS else name


def quotes(found: Found, rank: Rank, mask: Redaction) -> dict[str, Any] | None:
    """What is quoted from a rank's log.

    Args:
        found: The job.
        rank: The rank.
        mask: Masks secrets.
    """
    path = found.logs.get(rank.name)
    if path is None:
        return None
    try:
        tail = excerpt.tail(path, TAIL_LINES)
    except OSError:
        return None
    return {"context": [], "traceback": [], "tail": [mask.mask(line) for line in tail]}


# -- directories -------------------------------------------------------------------------------------------------------


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))[:MAX_FILES]
    except OSError:
        return []


def _directories(directory: str, depth: int) -> Iterable[str]:
    """A directory and those below it, down to a depth; hidden ones and what has been put aside left out."""
    yield directory
    if depth == 0:
        return
    with os.scandir(directory) as entries:
        below = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and _wanted(entry.name))
    for path in below:
        try:
            yield from _directories(path, depth - 1)
        except OSError:
            continue


def _wanted(name: str) -> bool:
    base, _, aside = name.partition(".")
    return not name.startswith(".") and not (base.isdigit() and aside.isdigit())
