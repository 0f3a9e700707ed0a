"""Copying the bundle: what a copy that was killed has left goes, and any user can start what is there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from pathlib import Path

import pytest

from gpualert import bundle


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A bundle of two files, whose launcher is a script."""
    made = tmp_path / "source"
    (made / "bin").mkdir(parents=True)
    (made / "lib" / "deep").mkdir(parents=True)
    (made / "bin" / "gpualert").write_text("#!/bin/sh\nexit 0\n")
    (made / "bin" / "gpualert").chmod(0o755)
    (made / "lib" / "deep" / "module").write_text("x")
    files = [path for path in sorted(made.rglob("*")) if path.is_file()]
    rows = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(made)}\n" for path in files)
    (made / bundle.MANIFEST).write_text("".join(rows))
    return made


def test_what_a_killed_copy_has_left_is_removed(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for name in (".gpualert-abc", ".gpualert-def"):
        (target / name / "lib").mkdir(parents=True)
        (target / name / "lib" / "half").write_text("x" * 1000)
    (target / "mine").write_text("kept")
    bundle.copy(str(source), str(target))
    assert sorted(path.name for path in target.iterdir()) == ["MANIFEST.sha256", "bin", "lib", "mine"]


def test_a_copy_that_goes_on_is_left_alone(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / ".gpualert-abc").mkdir(parents=True)
    lock = os.open(target, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    copier = threading.Thread(target=bundle.copy, args=(str(source), str(target)))
    copier.start()
    copier.join(0.3)
    assert copier.is_alive()
    assert [path.name for path in target.iterdir()] == [".gpualert-abc"]
    os.close(lock)
    copier.join()
    assert sorted(path.name for path in target.iterdir()) == ["MANIFEST.sha256", "bin", "lib"]


def test_another_user_can_start_it_whatever_the_umask_is(source: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        bundle.copy(str(source), str(tmp_path / "above" / "target"))
    finally:
        os.umask(before)
    made = [tmp_path / "above", *(tmp_path / "above").rglob("*")]
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_dir()} == {"0o755"}
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in made)
