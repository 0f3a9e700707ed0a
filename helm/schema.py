"""Writes the part of the chart's schema that is gpualert's configuration: ``python helm/schema.py``.

The keys, their types and their bounds come from ``gpualert.config.settings``, so that a value that gpualert would not
take is refused before it is in the cluster.
"""

from __future__ import annotations

import json
import pathlib
import sys
import types
import typing
from typing import Any, Literal, Union

import annotated_types
from pydantic import BeforeValidator

SOURCE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SOURCE))
from gpualert.config.loading import SECRETS  # noqa: E402  (found only now)
from gpualert.config.settings import Section, Settings  # noqa: E402  (the same)

SCHEMA = SOURCE / "helm" / "gpualert" / "values.schema.json"
PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string"}


def of_settings() -> dict[str, Any]:
    """The schema of the value ``config``."""
    return _of_section(Settings, "")


def _of_section(model: type[Section], prefix: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        if not field.exclude:
            properties[key] = _of_type(field.annotation, list(field.metadata), prefix + key)
        elif prefix + key in SECRETS:
            properties[key] = {}  # the template says where it belongs
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _of_type(annotation: Any, metadata: list[Any], key: str) -> dict[str, Any]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _of_section(annotation, key + ".")
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):  # X | None: null takes a key out in any case
        (annotation,) = (one for one in arguments if one is not type(None))
        return _of_type(annotation, metadata, key)
    if origin is typing.Annotated:
        return _of_type(arguments[0], [*arguments[1:], *metadata], key)
    if origin is Literal:
        return {"enum": [*arguments, None]}
    if origin is list:
        made: dict[str, Any] = {"type": ["array", "null"], "items": _of_type(arguments[0], [], key)}
        made["items"]["type"] = "string"
    else:
        made = {"type": [PLAIN[annotation], "null"], **_bounds(metadata)}
    if any(isinstance(one, BeforeValidator) for one in metadata):  # a duration, a size, or a list with commas
        made["type"] = ["string", *made["type"]]
    return made


def _bounds(metadata: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in metadata:
        for part in getattr(one, "metadata", [one]):
            if isinstance(part, annotated_types.Ge):
                found["minimum"] = part.ge
            elif isinstance(part, annotated_types.Le):
                found["maximum"] = part.le
    return found


def main() -> None:
    """Put it into the chart's schema."""
    schema = json.loads(SCHEMA.read_text())
    schema["properties"]["config"] = of_settings()
    SCHEMA.write_text(json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    main()
