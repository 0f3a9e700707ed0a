"""An Event of gpualert's on an object of the API (Kubernetes API reference, ``core/v1`` Event)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

MESSAGE_MAX = 1000


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def message_of(diagnosis: dict[str, Any]) -> str:
    """What is said of a failure in one line: class and summary.

    Args:
        diagnosis: The report's ``diagnosis``.
    """
    return f"{diagnosis['class']}: {diagnosis['summary']}"[:MESSAGE_MAX]


def body(
    metadata: dict[str, str],
    involved: dict[str, str],
    diagnosis: dict[str, Any],
    component: str,
    instance: str,
    kind: str = "Warning",
) -> dict[str, Any]:
    """The Event of a failure, or of what else should be known.

    Args:
        metadata: Its name (or what its name is made from) and namespace.
        involved: The object that it is about.
        diagnosis: The report's ``diagnosis``.
        component: Which part of gpualert says it.
        instance: Which one of these.
        kind: ``Warning`` or ``Normal``.
    """
    at = now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": involved,
        "reason": "".join(part.capitalize() for part in diagnosis["class"].split("_"))[:128],
        "message": message_of(diagnosis),
        "type": kind,
        "source": {"component": "gpualert"},
        "reportingComponent": component,
        "reportingInstance": instance[:128],
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
