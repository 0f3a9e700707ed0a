"""Fixtures of the watcher's tests."""

from __future__ import annotations

import email
import email.policy
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHON
from notify.servers import Accepting, accepting

from e2e.watch.plane import Plane, environment

__all__ = ["accepting"]


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    made = Plane(tmp_path_factory.mktemp("plane"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Watching:
    """A watcher as a process, over one namespace."""

    def __init__(self, plane: Plane, namespace: str, server: Accepting, directory: Path) -> None:
        self.plane, self.namespace, self.server, self.directory = plane, namespace, server, directory
        self.started: list[subprocess.Popen[bytes]] = []
        self.config = directory / "config.toml"
        self.configure()

    def configure(self, **watch: Any) -> None:
        told = {"settle": '"3s"', "settle_most": '"20s"', **watch}
        self.config.write_text("[watch]\n" + "".join(f"{key} = {value}\n" for key, value in told.items()))

    def start(self, *options: str, kubeconfig: Path | None = None, **environ: str) -> subprocess.Popen[bytes]:
        command = [
            PYTHON, "-m", "gpualert", "watch", "--kubeconfig", str(kubeconfig or self.plane.kubeconfig), "--listen", "",
            "--config", str(self.config), "--spool", str(self.directory / "spool"), "-n", self.namespace, *options,
        ]  # fmt: skip
        log = (self.directory / "watch.log").open("ab")
        process = subprocess.Popen(command, env={**environment(self.server.port), **environ}, stderr=log, stdout=log)
        self.started.append(process)
        return process

    @property
    def said(self) -> str:
        return (self.directory / "watch.log").read_text()

    @property
    def mails(self) -> list[Any]:
        return [email.message_from_bytes(mail, policy=email.policy.default) for mail in self.server.inbox.mails]

    def mail(self, count: int = 1) -> list[Any]:
        """The mails, once there are so many."""
        self.plane.until(lambda: len(self.server.inbox.mails) >= count, f"{count} mails\n{self.said}")
        return self.mails

    def quiet(self, seconds: float = 6.0) -> None:
        """Time for what must not come."""
        import time

        time.sleep(seconds)


@pytest.fixture
def watching(plane: Plane, accepting: Callable[..., Accepting], tmp_path: Path) -> Iterator[Watching]:
    made = Watching(plane, plane.namespace(f"w-{secrets.token_hex(4)}"), accepting(), tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()
