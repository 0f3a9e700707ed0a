"""The bundle in images of every kind, under every user and restriction."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.containers.containers import Containers

SHELL = ["sh", "-c", "echo out; echo 'ValueError: bad value' >&2; exit 3"]
IMAGES = {
    "bookworm": SHELL,
    "trixie": SHELL,
    "bullseye": SHELL,
    "musl": ["/bin/sh", "-c", SHELL[2]],
    "empty": ["/job/busybox", "sh", "-c", SHELL[2]],
    "training": SHELL,
}


@pytest.mark.parametrize("image", IMAGES)
def test_the_bundle_runs_in(containers: Containers, image: str) -> None:
    done = containers.run(image, IMAGES[image])
    assert (done.code, done.stdout) == (3, "out\n"), done.stderr
    assert "gpualert: traceback: ValueError: bad value (exit 3" in done.stderr
    assert containers.report()["diagnosis"]["class"] == "traceback"
    assert (containers.runs()[-1] / "report.html").exists()


RESTRICTIONS = {
    "root": ["--user", "0"],
    "a user without a name": ["--user", "65532:65532"],
    "a random user of group 0": ["--user", "1000680000:0"],
    "a read-only root": ["--read-only"],
    "no capabilities": ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"],
    "all of them": [
        "--user",
        "1000680000:0",
        "--read-only",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
    ],
    "no HOME, an unwritable TMPDIR": ["--env", "HOME=", "--env", "TMPDIR=/proc"],
}


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_the_bundle_runs_as(containers: Containers, restriction: str) -> None:
    done = containers.run("bookworm", SHELL, *RESTRICTIONS[restriction])
    assert (done.code, done.stdout) == (3, "out\n"), done.stderr
    assert containers.report()["diagnosis"]["class"] == "traceback"
    assert "trouble" not in done.stderr


def test_variables_of_the_image_reach_the_child_and_not_us(containers: Containers) -> None:
    poison = {
        "LD_PRELOAD": "/nowhere.so", "LD_LIBRARY_PATH": "/nowhere", "LD_BIND_NOW": "1", "PYTHONPATH": "/nowhere",
        "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/nowhere", "GLIBC_TUNABLES": "glibc.malloc.check=3",
        "OPENSSL_CONF": "/nowhere", "GCONV_PATH": "/nowhere", "LOCPATH": "/nowhere", "MALLOC_ARENA_MAX": "1",
    }  # fmt: skip
    options = [word for name, value in poison.items() for word in ("--env", f"{name}={value}")]
    done = containers.run("musl", ["/bin/env"], *options)
    told = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {name: told.get(name) for name in poison} == poison
    assert not [name for name in told if name.startswith("_GPUALERT")]
    done = containers.run("musl", ["/bin/sh", "-c", SHELL[2]], *options)
    assert done.code == 3
    assert containers.report()["diagnosis"]["class"] == "traceback"


def test_the_bundle_runs_from_any_path(containers: Containers) -> None:
    done = containers.run(
        "musl",
        ["/bin/false"],
        "-v",
        f"{containers.bundle}:/some/where else:ro",
        "--entrypoint",
        "/some/where else/bin/gpualert",
    )
    assert done.code == 1


def test_in_an_empty_root_without_proc(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    shutil.copy(str(shutil.which("busybox")), tmp_path / "bin" / "busybox")
    shutil.copytree(bundle, tmp_path / "gpualert", symlinks=True)
    command = ["/gpualert/bin/gpualert", "run", "--", "/bin/busybox", "sh", "-c", "echo x; exit 4"]
    done = subprocess.run(["chroot", str(tmp_path), *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "x\n"), done.stderr
    assert "gpualert: unknown: failed with exit code 4" in done.stderr


def test_the_bundle_keeps_its_sources_and_its_hashes(bundle: Path) -> None:
    rows = [line.split("  ", 1) for line in (bundle / "MANIFEST.sha256").read_text().splitlines()]
    assert len(rows) > 500
    assert (bundle / "site" / "gpualert" / "supervisor" / "main.py").exists()
    assert not list((bundle / "site").glob("kubernetes*"))
    size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"bundle: {size / 1e6:.1f} MB, {len(rows)} files")
    assert size < 80e6


def test_a_manifest_names_every_file(bundle: Path) -> None:
    named = {line.split("  ", 1)[1] for line in (bundle / "MANIFEST.sha256").read_text().splitlines()}
    found = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file() and not path.is_symlink()}
    assert found - {"MANIFEST.sha256"} == named


def test_the_launcher_is_built_for_arm64_from_the_same_source(tmp_path: Path) -> None:
    """Built, not run: there is no such machine here."""
    source = Path(__file__).parents[2] / "bundle" / "launcher.c"
    compiler = ["aarch64-linux-gnu-gcc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*compiler, "-o", str(tmp_path / "gpualert"), str(source)], check=True)
    assert (tmp_path / "gpualert").read_bytes()[18:20] == b"\xb7\x00"  # EM_AARCH64
