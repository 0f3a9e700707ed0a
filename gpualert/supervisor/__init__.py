"""The supervisor: launches a command, keeps its output, forwards signals, reaps, and exits as the command did.

Standard library alone, and of that only what costs nothing at start: the C modules behind ``os`` and ``signal``
(``posix``, ``_signal``, ``_thread``) instead of the modules themselves.
"""
