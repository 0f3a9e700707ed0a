"""What nodes and Events say of a job's ranks.

Sources: Kubernetes "Node status" and "Taints and tolerations" (the taints of the node controller),
node-problem-detector (conditions of its own, Events on nodes), NVSentinel and gpud (conditions and taints that speak of
GPUs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpualert.cluster.apierror import ApiError
from gpualert.incident.model import MachineFact
from gpualert.incident.outside import meaning
from gpualert.report.timeline import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpualert.cluster.api import Api
    from gpualert.diagnosis.rulebook import Rulebook
    from gpualert.watch.slim import Object

BEFORE_S = 120.0
"""What a node said so long before the attempt began is about an earlier one."""
LOST_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready", "node.kubernetes.io/out-of-service")
_SAYS_SOMETHING = ("evicted", "node_lost", "oom_killer")


def of_node(node: Object, since: float | None, rules: Rulebook) -> list[MachineFact]:
    """What a node says of itself.

    Args:
        node: The node, slimmed.
        since: When the attempt began, in seconds since 1970.
        rules: Classes and rules.
    """
    name, found = node["metadata"]["name"], []
    for row in node["conditions"]:
        at = seconds_of(row.get("lastTransitionTime"))
        if since is not None and at is not None and at < since - BEFORE_S:
            continue
        if row["type"] == "Ready":
            if row["status"] != "True":
                finding = meaning("NotReady", str(row.get("message") or ""), rules)
                found.append(MachineFact("NotReady", str(row.get("message") or ""), name, at=at, finding=finding))
        elif row["status"] == "True":
            text = f"{row.get('reason') or ''} {row.get('message') or ''}".strip()
            finding = meaning(row["type"], text, rules)
            if finding is not None and finding.family == "hardware":
                found.append(MachineFact(row["type"], text, name, at=at, finding=finding))
    for taint in node["taints"]:
        at = seconds_of(taint.get("timeAdded"))
        if at is None or (since is not None and at < since - BEFORE_S):
            continue
        key = str(taint.get("key"))
        if key in LOST_TAINTS:
            found.append(
                MachineFact(
                    "NodeUnreachable",
                    f"taint {key}",
                    name,
                    at=at,
                    finding=meaning("NodeUnreachable", f"taint {key}", rules),
                )
            )
        else:
            text = f"taint {key}={taint.get('value') or ''}:{taint.get('effect')}"
            finding = meaning("Taint", text, rules)
            found.append(MachineFact("Taint", text, name, at=at, finding=finding))
    return found


def of_events(
    api: Api,
    namespace: str,
    pods: Iterable[str],
    nodes: Iterable[str],
    since: float | None,
    rules: Rulebook,
    say: Callable[[str], None],
) -> list[MachineFact]:
    """What Events say: one request for the namespace's pods, one for the nodes.

    Args:
        api: The API server.
        namespace: The job's namespace.
        pods: The names of its pods.
        nodes: The names of their nodes; none where Events on nodes may not be read.
        since: When the attempt began, in seconds since 1970.
        rules: Classes and rules.
        say: Takes a line for people.
    """
    ours, theirs, found = set(pods), set(nodes), []
    for place, kind, names in ((namespace, "Pod", ours), ("default", "Node", theirs)):
        if not names:
            continue
        query = {"fieldSelector": f"involvedObject.kind={kind},type=Warning"}
        try:
            events = next(iter(api.pages(f"/api/v1/namespaces/{place}/events", query))).get("items") or []
        except ApiError as error:
            say(f"Events of {place} are not read ({error})")
            continue
        for event in events:
            name = str((event.get("involvedObject") or {}).get("name"))
            at = seconds_of(event.get("lastTimestamp") or event.get("eventTime"))
            if name not in names or (since is not None and at is not None and at < since - BEFORE_S):
                continue
            reason, message = str(event.get("reason") or ""), str(event.get("message") or "")[:300]
            finding = meaning(reason, message, rules)
            if finding is None or (finding.cls not in _SAYS_SOMETHING and finding.family != "hardware"):
                continue
            on_pod = kind == "Pod"
            found.append(
                MachineFact(reason, message, None if on_pod else name, None, name if on_pod else None, at, finding)
            )
    return found
