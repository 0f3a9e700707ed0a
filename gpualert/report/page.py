"""``report.html``: one self-contained file for a person."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jinja2

from gpualert.progress import text as progress
from gpualert.report import attempts, chart, cost, devices, hang, machine, ranks, wording

PAGE_STACK_LINES = 2000


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
        ("progress", progress.phrase(report.get("progress"))),
        ("GPUs", run["gpus"] if isinstance(run.get("gpus"), int) else (report.get("cost") or {}).get("gpus")),
        ("decisive line printed", (report.get("timeline") or {}).get("cause_at")),
        ("peak memory", wording.size(usage["max_rss_bytes"]) if usage.get("max_rss_bytes") else None),
        ("memory limit", wording.size(group["memory_limit"]) if group.get("memory_limit") else None),
        ("out-of-memory kills", group.get("oom_kill") or None),
        ("output", f"{end['log_bytes']} bytes" if end.get("log_bytes") is not None else None),
        ("run", run.get("run_id")),
    ]
    return [(name, wording.printable(str(value))) for name, value in rows if value not in (None, "")]


def left_over(report: dict[str, Any]) -> str:
    """``3h12m left``, for a run that goes on; empty where nobody knows.

    Args:
        report: The report.
    """
    left = (report.get("progress") or {}).get("finish_in_s")
    return f"{wording.duration(left)} left" if isinstance(left, int | float) and not report["diagnosis"] else ""


def headline(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The few numbers that a person looks for first: names and values.

    Args:
        report: The report.
    """
    run, end, diagnosis = report["run"], report["exit"], report["diagnosis"]
    silent, where = report.get("silent_s"), wording.place(run)
    rank = wording.failed_rank(report)
    quiet = wording.duration(silent) if isinstance(silent, int | float) and silent >= 1 else ""
    rows = [
        ("ended with" if diagnosis else "", wording.ending(end)),
        ("after" if diagnosis else "running since", wording.duration(end.get("duration_s"))),
        ("got to" if diagnosis else "progress", progress.place(report.get("progress"))),
        ("about", left_over(report)),
        ("where", where),
        ("failed first", f"rank {rank}" if rank is not None and not isinstance(run.get("rank"), int) else ""),
        ("silent before the end" if diagnosis else "silent since", quiet),
        *cost.words(report.get("cost")),
        ("confidence", f"{100 * diagnosis['confidence']:.0f} %" if diagnosis else ""),
    ]
    return [(name, value) for name, value in rows if name and value]


def render(report: dict[str, Any]) -> str:
    """The page.

    Args:
        report: The report.
    """
    root, told = report["diagnosis"]["root"], report.get("machine")
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
            hang=hang.for_page(report.get("hang"), limit=PAGE_STACK_LINES),
            machine=machine.details(told),
            gpus=devices.table((told or {}).get("gpus") or []),
            gpu_columns=devices.COLUMNS,
            size=wording.size,
        )
    )
