"""Masking secrets wherever gpualert itself quotes text.

A secret is the value of an environment variable whose name contains TOKEN, KEY, SECRET or PASSWORD; also WEBHOOK or
NOTIFY_URL, since such addresses carry their secret in themselves.
"""

from __future__ import annotations

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
    """Masks a fixed set of secrets."""

    __slots__ = ("_secrets",)

    def __init__(self, values: Iterable[str]) -> None:
        self._secrets = list(values)

    def mask(self, text: str) -> str:
        """``text`` with every secret in it replaced."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text
