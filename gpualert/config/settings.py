"""The settings as pydantic models: the names are the keys of the TOML file."""

from __future__ import annotations

import re
import urllib.parse
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, SecretStr

from gpualert.supervisor.redaction import MASK
from gpualert.supervisor.values import listed, parse_duration, parse_size


def _duration(value: Any) -> Any:
    """Seconds from a text such as ``3h12m``."""
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError("must be a duration such as 90s, 30m or 3h12m") from None


def _size(value: Any) -> Any:
    """Bytes from a text such as ``25MB``."""
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except ValueError:
        raise ValueError("must be a size such as 500MB or 2GiB") from None


def _listed(value: Any) -> Any:
    """A list from a text with commas."""
    return listed(value) if isinstance(value, str) else value


def _urls(value: Any) -> Any:
    """A list of URLs from a text with blanks or commas between them; a URL may hold commas itself."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in re.split(r"\s+|,(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)", value) if part.strip()]


def shown_service(url: str) -> str:
    """A service's URL as it may be shown: what Apprise has in the place of the host is often a token.

    Args:
        url: The URL.
    """
    scheme, there, _ = url.partition("://")
    return f"{scheme}://{MASK}" if there and scheme.isalnum() else MASK


def shown_url(url: str) -> str:
    """A URL as it may be shown: user, password, path and query may all be secrets.

    Args:
        url: The URL.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return MASK
    if not parts.scheme or not host:
        return MASK
    rest = f"/{MASK}" if parts.path.strip("/") or parts.query or parts.username or parts.fragment else ""
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{rest}"


def _shown_services(urls: list[str]) -> list[str]:
    return [shown_service(url) for url in urls]


Duration = Annotated[float, BeforeValidator(_duration), Field(ge=0, le=1e10)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=0)]
Listed = Annotated[list[str], BeforeValidator(_listed)]
Urls = Annotated[list[str], BeforeValidator(_urls), PlainSerializer(_shown_services)]
"""Secrets in themselves: they are used, but neither shown nor written."""
SecretUrl = Annotated[str, PlainSerializer(shown_url)]


class Section(BaseModel):
    """A section of the file; unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Log(Section):
    """``[log]``: where runs are kept, and how much of their output."""

    dir: str | None = None
    max_bytes: Size = 2 << 30


class Kubernetes(Section):
    """``[kubernetes]``."""

    termination_log: str | None = None


class Notify(Section):
    """``[notify]``: when to tell anybody, and by which services."""

    when: Literal["failure", "always", "never"] = "failure"
    on_start: bool = False
    progress_every: Annotated[float, BeforeValidator(_duration), Field(ge=10, le=1e10)] | None = None
    urls: Urls = Field(default=[], repr=False)
    urls_file: str | None = None
    repeats: Literal["digest", "all"] = "digest"


class Email(Section):
    """``[email]``: whom to mail, and who says so."""

    to: Listed = []
    from_: str | None = Field(default=None, alias="from")
    keep: Duration = 7 * 86400.0


class Smtp(Section):
    """``[smtp]``: the server that takes the mail.

    A password comes from ``password_file`` or ``GPUALERT_SMTP_PASSWORD``; in the file itself it is a mistake.
    """

    host: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: str | None = None
    password: SecretStr | None = Field(default=None, exclude=True)
    password_file: str | None = None
    ca_file: str | None = None
    helo: str | None = None
    timeout: Duration = 10.0


class Webhook(Section):
    """``[webhook]``: an HTTP server that takes the report as JSON.

    The secret that signs it comes from ``secret_file`` or ``GPUALERT_WEBHOOK_SECRET``; in this file it is a mistake.
    """

    url: SecretUrl | None = Field(default=None, repr=False)
    secret: SecretStr | None = Field(default=None, exclude=True)
    secret_file: str | None = None
    ca_file: str | None = None
    timeout: Duration = 10.0


class Artifacts(Section):
    """``[artifacts]``: what goes along with the mail."""

    include: Listed = []
    root: str | None = None
    changed_only: bool = True
    order: Literal["value", "size", "newest", "given"] = "value"
    max_file: Size = 10_000_000
    max_total: Size = 20_000_000
    zip_over: Annotated[int, Field(ge=0)] = 10


class Run(Section):
    """``[run]``: how the command is run."""

    timeout: Duration | None = None
    kill_after: Duration = 30.0
    signal_group: bool = False
    tty: Literal["auto", "always", "never"] = "auto"
    env_hints: bool = True
    orphan_grace: Duration = 0.0


class Group(Section):
    """``[group]``: ranks that are told of together."""

    dir: str | None = None
    settle: Duration = 60.0


class Hang(Section):
    """``[hang]``: when a silent run is taken for a hanging one, and what is done then."""

    after: Duration = 1800.0
    warmup: Duration = 600.0
    action: Literal["notify", "terminate"] = "notify"


class Telemetry(Section):
    """``[telemetry]``: what is measured beside the run, and where it goes."""

    collect: bool = True
    textfile: str | None = None
    otlp: SecretUrl | None = Field(default=None, repr=False)


class Watch(Section):
    """``[watch]``: the watcher in a cluster."""

    namespaces: Listed = []
    only: Literal["jobs", "gpus", "labelled"] = "jobs"
    cluster: str | None = None
    settle: Duration = 60.0
    settle_most: Duration = 600.0
    unschedulable_after: Duration = 600.0
    per_hour: Annotated[int, Field(ge=0)] = 20
    digest_every: Duration = 900.0
    label_nodes: bool = False


class Report(Section):
    """``[report]``."""

    deadline: Duration = 20.0


class Diagnosis(Section):
    """``[diagnosis]``: directories with rules of your own."""

    rules: Listed = []


class Settings(Section):
    """Everything."""

    name: str | None = None
    log: Log = Log()
    kubernetes: Kubernetes = Kubernetes()
    notify: Notify = Notify()
    email: Email = Email()
    smtp: Smtp = Smtp()
    webhook: Webhook = Webhook()
    artifacts: Artifacts = Artifacts()
    run: Run = Run()
    group: Group = Group()
    hang: Hang = Hang()
    telemetry: Telemetry = Telemetry()
    watch: Watch = Watch()
    report: Report = Report()
    diagnosis: Diagnosis = Diagnosis()
    dry_run: bool = Field(default=False, exclude=True)
