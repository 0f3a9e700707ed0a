"""Builds the standalone bundle: interpreter, standard library, gpualert, its dependencies and loader in one directory.

Runs with the system Python of a Debian (or a system like it) whose interpreter the bundle shall have; needs a C
compiler, and no network where a wheelhouse is given. The result runs from any path, in any Linux image of that
architecture.

    python3 bundle/build.py --output /gpualert --wheelhouse wheelhouse
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import marshal
import os
import pathlib
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib

SOURCE = pathlib.Path(__file__).resolve().parent.parent
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"

# Parts of the standard library that nothing here uses; most of its size.
WITHOUT = {
    "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "distutils", "pydoc_data", "unittest",
    "venv", "sqlite3", "curses", "dbm", "xmlrpc", "wsgiref", "msilib", "idle_test", "__pycache__", "site-packages",
    "dist-packages",
}  # fmt: skip
OF_CLUSTER = ("pydoc.py", "wsgiref")
"""What the Kubernetes client and Prometheus' want of it all the same."""
WITHOUT_FILES = re.compile(
    r"^(?:turtle|pydoc|doctest|pdb|cgi|cgitb|antigravity|this|sitecustomize|mailbox|nntplib|ftplib|poplib|imaplib|telnetlib)\.py$"
    r"|^config-|^LICENSE|^_sysconfigdata__.*(?<!gnu)\.py$"
)
WITHOUT_MODULES = re.compile(
    r"^(?:_tkinter|_dbm|_gdbm|_sqlite3|nis|readline|_curses\w*|ossaudiodev|audioop|_test\w+|_xx\w+|xxlimited\w*|_crypt|"
    r"_lsprof|_dbg)\."
)
KEPT_ENCODINGS = {
    "__init__", "aliases", "utf_8", "utf_8_sig", "ascii", "latin_1", "idna", "punycode", "charmap", "cp1252", "cp437",
    "utf_16", "utf_16_le", "utf_16_be", "utf_32", "unicode_escape", "raw_unicode_escape", "iso8859_1", "iso8859_15",
    "base64_codec", "quopri_codec", "hex_codec", "zlib_codec", "undefined",
}  # fmt: skip
STACKS = "py-spy"
WITHOUT_SUFFIXES = (".pyi", ".c", ".h", ".pyx", ".pxd", ".mo", ".po", ".pot")


def run(*command: str) -> str:
    """Run a program and return what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries(binary: pathlib.Path) -> dict[str, str]:
    """The shared libraries that a binary loads: file names and where they are.

    Args:
        binary: An ELF file.

    Raises:
        SystemExit: One of them is missing.
    """
    done = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", done.stdout, re.MULTILINE))
    missing = re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE)
    if missing:
        raise SystemExit(f"{binary} needs {', '.join(missing)}, which are not installed")
    return found


def loader_of(binary: pathlib.Path) -> pathlib.Path:
    """The loader that a binary names (``PT_INTERP``)."""
    found = re.search(rb"(/lib\S*/ld-linux[^\0]*)\0", binary.read_bytes())
    if found is None:
        raise SystemExit(f"{binary} names no loader")
    return pathlib.Path(found[1].decode()).resolve()


def copy_interpreter(output: pathlib.Path) -> None:
    """The interpreter and its loader."""
    executable = pathlib.Path(sys.executable).resolve()
    (output / "lib").mkdir(parents=True)
    (output / "bin").mkdir()
    shutil.copy(executable, output / "lib" / "python3")
    shutil.copy(loader_of(executable), output / "lib" / "gpualert")


def is_wanted(relative: pathlib.Path, name: str) -> bool:
    """Whether a file of the standard library is needed.

    Args:
        relative: Its directory, relative to the library.
        name: Its name.
    """
    if relative.parts[:1] == ("lib-dynload",):
        return not WITHOUT_MODULES.match(name)
    if relative.parts[:1] == ("encodings",) and name[:-3] not in KEPT_ENCODINGS:
        return False
    return name.endswith(".py") and not WITHOUT_FILES.match(name)


def copy_standard_library(output: pathlib.Path, *, cluster: bool) -> None:
    """What is needed of the standard library, as source; it is compiled later."""
    kept = OF_CLUSTER if cluster else ()
    standard = pathlib.Path(sysconfig.get_path("stdlib"))
    target = output / "lib" / VERSION
    for place, directories, names in os.walk(standard):
        directories[:] = sorted(
            name for name in directories if name in kept or not (name in WITHOUT or name.startswith("config-"))
        )
        relative = pathlib.Path(place).relative_to(standard)
        for name in sorted(names):
            if name in kept or is_wanted(relative, name):
                (target / relative).mkdir(parents=True, exist_ok=True)
                shutil.copy(pathlib.Path(place) / name, target / relative / name)
    (target / "lib-dynload").mkdir(exist_ok=True)


def install_packages(output: pathlib.Path, wheelhouse: pathlib.Path | None, *, cluster: bool) -> None:
    """Gpualert and its dependencies."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["notify"], *extras["gpu"], *extras["otlp"]]
    if cluster:
        wanted += extras["cluster"]
    site = output / "site"
    pip = [sys.executable, "-m", "pip"]
    offline: list[str] = []
    if wheelhouse is not None:
        offline = ["--no-index", "--find-links", str(wheelhouse)]
        own = sorted(wheelhouse.glob("pip-*.whl"))
        if own:  # the base image need not have one
            pip = [sys.executable, f"{own[-1]}/pip"]
    quiet = ["--quiet", "--root-user-action=ignore", "--disable-pip-version-check"]
    options = ["--no-compile", "--only-binary", ":all:", "--target", str(site)]
    subprocess.run([*pip, "install", *quiet, *options, *offline, *wanted], check=True)
    shutil.copytree(SOURCE / "gpualert", site / "gpualert", ignore=shutil.ignore_patterns("__pycache__"))
    # A static program, which takes the stacks of a hanging job; with its symbols it would be half as large again.
    shutil.copy(site / "bin" / STACKS, output / "bin" / STACKS)
    subprocess.run(["strip", str(output / "bin" / STACKS)], check=True)
    trim(site)


def trim(site: pathlib.Path) -> None:
    """Remove what nobody imports."""
    for path in sorted(site.rglob("*"), reverse=True):
        at_the_top = path.parent == site and path.name in WITHOUT | {"bin", "include"}
        if path.is_dir() and (at_the_top or path.name in ("tests", "testing", "__pycache__")):
            shutil.rmtree(path)
        elif path.suffix in WITHOUT_SUFFIXES or path.name in ("RECORD", "INSTALLER", "py.typed"):
            path.unlink()


def copy_libraries(output: pathlib.Path) -> None:
    """The shared libraries of the interpreter, of its modules and of the packages, each once."""
    binaries = [output / "lib" / "python3", *output.rglob("*.so"), *output.rglob("*.so.*")]
    needed: dict[str, str] = {}
    for binary in sorted(binaries):
        needed.update(libraries(binary))
    bundled = {path.name for path in (output / "site").rglob("*.so*")}
    for name, path in sorted(needed.items()):
        if name not in bundled and not name.startswith("ld-linux"):
            shutil.copy(pathlib.Path(path).resolve(), output / "lib" / name)
            (output / "lib" / name).chmod(0o755)


def compile_all(output: pathlib.Path) -> None:
    """Byte-code that is valid by its source's hash alone, so that no file system's clock can make it stale.

    The standard library and the packages keep only the byte-code; gpualert itself keeps its source, for auditors.
    """
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    own = output / "site" / "gpualert"
    compileall.compile_dir(own, quiet=1, invalidation_mode=unchecked, stripdir=str(output), optimize=0)
    for place in (output / "lib" / VERSION, output / "site"):
        for source in sorted(place.rglob("*.py")):
            if own in source.parents:
                continue
            shown = str(source.relative_to(output))
            try:
                py_compile.compile(str(source), str(source) + "c", shown, doraise=True, invalidation_mode=unchecked)
            except py_compile.PyCompileError:  # a template or a file for another version
                continue
            source.unlink()


_ORDER = """
import sys
sys.path.append(sys.argv[1])
loaded = []
class Recorder:
    def find_spec(self, name, path=None, target=None):
        if not name.startswith("gpualert"):
            return None
        import importlib.machinery
        spec = importlib.machinery.PathFinder.find_spec(name, path or sys.path)
        real = spec.loader.exec_module
        def exec_module(module):
            real(module)
            loaded.append(name)
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Recorder())
import gpualert.supervisor.main
from gpualert.supervisor import supervision
supervision._load_the_rest()
print(*loaded)
"""
"""Prints the modules that every run needs, each after those that it imports."""


def gather_modules(output: pathlib.Path) -> None:
    """The supervisor's modules in one file, and the code that imports from it; see ``start.py``."""
    table = {}
    for source in sorted((output / "site" / "gpualert").rglob("*.py")):
        parts = source.relative_to(output / "site").with_suffix("").parts
        if parts[1:2] not in (("supervisor",), ("rundir",), ("__init__",), ("__main__",)):
            continue
        is_package = parts[-1] == "__init__"
        path = str(source.relative_to(output))
        code = compile(source.read_bytes(), path, "exec", dont_inherit=True, optimize=2)
        table[".".join(parts[:-1] if is_package else parts)] = (is_package, path, marshal.dumps(code))
    start = str(SOURCE / "bundle" / "start.py")
    order = run(sys.executable, "-ISB", "-c", _ORDER, str(output / "site")).split()
    (output / "lib" / "modules.bin").write_bytes(marshal.dumps((order, table)))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(start, str(output / "lib" / "start.pyc"), "start.py", doraise=True, invalidation_mode=unchecked)


def build_launcher(output: pathlib.Path) -> None:
    """The launcher, static: it must start where there is no library at all."""
    compiler = os.environ.get("CC") or ("musl-gcc" if shutil.which("musl-gcc") else "gcc")
    target = output / "bin" / "gpualert"
    flags = ["-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", "-ffile-prefix-map=/=/", "-Wl,--build-id=none"]
    subprocess.run([compiler, *flags, "-o", str(target), str(SOURCE / "bundle" / "launcher.c")], check=True)
    (output / "bin" / "python3").symlink_to("gpualert")


def certificates(output: pathlib.Path) -> None:
    """The base's authorities, for images that have none."""
    bundle = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
    if bundle.exists():
        shutil.copy(bundle, output / "lib" / "ca-certificates.crt")


def strip(output: pathlib.Path) -> None:
    """Without symbols that only a debugger reads, where the tool is at hand."""
    if shutil.which("strip"):
        for path in [output / "lib" / "python3", *output.rglob("*.so"), *output.rglob("*.so.*")]:
            subprocess.run(["strip", "--strip-unneeded", str(path)], check=False, capture_output=True)


def finish(output: pathlib.Path) -> None:
    """Modes that suit any user, times that suit a reproducible build, and a list of hashes that install checks."""
    lines = []
    for path in sorted(output.rglob("*")):
        if path.is_symlink():
            continue
        executable = path.is_dir() or path.parent.name == "bin" or path.parent == output / "lib" or ".so" in path.name
        path.chmod(0o755 if executable else 0o644)
        if path.is_file():
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(output)}\n")
    manifest = output / "MANIFEST.sha256"
    manifest.write_text("".join(lines))
    manifest.chmod(0o644)
    when = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    for path in [output, *output.rglob("*")]:
        os.utime(path, (when, when), follow_symlinks=False)


def main() -> None:
    """The steps, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the directory to make; must not exist")
    parser.add_argument("--wheelhouse", type=pathlib.Path, help="wheels to install from, without any network")
    parser.add_argument("--cluster", action="store_true", help="with the Kubernetes client, for the watcher")
    told = parser.parse_args()
    output = told.output.resolve()
    if output.exists():
        raise SystemExit(f"{output} is there already")
    wheelhouse = told.wheelhouse.resolve() if told.wheelhouse and any(told.wheelhouse.glob("*.whl")) else None
    os.environ["PYTHONHASHSEED"] = "0"
    copy_interpreter(output)
    copy_standard_library(output, cluster=told.cluster)
    install_packages(output, wheelhouse, cluster=told.cluster)
    copy_libraries(output)
    strip(output)
    compile_all(output)
    gather_modules(output)
    build_launcher(output)
    certificates(output)
    finish(output)
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"{output}: {platform.machine()}, {VERSION}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
