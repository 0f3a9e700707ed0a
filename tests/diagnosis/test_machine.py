"""What was measured beside a run is weighed against its log and its end: facts over text, causes over symptoms."""

from __future__ import annotations

import json
import os
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpualert.diagnosis import Diagnosis
from gpualert.report import building, making
from gpualert.rundir.reader import Run
from gpualert.supervisor.redaction import Redaction

DATA = tomllib.loads((Path(__file__).parent.parent / "data" / "machine.toml").read_text())
SCENARIOS: list[dict[str, Any]] = DATA["scenario"]
START = datetime(2026, 12, 1, 5, 12, tzinfo=UTC)


def _at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def _line(told: dict[str, Any]) -> dict[str, Any]:
    line = {"at": _at(told["t"]), **{key: value for key, value in told.items() if key != "t"}}
    if type(line.get("since")) is int and abs(line["since"]) < 10**9:
        line["since"] = _at(line["since"])
    if isinstance(line.get("gpu"), int) and "pci" not in line and 0 <= line["gpu"] < 16:
        line["pci"] = f"0000:c{line['gpu']:x}:00.0"
    return line


def run_directory(place: Path, scenario: dict[str, Any]) -> Run:
    """A run directory as the supervisor and the collector would have left it."""
    end = {"exit_code": 1, "signal": None, "duration_s": 1000.0, "forwarded": [], **scenario.get("exit", {})}
    if end["signal"] is not None or end["exit_code"] is False:
        end["exit_code"] = None
    end["ended_at"] = end["last_output_at"] = _at(end["duration_s"])
    place.mkdir(exist_ok=True)
    (place / "run.json").write_text(json.dumps({"started_at": _at(0), "argv": ["x"], **scenario.get("run", {})}))
    (place / "exit.json").write_text(json.dumps(end))
    (place / "output.log").write_text(DATA["logs"][scenario["log"]])
    if "telemetry" in scenario:
        indices = scenario.get("gpus", range(8))
        gpus = [{"index": n, "uuid": f"GPU-{n}", "pci": f"0000:c{n}:00.0"} for n in indices]
        lines = [{"at": _at(1), "kind": "inventory", "gpus": gpus}, *map(_line, scenario["telemetry"])]
        (place / "telemetry.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run.read(str(place))


def diagnosed(place: Path, scenario: dict[str, Any]) -> Diagnosis:
    found, trouble = building.diagnosed(run_directory(place, scenario), [], making.redaction())
    assert trouble == []
    return found


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario["id"] for scenario in SCENARIOS])
def test_a_scenario(scenario: dict[str, Any], tmp_path: Path) -> None:
    found = diagnosed(tmp_path, scenario)
    assert found.cls == scenario["answer"], found
    assert scenario.get("says", "") in found.summary
    lines = [evidence.text for evidence in found.evidence]
    assert any(scenario.get("evidence", "") in line for line in [*lines, *([] if "evidence" in scenario else [""])]), (
        lines
    )
    assert scenario.get("first", "") in (found.suggestions or ("",))[0]
    assert found.node_suspect == scenario.get("node_suspect", found.node_suspect)
    assert found.confidence == pytest.approx(scenario.get("confidence", found.confidence))
    if "nowhere" in scenario:
        assert not any(scenario["nowhere"] in text for text in (*lines, found.summary))
    if "warns" in scenario:
        assert bool(found.warnings) == bool(scenario["warns"])
        assert any(scenario["warns"] in warning for warning in (*found.warnings, "" if not scenario["warns"] else "-"))


def test_there_are_enough_scenarios() -> None:
    assert len({scenario["id"] for scenario in SCENARIOS}) == len(SCENARIOS) >= 80
    assert len({scenario["answer"] for scenario in SCENARIOS}) >= 15


@pytest.mark.parametrize("name", ["missing", "empty", "binary", "fifo", "directory"])
def test_a_file_that_holds_nothing_changes_nothing(name: str, tmp_path: Path) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario["id"] == "xid-79-over-nccl-timeout")
    run = run_directory(tmp_path, scenario)
    path = tmp_path / "telemetry.jsonl"
    path.unlink()
    if name == "fifo":
        os.mkfifo(path)
    elif name == "directory":
        path.mkdir()
    elif name != "missing":
        path.write_bytes(b"" if name == "empty" else b"\0\xff\n{\n[]\n" * 100)
    found, _ = building.diagnosed(run, [], making.redaction())
    assert (found.cls, found.broken) == ("nccl_timeout", ())


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KEYS = ("code", "gpu", "pci", "uuid", "text", "about", "state", "since", "silent_s", "why", "step", "log_bytes", "psi", "gpus")  # fmt: skip
_LINES = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(("xid", "kernel", "sample", "hang", "inventory", "progress")),
            "t": st.integers(-9, 1009),
        },
        optional={
            **dict.fromkeys(_KEYS, _VALUES),
            "code": st.sampled_from((31, 45, 48, 63, 79, 999)) | _VALUES,
            "gpus": st.lists(st.dictionaries(st.sampled_from(("index", "uuid", "lost", "ecc_uncorrected")), _VALUES)),
            "psi": st.dictionaries(st.sampled_from(("memory_full", "of")), _VALUES),
            "state": st.sampled_from(("suspected", "over")),
        },
    ),
    max_size=8,
)


@given(lines=_LINES, log=st.sampled_from(("import_error", "key_error", "cuda_oom", "config")))
@settings(deadline=None, max_examples=150)
def test_whatever_the_file_holds_a_complete_cause_in_the_log_stands(
    lines: list[dict[str, Any]], log: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("run")
    alone = diagnosed(place, {"log": log})
    (place / "run.json").unlink()
    found = diagnosed(place, {"log": log, "telemetry": lines})
    assert found.cls == alone.cls
    assert json.loads(json.dumps(found.as_dict()))["class"] == alone.cls
    assert len(found.evidence) <= len(alone.evidence) + 6


def test_the_report_tells_when_the_fact_was_and_of_which_hardware(tmp_path: Path) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario["id"] == "xid-79-over-nccl-timeout")
    run = run_directory(tmp_path, scenario)
    mask = making.redaction()
    found, _ = building.diagnosed(run, [], mask)
    report = building.build(run, found, [], mask)
    assert report["timeline"]["cause_at"].startswith("2026-12-01T05:18:30")
    (row,) = report["hardware"]
    assert (row["code"], row["gpu"], row["place"], row["class"]) == (79, 1, 1, "gpu_lost")


def test_a_secret_in_a_kernels_line_is_masked(tmp_path: Path) -> None:
    text = "python[7]: segfault at 0 ip 00007f sp 00007f error 4 in lib-hunter22hunter22.so"
    scenario = {"log": "worker_gone", "telemetry": [{"t": 999, "kind": "kernel", "about": "own", "text": text}]}
    run = run_directory(tmp_path, scenario)
    mask = Redaction(["hunter22hunter22"])
    found, _ = building.diagnosed(run, [], mask)
    report = building.build(run, found, [], mask)
    assert "hunter22" not in json.dumps(report["diagnosis"])
    assert report["diagnosis"]["class"] == "segfault"
