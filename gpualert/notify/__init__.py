"""Telling a person: the mail, its spool, and what became of it."""

from gpualert.notify.telling import Told, tell

__all__ = ["Told", "tell"]
