"""Reports of recipes: one recipe, a list, and the differences between two."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tosaic.base.options import shown
from tosaic.recipes.recipe import Recipe
from tosaic.report.document import Report
from tosaic.report.parts import Section, table


def describe_recipe(recipe: Recipe) -> Report:
    """Makes a report of a recipe: its fields."""
    return Report(
        title=f"recipe {recipe.name}",
        facts=(("summary", recipe.summary),) if recipe.summary else (),
        sections=(Section("", table(("field", "value"), recipe.entries())),),
        data={"recipe": json.loads(recipe.to_json())},
    )


def describe_recipes(recipes: Sequence[Recipe]) -> Report:
    """Makes a list of recipes with their purposes."""
    rows = [(each.name, ", ".join(taker.name for taker in each.takers), each.summary) for each in recipes]
    return Report(
        title=f"{len(rows)} recipes",
        sections=(Section("", table(("recipe", "claimants", "what it does"), rows)),),
        data={"recipes": [json.loads(each.to_json()) for each in recipes]},
    )


def describe_differences(here: Recipe, there: Recipe) -> Report:
    """Makes a report of the differences between two recipes."""
    found = here.diff(there)
    rows = [(each.field, each.entry, _value(each.here), _value(each.there)) for each in found]
    columns = ("field", "entry", here.name, there.name)
    return Report(
        title=f"{here.name} and {there.name}: {len(found)} differences",
        ok=not found,
        sections=(Section("", table(columns, rows)),) if rows else (),
        data={
            "differences": [
                {"field": d.field, "entry": d.entry, "here": shown(d.here), "there": shown(d.there)}
                for d in found
            ]
        },
    )


def _value(value: object) -> str:
    from tosaic.recipes.texts import text_of

    return "-" if value is None else text_of(value)
