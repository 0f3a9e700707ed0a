"""The documents say what the program does."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from conftest import PYTHON, REPOSITORY

from gpualert import config
from gpualert.config.loading import VARIABLES, known_keys
from gpualert.supervisor.options import OPTIONS

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def test_every_option_variable_and_key_is_documented() -> None:
    text = (REPOSITORY / "docs" / "usage.md").read_text()
    for option in OPTIONS:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{option.flag or option.off_flag}"))
        assert option.environment in row
        assert option.help.replace("|", "\\|") in row
    for variable, key in VARIABLES.items():
        assert variable in text
        assert key in text or "password" in key or "secret" in key


def test_the_example_configuration_has_every_key_and_is_right(tmp_path: Path) -> None:
    text = (REPOSITORY / "examples" / "config.toml").read_text()
    # With the comment signs gone, every key is set.
    every = tmp_path / "every.toml"
    every.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    keys = {
        f"{section}.{key}" if isinstance(table, dict) else section
        for section, table in tomllib.loads(every.read_text()).items()
        for key in (table if isinstance(table, dict) else [""])
    }
    assert keys == set(known_keys())
    for path in (every, REPOSITORY / "examples" / "config.toml"):
        _, problems = config.load({}, config=str(path))
        assert [p for p in problems if "cannot be read" not in p.message] == []


def test_the_example_configuration_is_the_one_that_init_writes(tmp_path: Path) -> None:
    made = tmp_path / "made.toml"
    argv = [PYTHON, "-I", "-m", "gpualert", "init", "--no-questions", "--config", str(made)]
    subprocess.run(argv, check=True, capture_output=True)
    assert (REPOSITORY / "examples" / "config.toml").read_text() == made.read_text()


def test_the_settings_of_the_notifications_page_are_right(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "notifications.md").read_text()
    examples = re.findall(r"(?m)(?:^ {4}.*\n|^\n(?= {4}))+", text)
    settings = [part for part in examples if re.search(r"(?m)^ {4}\[\w+\]", part)]
    assert len(settings) >= 6
    for number, part in enumerate(settings):
        path = tmp_path / f"{number}.toml"
        path.write_text(re.sub(r"(?m)^ {4}", "", part))
        _, problems = config.load({}, config=str(path))
        assert [p for p in problems if "cannot be read" not in p.message] == [], part


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_page_of_classes_is_the_one_that_the_command_makes() -> None:
    made = subprocess.run(
        [PYTHON, "-I", "-m", "gpualert", "explain", "--format", "markdown"], capture_output=True, check=True
    ).stdout.decode()
    assert (REPOSITORY / "docs" / "failure-classes.md").read_text() == made


def test_commands_that_the_readme_promises_exist() -> None:
    text = (REPOSITORY / "README.md").read_text()
    for command in ("./dev demo", "./dev test"):
        assert command in text
        assert f"{command.split()[1]})" in (REPOSITORY / "dev").read_text()
