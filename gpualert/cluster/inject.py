"""Putting gpualert into a pod template, and taking it out again exactly."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpualert.cluster.podspecs import PodTemplate

PREFIX = "gpualert.dev/"
MARK = PREFIX + "injected"
"""The annotation that says what was put in, so that it can be taken out."""
MOUNT = "/gpualert"
LAUNCHER = f"{MOUNT}/bin/gpualert"
BUNDLE, LOG, CONFIG, SECRET = "gpualert-bundle", "gpualert-log", "gpualert-config", "gpualert-smtp"
INSTALL, ATTEND = "gpualert-install", "gpualert-attend"
CONFIG_MOUNT, SECRET_MOUNT = "/etc/gpualert-config", "/etc/gpualert-smtp"
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_COPIED_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_TRUE = ("true", "yes", "on", "1", "enabled")


class InjectError(Exception):
    """A pod cannot be wrapped; the message says where, why, and what to set."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to put in.

    Attributes:
        image: The image of the init container.
        pull_policy: Its pull policy; the cluster's default when None.
        pull_secrets: Names of secrets to pull it with.
        containers: Names of the containers to wrap; ``*`` for all; the pod's default container when empty.
        log_dir: Where runs are kept in the container.
        log_volume: ``emptyDir``, ``pvc:CLAIM``, ``hostPath:PATH``, or ``none`` (the container's own file system).
        config_map: A ConfigMap with ``config.toml``.
        smtp_secret: A Secret with the key ``password``.
        notify: ``failure``, ``always`` or ``never``; as configured when None.
        survivor: Whether a native sidecar reports what a container could not report itself.
    """

    image: str
    pull_policy: str | None = None
    pull_secrets: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    log_dir: str = "/var/log/gpualert"
    log_volume: str = "emptyDir"
    config_map: str | None = None
    smtp_secret: str | None = None
    notify: str | None = None
    survivor: bool = False


def wanted(template: PodTemplate) -> bool:
    """Whether a pod wants it, by its annotation ``gpualert.dev/inject``.

    Args:
        template: The pod template.
    """
    return template.annotations.get(PREFIX + "inject", "true").lower() in _TRUE


def of_annotations(template: PodTemplate, options: Options) -> Options:
    """The options with those of the pod's annotations over them.

    Args:
        template: The pod template.
        options: What holds for all.
    """
    told = {key.removeprefix(PREFIX): value for key, value in template.annotations.items() if key.startswith(PREFIX)}
    changes: dict[str, Any] = {}
    if "container" in told:
        changes["containers"] = tuple(part.strip() for part in told["container"].split(",") if part.strip())
    for key, name in (
        ("image", "image"),
        ("log-dir", "log_dir"),
        ("log-volume", "log_volume"),
        ("config-map", "config_map"),
        ("smtp-secret", "smtp_secret"),
        ("notify", "notify"),
    ):
        if key in told:
            changes[name] = told[key]
    if "survivor" in told:
        changes["survivor"] = told["survivor"].lower() in _TRUE
    return replace(options, **changes)


def is_injected(template: PodTemplate) -> bool:
    """Whether gpualert is in a pod already."""
    return MARK in _own_annotations(template)


def _own_annotations(template: PodTemplate) -> dict[str, Any]:
    metadata = template.holder.get("metadata")
    told = metadata.get("annotations") if isinstance(metadata, dict) else None
    return told if isinstance(told, dict) else {}


class _Change:
    """One injection: what it adds, and what it has to remember to take it out again."""

    def __init__(self, template: PodTemplate, options: Options) -> None:
        self.template = template
        self.spec = template.spec
        self.options = options
        self.record: dict[str, Any] = {"v": 1, "containers": {}, "created": []}

    def fail(self, why: str) -> InjectError:
        return InjectError(f"{self.template.path}: {why}")

    def listed(self, holder: dict[str, Any], key: str, where: str) -> list[Any]:
        """A list of the manifest; made, and remembered as ours, where it is missing."""
        found = holder.get(key)
        if found is None:
            holder[key] = found = []
            self.record["created"].append(f"{where}{key}")
        if not isinstance(found, list):
            raise self.fail(f"{where}{key} is no list")
        return found


def inject(template: PodTemplate, options: Options) -> None:
    """Put gpualert into a pod template; one that has it already is brought up to date.

    Args:
        template: The pod template; changed in place.
        options: What to put in.

    Raises:
        InjectError: It cannot be wrapped; nothing is changed.
    """
    options = of_annotations(template, options)
    if is_injected(template):
        remove(template)
    _check(template, options)
    change = _Change(template, options)
    containers = _chosen(change)
    for container in containers:
        _wrap(change, container)
    _add_volumes(change)
    _add_init_containers(change, containers[0])
    _add_pull_secrets(change)
    _mark(change)


def _check(template: PodTemplate, options: Options) -> None:
    """Refuse, with the reason, what would not work."""
    spec, path = template.spec, template.path
    system = (spec.get("os") or {}).get("name") or (spec.get("nodeSelector") or {}).get("kubernetes.io/os")
    if system == "windows":
        raise InjectError(f"{path}: runs on Windows, for which there is no gpualert")
    taken = {volume.get("name") for volume in spec.get("volumes") or [] if isinstance(volume, dict)}
    for name in (BUNDLE, LOG, CONFIG, SECRET):
        if name in taken:
            raise InjectError(f"{path}: a volume is called {name} already: rename it")
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        if container.get("name") in (INSTALL, ATTEND):
            raise InjectError(f"{path}: a container is called {container['name']} already: rename it")
    volume = options.log_volume
    if volume not in ("emptyDir", "none") and not volume.startswith(("pvc:", "hostPath:")):
        raise InjectError(f"{path}: the log volume must be emptyDir, pvc:CLAIM, hostPath:PATH or none, not {volume}")
    if options.survivor and volume == "none":
        raise InjectError(f"{path}: a survivor needs a log volume that it can share")
    for container in _named(template, options):
        mounts = [mount.get("mountPath", "").rstrip("/") for mount in container.get("volumeMounts") or []]
        for place in (MOUNT, options.log_dir.rstrip("/") if volume != "none" else MOUNT):
            if place in mounts:
                raise InjectError(f"{path}: container {container['name']} has a volume mounted at {place} already")
        command = container.get("command")
        if not command:
            image = container.get("image") or "IMAGE"
            shown = (
                f"docker inspect --format '{{{{json .Config.Entrypoint}}}} {{{{json .Config.Cmd}}}}' {image} shows it"
            )
            raise InjectError(
                f"{path}: container {container['name']} has no command, so only its image knows what it runs: "
                f'set command ({shown}), or leave it out with the annotation {PREFIX}inject: "false"'
            )
        if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
            raise InjectError(f"{path}: container {container['name']}: command must be a list of texts")


def _named(template: PodTemplate, options: Options) -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = template.spec["containers"]
    names = options.containers
    if "*" in names:
        return containers
    if not names:
        default = template.annotations.get(DEFAULT_CONTAINER)
        return [c for c in containers if c["name"] == default] or containers[:1]
    known = {container["name"] for container in containers}
    missing = [name for name in names if name not in known]
    if missing:
        raise InjectError(f"{template.path}: there is no container {missing[0]} (there are {', '.join(sorted(known))})")
    return [container for container in containers if container["name"] in names]


def _chosen(change: _Change) -> list[dict[str, Any]]:
    return _named(change.template, change.options)


def _wrap(change: _Change, container: dict[str, Any]) -> None:
    """Put the launcher in front of a container's command, and give it what it needs."""
    options, name = change.options, container["name"]
    command = container["command"]
    command[:0] = [LAUNCHER, "run", "--"]  # $(VAR) in it is still the kubelet's to fill in, args still follow
    record: dict[str, Any] = {"env": [], "mounts": []}
    environment = change.listed(container, "env", f"{name}.")
    taken = {entry.get("name") for entry in environment if isinstance(entry, dict)}
    for entry in _environment(change, container):
        if entry["name"] not in taken:
            environment.append(entry)
            record["env"].append(entry["name"])
    mounts = change.listed(container, "volumeMounts", f"{name}.")
    for mount in _mounts(options):
        mounts.append(mount)
        record["mounts"].append(mount["name"])
    if "terminationMessagePolicy" not in container:
        container["terminationMessagePolicy"] = "FallbackToLogsOnError"
        record["policy"] = True
    change.record["containers"][name] = record


def _environment(change: _Change, container: dict[str, Any]) -> list[dict[str, Any]]:
    options, template = change.options, change.template

    def field(path: str) -> dict[str, Any]:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    rows: list[dict[str, Any]] = [
        {"name": "GPUALERT_POD_NAME", **field("metadata.name")},
        {"name": "GPUALERT_POD_NAMESPACE", **field("metadata.namespace")},
        {"name": "GPUALERT_NODE_NAME", **field("spec.nodeName")},
        {"name": "GPUALERT_CONTAINER_NAME", "value": container["name"]},
        {"name": "GPUALERT_CONTAINERS", "value": str(len(template.spec["containers"]))},
        {"name": "GPUALERT_LOG_DIR", "value": options.log_dir},
    ]
    if template.job_label is not None:
        rows.append({"name": "GPUALERT_JOB_NAME", **field(f"metadata.labels['{template.job_label}']")})
    if container.get("terminationMessagePath"):
        rows.append({"name": "GPUALERT_TERMINATION_LOG", "value": container["terminationMessagePath"]})
    if options.notify is not None:
        rows.append({"name": "GPUALERT_NOTIFY", "value": options.notify})
    if options.config_map is not None:
        rows.append({"name": "GPUALERT_CONFIG", "value": f"{CONFIG_MOUNT}/config.toml"})
    if options.smtp_secret is not None:
        rows.append({"name": "GPUALERT_SMTP_PASSWORD_FILE", "value": f"{SECRET_MOUNT}/password"})
    return rows


def _mounts(options: Options) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"name": BUNDLE, "mountPath": MOUNT, "readOnly": True}]
    if options.log_volume != "none":
        rows.append({"name": LOG, "mountPath": options.log_dir})
    if options.config_map is not None:
        rows.append({"name": CONFIG, "mountPath": CONFIG_MOUNT, "readOnly": True})
    if options.smtp_secret is not None:
        rows.append({"name": SECRET, "mountPath": SECRET_MOUNT, "readOnly": True})
    return rows


def _add_volumes(change: _Change) -> None:
    options = change.options
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
    change.listed(change.spec, "volumes", "").extend(rows)
    change.record["volumes"] = [row["name"] for row in rows]


def _security(spec: dict[str, Any]) -> dict[str, Any]:
    """What the restricted Pod Security Standard asks for; no user, since some clusters give each namespace its own."""
    pod = spec.get("securityContext") or {}
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return context if pod.get("runAsUser") == 0 else {**context, "runAsNonRoot": True}


def _resources(container: dict[str, Any]) -> dict[str, Any] | None:
    """The wrapped container's own, so that neither the pod's size nor its quality of service changes."""
    told = container.get("resources")
    if not isinstance(told, dict):
        return None
    copied = {
        kind: {key: amounts[key] for key in _COPIED_RESOURCES if key in amounts}
        for kind in ("requests", "limits")
        if isinstance(amounts := told.get(kind), dict)
    }
    copied = {kind: amounts for kind, amounts in copied.items() if amounts}
    return copied or None


def _add_init_containers(change: _Change, first: dict[str, Any]) -> None:
    options = change.options
    common: dict[str, Any] = {"image": options.image}
    if options.pull_policy is not None:
        common["imagePullPolicy"] = options.pull_policy
    install: dict[str, Any] = {
        "name": INSTALL,
        **common,
        "command": [LAUNCHER, "install", "/target"],
        "volumeMounts": [{"name": BUNDLE, "mountPath": "/target"}],
        "securityContext": _security(change.spec),
    }
    resources = _resources(first)
    if resources is not None:
        install["resources"] = resources
    rows = [install]
    if options.survivor:
        mounts = [mount for mount in _mounts(options) if mount["name"] != BUNDLE]
        attend = {
            "name": ATTEND,
            **common,
            "restartPolicy": "Always",  # a native sidecar: it ends after the job's containers, and keeps no Job open
            "command": [LAUNCHER, "attend", "--log-dir", options.log_dir],
            "env": [row for row in _environment(change, first) if row["name"] != "GPUALERT_TERMINATION_LOG"],
            "volumeMounts": mounts,
            "securityContext": _security(change.spec),
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        }
        rows.append(attend)
    # First of all: another init container may be slow, and a volume that is filled early harms nobody.
    change.listed(change.spec, "initContainers", "")[:0] = rows
    change.record["init"] = [row["name"] for row in rows]


def _add_pull_secrets(change: _Change) -> None:
    if not change.options.pull_secrets:
        return
    secrets = change.listed(change.spec, "imagePullSecrets", "")
    have = {entry.get("name") for entry in secrets if isinstance(entry, dict)}
    added = [name for name in change.options.pull_secrets if name not in have]
    secrets.extend({"name": name} for name in added)
    change.record["pull"] = added


def _mark(change: _Change) -> None:
    holder = change.template.holder
    if not isinstance(holder.get("metadata"), dict):
        _put_first(holder, "metadata", {})
        change.record["created"].append("metadata")
    metadata = holder["metadata"]
    if not isinstance(metadata.get("annotations"), dict):
        metadata["annotations"] = {}
        change.record["created"].append("annotations")
    metadata["annotations"][MARK] = json.dumps(change.record, separators=(",", ":"), sort_keys=True)


def _put_first(holder: dict[str, Any], key: str, value: object) -> None:
    """Set a key before all others, as people write ``metadata`` before ``spec``."""
    insert = getattr(holder, "insert", None)
    if insert is not None:  # the YAML library's mapping
        insert(0, key, value)
    else:
        holder[key] = value


def remove(template: PodTemplate) -> bool:
    """Take gpualert out of a pod template again.

    Args:
        template: The pod template; changed in place.

    Returns:
        Whether it was there.

    Raises:
        InjectError: The annotation that says what was put in is damaged.
    """
    annotations, spec = _own_annotations(template), template.spec
    if MARK not in annotations:
        return False
    try:
        record = json.loads(annotations[MARK])
        created = set(record["created"])
        for container in spec["containers"]:
            if container["name"] in record["containers"]:
                _unwrap(container, record["containers"][container["name"]], created)
        _drop(spec, "volumes", record["volumes"], created, "")
        _drop(spec, "initContainers", record["init"], created, "")
        _drop(spec, "imagePullSecrets", record.get("pull", []), created, "")
    except (ValueError, KeyError, TypeError) as error:
        raise InjectError(
            f"{template.path}: the annotation {MARK} is damaged ({error}): take gpualert out by hand"
        ) from None
    del annotations[MARK]
    if "annotations" in created and not annotations:
        del template.holder["metadata"]["annotations"]
    if "metadata" in created and not template.holder["metadata"]:
        del template.holder["metadata"]
    return True


def _unwrap(container: dict[str, Any], record: dict[str, Any], created: set[str]) -> None:
    command, name = container.get("command"), container["name"]
    if isinstance(command, list) and command[:3] == [LAUNCHER, "run", "--"]:
        del command[:3]
    _drop(container, "env", record["env"], created, f"{name}.")
    _drop(container, "volumeMounts", record["mounts"], created, f"{name}.")
    if record.get("policy"):
        container.pop("terminationMessagePolicy", None)


def _drop(holder: dict[str, Any], key: str, names: list[str], created: set[str], where: str) -> None:
    """Take entries out of a list by name; the list too, where it was ours and is empty."""
    entries = holder.get(key)
    if not isinstance(entries, list):
        return
    for number in reversed(range(len(entries))):
        if isinstance(entries[number], dict) and entries[number].get("name") in names:
            del entries[number]
    if not entries and f"{where}{key}" in created:
        del holder[key]
