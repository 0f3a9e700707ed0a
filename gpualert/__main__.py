"""``gpualert``, ``python -m gpualert``, and ``python PATH/gpualert``: the way in."""

import sys


def main() -> None:
    """Run gpualert's command line."""
    _distrust_import_path()
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"] and arguments[1:2] not in (["-h"], ["--help"]):
        from gpualert.supervisor.main import run  # noqa: PLC0415  (alone: it must start quickly)

        run(arguments[1:])
    _take_signals_again()
    from gpualert.cli.main import main as command_line  # noqa: PLC0415

    command_line(arguments)


def _take_signals_again() -> None:
    """Undo what the bundle's launcher does for the supervisor, the only command that takes signals one by one.

    The launcher blocks them all; without this, SIGTERM and Ctrl-C would wait for ever. What was ignored still is. As
    PID 1 a process gets no signal that it does not handle, so SIGTERM ends it as it ends any other.
    """
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415

    blocked = os.environ.pop("_GPUALERT_SIGNALS", "").partition(":")[0]
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else the kernel reaps for us, and no status is seen
    try:
        mask = int(blocked, 16)
    except ValueError:
        return  # not from our launcher
    signal.pthread_sigmask(signal.SIG_SETMASK, {number for number in range(1, 65) if mask >> (number - 1) & 1})


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
