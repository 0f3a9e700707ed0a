"""A bare report: from the facts alone, when the log could not be diagnosed, so that a person is told all the same."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from gpualert.diagnosis import Rulebook, diagnose
from gpualert.report import building, quotes, recall

if TYPE_CHECKING:
    from gpualert.rundir.reader import Run
    from gpualert.supervisor.redaction import Redaction


def build(run: Run, why: str, redaction: Redaction) -> dict[str, Any]:
    """The report without a look at the log, but for its last lines.

    Args:
        run: The run.
        why: Why it is not diagnosed, in a few words.
        redaction: Masks secrets.
    """
    run.facts.pop("configuration_problems", None)
    redaction, unmasked = recall.recalling(redaction, run.path)
    found = diagnose(b"", building.facts_of(run), rules=Rulebook.load())
    trouble = f"{why}: told from the facts alone (gpualert report --again {run.run_id} reads the log)"
    # What the report quotes and charts is read from the directory; nothing is to be read in this one.
    unread = dataclasses.replace(run, path=f"{run.path}/.unread")
    made = building.build(unread, found, [trouble, *([unmasked] if unmasked else [])], redaction)
    made["diagnosis"]["warnings"] = [*made["diagnosis"].get("warnings", []), trouble]
    made["quotes"]["tail"] = quotes.take(run.log_path, None, redaction)["tail"]
    return made
