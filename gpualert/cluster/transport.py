"""One request to an API server, with the configuration, credentials and TLS of the ``kubernetes`` package."""

from __future__ import annotations

import collections
import json
import os
import socket
import threading
import urllib.parse
from typing import TYPE_CHECKING, Any

import kubernetes.client
import kubernetes.config
import urllib3
import urllib3.exceptions

from gpualert import __version__
from gpualert.cluster.apierror import ApiError
from gpualert.cluster.verbs import verb_and_resource

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONNECT_S = 10.0
_ERROR_MAX = 1 << 16
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
# A peer that vanishes without a word is noticed after 60 s; a watch would otherwise wait for its whole length.
_KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


def client_of(kubeconfig: str | None, context: str | None) -> kubernetes.client.ApiClient:
    """A client with the configuration that this process is meant to use.

    Args:
        kubeconfig: A kubeconfig file. Otherwise ``KUBECONFIG``, then the pod's service account, then
            ``~/.kube/config``.
        context: The kubeconfig's context; its current one by default.

    Raises:
        ApiError: There is no usable configuration.
    """
    configuration = kubernetes.client.Configuration()
    file = kubeconfig or os.environ.get("KUBECONFIG") or None
    try:
        if file is None and os.environ.get(_IN_CLUSTER):
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        else:
            kubernetes.config.load_kube_config(
                config_file=file or os.path.expanduser("~/.kube/config"),
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
    except Exception as error:
        # Beside ConfigException it raises what YAML, base64, OpenSSL and the missing file do.
        where = file or ("the pod's service account" if os.environ.get(_IN_CLUSTER) else "~/.kube/config")
        message = f"cannot use {where} to reach Kubernetes ({error}): set KUBECONFIG, or run in a pod with a token"
        raise ApiError(0, "NotConfigured", message) from error
    if not configuration.verify_ssl:
        # Whoever wrote insecure-skip-tls-verify knows; urllib3 would write it on our stderr with each connection.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    client = kubernetes.client.ApiClient(configuration)
    client.user_agent = f"gpualert/{__version__}"
    return client


class Transport:
    """Sends requests and counts them; may be used from several threads.

    Args:
        client: The configured client. Its own request methods are passed by: their signatures change between versions,
            they make exceptions without a body, and they count nothing.

    Attributes:
        requests: How many requests were sent, by verb and resource.
    """

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self._client = client
        self._pool: urllib3.PoolManager = client.rest_client.pool_manager
        self._pool.connection_pool_kw["socket_options"] = _KEEPALIVE
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        timeout_s: float,
    ) -> urllib3.BaseHTTPResponse:
        """One request; its answer, with the body still to be read.

        Args:
            method: The HTTP method.
            path: The path, without the query.
            query: The query.
            body: What is sent as JSON; None for nothing.
            content_type: The body's type.
            timeout_s: For how many seconds the server may be silent.

        Raises:
            ApiError: It was not answered with success.
        """
        what = f"{method} {path}"
        headers = {"Accept": "application/json, */*", "User-Agent": self._client.user_agent, **self._authorization()}
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        address = self._client.configuration.host + path + ("?" + urllib.parse.urlencode(query) if query else "")
        with self._lock:
            self.requests[verb_and_resource(method, path, watch=bool(query and "watch" in query))] += 1
        try:
            response = self._pool.request(
                method,
                address,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(connect=min(timeout_s, _CONNECT_S), read=timeout_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            if 200 <= response.status < 300:
                return response
            said = response.read(_ERROR_MAX)
            response.close()
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            raise ApiError(0, "Unreachable", f"{what}: no connection to {_host(address)} ({error})") from None
        except urllib3.exceptions.SSLError as error:
            # The handshake comes before the request, any other trouble of TLS perhaps after it.
            reason = "Unreachable" if "CERTIFICATE_VERIFY" in str(error) else "Cut"
            raise ApiError(0, reason, f"{what}: no trust in {_host(address)} ({error})") from None
        except urllib3.exceptions.TimeoutError:
            raise ApiError(0, "Timeout", f"{what} was not answered in {timeout_s:.0f} s") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, "Cut", f"{what} was cut ({error})") from None
        raise ApiError.of(what, response.status, said, response.headers.get("Retry-After"))

    def _authorization(self) -> dict[str, str]:
        """The header with the token, which the package reads anew as it changes (not safely for threads)."""
        try:
            with self._lock:
                settings = self._client.configuration.auth_settings()
        except Exception as error:
            # An expired token is renewed here, by reading a file or running a program; either may fail for a while.
            raise ApiError(0, "Unreachable", f"cannot renew the token for Kubernetes ({error})") from error
        return {one["key"]: one["value"] for one in settings.values() if one["in"] == "header" and one["value"]}


def _host(address: str) -> str:
    return urllib.parse.urlsplit(address).netloc
