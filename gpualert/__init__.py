"""gpualert: put it in front of a training command and know why the job failed."""

__version__ = "0.1.0"
