"""``tosaic recipes``: list recipes, print one, or compare two."""

from __future__ import annotations

import argparse
from dataclasses import replace

from tosaic.cli.entries import refused_option
from tosaic.cli.errors import FAILED, OK
from tosaic.cli.named import named_recipe, recipe_of
from tosaic.cli.options import add_trust
from tosaic.cli.showing import show

SUMMARY = "list recipes, print one, or compare two"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic recipes``."""
    command.add_argument(
        "recipe", metavar="RECIPE", nargs="*", help="print this recipe; several are combined"
    )
    command.add_argument("--diff", action="store_true", help="say how two recipes differ")
    command.add_argument("-o", "--output", metavar="FILE", help="write the recipe as JSON")
    add_trust(command)


def run(args: argparse.Namespace) -> int:
    """Lists recipes, prints one, or prints the differences between two."""
    from tosaic.recipes.builtin import named, names
    from tosaic.report.recipes import describe_differences, describe_recipe, describe_recipes

    if args.diff:
        if len(args.recipe) != 2:
            raise refused_option(
                "--diff", f"it compares two recipes, and there are {len(args.recipe)}", "two"
            )
        a, b = (named_recipe(name, args.trust) for name in args.recipe)
        show(describe_differences(a, b), args)
        return FAILED if a.diff(b) else OK
    if not args.recipe:
        show(describe_recipes([named(name) for name in names()]), args)
        return OK
    made = recipe_of(args.recipe, args.trust)
    if args.output:
        made.save(args.output)
    report = describe_recipe(made)
    show(replace(report, data={**report.data, "output": args.output}), args)
    return OK
