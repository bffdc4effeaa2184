"""``tosaic export``: export, quantize, lower and check a model, as a recipe says."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tosaic.base.file_kinds import PT2
from tosaic.cli.entries import bindings, io_sides, orders, refused_option
from tosaic.cli.errors import FAILED, OK
from tosaic.cli.named import python_object, recipe_of
from tosaic.cli.options import add_bind, add_io
from tosaic.cli.showing import show
from tosaic.devices.engines import engine_names

SUMMARY = "export, quantize, lower and check a model, as a recipe says"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic export``."""
    command.add_argument(
        "file",
        metavar="MODEL",
        help="a .pt2 file, graph text, an archive of tosaic, or a Python function module:name that returns a "
        "torch module and its example inputs",
    )
    command.add_argument(
        "--recipe",
        metavar="RECIPE",
        action="append",
        required=True,
        help="a name that the command recipes lists, a .json file of a recipe, or a Python object "
        "module:name; may be repeated to combine recipes",
    )
    command.add_argument(
        "--samples",
        metavar="ARRAYS",
        action="append",
        default=[],
        help="an .npz by input names, or an .npy: a sample, or a stack of them, to quantize and to check on; "
        "may be repeated",
    )
    command.add_argument("-o", "--output", metavar="FOLDER", required=True, help="a new folder for the files")
    command.add_argument("--floats", action="store_true", help="quantize nothing")
    command.add_argument(
        "--claimants", metavar="NAMES", help="who takes nodes, in order, in place of the recipe's claimants"
    )
    add_io(command)
    command.add_argument(
        "--rgba",
        metavar="SIDE.NAME",
        action="append",
        default=[],
        help="an RGB image that has four channels, such as inputs.image; may be repeated",
    )
    command.add_argument(
        "--check-on",
        action="append",
        choices=engine_names(),
        help="run the groups there, too, with equal results: the TOSA reference model, or Vulkan",
    )
    command.add_argument(
        "--least-db",
        type=float,
        metavar="DB",
        help="an output with a lower SQNR against the model in floats fails",
    )
    command.add_argument("--name", default="model", help="the stem of file names (default: %(default)s)")
    command.add_argument(
        "--verbose",
        type=int,
        default=1,
        metavar="N",
        help="0: nothing, 1: a progress bar, 2: a line for each step, 3: all messages (default: %(default)s)",
    )
    add_bind(command)


def run(args: argparse.Namespace) -> int:
    """Exports a model as a recipe says; the report is the output."""
    from tosaic.api.calls import open_program
    from tosaic.base.writing import require_new_folder
    from tosaic.exporting.call import export_model

    require_new_folder(args.output)
    chosen = recipe_of(args.recipe, args.trust)
    model, inputs = _model(args.file, args.trust)
    bind = bindings(args.bind)
    named: Any = args.file
    if any(place not in ("inputs", "outputs") for place, _ in args.io):  # names of the program
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
    show(result.report(), args)
    return OK if result.ok else FAILED


def _model(name: str, trust: bool) -> tuple[Any, Any]:
    """Returns the model of a file, or the (model, inputs) that a Python function ``module:name`` returns."""
    if ":" not in name or Path(name).exists():
        from tosaic.opening.sources import open_program

        is_file_of_torch = PT2.holds(name)
        return (name if is_file_of_torch else open_program(name, trust=trust)), None
    function = python_object("MODEL", name)
    made = function() if callable(function) and not hasattr(function, "parameters") else function
    if not isinstance(made, tuple) or len(made) != 2:
        expected = "a model and its example inputs: return model, (x,)"
        raise refused_option("MODEL", f"'{name}' returns a {type(made).__name__}", expected)
    return made


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
