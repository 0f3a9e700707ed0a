"""``gpualert check``, ``flush``, ``version`` and ``completion``."""

from __future__ import annotations

import os
import platform
import sys
import time
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

import click
from click.shell_completion import get_completion_class

from gpualert import __version__, config
from gpualert.cli.output import Refused, harmless
from gpualert.cli.reading import directories, log_dir_option
from gpualert.diagnosis import Rulebook, RuleError
from gpualert.notify import delivery, message, spool
from gpualert.notify.telling import valid_address

FLUSH_DEADLINE_S = 300.0
TEST_DEADLINE_S = 30.0


@click.command()
@log_dir_option
def flush(log_dir: str | None) -> None:
    """Send the mails that no server has taken yet, each once.

    Exit status 1 when some are left.
    """
    settings, _ = config.load()
    server = delivery.Server.from_settings(settings)
    deadline = time.monotonic() + FLUSH_DEADLINE_S
    left = total = 0
    for place in directories(log_dir):
        for result in spool.flush(place, server, deadline):
            total += 1
            left += result.outcome not in ("sent", "busy")
            detail = f" ({result.detail})" if result.detail else ""
            to = f" to {', '.join(result.to)}" if result.to else ""
            click.echo(harmless(f"{result.outcome}{to}: {result.path}{detail}"))
    if not total:
        click.echo("nothing is waiting to be sent")
    if left:
        sys.exit(1)


@click.command()
@click.option("--config", "path", metavar="FILE", help="Check this file instead of those in the usual places.")
@click.option("--send-test-mail", is_flag=True, help="Send a mail to the configured addresses.")
def check(path: str | None, send_test_mail: bool) -> None:
    """Check configuration, environment and rules strictly; exit status 1 when anything is wrong."""
    settings, problems = config.load(config=path)
    lines = [str(problem) for problem in problems]
    lines += [
        f"email.to: {address!r} is not a mail address" for address in settings.email.to if not valid_address(address)
    ]
    if settings.email.from_ is not None and not valid_address(settings.email.from_):
        lines.append(f"email.from: {settings.email.from_!r} is not a mail address")
    if settings.email.to and settings.smtp.host is None:
        lines.append("smtp.host is not set: mail would only be spooled")
    if settings.smtp.ca_file is not None and not os.access(settings.smtp.ca_file, os.R_OK):
        lines.append(f"smtp.ca_file: {settings.smtp.ca_file} cannot be read")
    try:
        Rulebook.load(tuple(settings.diagnosis.rules))
    except RuleError as error:
        lines.append(str(error))
    for line in lines:
        click.echo(harmless(f"gpualert: {line}"), err=True)
    if send_test_mail:
        _send_test_mail(settings)
    if lines:
        sys.exit(1)
    if not send_test_mail:
        click.echo("the configuration is right")


def _send_test_mail(settings: config.Settings) -> None:
    recipients = [address for address in settings.email.to if valid_address(address)]
    if not recipients:
        raise Refused("there is nobody to mail (email.to)")
    sender = settings.email.from_ or message.default_sender()
    mail = EmailMessage(message.POLICY)
    mail["Subject"] = "[gpualert] test mail"
    mail["From"], mail["To"], mail["Date"] = sender, ", ".join(recipients), formatdate()
    mail["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2] or None)
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"gpualert on {platform.node()} can send mail.\n")
    server = delivery.Server.from_settings(settings)
    try:
        accepted = delivery.deliver(mail, sender, recipients, server, time.monotonic() + TEST_DEADLINE_S)
    except delivery.DeliveryError as error:
        raise Refused(f"the test mail was not sent: {error}") from None
    for who, reason in accepted.refused.items():
        click.echo(harmless(f"gpualert: {who} was refused: {reason}"), err=True)
    taken = [who for who in recipients if who not in accepted.refused]
    click.echo(f"{server.host} has taken the test mail for {', '.join(taken)}")
    if accepted.refused:
        sys.exit(1)


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"gpualert {__version__} (Python {platform.python_version()}, {platform.system()} {platform.machine()})")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes gpualert's commands and options.

    \b
    example
      gpualert completion bash > /etc/bash_completion.d/gpualert
    """
    from gpualert.cli.main import cli  # noqa: PLC0415

    made = get_completion_class(shell)
    if made is None:
        raise Refused(f"there is no completion for {shell}")
    click.echo(made(cli, {}, "gpualert", "_GPUALERT_COMPLETE").source())
