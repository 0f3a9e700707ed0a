"""The configuration: command line over environment over files over defaults; every mistake is named and ignored."""

from gpualert.config.loading import Problem, load
from gpualert.config.settings import Settings

__all__ = ["Problem", "Settings", "load"]
