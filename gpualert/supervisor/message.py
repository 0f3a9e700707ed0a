"""The termination message while the child runs, and the plain one when there is no report."""

from __future__ import annotations

from gpualert.rundir import jsontext
from gpualert.rundir.clock import rfc3339, seconds
from gpualert.rundir.termination import TerminationLog, room
from gpualert.supervisor import signals
from gpualert.supervisor.trouble import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.supervisor.cgroup import Sample
    from gpualert.supervisor.redaction import Redaction
    from gpualert.supervisor.status import Ending

LINE_MAX = 160
_GIB = 1 << 30


def last_line(output: bytes) -> str:
    """The last line of output that says something, without terminal escapes, shortened.

    Args:
        output: The end of the output.
    """
    for line in reversed(output.replace(b"\r", b"\n").split(b"\n")):
        text = one_line(_without_escapes(line.decode("utf-8", "replace"))).strip()
        if text:
            return text if len(text) <= LINE_MAX else text[: LINE_MAX - 3] + "..."
    return ""


def _without_escapes(text: str) -> str:
    """``text`` without the colour and cursor codes of terminals (ECMA-48 control sequences)."""
    kept, rest = [], text
    while True:
        before, escape, rest = rest.partition("\x1b[")
        kept.append(before)
        if not escape:
            return "".join(kept)
        rest = rest.lstrip("0123456789;:?<=> ")[1:]


def gib(count: int) -> str:
    """Bytes as ``63.8`` GiB, or with their unit below one."""
    return f"{count / _GIB:.1f}" if count >= _GIB // 10 else f"{count / _GIB:.3f}"


def memory_text(sample: Sample | None, before: int | None) -> str:
    """``memory 63.8 of 64.0 GiB, rising``; empty where nothing is known."""
    if sample is None or sample.working_set is None:
        return ""
    used = gib(sample.working_set)
    text = f"memory {used} of {gib(sample.limit)} GiB" if sample.limit else f"memory {used} GiB"
    step = (sample.limit or _GIB) // 100
    if before is not None and sample.working_set - before > step:
        text += ", rising"
    if sample.oom_kill:
        text += f", {sample.oom_kill} killed by the out-of-memory killer"
    return text


class Message:
    """Writes the termination message.

    Attributes:
        path: The file.
        own_bytes: How many bytes at its start the command itself wrote.
    """

    def __init__(self, path: str, containers: int | None, facts: dict[str, object], redaction: Redaction) -> None:
        """Nothing is written yet.

        Args:
            path: The file.
            containers: How many containers share the pod's limit; None when unknown.
            facts: What ``run.json`` holds.
            redaction: Masks secrets in what is quoted.
        """
        self.path = path
        self.own_bytes = 0
        self._file = TerminationLog(path, room(containers))
        self._facts = facts
        self._redaction = redaction
        self._since = str(facts["started_at"])[:19] + "Z"
        self._before: int | None = None
        self._stop = ""

    def first(self) -> None:
        """Before the launch: what was there is not the command's.

        Raises:
            OSError: It cannot be written.
        """
        self._file.resume(0)
        self._write(f"running since {self._since}; no output yet")

    def stopping(self, number: int, at_us: int) -> None:
        """A stop signal has come; said from the next refresh on."""
        self._stop = f"{signals.name(number)} received at {rfc3339(at_us)[11:19]}Z, waiting for the command to end; "

    def refresh(self, last_at_us: int, output: bytes, sample: Sample | None, progress: str = "") -> None:
        """Say how the run stands.

        Args:
            last_at_us: When the last output came, in microseconds since 1970; 0 for never.
            output: The end of the output.
            sample: The last memory sample.
            progress: How far the training is, as a phrase.

        Raises:
            OSError: It cannot be written.
        """
        parts = [f"{self._stop}running since {self._since}"]
        if progress:
            parts.append(self._redaction.mask(one_line(progress)))
        if last_at_us:
            quoted = self._redaction.mask(last_line(output)).replace('"', "'")
            at = rfc3339(last_at_us)
            when = at[11:19] + "Z" if at[:10] == self._since[:10] else seconds(last_at_us)
            parts.append(f'last output {when} "{quoted}"' if quoted else f"last output {when}")
        else:
            parts.append("no output yet")
        memory = memory_text(sample, self._before)
        if memory and sample is not None:
            parts.append(memory)
            self._before = sample.working_set
        self._write("; ".join(parts))

    def _write(self, text: str) -> None:
        facts = self._facts
        state = {
            "gpualert": 1,
            "state": "running",
            "run_id": facts["run_id"],
            "rank": facts["rank"],
            "node": facts["node"] or facts["host"],
        }
        self.own_bytes = self._file.write(f"{text}\n{jsontext.dumps(state)}\n".encode("utf-8", "replace"))

    def plain(self, verdict: Verdict, log: str | None) -> None:
        """The final message when the reporter has not written one.

        Args:
            verdict: What can be said from the facts alone.
            log: The run directory.

        Raises:
            OSError: It cannot be written.
        """
        facts, ending = self._facts, verdict.ending
        machine = {
            "gpualert": 1,
            "class": verdict.cls,
            "family": verdict.family,
            "exit_code": ending.exit_code,
            "signal": ending.signal,
            "run_id": facts["run_id"],
            "rank": facts["rank"],
            "node": facts["node"] or facts["host"],
            "log": log,
            "root": None,
        }
        text = f"{verdict.cls}: {verdict.summary} ({verdict.how})\n{jsontext.dumps(machine)}\n"
        self.own_bytes = self._file.write(text.encode("utf-8", "replace"))


def how_ended(ending: Ending) -> str:
    """``exit 1`` or ``signal 9, SIGKILL``."""
    if ending.signal is not None:
        return f"signal {ending.signal}, {signals.name(ending.signal)}"
    return f"exit {ending.exit_code}"


class Verdict:
    """What the facts alone say about a run's end.

    Attributes:
        ending: How the child ended.
        cls: The class.
        family: Its family.
        summary: One line.
        how: ``exit 1`` or ``signal 9, SIGKILL``.
    """

    __slots__ = ("cls", "ending", "family", "how", "summary")

    def __init__(
        self,
        ending: Ending,
        *,
        launch_error: str | None,
        stopped_by: int | None,
        timeout_s: float | None,
        killed: int,
        hang: object = None,
    ) -> None:
        """Judge.

        Args:
            ending: How the child ended.
            launch_error: Why it could not be executed.
            stopped_by: The stop signal that came from outside.
            timeout_s: gpualert's own limit in seconds, when that ended the run.
            killed: How many processes the out-of-memory killer ended.
            hang: What shows that the run hung, when that was why gpualert ended it.
        """
        self.ending = ending
        self.how = how_ended(ending)
        self.family = "unknown"
        self.cls, self.summary = "unknown", "the command failed, and no report could be made in time"
        if launch_error is not None:
            found = ending.exit_code == 126
            self.cls = "not_executable" if found else "command_not_found"
            self.summary, self.family = launch_error, "code"
        elif ending.success:
            self.cls, self.summary, self.family = "success", "the command ended without error", "success"
        elif timeout_s is not None:
            self.cls, self.summary, self.family = (
                "terminated",
                f"the limit --timeout {timeout_s:g}s was reached",
                "system",
            )
        elif hang is not None:
            self.cls, self.summary, self.family = "hang", f"it hung, and gpualert ended it: {hang}", "system"
        elif killed and ending.signal == 9:
            self.cls, self.summary = "oom_killer", "killed by the out-of-memory killer (control group counter)"
            self.family = "system"
        elif stopped_by is not None:
            self.cls = "interrupted" if stopped_by == 2 else "terminated"
            self.summary, self.family = f"stopped by {signals.name(stopped_by)} from outside", "system"
