"""The functional form of each out variant of torch that the table has, against torch's own schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tosaic.pte.rows import form_of  # noqa: E402
from tosaic.torch_operators.table import TABLE  # noqa: E402
from tosaic.torch_operators.value import Ref  # noqa: E402

_NEW_TENSOR = ["dtype", "layout", "device", "pin_memory"]
_VALUES = {
    "Tensor": Ref(0, 0, ()),
    "Optional[Tensor]": Ref(0, 0, ()),
    "List[Tensor]": [Ref(0, 0, ())],
    "List[Optional[Tensor]]": [Ref(0, 0, ())],
    "List[int]": [1],
    "Optional[List[int]]": [1],
    "List[float]": [1.0],
    "Optional[List[float]]": [1.0],
    "int": 1,
    "Optional[int]": 1,
    "bool": True,
    "Optional[bool]": True,
    "float": 1.0,
    "Optional[float]": 1.0,
    "number": 1.0,
    "Optional[number]": 1.0,
    "str": "a",
    "Optional[str]": "a",
}


def _parameters(schema: Any) -> list[tuple[str, str]]:
    """Names and types without results, and without those that describe a new tensor."""
    given = [(each.name, str(each.type)) for each in schema.arguments if not each.is_out]
    names = [name for name, _ in given]
    for at in range(len(names)):
        if names[at : at + 4] == _NEW_TENSOR:
            return given[:at] + given[at + 4 :]
    return given


def _out_variants() -> Iterator[tuple[str, str, str, list[Any]]]:
    """Yields name and overload of an out variant, the key of its functional form, and arguments."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if not hasattr(packet, "overloads"):
            continue
        schemas = {overload: getattr(packet, overload)._schema for overload in packet.overloads()}
        outs = {o: s for o, s in schemas.items() if any(each.is_out for each in s.arguments)}
        for overload, schema in outs.items():
            parameters = _parameters(schema)
            for other, form in schemas.items():
                suffix = "" if other == "default" else f".{other}"
                keys = [key for key in (name + suffix, name.removesuffix("_copy") + suffix) if key in TABLE]
                if keys and other not in outs and _parameters(form) == parameters:
                    yield name, overload, keys[0], [_VALUES.get(kind) for _, kind in parameters]


def _same(a: Any, b: Any) -> bool:
    """True for two functions that compute the same: rows of one kind are made by one function."""
    cells = [[cell.cell_contents for cell in each.__closure__ or ()] for each in (a, b)]
    return a.__code__ is b.__code__ and cells[0] == cells[1]


def test_every_out_variant_is_read_by_the_row_of_its_functional_form() -> None:
    wrong, count = [], 0
    for name, overload, key, arguments in _out_variants():
        count += 1
        found = form_of(f"aten::{name}", overload, arguments)
        if found is None or not _same(found.emit, TABLE[key]):
            wrong.append((f"{name}.{overload}", key, None if found is None else found.name))
    assert count > 300
    assert not wrong


@pytest.mark.parametrize(
    ("name", "overload", "arguments", "expected"),
    [
        ("aten::add", "out", [Ref(0, 0, ()), Ref(1, 0, ()), 1], "add.Tensor"),
        ("aten::copy_", "", [Ref(0, 0, ()), Ref(1, 0, ()), False], "copy"),
        ("aten::permute_copy", "out", [Ref(0, 0, ()), [1, 0]], "permute"),
        ("aten::full", "out", [[2, 3], 1.0], "full"),
        ("aten::arange", "start_out", [0, 4, 1], "arange.start_step"),
        ("aten::_to_copy", "out", [Ref(0, 0, ()), False, None], "_to_copy"),
        (
            "quantized_decomposed::quantize_per_tensor",
            "out",
            [Ref(0, 0, ()), 0.5, 0, -128, 127, 1],
            "quantized_decomposed::quantize_per_tensor",
        ),
        (
            "dim_order_ops::_to_dim_order_copy",
            "out",
            [Ref(0, 0, ()), False, [0, 1]],
            "dim_order_ops::_to_dim_order_copy",
        ),
    ],
)
def test_the_form_of_a_call(name: str, overload: str, arguments: list[Any], expected: str) -> None:
    form = form_of(name, overload, arguments)
    assert form is not None
    assert form.name == expected


def test_an_operator_that_the_table_lacks_has_no_form() -> None:
    assert form_of("aten::no_such_operator", "out", []) is None
    assert form_of("other::add", "out", [Ref(0, 0, ()), Ref(1, 0, ()), 1]) is None
