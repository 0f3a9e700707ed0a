"""The stand-in for NVIDIA's library: builds it, and changes its answers while processes have it loaded.

Its answers are lines ``KEY VALUE`` of a script that ``$NVML_STANDIN`` names; without one there are eight healthy GPUs.
Keys of a GPU begin with its index or ``all``: ``3.utilization``, ``all.power_w``; see nvml/nvml.c for all of them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "nvml"
LIBRARY = "libnvidia-ml.so.1"


def build(directory: Path) -> Path:
    """Compile the library, unless it is there.

    Args:
        directory: Where; made when absent.

    Returns:
        The directory, for ``LD_LIBRARY_PATH``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / LIBRARY
    if not library.exists():
        made = directory / f"{LIBRARY}.{os.getpid()}"
        flags = ["-shared", "-fPIC", "-O1", "-pthread", "-Wall", "-Wextra", f"-Wl,-soname,{LIBRARY}"]
        sources = [str(SOURCES / name) for name in ("nvml.c", "script.c")]
        subprocess.run(["cc", *flags, "-o", str(made), *sources], check=True, timeout=120)
        made.rename(library)
    return directory


class Script:
    """What the stand-in answers.

    A change is there at the next call. Events are told to those who have been waiting for them before.
    """

    def __init__(self, path: Path, **values: object) -> None:
        """Begin a script.

        Args:
            path: Its file.
            values: Lines whose keys are Python names: ``gpus``, ``driver``.
        """
        self.path = path
        self._values: dict[str, object] = dict(values)
        self._events: list[tuple[int, int]] = []
        self._write()

    def set(self, key: str, value: object) -> None:
        """Give an answer.

        Args:
            key: Which: ``3.utilization``, ``all.lost``, ``init``.
            value: The answer.
        """
        self._values[key] = value
        self._write()

    def remove(self, key: str) -> None:
        """Go back to the answer of a healthy GPU.

        Args:
            key: Which.
        """
        self._values.pop(key, None)
        self._write()

    def event(self, gpu: int, xid: int) -> None:
        """Let a GPU tell of a fault.

        Args:
            gpu: Its index.
            xid: The number of the fault.
        """
        self._events.append((gpu, xid))
        self._write()

    def _write(self) -> None:
        lines = [f"{key} {value}" for key, value in self._values.items()]
        lines += [f"event {number} {gpu} {xid}" for number, (gpu, xid) in enumerate(self._events, 1)]
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.path)


def environment(libraries: Path, script: Script | None = None) -> dict[str, str]:
    """The variables that let a process find the library.

    Args:
        libraries: What `build` gave.
        script: What it shall answer; None for eight healthy GPUs.
    """
    found = {"LD_LIBRARY_PATH": str(libraries)}
    return found if script is None else {**found, "NVML_STANDIN": str(script.path)}
