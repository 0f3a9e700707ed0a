"""Export by OTLP to a real HTTP server, which decodes what the official SDK sends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Completed, Gpualert, python, run_dirs, wait_until
from hypothesis import given
from hypothesis import strategies as st
from notify.receivers import Receiver, receiving
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpualert import config
from gpualert.report import export
from gpualert.rundir.reader import Run
from gpualert.telemetry import exporter, otlp, record
from gpualert.telemetry.following import Following

assert receiving  # the fixture

Receiving = Callable[..., Receiver]
OOM = python(
    "import sys; print('step 1', flush=True); sys.stderr.write('Traceback (most recent call last):\\n  File \"t.py\", line 1\\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.21 GiB is free.\\n'); sys.exit(1)"
)
FACTS = {"run_id": "20261201T051200.000000Z-llama-k3v9qd", "name": "llama", "started_at": "2026-12-01T05:12:00.000000Z"}


def _plain(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in attributes}


def _bodies(receiver: Receiver, path: str) -> list[bytes]:
    return [body for where, body in zip(receiver.paths, receiver.bodies, strict=True) if where == path]


def _spans(receiver: Receiver) -> list[tuple[dict[str, Any], Any]]:
    """Resource attributes and span of each."""
    found = []
    for body in _bodies(receiver, "/v1/traces"):
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                found += [(_plain(resource.resource.attributes), span) for span in scope.spans]
    return found


def _logs(receiver: Receiver) -> list[Any]:
    found: list[Any] = []
    for body in _bodies(receiver, "/v1/logs"):
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
            for scope in resource.scope_logs:
                found += scope.log_records
    return found


def _metrics(body: bytes) -> dict[str, Any]:
    """Name to unit, labels and value of each point."""
    found = {}
    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points
                found[metric.name] = (
                    metric.unit,
                    [(_plain(p.attributes), getattr(p, str(p.WhichOneof("value")))) for p in points],
                )
    return found


def _fail(plain: Gpualert, endpoint: str, command: list[str], **more: str) -> Completed:
    return plain.run(command, "--name", "llama", env={"GPUALERT_OTLP": endpoint, **more})


def test_a_failed_run_is_a_span_with_an_error_and_a_log_record(plain: Gpualert, receiving: Receiving) -> None:
    receiver = receiving()
    done = _fail(
        plain, f"http://127.0.0.1:{receiver.port}", OOM, GPUALERT_POD_NAME="llama-0", GPUALERT_NODE_NAME="gpu-17"
    )
    assert done.returncode == 1
    run, report = done.json("run.json"), done.json("report.json")
    ((resource, span),) = _spans(receiver)
    assert resource["service.name"] == "llama"
    assert resource["gpualert.run_id"] == resource["service.instance.id"] == run["run_id"]
    assert (resource["k8s.pod.name"], resource["k8s.node.name"]) == ("llama-0", "gpu-17")
    assert resource["host.name"] == run["host"]
    assert span.name == "llama"
    assert span.status.code == 2  # ERROR
    assert span.status.message.startswith("cuda_oom: CUDA out of memory on GPU 0")
    duration = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert duration >= report["exit"]["duration_s"] > 0
    attributes = _plain(span.attributes)
    assert (attributes["gpualert.class"], attributes["process.exit.code"]) == ("cuda_oom", 1)
    assert attributes["gpualert.summary"] == report["diagnosis"]["summary"]
    (event,) = span.events
    assert event.name == "exception"
    assert _plain(event.attributes)["exception.type"] == "cuda_oom"
    assert "torch.OutOfMemoryError: CUDA out of memory" in _plain(event.attributes)["exception.stacktrace"]
    (log,) = _logs(receiver)
    assert (log.severity_text, log.severity_number) == ("ERROR", 17)
    assert log.body.string_value.startswith("cuda_oom: CUDA out of memory on GPU 0")
    assert (log.trace_id, log.span_id) == (span.trace_id, span.span_id)
    figures = _metrics(_bodies(receiver, "/v1/metrics")[-1])
    assert figures["gpualert.run.ended"] == ("1", [({"class": "cuda_oom", "family": "gpu"}, 1)])
    assert figures["gpualert.run.exit_code"][1] == [({}, 1)]
    assert report["trouble"] == []


def test_a_plain_success_is_a_span_without_an_error(plain: Gpualert, receiving: Receiving) -> None:
    receiver = receiving()
    url = f"http://127.0.0.1:{receiver.port}/"
    done = plain.run(python("print('ok')"), env={"GPUALERT_OTLP": url})
    assert (done.returncode, done.said) == (0, [])
    ((_, span),) = _spans(receiver)
    assert (span.status.code, list(span.events)) == (1, [])  # OK
    (log,) = _logs(receiver)
    assert log.severity_text == "INFO"


def test_the_headers_of_the_environment_go_along_and_are_written_nowhere(plain: Gpualert, receiving: Receiving) -> None:
    receiver = receiving()
    secret = "Bearer%20s3cr3t-in-a-header"
    url = f"http://127.0.0.1:{receiver.port}"
    done = _fail(plain, url, OOM, OTEL_EXPORTER_OTLP_HEADERS=f"authorization={secret}")
    assert {headers["authorization"] for headers in receiver.headers} == {"Bearer s3cr3t-in-a-header"}
    for path in done.run_dir.rglob("*"):
        assert not path.is_file() or b"s3cr3t" not in path.read_bytes()
    assert b"s3cr3t" not in done.stderr


def test_secrets_in_what_is_sent_are_masked(plain: Gpualert, receiving: Receiving) -> None:
    receiver = receiving()
    command = python("import sys; sys.stderr.write('ValueError: token hf_Zq81xy77 is bad\\n'); sys.exit(1)")
    _fail(plain, f"http://127.0.0.1:{receiver.port}", [*command, "hf_Zq81xy77"], HF_TOKEN="hf_Zq81xy77")
    assert _logs(receiver)
    assert not any(b"hf_Zq81xy77" in body for body in receiver.bodies)


def test_a_receiver_that_is_not_there_changes_nothing_but_a_line(plain: Gpualert) -> None:
    done = _fail(plain, "http://127.0.0.1:9", OOM)
    line = "cannot send to http://127.0.0.1:9 (Connection refused): the OTLP receiver does not have the run's end"
    assert done.returncode == 1
    assert [said for said in done.said if "OTLP" in said] == [f"gpualert: {line}"]
    assert done.json("report.json")["trouble"] == [line]


def test_a_receiver_that_refuses_is_quoted(plain: Gpualert, receiving: Receiving) -> None:
    receiver = receiving(401, 401, 401, 401)
    done = _fail(plain, f"http://127.0.0.1:{receiver.port}", OOM)
    assert done.returncode == 1
    (line,) = done.json("report.json")["trouble"]
    assert line.startswith(f"cannot send to http://127.0.0.1:{receiver.port} (code: 401, ")
    assert receiver.paths == ["/v1/traces"]  # one that does not take the first is not asked again


def test_a_receiver_that_does_not_answer_is_given_up(plain: Gpualert, receiving: Receiving) -> None:
    receiver = receiving(hold_s=20.0)
    done = _fail(plain, f"http://127.0.0.1:{receiver.port}", OOM)
    assert done.returncode == 1
    (line,) = done.json("report.json")["trouble"]
    assert line.endswith("the OTLP receiver does not have the run's end") or "did not answer within" in line


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_password_in_the_url_is_used_and_written_nowhere(plain: Gpualert, receiving: Receiving, by: str) -> None:
    receiver = receiving(401)
    url = f"http://user:hunter22@127.0.0.1:{receiver.port}"
    done = plain.run(
        OOM, *(["--otlp", url] if by == "option" else []), env={"GPUALERT_OTLP": url} if by != "option" else {}
    )
    assert {headers["authorization"] for headers in receiver.headers} == {"Basic dXNlcjpodW50ZXIyMg=="}
    assert any(f"cannot send to http://127.0.0.1:{receiver.port} (code: 401" in said for said in done.said)
    assert b"hunter22" not in done.stderr
    for path in done.run_dir.rglob("*"):
        assert not path.is_file() or b"hunter22" not in path.read_bytes()


@pytest.mark.parametrize("endpoint", ["otel-collector:4318", "ftp://x", "http://", "http://x:99999", "http://[::1"])
def test_what_is_no_url_is_said_to_be_none(endpoint: str) -> None:
    expected = "telemetry.otlp must be a URL such as http://otel-collector:4318: figures are not sent"
    assert otlp.hindrance(endpoint) == expected


@pytest.mark.parametrize("module", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
def test_without_the_sdk_it_is_said_what_to_install(tmp_path: Path, module: str) -> None:
    script = f"import sys; sys.modules[{module!r}] = None; from gpualert.telemetry import otlp; otlp.main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "GPUALERT_OTLP": "http://127.0.0.1:9"},
        capture_output=True,
        check=False,
    )
    line = b"gpualert: telemetry.otlp is set but OpenTelemetry is not installed: pip install 'gpualert[otlp]' (the bundle is without)\n"
    assert (done.returncode, done.stderr) == (1, line)


@pytest.mark.parametrize(
    ("options", "variable", "file", "expected"),
    [
        ({"telemetry.otlp": "http://line"}, "http://variable", "http://file", "http://line"),
        ({}, "http://variable", "http://file", "http://variable"),
        ({}, None, "http://file", "http://file"),
        ({"telemetry.otlp": 5}, None, None, ""),
        (None, None, None, ""),
    ],
)
def test_the_receiver_is_found_where_the_run_had_it_from(
    tmp_path: Path, options: dict[str, Any] | None, variable: str | None, file: str | None, expected: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[telemetry]\notlp = "{file}"\n' if file else "")
    facts = {} if options is None else {"options": options | {"config": str(path)}}
    environment = {b"GPUALERT_OTLP": variable.encode()} if variable else {}
    assert otlp.endpoint_of(Run("/", facts), environment) == expected


def _run_directory(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "run.json").write_text(json.dumps(FACTS))
    (directory / record.NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def test_the_end_is_given_up_when_the_deadline_comes(tmp_path: Path, receiving: Receiving) -> None:
    receiver = receiving(hold_s=20.0)
    directory = _run_directory(tmp_path)
    settings, _ = config.load({}, given={"telemetry.otlp": f"http://127.0.0.1:{receiver.port}"})
    assert export.finish(str(directory), {}, settings, time.monotonic() + 0.01) == [
        "the OTLP receiver did not answer within 0 s: it does not have the run's end"
    ]
    assert export.finish(str(directory), {}, settings, time.monotonic() - 1) == [
        "no time was left to send the end to the OTLP receiver (report.deadline)"
    ]


def _following(directory: Path, url: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "gpualert.telemetry.otlp", str(directory), "--every", "0.05"]
    return subprocess.Popen(argv, env={**os.environ, "GPUALERT_OTLP": url}, stderr=subprocess.PIPE)


def test_figures_are_sent_while_the_run_goes_on_and_no_longer(tmp_path: Path, receiving: Receiving) -> None:
    receiver = receiving()
    gpu = {"index": 0, "uuid": "GPU-1", "utilization": 97, "power_w": 400.5, "energy_j": 100.0}
    sample = {"at": "2026-12-01T05:12:05Z", "kind": "sample", "cpu_s": 1.5, "log_bytes": 10, "gpus": [gpu]}
    directory = _run_directory(tmp_path, sample)
    process = _following(directory, f"http://127.0.0.1:{receiver.port}")

    def figures() -> dict[str, Any]:
        return _metrics(_bodies(receiver, "/v1/metrics")[-1])

    device = {"gpu": "0", "uuid": "GPU-1"}
    wait_until(lambda: figures()["gpualert.gpu.power"] == ("W", [(device, 400.5)]), "the first figures")
    assert figures()["gpualert.run.cpu.time"] == ("s", [({}, 1.5)])
    assert figures()["gpualert.gpu.utilization"] == ("1", [(device, pytest.approx(0.97))])
    with (directory / record.NAME).open("a") as file:
        later = {"cpu_s": 9.5, "gpus": [{**gpu, "energy_j": 350.0}]}
        file.write(
            json.dumps({**sample, **later}) + "\n" + json.dumps({"at": sample["at"], "kind": "progress", "step": 7})
        )
        file.flush()
        wait_until(lambda: figures()["gpualert.gpu.energy"] == ("J", [(device, 250.0)]), "later figures")
        assert "gpualert.run.progress.step" not in figures()  # its line is not whole yet
        file.write("\n")
    wait_until(lambda: figures().get("gpualert.run.progress.step") == ("{step}", [({}, 7)]), "the whole line")
    (directory / "exit.json").write_text("{}")
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 0


def test_while_the_receiver_is_away_it_is_said_once_and_tried_again(tmp_path: Path, receiving: Receiving) -> None:
    receiver = receiving(400, 400, 400)
    directory = _run_directory(tmp_path)
    process = _following(directory, f"http://127.0.0.1:{receiver.port}")
    wait_until(lambda: len(receiver.paths) > 5, "requests")
    (directory / "exit.json").write_text("{}")
    _, said = process.communicate(timeout=60)
    (line,) = said.decode().splitlines()
    assert line.startswith(f"gpualert: cannot send to http://127.0.0.1:{receiver.port} (code: 400, ")


def test_who_started_it_takes_it_along(tmp_path: Path, receiving: Receiving) -> None:
    receiver = receiving()
    directory = _run_directory(tmp_path)
    starter = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'gpualert.telemetry.otlp', sys.argv[1],"
        " '--every', '0.05']); print(p.pid, flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "GPUALERT_OTLP": f"http://127.0.0.1:{receiver.port}"}
    collector = subprocess.Popen(
        [sys.executable, "-c", starter, str(directory)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert collector.stdout is not None
    pid = int(collector.stdout.readline())
    wait_until(lambda: receiver.paths, "figures")
    collector.kill()
    collector.communicate()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or ") Z " in Path(f"/proc/{pid}/stat").read_text(), "its end")


def test_an_end_that_is_sent_twice_is_the_same_span(tmp_path: Path, receiving: Receiving) -> None:
    receiver = receiving()
    report = {"run": FACTS, "exit": {"ended_at": "2026-12-01T06:12:00.500000Z"}, "diagnosis": {"class": "gpu_lost"}}
    for _ in range(2):
        sender = exporter.Exporter(f"http://127.0.0.1:{receiver.port}", FACTS, 10.0)
        assert sender.end(report) == ""
    (_, first), (_, second) = _spans(receiver)
    assert (first.trace_id, first.span_id) == (second.trace_id, second.span_id)
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (1796101920 * 10**9, 1796105520_500000000)


def test_a_damaged_report_is_sent_as_far_as_it_goes(tmp_path: Path, receiving: Receiving) -> None:
    receiver = receiving()
    facts = {"run_id": 5, "name": None, "started_at": "never", "pod": ["x"], "namespace": {"y": 1}, "rank": "three"}
    diagnosis = {
        "class": None,
        "summary": 3,
        "evidence": [1, {"text": 2}, {"text": "x" * 9999}],
        "suggestions": [1, "s"],
    }
    sender = exporter.Exporter(f"http://127.0.0.1:{receiver.port}", facts, 10.0)
    assert sender.end({"diagnosis": diagnosis, "exit": {"exit_code": "one", "ended_at": 7}}) == ""
    ((resource, span),) = _spans(receiver)
    assert (resource["service.name"], span.status.message) == ("run", "unknown: 3")
    (log,) = _logs(receiver)
    assert len(log.body.string_value) < 3000


@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(0, 200))
def test_a_file_that_grows_is_read_as_if_it_were_whole(pieces: list[bytes], cut: int) -> None:
    good = b'{"at": "2026-12-01T05:12:05Z", "kind": "sample", "cpu_s": 1.5}\n'
    whole = b"\n".join(pieces) + b"\n" + good
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / record.NAME
        path.write_bytes(b"")
        following = Following(directory)
        found = following.lines()
        for part in (whole[:cut], whole[cut:]):
            with path.open("ab") as file:
                file.write(part)
            found += following.lines()
        following.close()
    assert [line["cpu_s"] for line in found if line["kind"] == "sample"] == [1.5]


def test_a_pipe_in_the_files_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / record.NAME)
    assert Following(str(tmp_path)).lines() == []


def test_a_line_without_end_is_passed_over(tmp_path: Path) -> None:
    good = '{"at": "2026-12-01T05:12:05Z", "kind": "sample"}\n'
    (tmp_path / record.NAME).write_text(good + "x" * (3 << 20) + "\n" + good)
    following = Following(str(tmp_path))
    assert len(following.lines()) == 2
    following.close()


def test_the_run_at_its_end_is_in_node_exporters_file_too(plain: Gpualert, tmp_path: Path) -> None:
    place = tmp_path / "textfile"
    place.mkdir()
    done = plain.run(OOM, "--name", "llama", "--textfile", str(place))
    assert done.returncode == 1
    (path,) = place.iterdir()
    run_id = done.json("run.json")["run_id"]
    assert f'gpualert_run_ended{{run_id="{run_id}",class="cuda_oom",family="gpu"}} 1\n' in path.read_text()
    assert f'gpualert_run_exit_code{{run_id="{run_id}"}} 1\n' in path.read_text()


def test_a_plain_success_ends_in_node_exporters_file_too(plain: Gpualert, tmp_path: Path) -> None:
    done = plain.run(python("print('ok')"), "--textfile", str(tmp_path))
    assert (done.returncode, done.said) == (0, [])
    (path,) = tmp_path.glob("*.prom")
    assert 'class="success",family="success"} 1\n' in path.read_text()


def test_a_survivor_ends_the_file_of_a_run_whose_supervisor_was_killed(plain: Gpualert, tmp_path: Path) -> None:
    place = tmp_path / "textfile"
    place.mkdir()
    command = python("import os, time; print(f'pid {os.getpid()}.', flush=True); time.sleep(600)")
    started = plain.start(command, "--textfile", str(place))
    started.wait_for(b".\n")
    (directory,) = run_dirs(started.log_dir)
    started.process.kill()
    os.kill(int((directory / "output.log").read_bytes()[4:-2]), signal.SIGKILL)
    started.process.communicate()
    plain.run(python("pass"))
    wait_until(lambda: any("gpualert_run_ended" in path.read_text() for path in place.glob("*.prom")), "the run's end")
    (path,) = place.glob("*.prom")
    assert f'gpualert_run_ended{{run_id="{directory.name}",class="' in path.read_text()


def test_a_directory_that_is_not_there_is_said_once(plain: Gpualert, tmp_path: Path) -> None:
    place = tmp_path / "none"
    done = plain.run(OOM, "--textfile", str(place))
    assert done.returncode == 1
    line = f"cannot write {place} (No such file or directory): node-exporter does not get this run's figures"
    assert [said for said in done.said if "figures" in said] == [f"gpualert: {line}"]
    assert done.json("report.json")["trouble"] == [line]
