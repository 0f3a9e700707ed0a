"""Masking secrets that this process does not know: those of a run that somebody else reports, by their fingerprints.

The run's supervisor has left lengths and salted hashes of them (``masks.json``); every stretch of a quoted text that is
as long as one of them is looked up.
"""

from __future__ import annotations

import hashlib
import json
import os
from itertools import accumulate
from typing import TYPE_CHECKING

from gpualert.rundir.writer import MASKS
from gpualert.supervisor.redaction import MASK, Redaction

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BYTES = 1 << 20


class Recalled(Redaction):
    """Masks secrets that are known, and secrets of which only fingerprints are."""

    __slots__ = ("_digests", "_salt")

    def __init__(self, values: Sequence[str], salt: bytes, fingerprints: Sequence[tuple[int, int, bytes]]) -> None:
        """Prepare it.

        Args:
            values: The secrets that are known.
            salt: What the hashes were made with.
            fingerprints: Length in bytes, sum of the bytes modulo 256, and hash of each of the others.
        """
        super().__init__(values)
        self._salt = salt
        self._digests: dict[int, dict[int, set[bytes]]] = {}
        for length, total, digest in sorted(fingerprints, reverse=True):
            self._digests.setdefault(length, {}).setdefault(total, set()).add(digest)

    def mask(self, text: str) -> str:
        """``text`` with every secret in it replaced, the longest first."""
        text = super().mask(text)
        data = text.encode("utf-8", "replace")
        masked = data
        for length, digests in self._digests.items():
            masked = self._without(masked, length, digests)
        return text if masked is data else masked.decode("utf-8", "replace")

    def _without(self, data: bytes, length: int, digests: dict[int, set[bytes]]) -> bytes:
        """``data`` without the secrets of one length."""
        kept, end = [], 0
        sums = list(accumulate(data, initial=0))
        # The sum is quick, and right for one stretch in 256: only those are hashed.
        for start, (before, after) in enumerate(zip(sums, sums[length:], strict=False)):
            total = (after - before) & 0xFF
            if total in digests and start >= end:
                digest = hashlib.blake2b(data[start : start + length], digest_size=8, key=self._salt).digest()
                if digest in digests[total]:
                    kept.append(data[end:start])
                    end = start + length
        return MASK.encode().join([*kept, data[end:]]) if kept else data


def recalling(known: Redaction, directory: str) -> tuple[Redaction, str]:
    """Masks what is known, and what the supervisor of a run knew.

    Args:
        known: Masks the secrets of this process.
        directory: The run directory.

    Returns:
        The masking, and why it is less than it should be; empty where it is not.
    """
    if isinstance(known, Recalled):
        return known, ""
    try:
        with open(os.path.join(directory, MASKS), "rb") as file:
            kept = json.loads(file.read(MAX_BYTES))
        salt = bytes.fromhex(kept["salt"])
        fingerprints = [(int(length), int(total), bytes.fromhex(digest)) for length, total, digest in kept["secrets"]]
        ours = {
            hashlib.blake2b(value.encode("utf-8", "surrogateescape"), digest_size=8, key=salt).digest()
            for value in known.values
        }
    except FileNotFoundError:
        return known, ""  # there were none
    except OSError as error:
        reason = error.strerror or "it cannot be read"
    except (ValueError, TypeError, KeyError, RecursionError):
        reason = "it is damaged"
    else:
        others = [entry for entry in fingerprints if entry[0] > 0 and entry[2] not in ours]
        return (Recalled(known.values, salt, others) if others else known), ""
    return known, f"cannot read {MASKS} ({reason}): secrets that the run alone knew are not masked"
