from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.apiserver import CUT, END, ApiServer, Fault, Object, refusal, status
from conftest import wait_until
from notify.servers import certificate

from gpualert.cluster import listwatch as listwatching
from gpualert.cluster.api import JSON_PATCH, Api
from gpualert.cluster.apierror import ApiError
from gpualert.cluster.backoff import Backoff
from gpualert.cluster.health import Endpoints
from gpualert.cluster.lease import Lease, Times
from gpualert.cluster.listwatch import ListWatch
from gpualert.cluster.metrics import Metrics
from gpualert.cluster.picture import without_bookkeeping
from gpualert.cluster.verbs import verb_and_resource

PODS = "/api/v1/namespaces/ml/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/ml/leases"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer()
    yield made
    made.down()


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Iterator[Api]:
    made = Api.connect(str(server.kubeconfig(tmp_path)))
    yield made
    made.close()


class Follower:
    """A list-watch and what it has told."""

    def __init__(self, api: Api, path: str = PODS, **more: Any) -> None:
        self.told: list[tuple[str, str]] = []
        self.objects: list[Object] = []
        self.said: list[str] = []
        backoff = Backoff(base_s=0.01, cap_s=0.05)
        keep = more.pop("keep", without_bookkeeping)
        handler: Callable[..., None] = more.pop("handler", self.take)
        self.watch = ListWatch(api, path, keep, handler, say=self.said.append, backoff=backoff, **more)

    def take(self, kind: str, thing: Object) -> None:
        self.objects.append(thing)
        self.told.append((kind, thing.get("metadata", {}).get("name", "")))

    def until(self, *told: tuple[str, str]) -> None:
        """Wait until exactly this has been told since last time."""
        wait_until(lambda: len(self.told) >= len(told), f"{told}; was told {self.told}")
        assert self.told == list(told)
        self.told.clear()


@pytest.fixture
def follow(api: Api) -> Iterator[Callable[..., Follower]]:
    made: list[Follower] = []

    def start(**more: Any) -> Follower:
        follower = Follower(api, **more)
        made.append(follower)
        follower.watch.start()
        return follower

    yield start
    for follower in made:
        follower.watch.stop()
        assert not follower.watch.alive


def watching(server: ApiServer, count: int = 1) -> None:
    wait_until(lambda: len(server.watches) == count, "the watch")


# Requests


@pytest.mark.parametrize(
    ("method", "path", "watch", "expected"),
    [
        ("GET", "/api/v1/pods", False, ("list", "pods")),
        ("GET", PODS, True, ("watch", "pods")),
        ("GET", f"{PODS}/a", False, ("get", "pods")),
        ("GET", f"{PODS}/a/log", False, ("get", "pods/log")),
        ("PATCH", f"{PODS}/a/status", False, ("patch", "pods/status")),
        ("GET", "/api/v1/namespaces", False, ("list", "namespaces")),
        ("GET", "/api/v1/namespaces/ml", False, ("get", "namespaces")),
        ("PATCH", "/api/v1/namespaces/ml/status", False, ("patch", "namespaces/status")),
        ("POST", "/apis/batch/v1/namespaces/ml/jobs", False, ("create", "jobs")),
        ("DELETE", "/apis/batch/v1/namespaces/ml/jobs/j", False, ("delete", "jobs")),
        ("GET", "/version", False, ("get", "/version")),
    ],
)
def test_a_request_counts_as_the_permission_that_it_needs(
    method: str, path: str, watch: bool, expected: tuple[str, str]
) -> None:
    assert verb_and_resource(method, path, watch=watch) == expected


def test_objects_come_as_dicts_with_the_token_sent_and_the_request_counted(server: ApiServer, api: Api) -> None:
    made = server.put(f"{PODS}/a", spec={"nodeName": "gpu-17"})
    assert api.get(f"{PODS}/a") == made
    assert api.patch(f"{PODS}/a", {"spec": {"x": 1}})["spec"] == {"nodeName": "gpu-17", "x": 1}
    api.delete(f"{PODS}/a")
    api.post(PODS, {"metadata": {"name": "b"}})
    assert server.requests[0].headers["Authorization"] == "Bearer not-secret"
    assert server.requests[0].headers["User-Agent"].startswith("gpualert/")
    assert server.seen("patch")[0].headers["Content-Type"] == "application/merge-patch+json"
    assert api.requests == {("get", "pods"): 1, ("patch", "pods"): 1, ("delete", "pods"): 1, ("create", "pods"): 1}


def test_who_has_set_which_field_is_not_kept_in_memory(server: ApiServer, api: Api) -> None:
    server.put(f"{PODS}/a")
    server.objects[f"{PODS}/a"]["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    assert "managedFields" not in api.get(f"{PODS}/a")["metadata"]
    assert "managedFields" not in api.list(PODS)[0]["metadata"]


def test_a_list_is_read_in_pages(server: ApiServer, api: Api) -> None:
    server.page = 2
    for number in range(5):
        server.put(f"{PODS}/p{number}")
    found = api.list(PODS, {"labelSelector": "a=b"})
    assert [pod["metadata"]["name"] for pod in found] == ["p0", "p1", "p2", "p3", "p4"]
    asked = [request.query for request in server.seen("list")]
    assert [query.get("continue") for query in asked] == [None, "2", "4"]
    assert {(query["limit"], query["labelSelector"]) for query in asked} == {("500", "a=b")}


def test_a_list_whose_continue_token_has_expired_begins_anew(server: ApiServer, api: Api) -> None:
    server.page = 2
    for number in range(3):
        server.put(f"{PODS}/p{number}")
    pages = api.pages(PODS)
    next(pages)
    server.fail("list", refusal(410, "Expired"))
    with pytest.raises(ApiError) as caught:
        next(pages)
    assert caught.value.expired
    server.fail("list", refusal(410, "Expired"))
    assert len(api.list(PODS)) == 3


@pytest.mark.parametrize(
    "fault",
    [
        refusal(429, "TooManyRequests", Retry_After="0"),
        refusal(500, "InternalError"),
        Fault(503, b"<html>upstream is away</html>"),
        Fault(0),
        Fault(200, b"{half"),
        Fault(200, b"[]"),
    ],
    ids=["429", "500", "503", "cut", "half", "list"],
)
def test_what_may_pass_is_tried_again(server: ApiServer, api: Api, fault: Fault) -> None:
    made = server.put(f"{PODS}/a")
    server.fail("get", fault, fault)
    assert api.get(f"{PODS}/a") == made
    assert api.requests["get", "pods"] == 3


def test_retry_after_is_waited_for_and_not_beyond_the_deadline(server: ApiServer, api: Api) -> None:
    server.fail("get", refusal(429, "TooManyRequests", Retry_After="3600"))
    with pytest.raises(ApiError) as caught:
        api.get(f"{PODS}/a", deadline=time.monotonic() + 60)
    assert (caught.value.status, caught.value.reason, caught.value.retry_after) == (429, "TooManyRequests", 3600)
    assert api.requests["get", "pods"] == 1


def test_what_cannot_pass_is_not_tried_again_and_says_what_to_do(server: ApiServer, api: Api) -> None:
    server.fail("get", Fault(403, json.dumps(status(403, "Forbidden", "User x cannot get pods")).encode()))
    with pytest.raises(ApiError) as caught:
        api.get(f"{PODS}/a")
    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")
    assert str(caught.value) == (
        f"GET {PODS}/a was answered 403 (User x cannot get pods): "
        "grant the service account this permission, as the chart's roles do"
    )
    assert api.requests["get", "pods"] == 1


def test_an_object_without_a_name_is_not_made_twice(server: ApiServer, api: Api) -> None:
    server.fail("post", Fault(effective=True))
    with pytest.raises(ApiError) as caught:
        api.post("/api/v1/namespaces/ml/events", {"metadata": {"generateName": "e-"}})
    assert caught.value.reason == "Cut"
    assert len(server.seen("post")) == 1
    server.fail("post", refusal(429, "TooManyRequests"))  # certainly not done
    api.post("/api/v1/namespaces/ml/events", {"metadata": {"generateName": "e-"}})
    assert len(server.objects) == 2


def test_an_object_with_a_name_is_tried_again_and_found_there(server: ApiServer, api: Api) -> None:
    server.fail("post", Fault(effective=True))
    with pytest.raises(ApiError) as caught:
        api.post("/api/v1/namespaces/ml/events", {"metadata": {"name": "e"}})
    assert caught.value.reason == "AlreadyExists"
    assert list(server.objects) == ["/api/v1/namespaces/ml/events/e"]


def test_a_json_patch_is_not_repeated(server: ApiServer, api: Api) -> None:
    server.fail("patch", Fault(0))
    with pytest.raises(ApiError):
        api.patch(f"{PODS}/a", [{"op": "add", "path": "/a/-", "value": 1}], JSON_PATCH)
    assert len(server.seen("patch")) == 1


def test_a_server_that_refuses_connections_is_waited_for(server: ApiServer, api: Api) -> None:
    server.put(f"{PODS}/a")
    server.down()
    with pytest.raises(ApiError) as caught:
        api.patient(0).get(f"{PODS}/a")
    assert (caught.value.status, caught.value.reason) == (0, "Unreachable")
    assert "see that the API server is reachable" in str(caught.value)
    found: list[Object] = []
    thread = threading.Thread(target=lambda: found.append(api.get(f"{PODS}/a")))
    thread.start()
    wait_until(lambda: api.requests["get", "pods"] > 2, "an attempt in vain")
    server.up()
    thread.join()
    assert found[0]["metadata"]["name"] == "a"


def test_closing_ends_the_waiting(server: ApiServer, api: Api) -> None:
    server.down()
    errors: list[ApiError] = []

    def ask() -> None:
        try:
            api.get("/version", deadline=time.monotonic() + 3600)
        except ApiError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: api.requests["get", "/version"], "the first attempt")
    api.close()
    thread.join()
    assert errors[0].reason == "Closed"


def test_a_certificate_that_is_not_trusted_is_said(tmp_path: Path) -> None:
    server, _ = over_tls(tmp_path)
    api = Api.connect(str(server.kubeconfig(tmp_path)))
    with pytest.raises(ApiError) as caught:
        api.patient(0).get("/version")
    assert (caught.value.reason, "no trust in" in str(caught.value)) == ("Unreachable", True)
    api.close()
    server.down()


def over_tls(directory: Path) -> tuple[ApiServer, Path]:
    """A server with a certificate of its own, and a kubeconfig that trusts it."""
    pem, key = certificate(directory, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    server = ApiServer(context)
    trusted = base64.b64encode(pem.read_bytes()).decode()
    return server, server.kubeconfig(directory, **{"certificate-authority-data": trusted})


def test_stop_ends_a_read_that_waits_over_tls(tmp_path: Path) -> None:
    server, kubeconfig = over_tls(tmp_path)
    server.put(f"{PODS}/a")
    api = Api.connect(str(kubeconfig))
    follower = Follower(api)
    follower.watch.start()
    follower.until(("added", "a"), ("synced", ""))
    watching(server)
    follower.watch.stop(patience_s=3600)
    assert not follower.watch.alive
    api.close()
    server.down()


def test_in_a_pod_its_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = over_tls(tmp_path)
    server.put("/version")
    (tmp_path / "token").write_text("of-the-pod")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(tmp_path / "server.pem"))
    api = Api.connect()
    api.get("/version")
    assert server.requests[0].headers["Authorization"] == "bearer of-the-pod"
    (tmp_path / "token").unlink()
    with pytest.raises(ApiError) as caught:
        Api.connect()
    assert str(caught.value).startswith("cannot use the pod's service account to reach Kubernetes (")
    api.close()
    server.down()


def test_no_configuration_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ApiError) as caught:
        Api.connect()
    assert caught.value.reason == "NotConfigured"
    assert str(caught.value).startswith("cannot use ~/.kube/config to reach Kubernetes (")
    assert str(caught.value).endswith("set KUBECONFIG, or run in a pod with a token")


def test_permissions_are_asked_for(server: ApiServer, api: Api) -> None:
    server.allowed = {("list", "pods"), ("get", "pods/log")}
    assert api.may("list", "pods", "ml")
    assert api.may("get", "pods/log", "")
    assert not api.may("patch", "jobs", "ml", "batch")
    assert server.seen("post")[2].body["spec"]["resourceAttributes"] == {
        "verb": "patch", "resource": "jobs", "subresource": "", "namespace": "ml", "group": "batch",
    }  # fmt: skip


def test_the_very_end_of_a_log_is_kept(server: ApiServer, api: Api) -> None:
    server.logs[f"{PODS}/a/log"] = b"".join(b"line %d\n" % number for number in range(1000))
    assert api.log_tail("ml", "a", "main", 2, 1000) == b"line 998\nline 999\n"
    assert api.log_tail("ml", "a", "main", 100, 12) == b"98\nline 999\n"
    assert len(server.seen("log")) == 3  # 100 lines were too many for 16 times 12 bytes, 12 were not
    query = server.seen("log")[0].query
    assert query == {"container": "main", "tailLines": "2", "limitBytes": "16000"}


def test_a_log_that_is_one_endless_line_gives_something(server: ApiServer, api: Api) -> None:
    server.logs[f"{PODS}/a/log"] = b"x" * 100_000
    assert api.log_tail("ml", "a", "main", 50, 100, previous=True) == b"x" * 100
    assert server.seen("log")[0].query["previous"] == "true"


# List and watch


def test_what_is_there_comes_first_then_what_happens(server: ApiServer, follow: Callable[..., Follower]) -> None:
    server.page = 1
    server.put(f"{PODS}/a")
    server.put(f"{PODS}/b")
    follower = follow(query={"labelSelector": "a=b"})
    follower.until(("added", "a"), ("added", "b"), ("synced", ""))
    assert follower.watch.synced
    assert follower.watch.synced_at is not None
    watching(server)
    server.put(f"{PODS}/c")
    server.put(f"{PODS}/a", status={"phase": "Failed"})
    server.remove(f"{PODS}/b")
    follower.until(("added", "c"), ("modified", "a"), ("deleted", "b"))
    assert follower.objects[4]["status"] == {"phase": "Failed"}
    assert follower.watch.last_event_at is not None
    wait_until(lambda: follower.watch.lag == 0, "no lag")
    asked = server.seen("watch")[0].query
    assert (asked["allowWatchBookmarks"], asked["labelSelector"]) == ("true", "a=b")
    assert 250 <= int(asked["timeoutSeconds"]) <= 350
    assert follower.watch.size == 2
    assert follower.said == []


def test_objects_are_slimmed_before_they_are_kept(server: ApiServer, follow: Callable[..., Follower]) -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"}
    server.put(f"{PODS}/a")
    server.objects[f"{PODS}/a"]["metadata"] |= {"managedFields": [1], "annotations": applied}
    follower = follow()
    follower.until(("added", "a"), ("synced", ""))
    assert "managedFields" not in follower.objects[0]["metadata"]
    assert follower.objects[0]["metadata"]["annotations"] == {"mine": "1"}


@pytest.mark.parametrize(
    "how",
    [CUT, END, b"{garbage", b'"a string"', b'{"type":"ADDED","object":{}}'],
    ids=["cut", "end", "garbage", "string", "nothing"],
)
def test_a_watch_that_ends_goes_on_where_it_was(
    server: ApiServer, follow: Callable[..., Follower], how: object
) -> None:
    follower = follow()
    follower.until(("synced", ""))
    watching(server)
    version = server.put(f"{PODS}/a")["metadata"]["resourceVersion"]
    follower.until(("added", "a"))
    server.tell(how)
    wait_until(lambda: len(server.seen("watch")) == 2, "the second watch")
    assert server.seen("watch")[1].query["resourceVersion"] == version
    watching(server, 1 if how in (CUT, END) else 2)
    server.put(f"{PODS}/b")
    follower.until(("added", "b"))
    assert len(server.seen("list")) == 1


def test_events_between_two_watches_are_not_lost(server: ApiServer, follow: Callable[..., Follower]) -> None:
    follower = follow()
    follower.until(("synced", ""))
    watching(server)
    server.fail("watch", refusal(500, "InternalError"), Fault(0), refusal(429, "TooManyRequests", Retry_After="0"))
    server.tell(CUT)
    server.put(f"{PODS}/a")
    server.remove(f"{PODS}/a")
    follower.until(("added", "a"), ("deleted", "a"))
    assert len(server.seen("list")) == 1
    assert follower.watch.trouble is None


def test_a_bookmark_is_where_the_next_watch_begins(server: ApiServer, follow: Callable[..., Follower]) -> None:
    follower = follow()
    follower.until(("synced", ""))
    watching(server)
    version = server.bookmark()
    wait_until(lambda: follower.watch.last_event_at, "the bookmark")
    server.tell(CUT)
    wait_until(lambda: len(server.seen("watch")) == 2, "the second watch")
    assert server.seen("watch")[1].query["resourceVersion"] == version
    assert follower.told == []


EXPIRED = json.dumps({"type": "ERROR", "object": status(410, "Expired", "too old resource version")}).encode()


@pytest.mark.parametrize("form", ["event", "status"])
def test_after_410_only_what_differs_is_told(server: ApiServer, follow: Callable[..., Follower], form: str) -> None:
    for name in ("same", "changed", "gone", "anew"):
        server.put(f"{PODS}/{name}")
    follower = follow()
    follower.until(("added", "same"), ("added", "changed"), ("added", "gone"), ("added", "anew"), ("synced", ""))
    watching(server)
    server.fail("list", refusal(500, "InternalError"))
    if form == "status":
        server.fail("watch", refusal(410, "Gone"))
    with server.lock:  # the watch has had its end, and no request is answered until all this has happened
        server.tell(*([EXPIRED, END] if form == "event" else [CUT]))
        server.put(f"{PODS}/changed")
        server.remove(f"{PODS}/gone")
        server.remove(f"{PODS}/anew")
        server.put(f"{PODS}/anew")
    follower.until(("modified", "changed"), ("deleted", "anew"), ("added", "anew"), ("deleted", "gone"), ("synced", ""))
    watching(server)
    server.put(f"{PODS}/b")
    follower.until(("added", "b"))


def test_a_server_that_forgets_at_once_is_said(server: ApiServer, follow: Callable[..., Follower]) -> None:
    server.fail("watch", *[refusal(410, "Expired")] * 3)
    follower = follow()
    follower.until(("synced", ""), ("synced", ""), ("synced", ""), ("synced", ""))
    watching(server)
    assert len(follower.said) == 1
    assert "was answered 410" in follower.said[0]


def test_a_version_refused_again_and_again_is_given_up(server: ApiServer, follow: Callable[..., Follower]) -> None:
    follower = follow()
    follower.until(("synced", ""))
    watching(server)
    server.fail("watch", *[refusal(504, "Timeout")] * 3)  # an etcd put back to an older state
    server.tell(CUT)
    follower.until(("synced", ""))
    assert len(server.seen("list")) == 2


def test_a_watch_without_even_a_bookmark_is_not_trusted(
    server: ApiServer, follow: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listwatching, "_SHORT_S", 0)
    server.put(f"{PODS}/a")
    follower = follow()
    follower.until(("added", "a"), ("synced", ""))
    watching(server)
    server.tell(END)
    follower.until(("synced", ""))
    watching(server)
    server.bookmark()
    wait_until(lambda: follower.watch.last_event_at, "the bookmark")
    server.tell(END)
    wait_until(lambda: len(server.seen("watch")) == 3, "the third watch")
    assert len(server.seen("list")) == 2


def test_a_watch_that_is_ended_as_soon_as_it_is_opened_is_not_asked_in_haste(
    server: ApiServer, follow: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listwatching, "_SHORT_S", 3600)
    follower = follow()
    follower.until(("synced", ""))
    for _ in range(3):
        watching(server)
        server.tell(END)
    wait_until(lambda: follower.said, "a line")
    assert "ends as soon as it is opened" in follower.said[0]
    assert len(server.seen("list")) == 1


def test_a_server_that_is_away_is_waited_for_and_said_once(server: ApiServer, follow: Callable[..., Follower]) -> None:
    follower = follow()
    follower.until(("synced", ""))
    watching(server)
    server.down()
    wait_until(lambda: follower.said, "a line")
    assert follower.watch.lag > 0
    trouble = follower.watch.trouble
    assert trouble is not None
    assert "no connection to 127.0.0.1" in trouble
    server.put(f"{PODS}/a")
    server.up()
    follower.until(("added", "a"))
    assert len(server.seen("list")) == 1
    wait_until(lambda: follower.watch.trouble is None, "no trouble")


def test_a_missing_permission_is_said_at_once_and_noticed_when_granted(
    server: ApiServer, follow: Callable[..., Follower]
) -> None:
    forbidden = Fault(403, json.dumps(status(403, "Forbidden", "cannot list pods at the cluster scope")).encode())
    server.fail("list", *[forbidden] * 3)
    follower = follow()
    follower.until(("synced", ""))
    assert len(follower.said) == 1
    assert "cannot list pods at the cluster scope" in follower.said[0]


def test_a_handler_or_keep_that_fails_does_not_end_the_watch(
    server: ApiServer, follow: Callable[..., Follower]
) -> None:
    def keep(raw: Object) -> Object:
        return {"metadata": raw["metadata"], "node": raw["spec"]["nodeName"]}

    seen: list[tuple[str, str]] = []

    def handler(kind: str, thing: Object) -> None:
        if thing.get("node") == "poison":
            raise RuntimeError("cannot")
        seen.append((kind, thing.get("metadata", {}).get("name", "")))

    server.put(f"{PODS}/odd")
    server.put(f"{PODS}/bad", spec={"nodeName": "poison"})
    server.put(f"{PODS}/good", spec={"nodeName": "gpu-1"})
    follower = follow(keep=keep, handler=handler)
    wait_until(lambda: len(seen) == 3, "the end of the list")
    assert seen == [("added", "odd"), ("added", "good"), ("synced", "")]
    assert follower.said == [
        f"watching {PODS}: odd could not be slimmed (KeyError('spec'))",
        f"watching {PODS}: added bad could not be dealt with (RuntimeError('cannot'))",
    ]
    assert len(server.seen("list")) == 1


def test_stop_ends_a_read_that_waits(server: ApiServer, api: Api) -> None:
    follower = Follower(api)
    follower.watch.start()
    watching(server)
    follower.watch.stop(patience_s=3600)
    assert not follower.watch.alive
    server.put(f"{PODS}/late")
    assert follower.told == [("synced", "")]


def test_stop_within_the_handler_and_before_the_start(server: ApiServer, api: Api) -> None:
    server.put(f"{PODS}/a")
    server.put(f"{PODS}/b")
    told: list[str] = []

    def handler(kind: str, thing: Object) -> None:
        told.append(kind)
        follower.watch.stop()

    follower = Follower(api, handler=handler)
    follower.watch.start()
    wait_until(lambda: told and not follower.watch.alive, "the end")
    assert told == ["added"]
    Follower(api).watch.stop()


def test_a_line_without_end_is_noise(
    server: ApiServer, follow: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpualert.cluster.stream.LINE_MAX", 1000)
    follower = follow()
    follower.until(("synced", ""))
    watching(server)
    server.tell(bytearray(b"x" * 2000))
    watching(server, 2)
    server.put(f"{PODS}/a")
    follower.until(("added", "a"))


def test_a_silent_server_is_left(
    server: ApiServer, follow: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listwatching, "WATCH_S", 0)
    monkeypatch.setattr(listwatching, "_SILENCE_S", 0.05)
    follow()
    wait_until(lambda: len(server.seen("watch")) > 2, "further watches")
    assert len(server.seen("list")) == 1


# The Lease


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pair(api: Api, clock: Clock) -> tuple[Lease, Lease]:
    return Lease(api, "ml", "watch", "one", clock=clock), Lease(api, "ml", "watch", "two", clock=clock)


def attempt(lease: Lease) -> None:
    """One round, as the thread makes it."""
    lease._attempt()


def test_one_holds_it_and_the_other_waits_for_its_silence(server: ApiServer, api: Api) -> None:
    clock = Clock()
    one, two = pair(api, clock)
    attempt(one)
    attempt(two)
    assert (one.held, two.held, two.holder) == (True, False, "one")
    spec = server.objects[f"{LEASES}/watch"]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("one", 15, 0)
    for _ in range(10):
        clock.now += 5
        attempt(one)
        attempt(two)
        assert (one.held, two.held) == (True, False)
    clock.now += 9.9
    assert one.held
    clock.now += 0.2
    assert not one.held  # 10.1 s without a renewal
    attempt(two)
    assert not two.held
    clock.now += 5
    attempt(two)
    assert (one.held, two.held) == (False, True)
    attempt(one)
    assert (one.held, one.holder) == (False, "two")
    assert server.objects[f"{LEASES}/watch"]["spec"]["leaseTransitions"] == 1


def test_the_holders_clock_is_never_read(server: ApiServer, api: Api) -> None:
    clock = Clock()
    server.put(
        f"{LEASES}/watch",
        spec={"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": "1999-01-01T00:00:00.000000Z"},
    )
    one, _ = pair(api, clock)
    attempt(one)
    assert not one.held
    clock.now += 14
    attempt(one)
    assert not one.held
    clock.now += 1
    attempt(one)
    assert one.held


def test_of_two_that_try_at_once_one_is_refused(server: ApiServer, api: Api) -> None:
    clock = Clock()
    server.put(f"{LEASES}/watch", spec={"holderIdentity": ""})
    one, two = pair(api, clock)
    one._look()
    two._look()
    attempt(one)
    with pytest.raises(ApiError) as caught:
        two._take()
    assert caught.value.status == 409
    attempt(two)
    assert (one.held, two.held) == (True, False)


def test_a_write_whose_answer_is_lost_is_found_done(server: ApiServer, api: Api) -> None:
    clock = Clock()
    one, two = pair(api, clock)
    server.fail("post", Fault(effective=True))
    attempt(one)
    assert not one.held
    attempt(one)
    assert one.held
    clock.now += 5
    server.fail("patch", Fault(effective=True))
    attempt(one)
    clock.now += 4
    attempt(one)
    clock.now += 8
    assert one.held
    attempt(two)
    assert not two.held


def test_a_holder_that_cannot_reach_the_server_stops_acting_before_another_begins(server: ApiServer, api: Api) -> None:
    clock = Clock()
    one, two = pair(api, clock)
    attempt(one)
    attempt(two)
    for _ in range(2):
        clock.now += 5
        server.fail("patch", refusal(503, "ServiceUnavailable"))
        attempt(one)
        attempt(two)
    assert (one.held, two.held) == (False, False)
    clock.now += 5
    attempt(two)
    assert two.held


def test_a_lease_that_somebody_deletes_is_left_to_its_holder(server: ApiServer, api: Api) -> None:
    clock = Clock()
    one, two = pair(api, clock)
    attempt(one)
    attempt(two)
    server.remove(f"{LEASES}/watch")
    attempt(two)
    assert (one.held, two.held) == (True, False)
    clock.now += 5
    attempt(one)  # 404
    attempt(one)
    attempt(two)
    assert (one.held, two.held) == (True, False)
    server.remove(f"{LEASES}/watch")
    clock.now += 15
    attempt(two)
    assert (one.held, two.held) == (False, True)


def test_a_lease_taken_by_force_is_given_up_when_noticed(server: ApiServer, api: Api) -> None:
    clock = Clock()
    one, _ = pair(api, clock)
    attempt(one)
    server.put(f"{LEASES}/watch", spec={"holderIdentity": "somebody", "leaseDurationSeconds": 15})
    clock.now += 5
    attempt(one)  # 409
    attempt(one)
    assert (one.held, one.holder) == (False, "somebody")


def test_a_lease_is_freed_also_after_a_renewal_that_failed(server: ApiServer, api: Api) -> None:
    lease = Lease(api, "ml", "watch", times=Times(lease_s=3600, lost_s=3000, renew_s=0.01, retry_s=3600))
    lease.start()
    assert lease.wait()
    server.fail("patch", Fault(effective=True))
    wait_until(lambda: lease._said, "the failure")
    lease.stop()
    assert server.objects[f"{LEASES}/watch"]["spec"]["holderIdentity"] == ""


def test_stopping_hands_it_over(server: ApiServer, api: Api) -> None:
    times = Times(lease_s=3600, lost_s=3000, renew_s=2000, retry_s=0.05)
    one, two = (Lease(api, "ml", "watch", name, times=times) for name in ("one", "two"))
    one.start()
    assert one.wait()
    two.start()
    assert not two.wait(0)
    one.stop()
    assert (one.held, one.alive) == (False, False)
    assert two.wait()
    assert two.holder == "two"
    two.stop()
    spec = server.objects[f"{LEASES}/watch"]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("", 1)


def test_a_candidate_that_is_stopped_waits_no_more_and_frees_nothing(server: ApiServer, api: Api) -> None:
    server.put(f"{LEASES}/watch", spec={"holderIdentity": "other", "leaseDurationSeconds": 3600})
    lease = Lease(api, "ml", "watch")
    lease.start()
    waiter = threading.Thread(target=lease.wait)
    waiter.start()
    wait_until(lambda: lease.holder == "other", "the look")
    lease.stop()
    waiter.join()
    assert server.objects[f"{LEASES}/watch"]["spec"]["holderIdentity"] == "other"


def test_a_missing_permission_for_the_lease_is_said_once(server: ApiServer, api: Api) -> None:
    said: list[str] = []
    server.fail("get", *[refusal(403, "Forbidden")] * 3)
    lease = Lease(api, "ml", "watch", say=said.append, times=Times(retry_s=0.02))
    lease.start()
    assert lease.wait()
    lease.stop()
    assert len(said) == 1
    assert said[0].startswith(f"electing a leader by {LEASES}/watch: GET {LEASES}/watch was answered 403")


def test_times_that_would_let_two_act_are_refused() -> None:
    with pytest.raises(ValueError, match="lease_s > lost_s > renew_s"):
        Times(lease_s=10, lost_s=10)


# Metrics and health


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_metrics_that_are_promised() -> None:
    requests = Counter({("list", "pods"): 2})
    metrics = Metrics(requests, lag=lambda: 1.5, leader=lambda: True)
    metrics.incident("cuda_oom", "gpu", 12.0, 8.5)
    metrics.incident("cuda_oom", "gpu", -3.0, 0)
    metrics.mail_pending(4)
    requests["watch", "jobs"] += 1
    lines = metrics.page().decode().splitlines()
    for line in (
        'gpualert_incidents_total{class="cuda_oom",family="gpu"} 2.0',
        'gpualert_incident_detection_seconds_bucket{le="10.0"} 1.0',
        "gpualert_incident_detection_seconds_count 2.0",
        "gpualert_gpu_hours_lost_total 8.5",
        "gpualert_mail_pending 4.0",
        "gpualert_watch_lag_seconds 1.5",
        'gpualert_api_requests_total{resource="pods",verb="list"} 2.0',
        'gpualert_api_requests_total{resource="jobs",verb="watch"} 1.0',
        "gpualert_leader 1.0",
    ):
        assert line in lines
    assert not any(line.startswith("python_") for line in lines)


def test_health_names_what_is_not_well() -> None:
    well = {"pods": True, "jobs": False}
    endpoints = Endpoints(
        "127.0.0.1",
        0,
        metrics=lambda: b"gpualert_leader 1.0\n",
        alive={"pods": lambda: True},
        ready={name: lambda name=name: well[name] for name in well},  # type: ignore[misc]
    )
    endpoints.start()
    assert fetch(endpoints.port, "/metrics") == (200, "gpualert_leader 1.0\n")
    assert fetch(endpoints.port, "/healthz") == (200, "ok\n")
    assert fetch(endpoints.port, "/readyz") == (503, "jobs has not been read yet\n")
    well["jobs"] = True
    assert fetch(endpoints.port, "/readyz?verbose") == (200, "ok\n")
    assert fetch(endpoints.port, "/")[0] == 404
    with pytest.raises(OSError, match="choose another port"):
        Endpoints("127.0.0.1", endpoints.port, metrics=lambda: b"", alive={}, ready={})
    endpoints.stop()
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection("127.0.0.1", endpoints.port).connect()


def test_health_over_ipv6_and_ended_before_its_start() -> None:
    try:
        endpoints = Endpoints("::1", 0, metrics=lambda: b"", alive={}, ready={})
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    endpoints.start()
    connection = http.client.HTTPConnection("::1", endpoints.port)
    connection.request("HEAD", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    endpoints.stop()
    Endpoints("127.0.0.1", 0, metrics=lambda: b"", alive={}, ready={}).stop()
