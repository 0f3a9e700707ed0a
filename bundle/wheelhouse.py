"""Downloads what the bundle is installed from into ``wheelhouse/``, so that it can be built without a network."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tomllib

SOURCE = pathlib.Path(__file__).resolve().parent.parent
DEBIAN_PYTHON = "3.11"
"""The Python of the Dockerfile's base, Debian 12; give another as the first argument."""


def main() -> None:
    """Download everything for one version of Python and this machine's architecture."""
    version = sys.argv[1] if len(sys.argv) > 1 else DEBIAN_PYTHON
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = ["pip", *project["dependencies"], *extras["notify"], *extras["gpu"], *extras["otlp"], *extras["cluster"]]
    target, mark = SOURCE / "wheelhouse", SOURCE / "wheelhouse" / ".made-for"
    made_for = " ".join([version, *wanted])
    if mark.exists() and mark.read_text() == made_for:
        return
    shutil.rmtree(target, ignore_errors=True)
    options = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--python-version", version]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "--dest", str(target), *wanted], check=True)
    mark.write_text(made_for)
    print(f"{len(list(target.glob('*.whl')))} wheels for Python {version} in {target}")


if __name__ == "__main__":
    main()
