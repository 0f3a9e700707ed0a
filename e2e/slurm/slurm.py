"""A real Slurm on loopback: munged, slurmctld and two slurmds, as processes of the test, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from conftest import PATIENCE_S, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")

CONFIGURATION = """\
ClusterName=e2e
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={base}/munge.sock
CredType=cred/munge
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd-%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
DefMemPerCPU=10
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,bf_hetjob_immediate
MailProg=/bin/true
MinJobAge=3600
KillWait=2
ReturnToService=1
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=16 RealMemory=2000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=16 RealMemory=2000
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PreemptMode=OFF PriorityTier=5
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Slurm:
    """A cluster of two nodes that are this machine."""

    base: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUALERT_", "PYTHON", "SLURM_", "SBATCH_"))}
        return {**kept, "SLURM_CONF": str(self.base / "slurm.conf")}

    def start(self) -> None:
        host = socket.gethostname().partition(".")[0]
        ports = [free_port() for _ in range(3)]
        (self.base / "state").mkdir()
        (self.base / "slurm.conf").write_text(
            CONFIGURATION.format(host=host, base=self.base, controller=ports[0], first=ports[1], second=ports[2])
        )
        key = self.base / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._begin("munged", "--foreground", "--force", *(f"--{k}={self.base}/munge.{v}" for k, v in files.items()))
        wait_until(lambda: (self.base / "munge.sock").exists(), "munged")
        self.start_controller()
        for node in ("node1", "node2"):
            self._begin(node, "-D", "-N", node, program="slurmd")
        wait_until(lambda: self.ask("sinfo", "-h", "-p", "debug", "-o", "%T").split() == ["idle"], "two idle nodes")

    def start_controller(self) -> None:
        self._begin("slurmctld", "-D")
        wait_until(lambda: "is UP" in self.ask("scontrol", "ping"), "slurmctld")

    def _begin(self, name: str, *options: str, program: str = "") -> None:
        found = shutil.which(program or name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert found, f"{program or name} is not installed"
        with (self.base / f"{name}.out").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [found, *options], stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=self.environment
            )

    def end(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self) -> None:
        if "slurmctld" in self.processes:
            self.ask("scancel", "--user=root")
            wait_until(lambda: not self.ask("squeue", "-h"), "jobs to end")
        for name in list(self.processes):
            self.end(name)

    def ask(self, *argv: str) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S * 2
        )
        return done.stdout

    def submit(self, directory: Path, script: str, *options: str) -> int:
        """Submit a batch script; each in a directory of its own."""
        directory.mkdir(exist_ok=True)
        path = directory / "train.sbatch"
        path.write_text(f"#!/bin/bash\n{script}\n")
        argv = ["sbatch", "--parsable", f"--chdir={directory}", *options, str(path)]
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=directory
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout.partition(";")[0])

    def state(self, job: int | str) -> str:
        return self.ask("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T").partition("\n")[0]

    def wait_running(self, job: int | str) -> None:
        wait_until(lambda: self.state(job) == "RUNNING", f"job {job} to run")


def available() -> bool:
    return os.getuid() == 0 and all(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in PROGRAMS)


if __name__ == "__main__":  # a cluster to try things on, until Ctrl-C
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    cluster = Slurm(place)
    cluster.start()
    print(f"export SLURM_CONF={place}/slurm.conf", flush=True)
    try:
        time.sleep(86400)
    except KeyboardInterrupt:
        cluster.stop()
