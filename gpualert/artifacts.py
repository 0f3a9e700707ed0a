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
"""How many files are named one by one, the first in the configured order; of more than that the number is told."""
MAX_REFUSED = 100
"""How many of those that cannot be attached are named."""
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
    """One file, or what became of one pattern.

    Attributes:
        path: As it was found, relative to the root where it lies in it; a pattern where it stands for none or several.
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
    """A file that a pattern matches and that may be attached; its time in seconds since 1970."""

    path: str
    shown: str
    size: int
    modified: float


def collect(patterns: Sequence[str], root: str, budget: Budget) -> list[Artifact]:
    """Collect the files that patterns name.

    Args:
        patterns: Globs relative to ``root`` (``**`` crosses directories, ``{a,b}`` is one of both), or absolute ones
            below it.
        root: The directory that files must lie in.
        budget: What may be attached.

    Returns:
        The files that have changed, each with its fate, in the order of the budget; those that cannot be attached; and
        what is to be said of each pattern, with the number of files that are only counted.
    """
    search = _Search(root, min(budget.until, time.monotonic() + SCAN_S), budget.changed_since)
    search.run(patterns)
    wanted, refused, remarks = search.wanted, search.refused, search.remarks
    # Put in order before the rest is cut off: of many files the valuable ones must not be those that are left out.
    wanted.sort(key=_key(budget.order))
    if len(wanted) > MAX_MATCHES:
        note = f"{len(wanted) - MAX_MATCHES} more files match; the first {MAX_MATCHES} by artifacts.order are looked at"
        remarks.append(Artifact("...", None, "too_many", note))
    if len(refused) > MAX_REFUSED:
        note = f"{len(refused) - MAX_REFUSED} more that match cannot be attached either"
        remarks.append(Artifact("...", None, "too_many", note))
    return [*_attach(wanted[:MAX_MATCHES], search.root, budget), *refused[:MAX_REFUSED], *remarks]


def _inside(real: str, root: str) -> bool:
    """Whether a path lies in a root, both without links."""
    return real == root or real.startswith(root.rstrip("/") + "/")


class _Search:
    """Looks for files, for a bounded time.

    Attributes:
        root: The directory that files must lie in, without links.
        wanted: What may be attached, by pattern and name.
        refused: Files that match and cannot be.
        remarks: What is to be said of the patterns.
    """

    def __init__(self, root: str, until: float, changed_since: float | None) -> None:
        self.root = os.path.realpath(root)
        self.wanted: list[_Found] = []
        self.refused: list[Artifact] = []
        self.remarks: list[Artifact] = []
        self._named = os.path.abspath(root)
        self._until = until
        self._since = None if changed_since is None else changed_since - CLOCK_SLACK_S
        self._scanned = 0
        self._seen: set[str] = set()

    def run(self, patterns: Sequence[str]) -> None:
        """Look for every pattern's files; one that several match counts for the first."""
        for pattern in patterns:
            self._look_for(pattern)
        if self._over():
            note = f"the search ended after {self._scanned} directory entries; there may be more matches"
            self.remarks.append(Artifact("...", None, "not_searched", note))

    def _look_for(self, pattern: str) -> None:
        relative = self._relative(pattern)
        # Asked before anything is looked at: what lies outside is not even to be listed.
        if relative is None or not _inside(os.path.realpath(os.path.join(self.root, _start(relative)[0])), self.root):
            self.remarks.append(self._outside(pattern))
            return
        try:
            wanted = [re.compile(one) for one in glob.translate(relative, flags=_FLAGS)[0]]
        except Exception as error:  # noqa: BLE001  (the library names no class for too many braces)
            self.remarks.append(Artifact(pattern, None, "no_match", f"it is not a pattern ({error})"))
            return
        matches = unchanged = 0
        found: list[_Found] = []
        for_one = None
        for path, shown, is_link in self._matching(relative, wanted):
            matches += 1
            if path in self._seen:
                continue
            self._seen.add(path)
            judged = self._judged(path, shown, is_link=is_link)
            if isinstance(judged, _Found):
                found.append(judged)
            elif judged.fate == "unchanged":
                unchanged, for_one = unchanged + 1, judged
            else:
                self.refused.append(judged)
        self.wanted += sorted(found, key=lambda one: one.path)
        if for_one is not None:
            note = f"{unchanged} files that match have not changed since the start (artifacts.changed_only)"
            self.remarks.append(for_one if unchanged == 1 else Artifact(pattern, None, "unchanged", note))
        if not matches and not self._over():
            self.remarks.append(Artifact(pattern, None, "no_match", f"no file matches below {self.root}"))

    def _outside(self, shown: str) -> Artifact:
        return Artifact(shown, None, "outside_root", f"it lies outside {self.root}; set artifacts.root to allow it")

    def _judged(self, path: str, shown: str, *, is_link: bool) -> _Found | Artifact:
        """A file that may be attached, or why it may not."""
        if is_link and not _inside(os.path.realpath(path), self.root):
            return self._outside(shown)
        try:
            state = os.stat(path)
        except OSError:
            return Artifact(shown, None, "unreadable", "it has gone, or may not be looked at")
        if not stat.S_ISREG(state.st_mode):
            return Artifact(shown, None, "not_a_file", "only regular files are attached")
        # The time of the last change of the inode too: `cp -p`, rsync and tar set the other one back.
        if self._since is not None and max(state.st_mtime, state.st_ctime) < self._since:
            return Artifact(shown, state.st_size, "unchanged", "not changed since the start (artifacts.changed_only)")
        return _Found(path, shown, state.st_size, state.st_mtime)

    def _relative(self, pattern: str) -> str | None:
        """A pattern as seen from the root; None where it can match nothing below it."""
        below = self._below(pattern) if os.path.isabs(pattern) else pattern
        parts = [part for part in below.split("/") if part not in ("", ".")] if below is not None else [".."]
        return None if ".." in parts else "/".join(parts)

    def _below(self, pattern: str) -> str | None:
        """What follows the root in an absolute pattern; None where it does not lie in it."""
        for root in (self._named, self.root):
            start = root.rstrip("/") + "/"
            if pattern.startswith(start):
                return pattern[len(start) :]
        # The same place by another way: a shell's $PWD keeps the links by which somebody came.
        fixed = _start(pattern)[0]
        real = os.path.realpath(fixed or "/")
        if not _inside(real, self.root):
            return None
        return f"{glob.escape(real[len(self.root.rstrip('/')) + 1 :])}/{pattern[len(fixed) + 1 :]}"

    def _matching(self, pattern: str, wanted: list[re.Pattern[str]]) -> Iterator[tuple[str, str, bool]]:
        """Path, path from the root, and whether it may lead elsewhere, of everything that matches."""
        if not glob.is_magic(pattern, flags=_FLAGS):
            path = os.path.join(self.root, pattern)
            if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
                yield path, pattern, True
            return
        fixed, depth = _start(pattern)
        for entry in self._walk(os.path.join(self.root, fixed) if fixed else self.root, depth):
            shown = entry.path[len(self.root.rstrip("/")) + 1 :]
            if any(one.match(shown) for one in wanted):
                yield entry.path, shown, entry.is_symlink()

    def _walk(self, directory: str, depth: int | None) -> Iterator[os.DirEntry[str]]:
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
                            yield entry
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
    # What is in braces may hold a slash.
    endless = any("**" in part or "{" in part for part in rest)
    return "/".join(parts[:fixed]), None if endless else len(rest)


def _key(order: str) -> Callable[[_Found], tuple[float, ...]]:
    """What to sort by."""

    def value(one: _Found) -> tuple[float, ...]:
        ending = os.path.splitext(one.shown.removesuffix(".gz"))[1].lower()
        kinds = (_METRICS, _PICTURES)
        kind = next((number for number, kind in enumerate(kinds) if ending in kind), 3 if ending in _DUMPS else 2)
        return kind, one.size

    def size(one: _Found) -> tuple[float, ...]:
        return (one.size,)

    def newest(one: _Found) -> tuple[float, ...]:
        return (-one.modified,)

    return {"value": value, "size": size, "newest": newest}.get(order, lambda _one: ())


def _attach(wanted: list[_Found], root: str, budget: Budget) -> list[Artifact]:
    """Each file with its fate; many small ones share an archive."""
    small = [one for one in wanted if one.size <= SMALL]
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
    if not _inside(real, root):
        raise OSError(0, "it leads outside the root by now")
    # O_NONBLOCK: a FIFO must not block us; O_NOFOLLOW on the real path: no link is swapped in meanwhile.
    fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "it is no regular file by now")
    return open(fd, "rb")


def _one(one: _Found, root: str, budget: Budget, left: int) -> Artifact:
    """One file with its fate."""
    try:
        with _opened(one.path, root) as file:
            return _fit(one.shown, file, os.fstat(file.fileno()).st_size, budget, left)
    except OSError as error:
        return Artifact(one.shown, one.size, "unreadable", error.strerror or "cannot be read")


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
