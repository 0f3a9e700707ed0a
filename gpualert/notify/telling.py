"""Telling everybody whom the settings name, side by side: no channel waits for another, or fails with it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from gpualert.notify import mailing, notice, services, webhook
from gpualert.notify.outcome import Told

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpualert.artifacts import Artifact
    from gpualert.config import Settings
    from gpualert.supervisor.redaction import Redaction


class _Channel:
    """One channel at work in a thread of its own, which nobody waits for longer than its deadline."""

    def __init__(self, name: str, tell: Callable[[float], list[Told]], deadline: float) -> None:
        self._name = name
        self._tell = tell
        self._deadline = deadline
        self._told: list[Told] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._told = self._tell(self._deadline)
        except Exception as error:  # noqa: BLE001  (a library's fault must not cost the other channels)
            self._told = [Told(self._name, (), "failed", f"a fault inside ({type(error).__name__})")]

    def outcome(self) -> list[Told]:
        """What became of it, by the deadline."""
        # A signal that wants us to end comes as an exception; what the other channels have done is told all the same.
        with contextlib.suppress(Exception):
            self._thread.join(max(self._deadline - time.monotonic(), 0))
        return self._told if self._told is not None else [Told(self._name, (), "failed", "did not finish in time")]


def tell(
    directory: str,
    kind: notice.Kind,
    report: dict[str, Any],
    settings: Settings,
    artifacts: Sequence[Artifact],
    mask: Redaction,
    deadline: float,
    say: Callable[[str], None],
    where: str | None = None,
) -> list[Told]:
    """Tell a report by every channel that is configured.

    Args:
        directory: The run directory, or another that has the spool.
        kind: What is told.
        report: The report; the fate of an artifact that a mail server is too small for is changed in it.
        settings: The settings.
        artifacts: What goes along with the mail.
        mask: Masks secrets.
        deadline: When to be done, on the monotonic clock.
        say: Prints on the person's terminal, for ``--dry-run``.
        where: Where a person finds more; the directory by default.
    """
    made = notice.make(kind, report, artifacts, where or directory)

    def post(until: float) -> list[Told]:
        return webhook.post(made, settings, until)

    channels = []
    told: list[Told] = []
    if not settings.dry_run:
        if settings.webhook.url is not None:
            channels.append(_Channel("webhook", post, min(deadline, time.monotonic() + 3 * settings.webhook.timeout)))
        urls, told = services.addresses(settings)
        for number, url in enumerate(urls, 1):
            channels.append(_Channel("notify", _caller(url, number, made), deadline))
    mailed = mailing.mail(directory, made, settings, artifacts, mask, deadline, say)
    return [*mailed, *told, *(entry for channel in channels for entry in channel.outcome())]


def _caller(url: str, number: int, made: notice.Notice) -> Callable[[float], list[Told]]:
    return lambda until: services.call(url, number, made, until)


def anybody(settings: Settings) -> bool:
    """Whether the settings name anybody to tell.

    Args:
        settings: The settings.
    """
    notify = settings.notify
    return bool(settings.email.to or settings.webhook.url or notify.urls or notify.urls_file or settings.dry_run)
