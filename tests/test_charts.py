"""The chart's schema, as far as no helm is needed: its configuration is gpualert's own."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tomllib
from typing import Any

import jsonschema
import pytest
from conftest import PYTHON, REPOSITORY

from gpualert import config
from gpualert.config.loading import known_keys

SCHEMA = json.loads((REPOSITORY / "helm" / "gpualert" / "values.schema.json").read_text())


def _is_valid(configuration: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft7Validator(SCHEMA["properties"]["config"]).is_valid(configuration))


def test_the_schema_of_the_configuration_is_made_from_the_settings() -> None:
    script = "import schema, json; print(json.dumps(schema.of_settings()))"
    done = subprocess.run([PYTHON, "-c", script], cwd=REPOSITORY / "helm", capture_output=True, text=True, check=True)
    assert SCHEMA["properties"]["config"] == json.loads(done.stdout), "run python helm/schema.py"
    keys = {
        f"{section}.{key}" if "properties" in schema else section
        for section, schema in SCHEMA["properties"]["config"]["properties"].items()
        for key in schema.get("properties", [""])
    }
    assert keys - {"smtp.password", "webhook.secret"} == set(known_keys())


def test_every_key_of_the_example_is_valid() -> None:
    text = (REPOSITORY / "examples" / "config.toml").read_text()
    every = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert _is_valid(tomllib.loads(every))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("smtp", "port", 70000),
        ("smtp", "port", "587"),
        ("smtp", "security", "ssl"),
        ("notify", "when", "sometimes"),
        ("notify", "progress_every", 1),
        ("email", "to", [1]),
        ("run", "signal_group", 3),
        ("smtp", "host", {"name": "x"}),
        ("smtp", "hots", "x"),
    ],
)
def test_what_gpualert_would_not_take_is_not_valid(section: str, key: str, value: Any, tmp_path: Any) -> None:
    assert not _is_valid({section: {key: value}})
    if isinstance(value, dict) or (key, value) == ("port", "587"):
        return  # the one cannot be written so, and gpualert reads the other
    path = tmp_path / "config.toml"
    path.write_text(f"[{section}]\n{key} = {json.dumps(value)}\n")
    assert config.load({}, config=str(path))[1]


@pytest.mark.parametrize("value", [None, {}, {"smtp": None}, {"smtp": {"host": None}}, {"report": {"deadline": "30s"}}])
def test_null_takes_a_key_out(value: Any) -> None:
    assert _is_valid(value)


def test_the_example_holds_the_library_as_it_is() -> None:
    with tarfile.open(REPOSITORY / "helm" / "example" / "charts" / "gpualert-lib-0.1.0.tgz") as archive:
        packed = archive.extractfile("gpualert-lib/templates/_wrap.tpl")
        assert packed is not None
        own = REPOSITORY / "helm" / "gpualert-lib" / "templates" / "_wrap.tpl"
        assert packed.read() == own.read_bytes(), "run helm dependency update helm/example"
