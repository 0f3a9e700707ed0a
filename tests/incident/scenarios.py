"""Recorded multi-rank scenarios: what each rank printed and how it ended, and what an engineer would say of it."""

from __future__ import annotations

import json
import pathlib
from functools import lru_cache
from typing import Any

from gpualert.diagnosis import Facts, Rulebook, diagnose
from gpualert.incident import Finding, MachineFact, Rank, Verdict, judge
from gpualert.incident.outside import meaning

FILE = pathlib.Path(__file__).resolve().parent.parent / "data" / "incidents.jsonl"


def load(path: pathlib.Path = FILE) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _numbers(spec: str | int) -> list[int]:
    numbers: list[int] = []
    for part in str(spec).split(","):
        low, _, high = part.strip().partition("-")
        numbers += range(int(low), int(high or low) + 1)
    return numbers


@lru_cache(maxsize=4096)
def _finding(log: str, exit_code: int | None, signal: int | None, oom_kills: int) -> Finding:
    facts = Facts(exit_code=exit_code, signal=signal, oom_kills=oom_kills)
    return Finding.from_diagnosis(diagnose(log.encode(), facts, rules=Rulebook.load()))


def ranks(scenario: dict[str, Any]) -> list[Rank]:
    found = []
    for row in scenario["ranks"]:
        for number in _numbers(row["ranks"]):
            index = number // row.get("per_node", 1)
            node = row.get("node")
            text = (
                scenario["logs"]
                .get(row.get("log") or "", "")
                .replace("{rank}", str(number))
                .replace("{node}", str(index))
            )
            state = row["state"]
            finding = None
            if state in ("failed", "succeeded"):
                finding = _finding(text, row.get("exit_code"), row.get("signal"), row.get("oom_kills") or 0)
            found.append(
                Rank(
                    f"worker-{number}", number, node.replace("{node}", str(index)) if node else None, state, finding,
                    row.get("exit_code"), row.get("signal"), row.get("started_at"), row.get("broke_at"),
                    row.get("last_output_at"), row.get("ended_at"), slack_s=row.get("slack_s", 3.0),
                )
            )  # fmt: skip
    return found


def facts(scenario: dict[str, Any]) -> list[MachineFact]:
    rules = Rulebook.load()
    return [
        MachineFact(
            f["reason"],
            f.get("message", ""),
            f.get("node"),
            f.get("rank"),
            None,
            f.get("at"),
            meaning(f["reason"], f.get("message", ""), rules),
        )
        for f in scenario.get("facts", [])
    ]


def verdict(scenario: dict[str, Any]) -> Verdict:
    return judge(ranks(scenario), facts(scenario), expected=scenario.get("expected_ranks"), rules=Rulebook.load())


def judged(scenario: dict[str, Any]) -> list[str]:
    """What is wrong with the verdict; nothing where it is right."""
    found, answer = verdict(scenario), scenario["answer"]
    roots = sorted(rank.rank for rank in found.roots if rank.rank is not None)
    wrong = []
    classes = [answer["class"], *answer.get("also", [])]
    if found.cls not in classes:
        wrong.append(f"class {found.cls}, not {answer['class']}")
    wanted = sorted(set(answer["roots"]) - set(found.missing))  # who never showed up is named as missing
    if answer.get("any_root") and roots:
        wanted = roots if set(roots) <= set(wanted) else wanted
    if roots != wanted:
        wrong.append(f"roots {roots}, not {wanted}")
    if not set(answer.get("silent", [])) <= {*(rank.rank for rank in found.silent), *found.missing, *roots}:
        wrong.append(f"silent {[rank.rank for rank in found.silent]} {found.missing}, not {answer['silent']}")
    if found.confidence > answer.get("max_confidence", 1.0):
        wrong.append(f"confidence {found.confidence}")
    if set(roots) - set(answer["roots"]) and found.confidence > 0.5:
        wrong.append(f"a victim was accused with confidence {found.confidence}")
    return wrong
