"""What is found where a job hangs: processes, stacks, what the kernel says, the flight recorder, each rank's last line.

Each part runs in a thread of its own: one that a dead file system holds does not keep the others from being told.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from gpualert.hang import flightrecorder, lastlines, stacks, waiting
from gpualert.hang.descriptors import content
from gpualert.rundir import jsontext
from gpualert.telemetry.processes import TICKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpualert.telemetry.processes import Process, Tree

SIZE_MAX = 200 << 10
PROCESSES_MAX, COMMAND_MAX, KERNEL_MAX, NOTES_MAX = 128, 200, 48, 24
_GRACE_S = 1.0


def capture(
    tree: Tree, run_directory: str, deadline: float, mask: Callable[[str], str] = lambda text: text
) -> dict[str, Any]:
    """Look at a job that hangs.

    Args:
        tree: Its processes.
        run_directory: The run's directory.
        deadline: When to be done, on the monotonic clock.
        mask: Masks secrets, before anything is shortened.

    Returns:
        Plain values, at most 200 KiB as JSON: ``processes``, ``kernel`` and ``stacks`` (each ``pids``, ``names``,
        ``text``), ``ranks`` (``rank``, ``line``, ``at``), ``flight`` (``collectives.findings``, ``text``; or None),
        ``notes`` (why something is missing).
    """
    tree.sample()
    processes = tree.processes()
    scene: dict[str, Any] = {"processes": [], "stacks": [], "kernel": [], "flight": None, "ranks": [], "notes": []}
    parts = _Parts(scene["notes"], deadline)
    parts.run("the processes' commands", 0.2, lambda _: scene.update(processes=_processes(processes, mask)))
    parts.run("each rank's last line", 0.2, lambda _: scene.update(ranks=lastlines.of(run_directory, mask)))
    # What the kernel says comes before the stacks: a tracer stops what it looks at.
    parts.run(
        "what the kernel says",
        0.3,
        lambda until: scene.update(kernel=waiting.told(processes, tree.root, until)[:KERNEL_MAX]),
    )
    parts.run("the flight recorder", 0.4, lambda until: scene.update(flight=_flight(processes, run_directory, until)))

    def take_stacks(until: float) -> None:
        scene["stacks"], notes = stacks.taken(processes, until)
        scene["notes"] += notes

    parts.run("the stacks", 1.0, take_stacks)
    return _bounded(dict(scene))


class _Parts:
    """Runs the parts one after the other, none of them longer than there is time."""

    def __init__(self, notes: list[str], deadline: float) -> None:
        self._notes = notes
        self._deadline = deadline

    def run(self, name: str, share: float, part: Callable[[float], None]) -> None:
        """Run a part.

        Args:
            name: What it finds, for a person.
            share: How much of the time that is left it may take.
            part: The part; it is told when to be done.
        """
        now = time.monotonic()
        until = now + max(share * (self._deadline - now), 0.1)
        wrong: list[str] = []

        def attempt() -> None:
            try:
                part(until)
            except Exception as error:  # noqa: BLE001  (what else is found is worth telling)
                wrong.append(f"{name}: not found ({type(error).__name__}: {error})")

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        thread.join(until - time.monotonic() + _GRACE_S)
        self._notes += wrong
        if thread.is_alive():
            self._notes.append(f"{name}: what it has to look at does not answer")


def _processes(processes: list[Process], mask: Callable[[str], str]) -> list[dict[str, Any]]:
    found = []
    for one in processes[:PROCESSES_MAX]:
        command = content(f"/proc/{one.pid}/cmdline", 4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        told = {
            "pid": one.pid,
            "parent": one.parent,
            "name": one.name,
            "command": mask(command)[:COMMAND_MAX],
            "state": one.state,
            "cpu_s": round(one.ticks / TICKS, 2),
            "rss": one.rss,
            "threads": one.threads,
        }
        rank = flightrecorder.environment(one.pid).get("RANK", "")
        if rank.isdigit() and len(rank) <= 6:
            told["rank"] = int(rank)
        found.append(told)
    return found


def _flight(processes: list[Process], run_directory: str, deadline: float) -> dict[str, Any] | None:
    """What the flight recorder says; None where there is none."""
    try:
        began = os.stat(os.path.join(run_directory, "run.json")).st_mtime
    except OSError:
        began = time.time()
    kinds: dict[tuple[str, str, tuple[str, ...]], dict[str, str]] = {}
    for one in processes:
        if one.python:
            variables = flightrecorder.environment(one.pid)
            pipe = variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
            kinds.setdefault((pipe, "", tuple(flightrecorder.prefixes(variables))), variables)
    for variables in kinds.values():
        asked = flightrecorder.trigger(variables)
        # A dump from before the hang would tell of another one.
        since = time.time() - 1 if asked else began
        found = flightrecorder.told(variables, since, deadline, asked)
        if found.get("groups"):
            return {"text": "; ".join(group["text"] for group in found["groups"][:4]), **found}
        if found.get("notes"):
            return {"text": "; ".join(found["notes"]), **found}
    return None


def _bounded(scene: dict[str, Any]) -> dict[str, Any]:
    """No more than is to be kept: the last of the longest lists go first."""
    scene["notes"] = [note[:400] for note in dict.fromkeys(scene["notes"])][:NOTES_MAX]
    shortened = False
    while (size := len(jsontext.dumps(scene))) > SIZE_MAX:
        sizes = {key: len(jsontext.dumps(value)) for key, value in scene.items() if isinstance(value, list) and value}
        longest = max(sizes, key=lambda key: sizes[key], default="")
        if not longest or (scene["flight"] is not None and len(jsontext.dumps(scene["flight"])) > sizes[longest]):
            scene["flight"] = None
        else:
            count = len(scene[longest])
            scene[longest] = scene[longest][: max(count - max(count * (size - SIZE_MAX) // size, 1), 0)]
        shortened = True
    if shortened:
        scene["notes"].append("more was found than is kept here")
    return scene
