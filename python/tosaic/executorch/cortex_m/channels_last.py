"""Exports a program with images in channels-last order.

Torch computes the same numbers in every order, except where a call depends on strides:

::

    view(x, [1, -1])            reshape(x, [1, -1])             the view may not exist for other strides
    as_strided(x, s, t)         as_strided(contiguous(x), s, t) it reads the memory of x in the traced order
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from tosaic.base.dim_order import dim_order_of
from tosaic.base.options import refusal, shown, unsupported
from tosaic.fx.quantizer.memory import Roots, written_arguments
from tosaic.fx.quantizer.own_tensors import put, storage_of, tensor_at, tensor_places

_ATEN = torch.ops.aten
_STRIDED = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.as_strided.default)


def exported_in_channels_last(where: str, program: Any, module: Any) -> tuple[Any, tuple[str, ...]]:
    """Exports a module with weights and inputs of rank 4 in channels-last order.

    Parameters
    ----------
    where : str
        Name of the public function, for messages.
    program : torch.export.ExportedProgram
        With example inputs.
    module : torch.fx.GraphModule
        The module to export. It takes the inputs of the program. Its weights are replaced by other tensors,
        because the caller's module may share them.

    Returns
    -------
    torch.export.ExportedProgram
    tuple of str
        The inputs that have this order.

    Raises
    ------
    InvalidGraph
        The program has no example inputs.
    UnsupportedOp
        Torch cannot export the module with inputs in channels-last order. Or a call such as ``as_strided``
        reads the memory of a tensor by strides, and the tensor has gaps or the program writes to it.
    """
    if program.example_inputs is None:
        raise refusal(where, "quantized", "a program with example inputs", shown(program))
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, _channels_last, program.example_inputs)
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    inputs = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    names = tuple(name for name, leaf in zip(inputs, tensors, strict=True) if leaf.dim() == 4)
    for graph_module in [each for each in module.modules() if isinstance(each, torch.fx.GraphModule)]:
        _make_independent_of_strides(where, graph_module)
    try:
        return torch.export.export(_with_weights_in_order(module), args, kwargs), names
    except MemoryError:
        raise
    except Exception as error:
        raise unsupported(
            where,
            "torch cannot export the program with inputs in channels-last order",
            got=f"{type(error).__name__}: {error}",
            hint="Export the model in this order, model.to(memory_format=torch.channels_last)",
        ) from error


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _make_independent_of_strides(where: str, module: torch.fx.GraphModule) -> None:
    """Replaces the calls of a graph that depend on strides, unless they share memory that is written."""
    calls = [node for node in module.graph.nodes if node.op == "call_function" and node.target in _STRIDED]
    if not calls:
        return
    roots = Roots()
    writes = (each for node in module.graph.nodes for each in written_arguments(node))
    written: frozenset[object] = frozenset().union(*map(roots.of, writes))
    for node in calls:
        shares = bool(roots.of(node.args[0]) & written)
        if node.target is not _ATEN.as_strided.default:
            node.target = node.target if shares else _ATEN.reshape.default
        elif shares or not _in_recorded_memory(module.graph, node):
            raise unsupported(
                where,
                f"'{node.name}' reads memory by its strides, which are others in channels-last order",
                got="memory that the program writes" if shares else "a tensor that has gaps in its memory",
                hint="Read its elements with slices, as x[:, ::2], or make a copy before: x.clone()",
            )
    module.recompile()


def _in_recorded_memory(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    """Inserts a copy of as_strided's operand in the recorded memory order; False if that order has gaps."""
    (operand,) = node.all_input_nodes
    recorded = operand.meta.get("val")
    if not isinstance(recorded, torch.Tensor) or recorded.storage_offset() != 0:
        return False
    order, _ = dim_order_of(recorded.shape, recorded.stride())
    if not recorded.permute(order).is_contiguous():
        return False
    with graph.inserting_before(node):
        rows = operand
        for target, *rest in ((_ATEN.permute.default, list(order)), (_ATEN.contiguous.default,)):
            rows = graph.call_function(target, (rows, *rest))
            rows.meta = {key: each for key, each in node.meta.items() if key != "val"}
    node.replace_input_with(operand, rows)
    return True


def _with_weights_in_order(module: Any) -> Any:
    """Returns the module with tensors of rank 4 in channels-last order, except those that share memory."""
    tensors = {place: tensor_at(*place) for place in tensor_places(module)}
    sharing: dict[int | None, set[int]] = defaultdict(set)
    for tensor in tensors.values():
        sharing[storage_of(tensor)].add(id(tensor))
    laid_out: dict[int, torch.Tensor] = {}
    for place, tensor in tensors.items():
        storage = storage_of(tensor)
        if tensor.dim() != 4 or storage is None or len(sharing[storage]) > 1:
            continue
        if id(tensor) not in laid_out:
            made = _channels_last(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
            laid_out[id(tensor)] = made
        put(*place, laid_out[id(tensor)])
    return module
