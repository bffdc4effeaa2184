"""The rows of operators by their names in a file, from the generated table ``schemas.json``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tosaic.pt2.values import MemoryFormat
from tosaic.torch_operators.operator_row import OperatorRow, Parameter, Result, Schema
from tosaic.torch_operators.table import TABLE


@cache
def _document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("schemas.json").read_bytes())
    return found


def is_of_torch(target: str) -> bool:
    """True for an operator whose namespace is torch's or has rows: torch may decompose its calls."""
    return target.partition(".")[0] in _document()["namespaces"]


@cache
def row_of(target: str) -> OperatorRow:
    """Returns the row of an operator, named ``aten.conv2d.default``.

    For an operator without an entry, the row has no parameters, and its calls contain all arguments.
    """
    namespace, name, overload = target.split(".", 2)
    own = name if overload == "default" else f"{name}.{overload}"
    own = own if namespace == "aten" else f"{namespace}::{own}"
    entry = _document()["operators"].get(target)
    if entry is None:
        return OperatorRow(target, own, Schema(), None)
    row = entry["row"]
    return OperatorRow(target, own, schema_of(entry), None if row is None else TABLE[row])


def schema_of(entry: dict[str, Any]) -> Schema:
    """Returns the schema that an entry of the table describes."""
    results = tuple(Result(is_tensor, frozenset(aliases)) for is_tensor, *aliases in entry["results"])
    parameters = tuple(_parameter(*each) for each in entry["parameters"])
    return Schema(parameters, results, entry.get("pointwise", False))


def _parameter(name: str, facts: dict[str, Any] | None = None) -> Parameter:
    if facts is None:
        return Parameter(name)
    default = facts.get("default")
    if isinstance(default, dict):
        default = MemoryFormat(default["memory_format"])
    return Parameter(
        name,
        default,
        "default" in facts,
        facts.get("keyword", False),
        frozenset(facts.get("aliases", ())),
        facts.get("writes", False),
    )
