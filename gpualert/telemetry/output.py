"""The run's output as the collector follows it: the new text since the last look, at most the end of it."""

from __future__ import annotations

import os

from gpualert.rundir import assembly, regular

LOOK_BYTES = 64 << 10


class Output:
    """Follows ``output.log`` and the tail segments after it."""

    __slots__ = ("_at", "_directory", "_rest")

    @property
    def unfinished(self) -> str:
        """The start of a line that is still to come; of a progress bar all that there is of it."""
        return self._rest.decode("utf-8", "replace")

    def __init__(self, run_directory: str) -> None:
        """Nothing is read yet.

        Args:
            run_directory: The run's directory.
        """
        self._directory = run_directory
        self._at = 0
        self._rest = b""

    def new_text(self) -> str:
        """The whole lines since the last look; where there are too many, the last 64 KiB of them."""
        start, path = 0, os.path.join(self._directory, assembly.NAME)
        try:
            for _, offset, segment in assembly.segments_in(self._directory)[-1:]:
                start, path = offset, segment
            fd = regular.opened(path)
        except OSError:
            return ""
        try:
            end = start + os.fstat(fd).st_size
            begin = max(self._at, end - LOOK_BYTES, start)
            if begin != self._at:
                self._rest = b""  # what lies between is not looked at
            data = self._rest + os.pread(fd, LOOK_BYTES, begin - start) if end > begin else b""
        except OSError:
            return ""
        finally:
            os.close(fd)
        if not data:
            return ""
        self._at = max(end, self._at)
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[whole:][-LOOK_BYTES:]
        return data[:whole].decode("utf-8", "replace")
