"""How well logs are classified: any corpus in the batch format, beside the baselines of the paper.

    python benchmarks/classification.py real-cpu              the logs in tests/data/real-cpu
    python benchmarks/classification.py paper PAPER.jsonl     the paper's corpus (not part of the project)
    python benchmarks/classification.py corpus FILE.jsonl     objects {"id", "log", "exit_code", "signal", "class"}

With --figure FILE.svg the confusions are also drawn. Prints precision, recall and F1 of each class, the confusions, and macro-F1 with a bootstrap interval.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import figure

from gpualert.diagnosis import Facts, Rulebook, diagnose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

REAL = Path(__file__).resolve().parent.parent / "tests" / "data" / "real-cpu"
BOOTSTRAPS = 500


@dataclass(frozen=True)
class Case:
    """One labelled log.

    Attributes:
        id: Its name.
        log: Its bytes.
        facts: What is known apart from the log.
        cls: Its class.
        also: Classes that count as right too.
    """

    id: str
    log: bytes
    facts: Facts
    cls: str
    also: tuple[str, ...] = field(default=())


def _evidence(path: Path) -> tuple[int, int]:
    """Out-of-memory kills and refused forks that a job's control group has counted."""
    try:
        evidence = json.loads(path.read_text())
    except OSError:
        return 0, 0
    kills = [
        line.split()[1] for line in evidence.get("memory.oom_control", "").splitlines() if line.startswith("oom_kill ")
    ]
    refused = evidence.get("pids.events", "max 0").split()[1]
    return int(kills[0]) if kills else 0, int(refused)


def real_cpu() -> list[Case]:
    """The logs in ``tests/data/real-cpu``."""
    cases = []
    for line in (REAL / "labels.jsonl").read_text().splitlines():
        row = json.loads(line)
        kills, refused = _evidence(REAL / f"{row['id']}.evidence.json")
        code = None if row["signal"] else row["exit_code"]
        facts = Facts(exit_code=code, signal=row["signal"], oom_kills=kills, pids_max_events=refused)
        log = (REAL / f"{row['id']}.log").read_bytes()
        cases.append(Case(row["id"], log, facts, row["class"], tuple(row.get("also") or ())))
    return cases


def paper(path: Path) -> list[Case]:
    """The paper's corpus.

    Args:
        path: Its file, objects with ``id``, ``paper_class``, ``exit_status`` (negative: a signal) and ``log``.
    """
    cases = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        status = row["exit_status"]
        facts = Facts(exit_code=status if status >= 0 else None, signal=-status if status < 0 else None)
        cases.append(Case(row["id"], row["log"].encode(), facts, row["paper_class"]))
    return cases


def corpus(path: Path) -> list[Case]:
    """Any corpus in the batch format, with ``class`` and perhaps ``also`` beside."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [
        Case(
            row["id"],
            row["log"].encode("utf-8", "replace"),
            Facts(row.get("exit_code"), row.get("signal")),
            row["class"],
            tuple(row.get("also") or ()),
        )
        for row in rows
    ]


def to_paper(cls: str, log: bytes, rules: Rulebook) -> str:
    """A class of ours as one of the paper's fifteen ("not compatible with this build" is its runtime_error)."""
    if cls == "cuda_driver_mismatch" and b"not compatible with this build" in log:
        return "runtime_error"
    return rules.classes[cls].paper or cls


def by_exit_code(case: Case) -> str:
    """Baseline: the exit status alone."""
    signals = {9: "oom_killer", 11: "segfault", 6: "native_abort", 15: "terminated", 2: "interrupted"}
    if case.facts.signal is not None:
        return signals.get(case.facts.signal, "unknown")
    return {0: "success", 126: "not_executable", 127: "command_not_found"}.get(case.facts.exit_code or 0, "traceback")


KEYWORDS = {
    "cuda_oom": b"out of memory", "nccl_error": b"NCCL", "cuda_runtime": b"CUDA", "segfault": b"egmentation fault",
    "ram_oom": b"MemoryError", "oom_killer": b"Killed", "file_not_found": b"No such file",
    "permission": b"ermission denied",
    "missing_module": b"No module named", "nan_loss": b"nan", "div_zero": b"ZeroDivision", "assertion": b"Assertion",
    "device_mismatch": b"same device", "runtime_error": b"RuntimeError", "traceback": b"Traceback",
}  # fmt: skip


def by_keyword(case: Case) -> str:
    """Baseline: the first keyword that is anywhere in the log."""
    return next((cls for cls, word in KEYWORDS.items() if word in case.log), by_exit_code(case))


LAST_LINE = {
    "MemoryError": "ram_oom", "FileNotFoundError": "file_not_found", "PermissionError": "permission",
    "ModuleNotFoundError": "missing_module", "ImportError": "missing_module", "ZeroDivisionError": "div_zero",
    "AssertionError": "assertion", "RuntimeError": "runtime_error", "KeyboardInterrupt": "interrupted",
    "torch.OutOfMemoryError": "cuda_oom", "torch.cuda.OutOfMemoryError": "cuda_oom",
}  # fmt: skip


def by_last_line(case: Case) -> str:
    """Baseline: the name at the start of the last line of the log."""
    lines = [line for line in case.log.decode("utf-8", "replace").splitlines() if line.strip()]
    name = lines[-1].split(":")[0].strip() if lines else ""
    return LAST_LINE.get(name, "traceback" if name.endswith("Error") else by_exit_code(case))


def macro_f1(pairs: Iterable[tuple[str, str]]) -> float:
    """The mean over the true classes of F1.

    Args:
        pairs: True and found class of each log.
    """
    pairs = list(pairs)
    classes = {truth for truth, _ in pairs}
    return sum(scores(pairs, cls)[2] for cls in classes) / len(classes)


def scores(pairs: list[tuple[str, str]], cls: str) -> tuple[float, float, float]:
    """Precision, recall and F1 of one class."""
    hit = sum(truth == found == cls for truth, found in pairs)
    claimed = sum(found == cls for _, found in pairs)
    real = sum(truth == cls for truth, _ in pairs)
    return hit / claimed if claimed else 0.0, hit / real if real else 0.0, 2 * hit / (claimed + real) if hit else 0.0


def interval(pairs: list[tuple[str, str]]) -> tuple[float, float]:
    """The middle 95 % of macro-F1 over resampled logs."""
    source = random.Random(1)
    drawn = sorted(macro_f1(source.choices(pairs, k=len(pairs))) for _ in range(BOOTSTRAPS))
    return drawn[int(0.025 * BOOTSTRAPS)], drawn[int(0.975 * BOOTSTRAPS)]


def judged(cases: list[Case], find: Callable[[Case], str]) -> list[tuple[str, str]]:
    """True and found class of each log; a class under ``also`` counts as the true one."""
    return [(case.cls, case.cls if (found := find(case)) in (case.cls, *case.also) else found) for case in cases]


def report(
    name: str, cases: list[Case], find: Callable[[Case], str], baselines: Mapping[str, Callable[[Case], str]]
) -> list[tuple[str, str]]:
    """Print everything about one corpus; returns true and found class of each log."""
    pairs = judged(cases, find)
    low, high = interval(pairs)
    value = macro_f1(pairs)
    print(f"## {name}: {len(cases)} logs, {len({case.cls for case in cases})} classes\n")
    print("| method | macro-F1 | right |\n|---|---|---|")
    right = sum(truth == found for truth, found in pairs)
    print(f"| gpualert | {value:.3f} (95 %: {low:.3f} to {high:.3f}) | {right} of {len(pairs)} |")
    for label, baseline in baselines.items():
        other = judged(cases, baseline)
        print(f"| {label} | {macro_f1(other):.3f} | {sum(t == f for t, f in other)} of {len(other)} |")
    print("\n| class | logs | precision | recall | F1 |\n|---|---|---|---|---|")
    for cls in sorted({case.cls for case in cases}):
        precision, recall, f1 = scores(pairs, cls)
        print(f"| {cls} | {sum(case.cls == cls for case in cases)} | {precision:.2f} | {recall:.2f} | {f1:.2f} |")
    confused = Counter(pair for pair in pairs if pair[0] != pair[1])
    if confused:
        print("\n| is | taken for | logs |\n|---|---|---|")
        for (truth, found), count in confused.most_common():
            print(f"| {truth} | {found} | {count} |")
    print()
    return pairs


def main() -> None:
    """Measure the corpus that the command line names."""
    arguments = sys.argv[1:]
    picture = None
    if "--figure" in arguments:
        at = arguments.index("--figure")
        picture = Path(arguments[at + 1])
        del arguments[at : at + 2]
    arguments = arguments or ["real-cpu"]
    rules = Rulebook.load()

    def ours(case: Case) -> str:
        return diagnose(case.log, case.facts, rules=rules).cls

    baselines = {"exit status alone": by_exit_code, "first keyword": by_keyword, "last line": by_last_line}
    if arguments[0] == "real-cpu":
        pairs = report("real-cpu", real_cpu(), ours, baselines)
    elif arguments[0] == "paper" and len(arguments) == 2:

        def mapped(find: Callable[[Case], str]) -> Callable[[Case], str]:
            return lambda case: to_paper(find(case), case.log, rules)

        pairs = report("paper", paper(Path(arguments[1])), mapped(ours), {k: mapped(v) for k, v in baselines.items()})
    elif arguments[0] == "corpus" and len(arguments) == 2:
        pairs = report(Path(arguments[1]).name, corpus(Path(arguments[1])), ours, baselines)
    else:
        sys.exit(__doc__)
    if picture is not None:
        picture.write_text(figure.confusion(pairs, f"{arguments[0]}: {len(pairs)} logs"))


if __name__ == "__main__":
    main()
