"""What is known of a collection: lists and events in, changes out. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Object = dict[str, Any]
Kind = Literal["added", "modified", "deleted", "synced"]
Change = tuple[Kind, Object]
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class _Known:
    uid: str
    version: str
    slim: Object


class Picture:
    """The objects of a collection as last seen, slimmed.

    Args:
        keep: What is kept of an object; it may change the one that it is given.
    """

    def __init__(self, keep: Callable[[Object], Object]) -> None:
        self._keep = keep
        self._known: dict[tuple[str, str], _Known] = {}
        self._listed: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        """How many objects are known."""
        return len(self._known)

    def begin(self) -> None:
        """A list begins; what an unfinished one has seen does not count."""
        self._listed = set()

    def listed(self, raw: Object) -> Iterator[Change]:
        """An object of the list.

        Args:
            raw: The object.

        Raises:
            KeyError, TypeError: It is no object of Kubernetes.
        """
        self._listed.add(_key(raw))
        yield from self._seen(raw)

    def finish(self) -> Iterator[Change]:
        """The list was whole: what it had not is gone."""
        for key in [key for key in self._known if key not in self._listed]:
            yield "deleted", self._known.pop(key).slim
        self._listed = set()

    def watched(self, kind: str, raw: Object) -> Iterator[Change]:
        """An object of a watch event.

        Args:
            kind: ``ADDED``, ``MODIFIED`` or ``DELETED``.
            raw: The object; for ``DELETED`` its last state.

        Raises:
            KeyError, TypeError: It is no object of Kubernetes.
        """
        if kind == "DELETED":
            known = self._known.get(_key(raw))
            if known is not None and known.uid == raw["metadata"]["uid"]:
                del self._known[_key(raw)]
            yield "deleted", self._keep(raw)
        else:
            yield from self._seen(raw)

    def _seen(self, raw: Object) -> Iterator[Change]:
        key, uid, version = _key(raw), raw["metadata"]["uid"], raw["metadata"]["resourceVersion"]
        known = self._known.get(key)
        if known is not None and (known.uid, known.version) == (uid, version):
            return
        if known is not None and known.uid != uid:
            # Deleted and made anew under its name while nobody looked.
            del self._known[key]
            yield "deleted", known.slim
            known = None
        slim = self._keep(raw)
        self._known[key] = _Known(uid, version, slim)
        yield "added" if known is None else "modified", slim


def _key(raw: Object) -> tuple[str, str]:
    return raw["metadata"].get("namespace", ""), raw["metadata"]["name"]


def without_bookkeeping(raw: Object) -> Object:
    """The least that a ``keep`` should do: drop kubectl's copy of the manifest, and who has set which field.

    Args:
        raw: The object, which is changed.
    """
    metadata = raw.get("metadata", {})
    metadata.pop("managedFields", None)
    if _APPLIED in (metadata.get("annotations") or {}):
        del metadata["annotations"][_APPLIED]
    return raw
