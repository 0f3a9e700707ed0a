"""What ``gpualert run`` was told: command line over environment over configuration files over defaults."""

from __future__ import annotations

import posix

from gpualert.supervisor.options import BY_FLAG, OFF_FLAGS, OPTIONS, OTHER_VARIABLES
from gpualert.supervisor.values import check_value, parse_value, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG_FILES = ("/etc/gpualert/config.toml",)
"""Read when ``--config`` names none; ``$XDG_CONFIG_HOME/gpualert/config.toml`` comes after and wins."""

MAX_FILE_BYTES = 1 << 20


class UsageError(Exception):
    """gpualert was called wrongly: exit status 125."""


class Settings:
    """What ``gpualert run`` was told.

    Attributes:
        values: Every option's effective value by key.
        given: The values that the command line or the environment gave, by key.
        command: The command and its arguments.
        problems: What was wrong in the environment or in a configuration file; each is ignored.
    """

    __slots__ = ("command", "given", "problems", "values")

    def __init__(
        self, values: dict[str, object], given: dict[str, object], command: list[str], problems: list[str]
    ) -> None:
        self.values = values
        self.given = given
        self.command = command
        self.problems = problems

    def duration(self, key: str) -> float | None:
        """A duration in seconds; None where no limit is set."""
        value = self.values[key]
        return float(value) if isinstance(value, int | float) else None

    def text(self, key: str) -> str | None:
        """A text or path; None where it is unset."""
        value = self.values[key]
        return value if isinstance(value, str) else None

    def switch(self, key: str) -> bool:
        """Whether a switch is on."""
        return bool(self.values[key])

    def size(self, key: str) -> int:
        """A size in bytes."""
        value = self.values[key]
        return value if isinstance(value, int) else 0


def _nearest(word: str) -> str:
    """The flag that shares the longest start with ``word``, as a hint."""
    best, length = "", 4
    for flag in (*BY_FLAG, *OFF_FLAGS):
        same = 0
        while same < min(len(flag), len(word)) and flag[same] == word[same]:
            same += 1
        if same > length:
            best, length = flag, same
    return f"; did you mean {best}?" if best else ""


def parse_arguments(arguments: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """The options given on the command line, and the command.

    Args:
        arguments: What follows ``gpualert run``.

    Returns:
        Values by key, and the command with its arguments.

    Raises:
        UsageError: An unknown option, a bad value, or no command.
    """
    given: dict[str, object] = {}
    rest = list(arguments)
    while rest:
        word = rest[0]
        if word == "--":
            rest.pop(0)
            break
        if not word.startswith("-") or word == "-":
            break
        rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag in OFF_FLAGS and not equals:
            given[OFF_FLAGS[flag].key] = False
            continue
        option = BY_FLAG.get(flag)
        if option is None:
            raise UsageError(
                f"unknown option {quoted(flag)}{_nearest(flag)} "
                "(options come before the command; see gpualert run --help)"
            )
        if option.kind == "switch":
            if equals:
                raise UsageError(f"{flag} takes no value")
            given[option.key] = True
            continue
        if not equals:
            if not rest:
                raise UsageError(f"{flag} needs a value: {flag} {option.metavar}")
            value = rest.pop(0)
        if option.kind == "list":
            listed = given.setdefault(option.key, [])
            if isinstance(listed, list):
                listed.append(value)
            continue
        try:
            given[option.key] = parse_value(option, value)
        except ValueError as error:
            raise UsageError(f"{flag} {error}") from None
    if not rest:
        raise UsageError("no command to run: gpualert run [OPTIONS] [--] COMMAND [ARG...]")
    return given, rest


def from_environment(environment: Mapping[bytes, bytes]) -> tuple[dict[str, object], list[str]]:
    """The options that the environment gives, by key, and what is wrong with those left out."""
    given: dict[str, object] = {}
    problems = []
    for option in OPTIONS:
        raw = environment.get(option.environment.encode()) if option.environment else None
        if not raw:
            continue
        try:
            given[option.key] = parse_value(option, raw.decode("utf-8", "surrogateescape"))
        except ValueError as error:
            problems.append(f"{option.environment} {error}: ignored")
    problems += unknown_variables(environment)
    return given, problems


def unknown_variables(environment: Mapping[bytes, bytes]) -> list[str]:
    """What looks like a variable of ours and is none: mistyped, or of another version."""
    ours = [name for name in environment if name.startswith(b"GPUALERT_")]
    if not ours:
        return []
    known = OTHER_VARIABLES.union(option.environment.encode() for option in OPTIONS)
    unknown = [name for name in ours if name not in known]
    # Kubernetes sets NAME_SERVICE_HOST, NAME_PORT, NAME_PORT_80_TCP ... for a Service of that name.
    mistyped = [name for name in unknown if b"_SERVICE_" not in name and b"_PORT" not in name]
    return [f"environment: {name.decode('utf-8', 'replace')} is unknown: ignored" for name in mistyped]


def config_files(environment: Mapping[bytes, bytes], named: object) -> list[str]:
    """The configuration files to read, in order; later ones win.

    Args:
        environment: Variables and values.
        named: The file that ``--config`` or ``GPUALERT_CONFIG`` names, or None.
    """
    if isinstance(named, str):
        return [named]
    home = environment.get(b"XDG_CONFIG_HOME") or (environment.get(b"HOME", b"") + b"/.config")
    files = list(CONFIG_FILES)
    if home.startswith(b"/") and home != b"/.config":
        files.append(home.decode("utf-8", "surrogateescape") + "/gpualert/config.toml")
    return files


def _from_file(path: str, *, required: bool) -> tuple[dict[str, object], list[str]]:
    """The supervisor's own options from one configuration file; what is wrong elsewhere in it the reporter says."""
    try:
        posix.stat(path)
    except (OSError, ValueError) as error:
        # A directory of somebody else's (HOME kept by sudo) tells nothing about a file of ours.
        return {}, ([f"cannot read configuration {path} ({_reason(error)}): ignored"] if required else [])
    try:
        from gpualert.rundir import regular  # noqa: PLC0415  (only where there is a file)

        content = regular.content(path, MAX_FILE_BYTES)
    except (OSError, ValueError, MemoryError) as error:
        return {}, [f"cannot read configuration {path} ({_reason(error)}): ignored"]
    if content is None:
        return {}, [f"configuration {path} is larger than 1 MiB: ignored"]
    try:
        import tomllib  # noqa: PLC0415  (costs 8 ms, so only where there is a file)

        tree = tomllib.loads(content.decode())
    except Exception as error:  # noqa: BLE001  (a number of 5000 digits, brackets without end: the command runs)
        return {}, [f"configuration {path} is not valid TOML ({error}): ignored"]
    given: dict[str, object] = {}
    problems = []
    for option in OPTIONS:
        section, _, key = option.key.rpartition(".")
        table = tree.get(section) if section else tree
        if not option.in_file or not isinstance(table, dict) or key not in table:
            continue
        try:
            given[option.key] = check_value(option, table[key])
        except ValueError as error:
            problems.append(f"{path}: {option.key} {error}: ignored")
    return given, problems


def _reason(error: Exception) -> str:
    """Why a file could not be read."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def read(arguments: Sequence[str], environment: Mapping[bytes, bytes]) -> Settings:
    """All options of a run: command line over environment over files over defaults.

    Args:
        arguments: What follows ``gpualert run``.
        environment: Variables and values.

    Raises:
        UsageError: The command line is wrong; nothing else ever raises.
    """
    from_line, command = parse_arguments(arguments)
    from_env, problems = from_environment(environment)
    given = {**from_env, **from_line}
    named = given.get("config")
    values: dict[str, object] = {option.key: option.default for option in OPTIONS}
    for path in config_files(environment, named):
        from_file, wrong = _from_file(path, required=named is not None)
        values.update(from_file)
        problems += wrong
    values.update(given)
    return Settings(values, given, command, problems)
