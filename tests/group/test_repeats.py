"""A job of several ranks that fails again and again: its incidents are attempts of each other, its ranks are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from group.test_together import OOM, Ranks
from notify.servers import Accepting


@pytest.fixture
def ranks(tmp_path: Path, accepting: Callable[..., Accepting]) -> Iterator[Ranks]:
    made = Ranks(tmp_path, accepting(), 2)
    yield made
    for process in made.started.values():
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_the_fourth_time_is_held_and_told_with_the_fifth(ranks: Ranks) -> None:
    said = []
    for attempt in range(5):
        for rank in range(2):
            script = f"sleep 0.5; {OOM.replace('2.00', str(attempt))}"
            ranks.start(rank, script, TORCHELASTIC_RESTART_COUNT=str(attempt))
        assert set(ranks.wait().values()) == {1}
        said.append(ranks.said(0) + ranks.said(1))
    found = sorted(ranks.group.glob("*/*/incident/report.json"))
    reports = [json.loads(path.read_text()) for path in found]
    assert [[row["outcome"] for row in report["notifications"]] for report in reports] == [
        ["sent"], ["sent"], ["sent"], ["held"], ["sent"],
    ]  # fmt: skip
    assert [report["attempt"]["same"] for report in reports] == [1, 2, 3, 4, 5]
    assert "nobody told: the same failure 4 times" in said[3]
    assert len(ranks.mails) == 4
    assert ranks.mails[-1]["Subject"].strip().startswith("[gpualert] llama crash loop: cuda_oom 5 times in ")
    text = ranks.mails[-1].get_body(("plain",)).get_content()
    (row,) = [line for line in text.splitlines() if reports[3]["run"]["run_id"] in line]
    assert " no " in row
    assert "do not retry: the same failure 5 times in " in text
    # Each rank's own report counts its own attempts alone.
    own = [json.loads(path.read_text()) for path in sorted((ranks.place / "logs").glob("2*/report.json"))]
    assert max(report["attempt"]["same"] for report in own) == 5
    assert all(report["notifications"] == [] for report in own)
