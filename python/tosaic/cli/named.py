"""Recipes and Python objects that the command line names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic.base.visible import one_line
from tosaic.cli.entries import refused_option

if TYPE_CHECKING:
    from tosaic.recipes.recipe import Recipe


def recipe_of(names: Sequence[str], trust: bool) -> Recipe:
    """Returns the recipe of a name, or several combined."""
    from tosaic.recipes.recipe import combine

    found = [named_recipe(name, trust) for name in names]
    return found[0] if len(found) == 1 else combine(found)


def named_recipe(name: str, trust: bool) -> Recipe:
    """Returns the recipe of a name, of a JSON file, or of a Python object ``module:name``."""
    from tosaic.recipes.builtin import named
    from tosaic.recipes.recipe import Recipe

    if Path(name).suffix == ".json":
        return Recipe.load(name, trust=trust)
    if ":" in name:
        found = python_object("--recipe", name)
        if not isinstance(found, Recipe):
            raise refused_option("--recipe", f"'{name}' is a {type(found).__name__}", "a tosaic.Recipe")
        return found
    return named(name)


def python_object(option: str, name: str) -> Any:
    """Imports ``module:name``, also from the working folder."""
    module, _, path = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise refused_option(
            option, f"'{one_line(name)}' cannot be imported: {one_line(str(error))}", "module:name"
        ) from error
