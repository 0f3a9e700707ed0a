"""Artifacts: which files go along with the mail, and what became of each; none is ever dropped in silence."""

from __future__ import annotations

import gzip
import io
import mimetypes
import os
import re
import stat
import time
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from wcmatch import glob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_MATCHES = 1000
"""How many files are named one by one; of more than that the number is told."""
MAX_SCANNED, SCAN_S = 500_000, 3.0
"""How many directory entries are looked at, and for how long in seconds, so that no tree delays the end of a job."""
READABLE_LARGE = 16
"""A file this many times over the budget is still tried with compression; text shrinks about so much."""
SMALL = 64 << 10
"""Up to this size files may share a ZIP archive."""
ZIP_NAME = "artifacts.zip"
CLOCK_SLACK_S = 2.0
"""How much a file system's times may be behind ours: FAT counts in two seconds, and others lag by a tick."""

_FLAGS = glob.GLOBSTAR | glob.DOTGLOB | glob.BRACE
_METRICS = (".json", ".jsonl", ".csv", ".tsv", ".yaml", ".yml", ".toml", ".txt", ".log", ".md")
_PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".html")
_DUMPS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".h5", ".npz", ".npy", ".pkl", ".onnx", ".tar", ".core")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file, or one pattern that matched none.

    Attributes:
        path: As it was found, relative to the root where it lies in it.
        size: Its size in bytes; None where that is unknown.
        fate: ``attached``, ``zipped`` (compressed), ``in_archive``, ``too_large``, ``over_total``, ``no_time``,
            ``unchanged``, ``unreadable``, ``not_a_file``, ``outside_root``, ``no_match``, ``too_many`` or
            ``not_searched``.
        note: What a person should know about that.
        content: What is attached; None where nothing is.
        name: The attachment's file name.
        content_type: Its MIME type.
        inside: The name of the archive that it is in; empty where it is in none.
    """

    path: str
    size: int | None
    fate: str
    note: str = ""
    content: bytes | None = field(default=None, repr=False)
    name: str = ""
    content_type: str = "application/octet-stream"
    inside: str = ""

    def as_dict(self) -> dict[str, object]:
        """The entry in ``report.json``."""
        told: dict[str, object] = {"path": self.path, "size": self.size, "fate": self.fate, "note": self.note}
        return {**told, "inside": self.inside} if self.inside else told


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be attached.

    Attributes:
        max_file: How many bytes one attachment may have.
        max_total: How many all may have together.
        order: Which files come first when not all fit: ``value`` (metrics, then pictures, then others, dumps last, of
            each kind the small ones first), ``size`` (small first), ``newest``, or ``given`` (by pattern and name).
        zip_over: More small files than this share one ZIP archive; 0 for never.
        changed_since: Only what changed since then, in seconds since 1970; None for everything.
        until: When to be done, on the monotonic clock.
    """

    max_file: int
    max_total: int
    order: Literal["value", "size", "newest", "given"] = "value"
    zip_over: int = 10
    changed_since: float | None = None
    until: float = float("inf")


@dataclass(frozen=True, slots=True)
class _Found:
    """A path that a pattern matches."""

    path: str
    shown: str
    state: os.stat_result | None


def collect(patterns: Sequence[str], root: str, budget: Budget) -> list[Artifact]:
    """Collect the files that patterns name.

    Args:
        patterns: Globs relative to ``root`` (``**`` crosses directories, ``{a,b}`` is one of both), or absolute ones
            below it.
        root: The directory that files must lie in.
        budget: What may be attached.

    Returns:
        Every match and every pattern without one, each with its fate; attached files come in the order of the budget.
    """
    root = os.path.realpath(root)
    search = _Search(root, min(budget.until, time.monotonic() + SCAN_S))
    found, remarks = search.run(patterns)
    named, more = found[:MAX_MATCHES], len(found) - MAX_MATCHES
    if more > 0:
        remarks.append(Artifact("...", None, "too_many", f"{more} more files match; only {MAX_MATCHES} are looked at"))
    wanted, passed_over = [], []
    for one in named:
        fate = _why_not(one, root, budget)
        if fate is None:
            wanted.append(one)
        else:
            passed_over.append(fate)
    wanted.sort(key=_key(budget.order))
    return [*_attach(wanted, root, budget), *passed_over, *remarks]


class _Search:
    """Looks for files, for a bounded time."""

    def __init__(self, root: str, until: float) -> None:
        self._root = root
        self._until = until
        self._scanned = 0

    def run(self, patterns: Sequence[str]) -> tuple[list[_Found], list[Artifact]]:
        """Every path that matches, once, and a remark on each pattern that matches none."""
        found: dict[str, _Found] = {}
        remarks = []
        for pattern in patterns:
            relative = self._relative(pattern)
            if relative is None:
                note = f"it lies outside {self._root}; set artifacts.root to allow it"
                remarks.append(Artifact(pattern, None, "outside_root", note))
                continue
            try:
                matched = {one.path: one for one in self._matching(relative)}
            except Exception as error:  # noqa: BLE001  (the library names no class for too many braces)
                remarks.append(Artifact(pattern, None, "no_match", f"it is not a pattern ({error})"))
                continue
            if not matched and not self._over():
                remarks.append(Artifact(pattern, None, "no_match", f"no file matches below {self._root}"))
            found.update({path: one for path, one in sorted(matched.items()) if path not in found})
        if self._over():
            note = f"the search ended after {self._scanned} directory entries; there may be more matches"
            remarks.append(Artifact("...", None, "not_searched", note))
        return list(found.values()), remarks

    def _relative(self, pattern: str) -> str | None:
        """A pattern as seen from the root; None where it can match nothing below it."""
        if os.path.isabs(pattern):
            for root in (self._root, os.path.realpath(self._root)):
                if pattern.startswith(root.rstrip("/") + "/"):
                    pattern = pattern[len(root.rstrip("/")) + 1 :]
                    break
            else:
                return None
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        return None if ".." in parts else "/".join(parts)

    def _matching(self, pattern: str) -> Iterator[_Found]:
        if not glob.is_magic(pattern, flags=_FLAGS):
            path = os.path.join(self._root, pattern)
            if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
                yield self._found(path, pattern)
            return
        wanted = [re.compile(one) for one in glob.translate(pattern, flags=_FLAGS)[0]]
        fixed, depth = _start(pattern)
        for path, entry in self._walk(os.path.join(self._root, fixed) if fixed else self._root, depth):
            shown = path[len(self._root.rstrip("/")) + 1 :]
            if any(one.match(shown) for one in wanted):
                yield self._found(entry.path, shown)

    def _found(self, path: str, shown: str) -> _Found:
        try:
            return _Found(path, shown, os.stat(path))
        except OSError:
            return _Found(path, shown, None)

    def _walk(self, directory: str, depth: int | None) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Everything but directories below one; links to directories are not entered: they may lead in circles."""
        pending = [(directory, 1)]
        while pending and not self._over():
            place, level = pending.pop()
            try:
                with os.scandir(place) as entries:
                    for entry in entries:
                        self._scanned += 1
                        if self._over():
                            return
                        if entry.is_dir(follow_symlinks=False):
                            if depth is None or level < depth:
                                pending.append((entry.path, level + 1))
                        elif not entry.is_symlink() or not entry.is_dir():
                            yield entry.path, entry
            except OSError:
                continue  # it may have gone, or be none of ours

    def _over(self) -> bool:
        return self._scanned >= MAX_SCANNED or (self._scanned % 256 == 255 and time.monotonic() >= self._until)


def _start(pattern: str) -> tuple[str, int | None]:
    """The directory where a pattern begins to be one, and how deep below it matches lie; None for any depth."""
    parts = pattern.split("/")
    fixed = 0
    while fixed < len(parts) - 1 and not glob.is_magic(parts[fixed], flags=_FLAGS):
        fixed += 1
    rest = parts[fixed:]
    if "{" in pattern:  # what is in braces may hold a slash
        return "", None
    return "/".join(parts[:fixed]), None if any("**" in part for part in rest) else len(rest)


def _why_not(one: _Found, root: str, budget: Budget) -> Artifact | None:
    """Why a file is not even considered; None where it is."""
    real = os.path.realpath(one.path)
    if real != root and not real.startswith(root.rstrip("/") + "/"):
        return Artifact(one.shown, None, "outside_root", f"it lies outside {root}; set artifacts.root to allow it")
    if one.state is None:
        return Artifact(one.shown, None, "unreadable", "it has gone, or may not be looked at")
    if not stat.S_ISREG(one.state.st_mode):
        return Artifact(one.shown, None, "not_a_file", "only regular files are attached")
    if budget.changed_since is not None and one.state.st_mtime < budget.changed_since - CLOCK_SLACK_S:
        note = "not changed since the start (artifacts.changed_only)"
        return Artifact(one.shown, one.state.st_size, "unchanged", note)
    return None


def _key(order: str) -> Callable[[_Found], tuple[float, ...]]:
    """What to sort by."""

    def value(one: _Found) -> tuple[float, ...]:
        ending = os.path.splitext(one.shown.removesuffix(".gz"))[1].lower()
        kinds = (_METRICS, _PICTURES)
        kind = next((number for number, kind in enumerate(kinds) if ending in kind), 3 if ending in _DUMPS else 2)
        return kind, one.state.st_size if one.state else 0

    def size(one: _Found) -> tuple[float, ...]:
        return (one.state.st_size if one.state else 0,)

    def newest(one: _Found) -> tuple[float, ...]:
        return (-one.state.st_mtime if one.state else 0,)

    return {"value": value, "size": size, "newest": newest}.get(order, lambda _one: ())


def _attach(wanted: list[_Found], root: str, budget: Budget) -> list[Artifact]:
    """Each file with its fate; many small ones share an archive."""
    small = [one for one in wanted if one.state is not None and one.state.st_size <= SMALL]
    archive = _Archive(budget.max_file) if 0 < budget.zip_over < len(small) else None
    together = set(map(id, small)) if archive is not None else set()
    left, attached = budget.max_total, []
    for one in wanted:
        if archive is not None and id(one) in together:
            artifact = archive.add(one, root, left)
            if artifact is not None:
                left -= archive.last
                attached.append(artifact)
                continue
        artifact = _one(one, root, budget, left)
        left -= len(artifact.content or b"")
        attached.append(artifact)
    if archive is not None and archive.count:
        attached.insert(0, archive.close())
    return attached


class _Archive:
    """A ZIP archive of small files."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._buffer = io.BytesIO()
        self._zip = zipfile.ZipFile(self._buffer, "w", zipfile.ZIP_DEFLATED)
        self._size = 64
        self.last = 0
        self.count = 0

    def add(self, one: _Found, root: str, left: int) -> Artifact | None:
        """Take a file in; None where it does not fit or cannot be read."""
        try:
            with _opened(one.path, root) as file:
                content = file.read(SMALL)
        except OSError:
            return None
        name = one.shown.encode("utf-8", "replace").decode()
        # Headers of the ZIP format: 30 and 46 bytes, each with the name; the deflated data.
        cost = 80 + 2 * len(name.encode()) + len(zlib.compress(content, 6)) + 16
        if cost > left or self._size + cost > self._max:
            return None
        self._zip.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 6)
        self.last = cost
        self._size += cost
        self.count += 1
        return Artifact(one.shown, len(content), "in_archive", f"in {ZIP_NAME}", inside=ZIP_NAME)

    def close(self) -> Artifact:
        """The archive itself."""
        self._zip.close()
        content = self._buffer.getvalue()
        note = f"holds the {self.count} files that are marked so"
        return Artifact(ZIP_NAME, len(content), "attached", note, content, ZIP_NAME, "application/zip")


def _opened(path: str, root: str) -> io.BufferedReader:
    """A file opened for reading, if it is a regular one in the root.

    Raises:
        OSError: It cannot be opened, or is something else by now.
    """
    real = os.path.realpath(path)
    if real != root and not real.startswith(root.rstrip("/") + "/"):
        raise OSError(0, "it leads outside the root by now")
    # O_NONBLOCK: a FIFO must not block us; O_NOFOLLOW on the real path: no link is swapped in meanwhile.
    fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "it is no regular file by now")
    return open(fd, "rb")


def _one(one: _Found, root: str, budget: Budget, left: int) -> Artifact:
    """One file with its fate."""
    size = one.state.st_size if one.state else None
    try:
        with _opened(one.path, root) as file:
            return _fit(one.shown, file, os.fstat(file.fileno()).st_size, budget, left)
    except OSError as error:
        return Artifact(one.shown, size, "unreadable", error.strerror or "cannot be read")


def _fit(shown: str, file: io.BufferedReader, size: int, budget: Budget, left: int) -> Artifact:
    """Attach a file as it is, or compressed, if it fits."""
    max_file, allowed = budget.max_file, min(budget.max_file, left)
    if time.monotonic() >= budget.until:
        return Artifact(shown, size, "no_time", "the report's deadline was near (report.deadline)")
    name = os.path.basename(shown)
    content_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if size <= allowed:
        content = file.read(size)  # not more, should it grow meanwhile
        if len(content) > SMALL:
            packed = gzip.compress(content, 6, mtime=0)
            if len(packed) < 0.7 * len(content):
                note = f"compressed from {len(content)} to {len(packed)} bytes"
                return Artifact(shown, size, "zipped", note, packed, name + ".gz", "application/gzip")
        return Artifact(shown, size, "attached", "", content, name, content_type)
    if size <= READABLE_LARGE * allowed:
        compressed = _compress(file, size, allowed, budget.until)
        if compressed is not None:
            note = f"compressed from {size} to {len(compressed)} bytes"
            return Artifact(shown, size, "zipped", note, compressed, name + ".gz", "application/gzip")
    if size > max_file:
        return Artifact(
            shown, size, "too_large", f"{size} bytes, the limit for one file is {max_file} (artifacts.max_file)"
        )
    return Artifact(shown, size, "over_total", f"{size} bytes, {left} are left of artifacts.max_total")


def _compress(file: io.BufferedReader, size: int, allowed: int, until: float = float("inf")) -> bytes | None:
    """The file's first ``size`` bytes as gzip; None when that is more than ``allowed`` bytes, or takes too long."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    pieces, total, done = [], 0, 0
    while done < size:
        data = file.read(min(1 << 20, size - done))
        if not data:
            break
        done += len(data)
        packed = packer.compress(data)
        total += len(packed)
        if total > allowed or time.monotonic() >= until:
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
