"""Opening what a person calls a log: pipes, standard input, UTF-16, compressed files; all read as seekable UTF-8."""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import lzma
import tempfile
import zlib
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MEMORY_MAX = 16 << 20
UNPACKED_MAX = 8 << 30
HEAD = 4096
CHUNK = 1 << 20

_UNPACKERS: tuple[tuple[int, bytes, Callable[[BinaryIO], BinaryIO]], ...] = (
    (0, b"\x1f\x8b", lambda file: cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb"))),
    (4, b"1AY&SY", lambda file: cast("BinaryIO", bz2.BZ2File(file))),
    (0, b"\xfd7zXZ\x00", lambda file: cast("BinaryIO", lzma.LZMAFile(file))),  # noqa: SIM115  (left to the caller)
)
"""Where in a file which bytes tell by what it can be read."""
_PACKED = {b"\x28\xb5\x2f\xfd": "zstdcat", b"\x04\x22\x4d\x18": "lz4cat", b"PK\x03\x04": "unzip -p"}


def opened(source: str | BinaryIO) -> BinaryIO:
    """A log as a stream that can seek; what cannot is copied, large ones to a temporary file.

    Args:
        source: A path, also of a pipe, or a stream such as standard input.

    Returns:
        The log's text in UTF-8; bytes that are none stay as they are. The caller closes it.

    Raises:
        OSError: It cannot be read; ``strerror`` says why.
    """
    if not isinstance(source, str):
        return _readable(source)
    log, file = None, open(source, "rb")  # noqa: SIM115  (closed where it is not the answer)
    try:
        log = _readable(file)
    finally:
        if log is not file:
            file.close()
    return log


def _readable(file: BinaryIO) -> BinaryIO:
    if not file.seekable():
        file = _spooled(_chunks(file))
    head = file.read(HEAD)
    file.seek(0)
    for magic, program in _PACKED.items():
        if head.startswith(magic):
            raise OSError(errno.EILSEQ, f"is compressed: {program} FILE | gpualert classify -")
    for place, magic, unpacker in _UNPACKERS:
        if head.startswith(magic, place):
            file = _spooled(_unpacked(unpacker(file)))
            head = file.read(HEAD)
            file.seek(0)
            break
    encoding = _encoding(head)
    return _spooled(_transcoded(file, encoding)) if encoding else file


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def _spooled(chunks: Iterable[bytes]) -> BinaryIO:
    spooled = tempfile.SpooledTemporaryFile(max_size=MEMORY_MAX)  # noqa: SIM115  (the caller reads it)
    for chunk in chunks:
        spooled.write(chunk)
    spooled.seek(0)
    return cast("BinaryIO", spooled)


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    size = 0
    try:
        # read1: what comes before the place where a file is cut off must not be lost with it.
        while chunk := file.read1(CHUNK):  # type: ignore[attr-defined]
            size += len(chunk)
            if size > UNPACKED_MAX:
                raise OSError(errno.EFBIG, f"is more than {UNPACKED_MAX >> 30} GiB when unpacked: unpack it first")
            yield chunk
    except EOFError:
        if not size:
            raise OSError(errno.EILSEQ, "is compressed, and cut off before its first line") from None
        # Its writer was killed; what there is tells enough.
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise OSError(errno.EILSEQ, f"is compressed, and damaged: {error}") from None


def _encoding(head: bytes) -> str | None:
    """UTF-16 by its byte order mark, or by its zeros: every other byte of Latin text is one."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = head[::2].count(0), head[1::2].count(0)
    most = len(head) // 2 * 0.6
    if len(head) >= 8 and max(even, odd) > most and min(even, odd) * 20 < max(even, odd):
        return "utf-16-be" if even > odd else "utf-16-le"
    return None


def _transcoded(file: BinaryIO, encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for chunk in _chunks(file):
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")
