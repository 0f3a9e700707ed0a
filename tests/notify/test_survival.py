"""A mail survives its reporter: who dies before the spool has it is followed by whoever looks next."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import fast_mail_parser
import pytest
from conftest import PYTHON, Completed, Gpualert, run_dirs, wait_until
from notify.failing import SCRIPT, environment_for, fail, spool, with_reporter
from notify.servers import Accepting

DIES_AT_ONCE = "os.kill(os.getpid(), 9)"
DIES_BEFORE_THE_SPOOL = "import gpualert.report.making as m; m.notify = lambda *_: os.kill(os.getpid(), 9)"
DIAGNOSES_FOR_EVER = "import gpualert.report.making as m; m.make = lambda *_: time.sleep(600)"


def _run(plain: Gpualert, body: str, environment: dict[str, str], *options: str) -> Completed:
    argv = [*with_reporter(plain, body), *options, "--", "sh", "-c", SCRIPT]
    done = subprocess.run(argv, env={**plain._environment(None), **environment}, capture_output=True, check=False)
    assert done.returncode == 3, done.stderr
    return Completed(done.returncode, done.stdout, done.stderr, plain.log_dir)


def _next_run(plain: Gpualert, environment: dict[str, str], _run_dir: Path) -> None:
    plain.run(["true"], env=environment)


def _report(plain: Gpualert, environment: dict[str, str], run_dir: Path) -> None:
    argv = [PYTHON, "-I", "-m", "gpualert", "report", str(run_dir)]
    done = subprocess.run(argv, env={**plain._environment(None), **environment}, capture_output=True, check=True)
    assert b"cuda_oom" in done.stdout


def _attend(plain: Gpualert, environment: dict[str, str], _run_dir: Path) -> None:
    argv = [PYTHON, "-I", "-m", "gpualert", "attend", "--every", "0.1s", "--log-dir", str(plain.log_dir)]
    process = subprocess.Popen(argv, env={**plain._environment(None), **environment})
    wait_until(lambda: list((plain.log_dir / ".open").iterdir()) == [], "the run to be closed")
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize("follower", [_next_run, _report, _attend])
@pytest.mark.parametrize("body", [DIES_AT_ONCE, DIES_BEFORE_THE_SPOOL])
def test_a_reporter_that_is_killed_before_the_spool_costs_no_mail(
    plain: Gpualert,
    accepting: Callable[..., Accepting],
    body: str,
    follower: Callable[[Gpualert, dict[str, str], Path], None],
) -> None:
    server = accepting()
    environment = environment_for(server.port)
    done = _run(plain, body, environment)
    assert (server.inbox.mails, spool(done)) == ([], [])
    run_dir = done.run_dir
    follower(plain, environment, run_dir)
    wait_until(lambda: list((plain.log_dir / ".open").iterdir()) == [], "the run to be closed")
    for _ in range(2):
        plain.run(["true"], env=environment)
    assert len(server.inbox.mails) == 1
    assert "failed: cuda_oom" in fast_mail_parser.parse_email(server.inbox.mails[0]).subject
    assert b'"outcome": "sent"' in (run_dir / "report.json").read_bytes()


def test_a_reporter_that_is_killed_after_the_mail_costs_no_second_one(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    server = accepting()
    environment = environment_for(server.port)
    body = (
        "import gpualert.report.making as m; notify = m.notify; "
        "m.notify = lambda *a: (notify(*a), os.kill(os.getpid(), 9))"
    )
    done = _run(plain, body, environment)
    assert len(server.inbox.mails) == 1
    _report(plain, environment, done.run_dir)
    assert len(server.inbox.mails) == 1
    assert done.json("report.json")["notifications"][0]["outcome"] == "sent"


def test_a_run_that_is_reported_is_told_of_once(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    environment = environment_for(server.port)
    run_dir = fail(plain, environment).run_dir
    assert list((plain.log_dir / ".open").iterdir()) == []
    assert not {".telling", ".told"} & {path.name for path in run_dir.iterdir()}
    plain.run(["true"], env=environment)
    _report(plain, environment, run_dir)
    assert len(server.inbox.mails) == 1


def test_a_clean_success_without_a_report_is_nobodys_business(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    server = accepting()
    environment = environment_for(server.port)
    argv = [*with_reporter(plain, DIES_AT_ONCE), "--", "echo", "Traceback of old"]
    subprocess.run(argv, env={**plain._environment(None), **environment}, capture_output=True, check=True)
    (run_dir,) = run_dirs(plain.log_dir)
    assert not (run_dir / "report.json").exists()
    plain.run(["true"], env=environment)
    wait_until(lambda: list((plain.log_dir / ".open").iterdir()) == [], "the run to be closed")
    assert server.inbox.mails == []
    assert (run_dir / "report.json").exists()


def test_a_diagnosis_that_takes_too_long_costs_no_mail(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    done = _run(plain, DIAGNOSES_FOR_EVER, environment_for(server.port), "--report-deadline", "8s")
    mail = fast_mail_parser.parse_email(server.inbox.mails[0])
    assert mail.subject.startswith("[gpualert] sh failed: ")
    assert "the log was not diagnosed in time (report.deadline): told from the facts alone" in mail.text_plain[0]
    assert "CUDA out of memory" in mail.text_plain[0]  # the last lines are there
    assert done.json("report.json")["exit"]["exit_code"] == 3
    assert any("told from the facts alone" in line for line in done.said)


def test_a_stop_signal_during_the_diagnosis_costs_no_mail(plain: Gpualert) -> None:
    argv = [*with_reporter(plain, DIAGNOSES_FOR_EVER), "--report-deadline", "1h", "--", "sh", "-c", SCRIPT]
    environment = {**plain._environment(None), "GPUALERT_EMAIL_TO": "a@example.org"}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: (run_dirs(plain.log_dir)[0] / "reporter.log").exists(), "the reporter")
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 3
    done = Completed(3, stdout, stderr, plain.log_dir)
    if not spool(done):  # a machine so slow that the reporter was killed: whoever looks next does it
        plain.run(["true"], env={"GPUALERT_EMAIL_TO": "a@example.org"})
        wait_until(lambda: list(plain.log_dir.glob("2*/mail/*.eml")), "the mail")
    (mail,) = plain.log_dir.glob("2*/mail/*.eml")
    assert os.path.getsize(mail) > 0
