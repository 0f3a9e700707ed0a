"""The values of options: durations, sizes, switches, lists, and what is wrong with a bad one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpualert.supervisor.options import Option

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _SIZE_UNITS[_letter] = _SIZE_UNITS[_letter + "b"] = 1000**_power
    _SIZE_UNITS[_letter + "i"] = _SIZE_UNITS[_letter + "ib"] = 1024**_power


def _number_and_unit(text: str) -> tuple[float, str, str]:
    """The leading number of ``text``, the letters after it, and what is left."""
    end = 0
    while end < len(text) and (text[end] in "0123456789."):
        end += 1
    stop = end
    while stop < len(text) and text[stop].isalpha():
        stop += 1
    return float(text[:end]), text[end:stop].lower(), text[stop:]


def parse_duration(text: str) -> float:
    """Seconds in ``90``, ``30s``, ``1.5h``, ``3h12m`` or ``2d``.

    Raises:
        ValueError: It is no such duration.
    """
    rest, total, first = text.strip(), 0.0, True
    while rest or first:
        number, unit, rest = _number_and_unit(rest)
        if not unit and (rest or not first):
            raise ValueError(text)
        if unit and unit not in _DURATION_UNITS:
            raise ValueError(text)
        total += number * _DURATION_UNITS.get(unit, 1.0)
        first = False
    if total > 1e10:  # three centuries: more than any clock here can hold
        raise ValueError(text)
    return total


def parse_size(text: str) -> int:
    """Bytes in ``1000000``, ``25MB`` or ``2GiB``.

    Raises:
        ValueError: It is no such size.
    """
    number, unit, rest = _number_and_unit(text.strip().replace(" ", ""))
    if rest or unit not in _SIZE_UNITS or number * _SIZE_UNITS[unit] > 1 << 62:
        raise ValueError(text)
    return int(number * _SIZE_UNITS[unit])


_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")
_WANTED = {
    "duration": "a duration such as 90s, 30m or 3h12m",
    "size": "a size such as 500MB or 2GiB",
    "switch": "1 or 0",
    "text": "a text",
    "path": "a path",
    "list": "a list of texts",
}


def listed(text: str) -> list[str]:
    """The parts of a text with commas between them; one inside ``{a,b}`` or ``[a,b]`` is part of a pattern."""
    parts, part, depth = [], "", 0
    for number, character in enumerate(text):
        if character in "{[" and ("}" if character == "{" else "]") in text[number:]:
            depth += 1
        elif character in "}]" and depth:
            depth -= 1
        if character == "," and not depth:
            parts.append(part)
            part = ""
        else:
            part += character
    if depth:  # they do not match: the commas are all there is to go by
        parts, part = text.split(","), ""
    return [one.strip() for one in [*parts, part] if one.strip()]


def wanted(option: Option) -> str:
    """What an option's value must be, for an error message."""
    return "one of " + ", ".join(option.choices) if option.kind == "choice" else _WANTED[option.kind]


def parse_value(option: Option, text: str) -> object:
    """An option's value from the command line or the environment.

    Raises:
        ValueError: The text does not fit the option; the message says what would.
    """
    try:
        if option.kind == "duration":
            return parse_duration(text)
        if option.kind == "size":
            return parse_size(text)
        if option.kind == "switch":
            return (_ON + _OFF).index(text.strip().lower()) < len(_ON)
        if option.kind == "list":
            return listed(text)
    except ValueError:
        pass
    else:
        if option.kind != "choice" or text in option.choices:
            if not text and option.kind in ("text", "path"):
                raise ValueError("must not be empty")
            return text
    raise ValueError(f"must be {wanted(option)}, not {quoted(text)}")


def check_value(option: Option, value: object) -> object:
    """An option's value from a configuration file, where numbers and lists have types of their own.

    Raises:
        ValueError: The value does not fit the option; the message says what would.
    """
    if any("\0" in item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)):
        raise ValueError("must not hold a NUL")  # no path can, and the command line and the environment cannot either
    if isinstance(value, str):
        return parse_value(option, value)
    if option.kind == "switch" and isinstance(value, bool):
        return value
    if option.kind in ("duration", "size") and isinstance(value, int | float) and not isinstance(value, bool):
        return parse_value(option, str(value))
    if option.kind == "list" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise ValueError(f"must be {wanted(option)}, not {quoted(str(value))}")


def quoted(text: str) -> str:
    """``text`` short enough, and safe enough, for one line on a terminal; an address may be a secret: only its kind."""
    scheme, is_address, _ = text.partition("://")
    text = f"{scheme}://..." if is_address else text
    shown = text if len(text) <= 60 else text[:57] + "..."
    return "'" + "".join(c if c.isprintable() else "?" for c in shown) + "'"
