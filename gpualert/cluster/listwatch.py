"""List, then watch: a collection of the Kubernetes API followed without loss, through cuts and expiry.

The protocol is that of "Efficient detection of changes" in Kubernetes' API concepts: a list gives a resourceVersion, a
watch goes on from it, bookmarks advance it where nothing changes, and 410 means that the server has forgotten it.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from gpualert.cluster.api import parse
from gpualert.cluster.apierror import ApiError
from gpualert.cluster.backoff import Backoff
from gpualert.cluster.picture import Object, Picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpualert.cluster.api import Api
    from gpualert.cluster.picture import Change, Kind
    from gpualert.cluster.stream import Stream

WATCH_S = 300
"""How long one watch is asked to last; the server ends it in good form."""
_SILENCE_S = 30.0
_SHORT_S = 1.0
_RELIST_AFTER = 3
_COMPLAINTS = 100


class ListWatch:
    """Follows one collection in a thread of its own.

    The handler is called from that thread, with one change at a time: ``("added" | "modified" | "deleted", object)``,
    the object slimmed, and ``("synced", {})`` after each list that was read in whole. After a list that had to be made
    anew only what differs is told, and what has vanished meanwhile comes as ``deleted`` in the state last seen. A
    handler that raises loses that change; the following go on, and ``say`` tells.

    Args:
        api: The API server.
        path: The collection: ``/api/v1/pods``, ``/apis/batch/v1/namespaces/ml/jobs``.
        keep: What to keep of an object. It may change and return the one given; ``picture.without_bookkeeping`` is
            the least it should do.
        handler: Takes the changes.
        query: Selectors (``labelSelector``, ``fieldSelector``).
        say: Takes a line for people, where something does not work; each once until it changes.
        backoff: The pauses after failures.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        keep: Callable[[Object], Object],
        handler: Callable[[Kind, Object], None],
        *,
        query: Mapping[str, str] | None = None,
        say: Callable[[str], None] | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.path = path
        self.synced_at: float | None = None
        """When the last list was whole, in seconds since 1970."""
        self.last_event_at: float | None = None
        """When the last event (or bookmark) came, in seconds since 1970."""
        self.trouble: str | None = None
        """What does not work at present."""
        self._api = api.patient(0)
        self._handler = handler
        self._query = dict(query or {})
        self._say = say
        self._said: str | None = None
        self._complaints: set[str] = set()
        self._backoff = backoff or Backoff()
        self._keep = keep
        self._picture = Picture(self._slim)
        self._version: str | None = None
        self._refused = 0
        self._behind_since: float | None = time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)

    @property
    def synced(self) -> bool:
        """Whether a list was read in whole, and none is due."""
        return self.synced_at is not None and self._version is not None

    @property
    def lag(self) -> float:
        """For how many seconds changes may have gone unseen: 0 while a watch is open and its events are dealt with."""
        since = self._behind_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def size(self) -> int:
        """How many objects are known."""
        return len(self._picture)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, patience_s: float = 5.0) -> None:
        """End, also a read that waits; no change is told afterwards but the one that the handler has in hand.

        Args:
            patience_s: How long to wait for the thread, in seconds.
        """
        self._stop.set()
        with self._lock:
            if self._stream is not None:
                self._stream.end()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(patience_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._version is None:
                    self._list()
                if self._version is not None:
                    self._watch(self._version)
            except ApiError as error:
                self._stumble(error)
                self._stop.wait(max(self._backoff.next(), error.retry_after or 0.0))

    def _stumble(self, error: ApiError) -> None:
        """Decide what a failure means for the next attempt."""
        if error.expired:
            self._version = None
            if not self._backoff.failures:
                return
        # Whoever refuses a version again and again without a 410 (a restored etcd does) is asked for a list.
        self._refused = self._refused + 1 if error.status or error.reason == "BadAnswer" else 0
        if self._refused >= _RELIST_AFTER:
            self._version, self._refused = None, 0
        self.trouble = f"watching {self.path}: {error}"
        # One cut is everyday life; a refusal or a second failure is worth a line.
        if self._backoff.failures or 400 <= error.status < 500:
            self._tell_people(self.trouble)

    def _well(self) -> None:
        """A sign that things work."""
        self._backoff.reset()
        self._refused = 0
        self.trouble = self._said = None

    def _list(self) -> None:
        """Read the whole collection."""
        self._picture.begin()
        version = None
        for page in self._api.pages(self.path, self._query):
            items = page.pop("items", None) or []
            try:
                version = version or str(page["metadata"]["resourceVersion"])
                while items:
                    self._tell(self._picture.listed(items.pop(0)))
            except (KeyError, TypeError, AttributeError) as error:
                raise ApiError(
                    0, "BadAnswer", f"GET {self.path} was answered with something else ({error!r})"
                ) from None
            if self._stop.is_set():
                return
        self._tell(self._picture.finish())
        self._version, self.synced_at = version, time.time()
        self.trouble = None
        self._tell([("synced", {})])

    def _watch(self, version: str) -> None:
        """One watch, until the server ends it.

        Args:
            version: The resourceVersion to go on from.

        Raises:
            ApiError: It could not be opened, was cut, or has told an error.
        """
        asked = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(WATCH_S * random.uniform(0.9, 1.1))),  # noqa: S311  (spread, not a secret)
        }
        stream = self._api.watch(self.path, asked, WATCH_S * 1.1 + _SILENCE_S)
        opened, events = time.monotonic(), 0
        try:
            with self._lock:
                if self._stop.is_set():
                    return
                self._stream = stream
            self.trouble = None
            self._behind_since = None
            for lines in stream.batches():
                self._behind_since = time.monotonic()
                for line in lines:
                    if self._stop.is_set():
                        return
                    self._take(line)
                    events += 1
                self._well()
                self._behind_since = None
        finally:
            with self._lock:
                self._stream = None
            stream.close()
            self._behind_since = self._behind_since or time.monotonic()
            lasted = time.monotonic() - opened
            if lasted > self._backoff.cap_s:
                self._well()
        if events or self._stop.is_set():
            return
        if lasted < _SHORT_S:
            # A server or proxy that ends each watch at once must not be asked in a tight loop.
            raise ApiError(0, "Cut", f"GET {self.path} ends as soon as it is opened")
        # A server that knows the version sends a bookmark before the end of the quietest watch. One whose etcd was put
        # back to an older state waits without a word for a version that comes in a week.
        self._version = None

    def _take(self, line: bytes) -> None:
        """One watch event.

        Raises:
            ApiError: It is an error, or no event.
        """
        try:
            event = parse(line)
            kind, raw = event["type"], event["object"]
            if kind == "ERROR":
                status = int(raw.get("code") or 500)
                text = f"GET {self.path} told {status} ({raw.get('message')})"
                raise ApiError(status, str(raw.get("reason") or ""), text, _retry_after(raw))
            version = str(raw["metadata"]["resourceVersion"])
            if kind != "BOOKMARK":
                self._tell(self._picture.watched(kind, raw))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ApiError(0, "BadAnswer", f"GET {self.path} sent a line that is no event ({error!r})") from None
        self._version = version
        self.last_event_at = time.time()

    def _slim(self, raw: Object) -> Object:
        metadata = raw["metadata"]
        least = {"metadata": {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}}
        try:
            return self._keep(raw)
        except Exception as error:  # noqa: BLE001  (as in _tell)
            self._complain(f"watching {self.path}: {metadata['name']} could not be slimmed ({error!r})")
            return least

    def _tell(self, changes: Iterable[Change]) -> None:
        for kind, slim in changes:
            if self._stop.is_set():
                return
            try:
                self._handler(kind, slim)
            except Exception as error:  # noqa: BLE001  (one change that cannot be dealt with must not end the watch)
                name = slim.get("metadata", {}).get("name", "")
                self._complain(f"watching {self.path}: {kind} {name} could not be dealt with ({error!r})")

    def _complain(self, line: str) -> None:
        """Say what is wrong with one object; once, however often it changes."""
        if self._say is not None and line not in self._complaints and len(self._complaints) < _COMPLAINTS:
            self._complaints.add(line)
            self._say(line)

    def _tell_people(self, line: str) -> None:
        if self._say is not None and line != self._said:
            self._said = line
            self._say(line)


def _retry_after(status: Object) -> float | None:
    seconds = (status.get("details") or {}).get("retryAfterSeconds")
    return float(seconds) if seconds else None
