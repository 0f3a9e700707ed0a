"""The standalone bundle's start in a container, against the bare interpreter there, and the sizes of the images.

python benchmarks/bundle.py     needs root, podman, and the images that e2e/containers/images.sh makes
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

PREFIX = "localhost/gpualert-e2e"
RUNS = 200
INSIDE = """
import json, statistics, subprocess, time
commands = {
    "bare": ["/gpualert/bin/python3", "-ISB", "-c", "pass"],
    "gpualert": ["/gpualert/bin/gpualert", "run", "--log-dir", "/tmp/logs", "--", "/bin/true"],
    "true": ["/bin/true"],
}
spent = {name: [] for name in commands}
for _ in range(RUNS):
    for name, command in commands.items():
        began = time.perf_counter()
        subprocess.run(command, check=True)
        spent[name].append(time.perf_counter() - began)
print(json.dumps({name: statistics.median(times) for name, times in spent.items()}))
"""


def main() -> None:
    """Measure, and print a table."""
    podman = ["podman", "--runtime", "/usr/sbin/runc"]
    limits = ["--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4000:4000"]
    with tempfile.TemporaryDirectory() as directory:
        bundle = Path(directory) / "gpualert"
        bundle.mkdir()
        image = f"{PREFIX}/gpualert"
        install = ["--user", "0", "-v", f"{bundle}:/target", "--entrypoint", "/gpualert/bin/gpualert", image, "install"]
        done = subprocess.run(
            [*podman, "run", *limits, *install, "/target"], check=True, capture_output=True, text=True
        )
        inside = INSIDE.replace("RUNS", str(RUNS))
        command = ["-v", f"{bundle}:/gpualert:ro", f"{PREFIX}/bookworm", "python3", "-c", inside]
        measured = subprocess.run([*podman, "run", *limits, *command], check=True, capture_output=True, text=True)
    times = json.loads(measured.stdout)
    ratio = times["gpualert"] / times["bare"]
    size = json.loads(subprocess.run(["podman", "inspect", image], check=True, capture_output=True).stdout)[0]["Size"]
    print("| what | goal | measured | reached |\n|---|---|---|---|")
    shown = f"{ratio:.2f} × ({1000 * times['gpualert']:.1f} ms, bare {1000 * times['bare']:.1f} ms)"
    print(
        f"| bundle in a container: start to end of `gpualert run -- true` | ≤ 2.0 × its bare interpreter | {shown} | {'yes' if ratio <= 2 else 'no'} |"
    )
    print(f"| image `gpualert` | | {size / 1e6:.1f} MB | |")
    print(f"| `gpualert install` into a volume | | {done.stdout.strip()} | |")


if __name__ == "__main__":
    main()
