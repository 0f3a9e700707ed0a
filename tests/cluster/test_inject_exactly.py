"""Whatever a manifest looks like: what inject puts in is right, twice is once, and --remove leaves no trace."""

from __future__ import annotations

import copy
from json import dumps
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manifest_texts import Writer, injected, loaded, workload

from gpualert.cluster import additions
from gpualert.cluster.choices import MARK, Options
from gpualert.cluster.inject import InjectError
from gpualert.cluster.manifests import ManifestError
from gpualert.cluster.podspecs import PodTemplate, find

OPTIONS = [
    Options("gpualert:1"),
    Options("gpualert:1", container=("*",), survivor=True, image_pull_secret=("s",)),
    Options("gpualert:1", container=("a",), notify="always", log_volume="pvc:runs", config_map="c", smtp_secret="p"),
]


def wanted(document: Any, options: Options) -> Any:
    """The same done to plain data: what has to come out."""
    document = copy.deepcopy(document)
    for template in find(copy.deepcopy(document)):
        assert isinstance(template, PodTemplate)
        holder = document
        for step in template.path:
            holder = holder[step]
        spec = holder["spec"]
        chosen = [c for c in spec["containers"] if "*" in options.container or c["name"] in (options.container or "?")]
        chosen = chosen or spec["containers"][:1]
        for container in chosen:
            container["command"] = [additions.LAUNCHER, "run", "--", *container["command"]]
            have = container.get("env") or []
            rows = additions.environment(template, container, options)
            container["env"] = [*have, *[row for row in rows if row["name"] not in [entry["name"] for entry in have]]]
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), *additions.mounts(options)]
            container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
        spec["volumes"] = [*(spec.get("volumes") or []), *additions.volumes(options)]
        original = next(c for c in template.spec["containers"] if c["name"] == chosen[0]["name"])
        rows = additions.init_containers(template, original, options)
        spec["initContainers"] = [*rows, *(spec.get("initContainers") or [])]
        if options.image_pull_secret:
            spec["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secret]
        holder["metadata"] = holder.get("metadata") or {}
        holder["metadata"]["annotations"] = {**(holder["metadata"].get("annotations") or {}), MARK: ...}
    return document


def _without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: ... if key == MARK else _without_marks(inner) for key, inner in value.items()}
    return [_without_marks(inner) for inner in value] if isinstance(value, list) else value


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.sampled_from(OPTIONS), st.sampled_from(OPTIONS))
def test_right_once_and_without_a_trace(random: Random, options: Options, others: Options) -> None:
    text = Writer(random).document(workload(random))
    once = injected(text, options)
    assert _without_marks(loaded(once)) == [wanted(document, options) for document in loaded(text)]
    assert injected(once, options) == once
    assert injected(injected(once, others), options) == once
    assert injected(once, options, take_out=True) == text


JUNK: list[Any] = [None, "", "x", 1, True, 1.5, [], {}, ["x"], [None], {"x": None}, [{}], [[]]]


def spoiled(random: Random, value: Any, probability: float) -> Any:
    """Data of which some has been replaced by what does not belong there."""
    if random.random() < probability:
        return random.choice(JUNK)
    if isinstance(value, dict):
        return {key: spoiled(random, inner, probability) for key, inner in value.items()}
    return [spoiled(random, inner, probability) for inner in value] if isinstance(value, list) else value


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.sampled_from(OPTIONS), st.booleans())
def test_what_is_no_manifest_is_refused_or_left_and_never_a_traceback(
    random: Random, options: Options, skip: bool
) -> None:
    document = workload(random)
    if random.random() < 0.5:  # something is wrong with what was right when it was wrapped
        document = loaded(injected(Writer(random).document(document), options))[0]
    text = dumps(spoiled(random, document, 0.03))
    try:
        once = injected(text, options, skip=skip)
    except (InjectError, ManifestError) as error:
        assert "\n" not in str(error)
    else:
        assert injected(once, options, skip=skip) == once
    try:
        injected(text, options, take_out=True)
    except (InjectError, ManifestError) as error:
        assert "\n" not in str(error)


def test_a_random_generator_makes_what_people_write() -> None:
    """The property above is worth as much as the manifests that it is tried on."""
    texts = []
    for seed in range(300):
        random = Random(seed)
        texts.append(Writer(random).document(workload(random)))
    for part in (
        "<<: *",
        ": *n",
        "- *n",
        "&n",
        "|+",
        "|-",
        "# deep",
        "\r\n",
        "%YAML",
        '--- {"',
        "[\n",
        "PyTorchJob",
        "~",
        ",]",
    ):
        assert sum(part in text for text in texts) >= 2, part
