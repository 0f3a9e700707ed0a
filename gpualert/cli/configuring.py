"""``gpualert check``, ``version`` and ``completion``."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import time
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

import click
from click.shell_completion import get_completion_class

from gpualert import __version__, config
from gpualert.cli import readiness
from gpualert.cli.output import Refused, format_option, harmless, print_json
from gpualert.diagnosis import Rulebook, RuleError
from gpualert.notify import delivery, mailing, message, services
from gpualert.notify.mailing import valid_address

TEST_DEADLINE_S = 30.0


@click.command()
@click.option("--config", "path", metavar="FILE", help="Check this file instead of those in the usual places.")
@click.option("--send-test-mail", is_flag=True, help="Send a mail to the configured addresses.")
@format_option
def check(path: str | None, send_test_mail: bool, form: str) -> None:
    """Check configuration, environment and rules strictly; exit status 1 when anything is wrong.

    Also says what can be measured here beside a run: GPUs, stacks of a hang, the kernel's log.
    """
    settings, problems = config.load(config=path)
    lines = mistakes(settings, problems)
    if form == "json":
        told = {"problems": lines, "settings": settings.model_dump(mode="json", by_alias=True)}
        print_json({**told, "machine": readiness.found()}, indent=1)
    for line in lines if form == "text" else []:
        click.echo(harmless(f"gpualert: {line}"), err=True)
    if send_test_mail:
        test_mail(settings)
    if lines:
        sys.exit(1)
    if not send_test_mail and form == "text":
        click.echo("the configuration is right")
        for line in readiness.lines(readiness.found()):
            click.echo(harmless(line))


def mistakes(settings: config.Settings, problems: list[config.Problem]) -> list[str]:
    """Everything that is wrong with a configuration, a line each.

    Args:
        settings: What was read.
        problems: What could not be.
    """
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
    urls, told = services.addresses(settings)
    lines += [entry.detail for entry in told]
    if urls and importlib.util.find_spec("apprise") is None:
        lines.append("notify.urls needs the extra: pip install 'gpualert[notify]'")
    if settings.webhook.url is not None and not settings.webhook.url.startswith(("http://", "https://")):
        lines.append("webhook.url must be http://... or https://...")
    return lines


def test_mail(settings: config.Settings) -> None:
    """Send a mail to the configured addresses, and say what became of it.

    Args:
        settings: The settings.

    Raises:
        Refused: There is nobody to mail, or no server took it.
    """
    recipients = [address for address in settings.email.to if valid_address(address)]
    if not recipients:
        raise Refused("there is nobody to mail (email.to)")
    sender = mailing.sender_of(settings)
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
@format_option
def version(form: str) -> None:
    """Print the version."""
    python, system, machine = platform.python_version(), platform.system(), platform.machine()
    if form == "json":
        print_json({"gpualert": __version__, "python": python, "system": system, "machine": machine})
        return
    click.echo(f"gpualert {__version__} (Python {python}, {system} {machine})")


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
