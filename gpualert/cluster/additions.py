"""What is added to a pod: volumes, mounts, environment, init containers; as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpualert.cluster.choices import CONFIG_MOUNT, MOUNT, SECRET_MOUNT

if TYPE_CHECKING:
    from gpualert.cluster.choices import Options
    from gpualert.cluster.podspecs import PodTemplate

LAUNCHER = f"{MOUNT}/bin/gpualert"
BUNDLE, LOG, CONFIG, SECRET = "gpualert-bundle", "gpualert-log", "gpualert-config", "gpualert-smtp"
INSTALL, ATTEND = "gpualert-install", "gpualert-attend"
_COPIED_RESOURCES = ("cpu", "memory", "ephemeral-storage")
# Who a process is, for files that it shares: the sidecar has to read what the job's container writes.
_COPIED_IDENTITY = ("runAsUser", "runAsGroup", "seLinuxOptions")
_ATTEND_SIZE = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
_ATTEND_GUARANTEED = {kind: {"cpu": "100m", "memory": "256Mi"} for kind in ("requests", "limits")}


def _field(path: str) -> dict[str, Any]:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def environment(template: PodTemplate, container: dict[str, Any], options: Options) -> list[dict[str, Any]]:
    """The variables of a wrapped container.

    Args:
        template: Its pod.
        container: It.
        options: What to put in.
    """
    spec = template.spec
    # The kubelet gives each container of a pod, init containers too, the same share of the termination messages' room.
    containers = len(spec["containers"]) + len(spec.get("initContainers") or []) + 1 + options.survivor
    rows: list[dict[str, Any]] = [
        {"name": "GPUALERT_POD_NAME", **_field("metadata.name")},
        {"name": "GPUALERT_POD_NAMESPACE", **_field("metadata.namespace")},
        {"name": "GPUALERT_NODE_NAME", **_field("spec.nodeName")},
        {"name": "GPUALERT_CONTAINER_NAME", "value": container["name"]},
        {"name": "GPUALERT_CONTAINERS", "value": str(containers)},
        {"name": "GPUALERT_LOG_DIR", "value": options.log_dir},
    ]
    if template.job_label is not None:
        rows.append({"name": "GPUALERT_JOB_NAME", **_field(f"metadata.labels['{template.job_label}']")})
    if container.get("terminationMessagePath"):
        rows.append({"name": "GPUALERT_TERMINATION_LOG", "value": str(container["terminationMessagePath"])})
    if options.notify is not None:
        rows.append({"name": "GPUALERT_NOTIFY", "value": options.notify})
    if options.config_map is not None:
        rows.append({"name": "GPUALERT_CONFIG", "value": f"{CONFIG_MOUNT}/config.toml"})
    if options.smtp_secret is not None:
        rows.append({"name": "GPUALERT_SMTP_PASSWORD_FILE", "value": f"{SECRET_MOUNT}/password"})
    return rows


def mounts(options: Options) -> list[dict[str, Any]]:
    """The mounts of a wrapped container."""
    rows: list[dict[str, Any]] = [{"name": BUNDLE, "mountPath": MOUNT, "readOnly": True}]
    if options.log_volume != "none":
        rows.append({"name": LOG, "mountPath": options.log_dir})
    if options.config_map is not None:
        rows.append({"name": CONFIG, "mountPath": CONFIG_MOUNT, "readOnly": True})
    if options.smtp_secret is not None:
        rows.append({"name": SECRET, "mountPath": SECRET_MOUNT, "readOnly": True})
    return rows


def volumes(options: Options) -> list[dict[str, Any]]:
    """The volumes of the pod."""
    rows: list[dict[str, Any]] = [{"name": BUNDLE, "emptyDir": {"sizeLimit": "200Mi"}}]
    kind, _, what = options.log_volume.partition(":")
    if kind == "emptyDir":
        rows.append({"name": LOG, "emptyDir": {}})
    elif kind == "pvc":
        rows.append({"name": LOG, "persistentVolumeClaim": {"claimName": what}})
    elif kind == "hostPath":
        rows.append({"name": LOG, "hostPath": {"path": what, "type": "DirectoryOrCreate"}})
    if options.config_map is not None:
        rows.append({"name": CONFIG, "configMap": {"name": options.config_map, "optional": True}})
    if options.smtp_secret is not None:
        rows.append({"name": SECRET, "secret": {"secretName": options.smtp_secret, "optional": True}})
    return rows


def init_containers(template: PodTemplate, first: dict[str, Any], options: Options) -> list[dict[str, Any]]:
    """The init containers of the pod.

    Args:
        template: The pod.
        first: The first container that is wrapped.
        options: What to put in.
    """
    spec = template.spec
    common: dict[str, Any] = {"image": options.image}
    if options.image_pull_policy is not None:
        common["imagePullPolicy"] = options.image_pull_policy
    install: dict[str, Any] = {
        "name": INSTALL,
        **common,
        "command": [LAUNCHER, "install", "/target"],
        "volumeMounts": [{"name": BUNDLE, "mountPath": "/target"}],
        "securityContext": _security(_mapping(spec.get("securityContext")).get("runAsUser")),
    }
    resources = _install_size(spec, first)
    if resources is not None:
        install["resources"] = resources
    if not options.survivor:
        return [install]
    told = _mapping(first.get("securityContext"))
    identity = {key: told[key] for key in _COPIED_IDENTITY if told.get(key) is not None}
    user = identity.get("runAsUser", _mapping(spec.get("securityContext")).get("runAsUser"))
    attend: dict[str, Any] = {
        "name": ATTEND,
        **common,
        "restartPolicy": "Always",  # a native sidecar: it ends after the job's containers, and keeps no Job open
        "command": [LAUNCHER, "attend", "--log-dir", options.log_dir],
        "env": [row for row in environment(template, first, options) if row["name"] != "GPUALERT_TERMINATION_LOG"],
        "volumeMounts": [mount for mount in mounts(options) if mount["name"] != BUNDLE],
        "securityContext": {**_security(user), **identity},
    }
    if not spec.get("resources"):  # a pod with a size of its own divides it itself
        attend["resources"] = _ATTEND_GUARANTEED if is_guaranteed(spec) else _ATTEND_SIZE
    return [install, attend]


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _security(user: object) -> dict[str, Any]:
    """What the restricted Pod Security Standard asks for; no user, since some clusters give each namespace its own."""
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return context if user == 0 else {**context, "runAsNonRoot": True}


def _install_size(spec: dict[str, Any], container: dict[str, Any]) -> dict[str, Any] | None:
    """The wrapped container's own, so that neither the pod's size nor its quality of service changes."""
    told = _mapping(container.get("resources"))
    copied = {
        kind: {key: amounts[key] for key in _COPIED_RESOURCES if amounts.get(key) is not None}
        for kind in ("requests", "limits")
        if (amounts := _mapping(told.get(kind)))
    }
    copied = {kind: amounts for kind, amounts in copied.items() if amounts}
    if not copied and any(_mapping(other.get("resources")) for other in spec["containers"]):
        return _ATTEND_SIZE
    return copied or None


def is_guaranteed(spec: dict[str, Any]) -> bool:
    """Whether the kubelet treats a pod as Guaranteed: limits for CPU and memory everywhere, and requests no other.

    Args:
        spec: The pod's spec.
    """
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        told = _mapping(container.get("resources"))
        limits, requests = _mapping(told.get("limits")), _mapping(told.get("requests"))
        for kind in ("cpu", "memory"):
            limit = limits.get(kind)
            if limit is None or not _amount(limit) or _amount(requests.get(kind, limit)) != _amount(limit):
                return False
    return True


_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)
}


def _amount(quantity: object) -> float | str:
    """A quantity of Kubernetes as a number; as it is where it is none."""
    text = str(quantity)
    digits = text.rstrip("EGKMPTikm")
    try:
        return float(digits) * _UNITS.get(text[len(digits) :], 1.0)
    except ValueError:
        return text
