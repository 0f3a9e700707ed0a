"""What a pod says of itself to its API server: a condition that a podFailurePolicy can match, and an Event.

Both need rights that a service account mostly has not (``podReports`` in the chart grants them); without them, without
a token or without an API server in reach, nothing is lost but this.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpualert.cluster import event

if TYPE_CHECKING:
    from collections.abc import Callable

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
CONDITION = "gpualert.dev/"
STRATEGIC = "application/strategic-merge-patch+json"
TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class PodApi:
    """One pod's way to its API server.

    Attributes:
        host: The server.
        port: Its port.
        namespace: The pod's namespace.
        pod: The pod's name.
        account: The directory with the service account's token and authorities.
    """

    host: str
    port: int
    namespace: str
    pod: str
    account: str = ACCOUNT

    @classmethod
    def of(cls, run: dict[str, Any]) -> PodApi | None:
        """The way of the pod that a run was in; None outside a cluster or without a token.

        Args:
            run: The run's facts.
        """
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        namespace, pod = run.get("namespace"), run.get("pod")
        there = os.path.isfile(os.path.join(ACCOUNT, "token"))
        if not host or not port.isdigit() or not namespace or not pod or not there:
            return None
        return cls(host, int(port), str(namespace), str(pod), ACCOUNT)

    def say(self, report: dict[str, Any]) -> list[str]:
        """Set the condition and write the Event of a run that has failed.

        Args:
            report: The report.

        Returns:
            What did not work, a line each.
        """
        return self._say(condition(report), self.event(report))

    def say_hang(self, hang: dict[str, Any]) -> list[str]:
        """Set the condition ``gpualert.dev/hang`` and write the Event, or take the condition back.

        Args:
            hang: The report's ``hang``.

        Returns:
            What did not work, a line each.
        """
        over = hang["state"] == "over"
        told = {"class": "goes_on" if over else "hang", "summary": hang["why"] or "nothing happens"}
        return self._say(hang_condition(hang), self._event(told, "Normal" if over else "Warning"))

    def _say(self, patch: dict[str, Any], said: dict[str, Any]) -> list[str]:
        troubles = []
        for what, method, path, kind, body in (
            ("condition", "PATCH", f"/pods/{self.pod}/status", STRATEGIC, patch),
            ("event", "POST", "/events", "application/json", said),
        ):
            try:
                status = self._ask(method, f"/api/v1/namespaces/{self.namespace}{path}", kind, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                troubles.append(f"{what}: {error}")
                break  # there is no server to be had
            if status >= 300:
                troubles.append(f"{what}: the API server answered {status}")
        return troubles

    def event(self, report: dict[str, Any]) -> dict[str, Any]:
        """The Event on the pod."""
        return self._event(report["diagnosis"], "Warning")

    def _event(self, told: dict[str, Any], kind: str) -> dict[str, Any]:
        return event.body(
            {"generateName": f"{self.pod[:50]}.gpualert-", "namespace": self.namespace},
            {"apiVersion": "v1", "kind": "Pod", "namespace": self.namespace, "name": self.pod},
            told,
            "gpualert.dev/run",
            self.pod,
            kind,
        )

    def _ask(self, method: str, path: str, kind: str, body: dict[str, Any]) -> int:
        with open(os.path.join(self.account, "token"), encoding="utf-8") as file:
            token = file.read().strip()
        context = ssl.create_default_context(cafile=os.path.join(self.account, "ca.crt"))
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=context)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind, "Accept": "application/json"}
            connection.request(method, path, json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"), headers)
            return connection.getresponse().status
        finally:
            connection.close()


def condition(report: dict[str, Any]) -> dict[str, Any]:
    """The patch that sets the pod's condition ``gpualert.dev/<family>``.

    Args:
        report: The report.
    """
    diagnosis = report["diagnosis"]
    return _patch(CONDITION + diagnosis["family"], "True", diagnosis["class"], event.message_of(diagnosis))


def hang_condition(hang: dict[str, Any]) -> dict[str, Any]:
    """The patch that sets the pod's condition ``gpualert.dev/hang``, or says that it holds no more.

    Args:
        hang: The report's ``hang``.
    """
    over = hang["state"] == "over"
    message = (hang["why"] or "nothing happens")[: event.MESSAGE_MAX]
    return _patch(f"{CONDITION}hang", "False" if over else "True", "GoesOn" if over else "Hang", message)


def _patch(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    row = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": event.now(),
    }
    return {"status": {"conditions": [row]}}


class _Saying:
    """Saying it in a thread of its own, which nobody waits for longer than a moment."""

    def __init__(self, run: dict[str, Any], say: Callable[[PodApi], list[str]] | None) -> None:
        self.troubles: list[str] = []
        self._api = PodApi.of(run)
        self._say = say
        self._thread = threading.Thread(target=self._run, daemon=True)
        if self._api is not None and say is not None:
            self._thread.start()

    def _run(self) -> None:
        if self._api is not None and self._say is not None:
            self.troubles = self._say(self._api)

    def finish(self, deadline: float) -> list[str]:
        """Wait for it; what did not work.

        Args:
            deadline: When to be done, on the monotonic clock.
        """
        if self._thread.ident is not None:
            self._thread.join(max(min(deadline - time.monotonic(), 2 * TIMEOUT_S), 0))
            if self._thread.is_alive():
                return ["no answer in time"]
        return self.troubles


class Saying(_Saying):
    """Saying how a run has ended, unless it has succeeded."""

    def __init__(self, report: dict[str, Any]) -> None:
        failed = report["diagnosis"]["class"] != "success"
        super().__init__(report["run"], (lambda api: api.say(report)) if failed else None)


class HangSaying(_Saying):
    """Saying that a run hangs, or goes on again."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__(report["run"], lambda api: api.say_hang(report["hang"]))
