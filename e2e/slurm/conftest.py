"""One cluster for all tests of a worker."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from notify.servers import accepting

from e2e.slurm.slurm import Slurm, available

__all__ = ["accepting"]


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A running Slurm."""
    if not available():
        pytest.fail("needs root, slurmctld, slurmd, slurm-client and munge")
    # A socket's path may have 107 characters.
    cluster = Slurm(Path(tempfile.mkdtemp(prefix="slurm-")))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.base, ignore_errors=True)
