"""Writes ``k8s/policy/policy.yaml``, which is what the chart renders: ``python helm/policy.py``; needs helm."""

from __future__ import annotations

import pathlib
import subprocess

SOURCE = pathlib.Path(__file__).resolve().parent.parent
POLICY = SOURCE / "k8s" / "policy" / "policy.yaml"
HEAD = "# What helm/gpualert renders (python helm/policy.py). Pods of `training` find the ConfigMap gpualert there.\n"
VALUES = "admission.enabled=true,admission.apiVersion=v1beta1,admission.survivor=true"
OF_HELM = ("# Source:", "    app.kubernetes.io/managed-by:", "    helm.sh/chart:")


def rendered() -> str:
    """The policy and its bindings, without what is Helm's own."""
    argv = ["helm", "template", "gpualert", str(SOURCE / "helm" / "gpualert"), "--namespace", "training"]
    argv += ["--show-only", "templates/admission.yaml", "--set", VALUES]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return HEAD + "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith(OF_HELM))


if __name__ == "__main__":
    POLICY.write_text(rendered())
