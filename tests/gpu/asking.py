"""A process that has the stand-in library loaded, and is asked one Python expression after another.

The library is found by ``LD_LIBRARY_PATH``, which a process reads at its start, and a call that hangs or crashes shall
not take the tests along.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from conftest import PATIENCE_S, REPOSITORY
from gpu.standin import Script, environment

_ANSWERING = """
import ctypes, dataclasses, json, sys
import pynvml
import gpualert.gpu.devices, gpualert.gpu.nvml
def plain(value):
    if isinstance(value, ctypes.Array):
        return [plain(one) for one in value]
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, (ctypes.Union, ctypes._Pointer)):
        return "..."
    return value.decode() if isinstance(value, bytes) else value
def other(value):
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else vars(value)
names = {**vars(pynvml), "h": pynvml.nvmlDeviceGetHandleByIndex, **vars(gpualert.gpu.devices), "nvml": gpualert.gpu.nvml}
for line in sys.stdin:
    name, is_given, given = line.strip().partition(" = ")
    try:
        value = eval(given if is_given else name, names)
        answer = None if is_given else plain(value)
        if is_given:
            names[name] = value
    except pynvml.NVMLError as error:
        answer = {"error": error.value}
    print(json.dumps(answer, default=other), flush=True)
"""


class Asking:
    """The process."""

    def __init__(self, libraries: Path, script: Script | None, **variables: str) -> None:
        """Start it.

        Args:
            libraries: Where the library is.
            script: What it answers.
            variables: More of its environment.
        """
        kept = {key: value for key, value in os.environ.items() if not key.endswith("VISIBLE_DEVICES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ANSWERING],
            env={**kept, "PYTHONPATH": str(REPOSITORY), **environment(libraries, script), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def start(self, expression: str) -> None:
        """Ask without waiting for the answer.

        Args:
            expression: In one line; the binding's names are there, and ``h(3)`` is the handle of GPU 3. ``name = ...``
                keeps the value for later ones.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()

    def answered(self, within_s: float) -> bool:
        """Whether an answer has come.

        Args:
            within_s: How long to wait for one, in seconds.
        """
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], within_s)[0])

    def answer(self) -> Any:
        """The answer; ``{"error": 3}`` for an error of NVML's."""
        assert self.process.stdout is not None
        assert self.answered(PATIENCE_S), "no answer"
        return json.loads(self.process.stdout.readline())

    def __call__(self, expression: str) -> Any:
        """Ask, and wait for the answer.

        Args:
            expression: As for `start`.
        """
        self.start(expression)
        return self.answer()
