"""Chats, pagers and phones, by URL, through Apprise (the extra ``gpualert[notify]``)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from gpualert.notify.outcome import Told

if TYPE_CHECKING:
    from gpualert.config import Settings
    from gpualert.notify.notice import Notice


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
    logging.getLogger("apprise").setLevel(logging.WARNING)
    asset = apprise.AppriseAsset(app_id="gpualert", app_desc="gpualert", app_url="", async_mode=False)
    service: Any = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    if service is None:
        return [Told(name, to, "skipped", "is not a URL that Apprise knows")]
    name = str(service.service_name)
    service.socket_connect_timeout = min(service.socket_connect_timeout, max(deadline - time.monotonic(), 0.1))
    service.socket_read_timeout = min(service.socket_read_timeout, max(deadline - time.monotonic(), 0.1))
    kinds = {"run.failed": "failure", "run.succeeded": "success"}
    capture: Any = apprise.LogCapture
    with capture(level=logging.WARNING, fmt="%(message)s") as captured:
        done = service.notify(title=notice.subject, body=notice.short, notify_type=kinds.get(notice.event, "info"))
        said = captured.getvalue().splitlines()
    if done:
        return [Told(name, to, "sent")]
    why = said[0].partition(":")[0].strip() if said else "did not take it"
    hidden = [part for part in url.replace("://", "/").replace("@", "/").replace("?", "/").split("/") if len(part) > 5]
    for part in hidden:
        why = why.replace(part, "...")
    return [Told(name, to, "failed", why[:160])]
