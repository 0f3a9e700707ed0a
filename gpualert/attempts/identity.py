"""What makes two runs attempts of one job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpualert.attempts.fingerprint import without_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

# A CronJob calls its Jobs <name>-<minutes since 1970> (Kubernetes, "pkg/controller/cronjob/utils.go").
_SCHEDULED = re.compile(r"-\d{8}$")


def scheduled_name(job: str) -> str:
    """The name that all Jobs of a CronJob share; any other name as it is.

    Args:
        job: A Job's name.
    """
    return _SCHEDULED.sub("", job)


def of(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Whose run it is, and which rank of it: runs with the same answer are attempts of one job, or ranks side by side.

    In Kubernetes the namespace with the Job, or the pod, and the container; in Slurm the job's name with the command;
    else the name that somebody gave, or, where the name is only the command's, the command and its directory.

    Args:
        run: What ``run.json`` holds.
    """
    name, argv, rank = str(run.get("name") or ""), [str(part) for part in run.get("argv") or []], run.get("rank")
    namespace, job, pod = (str(run.get(key) or "") for key in ("namespace", "job", "pod"))
    command = [without_ids(part) for part in argv]
    if namespace and (job or pod):
        found = ["kubernetes", namespace, scheduled_name(job) if job else pod, str(run.get("container") or "")]
    elif run.get("slurm_job_id"):
        number = str(run["slurm_job_id"])
        found = ["slurm", name, *(part.replace(number, "<job>") for part in command)]
    elif name and name != _base(argv):
        found = ["name", name]
    else:
        found = ["command", str(run.get("cwd") or ""), *command]
    return (*found, f"rank {rank}" if isinstance(rank, int) else "")


def _base(argv: list[str]) -> str:
    """The name that a run has when nobody gives it one."""
    return argv[0].rstrip("/").rpartition("/")[2] if argv else ""
