"""The public names of tosaic and of its areas, which are listed only in stubs, ``__init__.pyi``.

A line ``from tosaic.api.calls import lower as lower`` says that `lower` is public, and which module has it. A
line ``from tosaic import fx as fx`` says that a folder is an area. Type checkers read the same files. A name
is loaded on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tosaic.base.extras import naming_extras

_FOUND: dict[str, dict[str, str]] = {}


def names_of_stub(package: str, folder: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the functions ``__getattr__`` and ``__dir__`` of a package whose public names are in its stub.

    Parameters
    ----------
    package : str
        Its dotted name.
    folder : str
        The folder of its stub.
    """

    def found(name: str) -> Any:
        public = public_name(package, folder, name)
        if name != "__all__":
            setattr(sys.modules[package], name, public)
        return public

    return found, lambda: sorted(public_names(package, folder))


def public_names(package: str, folder: str) -> dict[str, str]:
    """Returns the public names of a package, each with the module that has it.

    Parameters
    ----------
    package : str
        The dotted name of the package.
    folder : str
        The folder of its stub.
    """
    if package not in _FOUND:
        stub = (Path(folder) / "__init__.pyi").read_text(encoding="utf-8")
        found: dict[str, str] = {}
        home = ""
        for line in stub.splitlines():
            text = line
            if line.startswith("from "):
                home, _, text = line.removeprefix("from ").partition(" import ")
            for entry in text.strip(" ()").split(","):
                name, is_public, _ = entry.strip().partition(" as ")
                if is_public and home:
                    found[name] = home
        _FOUND[package] = found
    return _FOUND[package]


def public_name(package: str, folder: str, name: str) -> Any:
    """Returns the object that a package has by this name, or its list ``__all__``.

    Raises
    ------
    AttributeError
        The package has no such name.
    """
    names = public_names(package, folder)
    if name == "__all__":
        return [each for each, home in names.items() if home != package]
    home = names.get(name)
    if home is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    if home == package:
        return import_module(f"{package}.{name}")
    with naming_extras(f"{package}.{name}"):
        return getattr(import_module(home), name)
