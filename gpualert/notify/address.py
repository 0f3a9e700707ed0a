"""Mail addresses as people write them: ``name@example.org`` or ``Jürgen Müller <name@example.org>``."""

from __future__ import annotations

import email.errors
import re
from dataclasses import dataclass
from email.headerregistry import Address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMED = re.compile(r"(?P<name>[^<>]*)<(?P<address>[^<>]*)>")


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Somebody who has an address.

    Attributes:
        address: ``name@example.org``.
        name: What the person is called; empty where nothing is said.
    """

    address: str
    name: str = ""

    def header(self) -> Address:
        """It as a header holds it, with the domain in the form that every server takes."""
        local, _, domain = ascii_domain(self.address).rpartition("@")
        return Address(display_name=self.name, username=local, domain=domain)


def parse(text: str) -> Mailbox | None:
    """``text`` as a mailbox, or None when it is none.

    Args:
        text: ``name@example.org``, or that in angle brackets behind a name; a name may be in quotes.
    """
    text = text.strip()
    if not text.isprintable():
        return None
    named = _NAMED.fullmatch(text)
    address = _address(named["address"].strip() if named else text)
    if address is None:
        return None
    name = named["name"].strip() if named else ""
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = re.sub(r"\\(.)", r"\1", name[1:-1])
    return Mailbox(address, name)


def _address(text: str) -> str | None:
    if text.count("@") != 1 or any(c in text for c in ' ,;<>()[]\\"'):
        return None
    local, _, domain = text.partition("@")
    if not local or not domain:
        return None
    if text.isascii():
        try:
            Address(addr_spec=text)
        except (email.errors.MessageError, ValueError, IndexError):
            return None
    return text


def whole(texts: Iterable[str]) -> list[str]:
    """Mailboxes put together again that were split at a comma in their quotes (``"Müller, Jürgen" <j@example.org>``).

    Args:
        texts: The pieces between commas.
    """
    joined: list[str] = []
    is_open = False
    for text in texts:
        if is_open:
            joined[-1] += f", {text}"
        else:
            joined.append(text)
        is_open = joined[-1].replace('\\"', "").count('"') % 2 == 1
    return joined


def bare(text: str) -> str:
    """The address alone of a text that may be a mailbox with a name; a text that is none as it is."""
    mailbox = parse(text)
    return mailbox.address if mailbox is not None else text


def ascii_domain(address: str) -> str:
    """An address whose domain is in the form that every server takes (IDNA)."""
    local, at, domain = address.rpartition("@")
    try:
        return local + at + domain.encode("idna").decode("ascii")
    except UnicodeError:
        return address


def needs_utf8(address: str) -> bool:
    """Whether only a server with SMTPUTF8 (RFC 6531) can take an address: its local part is not ASCII."""
    return not ascii_domain(address).isascii()
