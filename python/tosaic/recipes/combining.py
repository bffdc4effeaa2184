"""Several recipes: `combined` merges them or refuses, and `differences` compares two.

`combined` reads a recipe as claims, each of which sets a subject to a value::

    config                                  QConfig.int8()
    rules, operand 'grid' of grid_sampler   Fixed('int16', ...)
    io, inputs, 'image'                     'int8'

If two recipes make claims about the same subject, the values have to be equal. The result has the entries of
all recipes in their order, each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tosaic.base.options import cut, invalid, is_mapping
from tosaic.base.visible import one_line
from tosaic.recipes.texts import text_of

if TYPE_CHECKING:
    from tosaic.annotation.config import QConfig
    from tosaic.recipes.recipe import Recipe

_LISTS = ("rules", "tools", "stages", "claimants", "passes")
_MAPPINGS = ("io", "orders", "flags")
_SINGLE = ("config", "objective", "rgba")


@dataclass(frozen=True)
class Difference:
    """A field, or an entry of a field, that two recipes do not share.

    Attributes
    ----------
    field : str
        ``config``, ``rules``, ``claimants`` ...
    entry : str
        The part of the field that differs, such as a key; empty for the whole field.
    here, there : object
        The values of the two recipes; None where a recipe does not have the entry.
    """

    field: str
    entry: str
    here: Any
    there: Any

    def __str__(self) -> str:
        name = self.field + (f" {self.entry}" if self.entry else "")
        return one_line(f"{name}: {cut(text_of(self.here))} here, {cut(text_of(self.there))} there")


def combined(recipes: Sequence[Recipe], name: str | None) -> dict[str, Any]:
    """Returns the fields of a recipe that merges several recipes; see `tosaic.recipes.combine`."""
    _require_agreement(recipes)
    fields: dict[str, Any] = {
        "name": "+".join(each.name for each in recipes) if name is None else name,
        "summary": " ".join(dict.fromkeys(each.summary for each in recipes if each.summary)),
    }
    for field in _LISTS:
        fields[field] = _distinct(entry for each in recipes for entry in getattr(each, field))
    for field in _MAPPINGS:
        fields[field] = merged(getattr(each, field) for each in recipes)
    fields["objective"] = next((each.objective for each in recipes if each.objective is not None), None)
    fields["config"] = _common_config([each.config for each in recipes if each.config is not None])
    asked = any(each.rgba is not None for each in recipes)
    fields["rgba"] = merged(each.rgba_ports for each in recipes) or (True if asked else None)
    return fields


def _common_config(configs: Sequence[QConfig]) -> QConfig | None:
    """Returns the only configuration; without streams if the configurations differ in streams alone."""
    if not configs or all(each == configs[0] for each in configs):
        return configs[0] if configs else None
    return _without_streams(configs[0])


def _without_streams(config: QConfig) -> QConfig:
    """Returns a configuration in which residual streams have the integers of other activations.

    A stream of other integers is what one device prefers. All devices take the integers of activations.
    """
    selections = tuple(
        (where, None if precision is None else replace(precision, stream=None))
        for where, precision in config.selections
    )
    return replace(config, selections=selections)


def differences(here: Recipe, there: Recipe) -> tuple[Difference, ...]:
    """Returns the differences between two recipes, field by field."""
    found: list[Difference] = []
    for field in _SINGLE:
        a, b = getattr(here, field), getattr(there, field)
        if a != b:
            found.append(Difference(field, "", a, b))
    for field in _MAPPINGS:
        a, b = getattr(here, field), getattr(there, field)
        found += [
            Difference(field, repr(key), a.get(key), b.get(key))
            for key in dict.fromkeys([*a, *b])
            if a.get(key) != b.get(key)
        ]
    for field in _LISTS:
        a, b = getattr(here, field), getattr(there, field)
        only_here, only_there = [e for e in a if e not in b], [e for e in b if e not in a]
        found += [Difference(field, "", each, None) for each in only_here]
        found += [Difference(field, "", None, each) for each in only_there]
        if not only_here and not only_there and tuple(a) != tuple(b):
            found.append(Difference(field, "order", tuple(a), tuple(b)))
    return tuple(found)


def _distinct(entries: Iterator[Any]) -> tuple[Any, ...]:
    """Returns the entries without repetitions. Rules and stages need not be hashable."""
    found: list[Any] = []
    for entry in entries:
        if entry not in found:
            found.append(entry)
    return tuple(found)


def merged(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a mapping with the entries of all mappings; entries that are mappings are merged, too."""
    found: dict[str, Any] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            old: Any = found.get(key)
            found[key] = {**old, **value} if is_mapping(old) and is_mapping(value) else value
    return found


def _require_agreement(recipes: Sequence[Recipe]) -> None:
    claimed: dict[Any, tuple[str, str, Any]] = {}
    conflicts: list[str] = []
    for recipe in recipes:
        for subject, text, value in _claims(recipe):
            author, _, other = claimed.setdefault(subject, (recipe.name, text, value))
            if subject == "config" and _without_streams(other) == _without_streams(value):
                continue
            if other != value:
                conflicts.append(
                    f"{text} is {cut(text_of(other))} in recipe '{author}' "
                    f"and {cut(text_of(value))} in '{recipe.name}'"
                )
    if conflicts:
        many = len(conflicts) > 1
        raise invalid(
            "combine",
            f"the recipes contradict each other in {len(conflicts)} things" if many else conflicts[0],
            got="; ".join(conflicts) if many else "",
            hint="Take one side: recipe.replace(field=value) returns a changed recipe",
        )


def _claims(recipe: Recipe) -> Iterator[tuple[Any, str, Any]]:
    """Yields the claims of a recipe: a hashable subject, its text, and the value."""
    for field in ("config", "objective"):
        if (value := getattr(recipe, field)) is not None:
            yield field, f"'{field}'", value
    for field in _MAPPINGS:
        for key, value in getattr(recipe, field).items():
            yield from _entries((field, key), f"'{field}' of '{key}'", value)
    for side, names in recipe.rgba_ports.items():
        yield ("rgba", side), f"'rgba' of '{side}'", names
    for claimant in recipe.takers:
        yield ("claimant", claimant.name), f"claimant '{claimant.name}'", claimant
    for stage in recipe.stages:
        yield ("stage", stage.name), f"stage '{stage.name}'", stage
        if stage.at == "quantize":
            yield "quantize", "the stage that quantizes", stage
    for tool in recipe.tools:
        yield ("tool", type(tool)), f"tool '{getattr(tool, 'name', tool)}'", tool
    for change in recipe.passes:
        if change.action in ("replace", "remove"):
            for name in change.claimants or ("",):
                yield ("pass", change.anchor, name), f"pass '{change.anchor}'", change
    for rule in recipe.rules:
        yield from _claims_of_rule(rule)


def _entries(subject: Any, text: str, value: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields the entries of an option of `io` or `orders`, which is one value or a mapping by port."""
    if not is_mapping(value):
        yield (*subject, "whole"), text, value
        return
    yield (*subject, "whole"), text, "entries by name or index"
    for key, entry in value.items():
        yield (*subject, key), f"{text}, {key!r},", entry


def _claims_of_rule(rule: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields the claims of a rule; a function is one claim under its name."""
    describe = getattr(rule, "core_rule", None)
    if describe is None:
        name = getattr(rule, "name", None) or getattr(rule, "__qualname__", type(rule).__name__)
        yield ("rule", "function", name), f"rule '{name}'", rule
        return
    kind, fields = describe()
    about = type(rule).__name__
    if kind in ("inputs", "outputs"):
        for key, spec in fields["specs"].items():
            yield ("rule", kind, key), f"the spec of '{kind}' {key!r}", spec
    elif kind == "around":
        where = fields["where"]
        for key, spec in fields["operands"].items():
            yield ("rule", kind, where, key), f"the spec of operand {key!r} of {where!r}", spec
        if "result" in fields:
            yield ("rule", kind, where, None), f"the spec of results of {where!r}", fields["result"]
    else:
        subject = tuple(sorted((key, repr(value)) for key, value in fields.items() if key != "until"))
        yield ("rule", kind, subject), f"rule {about}", rule
