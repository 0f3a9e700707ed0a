"""Which verb and resource a request path means, in the words of RBAC."""

from __future__ import annotations

_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def verb_and_resource(method: str, path: str, *, watch: bool = False) -> tuple[str, str]:
    """The verb and resource of a request, as a role would have to grant them.

    Args:
        method: The HTTP method.
        path: The path without query: ``/api/v1/namespaces/ml/pods/a/log``.
        watch: Whether it is a watch.

    Returns:
        For instance ``("get", "pods/log")``; the resource is the path itself where it names none (``/version``).
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        parts = parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        parts = parts[3:]
    else:
        return _VERBS.get(method, "get"), path
    if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in ("status", "finalize"):
        parts = parts[2:]
    resource = "/".join([parts[0], *parts[2:3]])
    if method == "GET":
        return ("watch" if watch else "get" if len(parts) > 1 else "list"), resource
    return _VERBS.get(method, method.lower()), resource
