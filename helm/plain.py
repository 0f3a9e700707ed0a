"""Writes the plain manifests that are what the chart renders: ``python helm/plain.py``; needs helm."""

from __future__ import annotations

import pathlib
import subprocess
from dataclasses import dataclass

SOURCE = pathlib.Path(__file__).resolve().parent.parent
OF_HELM = ("# Source:", "    app.kubernetes.io/managed-by:", "    helm.sh/chart:")


@dataclass(frozen=True)
class Plain:
    """One plain manifest.

    Attributes:
        path: Where it is.
        head: What stands above it.
        templates: The chart's templates that make it.
        namespace: The release's namespace.
        values: The chart's values.
    """

    path: pathlib.Path
    head: str
    templates: tuple[str, ...]
    namespace: str
    values: str

    def rendered(self) -> str:
        """The manifest, without what is Helm's own."""
        argv = ["helm", "template", "gpualert", str(SOURCE / "helm" / "gpualert"), "--namespace", self.namespace]
        argv += [word for name in self.templates for word in ("--show-only", f"templates/{name}")]
        done = subprocess.run([*argv, "--set", self.values], check=True, capture_output=True, text=True)
        lines = done.stdout.splitlines(keepends=True)
        return self.head + "".join(
            line for line in lines if not line.lstrip(" ").startswith(tuple(map(str.strip, OF_HELM)))
        )


PLAIN = (
    Plain(
        SOURCE / "k8s" / "policy" / "policy.yaml",
        "# What helm/gpualert renders (python helm/plain.py). Pods of `training` find the ConfigMap gpualert there.\n",
        ("admission.yaml",),
        "training",
        "admission.enabled=true,admission.apiVersion=v1beta1,admission.survivor=true",
    ),
    Plain(
        SOURCE / "k8s" / "watch" / "watch.yaml",
        "# What helm/gpualert renders (python helm/plain.py). Its configuration is the ConfigMap of k8s/base.\n",
        ("watch.yaml",),
        "gpualert",
        "watch.enabled=true",
    ),
)

if __name__ == "__main__":
    for one in PLAIN:
        one.path.write_text(one.rendered())
