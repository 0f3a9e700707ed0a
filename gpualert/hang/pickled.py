"""Plain values out of a pickle, and nothing else: no classes, no functions, no memory for what is not there.

The file comes from the job. Python's own unpickler calls what a pickle names, and sets memory aside for lengths and
memo numbers that it merely claims; this one knows the instructions for None, booleans, numbers, texts, tuples, lists
and dicts (pickletools), and refuses a file that holds any other.
"""

from __future__ import annotations

import struct
import time
from typing import Any

STEPS_PER_LOOK = 20_000


class PickleError(ValueError):
    """It is no pickle of plain values."""


_MARK = object()
_CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False}
_SIZES = {
    b"\x8c": "<B", b"X": "<I", b"\x8d": "<Q", b"C": "<B", b"B": "<I", b"U": "<B", b"T": "<i", b"\x8a": "<B",
    b"\x8b": "<i",
}  # fmt: skip
"""Instructions followed by a length and so many bytes, with how the length is written."""
_TEXTS, _BYTES = (b"\x8c", b"X", b"\x8d"), (b"C", b"B", b"U", b"T")
_FIXED = {b"K": "<B", b"M": "<H", b"J": "<i", b"G": ">d"}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
_IGNORED = {b"\x80": 1, b"\x95": 8}
"""The protocol's number, and how long a frame is."""
_INTEGER_MAX = 8


def loads(data: bytes, deadline: float | None = None) -> Any:
    """The value in a pickle.

    Args:
        data: The file.
        deadline: When to give up, on the monotonic clock; None for never.

    Raises:
        PickleError: It is cut short, or holds anything but plain values, or takes too long.
    """
    reader = _Reader(data)
    steps = 0
    try:
        while (code := reader.take(1)) != b".":
            steps += 1
            if steps % STEPS_PER_LOOK == 0 and deadline is not None and time.monotonic() > deadline:
                raise PickleError("there was no time for all of it")
            reader.step(code)
        return reader.pop()
    except (IndexError, KeyError, TypeError, AttributeError, struct.error, OverflowError) as error:
        raise PickleError(f"it is damaged ({type(error).__name__})") from None


class _Reader:
    """The stack machine."""

    __slots__ = ("_at", "_data", "_memo", "_stack")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        """The next bytes."""
        part = self._data[self._at : self._at + count]
        if count < 0 or len(part) < count:
            raise PickleError("it is cut short")
        self._at += count
        return part

    def pop(self) -> Any:
        """The topmost value."""
        value = self._stack.pop()
        if value is _MARK:
            raise PickleError("it is damaged")
        return value

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def _since_mark(self) -> list[Any]:
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise PickleError("it is damaged")
        values = stack[at + 1 :]
        del stack[at:]
        return values

    def step(self, code: bytes) -> None:
        """One instruction."""
        stack = self._stack
        if code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in _SIZES:
            stack.append(self._sized(code, self.take(self._number(_SIZES[code]))))
        elif code in _FIXED:
            stack.append(self._number(_FIXED[code]))
        elif code == b"h":
            stack.append(self._memo[self._number("<B")])
        elif code == b"j":
            stack.append(self._memo[self._number("<I")])
        elif code == b"q":
            self._memo[self._number("<B")] = stack[-1]
        elif code == b"r":
            self._memo[self._number("<I")] = stack[-1]
        elif code == b"\x94":
            self._memo[len(self._memo)] = stack[-1]
        elif code == b"(":
            stack.append(_MARK)
        elif code in _TUPLES:
            values = [self.pop() for _ in range(_TUPLES[code])]
            stack.append(tuple(reversed(values)))
        elif code in _IGNORED:
            self.take(_IGNORED[code])
        else:
            self._collect(code)

    def _sized(self, code: bytes, part: bytes) -> Any:
        if code in _TEXTS:
            return part.decode("utf-8", "replace")
        if code in _BYTES:
            return part.decode("latin-1")
        if len(part) > _INTEGER_MAX:
            raise PickleError("it holds a number that counts nothing")
        return int.from_bytes(part, "little", signed=True)

    def _collect(self, code: bytes) -> None:
        """Tuples, lists and dicts."""
        stack = self._stack
        if code == b")":
            stack.append(())
        elif code == b"]":
            stack.append([])
        elif code == b"}":
            stack.append({})
        elif code == b"t":
            stack.append(tuple(self._since_mark()))
        elif code == b"a":
            value = self.pop()
            _list(stack[-1]).append(value)
        elif code == b"e":
            values = self._since_mark()
            _list(stack[-1]).extend(values)
        elif code == b"s":
            value, key = self.pop(), self.pop()
            _dict(stack[-1])[_key(key)] = value
        elif code == b"u":
            values = self._since_mark()
            held = _dict(stack[-1])
            for key, value in zip(values[::2], values[1::2], strict=False):
                held[_key(key)] = value
        else:
            raise PickleError(f"it holds more than plain values (instruction {code!r})")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise PickleError("it is damaged")
    return value


def _dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise PickleError("it is damaged")
    return value


def _key(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise PickleError("it has a key that is no text or number")
    return value
