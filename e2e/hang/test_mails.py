"""Hangs through all of gpualert: the mail comes while the job runs, and what was to be done is done."""

from __future__ import annotations

import contextlib
import email
import email.policy
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import PYTHON, REPOSITORY, run_dirs, wait_until
from notify.servers import Accepting, accepting

from e2e.hang import jobs

__all__ = ["accepting"]

HANG = ("--hang-after", "5s", "--hang-warmup", "0s", "--kill-after", "2s")


@dataclass
class Running:
    """A job under gpualert."""

    process: subprocess.Popen[bytes]
    logs: Path

    @property
    def directory(self) -> Path:
        return run_dirs(self.logs)[0]

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """What the collector has written of a kind."""
        text = (self.directory / "telemetry.jsonl").read_text()
        told = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line for line in told if line["kind"] == kind]


@contextlib.contextmanager
def running(make: Callable[[Path], jobs.Job], place: Path, server: Accepting, *options: str) -> Iterator[Running]:
    job = make(place)
    environ = {
        **job.environ, "GPUALERT_EMAIL_TO": "oncall@example.org", "GPUALERT_SMTP_HOST": "127.0.0.1",
        "GPUALERT_SMTP_PORT": str(server.port), "GPUALERT_SMTP_SECURITY": "none", "PYTHONPATH": str(REPOSITORY),
    }  # fmt: skip
    command = [PYTHON, "-I", "-m", "gpualert", "run", "--name", "llama", "--log-dir", str(place / "logs")]
    process = subprocess.Popen(
        [*command, *HANG, *options, "--", *job.command],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ,
    )  # fmt: skip
    try:
        yield Running(process, place / "logs")
    finally:
        pids = _below(process.pid)
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        job.cleanup()
        process.communicate(timeout=60)


def _below(pid: int) -> list[int]:
    """All processes that a process has started, and theirs."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, own) for found in (child, *_below(child))]


def mails(server: Accepting) -> list[Any]:
    return [email.message_from_bytes(mail, policy=email.policy.default) for mail in server.inbox.mails]


def body(mail: Any) -> str:
    return str(mail.get_body(("plain",)).get_content())


def test_a_deadlock_is_mailed_with_its_stacks_while_the_job_runs(
    accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    server = accepting()
    with running(jobs.deadlock, tmp_path, server) as run:
        wait_until(lambda: server.inbox.mails, "the mail")
        assert run.process.poll() is None
        (mail,) = mails(server)
        assert "hang" in mail["Subject"]
        assert "no output for" in body(mail)
        (hang,) = run.lines("hang")
        texts = [stack["text"] for stack in hang["scene"]["stacks"]]
        assert any("wait_for_lock (" in text for text in texts), hang
        assert any("all_reduce" in text for text in texts), hang
        # The mail itself, or what is attached to it, has them too.
        whole = "".join(part.get_content() for part in mail.walk() if part.get_content_maintype() == "text")
        assert "wait_for_lock (" in whole
        assert "all_reduce" in whole


def test_a_stopped_rank_that_goes_on_is_told_of_as_over(accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    with running(jobs.stopped_peer, tmp_path, server) as run:
        wait_until(lambda: server.inbox.mails, "the mail")
        (hang,) = run.lines("hang")
        assert "stopped by a signal" in hang["why"]
        (stopped,) = [one["pid"] for one in hang["scene"]["processes"] if one["state"] == "T"]
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: run.lines("hang")[-1]["state"] == "over", "its end")
        assert run.process.wait(60) == 0


def test_a_hang_is_ended_where_that_is_wanted(accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    with running(jobs.pipe, tmp_path, server, "--hang-action", "terminate") as run:
        assert run.process.wait(120) != 0
        report = json.loads((run.directory / "report.json").read_text())
        assert report["diagnosis"]["class"] == "hang"
        assert json.loads((run.directory / "exit.json").read_text())["hang"]["terminated"] is True
        assert "hang" in mails(server)[-1]["Subject"]


def test_a_file_system_that_does_not_answer_is_named(accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    server = accepting()
    with running(jobs.stalled, tmp_path, server) as run:
        wait_until(lambda: server.inbox.mails, "the mail")
        (hang,) = run.lines("hang")
        assert any("data/shard-17.tar" in group["text"] for group in hang["scene"]["kernel"]), hang
        assert "data/shard-17.tar" in body(mails(server)[0])
