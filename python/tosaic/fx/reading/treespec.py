"""Converts torch's tree specs to `Tree`, which needs no torch; replaces named tuples that files lack."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

from torch.utils import _pytree as pytree

from tosaic.ports.signature import Tree
from tosaic.torch_operators.call_trees import field_names


def convert_treespec(spec: Any) -> Tree:
    """Converts a tree spec to the same structure as plain data.

    The keys of registered classes (dataclasses, ModelOutput) are their field names if torch's context has
    them.
    """
    if spec.is_leaf():
        return Tree("leaf")
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    parts = tuple(convert_treespec(child) for child in children)
    kind, context = spec.type, spec.context
    if kind is type(None):
        return Tree("none")
    if kind in (dict, OrderedDict):
        return Tree("dict", parts, tuple(context), _name(kind) if kind is OrderedDict else "")
    if kind is defaultdict:
        return Tree("dict", parts, tuple(context[1]))
    if kind is namedtuple:
        return Tree("namedtuple", parts, tuple(context._fields), _name(context))
    if kind in (list, deque):
        return Tree("list", parts)
    if isinstance(kind, type) and issubclass(kind, tuple) and not hasattr(kind, "_fields"):
        return Tree("tuple", parts)
    if isinstance(kind, type) and issubclass(kind, list | deque):
        return Tree("list", parts)
    keys = field_names(context, len(parts))
    if isinstance(kind, type) and issubclass(kind, dict) and not hasattr(kind, "to_tuple"):
        return Tree("dict", parts, keys)
    return Tree("object", parts, keys, _name(kind))


def _name(kind: Any) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def return_plain_tuples(ep: Any) -> None:
    """Replaces torch's named tuples among the results, such as that of sort: files lack their classes."""
    for entry in ep.module_call_graph:
        if entry.fqn == "" and entry.signature is not None:
            entry.signature.out_spec = _in_plain_tuples(entry.signature.out_spec)


def _in_plain_tuples(spec: Any) -> Any:
    if spec.is_leaf():
        return spec
    known = pytree.SUPPORTED_SERIALIZED_TYPES.get(spec.type)
    is_named = known is None or known.serialized_type_name != pytree.NO_SERIALIZED_TYPE_NAME_FOUND
    children = [_in_plain_tuples(each) for each in spec.children()]
    kind, context = (spec.type, spec.context) if is_named else (tuple, None)
    return pytree.TreeSpec(kind, context, children)
