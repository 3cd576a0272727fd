"""Names of a package that are imported when they are first used.

__getattr__, __dir__, __all__ = lazy_names(__name__, {"batching": "Batch batch", "errors": ""})

homes: modules below the package, and the names that each gives (the module itself by its own). For type checkers the
same names stand as imports below `if TYPE_CHECKING:`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], refused: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """refused: names that others have, and what it is called here."""
    home_of = {name: home for home, names in homes.items() for name in names.split() or [home]}

    def find(name: str) -> Any:
        if name in (refused or {}):  # an AttributeError would lose its text in `from package import ...`
            raise ImportError(f"{package} has no {name!r}; here it is {(refused or {})[name]}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{home_of[name]}")
        value = module if name == home_of[name] else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(home_of)
    return find, lambda: [*names, *(name for name in vars(sys.modules[package]) if name[:2] == "__")], names
