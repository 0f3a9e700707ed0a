"""What keeps a pod from being wrapped, said with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpualert.cluster.additions import ATTEND, BUNDLE, CONFIG, INSTALL, LAUNCHER, LOG, SECRET, mounts
from gpualert.cluster.choices import INJECT, MOUNT, normal, within

if TYPE_CHECKING:
    from gpualert.cluster.choices import Options
    from gpualert.cluster.podspecs import PodTemplate

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_SYSTEM_LABELS = ("kubernetes.io/os", "beta.kubernetes.io/os")


class InjectError(Exception):
    """A pod cannot be wrapped; the message says where, why, and what to set."""


def check(template: PodTemplate, options: Options) -> list[dict[str, Any]]:
    """Refuse, with the reason, what would not work.

    Args:
        template: The pod.
        options: What is to be put in.

    Returns:
        The containers to wrap.

    Raises:
        InjectError: It would not work.
    """
    try:
        _check_shape(template)
        _check_system(template.spec)
        _check_names(template.spec)
        chosen = _chosen(template, options)
        for container in chosen:
            _check_container(template, container, options)
    except InjectError as error:
        raise InjectError(f"{template.where}: {error}") from None
    return chosen


def _check_shape(template: PodTemplate) -> None:
    """Whether mappings are mappings and lists are lists, where they are looked into."""
    spec = template.spec
    for holder, keys in (
        (spec, ("os", "nodeSelector", "securityContext", "affinity")),
        (template.holder, ("metadata",)),
    ):
        for key in keys:
            if not isinstance(holder.get(key), dict | None):
                raise InjectError(f"{key} must be a mapping, not {_shown(holder[key])}")
    annotations = (template.holder.get("metadata") or {}).get("annotations")
    if not isinstance(annotations, dict | None):
        raise InjectError(f"metadata.annotations must be a mapping, not {_shown(annotations)}")
    for key in ("initContainers", "containers", "volumes", "imagePullSecrets"):
        _check_list(spec, key, "", named=key != "imagePullSecrets")
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        where = f"container {container['name']}: "
        for key in ("env", "volumeMounts"):
            _check_list(container, key, where, named=True)
        for key in ("resources", "securityContext"):
            if not isinstance(container.get(key), dict | None):
                raise InjectError(f"{where}{key} must be a mapping, not {_shown(container[key])}")


def _check_list(holder: dict[str, Any], key: str, where: str, *, named: bool) -> None:
    found = holder.get(key)
    if not isinstance(found, list | None):
        raise InjectError(f"{where}{key} must be a list, not {_shown(found)}")
    for number, item in enumerate(found or []):
        if not isinstance(item, dict):
            raise InjectError(f"{where}{key}[{number}] must be a mapping, not {_shown(item)}")
        if named and not isinstance(item.get("name"), str):
            raise InjectError(f"{where}{key}[{number}] has no name")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _check_system(spec: dict[str, Any]) -> None:
    selector = spec.get("nodeSelector") or {}
    told = [(spec.get("os") or {}).get("name"), *(selector.get(label) for label in _SYSTEM_LABELS)]
    if "windows" in told or "node.kubernetes.io/windows-build" in selector or _only_windows(spec.get("affinity")):
        raise InjectError("runs on Windows, for which there is no gpualert")


def _only_windows(affinity: Any) -> bool:
    """Whether every node that a pod may run on has Windows."""
    found: Any = affinity
    for key in ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, list) or not found:
        return False
    return all(
        any(_is_windows(row) for row in (term.get("matchExpressions") if isinstance(term, dict) else None) or [])
        for term in found
    )


def _is_windows(row: Any) -> bool:
    if not isinstance(row, dict) or row.get("key") not in _SYSTEM_LABELS or not isinstance(row.get("values"), list):
        return False
    linux = "linux" in row["values"]
    return (row.get("operator") == "In" and not linux) or (row.get("operator") == "NotIn" and linux)


def _check_names(spec: dict[str, Any]) -> None:
    for volume in spec.get("volumes") or []:
        if volume["name"] in (BUNDLE, LOG, CONFIG, SECRET):
            raise InjectError(f"a volume is called {volume['name']} already: rename it")
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        if container["name"] in (INSTALL, ATTEND):
            raise InjectError(f"a container is called {container['name']} already: rename it")


def _chosen(template: PodTemplate, options: Options) -> list[dict[str, Any]]:
    if options.survivor and options.log_volume == "none":
        raise InjectError("a survivor needs a log volume that it can share")
    containers: list[dict[str, Any]] = template.spec["containers"]
    names = options.container
    if "*" in names:
        return containers
    if not names:
        default = template.annotations.get(DEFAULT_CONTAINER)
        return [container for container in containers if container["name"] == default] or containers[:1]
    known = {container["name"] for container in containers}
    missing = [name for name in names if name not in known]
    if missing:
        raise InjectError(f"there is no container {missing[0]} (there are {', '.join(sorted(known))})")
    return [container for container in containers if container["name"] in names]


def _check_container(template: PodTemplate, container: dict[str, Any], options: Options) -> None:
    name = container["name"]
    taken = [str(mount.get("mountPath", "")) for mount in container.get("volumeMounts") or []]
    taken += [
        str(device.get("devicePath", "")) for device in container.get("volumeDevices") or [] if isinstance(device, dict)
    ]
    for place in (normal(path) for path in taken if path):
        for mount in mounts(options):
            # Below one of ours that is read-only no mount point can be made.
            if place == mount["mountPath"] or (mount.get("readOnly") and within(place, mount["mountPath"])):
                raise InjectError(f"container {name} has a volume mounted at {place} already")
    for entry in container.get("env") or []:
        if entry["name"] == "GPUALERT_LOG_DIR" and entry.get("value") != options.log_dir:
            told = entry.get("value") or "something that is known later"
            raise InjectError(
                f"container {name} sets GPUALERT_LOG_DIR to {told}, and runs are to be kept in {options.log_dir}: "
                "take it out, or say the same with --log-dir or the annotation gpualert.dev/log-dir"
            )
    command = container.get("command")
    if template.carries:
        return
    if not command:
        image = container.get("image") or "IMAGE"
        shown = f"docker inspect --format '{{{{json .Config.Entrypoint}}}} {{{{json .Config.Cmd}}}}' {image} shows it"
        raise InjectError(
            f"container {name} has no command, so only its image knows what it runs: "
            f'set command ({shown}), or leave it out with the annotation {INJECT}: "false"'
        )
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise InjectError(f"container {name}: command must be a list of texts")
    if command[0] == LAUNCHER or (command[0].startswith(f"{MOUNT}/") and "run" in command[1:2]):
        raise InjectError(f"container {name} runs under gpualert already: take {command[0]} out of its command")
