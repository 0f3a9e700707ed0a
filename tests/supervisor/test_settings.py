"""The values of options, and their order."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import ENTRY, PYTHON, Gpualert
from hypothesis import given
from hypothesis import strategies as st

from gpualert.supervisor import options, settings, values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("30s", 30),
        ("1.5h", 5400),
        ("3h12m", 11520),
        ("2d", 172800),
        ("250ms", 0.25),
        (" 1m ", 60),
        ("0", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "1x", "-1", "1h30", "1.2.3s", "nan", "inf", "9e99", "1 h", "100000000000d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        values.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"), [("1000", 1000), ("25MB", 25_000_000), ("2GiB", 2 << 30), ("1.5 KiB", 1536), ("3g", 3 * 10**9)]
)
def test_sizes(text: str, count: int) -> None:
    assert values.parse_size(text) == count


@given(st.text())
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for option in options.OPTIONS:
        try:
            values.parse_value(option, text)
        except ValueError as error:
            assert "\n" not in str(error)


def test_command_line_over_environment_over_file_over_default(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[run]\ntimeout = 10\nkill_after = "20s"\norphan_grace = 3\n[report]\ndeadline = "9s"\n')
    environment = {b"GPUALERT_CONFIG": str(path).encode(), b"GPUALERT_KILL_AFTER": b"40s", b"GPUALERT_TIMEOUT": b"50"}
    told = settings.read(["--timeout", "1h", "true"], environment)
    wanted = {"run.timeout": 3600.0, "run.kill_after": 40.0, "run.orphan_grace": 3.0, "report.deadline": 9.0}
    assert {key: told.values[key] for key in wanted} == wanted
    assert told.values["log.max_bytes"] == 2 << 30
    assert told.problems == []


def test_the_users_file_wins_over_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, home = tmp_path / "system.toml", tmp_path / "home"
    (home / "gpualert").mkdir(parents=True)
    system.write_text('name = "system"\n[notify]\nwhen = "always"\n')
    (home / "gpualert" / "config.toml").write_text('name = "user"\n')
    monkeypatch.setattr(settings, "CONFIG_FILES", (str(system),))
    told = settings.read(["true"], {b"XDG_CONFIG_HOME": str(home).encode()})
    assert (told.values["name"], told.values["notify.when"]) == ("user", "always")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[run\n", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b"[run]\ntimeout = true\n", "run.timeout must be a duration such as 90s, 30m or 3h12m, not 'True': ignored"),
        (b'[log]\ndir = "a\\u0000b"\n', "log.dir must not hold a NUL: ignored"),
        (b'artifacts.include = ["a", "a\\u0000b"]\n', "artifacts.include must not hold a NUL: ignored"),
        (b"x = 1\n" * 300_000, "is larger than 1 MiB: ignored"),
        (b"x = " + b"9" * 5000, "is not valid TOML"),
        (b"x = " + b"[" * 5000, "is not valid TOML"),
    ],
)
def test_a_bad_file_is_named_and_ignored(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    told = settings.read(["true"], {b"GPUALERT_CONFIG": str(path).encode()})
    assert len(told.problems) == 1
    assert str(path) in told.problems[0]
    assert problem in told.problems[0]


def test_a_named_file_that_is_missing_is_said() -> None:
    told = settings.read(["--config", "/no/such.toml", "true"], {})
    assert told.problems == ["cannot read configuration /no/such.toml (No such file or directory): ignored"]


def test_the_supervisors_table_and_the_settings_model_agree() -> None:
    from gpualert.config import Settings
    from gpualert.config.loading import known_keys

    model = Settings()
    for option in options.OPTIONS:
        if not option.in_file:
            continue
        assert option.key in known_keys()
        section, _, name = option.key.rpartition(".")
        default = getattr(getattr(model, section) if section else model, name)
        assert default == (list(option.default) if isinstance(option.default, tuple) else option.default), option.key


@pytest.mark.parametrize("how", ["--config", "GPUALERT_CONFIG", "usual place"])
@pytest.mark.parametrize(
    ("kind", "why"), [("pipe", "not a regular file"), ("device", "not a regular file"), ("directory", "Is a directory")]
)
def test_what_is_no_file_is_said_and_the_command_runs(
    plain: Gpualert, tmp_path: Path, how: str, kind: str, why: str
) -> None:
    path = tmp_path / "gpualert" / "config.toml"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    options = ["--config", str(path)] if how == "--config" else []
    environment = {"GPUALERT_CONFIG": str(path)} if how == "GPUALERT_CONFIG" else {"XDG_CONFIG_HOME": str(tmp_path)}
    done = plain.run(["echo", "ran"], *options, env=environment)
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert done.stderr.decode() == f"gpualert: cannot read configuration {path} ({why}): ignored\n"
    assert done.json("report.json")["trouble"] == [f"cannot read configuration {path} ({why}): ignored"]
    checked = subprocess.run(
        [PYTHON, "-I", str(ENTRY), "check", "--config", str(path)], capture_output=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stderr.decode()) == (1, f"gpualert: {path}: cannot be read ({why})\n")


def test_a_named_file_that_cannot_be_one_is_said(plain: Gpualert) -> None:
    for name in ("/dev/null/x", "x" * 5000):
        done = plain.run(["echo", "ran"], "--config", name)
        assert (done.returncode, done.stdout, len(done.said)) == (0, b"ran\n", 1)


def test_the_table_of_variables_is_the_reporters() -> None:
    from gpualert.config.loading import _NOT_SETTINGS, VARIABLES

    known = {option.environment for option in options.OPTIONS} | {name.decode() for name in options.OTHER_VARIABLES}
    assert known == {"", *VARIABLES, *_NOT_SETTINGS}


def test_a_variable_that_nobody_knows_is_said(plain: Gpualert) -> None:
    environment = {"GPUALERT_BOGUS": "1", "GPUALERT_PORT_80_TCP": "x", "GPUALERT_SERVICE_HOST": "10.0.0.1"}
    done = plain.run(["true"], env=environment)
    line = "environment: GPUALERT_BOGUS is unknown: ignored"
    assert (done.returncode, done.said) == (0, [f"gpualert: {line}"])
    assert done.json("report.json")["trouble"] == [line]
