"""What can be said about an injection: by option, by annotation, by a kustomize function, the same in each."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "gpualert.dev/"
MARK = PREFIX + "injected"
"""The annotation that says what was put in, so that it can be taken out."""
INJECT = PREFIX + "inject"
MOUNT = "/gpualert"
CONFIG_MOUNT, SECRET_MOUNT = "/etc/gpualert-config", "/etc/gpualert-smtp"
TRUE = ("true", "yes", "on", "1", "enabled")
FALSE = ("false", "no", "off", "0", "disabled")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_IMAGE = re.compile(r"[\w][\w./:@-]*", re.ASCII)
# A volume over one of these hides the image's own files.
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr", "var")


@dataclass(frozen=True, slots=True)
class Options:
    """What to put in.

    Attributes:
        image: The image of the init container.
        image_pull_policy: Its pull policy; the cluster's default when None.
        image_pull_secret: Names of secrets to pull it with.
        container: Names of the containers to wrap; ``*`` for all; the pod's default container when empty.
        log_dir: Where runs are kept in the container.
        log_volume: ``emptyDir``, ``pvc:CLAIM``, ``hostPath:PATH``, or ``none`` (the container's own file system).
        config_map: A ConfigMap with ``config.toml``.
        smtp_secret: A Secret with the key ``password``.
        notify: ``failure``, ``always`` or ``never``; as configured when None.
        survivor: Whether a native sidecar reports what a container could not report itself.
    """

    image: str
    image_pull_policy: str | None = None
    image_pull_secret: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    log_dir: str = "/var/log/gpualert"
    log_volume: str = "emptyDir"
    config_map: str | None = None
    smtp_secret: str | None = None
    notify: str | None = None
    survivor: bool = False


class ChoiceError(Exception):
    """Something was said that cannot be; the message says what and why."""


def told_true(text: str) -> bool:
    """A truth value as people write it.

    Raises:
        ValueError: It is none.
    """
    if text.lower() not in TRUE + FALSE:
        raise ValueError(f"must be true or false, not {text!r}")
    return text.lower() in TRUE


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"must be {', '.join(values[:-1])} or {values[-1]}, not {text!r}")
        return text

    return parse


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"must be the name of an object in the cluster, not {text!r}")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(_name(part.strip()) for part in text.split(",") if part.strip())


def _containers(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    return tuple(name if name == "*" else _name(name) for name in names)


def _image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise ValueError(f"must be the name of an image, not {text!r}")
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/") or ":" in text or not text.isprintable():
        raise ValueError(f"must be an absolute path without .. and colons, not {text!r}")
    return normal(text)


def _log_dir(text: str) -> str:
    path = _absolute(text)
    if path == "/" or path[1:] in _SYSTEM or path.startswith(("/proc/", "/sys/", "/dev/")):
        raise ValueError(f"must be a directory of its own, not {path}, which the container needs itself")
    for ours in (MOUNT, CONFIG_MOUNT, SECRET_MOUNT):
        if within(path, ours):
            raise ValueError(f"must not be in {ours}, where gpualert mounts something read-only")
    return path


def _log_volume(text: str) -> str:
    kind, _, what = text.partition(":")
    if text in ("emptyDir", "none"):
        return text
    if kind == "pvc":
        if not what:
            raise ValueError("needs the name of the claim after pvc:")
        return f"pvc:{_name(what)}"
    if kind == "hostPath":
        return f"hostPath:{_absolute(what)}"
    raise ValueError(f"must be emptyDir, pvc:CLAIM, hostPath:PATH or none, not {text!r}")


def normal(path: str) -> str:
    """An absolute path in its shortest form."""
    return "/" + posixpath.normpath(path).lstrip("/")


def within(path: str, directory: str) -> bool:
    """Whether a normal path is a directory or in it."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that can be said.

    Attributes:
        name: As an option and an annotation have it (``log-dir``).
        parse: Gives the value; raises ValueError with what is wrong.
    """

    name: str
    parse: Callable[[str], Any]

    @property
    def field(self) -> str:
        """The field of the options."""
        return self.name.replace("-", "_")

    @property
    def key(self) -> str:
        """As a kustomize function's configuration has it (``logDir``)."""
        first, *rest = self.name.split("-")
        return first + "".join(part.capitalize() for part in rest)


CHOICES = (
    Choice("image", _image),
    Choice("image-pull-policy", _one_of("Always", "IfNotPresent", "Never")),
    Choice("image-pull-secret", _names),
    Choice("container", _containers),
    Choice("log-dir", _log_dir),
    Choice("log-volume", _log_volume),
    Choice("config-map", _name),
    Choice("smtp-secret", _name),
    Choice("notify", _one_of("failure", "always", "never")),
    Choice("survivor", told_true),
)
_OF_OTHERS = ("injected", "inject", "run", "incident", "reported", "acknowledged", "silenced")
"""Annotations that say nothing about an injection: our own mark and switch, and what the watcher keeps on objects."""


def told(options: Options, said: Mapping[str, str], called: Callable[[Choice], str]) -> Options:
    """Options with others over them.

    Args:
        options: What holds else.
        said: Texts by the names of choices.
        called: What a choice is called where it was said, for messages.

    Raises:
        ChoiceError: A value cannot be.
    """
    changes: dict[str, Any] = {}
    for choice in CHOICES:
        if choice.name in said:
            try:
                changes[choice.field] = choice.parse(said[choice.name])
            except ValueError as error:
                raise ChoiceError(f"{called(choice)} {error}") from None
    return replace(options, **changes)


def of_annotations(annotations: Mapping[str, str], options: Options) -> Options:
    """The options with those of a pod's annotations over them.

    Args:
        annotations: The workload's and the pod's.
        options: What holds for all.

    Raises:
        ChoiceError: An annotation of ours is unknown, or its value cannot be.
    """
    said = {key.removeprefix(PREFIX): value for key, value in annotations.items() if key.startswith(PREFIX)}
    names = [choice.name for choice in CHOICES]
    for name in said:
        if name not in names and name not in _OF_OTHERS:
            raise ChoiceError(f"there is no annotation {PREFIX}{name} (there are inject, {', '.join(names)})")
    return told(options, said, lambda choice: f"the annotation {PREFIX}{choice.name}")


def of_function(data: Mapping[str, Any], options: Options) -> Options:
    """The options with those of a kustomize function's configuration over them (``logVolume: pvc:runs``).

    Args:
        data: The ``data`` of the function's ConfigMap.
        options: What holds else.

    Raises:
        ChoiceError: A key is unknown, or its value cannot be.
    """
    names = {choice.key: choice.name for choice in CHOICES}
    for key in data:
        if key not in names:
            raise ChoiceError(f"functionConfig: there is no {key} (there are {', '.join(names)})")
    said = {names[key]: _text(value) for key, value in data.items()}
    return told(options, said, lambda choice: f"functionConfig: {choice.key}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def wanted(annotations: Mapping[str, str]) -> bool:
    """Whether a pod wants it, by the annotation ``gpualert.dev/inject``.

    Raises:
        ChoiceError: It says neither yes nor no.
    """
    try:
        return told_true(annotations.get(INJECT, "true"))
    except ValueError as error:
        raise ChoiceError(f"the annotation {INJECT} {error}") from None
