"""What ``tosaic export`` and ``tosaic recipes`` do."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic.base.visible import one_line
from tosaic.cli.entries import bindings, io_sides, orders, refused_option
from tosaic.cli.errors import FAILED, OK
from tosaic.cli.output import say

if TYPE_CHECKING:
    from tosaic.recipes import Recipe
    from tosaic.report import Report

__all__ = ["export", "list_recipes"]


def export(args: argparse.Namespace) -> int:
    """Exports a model as a recipe says; the report is the output."""
    from tosaic.api.calls import open_program
    from tosaic.base.writing import require_new_folder
    from tosaic.exporting.call import export_model

    require_new_folder(args.output)
    chosen = _recipe(args.recipe, args.trust)
    model, inputs = _model(args.file, args.trust)
    bind = bindings(args.bind)
    named: Any = args.file
    if any(place not in ("inputs", "outputs") for place, _ in args.io):  # names are those of the program
        named = open_program(args.file, bind=bind, trust=args.trust)
    result = export_model(
        model,
        inputs,
        recipe=chosen,
        quantize=not args.floats,
        samples=list(args.samples) or None,
        folder=args.output,
        io=io_sides(args.io, named),
        orders=orders(args.orders),
        rgba=_rgba(args.rgba),
        claimants=args.claimants.split(",") if args.claimants else None,
        bind=bind,
        trust=args.trust,
        check_on=tuple(args.check_on or ()),
        least_db=args.least_db,
        on_failed_check="report",
        name=args.name,
        verbose=0 if args.json else args.verbose,
    )
    _show(result.report(), as_json=args.json)
    return OK if result.ok else FAILED


def list_recipes(args: argparse.Namespace) -> int:
    """Lists recipes, prints one, or says how two differ."""
    from tosaic import recipes
    from tosaic.report.recipes import describe_differences, describe_recipe, describe_recipes

    if args.diff:
        if len(args.recipe) != 2:
            raise refused_option(
                "--diff", f"it compares two recipes, and there are {len(args.recipe)}", "two"
            )
        a, b = (_one(name, args.trust) for name in args.recipe)
        _show(describe_differences(a, b), as_json=args.json)
        return FAILED if a.diff(b) else OK
    if not args.recipe:
        _show(describe_recipes([recipes.named(name) for name in recipes.names()]), as_json=args.json)
        return OK
    made = _recipe(args.recipe, args.trust)
    if args.output:
        made.save(args.output)
    report = describe_recipe(made)
    _show(replace(report, data={**report.data, "output": args.output}), as_json=args.json)
    return OK


def _show(report: Report, *, as_json: bool) -> None:
    say((report.json if as_json else report.text) + "\n")


def _recipe(names: Sequence[str], trust: bool) -> Recipe:
    from tosaic.recipes import combine

    found = [_one(name, trust) for name in names]
    return found[0] if len(found) == 1 else combine(found)


def _one(name: str, trust: bool) -> Recipe:
    """Returns the recipe of a name, of a JSON file, or of a Python object ``module:name``."""
    from tosaic import recipes

    if Path(name).suffix == ".json":
        return recipes.Recipe.load(name, trust=trust)
    if ":" in name:
        found = _python_object("--recipe", name)
        if not isinstance(found, recipes.Recipe):
            raise refused_option("--recipe", f"'{name}' is a {type(found).__name__}", "a tosaic.Recipe")
        return found
    return recipes.named(name)


def _model(name: str, trust: bool) -> tuple[Any, Any]:
    """Returns the model of a file, or what a Python function ``module:name`` returns: model and inputs."""
    if ":" not in name or Path(name).exists():
        from tosaic.opening.sources import open_program

        is_file_of_torch = Path(name).suffix == ".pt2"
        return (name if is_file_of_torch else open_program(name, trust=trust)), None
    function = _python_object("MODEL", name)
    made = function() if callable(function) and not hasattr(function, "parameters") else function
    if not isinstance(made, tuple) or len(made) != 2:
        expected = "a model and its example inputs: return model, (x,)"
        raise refused_option("MODEL", f"'{name}' returns a {type(made).__name__}", expected)
    return made


def _python_object(option: str, name: str) -> Any:
    """Imports ``module:name``, also from the working folder."""
    module, _, path = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise refused_option(
            option, f"'{one_line(name)}' cannot be imported: {one_line(str(error))}", "module:name"
        ) from error
    return found


def _rgba(given: Sequence[str]) -> Any:
    """Gathers entries of ``--rgba``: ``inputs.image`` becomes ``{"inputs": ["image"]}``."""
    if not given:
        return None
    sides: dict[str, list[str | int]] = {}
    for entry in given:
        side, _, name = entry.partition(".")
        if side not in ("inputs", "outputs") or not name:
            raise refused_option("--rgba", f"'{entry}' names no input or output", "such as inputs.image")
        sides.setdefault(side, []).append(int(name) if name.isdecimal() else name)
    return sides
