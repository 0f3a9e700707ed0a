"""Leader election: of several replicas one holds a Lease (coordination.k8s.io/v1), and only that one acts.

No replica reads another's clock. A candidate counts by its own monotonic clock from when it saw the Lease change last;
the holder counts from before it sent the renewal that was accepted, and gives up (10 s) before a candidate may take
over (15 s). Writes carry the resourceVersion that was read, so of two that try at once one is refused.
"""

from __future__ import annotations

import random
import socket
import threading
import time
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpualert.cluster.apierror import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpualert.cluster.api import Api


@dataclass(frozen=True, slots=True)
class Times:
    """How long things take, in seconds.

    Attributes:
        lease_s: A Lease not renewed for so long may be taken; whole seconds.
        lost_s: A holder that could not renew for so long holds it no more; less than ``lease_s``.
        renew_s: The holder renews each.
        retry_s: A candidate looks each.
    """

    lease_s: int = 15
    lost_s: float = 10.0
    renew_s: float = 5.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        """See that two cannot hold it at once."""
        if not self.lease_s > self.lost_s > self.renew_s > 0:
            raise ValueError("a lease needs lease_s > lost_s > renew_s > 0")


@dataclass(frozen=True, slots=True)
class _Seen:
    """The Lease as read.

    Attributes:
        version: Its resourceVersion; empty where it must be read again before it is written.
        spec: Its spec.
        since: When this spec was seen first, on our clock.
    """

    version: str
    spec: dict[str, Any]
    since: float

    @property
    def holder(self) -> str:
        """Who holds it; empty for nobody."""
        return str(self.spec.get("holderIdentity") or "")


class Lease:
    """One replica's part in the election, in a thread of its own.

    Args:
        api: The API server.
        namespace: The Lease's namespace.
        name: Its name.
        identity: Who we are; unique to this process. By default the host's name and a random part.
        times: How long things take.
        say: Takes a line for people, where something does not work.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str | None = None,
        *,
        times: Times | None = None,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self.times = times or Times()
        self._name = name
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        # Within lost_s there is time for a second attempt when the first is not answered.
        self._api = api.patient(0, timeout_s=self.times.lost_s / 5)
        self._say = say
        self._said: str | None = None
        self._clock = clock
        self._seen: _Seen | None = None
        self._exists = False
        self._renewed_at: float | None = None
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"lease {name}", daemon=True)

    @property
    def held(self) -> bool:
        """Whether we may act. Ask before each act: it ends by the clock, also while the server cannot be reached."""
        renewed_at = self._renewed_at
        if renewed_at is None or self._stop.is_set():
            return False
        return self._clock() < renewed_at + self.times.lost_s

    @property
    def holder(self) -> str:
        """Who holds it, as last seen; empty for nobody."""
        return self._seen.holder if self._seen else ""

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Become a candidate."""
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until we hold it; whether we do.

        Args:
            timeout_s: For how long, in seconds; by default until we do or have been stopped.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.held or self._stop.is_set(), timeout_s)
        return self.held

    def stop(self) -> None:
        """Give it up and free it, so that another can have it at once. ``held`` is false before this returns."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(self.times.lost_s)
        self._hold(None)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self._attempt() * random.uniform(0.8, 1.0))  # noqa: S311  (spread, not a secret)
        self._hold(None)
        self._free()

    def _attempt(self) -> float:
        """Look where that is due, and take or renew what may be taken; how many seconds to pause."""
        try:
            if not self.held or self._seen is None or not self._seen.version:
                self._look()
            self._take()
        except ApiError as error:
            # Whatever failed may have been done all the same: look before the next write.
            self._seen = self._seen and replace(self._seen, version="")
            self._tell_people(error)
            return self.times.retry_s / 2
        self._said = None
        return self.times.renew_s if self.held else self.times.retry_s

    def _take(self) -> None:
        """Take or renew what may be taken.

        Raises:
            ApiError: The server could not be asked, or another replica was quicker (409).
        """
        began, seen = self._clock(), self._seen
        # A Lease that somebody has deleted leaves its holder, who does not know yet, the time that it was promised.
        if seen and seen.holder not in ("", self.identity) and began < seen.since + self._length(seen):
            self._hold(None)
            return
        if self._exists and seen:
            body = {"metadata": {"resourceVersion": seen.version}, "spec": self._spec(seen)}
            self._note(self._api.patch(self._path, body))
        else:
            head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            self._note(self._api.post(self._collection, {**head, "spec": self._spec(seen)}))
        self._hold(began)

    def _length(self, seen: _Seen) -> float:
        """For how long the one who holds it may be silent: what it has promised, if it is a promise."""
        promised = seen.spec.get("leaseDurationSeconds")
        return float(promised) if isinstance(promised, int) and promised > 0 else float(self.times.lease_s)

    def _look(self) -> None:
        try:
            lease = self._api.get(self._path)
        except ApiError as error:
            if error.status != 404:
                raise
            self._exists = False
        else:
            self._note(lease)

    def _note(self, lease: dict[str, Any]) -> None:
        """Remember the Lease; the clock starts anew where its spec has changed."""
        spec, version = lease.get("spec") or {}, str(lease["metadata"]["resourceVersion"])
        unchanged = self._seen is not None and self._seen.spec == spec
        since = self._seen.since if self._seen is not None and unchanged else self._clock()
        self._seen, self._exists = _Seen(version, spec, since), True

    def _spec(self, seen: _Seen | None) -> dict[str, Any]:
        """The spec that makes the Lease ours."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.identity, "leaseDurationSeconds": self.times.lease_s, "renewTime": now}
        if seen is None or seen.holder != self.identity:
            transitions = int(seen.spec.get("leaseTransitions") or 0) + 1 if seen else 0
            spec |= {"acquireTime": now, "leaseTransitions": transitions}
        return spec

    def _free(self) -> None:
        """Let another have it, where it is ours."""
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            if self._seen and not self._seen.version:
                self._look()
            if self._seen and self._seen.version and self._seen.holder == self.identity:
                self._api.patch(self._path, {"metadata": {"resourceVersion": self._seen.version}, "spec": spec})
        except ApiError as error:
            self._tell_people(error)

    def _hold(self, renewed_at: float | None) -> None:
        with self._changed:
            self._renewed_at = renewed_at
            self._changed.notify_all()

    def _tell_people(self, error: ApiError) -> None:
        """Say it, but not that another was quicker."""
        line = f"electing a leader by {self._path}: {error}"
        if self._say is not None and line != self._said and error.status != 409:
            self._say(line)
        self._said = line
