"""The options of ``gpualert run``: one table for the command line, the environment and the configuration file.

The configuration's pydantic model and the ``--help`` text are checked against, and made from, the same table.
"""

from __future__ import annotations


class Option:
    """One row of the table (a plain class: ``typing`` and ``dataclasses`` would double the time to start).

    Attributes:
        key: Its key in the configuration (``section.name``).
        flag: Its command-line flag; empty where there is none.
        environment: Its environment variable; empty where there is none.
        kind: ``text``, ``path``, ``duration``, ``size``, ``switch``, ``list`` or ``choice``.
        default: Its value when nothing gives one.
        metavar: What stands for its value in the help text.
        help: One sentence for the help text.
        choices: The values allowed to a ``choice``.
        in_file: Whether a configuration file may hold it.
        off_flag: For a switch that is on by default, the flag that turns it off.
    """

    __slots__ = ("choices", "default", "environment", "flag", "help", "in_file", "key", "kind", "metavar", "off_flag")

    def __init__(
        self,
        key: str,
        flag: str,
        environment: str,
        kind: str,
        default: object,
        metavar: str,
        help: str,  # noqa: A002  (the word the field uses)
        choices: tuple[str, ...] = (),
        in_file: bool = True,
        off_flag: str = "",
    ) -> None:
        self.key = key
        self.flag = flag
        self.environment = environment
        self.kind = kind
        self.default = default
        self.metavar = metavar
        self.help = help
        self.choices = choices
        self.in_file = in_file
        self.off_flag = off_flag


DURATION = "DURATION"
SIZE = "SIZE"

OPTIONS: tuple[Option, ...] = (
    Option(
        "log.dir",
        "--log-dir",
        "GPUALERT_LOG_DIR",
        "path",
        None,
        "DIR",
        "Where run directories are kept. Default: /var/log/gpualert where that is writable, "
        "else $XDG_STATE_HOME/gpualert, else ./gpualert.",
    ),
    Option(
        "log.max_bytes",
        "--log-max-bytes",
        "GPUALERT_LOG_MAX_BYTES",
        "size",
        2 << 30,
        SIZE,
        "Keep at most this much output: head and tail stay, the gap is marked. Default: 2GiB.",
    ),
    Option(
        "config",
        "--config",
        "GPUALERT_CONFIG",
        "path",
        None,
        "FILE",
        "Configuration file. Default: /etc/gpualert/config.toml, then $XDG_CONFIG_HOME/gpualert/config.toml.",
        in_file=False,
    ),
    Option(
        "name",
        "--name",
        "GPUALERT_NAME",
        "text",
        None,
        "NAME",
        "The job's name. Default: Job or pod name, Slurm job name, else the command's base name.",
    ),
    Option(
        "kubernetes.termination_log",
        "--termination-log",
        "GPUALERT_TERMINATION_LOG",
        "path",
        None,
        "FILE",
        "Kubernetes termination message file. Default: /dev/termination-log where it exists.",
    ),
    Option(
        "notify.when",
        "--notify",
        "GPUALERT_NOTIFY",
        "choice",
        "failure",
        "failure|always|never",
        "When to tell somebody that the run has ended. Default: failure.",
        ("failure", "always", "never"),
    ),
    Option(
        "notify.on_start",
        "--notify-start",
        "GPUALERT_NOTIFY_START",
        "switch",
        False,
        "",
        "Also tell when the command has started.",
    ),
    Option(
        "notify.progress_every",
        "--progress-every",
        "GPUALERT_PROGRESS_EVERY",
        "duration",
        None,
        DURATION,
        "Also tell how the run is doing, this often (at least 10s): the last lines and the timeline. Default: never.",
    ),
    Option(
        "email.to",
        "--email-to",
        "GPUALERT_EMAIL_TO",
        "list",
        (),
        "ADDRESS",
        "Whom to mail; may be given several times.",
    ),
    Option(
        "artifacts.include",
        "--artifact",
        "GPUALERT_ARTIFACTS",
        "list",
        (),
        "GLOB",
        "Files to attach, relative to the working directory; may be given several times.",
    ),
    Option(
        "run.timeout",
        "--timeout",
        "GPUALERT_TIMEOUT",
        "duration",
        None,
        DURATION,
        "End the command after this long: SIGTERM, then SIGKILL after --kill-after. Default: no limit.",
    ),
    Option(
        "run.kill_after",
        "--kill-after",
        "GPUALERT_KILL_AFTER",
        "duration",
        30.0,
        DURATION,
        "How long the command may take to end after --timeout's SIGTERM. Default: 30s.",
    ),
    Option(
        "report.deadline",
        "--report-deadline",
        "GPUALERT_REPORT_DEADLINE",
        "duration",
        20.0,
        DURATION,
        "How long reporting may take after the command has ended; 5s at most once a stop signal has come. "
        "Default: 20s.",
    ),
    Option(
        "run.signal_group",
        "--signal-group",
        "GPUALERT_SIGNAL_GROUP",
        "switch",
        False,
        "",
        "Run the command in a process group of its own and forward signals to the whole group.",
    ),
    Option(
        "run.tty",
        "--tty",
        "GPUALERT_TTY",
        "choice",
        "auto",
        "auto|always|never",
        "Give the command a pseudo-terminal. Default: auto, when ours is a terminal.",
        ("auto", "always", "never"),
    ),
    Option(
        "run.orphan_grace",
        "--orphan-grace",
        "GPUALERT_ORPHAN_GRACE",
        "duration",
        0.0,
        DURATION,
        "When the command has ended, send its leftover processes SIGTERM, and SIGKILL after this long. "
        "Default: 0, they are left alone.",
    ),
    Option(
        "run.env_hints",
        "",
        "GPUALERT_ENV_HINTS",
        "switch",
        True,
        "",
        "Do not set PYTHONUNBUFFERED=1 and PYTHONFAULTHANDLER=1 for the command where they are unset.",
        off_flag="--no-env-hints",
    ),
    Option(
        "group.dir",
        "--group-dir",
        "GPUALERT_GROUP_DIR",
        "path",
        None,
        "DIR",
        "A directory that all ranks of a job share: they make one report and send one mail together. Default: none, "
        "each rank is told of on its own.",
    ),
    Option(
        "group.settle",
        "--group-settle",
        "GPUALERT_GROUP_SETTLE",
        "duration",
        60.0,
        DURATION,
        "How long after the first failure the ranks that still live wait for each other. Default: 60s.",
    ),
    Option(
        "hang.after",
        "--hang-after",
        "GPUALERT_HANG_AFTER",
        "duration",
        1800.0,
        DURATION,
        "Tell of a run that has neither printed nor worked for this long, or for three times the longest pause that it "
        "has come back from. 0: never. Default: 30m.",
    ),
    Option(
        "hang.warmup",
        "--hang-warmup",
        "GPUALERT_HANG_WARMUP",
        "duration",
        600.0,
        DURATION,
        "How long after its start a run is not watched for hangs. Default: 10m.",
    ),
    Option(
        "hang.action",
        "--hang-action",
        "GPUALERT_HANG_ACTION",
        "choice",
        "notify",
        "notify|terminate",
        "What to do with a run that hangs: tell, or also end it (SIGTERM, then SIGKILL after --kill-after). "
        "Default: notify.",
        ("notify", "terminate"),
    ),
    Option(
        "telemetry.collect",
        "",
        "GPUALERT_TELEMETRY",
        "switch",
        True,
        "",
        "Do not measure GPUs, memory and progress beside the run, nor look for hangs.",
        off_flag="--no-telemetry",
    ),
    Option(
        "telemetry.textfile",
        "--textfile",
        "GPUALERT_TEXTFILE",
        "path",
        None,
        "DIR",
        "Keep the run's figures in DIR as a file for node-exporter's textfile collector. Default: none.",
    ),
    Option(
        "telemetry.otlp",
        "--otlp",
        "GPUALERT_OTLP",
        "text",
        None,
        "URL",
        "OpenTelemetry collector (OTLP over HTTP) that gets the run's figures. Default: none.",
    ),
    Option(
        "dry_run",
        "--dry-run",
        "",
        "switch",
        False,
        "",
        "Print the mail instead of sending it.",
        in_file=False,
    ),
)

BY_FLAG = {option.flag: option for option in OPTIONS if option.flag}
OFF_FLAGS = {option.off_flag: option for option in OPTIONS if option.off_flag}
BY_KEY = {option.key: option for option in OPTIONS}
HELP_FLAGS = ("-h", "--help")

_OTHERS = (
    # The reporter's settings.
    "EMAIL_FROM EMAIL_KEEP SMTP_HOST SMTP_PORT SMTP_SECURITY SMTP_USERNAME SMTP_PASSWORD SMTP_PASSWORD_FILE "
    "SMTP_CA_FILE SMTP_HELO SMTP_TIMEOUT NOTIFY_URLS NOTIFY_URLS_FILE NOTIFY_REPEATS WEBHOOK_URL WEBHOOK_SECRET "
    "WEBHOOK_SECRET_FILE WEBHOOK_CA_FILE WEBHOOK_TIMEOUT ARTIFACTS_ROOT ARTIFACTS_CHANGED_ONLY ARTIFACTS_ORDER "
    "ARTIFACTS_ZIP_OVER ARTIFACTS_MAX_FILE ARTIFACTS_MAX_TOTAL RULES "
    # Facts.
    "CONFIG POD_NAME POD_NAMESPACE NODE_NAME JOB_NAME CONTAINER_NAME CONTAINERS COMPLETIONS GROUP_ID JOB_UID"
)
OTHER_VARIABLES = frozenset(("GPUALERT_" + name).encode() for name in _OTHERS.split())
"""The variables of ours that are no option; a test compares them with the reporter's."""
