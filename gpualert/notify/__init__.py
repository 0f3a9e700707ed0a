"""Telling a person: the notice, the channels that carry it, the mail's spool, and what became of it all."""

from gpualert.notify.outcome import Told
from gpualert.notify.telling import anybody, tell

__all__ = ["Told", "anybody", "tell"]
