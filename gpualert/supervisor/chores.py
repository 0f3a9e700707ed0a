"""What is slow and can wait until the child runs."""

from __future__ import annotations

import gc
import posix

from gpualert.rundir import writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.rundir.writer import RunDirectory


def become_subreaper() -> None:
    """Orphans fall to us, as they do to PID 1; and from here on memory is tidied as usual."""
    from gpualert.supervisor import kernel  # noqa: PLC0415  (it loads an extension module)

    gc.enable()
    if posix.getpid() != 1:
        kernel.become_subreaper()


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
