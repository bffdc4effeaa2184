"""Writes python/tosaic/pt2/schemas.json: run it after a row was added, or for another version of torch.

    python tests/pt2/generate_schemas.py

A ``.pt2`` file omits arguments that equal their defaults, and does not say which operands a call writes. The
file has this for every overload that has a row.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[2] / "python" / "tosaic" / "pt2" / "schemas.json"
_OWN_NAMESPACES = """
import json, torch
print(json.dumps(sorted({schema.name.partition("::")[0] for schema in torch._C._jit_get_all_schemas()})))
"""


def _overloads() -> Iterator[Any]:
    """Yields all overloads of the namespaces that have rows."""
    import torch
    from tosaic.fx.files.libraries import MODULES
    from tosaic.torch_operators.table import TABLE

    namespaces = {"aten"} | {name.partition("::")[0] for name in TABLE if "::" in name}
    for module in (module for name in namespaces for module in MODULES.get(name, ())):
        with suppress(ImportError):
            importlib.import_module(module)
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace in namespaces:
            packet = getattr(getattr(torch.ops, namespace), name, None)
            overload = getattr(packet, schema.overload_name or "default", None)
            if overload is not None:
                yield overload


def _default(value: Any) -> Any:
    import torch

    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | float | str | list):
        return value
    raise TypeError(f"a default of type {type(value).__name__}")


def _parameter(each: Any) -> list[Any]:
    facts: dict[str, Any] = {}
    if each.has_default:
        facts["default"] = _default(each.default)
    if each.keyword_only:
        facts["keyword"] = True
    if each.aliases:
        facts["aliases"] = sorted(each.aliases)
    if each.writes:
        facts["writes"] = True
    return [each.name, facts] if facts else [each.name]


def _entry(row: Any, schema: Any) -> dict[str, Any]:
    from tosaic.torch_operators.table import TABLE

    names = [name for name, emit in TABLE.items() if emit is row.emit]
    entry = {
        "row": row.name if row.name in names else names[0] if names else None,
        "parameters": [_parameter(each) for each in schema.parameters],
        "results": [[each.is_tensor, *sorted(each.aliases)] for each in schema.results],
    }
    return entry | ({"pointwise": True} if schema.is_pointwise else {})


def _writes_out(overload: Any) -> bool:
    last = overload._schema.arguments[-1:]
    return any(each.name == "out" and each.alias_info is not None for each in last)


def table() -> dict[str, Any]:
    """Returns what the file has."""
    import torch
    from tosaic.fx.reading.targets import row_for, schema_of
    from tosaic.torch_operators.complex_values import is_known

    operators = {}
    for overload in _overloads():
        row = row_for(overload)
        if row is None or _writes_out(overload):  # a file with such a call is read by torch
            continue
        if row.emit or row.dropped or row.evaluated or is_known(row.name, None):
            operators[row.target] = _entry(row, schema_of(overload._schema, overload.tags))
    done = subprocess.run([sys.executable, "-c", _OWN_NAMESPACES], capture_output=True, text=True, check=True)
    rows = {target.partition(".")[0] for target in operators}
    return {
        "torch": torch.__version__.partition("+")[0],
        "namespaces": sorted({*json.loads(done.stdout), *rows}),
        "operators": dict(sorted(operators.items())),
    }


def text() -> str:
    """Returns the contents of the file, with one operator a line."""
    found = table()
    lines = [f"{json.dumps(target)}: {json.dumps(entry)}" for target, entry in found["operators"].items()]
    body = ",\n".join(lines)
    head = f'"torch": {json.dumps(found["torch"])},\n"namespaces": {json.dumps(found["namespaces"])}'
    return f'{{\n{head},\n"operators": {{\n{body}\n}}\n}}\n'


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
