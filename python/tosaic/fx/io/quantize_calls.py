"""Recognizes quantize and dequantize calls, and layout operators between them and an input or output.

A call is a layout operator if it returns a view of its only tensor (by its schema, or by the tag of its
copying form), or if it is one of `_MOVES`; it must not name a dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

_LIBRARY = "quantized_decomposed::"
CONVERSION_LIBRARIES = (_LIBRARY, "torchao::")
"""The libraries whose operators quantize and dequantize."""
_FILL = {"aten::constant_pad_nd": "value", "aten::pad": "value"}  # argument with the inserted number
ZEROING = ("aten::tril", "aten::triu")  # insert 0, whatever it represents
_ATEN_MOVES = (
    "clone contiguous reshape flatten flip roll repeat tile rot90 pixel_shuffle pixel_unshuffle "
    "channel_shuffle _unsafe_view constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d _to_copy to lift_fresh_copy"
)
_MOVES = frozenset(f"aten::{name}" for name in _ATEN_MOVES.split()) | {
    *ZEROING,
    "dim_order_ops::_clone_dim_order",
    "dim_order_ops::_to_dim_order_copy",
}


def operator_of(node: Node) -> Any:
    """Returns the operator of torch that a node calls, also in the edge dialect; else None."""
    return torch_operator(node.target)


def torch_operator(target: Any) -> Any:
    """Returns an operator of torch itself, or the operator that an edge operator wraps; else None."""
    for each in (target, getattr(target, "_op", None)):
        if isinstance(each, torch._ops.OpOverload):
            return each
    return None


def schema_of(node: Node) -> Any:
    """Returns the schema of the operator that a node calls; else None."""
    return getattr(operator_of(node), "_schema", None)


def is_call(node: Node, kind: str) -> bool:
    """True for a call of quantize or dequantize, by tensor or by channel."""
    schema = schema_of(node) if node.op == "call_function" else None
    name = "" if schema is None else schema.name
    return name in (f"{_LIBRARY}{kind}_per_tensor", f"{_LIBRARY}{kind}_per_channel") and (
        kind == "quantize" or node.meta["val"].dtype is torch.float32
    )


def is_quantize(node: Node) -> bool:
    """True for a call that makes integers of floats, of any granularity."""
    return _is_called(node, "quantize_")


def is_dequantize(node: Node) -> bool:
    """True for a call that makes floats of integers, of any granularity."""
    return _is_called(node, "dequantize_")


def is_conversion(node: Node) -> bool:
    """True for a call that makes integers of floats or floats of integers."""
    return is_quantize(node) or is_dequantize(node)


def _is_called(node: Node, start: str) -> bool:
    schema = schema_of(node) if node.op == "call_function" else None
    name = "" if schema is None else schema.name
    return any(name.startswith(library + start) for library in CONVERSION_LIBRARIES)


def arguments_of(node: Node) -> dict[str, Any]:
    """Returns the arguments of a call by name, without defaults."""
    names = [argument.name for argument in schema_of(node).arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def is_tensor(node: Any) -> bool:
    """True for a node whose value is one tensor."""
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def is_move(node: Node) -> bool:
    """True for a call that only places elements of its only tensor, or inserts zeros between them."""
    schema = schema_of(node) if node.op == "call_function" else None
    sources = node.all_input_nodes
    if schema is None or schema.is_mutable or len(schema.returns) != 1:
        return False
    tensors = [each for each in sources if is_tensor(each)]
    if not is_tensor(node) or len(tensors) != 1 or not node.args or node.args[0] is not tensors[0]:
        return False
    if node.meta["val"].dtype is not tensors[0].meta["val"].dtype:
        return False
    values = arguments_of(node)
    if any(isinstance(value, torch.dtype) for value in values.values()):
        return False
    if inserted_by(node) is not None:
        return values.get(_FILL[schema.name], 0) in (0, None)
    alias = schema.returns[0].alias_info
    of_first = schema.arguments[0].alias_info
    is_view = alias is not None and of_first is not None and not alias.is_write
    is_copied_view = torch.Tag.view_copy in operator_of(node).tags
    return (is_view or is_copied_view or schema.name in _MOVES) and schema.name != "aten::as_strided"


def is_whole_copy(node: Node) -> bool:
    """True for a call of the functional ``copy`` whose result is its second operand."""
    schema = schema_of(node) if node.op == "call_function" else None
    if schema is None or schema.name != "aten::copy" or not all(map(is_tensor, node.args[:2])):
        return False
    result, source = node.meta["val"], node.args[1].meta["val"]  # type: ignore[union-attr]
    return bool(result.dtype is source.dtype and result.shape == source.shape)


def overwrites(user: Node, node: Node) -> bool:
    """True if the call only replaces the value of the node."""
    return is_whole_copy(user) and user.args[0] is node and user.args[1] is not node


def inserted_by(node: Node) -> str | None:
    """Returns the argument with the number that a padding inserts; None if the call inserts none."""
    is_constant = arguments_of(node).get("mode", "constant") == "constant"
    return _FILL.get(schema_of(node).name) if is_constant else None
