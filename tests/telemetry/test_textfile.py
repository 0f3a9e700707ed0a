"""A run's figures for node-exporter: what the file holds, as Prometheus's own parser reads it, and how it is kept."""

from __future__ import annotations

import math
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpualert.telemetry import textfile
from gpualert.telemetry.figures import Figures
from gpualert.telemetry.metrics import METRICS
from gpualert.telemetry.textfile import Textfile

RUN_ID = "20261201T051200.000000Z-llama-7b-k3v9qd"
FACTS = {
    "run_id": RUN_ID,
    "name": "llama 7b",
    "job": "llama-7b",
    "namespace": "ml",
    "pod": "llama-7b-3-xkq2p",
    "node": "gpu-17",
    "host": "llama-7b-3",
    "rank": 3,
    "world_size": 8,
    "slurm_job_id": None,
    "started_at": "2026-12-01T05:12:00.000000Z",
    "gpualert": "1.0",
}
GPU = {
    "index": 0,
    "uuid": "GPU-b6c3b2be",
    "utilization": 97,
    "memory_used": 60 << 30,
    "memory_total": 80 << 30,
    "power_w": 412.5,
    "temperature_c": 71,
    "ecc_corrected": 4,
    "ecc_uncorrected": 0,
}


def _sample(at: str, **more: object) -> dict[str, Any]:
    return {"at": f"2026-12-01T{at}Z", "kind": "sample", **more}


def _running() -> Figures:
    figures = Figures()
    for line in (
        _sample("05:12:05", log_bytes=10, cpu_s=1.5, gpus=[{**GPU, "energy_j": 1000.0}]),
        {"at": "2026-12-01T05:12:06Z", "kind": "progress", "step": 41200, "total": 50000, "epoch": 3, "loss": 1.873},
        {"at": "2026-12-01T05:12:07Z", "kind": "xid", "code": 13, "gpu": 0, "uuid": "GPU-b6c3b2be"},
        {"at": "2026-12-01T05:12:07Z", "kind": "xid", "code": 13, "gpu": 0, "uuid": "GPU-b6c3b2be"},
        {"at": "2026-12-01T05:12:07Z", "kind": "xid", "code": 79, "gpu": 0, "uuid": "GPU-b6c3b2be"},
        _sample(
            "05:12:10",
            log_bytes=5000,
            cpu_s=7.25,
            rss=3 << 30,
            processes=9,
            psi={"memory_full": 12.5, "of": "group"},
            gpus=[{**GPU, "energy_j": 3000.5, "ecc_corrected": 6}],
        ),
        _sample("05:12:15", log_bytes=5000),
        {"at": "2026-12-01T05:12:16Z", "kind": "hang", "state": "suspected"},
        {"at": "2026-12-01T05:12:16Z", "kind": "of another version", "step": 1},
    ):
        figures.add(line)
    return figures


def _series(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every series, without the run's id, which each must have; fails when two are the same."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            labels.pop("run_id")
            key = (sample.name.removeprefix("gpualert_"), tuple(sorted(labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def _values(series: dict[Any, float], names: Iterable[str]) -> dict[str, float]:
    return {name: series[name, ()] for name in names}


DEVICE = (("gpu", "0"), ("uuid", "GPU-b6c3b2be"))


def test_a_run_that_goes_on() -> None:
    series = _series(textfile.render(FACTS, _running().state))
    assert _values(
        series,
        [
            "run_start_time_seconds",
            "run_last_output_time_seconds",
            "run_output_bytes_total",
            "run_cpu_seconds_total",
            "run_memory_resident_bytes",
            "run_progress_step",
            "run_progress_loss",
            "run_hang_suspected",
        ],
    ) == {
        "run_start_time_seconds": 1796101920.0,
        "run_last_output_time_seconds": 1796101930.0,
        "run_output_bytes_total": 5000,
        "run_cpu_seconds_total": 7.25,
        "run_memory_resident_bytes": 3 << 30,
        "run_progress_step": 41200,
        "run_progress_loss": 1.873,
        "run_hang_suspected": 1,
    }
    assert series["gpu_utilization_ratio", DEVICE] == pytest.approx(0.97)
    assert series["gpu_memory_used_bytes", DEVICE] == 60 << 30
    assert series["gpu_power_watts", DEVICE] == 412.5
    assert series["gpu_energy_joules_total", DEVICE] == 2000.5
    assert series["gpu_ecc_errors_total", (DEVICE[0], ("kind", "corrected"), DEVICE[1])] == 2
    assert series["gpu_xid_total", (("code", "13"), *DEVICE)] == 2
    assert series["gpu_xid_total", (("code", "79"), *DEVICE)] == 1
    assert not any(name.startswith("run_end") for name, _ in series)


def test_who_the_run_is_stands_in_one_series() -> None:
    series = _series(textfile.render(FACTS, {}))
    (labels,) = [dict(labels) for name, labels in series if name == "run_info"]
    assert labels == {
        "name": "llama 7b",
        "job": "llama-7b",
        "namespace": "ml",
        "pod": "llama-7b-3-xkq2p",
        "container": "",
        "node": "gpu-17",
        "host": "llama-7b-3",
        "rank": "3",
        "world_size": "8",
        "slurm_job_id": "",
        "version": "1.0",
    }


def test_a_hang_that_is_over_is_no_longer_suspected() -> None:
    figures = _running()
    figures.add({"at": "2026-12-01T05:13:00Z", "kind": "hang", "state": "over"})
    assert _series(textfile.render(FACTS, figures.state))["run_hang_suspected", ()] == 0


def test_after_the_end_there_is_what_the_run_came_to_and_nothing_of_the_moment() -> None:
    figures = _running()
    figures.end(
        {
            "exit_code": None,
            "signal": 9,
            "duration_s": 11520.5,
            "ended_at": "2026-12-01T08:24:00.500000Z",
            "last_output_at": "2026-12-01T08:23:56.000000Z",
            "log_bytes": 9000,
        },
        {"class": "gpu_lost", "family": "gpu"},
    )
    series = _series(textfile.render(FACTS, figures.state))
    assert series["run_ended", (("class", "gpu_lost"), ("family", "gpu"))] == 1
    assert _values(
        series, ["run_duration_seconds", "run_exit_signal", "run_end_time_seconds", "run_output_bytes_total"]
    ) == {
        "run_duration_seconds": 11520.5,
        "run_exit_signal": 9,
        "run_end_time_seconds": 1796113440.5,
        "run_output_bytes_total": 9000,
    }
    assert series["run_last_output_time_seconds", ()] == 1796113436.0
    names = {name for name, _ in series}
    assert {"gpu_energy_joules_total", "gpu_xid_total", "run_cpu_seconds_total", "run_progress_step"} <= names
    assert names.isdisjoint(
        {"gpu_utilization_ratio", "gpu_power_watts", "gpu_lost", "run_hang_suspected", "run_exit_code"}
    )
    assert names.isdisjoint({"run_pressure_ratio", "run_memory_resident_bytes", "run_processes"})


def test_names_follow_prometheus_rules() -> None:
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert "\n" not in metric.help
        assert "\\" not in metric.help
    assert len({metric.name for metric in METRICS}) == len({metric.otel for metric in METRICS}) == len(METRICS)


def test_two_devices_that_look_the_same_are_one_series() -> None:
    # A repeated series would make node-exporter refuse everything that it has.
    figures = Figures()
    figures.add(_sample("05:12:05", gpus=[{"power_w": 1.0}, {"power_w": 2.0}]))
    assert _series(textfile.render(FACTS, figures.state))["gpu_power_watts", (("gpu", ""), ("uuid", ""))] == 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (1e300, "1e+300"),
        (0, "0"),
        (10**17, "1" + "0" * 17),
    ],
)
def test_values_that_are_no_ordinary_numbers(value: float, text: str) -> None:
    assert textfile.sample(value) == text
    figures = Figures()
    figures.add({"kind": "progress", "loss": value})
    (read,) = [
        v for (name, _), v in _series(textfile.render(FACTS, figures.state)).items() if name == "run_progress_loss"
    ]
    assert (read == value) or (math.isnan(read) and math.isnan(value))


@given(st.text(max_size=250), st.text(max_size=250), st.text(max_size=250))
def test_any_name_comes_back_from_prometheus_parser(run_id: str, name: str, node: str) -> None:
    text = textfile.render({"run_id": run_id, "name": name, "node": node}, {})
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    expected = {key: _shown(value) for key, value in (("run_id", run_id), ("name", name), ("node", node))}
    assert {key: sample.labels[key] for key in expected} == expected
    assert text.encode("utf-8")


def _shown(value: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in value[:200])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
FIELDS = [
    "at",
    "gpus",
    "psi",
    "code",
    "gpu",
    "uuid",
    "state",
    "step",
    "loss",
    "log_bytes",
    "cpu_s",
    "index",
    "energy_j",
]


@given(
    st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON) | st.just({"gpus": [{"energy_j": 1}]}), max_size=4), JSON
)
def test_any_telemetry_makes_a_file_that_prometheus_reads(lines: list[dict[str, Any]], end: Any) -> None:
    figures = Figures()
    for line in lines:
        for kind in ("sample", "progress", "hang", "xid"):
            figures.add({**line, "kind": kind})
    _series(textfile.render(FACTS, figures.state))
    figures.end(end if isinstance(end, dict) else {}, {"class": end})
    assert [name for name, _ in _series(textfile.render(FACTS, figures.state))].count("run_ended") == 1


def test_the_file_can_be_read_by_others_whatever_our_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        textfile.write(str(tmp_path), FACTS, "x 1\n")
    finally:
        os.umask(before)
    (path,) = tmp_path.iterdir()
    assert path.name == "gpualert-llama-7b-k3v9qd.prom"
    assert path.read_text() == "x 1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_what_somebody_else_has_put_in_the_way_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    directory = tmp_path / "textfile"
    directory.mkdir()
    for name in ("gpualert-llama-7b-k3v9qd.prom", f"gpualert-llama-7b-k3v9qd.prom.{os.getpid()}.tmp"):
        (directory / name).symlink_to(target)
    textfile.write(str(directory), FACTS, "x 1\n")
    assert target.read_text() == "precious"
    (path,) = directory.iterdir()
    assert (path.is_symlink(), path.read_text()) == (False, "x 1\n")


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    texts = ["x 1\n" * 20000, "y 2\n" * 30000]
    textfile.write(str(tmp_path), FACTS, texts[0])
    path = Path(textfile.path_of(str(tmp_path), FACTS))
    done = threading.Event()

    def keep_writing() -> None:
        for number in range(200):
            textfile.write(str(tmp_path), FACTS, texts[number % 2])
        done.set()

    writer = threading.Thread(target=keep_writing)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(path.read_text())
        assert [p.name for p in tmp_path.glob("*.prom")] == [path.name]
    writer.join()
    assert seen <= set(texts)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_trouble_is_said_once(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    file = Textfile(str(missing), FACTS)
    said = f"cannot write {missing} (No such file or directory): node-exporter does not get this run's figures"
    assert [file.put({}), file.put({})] == [said, ""]
    missing.mkdir()
    assert file.put({}) == ""
    assert len(list(missing.iterdir())) == 1


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from gpualert.telemetry import textfile\n"
        "facts = {'run_id': 'a-b', 'name': 'n'}\n"
        "textfile.write(sys.argv[1], facts, 'x 1\\n')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: textfile.write(sys.argv[1], facts, 'x 2\\n' * 1000)\n"
        "except OSError as error: print(error.strerror)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "File too large\n"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"gpualert-n-b.prom": "x 1\n"}


def test_files_of_a_day_ago_go_and_others_stay(tmp_path: Path) -> None:
    old = time.time() - textfile.KEPT_S - 60
    ours = ["gpualert-a-123456.prom", "gpualert-b-123456.prom.17.tmp"]
    others = ["node.prom", "gpualert-notes.txt"]
    for name in [*ours, *others, "gpualert-new-123456.prom"]:
        (tmp_path / name).write_text("x 1\n")
    (tmp_path / "gpualert-directory.prom").mkdir()
    (tmp_path / "gpualert-link.prom").symlink_to(tmp_path / "node.prom")
    for name in [*ours, *others, "gpualert-directory.prom"]:
        os.utime(tmp_path / name, (old, old))
    os.utime(tmp_path / "gpualert-link.prom", (old, old), follow_symlinks=False)
    Textfile(str(tmp_path), FACTS)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*others, "gpualert-new-123456.prom", "gpualert-directory.prom", "gpualert-link.prom"}


def test_the_collectors_part_imports_nothing_but_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "from gpualert.telemetry import figures, kernellog, metrics, pressure, textfile\n"
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "{'gpualert'}\n"
