"""Whatever a person calls a log is read: pipes, UTF-16, compressed files; what cannot be is said in one line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
TEXT = "step 1 loss 0.3\n" * 50 + OOM
RULE = '[[rule]]\nid = "own.{0}"\nclass = "hang"\npattern = "the {0} is asleep"\npositive = ["the {0} is asleep"]\n'


def call(*arguments: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-I", "-m", "gpualert", *arguments]
    command = ["bash", "-c", shell, "bash", *argv] if shell else argv
    return subprocess.run(command, capture_output=True, check=False, env={**os.environ, **environment})


def named(path: Path | str) -> str:
    done = call("classify", "--exit-code", "1", "--format", "json", str(path))
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["class"])


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_a_compressed_log_is_read(tmp_path: Path, pack: object) -> None:
    (tmp_path / "train.log").write_bytes(pack(TEXT.encode()))  # type: ignore[operator]
    assert named(tmp_path / "train.log") == "cuda_oom"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_a_log_in_another_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "train.log").write_bytes(TEXT.encode(encoding))
    assert named(tmp_path / "train.log") == "cuda_oom"


def test_a_compressed_log_that_was_cut_off_tells_what_it_has(tmp_path: Path) -> None:
    packed = gzip.compress((TEXT + os.urandom(90_000).hex()).encode())
    (tmp_path / "train.log.gz").write_bytes(packed[:-20_000])
    assert named(tmp_path / "train.log.gz") == "cuda_oom"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x28\xb5\x2f\xfd1234", b"is compressed: zstdcat FILE | gpualert classify -"),
        (b"\x1f\x8b\x08", b"is compressed, and"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, data: bytes, said: bytes) -> None:
    (tmp_path / "log").write_bytes(data)
    done = call("classify", str(tmp_path / "log"))
    assert (done.returncode, done.stderr.count(b"\n"), said in done.stderr) == (1, 1, True)


@pytest.mark.parametrize(
    "shell",
    [
        'exec "$@" <(cat "$LOG")',
        'cat "$LOG" | "$@" /dev/stdin',
        '"$@" /dev/stdin <"$LOG"',
        'cat "$LOG" | "$@" -',
        'mkfifo "$LOG.pipe"; cat "$LOG" >"$LOG.pipe" & "$@" "$LOG.pipe"',
    ],
)
def test_a_pipe_of_any_name_is_read(tmp_path: Path, shell: str) -> None:
    log = tmp_path / "train.log"
    log.write_text(TEXT)
    done = call("classify", "--exit-code", "1", shell=shell, LOG=str(log))
    assert done.stdout.startswith(b"cuda_oom"), done.stderr


def test_a_full_disk_behind_standard_output_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(TEXT)
    for arguments in (["classify", str(tmp_path / "log")], ["explain"]):
        done = call(*arguments, shell='exec "$@" >/dev/full')
        assert done.returncode == 1
        assert done.stderr == b"gpualert: cannot write to standard output (No space left on device)\n"


def test_a_batch_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "batch").write_text("[" * 200_000 + "\n")
    done = call("classify", "--batch", str(tmp_path / "batch"))
    assert (done.returncode, done.stderr.count(b"\n"), b"nested too deeply" in done.stderr) == (1, 1, True)


def test_rule_directories_of_the_environment_have_commas_between_them(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.toml").write_text(RULE.format(name))
    (tmp_path / "log").write_text("the dog is asleep\n")
    listed = f"{tmp_path}/cat, {tmp_path}/dog,"
    assert call("classify", "--exit-code", "1", str(tmp_path / "log"), GPUALERT_RULES=listed).stdout.startswith(b"hang")
    assert b"the cat is asleep" in call("explain", "hang", GPUALERT_RULES=listed).stdout
