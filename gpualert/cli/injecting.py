"""``gpualert inject``: puts gpualert into manifests, as a filter, a Helm post-renderer, or a kustomize function."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpualert import __version__
from gpualert.cli.output import Refused
from gpualert.cluster.choices import ChoiceError, Options, told
from gpualert.cluster.inject import InjectError, inject_document
from gpualert.cluster.manifests import ManifestError, rewrite

_BYTE_ORDER_MARK = "\ufeff"


@click.command(name="inject")
@click.option("-f", "--filename", multiple=True, metavar="FILE", help="Manifests to read; - or none for stdin.")
@click.option("--image", default=f"gpualert:{__version__}", show_default=True, help="The image with the bundle.")
@click.option("--image-pull-policy", metavar="POLICY", help="Its pull policy: Always, IfNotPresent or Never.")
@click.option("--image-pull-secret", multiple=True, metavar="NAME", help="A secret to pull it with.")
@click.option(
    "--container", multiple=True, metavar="NAME", help="A container to wrap; '*' for all. Default: the pod's first."
)
@click.option(
    "--log-volume", default="emptyDir", show_default=True, metavar="VOLUME",
    help="Where runs are kept: emptyDir, pvc:CLAIM, hostPath:PATH, or none.",
)  # fmt: skip
@click.option("--log-dir", default="/var/log/gpualert", show_default=True, metavar="DIR", help="Where it is mounted.")
@click.option("--config-map", metavar="NAME", help="A ConfigMap with gpualert's config.toml.")
@click.option("--smtp-secret", metavar="NAME", help="A Secret with the mail server's password under the key password.")
@click.option("--notify", metavar="WHEN", help="When to tell somebody: failure, always or never.")
@click.option("--survivor", is_flag=True, help="Add a native sidecar that reports what the container cannot itself.")
@click.option("--skip-unwrappable", is_flag=True, help="Leave a pod that cannot be wrapped as it is, and say so.")
@click.option("--remove", "take_out", is_flag=True, help="Take gpualert out again, exactly.")
def inject_command(filename: tuple[str, ...], skip_unwrappable: bool, take_out: bool, **said: Any) -> None:
    """Put gpualert into the pods of manifests: an init container brings the bundle, the command runs under it.

    Reads Pods, Jobs, CronJobs, JobSets, Kubeflow's jobs, Deployments, StatefulSets, lists, and any other kind that
    holds a pod template. Annotations on workload or pod say the same for one of them: gpualert.dev/inject: "false",
    and gpualert.dev/ with the name of an option: container, log-volume, log-dir, config-map, smtp-secret, notify,
    survivor, image, image-pull-policy, image-pull-secret.

    \b
    gpualert inject -f job.yaml | kubectl apply -f -
    helm install x ./chart --post-renderer gpualert --post-renderer-args inject
    """
    notes: list[str] = []
    try:
        options = told(Options(said["image"]), _texts(said), lambda choice: f"--{choice.name}")
        text = _joined([_read(name) for name in filename or ("-",)])
        mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""

        def change(document: str) -> str:
            return inject_document(document, options, take_out=take_out, skip=skip_unwrappable, notes=notes)

        written = mark + rewrite(text.removeprefix(mark), change)
    except (ChoiceError, InjectError, ManifestError) as error:
        raise Refused(str(error)) from None
    for note in notes:
        click.echo(f"gpualert: {note}", err=True)
    sys.stdout.buffer.write(written.encode())


def _texts(said: dict[str, Any]) -> dict[str, str]:
    """The options that were given, by their names, as an annotation would say them."""
    found: dict[str, str] = {}
    for field, value in said.items():
        if value not in (None, False, ()):
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            found[field.replace("_", "-")] = text
    return found


def _joined(texts: list[str]) -> str:
    """The texts of several files as one stream."""
    joined = texts[0]
    for text in texts[1:]:
        joined += ("" if joined.endswith("\n") or not joined else "\n") + "---\n" + text.removeprefix(_BYTE_ORDER_MARK)
    return joined


def _read(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else open(name, "rb").read()  # noqa: SIM115  (read at once)
        return data.decode()
    except OSError as error:
        raise Refused(f"cannot read {name} ({error.strerror})") from None
    except UnicodeDecodeError:
        raise Refused(f"{name} is not UTF-8") from None
