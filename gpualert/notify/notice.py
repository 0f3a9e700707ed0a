"""The notice: what a person is told about a run, before any channel gives it its own form."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import jinja2

from gpualert.progress import text as progress
from gpualert.report import attempts, chart, cost, hang, machine, ranks, scene, wording
from gpualert.report.page import facts_table, headline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpualert.artifacts import Artifact

Kind = Literal["started", "progress", "hang", "hang-over", "ended"]
SUBJECT_MAX = 180
SEEN_MAX = 3


@dataclass(frozen=True, slots=True)
class Notice:
    """What is told.

    Attributes:
        kind: ``started``, ``progress``, ``hang``, ``hang-over`` or ``ended``.
        report: The report; of a run that goes on, one without a diagnosis.
        subject: One line.
        short: A few lines, for channels that show no more.
        text: The whole, in plain text.
        html: The whole, in HTML.
        attached: Names and contents of texts that go along with a mail.
    """

    kind: Kind
    report: dict[str, Any]
    subject: str
    short: str
    text: str
    html: str
    attached: tuple[tuple[str, str], ...] = ()

    @property
    def event(self) -> str:
        """For programs: ``run.failed`` (or succeeded, started, progress, hang, hang_over), ``incident.opened`` ..."""
        if self.kind != "ended":
            return f"run.{self.kind.replace('-', '_')}"
        if "incident" in self.report:
            return "incident.updated" if self.report["incident"]["revision"] else "incident.opened"
        return "run.succeeded" if self.report["diagnosis"]["class"] == "success" else "run.failed"

    @property
    def key(self) -> str:
        """The same whenever the same thing is told, so that a duplicate can be recognised; 32 hexadecimal digits."""
        run_id = str(self.report["run"].get("run_id") or self.report["made_at"])
        revision = self.report.get("incident", {}).get("revision")
        if self.kind == "ended":
            return _digest(f"{run_id} revision {revision}" if revision else run_id)
        told = self.report.get("hang") if self.kind.startswith("hang") else None
        return _digest(f"{run_id} {self.kind} {(told or {}).get('at') or self.report['made_at']}")

    @property
    def thread(self) -> str:
        """The same for all runs and ranks of one job, so that mail programs show them together; 32 digits.

        In a cluster the job is its namespace and name. Elsewhere it is the run's name and working directory, since a
        scheduler gives each submission of the same job a number of its own.
        """
        run = self.report["run"]
        job = ("job", run.get("namespace"), run.get("job")) if run.get("job") else ("", run.get("name"), run.get("cwd"))
        return _digest("\0".join(str(part) for part in job))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def one_line(text: str) -> str:
    """``text`` without line ends and control characters, so that no header can be smuggled in."""
    return " ".join(wording.printable(text).split())


def subject(kind: Kind, report: dict[str, Any]) -> str:
    """``[gpualert] llama-7b failed: cuda_oom on rank 3 (gpu-17) after 3h12m``.

    Args:
        kind: What is told.
        report: The report.
    """
    run, end, diagnosis = report["run"], report["exit"], report["diagnosis"]
    name = one_line(str(run.get("name") or run.get("run_id") or "a run"))[:80]
    rank = wording.failed_rank(report)
    where = f" on rank {rank}" if rank is not None else ""
    node = run.get("node") or (run.get("host") if where else None)
    where += f" ({one_line(str(node))[:60]})" if node else ""
    where = ranks.where(report) if "ranks" in report else where
    took = "" if end.get("interrupted") else f" after {wording.duration(end.get('duration_s'))}"
    if kind == "started":
        what = f"started{where}"
    elif kind == "progress":
        got_to = progress.place(report.get("progress"))
        what = f"is running{where}{took.replace(' after ', ' since ')}{': ' if got_to else ''}{got_to}"
    elif kind == "hang":
        what = f"hangs{where}: {_silence(report)}"
    elif kind == "hang-over":
        what = f"goes on{where} after {wording.duration((report.get('hang') or {}).get('silent_s'))}"
    elif diagnosis["class"] == "success":
        what = f"finished{' with warnings' if diagnosis.get('warnings') else ''}{where}{took}"
    elif loop := attempts.headline(report):
        what = one_line(loop)
    else:
        what = f"failed: {one_line(diagnosis['class'])}{where}{took}"
    again = "update: " if report.get("incident", {}).get("revision") else ""
    return f"[gpualert] {again}{name} {what}"[:SUBJECT_MAX]


def _silence(report: dict[str, Any]) -> str:
    """``no output for 31m (step 41200)``: how long nothing has happened, and how far the training is."""
    told = report.get("hang") or {}
    first = one_line(str(told.get("why") or "")).partition("; ")[0][:100]
    what = first or f"nothing happens for {wording.duration(told.get('silent_s'))}"
    step = (report.get("progress") or {}).get("step", told.get("step"))
    return what + (f" (step {step:.0f})" if step is not None else "")


@lru_cache(maxsize=1)
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("gpualert.notify"),
        autoescape=jinja2.select_autoescape(enabled_extensions=("html",), default=False),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _sparks(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The most telling lanes of the timeline: name, curve in block characters, mean or highest value in words.

    Block characters, because mail programs show neither SVG nor, before somebody allows them, images; and they look the
    same in plain text.
    """
    timeline = report.get("timeline")
    return [
        (lane["name"], chart.spark(lane, (timeline or {})["duration_s"]), chart.said(lane))
        for lane in chart.telling(timeline)
    ]


def make(
    kind: Kind,
    report: dict[str, Any],
    artifacts: Sequence[Artifact | Mapping[str, Any]],
    directory: str,
    notes: Sequence[str] = (),
) -> Notice:
    """The notice about a run.

    Args:
        kind: What is told.
        report: The report.
        artifacts: What goes along, each with its fate; the log is one of them. Entries of a report do as well.
        directory: The run directory.
        notes: What else to say about them.
    """
    diagnosis = report["diagnosis"]
    root = diagnosis["root"] if diagnosis else None
    title = subject(kind, report)
    clean = _printable(report)
    shown = {
        "kind": kind,
        "report": clean,
        "quotes": clean["quotes"],
        "root_line": root["line"] if root else None,
        "headline": headline(report),
        "facts": [*_seen(diagnosis), *facts_table(report)],
        "artifacts": _printable([one if isinstance(one, Mapping) else one.as_dict() for one in artifacts]),
        "notes": _printable(list(notes)),
        "directory": wording.printable(directory),
        "size": wording.size,
        "sparks": _sparks(report),
        "title": title,
        "machine": machine.lines(report.get("machine")),
        "hang": hang.for_page(report.get("hang")),
        "advice": hang.advice(report, directory) if kind == "hang" else [],
        "ranks": ranks.rows(clean) if "ranks" in report else [],
        "ranks_text": ranks.text(clean) if "ranks" in report else "",
        "attempts": attempts.rows(report),
        "attempts_text": attempts.text(report),
    }
    name = {"ended": "mail", "hang": "hang"}.get(kind, "running")
    text, html = (_encodable(_templates().get_template(f"{name}.{form}").render(shown)) for form in ("txt", "html"))
    stacks = scene.stacks_text((report.get("hang") or {}).get("scene")) if kind in ("hang", "ended") else ""
    attached = ((scene.STACKS_NAME, _encodable(stacks)),) if stacks else ()
    return Notice(kind, report, title, _encodable(_short(kind, report, directory)), text, html, attached)


def _printable(value: Any) -> Any:
    """A plain object whose texts hold nothing that a terminal or a mail program would act on, nor a line of their own.

    What a job calls its files, or prints, must not forge our lines.
    """
    if isinstance(value, str):
        return wording.printable(value.expandtabs())
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _printable(item) for key, item in value.items()}
    return value


def _seen(diagnosis: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What was seen outside of the log and decided: an Xid, a counter."""
    evidence = diagnosis["evidence"] if diagnosis and not diagnosis["root"] else []
    return [("seen", one_line(e["text"])[:300]) for e in evidence if e["line"] is None and e["role"] == "root"][
        :SEEN_MAX
    ]


def _short(kind: Kind, report: dict[str, Any], directory: str) -> str:
    """A few lines for a chat."""
    diagnosis, lines = report["diagnosis"], []
    got_to = one_line(progress.phrase(report.get("progress"), pace=kind != "ended"))
    if kind == "ended":
        lines.append(one_line(diagnosis["summary"]))
        lines += [f"got to {got_to}"] if got_to and diagnosis["class"] != "success" else []
        lines += [f"note: {one_line(warning)}" for warning in diagnosis.get("warnings", [])[:2]]
        if diagnosis["root"]:
            lines.append(f"> {one_line(diagnosis['root']['text'])[:400]}")
        lines += [one_line(step) for step in wording.steps(diagnosis, 2)]
    else:
        told = report.get("hang")
        if kind == "hang" and told:
            spent = ", ".join(f"{name} {value}" for name, value in cost.words(report.get("cost")))
            lines += [hang.line(told), *([spent] if spent else [])]
            lines += (scene.shown(told["scene"]) or {"flight": []})["flight"][:2]
        lines += [got_to] if got_to else []
        lines += [one_line(line)[:200] for line in report["quotes"]["tail"][-5:] if line.strip()]
        if kind == "hang":
            lines += [f"try: {step}" for step in hang.advice(report, directory)[:1]]
    place = wording.place(report["run"])
    lines.append(f"{place + '; ' if place else ''}kept in {wording.printable(directory)}")
    return "\n".join(lines)


def _encodable(text: str) -> str:
    """``text`` without lone surrogates, which no channel can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")
