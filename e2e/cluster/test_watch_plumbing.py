"""The watcher's plumbing against a real API server; what that does not do on order is in tests/cluster."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from e2e.cluster import cluster
from e2e.cluster.jobs import PREFIX, Namespace, kubectl
from gpualert.cluster.api import STRATEGIC_PATCH, Api
from gpualert.cluster.apierror import ApiError
from gpualert.cluster.lease import Lease, Times
from gpualert.cluster.listwatch import ListWatch
from gpualert.cluster.picture import without_bookkeeping

# The cluster of these tests has a certificate that nobody has signed.
pytestmark = pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api.connect()
    yield made
    made.close()


class Follower:
    """A list-watch over a namespace's pods and what it has told."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.told: list[tuple[str, str]] = []
        self.phases: list[str | None] = []
        self.said: list[str] = []
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.watch = ListWatch(api, path, without_bookkeeping, self.take, say=self.said.append)

    def take(self, kind: str, thing: dict[str, Any]) -> None:
        self.phases.append(thing.get("status", {}).get("phase"))
        self.told.append((kind, thing.get("metadata", {}).get("name", "")))

    def __enter__(self) -> Self:
        self.watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.stop()
        assert not self.watch.alive


def make_pod(api: Api, namespace: str, name: str, **spec: Any) -> None:
    """A pod that no scheduler takes, unless asked otherwise."""
    container = {"name": "main", "image": f"{PREFIX}/bookworm:latest", "imagePullPolicy": "IfNotPresent"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": "nobody", "containers": [container], **spec},
    }
    api.post(f"/api/v1/namespaces/{namespace}/pods", body)


def set_phase(api: Api, namespace: str, name: str, phase: str) -> None:
    api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": {"phase": phase}}, STRATEGIC_PATCH)


def delete_pod(api: Api, namespace: str, name: str) -> None:
    api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})


def test_pods_are_followed(namespace: Namespace, api: Api) -> None:
    make_pod(api, namespace.name, "a")
    with Follower(api, namespace.name) as follower:
        namespace.until(lambda: ("synced", "") in follower.told, "the list")
        make_pod(api, namespace.name, "b")
        set_phase(api, namespace.name, "a", "Failed")
        namespace.until(lambda: "Failed" in follower.phases, "the change")
        delete_pod(api, namespace.name, "b")
        namespace.until(lambda: ("deleted", "b") in follower.told, "the end")
        assert follower.told[:3] == [("added", "a"), ("synced", ""), ("added", "b")]
        assert follower.watch.lag == 0
        assert follower.watch.size == 1
        assert follower.said == []
    assert api.requests["list", "pods"] == 1
    assert api.requests["watch", "pods"] == 1


class SecondServer:
    """Another API server over the same etcd, which may be killed without harm to other tests."""

    def __init__(self, directory: Path) -> None:
        first = int((cluster.WORK / "pids" / "kube-apiserver").read_text())
        self._argv = Path(f"/proc/{first}/cmdline").read_bytes().decode().split("\0")[:-1]
        with socket.create_server((cluster.ADDRESS, 0)) as free:
            self._port: int = free.getsockname()[1]
        for option, value in (("--secure-port", str(self._port)), ("--cert-dir", str(directory / "certs"))):
            self._argv[self._argv.index(option) + 1] = value
        config = json.loads(cluster.kubeconfig().read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://{cluster.ADDRESS}:{self._port}"
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))
        self._log = directory / "log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[SecondServer]:
    if not (cluster.WORK / "pids" / "kube-apiserver").exists():
        pytest.skip("only the cluster of cluster.py can have a second API server")
    made = SecondServer(tmp_path)
    yield made
    made.kill()


def test_a_server_that_is_killed_and_has_forgotten_the_version(
    namespace: Namespace, api: Api, second: SecondServer
) -> None:
    for name in ("gone", "changed", "same"):
        make_pod(api, namespace.name, name)
    other = Api.connect(str(second.kubeconfig))
    with Follower(other, namespace.name) as follower:
        namespace.until(lambda: follower.watch.synced and follower.watch.lag == 0, "the watch")
        follower.told.clear()
        second.kill()
        delete_pod(api, namespace.name, "gone")
        set_phase(api, namespace.name, "changed", "Failed")
        make_pod(api, namespace.name, "new")
        namespace.until(lambda: follower.watch.trouble, "the loss")
        second.start()
        namespace.until(lambda: ("synced", "") in follower.told, "the second list")
        assert follower.told == [("modified", "changed"), ("added", "new"), ("deleted", "gone"), ("synced", "")]
        delete_pod(api, namespace.name, "same")
        namespace.until(lambda: ("deleted", "same") in follower.told, "the watch")
    other.close()


class Proxy:
    """A wire between client and server that can be cut."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._to)
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        while self._sockets:
            one = self._sockets.pop()
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        self.cut()


def test_a_cut_wire_loses_nothing(namespace: Namespace, api: Api, tmp_path: Path) -> None:
    config = json.loads(kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
    entry = config["clusters"][0]["cluster"]
    server = urllib.parse.urlsplit(entry["server"])
    proxy = Proxy(server.hostname or "", server.port or 443)
    entry |= {"server": f"https://127.0.0.1:{proxy.port}", "insecure-skip-tls-verify": True}
    entry.pop("certificate-authority-data", None)
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    wired = Api.connect(str(tmp_path / "kubeconfig"))
    with Follower(wired, namespace.name) as follower:
        namespace.until(lambda: follower.watch.synced and follower.watch.lag == 0, "the watch")
        for round_ in range(3):
            proxy.cut()
            make_pod(api, namespace.name, f"p{round_}")
            delete_pod(api, namespace.name, f"p{round_}")
            namespace.until(lambda: ("deleted", f"p{round_}") in follower.told, "the news")  # noqa: B023  (called at once)
        kinds = [one for one in follower.told if one[0] in ("added", "deleted")]
        assert kinds == [(kind, f"p{round_}") for round_ in range(3) for kind in ("added", "deleted")]
        assert wired.requests["list", "pods"] == 1
    wired.close()
    proxy.close()


def as_account(namespace: Namespace, name: str, directory: Path) -> Api:
    """The API as a service account of the namespace, with the rights that it has by now."""
    namespace.run("create", "serviceaccount", name)
    token = namespace.run("create", "token", name).strip()
    config = json.loads(kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    (directory / name).write_text(json.dumps(config))
    return Api.connect(str(directory / name))


def test_a_missing_permission_is_named_and_noticed_when_granted(namespace: Namespace, tmp_path: Path) -> None:
    api = as_account(namespace, "watcher", tmp_path)
    assert not api.may("list", "pods", namespace.name)
    with Follower(api, namespace.name) as follower:
        namespace.until(lambda: follower.said, "a line")
        assert 'cannot list resource "pods"' in follower.said[0]
        namespace.run("create", "role", "watcher", "--verb=list,watch", "--resource=pods")
        namespace.run(
            "create", "rolebinding", "watcher", "--role=watcher", f"--serviceaccount={namespace.name}:watcher"
        )
        namespace.until(lambda: follower.watch.synced, "the list")
    assert api.may("list", "pods", namespace.name)
    assert not api.may("get", "pods/log", namespace.name)
    assert not api.may("list", "pods", "")
    api.close()


def test_a_lease_needs_three_verbs_and_is_handed_over(namespace: Namespace, api: Api, tmp_path: Path) -> None:
    account = as_account(namespace, "leader", tmp_path)
    namespace.run("create", "role", "leader", "--verb=get,create,patch", "--resource=leases.coordination.k8s.io")
    namespace.run("create", "rolebinding", "leader", "--role=leader", f"--serviceaccount={namespace.name}:leader")
    times = Times(lease_s=3600, lost_s=3000, renew_s=2000, retry_s=0.2)
    one, two = (Lease(account, namespace.name, "watch", name, times=times) for name in ("one", "two"))
    one.start()
    assert one.wait(60)
    two.start()
    namespace.until(lambda: two.holder == "one", "the look of the other")
    assert not two.held
    one.stop()
    assert two.wait(60)
    two.stop()
    spec = namespace.get("lease", "watch")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("", 1)
    account.close()


def test_of_two_writes_on_one_version_the_second_is_refused(namespace: Namespace, api: Api) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x"}}
    version = api.post(leases, {**head, "spec": {"holderIdentity": "one"}})["metadata"]["resourceVersion"]
    for holder in ("two", "three"):
        body = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder}}
        if holder == "two":
            api.patch(f"{leases}/x", body)
        else:
            with pytest.raises(ApiError) as caught:
                api.patch(f"{leases}/x", body)
            assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    assert api.get(f"{leases}/x")["spec"]["holderIdentity"] == "two"


def test_the_end_of_a_real_log(namespace: Namespace, api: Api) -> None:
    command = ["sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done"]
    container = {
        "name": "main", "image": f"{PREFIX}/bookworm:latest", "imagePullPolicy": "IfNotPresent", "command": command,
    }  # fmt: skip
    make_pod(
        api, namespace.name, "talker", schedulerName="default-scheduler", restartPolicy="Never", containers=[container]
    )
    path = f"/api/v1/namespaces/{namespace.name}/pods/talker"
    namespace.until(lambda: api.get(path)["status"]["phase"] == "Succeeded", "its end")
    assert api.log_tail(namespace.name, "talker", "main", 2, 10_000) == b"line 1998\nline 1999\n"
    assert api.log_tail(namespace.name, "talker", "main", 1000, 12) == b"8\nline 1999\n"
    with pytest.raises(ApiError) as caught:
        api.log_tail(namespace.name, "talker", "other", 2, 100)
    assert caught.value.status == 400


def test_a_long_list_comes_in_pages(namespace: Namespace, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpualert.cluster.api.PAGE", 2)
    for number in range(5):
        make_pod(api, namespace.name, f"p{number}")
    found = api.list(f"/api/v1/namespaces/{namespace.name}/pods")
    assert [pod["metadata"]["name"] for pod in found] == ["p0", "p1", "p2", "p3", "p4"]
    assert api.requests["list", "pods"] == 3
