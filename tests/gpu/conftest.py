"""The stand-in library, built once, and a script for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu.asking import Asking
from gpu.standin import Script, build


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "nvml.txt")


@pytest.fixture
def asking(libraries: Path, script: Script) -> Iterator[Asking]:
    """A process with the real binding, whose driver the script is."""
    with Asking(libraries, script) as process:
        yield process
