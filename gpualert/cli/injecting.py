"""``gpualert inject``: puts gpualert into manifests, as a filter, a Helm post-renderer, or a kustomize function."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from gpualert import __version__
from gpualert.cli.output import Refused
from gpualert.cluster import podspecs
from gpualert.cluster.inject import InjectError, Options, inject, is_injected, remove, wanted
from gpualert.cluster.manifests import ManifestError, rewrite

RESOURCE_LIST = "ResourceList"


@click.command(name="inject")
@click.option("-f", "--filename", multiple=True, metavar="FILE", help="Manifests to read; - or none for stdin.")
@click.option("--image", default=f"gpualert:{__version__}", show_default=True, help="The image with the bundle.")
@click.option("--image-pull-policy", type=click.Choice(["Always", "IfNotPresent", "Never"]), help="Its pull policy.")
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
@click.option("--notify", type=click.Choice(["failure", "always", "never"]), help="When to tell somebody.")
@click.option("--survivor", is_flag=True, help="Add a native sidecar that reports what the container cannot itself.")
@click.option("--skip-unwrappable", is_flag=True, help="Leave a pod that cannot be wrapped as it is, and say so.")
@click.option("--remove", "take_out", is_flag=True, help="Take gpualert out again, exactly.")
def inject_command(
    filename: tuple[str, ...],
    image: str,
    image_pull_policy: str | None,
    image_pull_secret: tuple[str, ...],
    container: tuple[str, ...],
    skip_unwrappable: bool,
    take_out: bool,
    **told: Any,
) -> None:
    """Put gpualert into the pods of manifests: an init container brings the bundle, the command runs under it.

    Reads Pods, Jobs, CronJobs, JobSets, Kubeflow's jobs, Deployments, StatefulSets, lists, and any other kind that
    holds a pod template. Annotations on workload or pod say the same for one of them: gpualert.dev/inject: "false",
    gpualert.dev/container, log-volume, log-dir, config-map, smtp-secret, notify, survivor, image.

    \b
    gpualert inject -f job.yaml | kubectl apply -f -
    helm install x ./chart --post-renderer gpualert --post-renderer-args inject
    """
    options = Options(image, image_pull_policy, image_pull_secret, container, **told)
    text = "\n---\n".join(_read(name) for name in filename or ("-",))
    skipped: list[str] = []

    def change(document: Any) -> bool:
        return _change(document, options, skipped if skip_unwrappable else None, take_out=take_out)

    try:
        written = rewrite(text, change)
    except (InjectError, ManifestError) as error:
        raise Refused(str(error)) from None
    for reason in skipped:
        click.echo(f"gpualert: {reason}: left as it is", err=True)
    sys.stdout.write(written)


def _read(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else open(name, "rb").read()  # noqa: SIM115  (read at once)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise Refused(f"cannot read {name} ({error.strerror})") from None
    except UnicodeDecodeError:
        raise Refused(f"{name} is not UTF-8") from None


def _change(document: Any, options: Options, skipped: list[str] | None, *, take_out: bool) -> bool:
    """Change one document; whether it was."""
    if isinstance(document, dict) and document.get("kind") == RESOURCE_LIST:  # a kustomize function's input
        told = (document.get("functionConfig") or {}).get("data") or {}
        options = _with(options, told)
        results = [_change(item, options, skipped, take_out=take_out) for item in document.get("items") or []]
        return any(results)
    changed = False
    for template in list(podspecs.find(document)):
        if take_out:
            changed |= remove(template)
            continue
        if not wanted(template):
            changed |= is_injected(template) and remove(template)
            continue
        try:
            inject(template, options)
        except InjectError as error:
            if skipped is None:
                raise
            skipped.append(str(error))
        else:
            changed = True
    return changed


def _with(options: Options, told: dict[str, Any]) -> Options:
    """Options with those of a kustomize function's configuration over them (``image: ...``, ``logVolume: ...``)."""
    names = {"image": "image", "logVolume": "log_volume", "logDir": "log_dir", "configMap": "config_map"}
    names |= {"smtpSecret": "smtp_secret", "notify": "notify"}
    changes: dict[str, Any] = {names[key]: str(value) for key, value in told.items() if key in names}
    if "container" in told:
        changes["containers"] = tuple(str(told["container"]).split(","))
    if "survivor" in told:
        changes["survivor"] = str(told["survivor"]).lower() == "true"
    return replace(options, **changes)
