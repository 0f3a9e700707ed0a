"""A run's figures, its span and its end's log record, by OpenTelemetry's SDK to an OTLP receiver.

Sources: OpenTelemetry "OTLP exporter configuration" (the paths below the base URL, OTEL_EXPORTER_OTLP_*), "Resource
semantic conventions" (service, host, k8s), "Exceptions on spans".
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from gpualert.telemetry.figures import number, seconds
from gpualert.telemetry.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.util.types import AttributeValue

    from gpualert.telemetry.metrics import Metric

SCOPE = "gpualert"
MAX_TEXT, MAX_EVIDENCE = 2000, 20
_LIST_S = 10.0
MAX_REASON = 200
_REASON = re.compile(
    r"\[Errno -?\d+\] ([^'\")]+)|(Read timed out|code: \d+, reason: [^;]{1,100}|certificate verify failed)"
)
"""An error of the operating system's, or what the receiver has answered; the rest is the libraries' own story."""


def attributes_of(facts: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """Who the run is, by the names that OpenTelemetry has for it.

    Args:
        facts: What ``run.json`` holds.
    """
    found = {
        "service.name": facts.get("name") or "run",
        "service.instance.id": facts.get("run_id"),
        "gpualert.run_id": facts.get("run_id"),
        "gpualert.version": facts.get("gpualert"),
        "gpualert.rank": facts.get("rank"),
        "gpualert.world_size": facts.get("world_size"),
        "gpualert.group": facts.get("group"),
        "gpualert.slurm.job_id": facts.get("slurm_job_id"),
        "host.name": facts.get("host"),
    }
    if facts.get("pod") or facts.get("namespace"):
        found |= {
            "k8s.namespace.name": facts.get("namespace"),
            "k8s.pod.name": facts.get("pod"),
            "k8s.container.name": facts.get("container"),
            "k8s.node.name": facts.get("node"),
            "k8s.job.name": facts.get("job"),
        }
    else:
        found |= {"gpualert.node": facts.get("node"), "gpualert.job": facts.get("job")}
    kept = {key: value for key, value in found.items() if isinstance(value, str | int) and value != ""}
    return {key: value[:MAX_TEXT] if isinstance(value, str) else value for key, value in kept.items()}


class _Ids(IdGenerator):
    """Ids from the run's own: an end that is sent twice is the same span twice."""

    def __init__(self, run_id: str) -> None:
        self._digest = hashlib.blake2b(run_id.encode("utf-8", "replace"), digest_size=24).digest()

    def generate_trace_id(self) -> int:
        return int.from_bytes(self._digest[:16], "big") or 1

    def generate_span_id(self) -> int:
        return int.from_bytes(self._digest[16:], "big") or 1


class _Complaints(logging.Handler):
    """What the SDK logs instead of raising."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        error = f": {record.exc_info[1]}" if record.exc_info else ""
        self.last = f"{self.last}; {record.getMessage()}{error}".removeprefix("; ")[-MAX_TEXT:]


class Exporter:
    """Sends to one receiver. Nothing is raised for what the network does."""

    def __init__(self, endpoint: str, facts: Mapping[str, Any], timeout_s: float) -> None:
        """Nothing is sent yet.

        Args:
            endpoint: The receiver's base URL.
            facts: What ``run.json`` holds.
            timeout_s: How long one request may take, tries together, in seconds.
        """
        self._facts, self._state = facts, dict[str, Any]()
        self._base, self._timeout_s = endpoint.rstrip("/"), timeout_s
        self._resource = Resource.create(attributes_of(facts))
        self._complaints = _Complaints()
        logger = logging.getLogger("opentelemetry")
        logger.handlers, logger.propagate = [self._complaints], False  # not on the job's stderr
        self._meters: MeterProvider | None = None

    def _trouble(self) -> str:
        """What has gone wrong since the last call; empty where nothing has."""
        said, self._complaints.last = self._complaints.last, ""
        return said and f"cannot send to {_shown(self._base)} ({_reason(said)})"

    def figures(self, state: Mapping[str, Any]) -> str:
        """Send the figures as they stand now.

        Args:
            state: What ``Figures.state`` holds.

        Returns:
            What went wrong; empty where nothing did.
        """
        self._state = dict(state)
        if self._meters is None:
            sender = OTLPMetricExporter(f"{self._base}/v1/metrics", timeout=self._timeout_s)
            # Without an interval there is no thread of its own: what is sent is sent from here.
            reader = PeriodicExportingMetricReader(sender, math.inf)
            self._meters = MeterProvider([reader], self._resource, shutdown_on_exit=False)
            meter = self._meters.get_meter(SCOPE)
            for metric in METRICS:
                make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
                make(f"gpualert.{metric.otel}", [self._observer(metric)], metric.unit, metric.help)
        self._meters.force_flush(int(_LIST_S * 1000))
        return self._trouble()

    def _observer(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            for labels, value in metric.read(self._facts, self._state):
                yield Observation(value, labels)

        return observe

    def end(self, report: Mapping[str, Any]) -> str:
        """Send the run as a span, and its diagnosis as a log record.

        Args:
            report: What ``report.json`` holds.

        Returns:
            What went wrong; empty where nothing did.
        """
        diagnosis, ending = report.get("diagnosis") or {}, report.get("exit") or {}
        succeeded = diagnosis.get("class") == "success"
        summary = f"{diagnosis.get('class') or 'unknown'}: {diagnosis.get('summary') or ''}"[:MAX_TEXT]
        ended = _ns(ending.get("ended_at")) or _ns(report.get("made_at")) or time.time_ns()
        attributes = _of_the_end(diagnosis, ending)
        evidence = "\n".join(_evidence(diagnosis))
        ids = _Ids(str(self._facts.get("run_id") or ""))
        tracers = TracerProvider(ALWAYS_ON, self._resource, shutdown_on_exit=False, id_generator=ids)
        sender = OTLPSpanExporter(f"{self._base}/v1/traces", timeout=self._timeout_s)
        tracers.add_span_processor(SimpleSpanProcessor(sender))
        started = _ns(self._facts.get("started_at")) or ended
        name = str(self._facts.get("name") or "run")
        span = tracers.get_tracer(SCOPE).start_span(name, start_time=min(started, ended), attributes=attributes)
        if succeeded:
            span.set_status(Status(StatusCode.OK))
        else:
            span.set_status(Status(StatusCode.ERROR, summary))
            told = {"exception.type": str(diagnosis.get("class") or "unknown"), "exception.message": summary}
            span.add_event("exception", told | ({"exception.stacktrace": evidence} if evidence else {}), ended)
        span.end(ended)
        if trouble := self._trouble():
            return trouble  # a receiver that does not answer is not asked again
        loggers = LoggerProvider(self._resource, shutdown_on_exit=False)
        writer = OTLPLogExporter(f"{self._base}/v1/logs", timeout=self._timeout_s)
        loggers.add_log_record_processor(SimpleLogRecordProcessor(writer))
        loggers.get_logger(SCOPE).emit(
            timestamp=ended,
            context=set_span_in_context(span),
            severity_number=_severity(succeeded),
            severity_text="INFO" if succeeded else "ERROR",
            body="\n".join(part for part in (summary, evidence) if part),
            attributes=attributes,
            event_name="gpualert.run.ended",
        )
        return self._trouble()


def _severity(succeeded: bool) -> Any:
    from opentelemetry._logs import SeverityNumber  # noqa: PLC0415  (beside its only use)

    return SeverityNumber.INFO if succeeded else SeverityNumber.ERROR


def _of_the_end(diagnosis: Mapping[str, Any], ending: Mapping[str, Any]) -> dict[str, AttributeValue]:
    found: dict[str, Any] = {
        **{f"gpualert.{key}": diagnosis.get(key) for key in ("class", "family", "summary")},
        "gpualert.confidence": number(diagnosis.get("confidence")),
        **{f"gpualert.{key}": bool(diagnosis.get(key)) for key in ("retryable", "node_suspect")},
        "process.exit.code": ending.get("exit_code"),
        "gpualert.exit.signal": ending.get("signal"),
        "gpualert.exit.signal_name": ending.get("signal_name"),
        "gpualert.duration": number(ending.get("duration_s")),
    }
    suggestions = [text[:MAX_TEXT] for text in diagnosis.get("suggestions") or [] if isinstance(text, str)]
    if suggestions:
        found["gpualert.suggestions"] = suggestions[:MAX_EVIDENCE]
    return {
        key: value[:MAX_TEXT] if isinstance(value, str) else value
        for key, value in found.items()
        if isinstance(value, str | int | float | list)
    }


def _evidence(diagnosis: Mapping[str, Any]) -> list[str]:
    rows = diagnosis.get("evidence")
    texts = [row.get("text") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [text[:MAX_TEXT] for text in texts if isinstance(text, str)][:MAX_EVIDENCE]


def _ns(value: object) -> int | None:
    at = seconds(value)
    return None if at is None else int(at * 1_000_000) * 1000


def _reason(said: str) -> str:
    """Why, in a few words, from what the SDK has logged."""
    known = _REASON.search(said)
    return " ".join((next(filter(None, known.groups())) if known else said[-MAX_REASON:]).split())


def _shown(url: str) -> str:
    """A URL without what may be a secret in it."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
