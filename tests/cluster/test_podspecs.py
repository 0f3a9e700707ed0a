"""Kinds whose pods are not simply theirs: what is wrapped, what is not, and what is said about it."""

from __future__ import annotations

import pytest
from manifest_texts import injected, loaded, noted, pods

from gpualert.cluster.choices import Options
from gpualert.cluster.inject import InjectError

LAUNCHER = "/gpualert/bin/gpualert run -- "


def _job_label(text: str) -> str:
    (row,) = [row for row in pods(injected(text))[0]["containers"][0]["env"] if row["name"] == "GPUALERT_JOB_NAME"]
    return str(row["valueFrom"]["fieldRef"]["fieldPath"])


def test_volcano_knows_its_job() -> None:
    text = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {tasks: [{template: {spec: {containers: [{name: a, command: [x]}]}}}]}\n"
    assert _job_label(text) == "metadata.labels['volcano.sh/job-name']"


def test_items_without_a_kind_have_their_lists() -> None:
    text = "apiVersion: batch/v1\nkind: JobList\nitems:\n- metadata: {name: j}\n  spec: {template: {spec: {containers: [{name: a, command: [x]}]}}}\n"
    assert _job_label(text) == "metadata.labels['batch.kubernetes.io/job-name']"
    assert injected(injected(text), take_out=True) == text
    with pytest.raises(InjectError, match=r"^Job/j: spec\.template: "):
        injected(text.replace("command: [x]", "image: x"))


TRAINJOB = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec:\n  runtimeRef: {name: torch}\n"


def test_a_train_job_with_a_command_is_refused_and_one_without_goes_through() -> None:
    overrides = "  podTemplateOverrides: [{targetJobs: [{name: node}], spec: {containers: [{name: node, env: []}]}}]\n"
    text, notes = noted(TRAINJOB + overrides)
    assert text == TRAINJOB + overrides
    assert notes == ["TrainJob/t: its pods come from its runtime: inject the TrainingRuntime"]
    with pytest.raises(
        InjectError, match=r"^TrainJob/t: spec\.trainer\.command takes the place of its runtime's: inject the"
    ):
        injected(f"{TRAINJOB}  trainer: {{command: [torchrun, t.py]}}\n")
    text = f"{TRAINJOB}  trainer: {{command: [/gpualert/bin/gpualert, run, --, torchrun, t.py]}}\n"
    assert noted(text) == (text, [])
    text = f"{TRAINJOB}  trainer: {{command: [torchrun, t.py]}}\n"
    written, notes = noted(text, skip=True)
    assert (written, len(notes)) == (text, 1)


MPI = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: m}
spec:
  mpiReplicaSpecs:
    Launcher: {template: {spec: {containers: [{name: mpi, command: [mpirun, train]}]}}}
    Worker: {template: {spec: {containers: [{name: mpi, image: x}]}}}
"""


def test_an_mpi_worker_that_only_serves_ssh_is_left() -> None:
    written, notes = noted(MPI)
    launcher, worker = pods(written)
    assert launcher["containers"][0]["command"] == ["/gpualert/bin/gpualert", "run", "--", "mpirun", "train"]
    assert worker == {"containers": [{"name": "mpi", "image": "x"}]}
    assert notes == [
        "MPIJob/m: spec.mpiReplicaSpecs.Worker.template: not wrapped: the MPI operator starts the image's sshd in it, "
        "and the launcher reports what a rank does"
    ]
    assert injected(written, take_out=True) == MPI
    with pytest.raises(InjectError, match=r"Launcher\.template: container mpi has no command"):
        injected(MPI.replace("command: [mpirun, train]", "image: x"))


RAY = """\
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: r}
spec:
  entrypoint: %s
  submitterPodTemplate: {spec: {containers: [{name: s, image: x}]}}
  rayClusterSpec:
    headGroupSpec: {template: {spec: {containers: [{name: head, image: x}]}}}
    workerGroupSpecs: [{groupName: g, template: {spec: {containers: [{name: worker, image: x}]}}}]
"""


@pytest.mark.parametrize(
    ("entrypoint", "wrapped"),
    [
        ("python train.py --x=1   # c", f"{LAUNCHER}python train.py --x=1"),
        ('"python\\x20train.py"', f"{LAUNCHER}python train.py"),
        ("A=1 python train.py", f"{LAUNCHER}sh -c 'A=1 python train.py'"),
        ("cd /a && echo it's", f"{LAUNCHER}sh -c 'cd /a && echo it'\"'\"'s'"),
        ("|\n    python a.py\n    python b.py", f"{LAUNCHER}sh -c 'python a.py\npython b.py'"),
        (">-   # folded\n    python a.py\n    --x", f"{LAUNCHER}python a.py --x"),
    ],
)
def test_a_ray_jobs_entrypoint_is_wrapped_on_the_head(entrypoint: str, wrapped: str) -> None:
    text = RAY % entrypoint
    written, notes = noted(text)
    document = loaded(written)[0]
    assert document["spec"]["entrypoint"] == wrapped
    submitter, head, worker = pods(written)
    assert "command" not in head["containers"][0]
    assert [mount["mountPath"] for mount in head["containers"][0]["volumeMounts"]] == ["/gpualert", "/var/log/gpualert"]
    assert head["initContainers"][0]["name"] == "gpualert-install"
    assert (set(submitter), set(worker)) == ({"containers"}, {"containers"})
    assert [note.split(": not wrapped: ")[1].split(",")[0] for note in notes] == [
        "it only submits the entrypoint",
        "the entrypoint runs on the head",
    ]
    assert injected(written) == written
    assert injected(written, take_out=True) == text
    assert injected(injected(written, Options("gpualert:2", survivor=True))) == written


def test_a_ray_entrypoint_that_may_run_anywhere_finds_the_bundle_anywhere() -> None:
    written = injected((RAY % "python t.py").replace("  entrypoint", "  entrypointNumGpus: 1\n  entrypoint"))
    assert ["initContainers" in pod for pod in pods(written)] == [False, True, True]
    assert loaded(written)[0]["spec"]["entrypoint"] == f"{LAUNCHER}python t.py"


def test_a_ray_job_on_a_cluster_that_is_there_is_refused() -> None:
    text = "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: r}\nspec: {entrypoint: python t.py, clusterSelector: {a: b}}\n"
    with pytest.raises(InjectError, match=r"^RayJob/r: its entrypoint runs on a cluster that is there already"):
        injected(text)


def test_a_ray_cluster_goes_through_with_a_word() -> None:
    text = "apiVersion: ray.io/v1\nkind: RayCluster\nspec: {headGroupSpec: {template: {spec: {containers: [{name: head, image: x}]}}}}\n"
    written, notes = noted(text)
    assert written == text
    assert notes == ["RayCluster/?: spec.headGroupSpec.template: not wrapped: KubeRay makes its command"]


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: monitoring.coreos.com/v1\nkind: Prometheus\nspec: {containers: [{name: prometheus, args: [x]}]}\n",
        "apiVersion: kyverno.io/v1\nkind: Policy\nspec: {rules: [{validate: {pattern: {spec: {containers: [{name: '*'}]}}}}]}\n",
    ],
)
def test_what_changes_or_matches_other_peoples_pods_is_no_template(text: str) -> None:
    assert noted(text) == (text, [])
