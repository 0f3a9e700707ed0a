"""The envelope beside a spooled mail: whom it is from and for, and what became of each attempt.

Whatever lies in a spool may be broken, or put there to harm: an envelope is read only from a regular file of bounded
size, and holds nothing but what it should.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpualert.rundir.writer import replace_file

MAX_BYTES = 1 << 20
_Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class Envelope(BaseModel):
    """An envelope.

    Attributes:
        sender: Whom the mail is from.
        to: Whom it still has to reach.
        attempts: How often it was tried in vain.
        spooled_at: When it was put into the spool, in seconds since 1970.
        last_try_at: When it was tried last; None before that.
        last_error: What was wrong then.
        limit: How many bytes the server may take, as far as its refusals have shown; None while they have not.
    """

    model_config = ConfigDict(extra="ignore", populate_by_name=True, strict=True)

    sender: str = Field(alias="from", max_length=1000)
    to: Annotated[list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(min_length=1, max_length=1000)]
    attempts: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    spooled_at: _Seconds | None = None
    last_try_at: _Seconds | None = None
    last_error: str = ""
    limit: Annotated[int, Field(ge=0, le=1 << 40)] | None = None

    @classmethod
    def read(cls, path: str) -> Envelope:
        """The envelope in a file.

        Args:
            path: The file.

        Raises:
            ValueError: There is none, or it is broken.
        """
        try:
            data = regular_content(path, MAX_BYTES)
        except OSError as error:
            raise ValueError(f"its envelope cannot be read ({error.strerror})") from None
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"its envelope is broken ({f'{where}: ' if where else ''}{first['msg']})") from None

    def write(self, path: str) -> None:
        """Write it durably.

        Args:
            path: The file.

        Raises:
            OSError: It cannot be written.
        """
        replace_file(path, self.model_dump_json(by_alias=True).encode("utf-8", "replace"))

    def after(self, reason: str, to: list[str] | None = None, limit: int | None = None) -> Envelope:
        """The envelope after one more attempt.

        Args:
            reason: What was wrong.
            to: Whom the mail still has to reach; the same as before when None.
            limit: What the server's refusals have shown; as before when None.
        """
        told = {"attempts": min(self.attempts + 1, 1_000_000), "last_try_at": time.time(), "last_error": reason}
        return self.model_copy(
            update={**told, "to": to or self.to, "limit": limit if limit is not None else self.limit}
        )


def regular_content(path: str, most: int) -> bytes:
    """What a regular file of bounded size holds.

    Args:
        path: The file; a link, a FIFO or a device is an error.
        most: How many bytes it may have.

    Raises:
        OSError: It cannot be read, or is something else.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(0, "it is no regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(0, f"it is larger than {most} bytes")
    return data
