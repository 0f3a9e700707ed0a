"""JSON text of plain values (``json`` would double the supervisor's time to start)."""

from __future__ import annotations

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _string(text: str) -> str:
    """One JSON string; bytes that were no UTF-8 (surrogate escapes) become U+FFFD."""
    if not text.isprintable() or '"' in text or "\\" in text:
        text = text.encode("utf-8", "surrogateescape" if _only_escapes(text) else "replace").decode("utf-8", "replace")
        text = "".join(_ESCAPES.get(c) or (c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in text)
    return f'"{text}"'


def _only_escapes(text: str) -> bool:
    """Whether every surrogate in ``text`` stands for a byte that was no UTF-8."""
    return not any("\ud800" <= c <= "\udfff" and not "\udc80" <= c <= "\udcff" for c in text)


def dumps(value: object) -> str:
    """``value`` as one line of JSON.

    Args:
        value: None, bool, int, float, str, or a list, tuple or dict of these; a dict's keys are strings.

    Raises:
        TypeError: Something else is in it.
    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        # JSON has no word for infinities and NaN.
        return repr(round(value, 6)) if value - value == 0 else "null"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_string(key)}: {dumps(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(dumps, value)) + "]"
    raise TypeError(f"no JSON for {type(value).__name__}")
