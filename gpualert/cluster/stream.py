"""An answer that goes on, line by line, until it ends, breaks or is ended from another thread."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import urllib3
import urllib3.exceptions

from gpualert.cluster.apierror import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_MAX = 32 << 20
"""Bytes of one line. etcd takes objects of 1.5 MiB by default; beyond this it is no line but noise."""
_CHUNK = 1 << 16


class Stream:
    """One open answer; it has a connection to itself, which is never used again.

    Args:
        what: The request, for error messages.
        response: The answer, not yet read.
    """

    def __init__(self, what: str, response: urllib3.BaseHTTPResponse) -> None:
        self._what = what
        self._response = response
        self._ended = False

    def batches(self) -> Iterator[list[bytes]]:
        """The lines, without their ends, as many at a time as have come together.

        Returns without an error when the server ends the answer in good form, or after ``end``.

        Raises:
            ApiError: The connection broke, was silent for too long, or carries no lines.
        """
        rest = b""
        for chunk in self.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_MAX:
                raise ApiError(0, "BadAnswer", f"{self._what} sends a line of more than {LINE_MAX} bytes")
            lines = [line for line in lines if line.strip()]
            if lines:
                yield lines
        if rest.strip() and not self._ended:
            raise ApiError(0, "Cut", f"{self._what} ended within a line")

    def chunks(self) -> Iterator[bytes]:
        """The bytes as they come.

        Raises:
            ApiError: As for ``batches``.
        """
        try:
            # For chunked answers this gives each chunk when it is there; it does not wait for _CHUNK bytes.
            for chunk in self._response.stream(_CHUNK, decode_content=True):
                if self._ended:
                    return
                yield chunk
        except urllib3.exceptions.ReadTimeoutError:
            if not self._ended:
                raise ApiError(0, "Timeout", f"{self._what} was silent for too long") from None
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if not self._ended:
                raise ApiError(0, "Cut", f"{self._what} was cut ({error})") from None

    def end(self) -> None:
        """End it now, also while another thread waits for its next byte."""
        self._ended = True
        # A response that has ended by itself has no socket any more, and says so by these.
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()

    def close(self) -> None:
        """Give up the connection; for the thread that reads."""
        with contextlib.suppress(OSError):
            self._response.close()
