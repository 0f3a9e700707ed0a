"""Artifacts: which files go along with the mail, and what became of each; none is ever dropped in silence."""

from __future__ import annotations

import glob
import gzip
import mimetypes
import os
import stat
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator, Sequence

MAX_MATCHES = 1000
READABLE_LARGE = 16
"""A file this many times over the budget is still tried with compression; text shrinks about so much."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file, or one pattern that matched none.

    Attributes:
        path: As it was found, relative to the root where it lies in it.
        size: Its size in bytes; None where that is unknown.
        fate: ``attached``, ``zipped``, ``too_large``, ``over_total``, ``unreadable``, ``not_a_file``, ``outside_root``,
            ``no_match`` or ``too_many``.
        note: What a person should know about that.
        content: What is attached; None where nothing is.
        name: The attachment's file name.
        content_type: Its MIME type.
    """

    path: str
    size: int | None
    fate: str
    note: str = ""
    content: bytes | None = None
    name: str = ""
    content_type: str = "application/octet-stream"

    def as_dict(self) -> dict[str, object]:
        """The entry in ``report.json``."""
        return {"path": self.path, "size": self.size, "fate": self.fate, "note": self.note}


def collect(patterns: Sequence[str], root: str, max_file: int, max_total: int) -> list[Artifact]:
    """Collect the files that patterns name.

    Args:
        patterns: Globs relative to ``root`` (``**`` crosses directories), or absolute ones below it.
        root: The directory that files must lie in.
        max_file: How many bytes one attachment may have.
        max_total: How many all may have together.

    Returns:
        Every match and every pattern without one, each with its fate, in the order of patterns and names.
    """
    root = os.path.realpath(root)
    left = max_total
    collected = []
    for pattern, path in _matches(patterns, root):
        if path is None:
            collected.append(Artifact(pattern, None, "no_match", f"no file matches below {root}"))
            continue
        if len(collected) >= MAX_MATCHES:
            collected.append(Artifact(pattern, None, "too_many", f"only the first {MAX_MATCHES} matches are looked at"))
            break
        artifact = _one(path, root, max_file, left)
        left -= len(artifact.content or b"")
        collected.append(artifact)
    return collected


def _matches(patterns: Sequence[str], root: str) -> Iterator[tuple[str, str | None]]:
    """Each pattern with each path it matches, once; None where it matches nothing."""
    seen: set[str] = set()
    for pattern in patterns:
        whole = pattern if os.path.isabs(pattern) else os.path.join(glob.escape(root), pattern)
        found = False
        for path in sorted(_limited(glob.iglob(whole, recursive=True, include_hidden=True))):
            if os.path.isdir(path) and not os.path.islink(path):
                continue
            found = True
            if path not in seen:
                seen.add(path)
                yield pattern, path
        if not found:
            yield pattern, None


def _limited(paths: Iterator[str]) -> Iterator[str]:
    for count, path in enumerate(paths):
        if count > 10 * MAX_MATCHES:
            return
        yield path


def _one(path: str, root: str, max_file: int, left: int) -> Artifact:
    """One file with its fate."""
    real = os.path.realpath(path)
    shown = os.path.relpath(path, root) if path.startswith(root + os.sep) else path
    if real != root and not real.startswith(root.rstrip(os.sep) + os.sep):
        return Artifact(shown, None, "outside_root", f"it lies outside {root}; set artifacts.root to allow it")
    try:
        # O_NONBLOCK: a FIFO must not block us; O_NOFOLLOW on the real path: no link is swapped in meanwhile.
        fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        return Artifact(shown, None, "unreadable", error.strerror or "cannot be opened")
    with open(fd, "rb") as file:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            return Artifact(shown, None, "not_a_file", "only regular files are attached")
        try:
            return _fit(shown, file, state.st_size, max_file, left)
        except OSError as error:
            return Artifact(shown, state.st_size, "unreadable", error.strerror or "cannot be read")


def _fit(shown: str, file: io.BufferedReader, size: int, max_file: int, left: int) -> Artifact:
    """Attach a file as it is, or compressed, if it fits."""
    allowed = min(max_file, left)
    name = os.path.basename(shown)
    content_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if size <= allowed:
        content = file.read(size)  # not more, should it grow meanwhile
        if len(content) > 64 << 10:
            packed = gzip.compress(content, 6, mtime=0)
            if len(packed) < 0.7 * len(content):
                note = f"compressed from {len(content)} to {len(packed)} bytes"
                return Artifact(shown, size, "zipped", note, packed, name + ".gz", "application/gzip")
        return Artifact(shown, size, "attached", "", content, name, content_type)
    if size <= READABLE_LARGE * allowed:
        compressed = _compress(file, size, allowed)
        if compressed is not None:
            note = f"compressed from {size} to {len(compressed)} bytes"
            return Artifact(shown, size, "zipped", note, compressed, name + ".gz", "application/gzip")
    if size > max_file:
        return Artifact(
            shown, size, "too_large", f"{size} bytes, the limit for one file is {max_file} (artifacts.max_file)"
        )
    return Artifact(shown, size, "over_total", f"{size} bytes, {left} are left of artifacts.max_total")


def _compress(file: io.BufferedReader, size: int, allowed: int) -> bytes | None:
    """The file's first ``size`` bytes as gzip; None when that is more than ``allowed`` bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    pieces, total, done = [], 0, 0
    while done < size:
        data = file.read(min(1 << 20, size - done))
        if not data:
            break
        done += len(data)
        packed = packer.compress(data)
        total += len(packed)
        if total > allowed:
            return None
        pieces.append(packed)
    last = packer.flush()
    return b"".join([*pieces, last]) if total + len(last) <= allowed else None


LOG_WHOLE_MAX = 64 << 20
"""A log up to this size is compressed whole; of a larger one head and tail are taken, since time is short."""
LOG_HEAD, LOG_TAIL = 4 << 20, 28 << 20


def pack_log(path: str, allowed: int) -> Artifact:
    """The log as an attachment: compressed, and where it is too large, its head and tail with a note between.

    Args:
        path: The log.
        allowed: How many bytes the attachment may have.
    """
    name = os.path.basename(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            whole = _compress(file, size, allowed) if size <= LOG_WHOLE_MAX else None
            if whole is not None:
                note = f"compressed from {size} to {len(whole)} bytes"
                return Artifact(name, size, "zipped", note, whole, name + ".gz", "application/gzip")
            head, tail = LOG_HEAD, LOG_TAIL
            while head + tail > 1024:
                packed = gzip.compress(_ends(file, size, head, tail), 1, mtime=0)
                if len(packed) <= allowed:
                    note = f"shortened: the first {head} and the last {tail} of {size} bytes"
                    return Artifact(name, size, "shortened", note, packed, name + ".gz", "application/gzip")
                head, tail = head // 2, tail // 2
    except OSError as error:
        return Artifact(name, None, "unreadable", error.strerror or "cannot be read")
    return Artifact(name, size, "over_total", f"not even its end fits into {allowed} bytes (artifacts.max_total)")


def _ends(file: io.BufferedReader, size: int, head: int, tail: int) -> bytes:
    file.seek(0)
    if size <= head + tail:
        return file.read(size)
    first = file.read(head)
    file.seek(size - tail)
    note = f"\n[gpualert: {size - head - tail} bytes are left out here; the whole log is in the run directory]\n"
    return first + note.encode() + file.read(tail)
