"""A run that hangs is told of by every channel, once, and its end only where the hang was told."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_mail_parser
import pytest
from conftest import PYTHON, REPOSITORY
from measured_job import Job, at, gpu
from notify.failing import environment_for
from notify.receivers import Receiver
from notify.servers import Accepting

from gpualert.rundir.clock import now_us
from gpualert.telemetry.record import Record

WHY = "no output for 31m; 8 processes used 0.2 % of one core; GPUs 0-7 at 0 %"
SECRET = "hunter2-hunter2"
STACK = f'Thread 12 (idle): "MainThread"\n    all_reduce (distributed_c10d.py:2501)\n    login (key="{SECRET}")'
FLIGHT = "rank 5 never entered all_reduce #1234 (group default_pg)"
SCENE: dict[str, Any] = {
    "stacks": [
        {"pids": list(range(11, 19)), "names": ["python train.py"], "text": STACK},
        {"pids": [30], "names": ["loader"], "text": "\n".join(f"frame {n} </pre>\x1b[31m" for n in range(300))},
    ],
    "kernel": [{"pids": [11], "names": ["python"], "text": "main thread: recv on tcp 10.0.0.3:29500"}],
    "flight": {"ranks": [0, 5], "groups": [{"text": FLIGHT, "frames": ["load (data.py:17)"]}]},
    "ranks": [{"rank": 5, "line": "loading shard 17"}],
    "notes": ["no native stacks: py-spy is missing"],
}
START = "import sys; sys.path.append(sys.argv.pop(1)); from gpualert.report.running import main; main()"


def _hanging(path: Path, **facts: Any) -> Path:
    """A run directory of a job that hangs now."""
    job = Job(path, gpus=8, **facts)
    (path / "run.json").write_text(
        json.dumps({**json.loads((path / "run.json").read_text()), "started_at": _ago(7200), "host": "gpu-17"})
    )
    job.output("step 41200 loss 1.873\n", 10)
    job.line("sample", 20, gpus=[gpu(n, utilization=0) for n in range(8)])
    job.line("progress", 30, step=41200)
    job.line("hang", 40, state="suspected", why=WHY, silent_s=1860.0, since=_ago(1860), scene=SCENE)
    job._record.close()
    return path


def _ago(seconds: float) -> str:
    return at((now_us() - 1_700_000_000_000_000) / 1e6 - seconds)


def _goes_on(path: Path) -> None:
    record = Record(str(path))
    record.add("hang", {"state": "over", "silent_s": 2520.0, "why": "output again", "since": _ago(2520)})
    record.close()


def _tell(path: Path, kind: str, environment: dict[str, str]) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUALERT_", "PYTHON"))}
    subprocess.run(
        [PYTHON, "-I", "-c", START, str(REPOSITORY), str(path), kind],
        env={**kept, "API_KEY": SECRET, **environment}, check=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_the_mail_says_why_shows_the_stacks_and_what_to_do(accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    _tell(_hanging(tmp_path / "r"), "hang", environment_for(server.port))
    (raw,) = server.inbox.mails
    mail = fast_mail_parser.parse_email(raw)
    assert mail.subject == "[gpualert] llama-7b hangs: no output for 31m (step 41200)"
    text, html = mail.text_plain[0], mail.text_html[0]
    for said in (
        WHY, "rank 5 never entered all_reduce #1234 (group default_pg)", "8 processes: python train.py (11, 12,",
        "all_reduce (distributed_c10d.py:2501)", "recv on tcp 10.0.0.3:29500", "loading shard 17",
        "no native stacks: py-spy is missing", "step 41200 loss 1.873", "py-spy dump --pid 11",
        "the job still runs", "hang.action = terminate", "103 lines more in stacks.txt",
    ):  # fmt: skip
        assert said in text
        assert said in html.replace("&#39;", "'")
    assert "GPU-hours 16.0" in text
    assert "of them idle 4.1" in text
    assert SECRET not in raw.decode()
    assert not {c for c in text + html if not c.isprintable()} - {"\n", "\r"}
    assert "</pre>\x1b" not in html
    (attached,) = [part for part in mail.attachments if part.filename == "stacks.txt"]
    assert "  frame 299 </pre> [31m" in attached.content.decode()
    assert mail.headers["X-GPUAlert-Event"] == ["run.hang"]


def test_a_webhook_has_the_scene_and_a_chat_the_short_text(receiving: Callable[..., Receiver], tmp_path: Path) -> None:
    hook, chat = receiving(), receiving()
    environment = {
        "GPUALERT_WEBHOOK_URL": f"http://127.0.0.1:{hook.port}/", "GPUALERT_NOTIFY_URLS": f"json://127.0.0.1:{chat.port}/x",
    }  # fmt: skip
    _tell(_hanging(tmp_path / "r"), "hang", environment)
    (body,) = (json.loads(body) for body in hook.bodies)
    assert (body["type"], body["data"]["diagnosis"]) == ("run.hang", None)
    told = body["data"]["hang"]
    assert (told["state"], told["step"], told["action"]) == ("suspected", 41200, "notify")
    assert told["scene"]["flight"] == [{"text": FLIGHT, "frames": ["load (data.py:17)"]}]
    assert SECRET not in str(body)
    (said,) = (json.loads(body) for body in chat.bodies)
    assert said["type"] == "warning"
    assert said["message"].splitlines()[:3] == [WHY, "GPU-hours 16.0, of them idle 4.1", FLIGHT]


def test_going_on_is_told_to_those_who_heard_of_the_hang(accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    path = _hanging(tmp_path / "r")
    _tell(path, "hang", environment_for(server.port))
    _goes_on(path)
    _tell(path, "hang-over", environment_for(server.port))
    subjects = [fast_mail_parser.parse_email(mail).subject for mail in server.inbox.mails]
    assert subjects[1:] == ["[gpualert] llama-7b goes on after 42m00s"]
    _tell(path, "hang-over", environment_for(server.port))
    assert len(server.inbox.mails) == 2


def test_nobody_hears_of_the_end_of_a_hang_that_nobody_heard_of(
    accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    path = _hanging(tmp_path / "r")
    _tell(path, "hang", environment_for(1))
    assert [entry.name.partition("-")[0] for entry in (path / "mail").glob("*.eml")] == ["hang"]
    _goes_on(path)
    server = accepting()
    _tell(path, "hang-over", environment_for(server.port))
    assert server.inbox.mails == []
    assert list((path / "mail").glob("*.eml")) == []


def test_a_hang_that_was_over_before_it_was_told_is_not_told(
    accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    server = accepting()
    path = _hanging(tmp_path / "r")
    _goes_on(path)
    _tell(path, "hang", environment_for(server.port))
    ended = _hanging(tmp_path / "ended")
    (ended / "exit.json").write_text(json.dumps({"exit_code": 1, "ended_at": _ago(0)}))
    _tell(ended, "hang", environment_for(server.port))
    never = _hanging(tmp_path / "never")
    _tell(never, "hang", environment_for(server.port, GPUALERT_NOTIFY="never"))
    assert server.inbox.mails == []


def test_of_the_ranks_of_a_group_the_first_to_notice_tells(accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    environment = environment_for(server.port, GPUALERT_GROUP_DIR=str(tmp_path / "group"))
    (tmp_path / "group" / "job-7" / "0").mkdir(parents=True)
    ranks = [
        _hanging(tmp_path / f"rank{rank}", rank=rank, world_size=2, group="job-7", attempt=0, run_id=f"run-{rank}")
        for rank in (0, 1)
    ]
    for path in ranks:
        _tell(path, "hang", environment)
    assert [fast_mail_parser.parse_email(mail).subject.strip() for mail in server.inbox.mails] == [
        "[gpualert] llama-7b hangs on rank 0 (gpu-17): no output for 31m (step 41200)"
    ]
    for path in ranks[::-1]:
        _goes_on(path)
        _tell(path, "hang-over", environment)
    assert len(server.inbox.mails) == 2


@pytest.mark.parametrize("size", [20_000, 3_000])
def test_a_mail_that_is_too_large_for_its_server_loses_the_stacks_first(
    accepting: Callable[..., Accepting], tmp_path: Path, size: int
) -> None:
    server = accepting(size=size)
    _tell(_hanging(tmp_path / "r"), "hang", environment_for(server.port))
    (raw,) = server.inbox.mails
    assert len(raw) <= size
    mail = fast_mail_parser.parse_email(raw)
    assert mail.subject.startswith("[gpualert] llama-7b hangs")
    assert mail.attachments == []


def test_a_hang_that_gpualert_cannot_end_is_told_so(accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    path = _hanging(tmp_path / "r", options={"hang.action": "terminate"})
    _tell(path, "hang", environment_for(server.port))
    text = fast_mail_parser.parse_email(server.inbox.mails[0]).text_plain[0]
    assert "gpualert has sent SIGTERM and SIGKILL" in text
    assert "the job still runs" not in text


def test_in_a_pod_the_advice_reaches_into_it(accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    path = _hanging(tmp_path / "r", pod="llama-0", namespace="ml")
    _tell(path, "hang", environment_for(server.port))
    text = fast_mail_parser.parse_email(server.inbox.mails[0]).text_plain[0]
    assert "kubectl logs -f -n ml llama-0; stacks of now: kubectl exec -n ml llama-0 -- py-spy dump --pid 11" in text


def test_a_hang_that_could_not_be_written_down_is_told_all_the_same(
    accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    server = accepting()
    path = _hanging(tmp_path / "r")
    (path / "telemetry.jsonl").write_bytes(b"\x00garbage")
    _tell(path, "hang", environment_for(server.port))
    mail = fast_mail_parser.parse_email(server.inbox.mails[0])
    assert mail.subject.startswith("[gpualert] llama-7b hangs: nothing happens for ")
    assert "the job still runs" in mail.text_plain[0]
    assert mail.attachments == []
