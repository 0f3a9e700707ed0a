"""Fixtures of the container tests."""

from e2e.containers.containers import bundle, containers

__all__ = ["bundle", "containers"]
