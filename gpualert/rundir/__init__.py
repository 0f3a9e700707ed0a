"""The run directory: the files of one run, how they are written, and how they are read again.

What the supervisor uses (``writer``, ``logfile``, ``index``, ``jsontext``, ``termination``, ``clock``) imports nothing
beyond C modules of the standard library.
"""
