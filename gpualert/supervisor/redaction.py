"""Masking secrets wherever gpualert itself quotes text.

A secret is the value of an environment variable whose name contains TOKEN, KEY, SECRET or PASSWORD; also WEBHOOK or
NOTIFY_URL, since such addresses carry their secret in themselves.
"""

from __future__ import annotations

import posix

from gpualert.supervisor import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MASK = "[masked]"
MIN_LENGTH = 6
"""Shorter values (``1``, ``us``, ``true``) are no secrets, and masking them would garble every line."""

_WORDS = (b"TOKEN", b"KEY", b"SECRET", b"PASSWORD", b"WEBHOOK", b"NOTIFY_URL")
_HARMLESS = ("true", "false", "enabled", "disabled", "default", "none")


def is_secret_name(name: bytes) -> bool:
    """Whether a variable of this name holds a secret."""
    upper = name.upper()
    return any(word in upper for word in _WORDS)


def secrets(environment: Mapping[bytes, bytes]) -> list[str]:
    """The values to mask, longest first, so that one that contains another is masked whole."""
    values: set[str] = set()
    for name, value in environment.items():
        if is_secret_name(name):
            text = value.decode("utf-8", "surrogateescape")
            # A path names where a secret lies; it is none itself.
            is_path = text.startswith("/") and files.exists(value)
            parts = text.replace(",", " ").split() if b"NOTIFY_URL" in name.upper() else text.splitlines()
            candidates = [] if is_path else [text, *parts]
            values.update(c.strip() for c in candidates if len(c.strip()) >= MIN_LENGTH)
    return sorted((value for value in values if value.lower() not in _HARMLESS), key=len, reverse=True)


class Redaction:
    """Masks a fixed set of secrets.

    Attributes:
        values: The secrets.
    """

    __slots__ = ("values",)

    def __init__(self, values: Iterable[str]) -> None:
        self.values = list(values)

    def mask(self, text: str) -> str:
        """``text`` with every secret in it replaced."""
        for secret in self.values:
            if secret in text:
                text = text.replace(secret, MASK)
        return text


def fingerprints(values: Iterable[str]) -> dict[str, object]:
    """By what another process recognises secrets in a text without knowing them.

    Args:
        values: The secrets.

    Returns:
        ``salt`` (hexadecimal), and under ``secrets`` the length in bytes, the sum of the bytes modulo 256 and the hash
        (BLAKE2b of 8 bytes, with the salt as its key) of each.

    Raises:
        ImportError: This interpreter has no such hash.
    """
    from _blake2 import blake2b  # noqa: PLC0415  (needed only here, after the launch)

    salt = posix.urandom(16)
    told = []
    for value in values:
        data = value.encode("utf-8", "surrogateescape")
        told.append([len(data), sum(data) & 0xFF, blake2b(data, digest_size=8, key=salt).digest().hex()])
    return {"schema": 1, "salt": salt.hex(), "secrets": told}
