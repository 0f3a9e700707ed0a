"""The standalone bundle that gpualert may run from: where it is, and copying it elsewhere, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFEST = "MANIFEST.sha256"
LAUNCHER = os.path.join("bin", "gpualert")
ASIDE = ".gpualert-"
"""How the names of unfinished copies begin."""
BLOCK = 1 << 20
CHECK_S = 60.0


class BundleError(Exception):
    """The bundle cannot be copied; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied.

    Attributes:
        files: How many files.
        size: How many bytes.
    """

    files: int
    size: int


def root() -> str | None:
    """The bundle that this program runs from; None where it was installed in another way."""
    # <root>/site/gpualert/bundle.py
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return here if os.path.isfile(os.path.join(here, MANIFEST)) else None


def certificates() -> str | None:
    """The authorities that came with the bundle; None without a bundle."""
    here = root()
    path = os.path.join(here, "lib", "ca-certificates.crt") if here else ""
    return path if os.path.isfile(path) else None


def _hashes(source: str) -> dict[str, str]:
    """What the manifest says: SHA-256 in hexadecimal by path in the bundle."""
    with open(os.path.join(source, MANIFEST), encoding="utf-8") as file:
        rows = (line.rstrip("\n").split("  ", 1) for line in file)
        return {path: digest for digest, path in rows}


def copy(source: str, target: str) -> Copied:
    """Copy a bundle, so that whoever looks finds all of it or none.

    Everything is written beside its place and checked there, then moved; the launcher comes last.

    Args:
        source: The bundle.
        target: Where to; made if missing. It may be the root of a volume that is mounted elsewhere when it is used.

    Raises:
        BundleError: It cannot be copied, or the copy is not what it should be.
    """
    try:
        _make_directory(target)
        with _alone(target):
            return _copy(source, target)
    except OSError as error:
        raise BundleError(_worded(error, target)) from None


def _copy(source: str, target: str) -> Copied:
    aside = tempfile.mkdtemp(prefix=ASIDE, dir=target)
    try:
        copied = _copy_into(source, aside)
        _check_start(aside)
        # bin last: who waits for the launcher then finds all that it needs.
        for name in sorted(os.listdir(aside), key=lambda name: name == "bin"):
            _replace(os.path.join(aside, name), os.path.join(target, name), aside)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return copied


def _make_directory(path: str) -> None:
    """Make a directory and its parents, for everybody to enter, whatever the umask is."""
    if not os.path.isdir(path):
        _make_directory(os.path.dirname(path))
        os.mkdir(path)
        os.chmod(path, 0o755)  # noqa: S103  (whoever runs the job must reach the launcher)


@contextlib.contextmanager
def _alone(target: str) -> Iterator[None]:
    """Hold the right to copy into a directory, without what copies that were killed have left there.

    Where a file system has no locks nothing is removed: it might be somebody's who copies at this moment.
    """
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        locked = False
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
            locked = True
        for name in os.listdir(target) if locked else []:
            if name.startswith(ASIDE):
                shutil.rmtree(os.path.join(target, name), ignore_errors=True)
        yield
    finally:
        os.close(fd)


def _worded(error: OSError, target: str) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left in {target} (a bundle takes about 60 MB; see the volume's sizeLimit)"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"cannot write {target} ({error.strerror}) as user {os.getuid()}, group {os.getgid()}"
    return f"cannot write {target} ({error.strerror})"


def _copy_into(source: str, aside: str) -> Copied:
    """Copy and check every file of the manifest, and the links beside them."""
    size = 0
    hashes = _hashes(source)
    for path, digest in hashes.items():
        target = os.path.join(aside, path)
        _make_directory(os.path.dirname(target))
        size += _copy_file(os.path.join(source, path), target, digest)
    shutil.copy(os.path.join(source, MANIFEST), os.path.join(aside, MANIFEST))  # with its mode
    for place, directories, names in os.walk(source):
        directories[:] = [name for name in directories if not name.startswith(ASIDE)]  # it may be its own target
        for name in names:
            path = os.path.join(place, name)
            if os.path.islink(path):
                os.symlink(os.readlink(path), os.path.join(aside, os.path.relpath(path, source)))
    return Copied(len(hashes), size)


def _copy_file(source: str, target: str, digest: str) -> int:
    """Copy one file; returns its size in bytes."""
    seen, size = hashlib.sha256(), 0
    with open(source, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "wb") as copy_file:
            os.fchmod(fd, mode)  # whatever the umask is
            while block := file.read(BLOCK):
                seen.update(block)
                size += len(block)
                copy_file.write(block)
    with open(target, "rb") as file:
        written = hashlib.file_digest(file, "sha256").hexdigest()
    if seen.hexdigest() != digest or written != digest:
        raise BundleError(f"{source} is damaged: its hash is not the one in {MANIFEST}")
    return size


def _check_start(aside: str) -> None:
    """Start the copy once: a volume may be mounted without the right to execute, or be for another machine."""
    launcher = os.path.join(aside, LAUNCHER)
    try:
        done = subprocess.run([launcher, "version"], capture_output=True, timeout=CHECK_S, check=False)
    except OSError as error:
        hint = " (is the volume mounted noexec?)" if error.errno == errno.EACCES else ""
        raise BundleError(f"{launcher} cannot be started: {error.strerror}{hint}") from None
    except subprocess.TimeoutExpired:
        raise BundleError(f"{launcher} did not answer within {CHECK_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BundleError(f"the copy does not start: {said[-1] if said else f'exit status {done.returncode}'}")


def _replace(new: str, place: str, aside: str) -> None:
    """Put a file or directory in its place; an older one moves out of the way first."""
    if os.path.isdir(place) and not os.path.islink(place):
        os.rename(place, os.path.join(aside, f"old-{os.path.basename(place)}"))
    os.rename(new, place)
