"""Making a run directory, and writing its small files so that a crash leaves the old one or the new one."""

from __future__ import annotations

import errno
import fcntl
import posix

from gpualert.rundir import jsontext
from gpualert.rundir.clock import compact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RUN, EXIT, EVENTS, REPORT = "run.json", "exit.json", "events.jsonl", "report.json"
MASKS = "masks.json"
LATEST = "latest"
OPEN = ".open"
"""In the log directory: an empty file for each run that is not yet reported, so that the next run finds those whose
supervisor or reporter died without reading every directory."""
TELLING = ".telling"
"""In the run directory, from before ``report.json`` is written until a mail is in the spool or sent."""
TOLD = ".told"
"""In the run directory, where the report of a run that was told of is not on the disk, or is elsewhere."""
SCHEMA = 1

DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
PRIVATE_MODE = 0o600
_NAME_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
_RANDOM_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_WRITE = posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW


def clean_name(name: str) -> str:
    """``name`` with every character outside ``[A-Za-z0-9._-]`` as ``-``, at most 60 long."""
    kept = "".join(c if c in _NAME_CHARACTERS else "-" for c in name[:60]).strip("-.")
    return kept or "run"


def new_run_id(started_us: int, name: str) -> str:
    """``20261201T051200.123456Z-<name>-<6 random>``: sorts by time, and is unique among nodes."""
    letters = "".join(_RANDOM_CHARACTERS[byte % 36] for byte in posix.urandom(6))
    return f"{compact(started_us)}-{clean_name(name)}-{letters}"


def make_directories(path: str, mode: int = 0o755) -> None:
    """Make ``path`` and its parents where they are missing.

    Raises:
        OSError: One of them cannot be made.
    """
    missing: list[str] = []
    while not _make_directory(path, mode):
        missing.append(path)
        path = path.rstrip("/").rpartition("/")[0]
        if not path:
            raise FileNotFoundError(errno.ENOENT, posix.strerror(errno.ENOENT), missing[-1])
    # Each is tried once more and no oftener: there are places (/proc) where nothing can be made in what is there.
    for path in reversed(missing):
        if not _make_directory(path, mode):
            raise FileNotFoundError(errno.ENOENT, posix.strerror(errno.ENOENT), path)


def _make_directory(path: str, mode: int) -> bool:
    """Make one directory; False where its parent is missing, or so it is said."""
    try:
        posix.mkdir(path, mode)
    except FileExistsError:
        return True
    except FileNotFoundError:
        return False
    _share(path)
    return True


def _share(path: str) -> None:
    """Let the group write into a new directory where the one above it is the group's (setgid, writable by it).

    Kubernetes makes volumes so for fsGroup; a survivor that is another user of that group can then close the run.
    """
    try:
        if posix.stat(path.rstrip("/").rpartition("/")[0] or "/").st_mode & 0o2020 == 0o2020:
            posix.chmod(path, 0o2770)
    except OSError:
        pass  # as private as it was made


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable; file systems that cannot sync a directory are passed over."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        posix.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        posix.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write the whole of ``data``.

    Raises:
        OSError: It cannot be written.
    """
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]


def replace_file(path: str, data: bytes, *, durable: bool = True, mode: int = FILE_MODE) -> None:
    """Put ``data`` at ``path``: whoever reads finds the old file or the new one, whole.

    Args:
        path: The file.
        data: Its content.
        durable: The same holds after a crash of the machine.
        mode: Who may read it.

    Raises:
        OSError: It cannot be written.
    """
    temporary = f"{path}.{posix.getpid()}.tmp"
    fd = posix.open(temporary, _WRITE | posix.O_TRUNC, mode)
    try:
        try:
            write_all(fd, data)
            if durable:
                posix.fsync(fd)
        finally:
            posix.close(fd)
        posix.rename(temporary, path)
    except OSError:
        try:
            posix.unlink(temporary)
        except OSError:
            pass  # the first error is the one to tell
        raise
    if durable:
        sync_directory(path.rpartition("/")[0] or "/")


class RunDirectory:
    """The directory of one run; durable once ``sync`` has returned.

    Attributes:
        path: Its absolute path.
        run_id: Its name.
    """

    __slots__ = ("_events_fd", "_facts", "_lock_fd", "_marker", "_masks", "path", "run_id")

    def __init__(self, parent: str, run_id: str, facts: dict[str, object]) -> None:
        """Make the directory with ``run.json`` in it, locked for as long as this process lives.

        Args:
            parent: The log directory; made where it is missing.
            run_id: The run's id.
            facts: What ``run.json`` shall hold.

        Raises:
            OSError: Something cannot be made or written.
        """
        make_directories(parent)
        self.run_id = run_id
        self.path = f"{parent.rstrip('/')}/{run_id}"
        posix.mkdir(self.path, DIRECTORY_MODE)
        _share(self.path)
        self._facts = facts
        self._lock_fd = self._events_fd = -1
        self._marker = ""
        self._masks = b""
        try:
            self._fill()
        except OSError:
            self.abandon()
            raise
        self._mark_open(parent)

    def sync(self) -> None:
        """Make everything in it durable, and its own entry in the log directory.

        Raises:
            OSError: It cannot be synced.
        """
        # Every file is there by now, so the second and third find little left to do.
        posix.fsync(self._lock_fd)
        sync_directory(self.path)
        sync_directory(self.path.rpartition("/")[0] or "/")

    def _mark_open(self, parent: str) -> None:
        self._marker = f"{parent.rstrip('/')}/{OPEN}/{self.run_id}"
        for _ in range(2):
            try:
                posix.close(posix.open(self._marker, _WRITE, FILE_MODE))
            except FileNotFoundError:
                try:
                    make_directories(self._marker.rpartition("/")[0])
                except OSError:
                    return  # gpualert report and gpualert runs look at every directory
            except OSError:
                return  # the same
            else:
                return

    def mark_closed(self) -> None:
        """The run is reported: no survivor needs to look."""
        try:
            posix.unlink(self._marker)
        except OSError:
            pass  # whoever finds the mark finds exit.json too

    def _fill(self) -> None:
        # Locked before it gets its name: a survivor that looks at that moment must not find it free.
        unnamed = f"{self.path}/.{RUN}"
        fd = posix.open(unnamed, _WRITE | posix.O_TRUNC, FILE_MODE)
        self._lock_fd = fd
        try:
            # Tells a survivor on this host that the supervisor lives, whatever process ids do.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # a file system without locks: process id and start time have to do
        write_all(fd, jsontext.dumps(self._facts).encode() + b"\n")
        posix.rename(unnamed, f"{self.path}/{RUN}")
        self._events_fd = posix.open(f"{self.path}/{EVENTS}", _WRITE | posix.O_APPEND, FILE_MODE)

    def abandon(self, *others: str) -> None:
        """Leave nothing behind of a directory that could not be completed, or that came too late.

        Args:
            others: Further files in it.
        """
        for fd in (self._lock_fd, self._events_fd):
            if fd >= 0:
                posix.close(fd)
        for name in (RUN, f".{RUN}", EVENTS, *others):
            try:
                posix.unlink(f"{self.path}/{name}")
            except OSError:
                pass
        self.mark_closed()
        try:
            posix.rmdir(self.path)
        except OSError:
            pass

    def restore(self) -> None:
        """Make the directory anew after somebody has deleted it.

        Raises:
            OSError: It cannot be made.
        """
        make_directories(self.path, DIRECTORY_MODE)
        for fd in (self._lock_fd, self._events_fd):
            if fd >= 0:
                posix.close(fd)
        self._lock_fd = self._events_fd = -1
        self._fill()
        posix.fsync(self._lock_fd)
        if self._masks:
            self.write_masks(self._masks)

    def add_events(self, events: Iterable[Mapping[str, object]]) -> None:
        """Append to ``events.jsonl``, one object a line.

        Raises:
            OSError: They cannot be written.
        """
        data = "".join(jsontext.dumps(dict(event)) + "\n" for event in events).encode()
        if data:
            write_all(self._events_fd, data)

    def beat(self) -> None:
        """Show survivors on other hosts that this run lives: touch ``events.jsonl``.

        Raises:
            OSError: It cannot be touched.
        """
        posix.utime(self._events_fd)

    def sync_events(self) -> None:
        """Force ``events.jsonl`` to the disk.

        Raises:
            OSError: It cannot be synced.
        """
        posix.fdatasync(self._events_fd)

    def write_json(self, name: str, value: Mapping[str, object], *, durable: bool = True) -> None:
        """Write one of the directory's JSON files, whole or not at all.

        Raises:
            OSError: It cannot be written.
        """
        replace_file(f"{self.path}/{name}", jsontext.dumps(dict(value)).encode() + b"\n", durable=durable)

    def write_masks(self, data: bytes) -> None:
        """Write ``masks.json``, which only its owner may read; made anew with the directory.

        Raises:
            OSError: It cannot be written.
        """
        self._masks = data
        replace_file(f"{self.path}/{MASKS}", data, durable=False, mode=PRIVATE_MODE)

    def move(self, path: str) -> None:
        """Go on in another directory, to which the other files have been moved.

        Args:
            path: Its absolute path.
        """
        self.path = path
        if self._masks:
            try:
                self.write_masks(self._masks)
            except OSError:
                pass  # the reporter, which comes next, knows the secrets itself

    def link_latest(self) -> None:
        """Let ``latest`` in the log directory point here.

        Raises:
            OSError: The file system has no links, or the log directory is read-only.
        """
        parent = self.path.rpartition("/")[0]
        temporary = f"{parent}/.{LATEST}.{self.run_id}"
        posix.symlink(self.run_id, temporary)
        try:
            posix.rename(temporary, f"{parent}/{LATEST}")
        except OSError:
            posix.unlink(temporary)
            raise


def interrupted(log_directory: str, limit: int = 1000) -> list[str]:
    """Runs whose supervisor seems to be gone, and that nobody has reported: quick, and to be looked at more closely.

    Args:
        log_directory: Where run directories are kept.
        limit: How many marks to look at, the newest first.

    Returns:
        Their run ids.
    """
    found = []
    try:
        marks = sorted(posix.listdir(f"{log_directory}/{OPEN}"), reverse=True)[:limit]
    except OSError:
        return []
    for run_id in marks:
        path = f"{log_directory}/{run_id}"
        reported = _there(f"{path}/{REPORT}") and not _there(f"{path}/{TELLING}")
        done = _there(f"{path}/{EXIT}") and (reported or _there(f"{path}/{TOLD}"))
        if done or not _there(f"{path}/{RUN}"):
            try:
                posix.unlink(f"{log_directory}/{OPEN}/{run_id}")
            except OSError:
                pass  # another run tidies up at the same time
        elif not is_locked(f"{path}/{RUN}"):
            found.append(run_id)
    return found


def _there(path: str) -> bool:
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def is_locked(path: str) -> bool:
    """Whether a process that lives holds the lock on a ``run.json`` (its supervisor, on a file system with locks)."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        posix.close(fd)
