"""``--timeout`` and ``--kill-after``."""

from __future__ import annotations

import signal

from conftest import Gpualert


def test_the_limit_ends_the_command_politely(gpualert: Gpualert) -> None:
    done = gpualert.run(
        ["sh", "-c", "trap 'echo asked; exit 12' TERM; while :; do sleep 0.05; done"], "--timeout", "500ms"
    )
    assert (done.returncode, done.stdout) == (12, b"asked\n")
    assert done.json("exit.json")["timed_out"] is True
    assert done.json("exit.json")["timeout_s"] == 0.5
    diagnosis = done.json("report.json")["diagnosis"]
    assert (diagnosis["class"], "0.5 s" in diagnosis["summary"]) == ("terminated", True)
    assert [e["event"] for e in done.events if e["event"] == "timeout"] == ["timeout"]


def test_who_does_not_listen_is_killed(gpualert: Gpualert) -> None:
    text = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
    done = gpualert.run(["sh", "-c", text], "--timeout", "0.5", "--kill-after", "300ms")
    assert done.returncode == (137 if gpualert.pid1 else -signal.SIGKILL)
    assert done.json("report.json")["diagnosis"]["class"] == "terminated"


def test_a_stopped_command_is_ended_too(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "kill -STOP $$; echo never"], "--timeout", "0.5")
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"")


def test_a_command_that_is_done_in_time_is_not_touched(plain: Gpualert) -> None:
    done = plain.run(["sh", "-c", "exit 0"], "--timeout", "1h")
    assert (done.returncode, done.json("exit.json")["timed_out"]) == (0, False)


def test_the_limit_may_come_from_the_environment(plain: Gpualert) -> None:
    done = plain.run(["sleep", "60"], env={"GPUALERT_TIMEOUT": "400ms"})
    assert done.returncode == -signal.SIGTERM


def test_a_bad_limit_in_the_environment_is_said_and_ignored(plain: Gpualert) -> None:
    done = plain.run(["true"], env={"GPUALERT_TIMEOUT": "soon"})
    assert done.returncode == 0
    assert done.said == ["gpualert: GPUALERT_TIMEOUT must be a duration such as 90s, 30m or 3h12m, not 'soon': ignored"]
