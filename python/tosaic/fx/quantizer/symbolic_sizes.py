"""Exports the converted graph of a program again, with the symbolic sizes that the program has."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim, ShapesCollection
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from tosaic import _core
from tosaic.base.visible import visible

_LOG = logging.getLogger(__name__)


def bound_sizes(exported: Any, graph: _core.Graph) -> dict[tuple[int, int], int]:
    """Returns the numbers that a graph has instead of symbolic sizes, by (position of the input, axis)."""
    shapes = iter(port.value.shape for port in graph.inputs if port.kind == "user")
    found: dict[tuple[int, int], int] = {}
    for at, value in enumerate(_user_inputs(exported)):
        if isinstance(value, torch.Tensor):
            for axis, (size, known) in enumerate(zip(value.shape, next(shapes), strict=True)):
                if isinstance(size, torch.SymInt):
                    found[at, axis] = int(known)
    return found


def exported_again(
    exported: Any, converted: GraphModule, sizes: Mapping[tuple[int, int], int], *, symbolic: bool
) -> torch.export.ExportedProgram:
    """Exports a graph that was made from `exported`.

    With `symbolic`, the symbolic sizes of inputs stay symbolic. If torch cannot keep one of them symbolic, a
    warning says why, and all of them get the numbers of `sizes`, as without `symbolic`.
    """
    if symbolic and sizes:
        args, kwargs = _example(exported, {})
        leaves = pytree.tree_leaves((args, kwargs))
        shapes: Any = ShapesCollection()  # type: ignore[no-untyped-call]
        for at, hints in _hints(exported, sizes).items():
            shapes[leaves[at]] = hints
        wanted = shapes.dynamic_shapes(converted, args, kwargs)
        try:
            return torch.export.export(converted, args, kwargs, dynamic_shapes=wanted)
        except MemoryError:
            raise
        except Exception as error:  # of many types, if a size cannot be symbolic
            warn_of_sizes(str(error).strip().partition("\n")[0])
    args, kwargs = _example(exported, sizes)
    return torch.export.export(converted, args, kwargs)


def warn_of_sizes(reason: str) -> None:
    """Logs that a program does not have the symbolic sizes of the program of floats."""
    _LOG.warning(
        "to_exported: the exported program has the sizes of 'bind' in the place of symbolic ones: %s",
        visible(reason),
    )


def _user_inputs(exported: Any) -> list[Any]:
    """Returns the recorded value (a fake tensor or number) of each input of the caller."""
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    return [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else values[spec.arg.name]
        for spec in exported.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]


def _hints(exported: Any, axes: Iterable[tuple[int, int]]) -> dict[int, dict[int, Any]]:
    """Returns the dynamic shapes for `torch.export`: by axis, a `Dim` with a range, or a form of it."""
    values = _user_inputs(exported)
    symbols: dict[Any, Any] = {}
    found: dict[int, dict[int, Any]] = {}
    for at, axis in axes:
        size = values[at].shape[axis].node.expr
        found.setdefault(at, {})[axis] = _dimension(size, exported.range_constraints, symbols)
    return found


def _dimension(size: Any, ranges: Mapping[Any, Any], symbols: dict[Any, Any]) -> Any:
    free = sorted(size.free_symbols, key=str)
    if len(free) != 1 or not size.is_polynomial(*free) or size.as_poly(*free).degree() != 1:
        return Dim.DYNAMIC
    symbol = free[0]
    if symbol not in symbols:
        known = ranges.get(symbol)
        bounds = {} if known is None else {"min": _finite(known.lower), "max": _finite(known.upper)}
        symbols[symbol] = Dim(str(symbol), **bounds)
    factor, offset = (int(each) for each in size.as_poly(*free).all_coeffs())
    dimension = symbols[symbol] if factor == 1 else factor * symbols[symbol]
    return dimension + offset if offset else dimension


def _finite(bound: Any) -> int | None:
    return int(bound) if bound.is_Integer else None


def _example(exported: Any, sizes: Mapping[tuple[int, int], int]) -> Any:
    """Returns positional and keyword arguments with these sizes: the example inputs, if they have them."""
    values = _user_inputs(exported)
    examples = exported.example_inputs
    leaves: Sequence[Any] = pytree.tree_leaves(examples) if examples is not None else [None] * len(values)
    made = [_leaf(at, *each, sizes) for at, each in enumerate(zip(values, leaves, strict=True))]
    return pytree.tree_unflatten(made, exported.call_spec.in_spec)


def _leaf(at: int, value: Any, example: Any, sizes: Mapping[tuple[int, int], int]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value if example is None else example
    shape = [sizes.get((at, axis), hint) for axis, hint in enumerate(_known(value.shape))]
    if isinstance(example, torch.Tensor) and list(example.shape) == shape:
        return example.clone()  # a clone: export records symbolic sizes by tensor object
    if shape == _known(value.shape):
        return torch.empty_strided(shape, _known(value.stride()), dtype=value.dtype).zero_()
    return torch.zeros(shape, dtype=value.dtype)


def _known(sizes: Any) -> list[int]:
    return [size if isinstance(size, int) else int(size.node.hint) for size in sizes]
