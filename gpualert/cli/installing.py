"""``gpualert install``: copies the standalone bundle into a directory, from an init container into a shared volume."""

from __future__ import annotations

import os
import time

import click

from gpualert import bundle
from gpualert.cli.output import Refused, format_option, print_json


@click.command()
@click.argument("directory")
@format_option
def install(directory: str, form: str) -> None:
    """Copy the standalone bundle into DIRECTORY, so that DIRECTORY/bin/gpualert runs in any image that mounts it.

    Made for an init container and an emptyDir. Every file is checked against its hash, and the copy is started once,
    before it takes its place; nothing is ever half there. A bundle that is there already is replaced.
    """
    source = bundle.root()
    if source is None:
        raise Refused("this gpualert is no standalone bundle: install from the image gpualert (docs/bundle.md)")
    directory = os.path.abspath(directory)
    began = time.monotonic()
    try:
        copied = bundle.copy(source, directory)
    except bundle.BundleError as error:
        raise Refused(str(error)) from None
    took = time.monotonic() - began
    if form == "json":
        print_json({"directory": directory, "files": copied.files, "bytes": copied.size, "seconds": round(took, 3)})
        return
    click.echo(f"installed {copied.files} files ({copied.size / 1e6:.0f} MB) in {directory} in {took:.1f} s")
