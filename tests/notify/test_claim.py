"""Two never send one mail, also where the file system knows no locks, or those of NFS."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON, REPOSITORY, Gpualert, wait_until
from notify.failing import environment_for, fail, flush, spool
from notify.servers import Accepting

from gpualert.notify import claim

WITHOUT_LOCKS = f"""
import errno, fcntl, sys
def flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
sys.path.insert(0, {str(REPOSITORY)!r})
sys.argv[0] = "gpualert"
from gpualert.cli.main import main
main(sys.argv[1:])
"""


def _flush_without_locks(plain: Gpualert, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    argv = [PYTHON, "-I", "-c", WITHOUT_LOCKS, "flush", "--log-dir", str(plain.log_dir)]
    return subprocess.Popen(argv, env={**plain._environment(None), **environment}, stdout=subprocess.PIPE)


def test_without_locks_each_mail_is_sent_once_too(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    server = accepting()
    server.inbox.hold_s = 600
    first = _flush_without_locks(plain, environment_for(server.port))
    wait_until(lambda: server.inbox.receiving == 1, "the mail to be on its way")
    second = accepting()
    other = _flush_without_locks(plain, environment_for(second.port))
    said, _ = other.communicate(timeout=60)
    assert said.startswith(b"busy: ")
    assert second.inbox.mails == []
    first.kill()
    first.wait()
    # The claim of one that is gone is taken over, once it is old enough.
    (claimed,) = (done.run_dir / "mail").glob("*.claimed-*")
    os.utime(claimed, (0, 0))
    last = _flush_without_locks(plain, environment_for(second.port))
    assert last.communicate(timeout=60)[0].startswith(b"sent to a@example.org: ")
    assert last.returncode == 0
    assert len(second.inbox.mails) == 1
    assert not list((done.run_dir / "mail").glob("*.eml*"))


def test_without_locks_a_mail_that_nobody_takes_waits_under_its_name(plain: Gpualert) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    before = spool(done)
    process = _flush_without_locks(plain, {})
    assert process.communicate(timeout=60)[0].startswith(b"spooled to a@example.org: ")
    assert process.returncode == 1
    assert spool(done) == before


def test_a_file_is_open_for_writing_when_it_is_locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = fcntl.flock

    def of_nfs(fd: Any, operation: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    path = tmp_path / "a.eml"
    path.write_bytes(b"x")
    with claim.hold(str(path)) as held:
        assert held is not None
        assert held.place == str(path)
        with claim.hold(str(path)) as again:
            assert again is None


def test_only_a_lock_that_somebody_holds_is_no_failure(plain: Gpualert, accepting: Callable[..., Accepting]) -> None:
    done = fail(plain, {"GPUALERT_EMAIL_TO": "a@example.org"})
    (path,) = spool(done)
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        flushed = flush(plain, environment_for(accepting().port))
    assert (flushed.returncode, flushed.stdout[:6]) == (0, b"busy: ")
