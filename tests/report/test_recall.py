"""Secrets stay masked when somebody reports a run who does not know them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON, Gpualert, fast, run_dirs

from gpualert.report import recall
from gpualert.supervisor.redaction import MASK, Redaction, fingerprints

TOKEN, PASSWORD = "hf_Zk3vT0pS3cr3tT0k3n", "p\u00e4ss w\u00f6rd"
SECRETS = {"HF_TOKEN": TOKEN, "DB_PASSWORD": PASSWORD, "SIGNING_KEY": "first line\nsecond-line-of-the-key"}
SCRIPT = f"""
echo 'login -p{PASSWORD}; url https://user:{TOKEN}@hub/x'
echo 'second-line-of-the-key'
echo 'Traceback (most recent call last):
  File "t.py", line 1, in <module>
ValueError: bad token "{TOKEN}"' >&2
"""


def _report(path: Path, *options: str) -> str:
    environment = {"PATH": os.environ["PATH"], "GPUALERT_CONFIG": os.devnull}
    argv = [PYTHON, "-I", "-m", "gpualert", "report", *options, str(path)]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout


def _holds_no_secret(path: Path, said: str) -> None:
    assert "bad token " in said
    assert MASK in said
    for text in (said, *(file.read_text("utf-8", "replace") for file in path.iterdir() if file.name != "output.log")):
        for secret in (TOKEN, PASSWORD, "second-line-of-the-key"):
            assert secret not in text


@pytest.mark.parametrize("interpreter", [(PYTHON, "-I"), fast()])
def test_a_report_made_again_from_another_environment_masks_the_same(
    plain: Gpualert, interpreter: tuple[str, ...]
) -> None:
    plain.python = interpreter
    done = plain.run(["sh", "-c", SCRIPT + "exit 1"], env=SECRETS)
    masks = done.run_dir / "masks.json"
    assert masks.stat().st_mode & 0o777 == 0o600
    assert not any(secret in masks.read_text() for secret in (TOKEN, PASSWORD, "second-line"))
    (done.run_dir / "report.json").unlink(missing_ok=True)
    _holds_no_secret(done.run_dir, _report(done.run_dir, "--again"))
    again = json.loads(_report(done.run_dir, "--again", "--format", "json"))
    # The two streams come in whichever order their readers take them.
    assert {f"login -p{MASK}; url https://user:{MASK}@hub/x", MASK} <= set(again["quotes"]["tail"])
    # One who may not read it, or finds it damaged, says so.
    masks.write_text("{")
    damaged = json.loads(_report(done.run_dir, "--again", "--format", "json"))
    assert (
        "cannot read masks.json (it is damaged): secrets that the run alone knew are not masked" in damaged["trouble"]
    )


def test_a_survivor_masks_what_only_the_dead_supervisor_knew(plain: Gpualert) -> None:
    started = plain.start(["sh", "-c", SCRIPT + "echo $$; exec sleep 600"], env=SECRETS)
    started.wait_for(b"bad token")
    path = run_dirs(plain.log_dir)[0]
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait()
    os.kill(
        next(int(line) for line in (path / "output.log").read_text().splitlines() if line.isdigit()), signal.SIGKILL
    )
    _holds_no_secret(path, _report(path))


def test_a_run_without_secrets_leaves_nothing(plain: Gpualert) -> None:
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run(plain.argv([], ["true"]), env=environment, check=True)
    assert not (run_dirs(plain.log_dir)[0] / "masks.json").exists()


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("", ""),
        ("secret-one", MASK),
        ("xsecret-onesecret-twoy", f"x{MASK}{MASK}y"),
        ("a longer secret-one with more", f"a {MASK} more"),
        ("secret-on", "secret-on"),
        ("\u20acuro \ud800 s\u00e9cret", f"\u20acuro ? {MASK}"),
        ("known-here and \u20ac \ud800", f"{MASK} and \u20ac \ud800"),
    ],
)
def test_what_a_fingerprint_finds(tmp_path: Path, text: str, masked: str) -> None:
    secrets = ["longer secret-one with", "secret-one", "secret-two", "s\u00e9cret", "known-here"]
    (tmp_path / "masks.json").write_text(json.dumps(fingerprints(secrets)))
    redaction, problem = recall.recalling(Redaction(["known-here"]), str(tmp_path))
    assert (redaction.mask(text), problem) == (masked, "")
    # Who knows them all has nothing to look up.
    everything = Redaction(secrets)
    assert recall.recalling(everything, str(tmp_path)) == (everything, "")
