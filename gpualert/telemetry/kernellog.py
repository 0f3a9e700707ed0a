"""The kernel's log, ``/dev/kmsg``, while a job runs: the few lines that may have to do with its end."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

from gpualert.rundir.clock import now_us
from gpualert.telemetry import group, kernelline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.telemetry.kernelline import About

DEVICE = "/dev/kmsg"
MAX_LINES, MAX_OTHERS, MAX_TOPIC = 100, 60, 25
"""How many lines are given out in all; of those that are not known to be the job's; of one topic of these."""
RECORDS_AT_ONCE, BACKLOG_RECORDS = 1000, 50_000
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""Its number is fixed (the kernel's ``include/linux/proc_ns.h``, PROC_PID_INIT_INO)."""


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A line of the kernel's log.

    Attributes:
        at_us: When, in microseconds since 1970.
        text: What it says: one printable line of at most 500 characters.
        about: ``own``: the job's process, control group or GPU; ``node``: the machine, or another's GPU; None: a
            process or GPU of which it cannot be told whose it is.
        topic: ``gpu``, ``switch``, ``memory``, ``processes``, ``fault``, ``hung``, ``hardware``, ``thermal``,
            ``storage``, ``network``.
    """

    at_us: int
    text: str
    about: About
    topic: str


def clock_us() -> int:
    """Microseconds on the kernel log's clock, or a little more.

    That clock runs free on most machines and follows the network's time on others: the later of both is taken, so that
    what is old is never taken for new; rather what comes before the log is opened is missed.
    """
    return max(time.clock_gettime_ns(time.CLOCK_MONOTONIC), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)) // 1000


class KernelLog:
    """Follows the kernel's log. Where it may not be read, there are no lines.

    Attributes:
        job: What is the job's; whoever learns of processes and GPUs adds them here.
        trouble: Why there is nothing to read; empty where there is.
        dropped: How many lines were not given out because there were too many.
    """

    __slots__ = ("_at_us", "_backlog", "_fd", "_given", "_since", "_topics", "dropped", "job", "trouble")

    def __init__(self, path: str = DEVICE, since_us: int = 0, job: kernelline.Job | None = None) -> None:
        """Open it.

        Args:
            path: The device, or a file of its records.
            since_us: When the job began, in microseconds since 1970: of what is in the log already, only later lines
                count. 0: nothing that is in it counts.
            job: What is the job's; None for what this process can tell of its own control group and PID namespace.
        """
        self.job = _own() if job is None else job
        self.trouble, self.dropped = "", 0
        self._given, self._topics = 0, dict[str, int]()
        self._backlog, self._at_us = since_us > 0, now_us()
        self._since = clock_us() - max(self._at_us - since_us, 0)
        try:
            # A process without CAP_SYSLOG may not, where kernel.dmesg_restrict is 1; most containers have no such file.
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            self._fd, self.trouble = -1, f"cannot read {path} ({error.strerror})"
            return
        if not self._backlog:
            with contextlib.suppress(OSError):  # a pipe has no past
                os.lseek(self._fd, 0, os.SEEK_END)

    def read(self) -> list[KernelLine]:
        """The lines that have come since the last call. Never waits."""
        found: list[KernelLine] = []
        left, last_us = (BACKLOG_RECORDS if self._backlog else RECORDS_AT_ONCE), self._at_us
        while self._fd >= 0 and left > 0:
            left -= 1
            try:
                data = os.read(self._fd, kernelline.MAX_RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # it was written faster than read, and goes on with what is left
            except InterruptedError:
                continue
            except OSError as error:
                self.trouble = f"cannot read the kernel's log ({error.strerror})"
                self.close()
                break
            if not data:
                break
            for raw in kernelline.parse(data):
                # What was there at the opening may be old; what came later cannot be, whatever its clock says.
                if not self._backlog or raw.us >= self._since:
                    self._take(raw, 0 if self._backlog else last_us, found)
        self._backlog, self._at_us = False, now_us()
        return found

    def _take(self, raw: kernelline.Raw, earliest_us: int, found: list[KernelLine]) -> None:
        known = kernelline.recognised(raw)
        if known is None:
            return
        topic, match = known
        keep, about = self.job.concerns(topic, match, raw)
        if not keep:
            return
        others = sum(self._topics.values())
        full = about != "own" and (others >= MAX_OTHERS or self._topics.get(topic, 0) >= MAX_TOPIC)
        if full or self._given >= MAX_LINES:
            self.dropped += 1
            return
        self._given += 1
        if about != "own":
            self._topics[topic] = self._topics.get(topic, 0) + 1
        now = now_us()
        at = min(max(now - (clock_us() - raw.us), earliest_us), now)
        found.append(KernelLine(at, kernelline.clean(raw.text), about, topic))

    def fileno(self) -> int:
        """The descriptor, to wait for lines; -1 where there is none."""
        return self._fd

    def close(self) -> None:
        """Read no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _own() -> kernelline.Job:
    """What can be told at once: our control group, and whether our process ids are the kernel's own."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return kernelline.Job(pids_count=namespace == _INITIAL_PID_NAMESPACE, group=group.Names.of_this_process())
