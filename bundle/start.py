"""The bundle's first code: the supervisor's modules come out of one file, so that none is looked for in directories.

``modules.bin`` beside this file is a marshalled table: name to whether it is a package, its source's path in the bundle,
and its marshalled code. What is not in it is imported as usual.
"""

import marshal
import sys
from _frozen_importlib import ModuleSpec

LIBRARY = __file__.rpartition("/")[0]
ROOT = LIBRARY.rpartition("/")[0]
SITE = f"{ROOT}/site"


class Finder:
    """Finds and loads the modules of the table."""

    def __init__(self, table: dict) -> None:
        self._table = table

    def find_spec(self, name, _path=None, _target=None):
        """The spec of a module in the table; None for any other."""
        entry = self._table.get(name)
        if entry is None:
            return None
        is_package, path, _code = entry
        spec = ModuleSpec(name, self, origin=f"{ROOT}/{path}", is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations.append(f"{ROOT}/{path.rpartition('/')[0]}")
        return spec

    def create_module(self, _spec):
        """As usual."""

    def exec_module(self, module) -> None:
        """Run a module's code."""
        exec(marshal.loads(self._table[module.__name__][2]), module.__dict__)  # noqa: S102, S302  (our own file)


def start() -> None:
    """Import from the table first, from the bundle's packages last, and run gpualert."""
    with open(f"{LIBRARY}/modules.bin", "rb") as file:
        sys.meta_path.insert(0, Finder(marshal.load(file)))  # noqa: S302
    sys.path.append(SITE)
    from gpualert.__main__ import main

    main()


start()
