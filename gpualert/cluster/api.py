"""Requests to the Kubernetes API: plain dicts in and out, counted, tried again where that may help.

The model objects of the ``kubernetes`` package are not used: they take far more memory and time than the dicts.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import urllib3.exceptions

from gpualert.cluster.apierror import ApiError
from gpualert.cluster.backoff import Backoff
from gpualert.cluster.stream import Stream
from gpualert.cluster.transport import Transport, client_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import kubernetes.client

PAGE = 500
"""Objects a page of a list."""
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_PATIENCE_S, _TIMEOUT_S = 30.0, 30.0
_LOG_SLACK = 16

Object = dict[str, Any]
_T = TypeVar("_T")


def parse(text: bytes) -> Any:
    """JSON from the API server, without ``managedFields``.

    They are about half of a pod and nobody here reads them. Dropping them as they are parsed halves the memory that a
    page of 500 pods takes for a moment (107 to 59 MB at 23 kB a pod).

    Args:
        text: The JSON.

    Raises:
        ValueError: It is none.
    """
    return json.loads(text, object_hook=_without_managed_fields)


def _without_managed_fields(parsed: Object) -> Object:
    parsed.pop("managedFields", None)
    return parsed


class Api:
    """The way to one API server; may be used from several threads.

    Every method takes ``deadline``, a time on the monotonic clock after which no further attempt begins; by default it
    lies ``patience_s`` ahead. All raise ``ApiError``.

    Args:
        client: The configured client; ``connect`` makes one.
        patience_s: For how many seconds 429, 5xx and broken connections are tried again.
        timeout_s: How many seconds one attempt may wait for the server.

    Attributes:
        requests: How many requests were sent, by verb and resource (``("list", "pods")``).
    """

    def __init__(
        self, client: kubernetes.client.ApiClient, *, patience_s: float = _PATIENCE_S, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._transport = Transport(client)
        self.requests = self._transport.requests
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._closed = threading.Event()

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Api:
        """The API server that this process is meant to talk to.

        Args:
            kubeconfig: A kubeconfig file. Otherwise ``KUBECONFIG``, then the pod's service account, then
                ``~/.kube/config``.
            context: The kubeconfig's context; its current one by default.
        """
        return cls(client_of(kubeconfig, context))

    def patient(self, patience_s: float, timeout_s: float | None = None) -> Api:
        """The same connections and counters with another patience.

        Args:
            patience_s: As for the class; 0 tries once.
            timeout_s: As for the class; unchanged by default.
        """
        other = copy.copy(self)
        other._patience_s = patience_s  # noqa: SLF001  (one of us)
        if timeout_s is not None:
            other._timeout_s = timeout_s  # noqa: SLF001
        return other

    def close(self) -> None:
        """End all waiting between attempts, and the connections that are idle."""
        self._closed.set()
        self._transport.close()

    def get(self, path: str, *, deadline: float | None = None) -> Object:
        """One object.

        Args:
            path: Its path: ``/api/v1/namespaces/ml/pods/a``.
            deadline: See the class.
        """
        return self._object("GET", path, None, None, JSON, deadline=deadline, repeatable=True)

    def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH, *, deadline: float | None = None) -> Object:
        """Patch an object; a ``resourceVersion`` in the body's metadata makes it fail (409) when the object is newer.

        Args:
            path: The object's path.
            body: The patch.
            content_type: How the patch is meant. A JSON patch is not repeated where the first may have worked.
            deadline: See the class.
        """
        repeatable = content_type != JSON_PATCH
        return self._object("PATCH", path, None, body, content_type, deadline=deadline, repeatable=repeatable)

    def post(self, path: str, body: Object, *, repeatable: bool | None = None, deadline: float | None = None) -> Object:
        """Create an object.

        Args:
            path: The collection's path.
            body: The object.
            repeatable: Try again also where the first attempt may have worked. By default where the object has a name:
                then a second attempt cannot make a second object, but may be answered 409 for what the first has made.
            deadline: See the class.
        """
        if repeatable is None:
            repeatable = "name" in body.get("metadata", {})
        return self._object("POST", path, None, body, JSON, deadline=deadline, repeatable=repeatable)

    def delete(self, path: str, body: Object | None = None, *, deadline: float | None = None) -> Object:
        """Delete an object; one that is gone already is answered 404.

        Args:
            path: The object's path.
            body: DeleteOptions.
            deadline: See the class.
        """
        return self._object("DELETE", path, None, body, JSON, deadline=deadline, repeatable=True)

    def may(self, verb: str, resource: str, namespace: str, group: str = "", *, deadline: float | None = None) -> bool:
        """Whether we have a permission (SelfSubjectAccessReview; needs no permission itself).

        Args:
            verb: ``list``, ``watch``, ``get`` ...
            resource: ``pods``, ``pods/log`` ...
            namespace: The namespace; empty for all of them.
            group: The API group; empty for the core.
            deadline: See the class.
        """
        name, _, subresource = resource.partition("/")
        wanted = {"verb": verb, "resource": name, "subresource": subresource, "namespace": namespace, "group": group}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self.post(path, review, repeatable=True, deadline=deadline)
        return bool(answer.get("status", {}).get("allowed"))

    def log_tail(
        self,
        namespace: str,
        pod: str,
        container: str,
        tail_lines: int,
        limit_bytes: int,
        *,
        previous: bool = False,
        deadline: float | None = None,
    ) -> bytes:
        """The end of a container's log.

        The server's ``limitBytes`` keeps the beginning of the tail that was asked for, and so loses the very end; here
        it only bounds what is transferred, and fewer lines are asked for where it has cut.

        Args:
            namespace: The pod's namespace.
            pod: Its name.
            container: Its container.
            tail_lines: At most so many lines.
            limit_bytes: At most so many bytes, the last ones.
            previous: Of the container's instance before the last restart.
            deadline: See the class.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        most = limit_bytes * _LOG_SLACK
        while True:
            query = {"container": container, "tailLines": str(tail_lines), "limitBytes": str(most)}
            if previous:
                query["previous"] = "true"

            def once(timeout_s: float, query: dict[str, str] = query) -> tuple[bytes, int]:
                stream = self._open("GET", path, query, timeout_s)
                try:
                    tail, length = bytearray(), 0
                    for chunk in stream.chunks():
                        length += len(chunk)
                        tail += chunk
                        del tail[:-limit_bytes]
                    return bytes(tail), length
                finally:
                    stream.close()

            tail, length = self._patiently(once, deadline=deadline, repeatable=True)
            if length < most or tail_lines <= 1:
                return tail
            tail_lines = max(tail_lines // 8, 1)

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Stream:
        """Open a watch; one attempt.

        Args:
            path: The collection's path.
            query: The query; ``watch`` is added.
            silence_s: How many seconds without a byte mean that the server is gone.
        """
        return self._open("GET", path, {**query, "watch": "true"}, silence_s)

    def pages(
        self, path: str, query: Mapping[str, str] | None = None, *, deadline: float | None = None
    ) -> Iterator[Object]:
        """The pages of a list, each as the server gives it, so that not all are in memory at once.

        Args:
            path: The collection's path.
            query: Selectors.
            deadline: See the class; without it each page has the whole patience.

        Raises:
            ApiError: ``expired`` where the list took so long that it has to begin anew.
        """
        more: dict[str, str] = {}
        while True:
            asked = {**(query or {}), "limit": str(PAGE), **more}
            page = self._object("GET", path, asked, None, JSON, deadline=deadline, repeatable=True)
            token = page.get("metadata", {}).get("continue")
            yield page
            if not token:
                return
            more = {"continue": token}

    def list(
        self, path: str, query: Mapping[str, str] | None = None, *, deadline: float | None = None
    ) -> Sequence[Object]:
        """All objects of a collection.

        Args:
            path: The collection's path.
            query: Selectors.
            deadline: See ``pages``.
        """
        for _ in range(2):
            try:
                return [item for page in self.pages(path, query, deadline=deadline) for item in page.get("items") or ()]
            except ApiError as error:
                if not error.expired:
                    raise
        return [item for page in self.pages(path, query, deadline=deadline) for item in page.get("items") or ()]

    def _object(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        *,
        deadline: float | None,
        repeatable: bool,
    ) -> Object:
        def once(timeout_s: float) -> Object:
            response = self._transport.send(method, path, query, body, content_type, timeout_s)
            what = f"{method} {path}"
            try:
                answer = parse(response.data)
            except urllib3.exceptions.ReadTimeoutError:
                raise ApiError(0, "Timeout", f"{what} was not answered in whole in time") from None
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise ApiError(0, "Cut", f"{what} was cut ({error})") from None
            except ValueError:
                raise ApiError(0, "BadAnswer", f"{what} was answered with something that is not JSON") from None
            if not isinstance(answer, dict):
                raise ApiError(0, "BadAnswer", f"{what} was answered with something that is not an object")
            return answer

        return self._patiently(once, deadline=deadline, repeatable=repeatable)

    def _patiently(self, once: Callable[[float], _T], *, deadline: float | None, repeatable: bool) -> _T:
        """Try, with growing pauses, until it works, cannot work, or the deadline has come."""
        end = time.monotonic() + self._patience_s if deadline is None else deadline
        pauses = Backoff()
        while True:
            left = end - time.monotonic()
            # The first attempt has its time also where no second is wanted.
            timeout_s = self._timeout_s if deadline is None else min(self._timeout_s, max(left, 1.0))
            try:
                return once(timeout_s)
            except ApiError as error:
                pause = max(pauses.next(), error.retry_after or 0.0)
                if not error.may_pass(repeatable=repeatable) or time.monotonic() + pause >= end:
                    raise
            if self._closed.wait(pause):
                raise ApiError(0, "Closed", "the connection to Kubernetes has been closed")

    def _open(self, method: str, path: str, query: Mapping[str, str], timeout_s: float) -> Stream:
        return Stream(f"{method} {path}", self._transport.send(method, path, query, None, JSON, timeout_s))
