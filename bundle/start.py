"""The bundle's first code: the supervisor's modules come out of one file, so that none is looked for in directories.

``modules.bin`` beside this file is marshalled: the names of the modules that every run needs, in the order in which
they depend on each other, and a table of all: name to whether it is a package, its source's path in the bundle, and its
marshalled code. What is not in it is imported as usual.
"""

import marshal
import sys
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
else:
    ModuleType = type(sys)  # the module types is not needed for that
LIBRARY = __file__.rpartition("/")[0]
ROOT = LIBRARY.rpartition("/")[0]


class Finder:
    """Finds and loads the modules of the table."""

    def __init__(self, table: dict[str, tuple[bool, str, bytes]]) -> None:
        self._table = table

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The spec of a module in the table; None for any other."""
        entry = self._table.get(name)
        if entry is None:
            return None
        is_package, path, _code = entry
        spec = ModuleSpec(name, self, origin=f"{ROOT}/{path}", is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(f"{ROOT}/{path.rpartition('/')[0]}")
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code."""
        exec(marshal.loads(self._table[module.__name__][2]), module.__dict__)

    def load_at_once(self, names: list[str]) -> None:
        """Load modules without the import system, which would take a third of the time to start.

        Args:
            names: Each after those that it imports.
        """
        for name in names:
            is_package, path, code = self._table[name]
            module = ModuleType(name)
            parent, _, last = name.rpartition(".")
            module.__file__ = f"{ROOT}/{path}"
            module.__package__ = name if is_package else parent
            if is_package:
                module.__path__ = [module.__file__.rpartition("/")[0]]
            sys.modules[name] = module
            exec(marshal.loads(code), module.__dict__)
            if parent:
                setattr(sys.modules[parent], last, module)


def start() -> None:
    """Import from the table first, from the bundle's packages last, and run gpualert."""
    with open(f"{LIBRARY}/modules.bin", "rb") as file:
        order, table = marshal.load(file)
    finder = Finder(table)
    sys.meta_path.insert(0, finder)
    sys.path.append(f"{ROOT}/site")
    if sys.argv[1:2] == ["run"]:
        finder.load_at_once(order)
    from gpualert.__main__ import main  # noqa: PLC0415  (found only now)

    main()


if __name__ == "__main__":
    start()
