"""``gpualert watch``: incidents of a cluster, one for each failure of a job."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from gpualert import config
from gpualert.cli.output import Refused, harmless
from gpualert.diagnosis import Rulebook, RuleError
from gpualert.report import making

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
LEASE = "gpualert-watch"
SAY_AGAIN_S = 300.0


def _speaker() -> Callable[[str], None]:
    """Says a line on stderr; the same one not again within five minutes."""
    said: dict[str, float] = {}
    lock = threading.Lock()

    def say(line: str) -> None:
        now = time.monotonic()
        with lock:
            if now - said.get(line, -SAY_AGAIN_S) < SAY_AGAIN_S:
                return
            if len(said) > 1000:
                said.clear()
            said[line] = now
        sys.stderr.write(f"gpualert: {harmless(line)}\n")
        sys.stderr.flush()

    return say


def _own_namespace() -> str | None:
    try:
        with open(NAMESPACE_FILE, encoding="utf-8") as file:
            return file.read().strip() or None
    except OSError:
        return None


@click.command()
@click.option(
    "--kubeconfig", metavar="FILE", help="How to reach the cluster. Default: the pod's account, then ~/.kube/config."
)
@click.option("--config", "config_file", metavar="FILE", help="Configuration file, as for gpualert run.")
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Watch this namespace alone; may be given several times. Default: all.",
)
@click.option(
    "--listen",
    default=":9090",
    show_default=True,
    metavar="[ADDRESS]:PORT",
    help="Where to serve /metrics, /healthz and /readyz; empty for nowhere.",
)
@click.option(
    "--lease-namespace",
    metavar="NAME",
    help="Where replicas elect who acts. Default: the pod's own; elsewhere there is no election.",
)
@click.option("--spool", metavar="DIR", help="Where mails wait for their server. Default: a temporary directory.")
@click.option("--dry-run", is_flag=True, help="Print mails instead of sending them.")
def watch(
    kubeconfig: str | None,
    config_file: str | None,
    namespaces: tuple[str, ...],
    listen: str,
    lease_namespace: str | None,
    spool: str | None,
    dry_run: bool,
) -> None:
    """Watch a cluster, and tell once of each job that fails: which rank broke first, on which node, and why.

    Needs the image gpualert-watch, or pip install 'gpualert[cluster]'. What has been told is marked on the jobs
    themselves, so it may be restarted at any time, and two replicas may run side by side.
    """
    try:
        from gpualert.cluster.api import Api  # noqa: PLC0415  (the extra may be missing)
        from gpualert.cluster.apierror import ApiError  # noqa: PLC0415
        from gpualert.cluster.lease import Lease  # noqa: PLC0415
        from gpualert.watch.watcher import Watcher  # noqa: PLC0415
    except ImportError as error:
        raise Refused(f"needs the image gpualert-watch, or pip install 'gpualert[cluster]' ({error.name})") from None
    say = _speaker()
    settings, problems = config.load(config=config_file)
    for problem in problems:
        say(str(problem))
    if namespaces:
        settings = settings.model_copy(
            update={"watch": settings.watch.model_copy(update={"namespaces": [*namespaces]})}
        )
    if dry_run:
        settings = settings.model_copy(update={"dry_run": True})
    try:
        rules = Rulebook.load(tuple(settings.diagnosis.rules))
    except RuleError as error:
        say(f"{error}: own rules are ignored")
        rules = Rulebook.load()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    where = lease_namespace or _own_namespace()
    try:
        api = Api.connect(kubeconfig)
        lease = Lease(api, where, LEASE, os.environ.get("GPUALERT_POD_NAME"), say=say) if where else None
        spool = spool or os.path.join(tempfile.gettempdir(), "gpualert-watch")
        watcher = Watcher(api, settings, rules, making.redaction(), spool, lease, None, say)
        endpoints = _endpoints(listen, watcher)
        watcher.follow()
    except ApiError as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(error.strerror or str(error)) from None
    if lease is not None:
        lease.start()
    if endpoints is not None:
        endpoints.start()
    thread = threading.Thread(target=watcher.run, name="watcher", daemon=True)
    thread.start()
    while not stop.wait(1.0) and thread.is_alive():
        continue
    watcher.stop()
    thread.join(10)
    if lease is not None:
        lease.stop()
    if endpoints is not None:
        endpoints.stop()
    api.close()
    if not stop.is_set():
        raise Refused("the watcher has ended by a fault inside gpualert")


def _endpoints(listen: str, watcher: Any) -> Any:
    """The HTTP server for metrics and probes; None where none is wanted."""
    if not listen:
        return None
    from gpualert.cluster.health import Endpoints  # noqa: PLC0415  (as above)
    from gpualert.cluster.metrics import Metrics  # noqa: PLC0415

    address, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise Refused(f"--listen {listen}: must be [ADDRESS]:PORT, such as :9090")
    metrics = Metrics(
        watcher.api.requests, lambda: max((w.lag for w in watcher.watches), default=0.0), lambda: watcher.leads
    )
    watcher.metrics = metrics
    alive = {"the watcher": lambda: all(watch.alive for watch in watcher.watches)}
    ready = {"the cluster": lambda: bool(watcher.synced)}
    return Endpoints(address.strip("[]"), int(port), metrics=metrics.page, alive=alive, ready=ready)
