"""``gpualert install``, as an init container runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from e2e.containers.containers import LAUNCHER, LIMITS, PODMAN, PREFIX


def _install(target: Path, *options: str, to: str = "/target") -> subprocess.CompletedProcess[str]:
    argv = [*PODMAN, "run", "--rm", *LIMITS, *options, "-v", f"{target}:/target", "--entrypoint", LAUNCHER]
    return subprocess.run([*argv, f"{PREFIX}/gpualert", "install", to], capture_output=True, text=True, check=False)


def test_it_is_whole_and_can_be_replaced_while_in_use(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for _ in range(2):
        done = _install(tmp_path, "--user", "1000680000:0", "--cap-drop", "ALL", "--read-only")
        assert (done.returncode, "installed" in done.stdout) == (0, True), done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["MANIFEST.sha256", "bin", "lib", "site"]
    subprocess.run(["sha256sum", "--check", "--quiet", "MANIFEST.sha256"], cwd=tmp_path, check=True)
    answer = subprocess.run(
        [tmp_path / "bin" / "gpualert", "version", "--format", "json"], capture_output=True, check=True
    )
    assert json.loads(answer.stdout)["python"].startswith("3.11")


def test_no_permission_no_space_and_noexec_are_said(tmp_path: Path) -> None:
    done = _install(tmp_path, "--user", "65532:65532")
    assert (done.returncode, done.stderr) == (
        1, "gpualert: cannot write /target (Permission denied) as user 65532, group 65532\n",
    )  # fmt: skip
    done = _install(tmp_path, "--user", "0", "--tmpfs", "/small:size=20m", to="/small")
    assert (done.returncode, "no space left in /small" in done.stderr) == (1, True), done.stderr
    done = _install(tmp_path, "--user", "0", "--tmpfs", "/still:noexec,size=200m", to="/still")
    assert (done.returncode, "mounted noexec?" in done.stderr) == (1, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_bundle_is_not_passed_on(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    assert _install(tmp_path / "first", "--user", "0").returncode == 0
    victim = tmp_path / "first" / "site" / "gpualert" / "artifacts.py"
    victim.write_text(victim.read_text() + "\n")
    argv = [str(tmp_path / "first" / "bin" / "gpualert"), "install", str(tmp_path / "second")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, "is damaged" in done.stderr) == (1, True)
    assert list((tmp_path / "second").iterdir()) == []


def test_one_that_was_killed_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    target = tmp_path / "target"
    assert _install(tmp_path, "--user", "0", to="/target/source").returncode == 0
    argv = [str(tmp_path / "source" / "bin" / "gpualert"), "install", str(target)]
    for _ in range(3):
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not list(target.glob(".gpualert-*/lib/*")):
            assert process.poll() is None
        process.kill()
        process.wait()
    assert len(list(target.glob(".gpualert-*"))) == 1
    done = subprocess.run(argv, capture_output=True, text=True, check=False, preexec_fn=lambda: os.umask(0o077))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in target.iterdir()) == ["MANIFEST.sha256", "bin", "lib", "site"]
    as_another = [
        *PODMAN,
        "run",
        "--rm",
        *LIMITS,
        "--user",
        "1234",
        "-v",
        f"{target}:/gpualert:ro",
        "--entrypoint",
        LAUNCHER,
    ]
    done = subprocess.run([*as_another, f"{PREFIX}/empty", "version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
