"""Fixtures of the notifications' tests."""

from notify.receivers import receiving
from notify.servers import accepting, misbehaving

__all__ = ["accepting", "misbehaving", "receiving"]
