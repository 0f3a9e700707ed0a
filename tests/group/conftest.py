"""Fixtures of the groups' tests."""

from notify.servers import accepting

__all__ = ["accepting"]
