"""What the watcher counts and measures, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

if TYPE_CHECKING:
    import collections
    from collections.abc import Callable, Iterator

_DELAYS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200)


class Metrics:
    """The metrics, in a registry of their own.

    Args:
        requests: The API client's counter, by verb and resource.
        lag: The watches' lag in seconds; asked when the metrics are.
        leader: Whether this replica acts; asked when the metrics are.
    """

    def __init__(
        self,
        requests: collections.Counter[tuple[str, str]],
        lag: Callable[[], float],
        leader: Callable[[], bool],
    ) -> None:
        self.registry = CollectorRegistry()
        self._incidents = prometheus_client.Counter(
            "gpualert_incidents_total",
            "Incidents reported, by what they were found to be.",
            ["class", "family"],
            registry=self.registry,
        )
        self._detection = prometheus_client.Histogram(
            "gpualert_incident_detection_seconds",
            "From the first failure of an incident to its report.",
            buckets=_DELAYS_S,
            registry=self.registry,
        )
        self._gpu_hours = prometheus_client.Counter(
            "gpualert_gpu_hours_lost_total",
            "GPU-hours of the attempts that ended in incidents.",
            registry=self.registry,
        )
        self._mail = prometheus_client.Gauge(
            "gpualert_mail_pending", "Mails that no server has taken yet.", registry=self.registry
        )
        prometheus_client.Gauge(
            "gpualert_watch_lag_seconds", "For how long changes may have gone unseen.", registry=self.registry
        ).set_function(lag)
        prometheus_client.Gauge(
            "gpualert_leader", "1 for the replica that acts, 0 for one that stands by.", registry=self.registry
        ).set_function(lambda: float(leader()))
        self.registry.register(_Requests(requests))

    def incident(self, class_: str, family: str, delay_s: float, gpu_hours: float) -> None:
        """An incident was reported.

        Args:
            class_: Its class.
            family: Its family.
            delay_s: From its first failure to the report, in seconds; clocks may differ, less than 0 counts as 0.
            gpu_hours: What its attempt had used.
        """
        self._incidents.labels(class_, family).inc()
        self._detection.observe(max(delay_s, 0.0))
        self._gpu_hours.inc(max(gpu_hours, 0.0))

    def mail_pending(self, count: int) -> None:
        """How many mails wait now.

        Args:
            count: The mails in the spool.
        """
        self._mail.set(count)

    def page(self) -> bytes:
        """All of them in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)


class _Requests(Collector):
    """The API client's own counter, read when the metrics are."""

    def __init__(self, requests: collections.Counter[tuple[str, str]]) -> None:
        self._requests = requests

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The one metric."""
        family = CounterMetricFamily(
            "gpualert_api_requests", "Requests to the Kubernetes API.", labels=["verb", "resource"]
        )
        for (verb, resource), count in sorted(self._requests.copy().items()):
            family.add_metric([verb, resource], count)
        yield family
