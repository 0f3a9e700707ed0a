"""What NCCL's flight recorder says of a collective that timed out: PyTorch writes it when the watchdog ends the job."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpualert.diagnosis import Evidence
from gpualert.hang import flightrecorder
from gpualert.report.timeline import seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpualert.diagnosis import Diagnosis
    from gpualert.rundir.reader import Run

CLASS = "nccl_timeout"
PATIENCE_S = 2.0
TEXT_MAX = 600


def joined(found: Diagnosis, run: Run, environment: Mapping[str, str]) -> Diagnosis:
    """A diagnosis with what the recordings of the run's ranks say beside it.

    Args:
        found: The diagnosis.
        run: The run.
        environment: The job's variables, which tell where the recordings are.

    Returns:
        The same where there are none, or the collective is not what broke.
    """
    started = seconds_of(run.facts.get("started_at"))
    if found.cls != CLASS or started is None:
        return found
    variables = dict(environment)
    for name, value in variables.items():
        if name.startswith("TORCH_") and not os.path.isabs(value) and os.sep in value:
            variables[name] = os.path.join(str(run.facts.get("cwd") or "/"), value)
    groups = flightrecorder.told(variables, started, time.monotonic() + PATIENCE_S).get("groups") or []
    if not groups:
        return found
    text = f"flight recorder: {'; '.join(group['text'] for group in groups)}"[:TEXT_MAX]
    return replace(found, evidence=(*found.evidence, Evidence(None, text, CLASS, "confirmation")))
