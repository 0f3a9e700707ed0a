"""Making a mail fit: less and less goes along, until only the verdict is left; what was left out is named.

Step by step: the report's JSON is compressed; attachments are taken off, the largest first; the table of artifacts, the
last output and the traceback are shortened; the HTML goes; a few lines of text remain. The text is rendered again each
time, so that it tells what is really attached. A mail that holds no report (one that something else has put into the
spool) loses attachments and the end of its text.
"""

from __future__ import annotations

import copy
import gzip
import html as markup
import json
from dataclasses import dataclass
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any

from gpualert.notify import notice
from gpualert.notify.message import NUMBER_HEADER, POLICY, REPORT_NAME
from gpualert.report import hang

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_REPORT = 64 << 20
TABLE_ROWS, TAIL_LINES, TRACEBACK_LINES, CONTEXT_LINES, LINE_MAX = 15, 8, 12, 5, 160
FEW_CHARACTERS = 200
_NOTE = 400
_BETWEEN_PARTS = 64
"""What a part costs beside its own bytes: the boundary and its line ends."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A mail that fits, or the smallest there is.

    Attributes:
        message: The mail.
        data: Its bytes.
        removed: The names of the attachments that were taken off.
        dropped: Which artifacts these were, as numbers in the report.
        shortened: What else was left out, in words; empty for nothing.
        smallest: Nothing more can be left out.
    """

    message: EmailMessage
    data: bytes
    removed: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()
    shortened: str = ""
    smallest: bool = False


def as_bytes(message: EmailMessage, *, utf8: bool = False) -> bytes:
    """A mail as it travels.

    Args:
        message: The mail.
        utf8: Its headers may hold UTF-8 (SMTPUTF8).
    """
    return message.as_bytes(policy=POLICY.clone(utf8=utf8))


@dataclass(frozen=True, slots=True)
class Limit:
    """How large a mail may be.

    Attributes:
        size: How many bytes it may have; None for any number.
        why: Who wants it so, in words.
        fate: What becomes of an artifact that is taken off therefore.
    """

    size: int | None
    why: str
    fate: str = "over_server_limit"

    @property
    def note(self) -> str:
        """Why an artifact was taken off."""
        return f"taken off again: {self.why}"


@dataclass(frozen=True, slots=True)
class _Case:
    """A mail that has to be made to fit."""

    message: EmailMessage
    limit: Limit
    size: int
    directory: str
    utf8: bool


def fit(message: EmailMessage, limit: Limit, *, directory: str, utf8: bool = False) -> Fitted:
    """The most of a mail that fits.

    Args:
        message: The mail; left as it is.
        limit: How large it may be.
        directory: The run directory, where the whole lies.
        utf8: Its headers may hold UTF-8 (SMTPUTF8).
    """
    found = Fitted(message, as_bytes(message, utf8=utf8))
    if limit.size is None or len(found.data) <= limit.size:
        return found
    for smaller in _smaller_and_smaller(_Case(message, limit, limit.size, directory, utf8)):
        found = smaller
        if len(found.data) <= limit.size:
            break
    return found


def _smaller_and_smaller(case: _Case) -> Iterator[Fitted]:
    parts = [part for part in case.message.iter_attachments() if isinstance(part, EmailMessage)]
    report_part, report = _report_in(parts)
    others = [part for part in parts if part is not report_part]
    if report is None or report_part is None:
        yield from _without_report(case, parts)
        return
    # Once compressed, the report is the last attachment to go.
    load = _Load(others)
    gone = load.gone
    packed = _rendered(case, report, gone, load.kept)
    yield packed
    room = case.size - len(packed.data) + load.size
    while load.kept:
        load.lighten(room)
        yield _rendered(case, report, gone, load.kept)
        load.drop()
    yield _rendered(case, report, gone, [], with_report=False)
    for words, smaller in _shortened(report):
        for with_html in (True, False) if words.endswith("traceback") else (True,):
            yield _rendered(case, smaller, gone, [], words, with_report=False, with_html=with_html)
    yield _headline(case, report, gone)


def _report_in(parts: list[EmailMessage]) -> tuple[EmailMessage | None, dict[str, Any] | None]:
    """The report that a mail carries, with its part; None where there is none that can be read."""
    for part in parts:
        name = part.get_filename()
        if part[NUMBER_HEADER] is not None or name not in (REPORT_NAME, f"{REPORT_NAME}.gz"):
            continue
        try:
            content = part.get_content()
            content = content.encode() if isinstance(content, str) else content
            content = gzip.decompress(content)[:MAX_REPORT] if str(name).endswith(".gz") else content
            report = json.loads(content)
            notice.make("ended", report, report["artifacts"], "")
        except Exception:  # noqa: BLE001  (it may be anything: the mail is then treated as somebody else's)
            return None, None
        return part, report
    return None, None


class _Load:
    """The attachments of a mail, from which the largest are taken off.

    Attributes:
        kept: Those that are left, the smallest first.
        gone: Those that were taken off.
        size: How many bytes those take that are left.
    """

    def __init__(self, parts: list[EmailMessage]) -> None:
        sizes = {id(part): len(part.as_bytes(policy=POLICY)) + _BETWEEN_PARTS for part in parts}
        self.kept = sorted(parts, key=lambda part: sizes[id(part)])
        self.gone: list[EmailMessage] = []
        self.size = sum(sizes.values())
        self._sizes = sizes

    def drop(self) -> None:
        """Take the largest off, where there is one."""
        if self.kept:
            self.gone.append(self.kept.pop())
            self.size -= self._sizes[id(self.gone[-1])]

    def lighten(self, room: int) -> None:
        """Take off as many as must go.

        Args:
            room: How many bytes they may take.
        """
        while self.kept and self.size > room:
            self.drop()


def _number(part: EmailMessage) -> int | None:
    text = str(part[NUMBER_HEADER] or "")
    return int(text) if text.isdigit() and len(text) < 7 else None


def mark(report: dict[str, Any], numbers: tuple[int, ...], fate: str, note: str) -> None:
    """Say in a report that artifacts were taken off again, with all that lies in one that is an archive.

    Args:
        report: The report; its artifacts are changed.
        numbers: Which artifacts.
        fate: What became of them.
        note: Why.
    """
    entries = report["artifacts"]
    archives = {entry["path"]: number for number, entry in reversed(list(enumerate(entries)))}
    for number, entry in enumerate(entries):
        inside = entry.get("inside")
        if number in numbers or (inside and archives.get(inside) in numbers):
            entry.update(fate=fate, note=note)


def _rendered(
    case: _Case,
    report: dict[str, Any],
    gone: list[EmailMessage],
    kept: list[EmailMessage],
    shortened: str = "",
    *,
    with_report: bool = True,
    with_html: bool = True,
) -> Fitted:
    report, why = copy.deepcopy(report), case.limit.why
    numbers = tuple(number for part in gone if (number := _number(part)) is not None)
    mark(report, numbers, case.limit.fate, case.limit.note)
    removed = _names(gone)
    removed += () if with_report else (REPORT_NAME,)
    notes = [f"Not attached, because {why}: {', '.join(removed)}"] if removed else []
    notes += [f"Shortened, because {why}: {shortened}"] if shortened else []
    entries, more = report["artifacts"], 0
    if shortened:
        entries, more = entries[:TABLE_ROWS], len(entries[TABLE_ROWS:])
    rows = [*entries, {"fate": "...", "path": f"and {more} more", "note": ""}] if more else entries
    made = notice.make("ended", report, rows, case.directory, notes=notes)
    parts = [_packed(report), *_in_order(case.message, kept)] if with_report else []
    new = _rebuilt(case.message, made.text, made.html if with_html else None, parts)
    return Fitted(new, as_bytes(new, utf8=case.utf8), removed, numbers, f"shortened: {shortened}" if shortened else "")


def _in_order(message: EmailMessage, kept: list[EmailMessage]) -> list[EmailMessage]:
    return [part for part in message.iter_attachments() if any(part is one for one in kept)]


def _packed(report: dict[str, Any]) -> EmailMessage:
    part = EmailMessage(POLICY)
    data = json.dumps(report, ensure_ascii=False).encode("utf-8", "replace")
    part.set_content(
        gzip.compress(data, 9, mtime=0),
        maintype="application",
        subtype="gzip",
        disposition="attachment",
        filename=f"{REPORT_NAME}.gz",
    )
    return part


def _rebuilt(message: EmailMessage, text: str, html: str | None, parts: list[EmailMessage]) -> EmailMessage:
    """A mail with the headers of another."""
    new = EmailMessage(POLICY)
    for name, value in message.items():
        if not name.lower().startswith("content-") and name.lower() != "mime-version":
            new[name] = value
    new.set_content(text, cte="quoted-printable")
    if html is not None:
        new.add_alternative(html, subtype="html", cte="quoted-printable")
    if parts:
        new.make_mixed()
        for part in parts:
            new.attach(part)
    return new


def _shortened(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The report with less and less of what is quoted."""
    yield "the table of artifacts", report
    quotes = report["quotes"]
    less = {
        "context": [[number, line[:LINE_MAX]] for number, line in _middle(quotes["context"])],
        "traceback": [line[:LINE_MAX] for line in quotes["traceback"][-TRACEBACK_LINES:]],
        "tail": [line[:LINE_MAX] for line in quotes["tail"][-TAIL_LINES:]],
    }
    yield "the table of artifacts, the last output, the traceback", hang.without_scene({**report, "quotes": less})


def _middle(rows: list[Any]) -> list[Any]:
    start = max((len(rows) - CONTEXT_LINES) // 2, 0)
    return rows[start : start + CONTEXT_LINES]


def _headline(case: _Case, report: dict[str, Any], gone: list[EmailMessage]) -> Fitted:
    """The verdict, and where the rest is."""
    made = notice.make("ended", report, report["artifacts"], case.directory)
    said = f"Only this, because {case.limit.why}.\n"
    numbers = tuple(number for part in gone if (number := _number(part)) is not None)
    removed = (*_names(gone), REPORT_NAME)
    text = f"{made.subject}\n\n{made.short}\n\n{said}"
    new = _cut(case, text)
    words = "shortened: all but a few lines"
    return Fitted(new, as_bytes(new, utf8=case.utf8), removed, numbers, words, smallest=True)


def _cut(case: _Case, text: str) -> EmailMessage:
    """A mail of plain text alone, of which as much is kept as fits, but always a few lines."""
    new = _rebuilt(case.message, text, None, [])
    while len(text) > FEW_CHARACTERS and len(as_bytes(new, utf8=case.utf8)) > case.size:
        text = text[: len(text) * 3 // 4]
        new = _rebuilt(case.message, f"{text}\n[...]\n", None, [])
    return new


def _without_report(case: _Case, parts: list[EmailMessage]) -> Iterator[Fitted]:
    """Smaller forms of a mail that says nothing of its parts."""
    message, why, utf8 = case.message, case.limit.why, case.utf8
    text, html = (_text_of(message, kind) for kind in ("plain", "html"))
    load = _Load(parts)
    room = case.size - len(as_bytes(message, utf8=utf8)) + load.size - _NOTE
    while load.kept:
        load.drop()
        while load.kept and load.size > room - sum(map(_named, load.gone)):
            load.drop()
        removed = _names(load.gone)
        said = f"Not attached, because {why}: {', '.join(removed)}"
        end = html.rfind("</body>")
        note = f"<p>{markup.escape(said)}</p>"
        page = html[:end] + note + html[end:] if end >= 0 else html + note
        new = _rebuilt(message, f"{text}\n{said}\n", page if html else None, _in_order(message, load.kept))
        yield Fitted(new, as_bytes(new, utf8=utf8), removed)
    removed = _names(load.gone)
    head = f"Shortened, because {why}.\n\n"
    new = _cut(case, head + text)
    yield Fitted(new, as_bytes(new, utf8=utf8), removed, (), "shortened: its text", smallest=True)


def _names(parts: list[EmailMessage]) -> tuple[str, ...]:
    return tuple(str(part.get_filename() or "attachment") for part in parts)


def _named(part: EmailMessage) -> int:
    """How many bytes it takes to name a part in text and HTML."""
    return 2 * (len(str(part.get_filename() or "attachment").encode("utf-8", "replace")) + 4)


def _text_of(message: EmailMessage, kind: str) -> str:
    body = message.get_body((kind,))
    if body is None:
        return ""
    content = body.get_content()
    return content if isinstance(content, str) else ""
