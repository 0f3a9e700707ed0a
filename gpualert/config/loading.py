"""Reading the settings from all their places, key by key, so that one mistake costs one key."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr, ValidationError

from gpualert.config.settings import Section, Settings
from gpualert.rundir import regular
from gpualert.supervisor.options import OPTIONS
from gpualert.supervisor.settings import config_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_FILE_BYTES = 1 << 20
_SERVICE = re.compile(r"_SERVICE_|_PORT(_|$)")

# Settings without an option of ``gpualert run`` have a variable all the same.
_VARIABLES = {option.environment: option.key for option in OPTIONS if option.environment and option.in_file}
_VARIABLES |= {
    "GPUALERT_EMAIL_FROM": "email.from",
    "GPUALERT_SMTP_HOST": "smtp.host",
    "GPUALERT_SMTP_PORT": "smtp.port",
    "GPUALERT_SMTP_SECURITY": "smtp.security",
    "GPUALERT_SMTP_USERNAME": "smtp.username",
    "GPUALERT_SMTP_PASSWORD_FILE": "smtp.password_file",
    "GPUALERT_SMTP_PASSWORD": "smtp.password",
    "GPUALERT_SMTP_CA_FILE": "smtp.ca_file",
    "GPUALERT_SMTP_HELO": "smtp.helo",
    "GPUALERT_SMTP_TIMEOUT": "smtp.timeout",
    "GPUALERT_EMAIL_KEEP": "email.keep",
    "GPUALERT_NOTIFY_URLS": "notify.urls",
    "GPUALERT_NOTIFY_URLS_FILE": "notify.urls_file",
    "GPUALERT_NOTIFY_REPEATS": "notify.repeats",
    "GPUALERT_WEBHOOK_URL": "webhook.url",
    "GPUALERT_WEBHOOK_SECRET": "webhook.secret",
    "GPUALERT_WEBHOOK_SECRET_FILE": "webhook.secret_file",
    "GPUALERT_WEBHOOK_CA_FILE": "webhook.ca_file",
    "GPUALERT_WEBHOOK_TIMEOUT": "webhook.timeout",
    "GPUALERT_ARTIFACTS_ROOT": "artifacts.root",
    "GPUALERT_ARTIFACTS_CHANGED_ONLY": "artifacts.changed_only",
    "GPUALERT_ARTIFACTS_ORDER": "artifacts.order",
    "GPUALERT_ARTIFACTS_ZIP_OVER": "artifacts.zip_over",
    "GPUALERT_ARTIFACTS_MAX_FILE": "artifacts.max_file",
    "GPUALERT_ARTIFACTS_MAX_TOTAL": "artifacts.max_total",
    "GPUALERT_RULES": "diagnosis.rules",
}
VARIABLES = dict(_VARIABLES)
"""Environment variables by name, with the key each one sets."""

SECRETS = {
    "smtp.password": "password_file or GPUALERT_SMTP_PASSWORD",
    "webhook.secret": "secret_file or GPUALERT_WEBHOOK_SECRET",
}
"""Keys that no configuration file may hold, with where each belongs."""

_NOT_SETTINGS = {
    "GPUALERT_CONFIG", "GPUALERT_POD_NAME", "GPUALERT_POD_NAMESPACE", "GPUALERT_NODE_NAME", "GPUALERT_JOB_NAME",
    "GPUALERT_CONTAINER_NAME", "GPUALERT_CONTAINERS", "GPUALERT_COMPLETIONS",
    "GPUALERT_GROUP_ID", "GPUALERT_JOB_UID",
}  # fmt: skip
"""Variables that carry facts, not settings."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in the configuration.

    Attributes:
        where: The file or the environment variable.
        key: The key; empty when the whole file is wrong.
        message: What is wrong, and what would be right.
    """

    where: str
    key: str
    message: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.where}: {self.key} {self.message}" if self.key else f"{self.where}: {self.message}"


def known_keys() -> list[str]:
    """Every key of the file (``smtp.host``)."""
    return [key for key, _ in _leaves(Settings)]


def _leaves(model: type[Section], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        key = prefix + (field.alias or name)
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _leaves(inner, key + ".")
        else:
            yield key, field


class _Layers:
    """The settings as they grow, one accepted value after the other."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def set(self, key: str, value: Any, where: str) -> None:
        """Take a value over, unless it is wrong."""
        section, _, name = key.rpartition(".")
        trial = {name: value}
        try:
            Settings.model_validate({section: trial} if section else trial)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            self.problems.append(
                Problem(where, key, _worded(first, value, secret="password" in key or "secret" in key or "url" in key))
            )
            return
        (self.tree.setdefault(section, {}) if section else self.tree)[name] = value

    def take_file(self, path: str, *, required: bool) -> None:
        """Take a file's keys over."""
        tree = self._read(path, required=required)
        keys = known_keys()
        sections = {key.partition(".")[0] for key in keys if "." in key}
        for section, table in tree.items():
            if section in sections and isinstance(table, dict):
                for name, value in table.items():
                    self._take(f"{section}.{name}", value, path, keys)
            elif section in sections:
                self.problems.append(Problem(path, section, f"must be a section: [{section}]"))
            else:
                self._take(section, table, path, keys)

    def _take(self, key: str, value: Any, path: str, keys: list[str]) -> None:
        if key in SECRETS:
            text = f"belongs in {SECRETS[key]}, not into this file"
            self.problems.append(Problem(path, key, text))
        elif key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            self.problems.append(Problem(path, key, "is unknown" + (f"; did you mean {near[0]}?" if near else "")))
        else:
            self.set(key, value, path)

    def _read(self, path: str, *, required: bool) -> dict[str, Any]:
        if not required and not os.path.exists(path):
            return {}
        try:
            content = regular.content(path, MAX_FILE_BYTES)
            if content is not None:
                return tomllib.loads(content.decode())
            self.problems.append(Problem(path, "", "is larger than 1 MiB"))
        except OSError as error:
            self.problems.append(Problem(path, "", f"cannot be read ({error.strerror})"))
        except (ValueError, RecursionError) as error:  # also a number of 5000 digits
            self.problems.append(Problem(path, "", f"is not valid TOML ({error})"))
        return {}


def _worded(error: Any, value: Any, *, secret: bool) -> str:
    """A validation error as one clause."""
    text = str(error["msg"]).removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    text = text.replace("input should be", "must be").replace("input should", "must")
    if secret or "://" in str(value):  # an address may have come to the wrong key
        return text
    shown = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
    return f"{text}, not {shown}" if "not" not in text.split() else text


def load(
    environment: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    config: str | None = None,
) -> tuple[Settings, list[Problem]]:
    """The settings, and every mistake that was ignored on the way to them.

    Args:
        environment: Variables and values; this process's when None.
        given: Values by key that outrank all others (a command line's, as ``run.json`` keeps them).
        config: The configuration file; those in their usual places when None.
    """
    environment = os.environ if environment is None else environment
    given = dict(given or {})
    layers = _Layers()
    named = config or given.pop("config", None) or environment.get("GPUALERT_CONFIG") or None
    raw = {key.encode(): value.encode("utf-8", "surrogateescape") for key, value in environment.items()}
    for path in config_files(raw, named):
        layers.take_file(path, required=named is not None)
    for variable, key in VARIABLES.items():
        if environment.get(variable):
            layers.set(key, environment[variable], variable)
    for variable in environment:
        if variable.startswith("GPUALERT_") and variable not in VARIABLES and variable not in _NOT_SETTINGS:
            if _SERVICE.search(variable):
                continue  # Kubernetes sets these for a Service of that name
            near = difflib.get_close_matches(variable, VARIABLES, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            layers.problems.append(Problem("environment", variable, f"is unknown{hint}"))
    for key, value in given.items():
        layers.set(key, value, "command line")
    settings = Settings.model_validate(layers.tree)
    problems = layers.problems
    # A variable outranks a file.
    if settings.smtp.password is None and settings.smtp.password_file is not None:
        settings.smtp.password = _secret_from(settings.smtp.password_file, "smtp.password_file", problems)
    if settings.webhook.secret is None and settings.webhook.secret_file is not None:
        settings.webhook.secret = _secret_from(settings.webhook.secret_file, "webhook.secret_file", problems)
    return settings, problems


def _secret_from(path: str, key: str, problems: list[Problem]) -> SecretStr | None:
    """What a file holds, without its line end; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return SecretStr(file.read(65536).rstrip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        problems.append(Problem(path, key, f"cannot be read ({reason})"))
        return None
