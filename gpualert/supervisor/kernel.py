"""System calls that the standard library has no function for, by the C module behind ``ctypes``."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_RTLD_NOW = 2


def _prctl(option: int, value: int) -> bool:
    """prctl(2) with one argument; False where it cannot be called or fails."""
    try:
        import _ctypes  # noqa: PLC0415  (an extension module on disk: loaded after the child has started)

        this_program: Any = None
        address = _ctypes.dlsym(_ctypes.dlopen(this_program, _RTLD_NOW), "prctl")
        return bool(_ctypes.call_function(address, (option, value, 0, 0, 0)) == 0)
    except (ImportError, OSError):
        return False


def become_subreaper() -> bool:
    """Let orphaned descendants become our children, so that we can reap them; False where that cannot be."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_core_dump() -> None:
    """Leave no core dump of this process, whatever ends it."""
    try:
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (ImportError, OSError, ValueError):
        pass
    _prctl(_PR_SET_DUMPABLE, 0)  # a core_pattern that is a pipe ignores the limit
