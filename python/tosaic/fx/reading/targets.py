"""Resolves FX call targets once: the table's row for each, its defaults, and the operands it writes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch

from tosaic.torch_operators.call import Emit
from tosaic.torch_operators.operator_row import OperatorRow, Parameter, Result, Schema
from tosaic.torch_operators.table import TABLE

_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def default_of(argument: Any) -> Any:
    """Returns the default of a schema parameter.

    Schemas store memory formats as numbers; these are converted.
    """
    default = argument.default_value
    if type(default) is int and "MemoryFormat" in str(argument.real_type):
        return _FORMATS[default]
    return default


def schema_of(schema: Any, tags: Container[Any] = ()) -> Schema:
    """Returns the parts of a torch schema, and of the operator's tags, that the import needs.

    For None, returns a schema without parameters.
    """
    if schema is None:
        return Schema()
    parameters = [
        Parameter(
            each.name,
            default_of(each),
            each.has_default_value(),
            each.kwarg_only,
            _aliases(each),
            each.alias_info is not None and each.alias_info.is_write,
        )
        for each in schema.arguments
    ]
    results = [Result(str(each.type) == "Tensor", _aliases(each)) for each in schema.returns]
    return Schema(tuple(parameters), tuple(results), torch.Tag.pointwise in tags)


def _aliases(declared: Any) -> frozenset[str]:
    return frozenset() if declared.alias_info is None else frozenset(declared.alias_info.before_set)


class Row(OperatorRow):
    """A row for an operator overload of torch.

    Parameters
    ----------
    target : str
        ``aten.conv2d.default``.
    name : str
        Schema name in the form of the table's keys: ``conv2d``, ``add_.Tensor``.
    schema : torch.FunctionSchema or None
    tags : container of torch.Tag
    """

    __slots__ = ()

    def __init__(self, target: str, name: str, schema: Any, tags: Container[Any] = ()) -> None:
        own = schema_of(schema, tags)
        super().__init__(target, name, own, _emit(name, own))


def _emit(name: str, schema: Schema) -> Emit | None:
    """Returns the table's row of an overload, or of the functional overload of an in-place or out variant."""
    base, _, overload = name.partition(".")
    suffix = f".{overload}" if overload else ""
    written = [i for i, each in enumerate(schema.parameters) if each.writes]
    if not written:
        return TABLE.get(base + suffix) or TABLE.get(base.removesuffix("_copy") + suffix)
    if written == [len(schema.parameters) - 1] and schema.parameters[-1].name == "out":
        return _writing_out(base, [each.name for each in schema.parameters[:-1]])
    if written != [0] or len(schema.results) != 1:
        return None
    if base.startswith("__i") and base.endswith("__"):
        return TABLE.get(f"__{base[3:]}{suffix}")
    if not base.endswith("_"):
        return None
    base = base.removesuffix("_")
    return TABLE.get(base + suffix) or _overload_alike(base, [each.name for each in schema.parameters])


def _writing_out(base: str, names: Sequence[str]) -> Emit | None:
    """Returns a row for an ``out`` variant: the row of the functional overload, without the last operand."""
    emit = _overload_alike(base, names)
    return None if emit is None else lambda c, *values: emit(c, *values[:-1])


def _overload_alike(base: str, names: Sequence[str]) -> Emit | None:
    """Returns the row of the overload with the same parameter names: ``transpose.int`` for ``transpose_``."""
    packet = getattr(torch.ops.aten, base, None)
    for overload in () if packet is None else packet.overloads():
        schema = getattr(packet, overload)._schema
        if [argument.name for argument in schema.arguments] == names:
            return TABLE.get(schema_name(schema))
    return None


def schema_name(schema: Any) -> str:
    """Returns the key in the table: ``add.Tensor``, or outside aten ``torchao::quantize_affine``."""
    name = str(schema.name).removeprefix("aten::")
    overload = schema.overload_name
    return f"{name}.{overload}" if overload and overload != "default" else name


def row_for(target: Any) -> Row | None:
    """Returns the row of an overload of torch or of ExecuTorch's edge dialect; None for other callables."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return None
    name = schema_name(schema)
    namespace, _, bare = name.rpartition("::")
    shown = f"{namespace or 'aten'}.{bare.partition('.')[0]}.{schema.overload_name or 'default'}"
    return Row(shown, name, schema, getattr(target, "tags", ()))
