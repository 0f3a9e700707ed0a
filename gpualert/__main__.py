"""``gpualert``, ``python -m gpualert``, and ``python PATH/gpualert``: the way in."""

import sys


def main() -> None:
    """Run gpualert's command line."""
    _distrust_import_path()
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"] and arguments[1:2] not in (["-h"], ["--help"]):
        from gpualert.supervisor.main import run  # noqa: PLC0415  (alone: it must start quickly)

        run(arguments[1:])
    from gpualert.cli.main import main as command_line  # noqa: PLC0415

    command_line(arguments)


def _distrust_import_path() -> None:
    """Drop what PYTHONPATH and the working directory add to the import path (``python -I`` does so by itself)."""
    if sys.flags.isolated:
        return
    import posix  # noqa: PLC0415

    entries = posix.environ.get(b"PYTHONPATH", b"").decode("utf-8", "surrogateescape").split(":")
    here = {entry.rstrip("/") for entry in entries if entry}
    package = __file__.rpartition("/gpualert/")[0]
    sys.path[:] = [path for path in sys.path if path and path.rstrip("/") not in here - {package}]


if __name__ == "__main__":
    if not __package__:  # started as a directory: its parent holds the package
        sys.path[:1] = [__file__.rpartition("/gpualert/")[0]]
    main()
