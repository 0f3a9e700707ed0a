"""What the JSON files of a run directory look like: whatever does not fit is dropped, so that no reader need mind it.

A file may be damaged, of another version, or written by somebody who means no good. What is read here has numbers that
are finite and not absurd, texts that can be encoded, times that are times, and no nesting without end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

DEPTH_MAX = 32
DIGITS_MAX = 18
SECONDS_MAX = 1e12
COUNT_MAX = 10_000_000
"""Of ranks, GPUs, attempts: more is nonsense."""

MISSING = object()
Shape = Callable[[Any], Any]
"""Gives a value back as far as it fits, or ``MISSING``."""


def loads(text: str) -> Any:
    """JSON without numbers that nobody can count with, texts that nobody can write, and nesting without end.

    Args:
        text: The text.

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    try:
        return _clean(json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_nothing), DEPTH_MAX)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _int(text: str) -> int | None:
    return int(text) if len(text) <= DIGITS_MAX else None


def _float(text: str) -> float | None:
    value = float(text)
    return value if abs(value) < 10**DIGITS_MAX else None


def _nothing(_text: str) -> None:
    """JSON has no NaN and no infinities; Python reads them all the same."""


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_clean(item, depth - 1) for item in value]
    return {_clean(key, depth): _clean(item, depth - 1) for key, item in value.items()}


def text(value: Any) -> Any:
    """A text."""
    return value if isinstance(value, str) else MISSING


def whole(value: Any) -> Any:
    """A whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else MISSING


def count(value: Any) -> Any:
    """A whole number of things that can be counted one by one."""
    return value if whole(value) is not MISSING and 0 <= value <= COUNT_MAX else MISSING


def seconds(value: Any) -> Any:
    """A time span in seconds."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= SECONDS_MAX
    return value if fits else MISSING


def real(value: Any) -> Any:
    """A number that is finite, of either sign."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0 else MISSING


def share(value: Any) -> Any:
    """A number from 0 to 1."""
    return value if seconds(value) is not MISSING and value <= 1 else MISSING


def switch(value: Any) -> Any:
    """True or false."""
    return value if isinstance(value, bool) else MISSING


def moment(value: Any) -> Any:
    """An RFC 3339 time."""
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return MISSING
    return value if at.tzinfo is not None and 1970 < at.year < 9999 else MISSING


def listed(item: Shape) -> Shape:
    """A list of such items; those that do not fit are left out."""

    def fit(value: Any) -> Any:
        if not isinstance(value, list):
            return MISSING
        return [fitted for fitted in map(item, value) if fitted is not MISSING]

    return fit


def table(fields: Mapping[str, Shape], defaults: dict[str, Any] | None = None, needed: tuple[str, ...] = ()) -> Shape:
    """An object.

    Args:
        fields: The shape of each field; a field that does not fit is left out, null fits all that are not needed. Other
            fields stay as they are.
        defaults: What stands for fields that are missing or null.
        needed: Without these the whole object does not fit.
    """

    def fit(value: Any) -> Any:
        if not isinstance(value, dict):
            return MISSING
        found = dict(value)
        for name, shape in fields.items():
            if found.get(name) is not None:
                found[name] = shape(found[name])
            if found.get(name, MISSING) is MISSING:
                found.pop(name, None)
        for name, default in (defaults or {}).items():
            if found.get(name) is None:
                found[name] = default() if callable(default) else default
        return MISSING if any(found.get(name) is None for name in needed) else found

    return fit


RUN = table(
    {
        **dict.fromkeys(("schema", "pid", "pid_start", "uid"), whole),
        **dict.fromkeys(("rank", "local_rank", "world_size", "gpus", "attempt"), count),
        **dict.fromkeys(
            ("run_id", "name", "cwd", "host", "pid_ns", "boot_id", "gpualert", "python", "pod", "namespace", "node",
             "job", "container", "slurm_job_id", "launcher", "group"),
            text,
        ),
        "started_at": moment,
        "argv": listed(text),
        "cgroup": table({"version": whole, "limit": whole}),
        "options": table({}),
    }
)  # fmt: skip
"""``run.json``."""

EXIT = table(
    {
        **dict.fromkeys(("schema", "exit_code", "signal", "log_bytes"), whole),
        **dict.fromkeys(("duration_s", "stopped_before_end_s", "timeout_s"), seconds),
        **dict.fromkeys(("core_dumped", "timed_out", "truncated", "interrupted"), switch),
        **dict.fromkeys(("ended_at", "last_output_at", "closed_at"), moment),
        **dict.fromkeys(("signal_name", "log_continued_in"), text),
        "launch_error": table({"errno": whole, "message": text}),
        "rusage": table({"user_s": seconds, "system_s": seconds, "max_rss_bytes": whole}),
        "forwarded": listed(whole),
        "cgroup": table(
            dict.fromkeys(("oom_kill", "memory_peak", "memory_limit", "memory_last", "pids_max_events"), whole)
        ),
        "gap": table({"bytes": whole}),
        "trouble": listed(text),
    }
)
"""``exit.json``."""

EVENT = table(
    {
        "at": moment,
        **dict.fromkeys(("event", "name", "message"), text),
        **dict.fromkeys(
            ("signal", "sender", "pid", "exit_code", "current", "working_set", "limit", "peak", "oom_kill",
             "pids_max_events"),
            whole,
        ),
        "forwarded": switch,
        "after_s": seconds,
    },
    needed=("event",),
)  # fmt: skip
"""A line of ``events.jsonl``."""

_LINE = {"line": count, "text": text, "class": text, "role": text, "rank": count}
_DIAGNOSIS = table(
    {
        "class": text,
        "family": text,
        "summary": text,
        "confidence": share,
        "root": table(_LINE, {"line": None}, ("text",)),
        "evidence": listed(table(_LINE, {"line": None, "rank": None, "class": "", "role": ""}, ("text",))),
        "suggestions": listed(text),
        "warnings": listed(text),
        "retryable": switch,
        "node_suspect": switch,
    },
    {
        "family": "unknown", "confidence": 0.0, "root": None, "evidence": list, "suggestions": list,
        "retryable": False, "node_suspect": False,
    },
    ("class", "summary"),
)  # fmt: skip

_EARLIER = table(
    {
        **dict.fromkeys(("at", "told_at"), moment),
        **dict.fromkeys(("duration_s", "step", "epoch"), seconds),
        **dict.fromkeys(("run_id", "node", "class"), text),
    },
    dict.fromkeys(("told_at", "duration_s", "step", "epoch", "node")),
    ("at", "run_id", "class"),
)
ATTEMPT = table(
    {
        **dict.fromkeys(("fingerprint", "place", "advice"), text),
        **dict.fromkeys(("number", "same", "held_count"), count),
        **dict.fromkeys(("first_at", "last_at"), moment),
        **dict.fromkeys(("progress", "held"), listed(_EARLIER)),
        "loop": switch,
        "identity": listed(text),
    },
    {"progress": list, "held": list, "held_count": 0, "place": "", "loop": False},
    ("fingerprint", "number", "same", "first_at", "last_at"),
)
"""What earlier attempts of the job say: ``attempt`` in ``report.json``."""
PROGRESS = table(
    {
        **dict.fromkeys(("at", "since", "nan_since"), moment),
        **dict.fromkeys(("step", "total", "epoch", "epochs", "rate", "finish_in_s"), seconds),
        **dict.fromkeys(("format", "unit"), text),
        "loss": real,
        "slower": share,
        "rank": count,
    },
    needed=("at",),
)
"""How far a training was: a line of kind ``progress`` in ``telemetry.jsonl``, and ``progress`` in ``report.json``."""

COST = table(
    {
        "gpus": count,
        **dict.fromkeys(("gpu_hours", "silent_gpu_hours", "idle_gpu_hours", "energy_kwh"), seconds),
        **dict.fromkeys(("idle_by", "energy_by"), text),
        "devices": listed(text),
    },
    {"gpu_hours": 0.0, "silent_gpu_hours": 0.0},
)
"""What a run has used up."""


def cost_of(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a report says of the run's cost; None where it says nothing.

    Args:
        report: A report, or what stands for one; anything may stand in it.
    """
    found = COST(report.get("cost"))
    return found if isinstance(found, dict) else None


_GPU = {
    **dict.fromkeys(("index", "ecc_corrected", "ecc_uncorrected", "remapped_rows", "nvlink_errors"), count),
    **dict.fromkeys(("uuid", "name", "pci", "mig"), text),
    **dict.fromkeys(
        ("memory_total", "memory_peak", "utilization_mean", "power_mean", "temperature_max", "energy_kwh"), seconds
    ),
    **dict.fromkeys(("throttle", "xids"), listed(text)),
}
MACHINE = table(
    {
        "vendor": text,
        "driver": table({}),
        "gpus": listed(table(_GPU)),
        "processes": listed(table({"pid": whole, "name": text, "peak": seconds}, needed=("pid", "name", "peak"))),
        "shm": table({"peak": seconds, "size": seconds}, needed=("peak", "size")),
        "pressure": table(
            {**dict.fromkeys(("memory_some", "memory_full", "io_full", "cpu_some"), seconds), "of": text}
        ),
        "kernel": listed(table({"at": moment, "text": text, "about": text}, {"about": "node"}, ("at", "text"))),
    }
)
"""The machine under a run."""

_STACK = table({"pids": listed(count), "names": listed(text), "text": text}, {"pids": list, "names": list}, ("text",))
SCENE = table(
    {
        **dict.fromkeys(("stacks", "kernel"), listed(_STACK)),
        "flight": listed(table({"text": text, "frames": listed(text)}, {"frames": list}, ("text",))),
        "ranks": listed(table({"rank": count, "line": text, "at": moment}, {"line": ""}, ("rank",))),
        "notes": listed(text),
    },
    dict.fromkeys(("stacks", "kernel", "flight", "ranks", "notes"), list),
)
"""What was found where a job hangs."""
HANG = table(
    {
        **dict.fromkeys(("state", "why", "action"), text),
        **dict.fromkeys(("silent_s", "step"), seconds),
        **dict.fromkeys(("at", "since"), moment),
        "scene": SCENE,
    },
    {"why": "", "silent_s": None, "step": None, "scene": None},
    ("state",),
)
"""A hang, as a report tells of it."""

REPORT = table(
    {
        "run": RUN,
        "exit": EXIT,
        "diagnosis": _DIAGNOSIS,
        "silent_s": seconds,
        "attempt": ATTEMPT,
        "progress": PROGRESS,
        "cost": COST,
        "machine": MACHINE,
        "hang": HANG,
        "artifacts": listed(
            table(
                {"path": text, "size": whole, "fate": text, "note": text}, {"size": None, "note": ""}, ("path", "fate")
            )
        ),
        "notifications": listed(
            table(
                {"channel": text, "to": listed(text), "outcome": text, "detail": text, "at": moment},
                {"channel": "", "to": list, "detail": ""},
                ("outcome",),
            )
        ),
        "trouble": listed(text),
        "made_at": moment,
    },
    {"run": dict, "exit": dict, "artifacts": list, "notifications": list, "trouble": list},
    ("diagnosis",),
)
"""``report.json``, as far as anything of ours reads it again; a file without a diagnosis is none."""
