"""Fixtures of the mail's tests."""

from notify.servers import accepting, misbehaving

__all__ = ["accepting", "misbehaving"]
