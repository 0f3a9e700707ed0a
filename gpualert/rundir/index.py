"""The codec of ``output.idx``: which bytes of ``output.log`` came from which stream when.

The file is a header of 16 bytes, then records of 16 bytes, little-endian: when the bytes arrived (microseconds since
1970, 64 bits), then how many (56 bits) and from where (8 bits, the lowest). Records follow the log in order, so a
record's offset is the sum of the lengths before it. A log may be longer than its index: the last bytes before a
SIGKILL have no record, or the last record is cut short; both read as bytes of unknown origin.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = b"gpualert-idx-1\n\0"
RECORD = 16
NOTE, STDOUT, STDERR, TERMINAL, BOTH = 0, 1, 2, 3, 4
"""Where bytes came from: a note of gpualert's own (a gap), a stream of the command, its pseudo-terminal, or one file
that is both its stdout and its stderr (``2>&1``), which keeps their order."""

STREAM_NAMES = {NOTE: "gpualert", STDOUT: "stdout", STDERR: "stderr", TERMINAL: "terminal", BOTH: "both"}


def record(time_us: int, stream: int, length: int) -> bytes:
    """One record.

    Args:
        time_us: When the bytes arrived, in microseconds since 1970.
        stream: Where they came from.
        length: How many there are (less than 2**56).
    """
    return time_us.to_bytes(8, "little") + (length << 8 | stream).to_bytes(8, "little")


def records(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Time in microseconds, stream and length of each whole record in an index file's content.

    Raises:
        ValueError: The header is not that of an index.
    """
    if data[:RECORD] != HEADER:
        raise ValueError("not an index of gpualert (its header is missing)")
    for start in range(RECORD, len(data) - RECORD + 1, RECORD):
        packed = int.from_bytes(data[start + 8 : start + 16], "little")
        yield int.from_bytes(data[start : start + 8], "little"), packed & 0xFF, packed >> 8
