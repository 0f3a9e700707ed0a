"""What is slow and can wait until the child runs."""

from __future__ import annotations

import gc
import posix

from gpualert.rundir import jsontext, writer
from gpualert.supervisor import redaction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.rundir.writer import RunDirectory


def become_subreaper() -> None:
    """Orphans fall to us, as they do to PID 1; and from here on memory is tidied as usual."""
    from gpualert.supervisor import kernel  # noqa: PLC0415  (it loads an extension module)

    gc.enable()
    if posix.getpid() != 1:
        kernel.become_subreaper()


def keep_fingerprints(directory: RunDirectory | None, secrets: list[str]) -> None:
    """Let whoever reports this run from another environment recognise the secrets of ours.

    Args:
        directory: The run directory; None where there is none.
        secrets: The values to mask.
    """
    if directory is None or not secrets:
        return
    try:
        directory.write_masks(jsontext.dumps(redaction.fingerprints(secrets)).encode() + b"\n")
    except (ImportError, OSError):
        pass  # a disk that takes nothing is said by the journal; without the hash the reporter masks what it knows


def look_around(directory: RunDirectory | None) -> bool:
    """Let ``latest`` point to this run, and look for runs whose supervisor died.

    Args:
        directory: The run directory; None where there is none.

    Returns:
        Whether there are such runs.
    """
    if directory is None:
        return False
    try:
        directory.link_latest()
    except OSError:
        pass  # a volume without links
    return bool(writer.interrupted(directory.path.rpartition("/")[0]))
