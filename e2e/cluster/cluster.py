"""A real Kubernetes on this machine, without any registry: etcd, the control plane, containerd and a kubelet.

python e2e/cluster/cluster.py up      start it; prints the KUBECONFIG
python e2e/cluster/cluster.py down    end it, and remove everything it has made

Needs root and Debian's containerd, runc, containernetworking-plugins, podman; Kubernetes and etcd come from build.sh.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

HERE = pathlib.Path(__file__).resolve().parent
WORK = pathlib.Path(os.environ.get("GPUALERT_CLUSTER", "/var/tmp/gpualert-cluster"))
API, ETCD, ETCD_PEER, KUBELET = 36443, 32379, 32380, 30250
TOKEN = "e2e-token-of-a-cluster-on-loopback"
NODE = "e2e-node"
BRIDGE, ADDRESS = "gpualert-e2e", "10.231.0.1"
PREFIX = os.environ.get("GPUALERT_E2E_IMAGES", "localhost/gpualert-e2e")
IMAGES = ("gpualert", "gpualert-watch", "bookworm", "wrapped", "pause")
PATIENCE_S = 120.0

PAUSE = "#include <signal.h>\n#include <unistd.h>\nint main(void) { signal(15, _exit); for (;;) pause(); }\n"
CONTAINERD = """
version = 2
root = "{work}/containerd"
state = "{work}/run/containerd"
[grpc]
  address = "{work}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{prefix}/pause:latest"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{work}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
CNI = {
    "cniVersion": "0.4.0", "name": "gpualert-e2e",
    "plugins": [{
        "type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": False,
        "ipam": {"type": "host-local", "dataDir": str(WORK / "ipam"), "ranges": [[{"subnet": "10.231.0.0/24", "rangeStart": "10.231.0.10"}]]},
    }],
}  # fmt: skip
KUBELET_CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failSwapOn": False, "port": KUBELET, "healthzPort": 0,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"}, "address": ADDRESS, "containerRuntimeEndpoint": f"unix://{WORK}/containerd.sock",
    "evictionHard": {"nodefs.available": "1Mi", "imagefs.available": "1Mi", "memory.available": "1Mi"},
    "imageGCHighThresholdPercent": 100, "localStorageCapacityIsolation": False, "staticPodPath": "",
    "resolvConf": "/dev/null", "clusterDNS": [ADDRESS], "syncFrequency": "5s", "nodeStatusUpdateFrequency": "5s",
}  # fmt: skip


def kubeconfig() -> pathlib.Path:
    """Where the cluster's credentials are."""
    return WORK / "kubeconfig"


def _write_credentials() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    (WORK / "sa.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    )
    (WORK / "sa.pub").write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    (WORK / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "e2e",
        "clusters": [{"name": "e2e", "cluster": {"server": f"https://{ADDRESS}:{API}", "insecure-skip-tls-verify": True}}],
        "users": [{"name": "e2e", "user": {"token": TOKEN}}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
    }  # fmt: skip
    kubeconfig().write_text(json.dumps(config))


def start(name: str, *command: str) -> None:
    """Start one part, its output in a file of its name."""
    log = (WORK / "logs" / f"{name}.log").open("ab")
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    (WORK / "pids" / name).write_text(str(process.pid))


def until(what: str, condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError, subprocess.CalledProcessError, ValueError, KeyError, IndexError):
            if condition():
                return
        if time.monotonic() > end or _ended():
            raise SystemExit(f"cluster: waited in vain for {what}; see {WORK}/logs")
        time.sleep(0.3)


def _ended() -> list[str]:
    """The parts that were started and run no more."""
    found = []
    for part in (WORK / "pids").iterdir():
        with contextlib.suppress(ChildProcessError, ValueError):
            if os.waitpid(int(part.read_text()), os.WNOHANG)[0]:
                found.append(part.name)
    return found


def api(path: str) -> str:
    """Ask the API server."""
    request = urllib.request.Request(f"https://{ADDRESS}:{API}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    import ssl

    with urllib.request.urlopen(request, timeout=5, context=ssl._create_unverified_context()) as answer:
        return str(answer.read().decode())


def _node_is_ready() -> bool:
    conditions = json.loads(api(f"/api/v1/nodes/{NODE}"))["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def load_images() -> None:
    """Bring the images of the container tests into containerd."""
    ctr = ["ctr", "--address", f"{WORK}/containerd.sock", "--namespace", "k8s.io"]
    if subprocess.run(["podman", "image", "exists", f"{PREFIX}/pause"], check=False).returncode:
        source = WORK / "pause"
        source.mkdir(exist_ok=True)
        (source / "pause.c").write_text(PAUSE)
        subprocess.run(["gcc", "-static", "-Os", "-s", "-o", source / "pause", source / "pause.c"], check=True)
        (source / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
        build = ["buildah", "build", "--quiet", "--isolation", "chroot", "-t", f"{PREFIX}/pause", str(source)]
        subprocess.run(build, check=True, capture_output=True)
    for name in IMAGES:
        archive = WORK / f"{name}.tar"
        archive.unlink(missing_ok=True)
        subprocess.run(
            ["podman", "save", "--quiet", "-o", archive, f"{PREFIX}/{name}:latest"], check=True, capture_output=True
        )
        subprocess.run([*ctr, "images", "import", str(archive)], check=True, capture_output=True)
        archive.unlink()


def up() -> None:
    """Start everything; what runs already is kept."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        if _node_is_ready():
            load_images()
            return
    down()
    for name in ("logs", "pids", "cni", "run", "ipam", "certs"):
        (WORK / name).mkdir(parents=True)
    for step in (
        ["link", "add", BRIDGE, "type", "bridge"],
        ["addr", "add", f"{ADDRESS}/24", "dev", BRIDGE],
        ["link", "set", BRIDGE, "up"],
    ):
        subprocess.run(["ip", *step], check=True)
    binaries = subprocess.run([HERE / "build.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    _write_credentials()
    (WORK / "containerd.toml").write_text(CONTAINERD.format(work=WORK, prefix=PREFIX))
    (WORK / "cni" / "10-e2e.conflist").write_text(json.dumps(CNI))
    (WORK / "kubelet.json").write_text(json.dumps(KUBELET_CONFIG))
    start("containerd", "containerd", "--config", f"{WORK}/containerd.toml")
    client, peer = f"http://127.0.0.1:{ETCD}", f"http://127.0.0.1:{ETCD_PEER}"
    start(
        "etcd", f"{binaries}/etcd", "--data-dir", f"{WORK}/etcd", "--listen-client-urls", client,
        "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
    )  # fmt: skip
    start(
        "kube-apiserver", f"{binaries}/kube-apiserver", "--etcd-servers", client, "--secure-port", str(API),
        "--bind-address", ADDRESS, "--advertise-address", ADDRESS, "--cert-dir", f"{WORK}/certs",
        "--token-auth-file", f"{WORK}/tokens.csv", "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.232.0.0/24",
        "--service-account-key-file", f"{WORK}/sa.pub", "--service-account-signing-key-file", f"{WORK}/sa.key",
        "--service-account-issuer", "https://e2e.invalid", "--endpoint-reconciler-type", "none",
        "--feature-gates", "MutatingAdmissionPolicy=true",
        "--kubelet-preferred-address-types", "InternalIP",
        "--runtime-config", "admissionregistration.k8s.io/v1beta1=true", "--allow-privileged",
    )  # fmt: skip
    until("the API server", lambda: api("/readyz") == "ok")
    start(
        "kube-controller-manager", f"{binaries}/kube-controller-manager", "--kubeconfig", str(kubeconfig()),
        "--service-account-private-key-file", f"{WORK}/sa.key", "--root-ca-file", f"{WORK}/certs/apiserver.crt",
        "--use-service-account-credentials=false", "--leader-elect=false", "--secure-port", "0",
    )  # fmt: skip
    start(
        "kube-scheduler", f"{binaries}/kube-scheduler", "--kubeconfig", str(kubeconfig()), "--leader-elect=false",
        "--secure-port", "0",
    )  # fmt: skip
    until("containerd", (WORK / "containerd.sock").exists)
    load_images()
    start(
        "kubelet", f"{binaries}/kubelet", "--config", f"{WORK}/kubelet.json", "--kubeconfig", str(kubeconfig()),
        "--hostname-override", NODE, "--root-dir", f"{WORK}/kubelet", "--cert-dir", f"{WORK}/kubelet-certs",
        "--node-ip", ADDRESS,
    )  # fmt: skip
    until("the node", _node_is_ready)
    until("the default service account", lambda: api("/api/v1/namespaces/default/serviceaccounts/default"))


def down() -> None:
    """End everything that ``up`` has started, by its process id, and remove what it has made."""
    for name in ("kubelet", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
        _end(name)
    if (WORK / "containerd.sock").exists():
        ctr = ["ctr", "--address", f"{WORK}/containerd.sock", "--namespace", "k8s.io"]
        listed = subprocess.run([*ctr, "tasks", "ls", "-q"], capture_output=True, text=True, check=False).stdout.split()
        for task in listed:
            subprocess.run([*ctr, "tasks", "kill", "--signal", "9", task], capture_output=True, check=False)
        time.sleep(0.5 if listed else 0)
        for container in subprocess.run(
            [*ctr, "containers", "ls", "-q"], capture_output=True, text=True, check=False
        ).stdout.split():
            subprocess.run([*ctr, "tasks", "rm", "--force", container], capture_output=True, check=False)
            subprocess.run([*ctr, "containers", "rm", container], capture_output=True, check=False)
    _end("containerd")
    for line in reversed(pathlib.Path("/proc/self/mounts").read_text().splitlines()):
        place = line.split()[1]
        if place.startswith(f"{WORK}/"):
            subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
    shutil.rmtree(WORK, ignore_errors=True)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


def _end(name: str) -> None:
    try:
        pid = int((WORK / "pids" / name).read_text())
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return
    for _ in range(100):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        if not pathlib.Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1:] == ["up"]:
        up()
        print(kubeconfig())
    elif sys.argv[1:] == ["down"]:
        down()
    else:
        raise SystemExit(__doc__)
