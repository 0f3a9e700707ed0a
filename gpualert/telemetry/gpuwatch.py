"""GPUs, looked at in a thread of its own: a driver whose GPU has fallen off the bus may not answer for minutes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpualert.gpu.devices import Devices
    from gpualert.gpu.xid import Xid

WAIT_S = 0.5
UNANSWERED_S = 60.0
"""A driver that has not answered for so long is told of."""


class GpuWatch:
    """Watches the job's GPUs.

    Attributes:
        ready: The inventory is there, or there are no GPUs.
        driver: Versions of the driver and of what belongs to it.
        inventory: The GPUs as they are at the start.
        vendor: Who made them; empty where there are none.
    """

    def __init__(self, environment: dict[str, str] | None) -> None:
        """Start to watch.

        Args:
            environment: The job's variables, which tell which GPUs are its own; None for none.
        """
        self.ready = threading.Event()
        self.inventory: list[dict[str, object]] = []
        self.driver: dict[str, object] = {}
        self.vendor = ""
        self._environment = environment
        self._wanted = threading.Event()
        self._ending = threading.Event()
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._latest: list[dict[str, object]] = []
        self._xids: list[Xid] = []
        self._asked_at: float | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        try:
            if self._environment is None:
                return
            from gpualert.gpu.devices import open_devices  # noqa: PLC0415  (only in this thread: loading may hang)

            devices = open_devices(self._environment)
            if devices is None:
                return
            self.vendor, self.driver, self.inventory = devices.vendor, devices.driver(), devices.inventory()
            self.ready.set()
            self._follow(devices)
        finally:
            self.ready.set()
            self._finished.set()

    def _follow(self, devices: Devices) -> None:
        while not self._ending.is_set():
            self._note(devices.wait(WAIT_S))
            if self._wanted.is_set():
                self._wanted.clear()
                self._sample(devices)
        self._note(devices.wait(WAIT_S / 2))  # the driver tells of what ended the job a moment later
        self._sample(devices, whole=True)  # a link may have failed since it was asked about
        devices.close()

    def _note(self, xids: list[Xid]) -> None:
        with self._lock:
            self._xids += xids

    def _sample(self, devices: Devices, *, whole: bool = False) -> None:
        self._asked_at = time.monotonic()
        latest = devices.sample(whole=whole)
        self._asked_at = None
        with self._lock:
            self._latest = latest

    def latest(self) -> list[dict[str, object]]:
        """The last sample; asks for the next one."""
        self._wanted.set()
        if self.unanswered_s():
            return []  # what was, is not what is
        with self._lock:
            return list(self._latest)

    def xids(self) -> list[Xid]:
        """The Xids since the last call."""
        with self._lock:
            xids, self._xids = self._xids, []
        return xids

    def unanswered_s(self) -> float:
        """How long the driver has not answered, in seconds; 0 while it does."""
        asked = self._asked_at
        silent = time.monotonic() - asked if asked is not None else 0.0
        return silent if silent >= UNANSWERED_S else 0.0

    def finish(self, timeout: float) -> None:
        """Take a last sample.

        Args:
            timeout: How long to wait for it, in seconds.
        """
        self._ending.set()
        self._finished.wait(timeout)
