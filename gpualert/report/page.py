"""``report.html``: one self-contained file for a person."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jinja2

from gpualert.report import wording

if TYPE_CHECKING:
    from gpualert.report.quotes import Quotes


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The template engine: everything is escaped unless a template says otherwise."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("gpualert.report"), autoescape=True, trim_blocks=False, undefined=jinja2.Undefined
    )


def facts_table(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of what is known about the run.

    Args:
        report: The report.
    """
    run, end = report["run"], report["exit"]
    usage = end.get("rusage") or {}
    group = end.get("cgroup") or {}
    rows: list[tuple[str, Any]] = [
        ("name", run.get("name")),
        ("command", " ".join(str(argument) for argument in run.get("argv") or [])),
        ("directory", run.get("cwd")),
        ("host", run.get("host")),
        ("pod", "/".join(str(run[key]) for key in ("namespace", "pod") if run.get(key)) or None),
        ("place", wording.place(run) if run.get("node") or isinstance(run.get("rank"), int) else None),
        ("started", run.get("started_at")),
        ("ended", end.get("ended_at")),
        ("ended with", wording.ending(end)),
        ("took", wording.duration(end.get("duration_s"))),
        ("last output", end.get("last_output_at")),
        ("peak memory", wording.size(usage["max_rss_bytes"]) if usage.get("max_rss_bytes") else None),
        ("memory limit", wording.size(group["memory_limit"]) if group.get("memory_limit") else None),
        ("out-of-memory kills", group.get("oom_kill") or None),
        ("output", f"{end['log_bytes']} bytes" if end.get("log_bytes") is not None else None),
        ("run", run.get("run_id")),
    ]
    return [(name, wording.printable(str(value))) for name, value in rows if value not in (None, "")]


def render(report: dict[str, Any], quotes: Quotes) -> str:
    """The page.

    Args:
        report: The report.
        quotes: What is quoted from the log.
    """
    root = report["diagnosis"]["root"]
    return (
        environment()
        .get_template("report.html")
        .render(
            report=report,
            quotes=quotes,
            root_line=root["line"] if root else None,
            ending=wording.ending(report["exit"]),
            duration=wording.duration(report["exit"].get("duration_s")),
            place=wording.place(report["run"]),
            facts=facts_table(report),
        )
    )
