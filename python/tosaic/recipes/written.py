"""Recipes as JSON: each object of a recipe is written with the name of its class and its fields.

::

    {"class": "Fixed", "dtype": "int8", "scale": 0.5}   a dataclass, without fields that have their defaults
    {"function": "my_package.rules:head_in_floats"}     a function, by module and name
    {"entries": [[0, {"class": ...}]]}                  a mapping whose keys are not all strings
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tosaic.annotation import config, observers, rules, select, specs
from tosaic.base.json_text import parsed_json
from tosaic.base.options import invalid, is_mapping, shown
from tosaic.base.quantization import QParams
from tosaic.calibration import accuracy
from tosaic.partitions.claimant import Claimant, ClaimantRule
from tosaic.recipes.changes import PassChange
from tosaic.recipes.stage import Stage

if TYPE_CHECKING:
    from tosaic.recipes.recipe import Recipe

_FORMAT, _VERSION = "tosaic recipe", 1
_PACKAGES = (
    "tosaic.recipes",
    "tosaic.annotation",
    "torch.ao.quantization.observer",
    "torchao.quantization.pt2e.observer",
)
"""Packages whose functions any recipe may name. These functions only decide how a model is quantized."""
_WHERE = "Recipe"


def _classes() -> dict[str, type[Any]]:
    """Returns the classes whose objects a recipe may contain, by name."""
    modules = (accuracy, config, observers, rules, select, specs)
    named = [getattr(module, name) for module in modules for name in module.__all__]
    found = [*named, Claimant, ClaimantRule, QParams, PassChange, Stage]
    return {
        each.__name__: each for each in found if isinstance(each, type) and dataclasses.is_dataclass(each)
    }


CLASSES = _classes()
"""The classes by name; the methods of `Recipe` add `Recipe`."""


def to_json(recipe: Recipe) -> str:
    """See `Recipe.to_json`."""
    written = _write(recipe, "the recipe")
    return json.dumps({"format": _FORMAT, "version": _VERSION, **written}, indent=1, allow_nan=False) + "\n"


def from_json(text: str, kind: type[Recipe], *, trust: bool = False) -> Recipe:
    """See `Recipe.from_json`."""
    try:
        data = parsed_json(text)
    except ValueError as error:
        raise _damaged("the text", "JSON", str(error)) from error
    if not is_mapping(data) or data.get("format") != _FORMAT or data.get("version") != _VERSION:
        got = {key: data.get(key) for key in ("format", "version")} if is_mapping(data) else data
        raise _damaged("the text", f"format '{_FORMAT}', version {_VERSION}", shown(got))
    data = {key: value for key, value in data.items() if key not in ("format", "version")}
    recipe = _read(data, "the recipe", trust)
    if not isinstance(recipe, kind):
        raise _damaged("the text", "a recipe", shown(data.get("class")))
    return recipe


def _write(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _unwritable(where, value)
        return value
    if isinstance(value, list | tuple):
        return [_write(each, f"{where}[{i}]") for i, each in enumerate(value)]
    if is_mapping(value):
        if all(isinstance(key, str) for key in value) and not {"class", "function", "entries"} & set(value):
            return {key: _write(each, f"{where}[{key!r}]") for key, each in value.items()}
        return {"entries": [[key, _write(each, f"{where}[{key!r}]")] for key, each in value.items()]}
    if value is specs.UNSET:
        return {"class": "Unset"}
    if type(value).__name__ in CLASSES and type(value) is CLASSES[type(value).__name__]:
        return {"class": type(value).__name__, **_fields(value, where)}
    if callable(value):
        return {"function": _name_of(value, where)}
    raise _unwritable(where, value)


def _fields(value: Any, where: str) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if default is dataclasses.MISSING or found != default:
            written[field.name] = _write(found, f"{where}.{field.name}")
    return written


def _name_of(function: Callable[..., Any], where: str) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    written = f"{module}:{name}"
    if module in (None, "__main__") or "<" in name or not name:
        raise invalid(
            _WHERE,
            f"the function in {where} has no name that another process can import",
            expected="a function at the top of a module",
            got=shown(function),
            hint="Define it in a module of its own, and import it from there",
        )
    if _imported(written, where) is not function:
        raise _damaged(f"the function in {where}", f"what '{written}' is", shown(function))
    return written


def _imported(name: str, where: str) -> Any:
    module, _, path = name.partition(":")
    try:
        return attrgetter(path)(importlib.import_module(module))
    except MemoryError:
        raise
    except Exception as error:  # a module may raise anything
        raise _damaged(f"the function in {where}", f"'{name}'", f"{type(error).__name__}: {error}") from error


def _own_function(name: str, where: str) -> Any:
    """Returns a function that any recipe may name: a public function, defined in one of `_PACKAGES`."""
    module, _, path = name.partition(":")
    is_public = all(part and not part.startswith("_") for part in (*module.split("."), *path.split(".")))
    if is_public and _is_listed(module):
        found = _imported(name, where)
        if callable(found) and _is_listed(getattr(found, "__module__", "")):
            return found
    raise invalid(
        _WHERE,
        f"the function in {where} is not one that any recipe may name",
        expected=f"a function of {', '.join(_PACKAGES)}",
        got=shown(name),
        hint="If you trust whoever made the recipe, pass trust=True, or --trust to a command",
    )


def _is_listed(module: Any) -> bool:
    return isinstance(module, str) and any(
        module == package or module.startswith(f"{package}.") for package in _PACKAGES
    )


def _read(data: Any, where: str, trust: bool) -> Any:
    if isinstance(data, list):
        return tuple(_read(each, f"{where}[{i}]", trust) for i, each in enumerate(data))
    if not is_mapping(data):
        return data
    if "class" not in data:
        return _read_untyped(data, where, trust)
    name = data["class"]
    if name == "Unset":
        return specs.UNSET
    if not isinstance(name, str) or name not in CLASSES:
        raise _damaged(where, f"one of {', '.join(sorted(CLASSES))}", shown(name))
    fields = {key: _read(each, f"{where}.{key}", trust) for key, each in data.items() if key != "class"}
    try:
        return CLASSES[name](**fields)
    except TypeError as error:
        raise _damaged(where, f"the fields of {name}", str(error)) from error


def _read_untyped(data: Any, where: str, trust: bool) -> Any:
    """Returns the function or the mapping that a JSON object without a class represents."""
    if set(data) == {"function"}:
        name = str(data["function"])
        return _imported(name, where) if trust else _own_function(name, where)
    if set(data) == {"entries"}:
        pairs = data["entries"]
        is_pairs = isinstance(pairs, list) and all(isinstance(p, list) and len(p) == 2 for p in pairs)
        if not is_pairs:
            raise _damaged(where, "pairs of a key and a value", shown(pairs))
        return {_key(key, where): _read(each, f"{where}[{key!r}]", trust) for key, each in pairs}
    return {key: _read(each, f"{where}[{key!r}]", trust) for key, each in data.items()}


def _key(key: Any, where: str) -> Any:
    if isinstance(key, str | int):
        return key
    raise _damaged(where, "a name or an index as key", shown(key))


def _damaged(what: str, expected: str, got: str) -> Exception:
    return invalid(_WHERE, f"{what} is wrong", expected=expected, got=got)


def _unwritable(where: str, value: Any) -> Exception:
    return invalid(
        _WHERE,
        f"{where} has no form in JSON",
        expected="numbers, strings, functions of modules, and the objects of recipes",
        got=shown(value),
    )
