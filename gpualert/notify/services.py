"""Chats, pagers and phones, by URL, through Apprise (the extra ``gpualert[notify]``)."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import re
import time
from typing import TYPE_CHECKING, Any

from gpualert.notify.outcome import Told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpualert.config import Settings
    from gpualert.notify.notice import Notice

_LOGGER = logging.getLogger("apprise")
_CALL = re.compile(r"(?<![0-9A-Za-z])@(?=[&!\w])|(?<=<)[!#]")
_ZERO_WIDTH_SPACE = "\u200b"


def addresses(settings: Settings) -> tuple[list[str], list[Told]]:
    """The URLs that the settings name, and what is wrong with their file.

    Args:
        settings: The settings.
    """
    listed, told = list(settings.notify.urls), []
    path = settings.notify.urls_file
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.read(1 << 20).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            told.append(Told("notify", (path,), "failed", f"notify.urls_file cannot be read ({reason})"))
        else:
            listed += [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return listed, told


def uncalling(text: str) -> str:
    """``text`` that calls nobody: ``@everyone``, ``<!channel>``, ``<@U123>`` of a log look the same, and mean nothing.

    Args:
        text: What a log may be part of.
    """
    # After the sign, not before it: some versions of Apprise put the angle bracket back in front of one.
    return _CALL.sub(lambda found: found[0] + _ZERO_WIDTH_SPACE, text)


class _Heard(logging.Handler):
    """What Apprise says of one call; its logger is one for all services, which are told at the same time."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is said in the course of this call, by whichever thread."""
        if _CALLING.get() is self:
            self.lines += record.getMessage().splitlines()


_CALLING: contextvars.ContextVar[_Heard | None] = contextvars.ContextVar("calling", default=None)
"""Whose call this is: Apprise hands its context on to the threads in which it calls a service, not its thread."""


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    heard = _Heard()
    _LOGGER.addHandler(heard)
    before = _CALLING.set(heard)
    try:
        yield heard.lines
    finally:
        _CALLING.reset(before)
        _LOGGER.removeHandler(heard)


def call(url: str, number: int, notice: Notice, deadline: float) -> list[Told]:
    """Tell one service; nothing that is said of it holds the URL, which is a secret.

    Args:
        url: Its URL, as Apprise writes it (``slack://...``).
        number: Which of the configured ones it is, from 1.
        notice: What to say.
        deadline: When to be done, on the monotonic clock.
    """
    name = (url.partition("://")[0] if "://" in url else "url").lower()[:20]
    to = (f"notify.urls, number {number}",)
    try:
        import apprise  # noqa: PLC0415  (optional, and slow to import)
    except ImportError:
        return [Told(name, to, "failed", "needs the extra: pip install 'gpualert[notify]'")]
    _LOGGER.setLevel(logging.WARNING)
    asset = apprise.AppriseAsset(app_id="gpualert", app_desc="gpualert", app_url="", async_mode=False)
    service: Any = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    if service is None:
        return [Told(name, to, "skipped", "is not a URL that Apprise knows")]
    name = str(service.service_name)
    service.socket_connect_timeout = min(service.socket_connect_timeout, max(deadline - time.monotonic(), 0.1))
    service.socket_read_timeout = min(service.socket_read_timeout, max(deadline - time.monotonic(), 0.1))
    kinds = {"run.failed": "failure", "run.succeeded": "success", "run.hang": "warning"}
    # Not the service itself: only this one makes plain text into what the service takes, with its markup escaped.
    services: Any = apprise.Apprise(asset=asset)
    services.add(service)
    with _listening() as said:
        done = services.notify(
            title=uncalling(notice.subject),
            body=uncalling(notice.short),
            notify_type=kinds.get(notice.event, "info"),
            body_format=apprise.NotifyFormat.TEXT,
        )
    if done:
        return [Told(name, to, "sent")]
    why = said[0].partition(":")[0].strip() if said else "did not take it"
    hidden = [part for part in url.replace("://", "/").replace("@", "/").replace("?", "/").split("/") if len(part) > 5]
    for part in hidden:
        why = why.replace(part, "...")
    return [Told(name, to, "failed", why[:160])]
