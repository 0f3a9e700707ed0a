"""``gpualert init``: writes a commented configuration; at a terminal it asks for the mail server first."""

from __future__ import annotations

import ipaddress
import os
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from gpualert import config
from gpualert.cli.configuring import test_mail
from gpualert.cli.output import Refused, format_option, print_json
from gpualert.notify.mailing import valid_address
from gpualert.rundir.writer import make_directories
from gpualert.supervisor.settings import CONFIG_FILES

if TYPE_CHECKING:
    from collections.abc import Callable

TEMPLATE = """\
# gpualert's configuration. Every key is shown; one that is commented out has this value anyway, or none.
# The command line outranks the environment, the environment this file. `gpualert check` reads it strictly.

# name = "llama-7b"               # of all runs; default: Job, pod, Slurm job, else the command

[log]
# dir = "/var/log/gpualert"       # where run directories are kept
# max_bytes = "2GiB"              # of output per run: head and tail stay, the gap is marked

[notify]
# when = "failure"                # or "always", "never"
# on_start = false                # also tell that a run has started
# progress_every = "6h"           # also tell how it is doing; default: never
# urls = []                       # chats and pagers by Apprise: "slack://...", "ntfys://ntfy.example.org/gpu"
# urls_file = "/etc/gpualert/urls"   # the same, one a line, in a file that others cannot read
# repeats = "digest"              # the same failure again without progress: one mail for several; or "all"

[email]
{to}
{from_}
# keep = "7d"                     # how long a mail is tried that no server takes

[smtp]
{host}
{port}
{security}
{username}
{password_file}
# ca_file = "/etc/ssl/private-ca.pem"   # certificates to trust instead of the system's
# helo = "gpu-17.example.org"     # the name to greet with; default: this host's
# timeout = "10s"                 # for one answer

[webhook]
# url = "https://hooks.example.org/gpualert"   # gets the report as JSON
# secret_file = "/etc/gpualert/webhook-secret" # signs it, see docs/notifications.md
# ca_file = "/etc/ssl/private-ca.pem"
# timeout = "10s"

[artifacts]
# include = []                    # globs below the root: "metrics/*.json", "plots/**/*.png"
# root = "/workspace"             # default: the working directory
# changed_only = true             # only what changed since the start
# order = "value"                 # what goes first: "value", "size", "newest" or "given"
# max_file = "10MB"
# max_total = "20MB"              # of the whole mail
# zip_over = 10                   # more small files than this share one archive

[run]
# timeout = "72h"                 # default: none
# kill_after = "30s"              # from the time-out's SIGTERM to SIGKILL
# signal_group = false            # forward signals to the whole process group
# tty = "auto"                    # or "always", "never"
# env_hints = true                # PYTHONUNBUFFERED=1 and PYTHONFAULTHANDLER=1 where unset
# orphan_grace = 0                # how long processes that are left over may go on

[report]
# deadline = "20s"                # how long reporting may take at the end

[diagnosis]
# rules = []                      # directories with rules of your own

[kubernetes]
# termination_log = "/dev/termination-log"

[group]
# dir = "/shared/gpualert"        # ranks that share it make one report and send one mail
# settle = "60s"                  # after the first failure, for ranks that live on

[hang]
# after = "30m"                   # without output or work; 0: never
# warmup = "10m"                  # not watched so long after the start
# action = "notify"               # or "terminate"

[telemetry]
# collect = true                  # measure GPUs, memory and progress beside the run
# textfile = "/var/lib/node_exporter/textfile"   # for node-exporter
# otlp = "http://otel-collector.example.org:4318"   # OpenTelemetry over HTTP

[watch]
# namespaces = []                 # default: all
# only = "jobs"                   # or "gpus", "labelled"
# cluster = "gpu-east"            # what mails call it
# settle = "60s"                  # how long an incident must stand still
# settle_most = "10m"             # at the latest so long after the first failure
# unschedulable_after = "10m"
# per_hour = 20                   # mails of a namespace; more come as a digest
# digest_every = "15m"
# label_nodes = false             # gpualert.dev/suspect on nodes whose hardware is suspect
"""


@dataclass
class Answers:
    """What a person has answered, or given as options; None where nothing was said."""

    to: str | None = None
    from_: str | None = None
    host: str | None = None
    port: int | None = None
    security: str | None = None
    username: str | None = None
    password_file: str | None = None


_EXAMPLES = {
    "to": '# to = ["ml-oncall@example.org"]',
    "from_": '# from = "gpualert@example.org"  # default: gpualert@<host>',
    "host": '# host = "smtp.example.org"',
    "port": "# port = 587                     # default: 587 for starttls, 465 for tls, 25 for none",
    "security": '# security = "starttls"          # or "tls", "none"',
    "username": '# username = "gpualert"',
    "password_file": '# password_file = "/etc/gpualert/smtp-password"   # or GPUALERT_SMTP_PASSWORD',
}


def _quoted(text: str) -> str:
    """A TOML basic string."""
    told = {"\\": "\\\\", '"': '\\"', "\t": "\\t"}
    return '"' + "".join(told.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in text) + '"'


def rendered(answers: Answers) -> str:
    """The configuration file's text.

    Args:
        answers: What to set; all else is commented out.
    """
    lines = dict(_EXAMPLES)
    for field in fields(Answers):
        value, key = getattr(answers, field.name), field.name.rstrip("_")
        if value is None:
            continue
        if field.name == "to":
            value = [part.strip() for part in str(value).split(",") if part.strip()]
            lines["to"] = f"to = [{', '.join(map(_quoted, value))}]"
        else:
            lines[field.name] = f"{key} = {value if isinstance(value, int) else _quoted(str(value))}"
    return TEMPLATE.format(**lines)


def default_path() -> str:
    """Where the configuration belongs: the system's for root, else the user's own."""
    if os.getuid() == 0:
        return CONFIG_FILES[0]
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "gpualert", "config.toml")


def _addresses(text: str) -> str:
    """Mail addresses with commas between them.

    Raises:
        click.BadParameter: One of them is none.
    """
    for address in [part.strip() for part in text.split(",") if part.strip()]:
        _address(address)
    return text.strip()


def _address(text: str) -> str:
    """A mail address, or nothing.

    Raises:
        click.BadParameter: It is none.
    """
    text = text.strip()
    if text and not valid_address(text):
        raise click.BadParameter(f"{text} is not a mail address, such as ml-oncall@example.org")
    return text


def _host(text: str) -> str:
    """A server's name or address.

    Raises:
        click.BadParameter: It is more than that, or nothing.
    """
    text = text.strip()
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if not text or any(c in "/@:" or not c.isprintable() or c.isspace() for c in text):
            message = (
                f"{text or 'nothing'} is not the name of a server, such as smtp.example.org (its port is asked apart)"
            )
            raise click.BadParameter(message) from None
    return text


def _checked(check: Callable[[str], str]) -> Any:
    """The same for an option: wrong is said before anything is asked."""

    def callback(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
        return None if value is None else check(value)

    return callback


@click.command()
@click.option("--config", "path", metavar="FILE", help="Where to write it. Default: /etc for root, else your own.")
@click.option("--force", is_flag=True, help="Replace a file that is there; it is kept as FILE.old.")
@click.option("--no-questions", is_flag=True, help="Ask nothing, also at a terminal.")
@click.option("--email-to", metavar="ADDRESS", callback=_checked(_addresses), help="Whom to mail; several with commas.")
@click.option("--email-from", metavar="ADDRESS", callback=_checked(_address), help="Whom mails come from.")
@click.option("--smtp-host", metavar="HOST", callback=_checked(_host), help="The mail server.")
@click.option("--smtp-port", type=click.IntRange(1, 65535), metavar="PORT", help="Its port.")
@click.option("--smtp-security", type=click.Choice(["starttls", "tls", "none"]), help="How the connection is secured.")
@click.option("--smtp-username", metavar="NAME", help="Whom to log in as.")
@click.option("--smtp-password-file", metavar="FILE", help="A file that holds the password.")
@format_option
def init(path: str | None, force: bool, no_questions: bool, form: str, **given: str | int | None) -> None:
    """Write a commented configuration file.

    At a terminal it asks for whom to mail and for the mail server, keeps the password in a file of its own that only
    you can read, and offers to send a test mail. With --format json it asks nothing.
    """
    path = os.path.abspath(path or default_path())
    if os.path.lexists(path) and not force:
        raise Refused(f"{path} is there already (--force replaces it and keeps it as {path}.old)")
    answers = Answers(
        *(given[key] for key in ("email_to", "email_from", "smtp_host", "smtp_port")),  # type: ignore[arg-type]
        *(given[key] for key in ("smtp_security", "smtp_username", "smtp_password_file")),
    )
    asking = sys.stdin.isatty() and sys.stdout.isatty() and not no_questions and form == "text"
    password = _ask(answers, os.path.join(os.path.dirname(path), "smtp-password")) if asking else None
    written = []
    try:
        make_directories(os.path.dirname(path))
        if password is not None and answers.password_file is not None:
            _write(answers.password_file, password + "\n", 0o600)
            written.append(answers.password_file)
        if os.path.lexists(path):
            os.replace(path, path + ".old")
        _write(path, rendered(answers), 0o644)
        written.append(path)
    except OSError as error:
        raise Refused(f"cannot write {error.filename or path} ({error.strerror})") from None
    settings, problems = config.load(config=path)
    if form == "json":
        print_json({"path": path, "problems": [str(problem) for problem in problems]}, indent=1)
        return
    for name in written:
        click.echo(f"wrote {name}" + ("" if name == path else " (readable by you alone)"))
    for problem in problems:
        click.echo(f"gpualert: {problem}", err=True)
    if asking and answers.host and answers.to and click.confirm("Send a test mail?", default=True):
        test_mail(settings)


def _ask(answers: Answers, password_file: str) -> str | None:
    """Ask for what was not given, each until the answer is one; the password, where one is wanted."""
    if answers.to is None:
        text = "Mail failures to (several with commas; empty for nobody)"
        answers.to = click.prompt(text, default="", value_proc=_addresses) or None
    if answers.to is None:
        return None
    if answers.host is None:
        answers.host = click.prompt("Mail server", value_proc=_host)
    if answers.security is None:
        choice = click.Choice(["starttls", "tls", "none"])
        answers.security = click.prompt("Security", type=choice, default="starttls")
    if answers.port is None:
        usual = {"starttls": 587, "tls": 465, "none": 25}[answers.security or "starttls"]
        answers.port = click.prompt("Port", type=click.IntRange(1, 65535), default=usual)
    if answers.username is None:
        answers.username = click.prompt("User name (empty for none)", default="") or None
    if answers.from_ is None:
        guess = answers.username if answers.username and valid_address(answers.username) else ""
        text = "Mails come from (empty for gpualert@<host>)"
        answers.from_ = click.prompt(text, default=guess, value_proc=_address) or None
    if answers.username is None or answers.password_file is not None:
        return None
    if os.path.lexists(password_file) and not click.confirm(
        f"{password_file} is there already. Replace the password in it?", default=False
    ):
        answers.password_file = password_file
        return None
    password: str = click.prompt("Password (not shown)", hide_input=True, default="", show_default=False)
    if not password:
        return None
    answers.password_file = password_file
    return password


def _write(path: str, text: str, mode: int) -> None:
    """Write a new file that has its mode from its first moment."""
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, mode)
            file.write(text)
        os.replace(f"{path}.new", path)
    except OSError:
        os.unlink(f"{path}.new")  # it may hold a password
        raise
