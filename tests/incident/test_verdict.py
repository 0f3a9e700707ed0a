"""The verdict over ranks, on recorded scenarios and on the corners between them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from incident import scenarios

from gpualert.diagnosis import Rulebook
from gpualert.incident import Finding, MachineFact, Rank, judge
from gpualert.incident.outside import meaning

ALL = scenarios.load()


@pytest.mark.parametrize("scenario", ALL, ids=[scenario["id"] for scenario in ALL])
def test_a_recorded_scenario(scenario: dict[str, Any]) -> None:
    assert scenarios.judged(scenario) == []


def test_there_are_enough_scenarios() -> None:
    assert len(ALL) >= 100
    assert len({scenario["answer"]["class"] for scenario in ALL}) >= 40


@pytest.mark.parametrize("scenario", ALL[::5], ids=[scenario["id"] for scenario in ALL[::5]])
def test_the_order_in_which_ranks_are_read_does_not_matter(scenario: dict[str, Any]) -> None:
    ranks, facts = scenarios.ranks(scenario), scenarios.facts(scenario)
    shuffled = random.Random(7).sample(ranks, len(ranks))
    expected = scenario.get("expected_ranks")
    rules = Rulebook.load()
    assert judge(shuffled, facts, expected=expected, rules=rules) == judge(ranks, facts, expected=expected, rules=rules)


def _rank(number: int, cls: str, at: float | None, **more: Any) -> Rank:
    known = Rulebook.load().classes[cls]
    finding = Finding(cls, known.family, 0.9, f"it was {cls}", more.pop("root", f"{cls} in the log"))
    return Rank(
        f"r{number}", number, more.pop("node", f"n{number // 4}"), "failed", finding, 1, None, 0.0, at, at, at, **more
    )


def test_a_clock_that_is_known_to_be_ahead_is_put_right() -> None:
    late = _rank(0, "cuda_oom", 100.0)
    ahead = _rank(1, "disk_full", 130.0, skew_s=60.0)
    assert [rank.rank for rank in judge([late, ahead], rules=Rulebook.load()).roots] == [1, 0]
    assert judge([late, ahead], rules=Rulebook.load()).cls == "disk_full"


def test_a_job_of_one_rank_needs_no_comparison() -> None:
    found = judge([_rank(0, "nccl_timeout", 10.0)], rules=Rulebook.load())
    assert (found.cls, found.confidence) == ("nccl_timeout", 0.5)


def test_nothing_at_all() -> None:
    found = judge([], rules=Rulebook.load())
    assert (found.cls, found.parts) == ("success", ())


def test_a_nodes_xid_explains_a_time_out_on_it() -> None:
    rules = Rulebook.load()
    text = "NVRM: Xid (PCI:0000:c1:00): 79, pid=1, name=python, GPU has fallen off the bus."
    fact = MachineFact("XidError", text, "n1", at=90.0, finding=meaning("XidError", text, rules))
    ranks = [_rank(number, "nccl_timeout", 700.0) for number in range(8)]
    found = judge(ranks, [fact], rules=rules)
    assert (found.cls, found.nodes, found.node_suspect) == ("gpu_lost", ("n1",), True)
    assert [rank.rank for rank in found.roots] == [4, 5, 6, 7]
    assert found.facts == (fact,)


def test_words_about_a_node_that_mean_nothing_change_nothing() -> None:
    rules = Rulebook.load()
    assert meaning("NodeHasSufficientMemory", "kubelet has sufficient memory available", rules) is None
    assert meaning("GPUHealthy", "all 8 GPUs are healthy", rules) is None


@pytest.mark.parametrize(
    ("reason", "cls"),
    [
        ("NodeNotReady", "node_lost"),
        ("Preempted", "evicted"),
        ("OOMKilled", "oom_killer"),
        ("ErrImagePull", "image_pull"),
    ],
)
def test_reasons_of_the_cluster(reason: str, cls: str) -> None:
    found = meaning(reason, "said so", Rulebook.load())
    assert found is not None
    assert (found.cls, found.summary) == (cls, f"{reason}: said so")


def test_a_finding_from_anything() -> None:
    assert Finding.of({"class": 7}) is None
    assert Finding.of("x") is None
    found = Finding.of({"class": "cuda_oom", "root": "a line", "confidence": "high", "evidence": [3, {"text": 4}]})
    assert found is not None
    assert (found.root, found.confidence, found.texts) == ("a line", 0.5, ("4",))
