"""``report.html``: one self-contained file for a person."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jinja2

from gpualert.report import attempts, chart, ranks, wording


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
        ("ended with", wording.ending(end) if end.get("ended_at") else None),
        ("took", wording.duration(end.get("duration_s")) if end.get("ended_at") else None),
        ("last output", end.get("last_output_at")),
        ("GPUs", str(run["gpus"]) if isinstance(run.get("gpus"), int) else None),
        ("decisive line printed", (report.get("timeline") or {}).get("cause_at")),
        ("peak memory", wording.size(usage["max_rss_bytes"]) if usage.get("max_rss_bytes") else None),
        ("memory limit", wording.size(group["memory_limit"]) if group.get("memory_limit") else None),
        ("out-of-memory kills", group.get("oom_kill") or None),
        ("output", f"{end['log_bytes']} bytes" if end.get("log_bytes") is not None else None),
        ("run", run.get("run_id")),
    ]
    return [(name, wording.printable(str(value))) for name, value in rows if value not in (None, "")]


def headline(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The few numbers that a person looks for first: names and values.

    Args:
        report: The report.
    """
    run, end, cost, diagnosis = report["run"], report["exit"], report.get("cost"), report["diagnosis"]
    silent = report.get("silent_s")
    where, idle = wording.place(run), cost["silent_gpu_hours"] if cost else 0.0
    rank = wording.failed_rank(report)
    quiet = wording.duration(silent) if isinstance(silent, int | float) and silent >= 1 else ""
    rows = [
        ("ended with" if diagnosis else "", wording.ending(end)),
        ("after" if diagnosis else "running since", wording.duration(end.get("duration_s"))),
        ("where", where),
        ("failed first", f"rank {rank}" if rank is not None and not isinstance(run.get("rank"), int) else ""),
        ("silent before the end" if diagnosis else "silent since", quiet),
        ("GPU-hours", wording.gpu_hours(cost["gpu_hours"]) if cost and cost["gpu_hours"] >= 0.01 else ""),
        ("of them silent", wording.gpu_hours(idle) if idle >= 0.01 else ""),
        ("confidence", f"{100 * diagnosis['confidence']:.0f} %" if diagnosis else ""),
    ]
    return [(name, value) for name, value in rows if name and value]


def render(report: dict[str, Any]) -> str:
    """The page.

    Args:
        report: The report.
    """
    root = report["diagnosis"]["root"]
    return (
        environment()
        .get_template("report.html")
        .render(
            report=report,
            quotes=report["quotes"],
            root_line=root["line"] if root else None,
            root_text=root["text"] if root else None,
            ranks=ranks.rows(report) if "ranks" in report else [],
            attempts=attempts.rows(report),
            headline=headline(report),
            facts=facts_table(report),
            chart=chart.draw(report.get("timeline")),
            size=wording.size,
        )
    )
