"""A run that fails and is mailed, and what its mail's tests look at."""

from __future__ import annotations

import subprocess
from pathlib import Path

from conftest import PYTHON, REPOSITORY, Completed, Gpualert

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
SCRIPT = f"""
for i in 1 2 3; do echo "step $i loss 1.0"; done
echo 'Traceback (most recent call last):' >&2
echo '  File "train.py", line 3, in <module>' >&2
echo '    main()' >&2
echo '{OOM}' >&2
exit 3
"""


def environment_for(port: int, security: str = "none", **more: str) -> dict[str, str]:
    return {
        "GPUALERT_SMTP_HOST": "localhost",
        "GPUALERT_SMTP_PORT": str(port),
        "GPUALERT_SMTP_SECURITY": security,
        "GPUALERT_EMAIL_TO": "oncall@example.org",
        "GPUALERT_EMAIL_FROM": "gpualert@example.org",
        **more,
    }


def fail(plain: Gpualert, environment: dict[str, str], *options: str) -> Completed:
    return plain.run(["sh", "-c", SCRIPT], "--name", "llama-7b", *options, env=environment)


def spool(done: Completed) -> list[Path]:
    return sorted((done.run_dir / "mail").glob("*.eml"))


def flush(plain: Gpualert, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    argv = [PYTHON, "-I", "-m", "gpualert", "flush", "--log-dir", str(plain.log_dir)]
    return subprocess.run(argv, env={**plain._environment(None), **environment}, capture_output=True, check=False)


WITH_REPORTER = """
import sys
sys.path.insert(0, {repository!r})
import gpualert.supervisor.reporter as reporter
usual, start = reporter._START, reporter.start_process

def start_process(module, *arguments, **more):
    reporter._START = {start!r} if module == "report.process" else usual
    return start(module, *arguments, **more)

reporter.start_process = start_process
from gpualert.supervisor.main import run
run(sys.argv[1:])
"""


def with_reporter(plain: Gpualert, body: str) -> list[str]:
    """The start of a command line of ``gpualert run`` whose reporter runs ``body`` before its work."""
    start = f"import os, sys, time; sys.path.append(sys.argv.pop(1)); {body}; "
    start += "from gpualert.report.process import main; main() #{module}"
    program = WITH_REPORTER.format(repository=str(REPOSITORY), start=start)
    return [PYTHON, "-I", "-c", program, "--log-dir", str(plain.log_dir)]
