"""What is known about a run before it starts: who, where, which rank of which job."""

from __future__ import annotations

import posix
import sys

from gpualert import __version__
from gpualert.rundir.clock import rfc3339
from gpualert.rundir.writer import SCHEMA
from gpualert.supervisor import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpualert.supervisor.redaction import Redaction
    from gpualert.supervisor.settings import Settings

_SERVICE_ACCOUNT_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

# The first variable that is set decides. GPUALERT_* is what gpualert inject sets by the downward API.
_TEXTS = {
    "pod": ("GPUALERT_POD_NAME", "POD_NAME"),
    "namespace": ("GPUALERT_POD_NAMESPACE", "POD_NAMESPACE"),
    "node": ("GPUALERT_NODE_NAME", "NODE_NAME", "SLURMD_NODENAME"),
    "job": ("GPUALERT_JOB_NAME", "JOB_NAME", "SLURM_JOB_NAME"),
    "container": ("GPUALERT_CONTAINER_NAME",),
}
_RANKS = (
    # launcher, a variable that shows it, rank, local rank, world size
    ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpi", "PMI_RANK", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("torchrun", "RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("slurm", "SLURM_PROCID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ("kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX", "", "GPUALERT_COMPLETIONS"),
)

_ONLY_QUOTED = ("name", "kubernetes.termination_log")
"""Options that the reporter does not act on; in the others (``config``, globs) a mask would break what they name."""


class Environment:
    """Environment variables as text."""

    __slots__ = ("_variables",)

    def __init__(self, variables: Mapping[bytes, bytes]) -> None:
        self._variables = variables

    def text(self, *names: str) -> str | None:
        """The first of these that is set and not empty."""
        for name in names:
            value = self._variables.get(name.encode())
            if value:
                return value.decode("utf-8", "surrogateescape")
        return None

    def has(self, name: str) -> bool:
        """Whether a variable is set, be it to nothing."""
        return name.encode() in self._variables

    def number(self, name: str) -> int | None:
        """A variable that is a whole number; None where it is unset or something else."""
        value = self.text(name) if name else None
        return int(value) if value and value.isdigit() and len(value) < 10 else None


def rank_facts(environment: Environment) -> dict[str, object]:
    """``rank``, ``local_rank``, ``world_size`` and ``launcher``; None where the environment tells nothing.

    Sources: PyTorch "torchrun" (RANK, LOCAL_RANK, WORLD_SIZE), Slurm ``srun`` (SLURM_PROCID, SLURM_LOCALID,
    SLURM_NTASKS), Open MPI "Environment variables" (OMPI_COMM_WORLD_*), MPICH's Hydra (PMI_*), Kubernetes "Indexed
    Job" (JOB_COMPLETION_INDEX).
    """
    for launcher, shown_by, rank, local_rank, world_size in _RANKS:
        if environment.text(shown_by) is None or environment.number(rank) is None:
            continue
        if launcher == "slurm" and (environment.number(world_size) or 1) < 2:
            continue  # a batch script has SLURM_PROCID 0, and is no rank of anything
        return {
            "rank": environment.number(rank),
            "local_rank": environment.number(local_rank),
            "world_size": environment.number(world_size),
            "launcher": launcher,
        }
    return {"rank": None, "local_rank": None, "world_size": None, "launcher": None}


_GROUPS = (
    # What ranks of one job have in common; the variables of one line together make the id.
    ("", ("GPUALERT_GROUP_ID",)),
    ("slurm-", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    ("torchrun-", ("TORCHELASTIC_RUN_ID",)),
    ("mpi-", ("PMIX_NAMESPACE",)),
    ("mpi-", ("OMPI_MCA_ess_base_jobid",)),
    ("mpi-", ("PMI_JOBID",)),
    ("job-", ("GPUALERT_JOB_UID",)),
    ("torchrun-", ("MASTER_ADDR", "MASTER_PORT")),
)
_NO_ID = ("", "none")  # torchrun's --rdzv-id when nobody gave one
_ID_MAX = 100


def group_of(environment: Environment) -> str | None:
    """What all ranks of this job have in common, as the name of a directory; None where nothing tells.

    Sources: those of ``rank_facts``; TORCHELASTIC_RUN_ID and MASTER_* (PyTorch "torchrun"), PMIX_NAMESPACE (PMIx
    standard), SLURM_STEP_ID (``srun``).
    """
    for prefix, names in _GROUPS:
        parts = [environment.text(name) or "" for name in names]
        if not any(part in _NO_ID for part in parts):
            text = prefix + "-".join(parts)
            clean = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text)
            return clean[:_ID_MAX].lstrip(".") or None
    return None


_GPU_LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NO_GPU = ("-1", "NoDevFiles", "none", "void")


def gpus(environment: Environment) -> int | None:
    """How many GPUs the command can see; None where nothing tells.

    Sources: NVIDIA's and AMD's lists of visible devices, Slurm's SLURM_GPUS_ON_NODE, the NVIDIA driver's /proc.
    """
    for name in _GPU_LISTS:
        if environment.has(name):
            listed = [part.strip() for part in (environment.text(name) or "").split(",") if part.strip()]
            return 0 if listed[:1] and listed[0] in _NO_GPU else len(listed)
    told = environment.number("SLURM_GPUS_ON_NODE")
    if told is not None:
        return told
    try:
        return len(posix.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return None


def name_of(settings: Settings, environment: Environment, redaction: Redaction) -> str:
    """The run's name: as given, else of the Job or pod, else of the Slurm job, else the command's base name.

    Args:
        settings: What ``gpualert run`` was told.
        environment: The environment variables.
        redaction: Masks secrets in it.
    """
    given = settings.text("name")
    known = given or environment.text(
        "GPUALERT_JOB_NAME", "JOB_NAME", "GPUALERT_POD_NAME", "POD_NAME", "SLURM_JOB_NAME"
    )
    if known:
        return redaction.mask(known)
    command = redaction.mask(settings.command[0])  # a secret may hold a slash
    return command.rstrip("/").rpartition("/")[2] or command or "run"


def _start_ticks() -> int | None:
    """When we started, in clock ticks since boot: with the process id it names us for as long as the node is up."""
    # The name in parentheses may hold anything, also spaces and parentheses.
    after_name = (files.read("/proc/self/stat") or b"").rpartition(b")")[2].split()
    return int(after_name[19]) if len(after_name) > 19 else None


def _link(path: str) -> str | None:
    try:
        return posix.readlink(path)
    except OSError:
        return None


def _working_directory() -> str | None:
    try:
        return posix.getcwd()
    except OSError:
        return None  # somebody has removed it


def collect(
    settings: Settings, environment: Environment, redaction: Redaction, started_us: int, run_id: str, cgroup: object
) -> dict[str, object]:
    """What ``run.json`` holds.

    Args:
        settings: What ``gpualert run`` was told.
        environment: The environment variables.
        redaction: Masks secrets in what is quoted.
        started_us: When we started, in microseconds since 1970.
        run_id: The run's id.
        cgroup: Version and limit of the control group, or None.
    """
    facts: dict[str, object] = {
        "schema": SCHEMA,
        "run_id": run_id,
        "name": name_of(settings, environment, redaction),
        "argv": [redaction.mask(argument) for argument in settings.command],
        "cwd": _working_directory(),
        "host": posix.uname().nodename,
        "pid": posix.getpid(),
        "pid_start": _start_ticks(),
        "pid_ns": (_link("/proc/self/ns/pid") or "").strip("pid:[]") or None,
        "boot_id": files.text("/proc/sys/kernel/random/boot_id"),
        "uid": posix.getuid(),
        "started_at": rfc3339(started_us),
        "gpualert": __version__,
        "python": sys.version.split()[0],
    }
    for key, names in _TEXTS.items():
        told = environment.text(*names)
        facts[key] = redaction.mask(told) if told else None
    if facts["namespace"] is None:
        facts["namespace"] = files.text(_SERVICE_ACCOUNT_NAMESPACE)
    if facts["pod"] is None and environment.text("KUBERNETES_SERVICE_HOST"):
        facts["pod"] = facts["host"]
    facts["attempt"] = environment.number("SLURM_RESTART_COUNT") or environment.number("TORCHELASTIC_RESTART_COUNT")
    facts["slurm_job_id"] = environment.text("SLURM_JOB_ID")
    facts.update(rank_facts(environment))
    facts["group"] = group_of(environment) if settings.text("group.dir") else None
    facts["gpus"] = gpus(environment)
    facts["cgroup"] = cgroup
    options = {key: value for key, value in settings.given.items() if key != "log.dir"}
    for key in _ONLY_QUOTED:
        value = options.get(key)
        if isinstance(value, str):
            options[key] = redaction.mask(value)
    receiver = options.get("telemetry.otlp")
    if isinstance(receiver, str):
        del options["telemetry.otlp"]  # a password or a token may be in it; the reporter is told otherwise
    facts["options"] = options
    return facts
