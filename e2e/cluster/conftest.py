"""Fixtures of the cluster tests."""

from e2e.cluster.jobs import namespace

__all__ = ["namespace"]
