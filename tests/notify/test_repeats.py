"""The same failure again and again: real runs in one log directory, and what a person is told of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_mail_parser
import pytest
from conftest import PYTHON, Completed, Gpualert, run_dirs, wait_until
from notify.failing import OOM, SCRIPT, environment_for, flush, with_reporter
from notify.receivers import Receiver
from notify.servers import Accepting

KEY_ERROR = "echo 'Traceback (most recent call last):' >&2; echo \"KeyError: 'labels'\" >&2; exit 1"


def again(plain: Gpualert, environment: dict[str, str], count: int = 1, script: str = SCRIPT) -> Completed:
    """The same job, so many times."""
    for _ in range(count):
        done = plain.run(["sh", "-c", script], "--name", "llama-7b", env=environment)
    return done


def subjects(server: Accepting) -> list[str]:
    return [fast_mail_parser.parse_email(mail).subject.strip() for mail in server.inbox.mails]


def reports(plain: Gpualert) -> list[dict[str, Any]]:
    return [json.loads((path / "report.json").read_text()) for path in run_dirs(plain.log_dir)]


def outcomes(plain: Gpualert) -> list[list[str]]:
    return [[row["outcome"] for row in report["notifications"]] for report in reports(plain)]


def test_a_crash_loop_is_told_at_one_two_three_and_five(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    environment = environment_for(server.port)
    done = again(plain, environment, 4)
    assert "nobody told: the same failure 4 times; number 5 is told, or one after " in done.said[-1]
    assert "(notify.repeats)" in done.said[-1]
    last = again(plain, environment)
    assert outcomes(plain) == [["sent"], ["sent"], ["sent"], ["held"], ["sent"]]
    first, second, third, fifth = subjects(server)
    assert first.startswith("[gpualert] llama-7b failed: cuda_oom after ")
    assert second.startswith("[gpualert] llama-7b failed: cuda_oom after ")
    assert third.startswith("[gpualert] llama-7b crash loop: cuda_oom 3 times in ")
    assert fifth.startswith("[gpualert] llama-7b crash loop: cuda_oom 5 times in ")
    mail = fast_mail_parser.parse_email(server.inbox.mails[-1])
    held = run_dirs(plain.log_dir)[3].name
    for body in (mail.text_plain[0], mail.text_html[0]):
        assert "Attempts before this one (4 with the same failure)" in body
        assert "do not retry: the same failure 5 times in " in body
    (row,) = [line for line in mail.text_plain[0].splitlines() if held in line]
    assert row.split()[-2:] == ["no", held]
    assert held in mail.text_html[0]
    page = (last.run_dir / "report.html").read_text()
    assert held in page
    attempt = last.json("report.json")["attempt"]
    assert (attempt["number"], attempt["same"], attempt["held_count"]) == (5, 5, 1)
    assert [row["run_id"] for row in attempt["progress"]] == [path.name for path in run_dirs(plain.log_dir)]


def test_the_advice_comes_first_wherever_the_failure_is_shown(
    plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path
) -> None:
    message = tmp_path / "termination"
    message.touch()
    environment = environment_for(accepting().port, GPUALERT_TERMINATION_LOG=str(message))
    first = again(plain, environment)
    assert first.json("report.json")["attempt"]["advice"] is None
    second = again(plain, environment)
    report = second.json("report.json")
    advice = report["attempt"]["advice"]
    assert advice.startswith("do not retry: the same failure 2 times in ")
    assert report["diagnosis"]["suggestions"][0] == advice
    assert report["diagnosis"]["retryable"] is False
    assert f"gpualert:   {advice}" in second.said
    assert any(line.startswith("gpualert:   try: ") for line in second.said)
    assert advice in message.read_text().splitlines()


def test_another_failure_begins_the_count_anew_and_names_what_was_held(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    server = accepting()
    environment = environment_for(server.port)
    again(plain, environment, 4)
    again(plain, environment, script=KEY_ERROR)
    assert outcomes(plain)[3:] == [["held"], ["sent"]]
    mail = fast_mail_parser.parse_email(server.inbox.mails[-1])
    assert mail.subject.strip().startswith("[gpualert] llama-7b failed: ")
    assert run_dirs(plain.log_dir)[3].name in mail.text_plain[0]
    again(plain, environment)
    assert outcomes(plain)[-1] == ["sent"]
    assert reports(plain)[-1]["attempt"]["same"] == 1


def test_a_success_begins_the_count_anew(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    environment = environment_for(accepting().port)
    again(plain, environment, 3)
    again(plain, environment, script="exit 0")
    done = again(plain, environment)
    assert done.json("report.json")["attempt"]["same"] == 1
    assert outcomes(plain)[-1] == ["sent"]


def test_a_failure_that_gets_further_each_time_is_no_loop(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    environment = environment_for(server.port)
    for step in (100, 5000, 9000, 20000):
        done = again(plain, environment, script=SCRIPT.replace("step $i loss", f"step $(({step} + i)) loss"))
    assert outcomes(plain) == [["sent"]] * 4
    assert (done.json("report.json")["attempt"]["same"], done.json("report.json")["attempt"]["number"]) == (1, 4)
    assert done.json("report.json")["attempt"]["advice"] is None


def test_the_step_that_it_never_passes_is_named(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    done = again(plain, environment_for(server.port), 3)
    assert "at the same step (3)" in done.json("report.json")["attempt"]["advice"]
    assert subjects(server)[-1].endswith("(same step 3)")


def test_all_turns_it_off(plain: Gpualert, accepting: Callable[..., Accepting], tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[notify]\nrepeats = "all"\n')
    server = accepting()
    again(plain, environment_for(server.port, GPUALERT_CONFIG=str(config)), 4)
    assert outcomes(plain) == [["sent"]] * 4
    assert all(" failed: cuda_oom after " in subject for subject in subjects(server))
    assert reports(plain)[-1]["diagnosis"]["suggestions"][0].startswith("do not retry: the same failure 4 times")


def test_numbers_in_the_decisive_line_make_no_other_failure(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    environment = environment_for(accepting().port)
    again(plain, environment)
    done = again(plain, environment, script=SCRIPT.replace("2.00 GiB", "96.00 MiB"))
    assert OOM.replace("2.00 GiB", "96.00 MiB") in done.json("report.json")["diagnosis"]["root"]["text"]
    assert done.json("report.json")["attempt"]["same"] == 2


def test_other_jobs_and_ranks_in_the_directory_do_not_count(
    plain: Gpualert, accepting: Callable[..., Accepting]
) -> None:
    environment = environment_for(accepting().port)
    again(plain, environment, 3)
    other = plain.run(["sh", "-c", SCRIPT], "--name", "other", env=environment)
    assert other.json("report.json")["attempt"]["same"] == 1
    for rank in ("0", "1"):
        ranked = again(plain, {**environment, "RANK": rank, "WORLD_SIZE": "2"})
        assert ranked.json("report.json")["attempt"]["same"] == 1


def test_a_job_that_was_stopped_gets_no_advice(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    environment = environment_for(server.port)
    for _ in range(3):
        done = plain.run(["sleep", "600"], "--name", "llama-7b", "--timeout", "0.3s", env=environment)
    report = done.json("report.json")
    assert report["diagnosis"]["class"] == "terminated"
    assert report["diagnosis"]["retryable"] is True
    assert (report["attempt"]["same"], report["attempt"]["advice"]) == (3, None)
    assert subjects(server)[-1].startswith("[gpualert] llama-7b stopped again: terminated 3 times in ")


def test_other_channels_are_held_as_well(plain: Gpualert, receiving: Callable[..., Receiver]) -> None:
    receiver = receiving()
    environment = {"GPUALERT_WEBHOOK_URL": f"http://127.0.0.1:{receiver.port}/hook"}
    again(plain, environment, 4)
    assert outcomes(plain) == [["sent"], ["sent"], ["sent"], ["held"]]
    assert len(receiver.bodies) == 3


def test_what_is_held_is_not_sent_by_whoever_looks_later(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    server = accepting()
    environment = environment_for(server.port)
    again(plain, environment, 4)
    flush(plain, environment)
    argv = [PYTHON, "-I", "-m", "gpualert", "report", "--again", "latest", "--log-dir", str(plain.log_dir)]
    shown = subprocess.run(argv, env={**plain._environment(None), **environment}, capture_output=True, check=True)
    assert b"held" in shown.stdout
    assert b"do not retry" in shown.stdout
    plain.run(["true"], env=environment)
    assert len(server.inbox.mails) == 3
    assert outcomes(plain)[3] == ["held"]


@pytest.mark.parametrize("dies", ["m.notify = lambda *_: os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 9)"])
def test_a_reporter_that_dies_before_it_holds_one_back_loses_nothing(
    plain: Gpualert, accepting: Callable[..., Accepting], dies: str
) -> None:
    server = accepting()
    environment = environment_for(server.port)
    again(plain, environment, 3)
    argv = [*with_reporter(plain, f"import gpualert.report.making as m; {dies}"), "--name", "llama-7b", "--"]
    subprocess.run([*argv, "sh", "-c", SCRIPT], env={**plain._environment(None), **environment}, check=False)
    plain.run(["true"], env=environment)
    wait_until(lambda: list((plain.log_dir / ".open").iterdir()) == [], "the run to be closed")
    assert outcomes(plain)[3] == ["held"]
    assert len(server.inbox.mails) == 3
    again(plain, environment)
    assert len(server.inbox.mails) == 4
    assert "crash loop: cuda_oom 5 times" in subjects(server)[-1]


def test_with_nobody_to_tell_nothing_is_held(plain: Gpualert) -> None:
    done = again(plain, {}, 4)
    assert outcomes(plain) == [[]] * 4
    assert "nobody told" not in done.said[-1]


def test_a_dry_run_shows_its_mail_each_time(plain: Gpualert) -> None:
    for _ in range(4):
        done = plain.run(["sh", "-c", SCRIPT], "--name", "llama-7b", "--dry-run")
    assert "gpualert: | Subject: [gpualert] llama-7b failed: cuda_oom" in done.stderr.decode()
