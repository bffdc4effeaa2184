"""The partitions that torch.fx's CapabilityBasedPartitioner proposes, computed by the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import fx
from torch.fx.node import _get_qualified_name
from torch.fx.passes.infra.partitioner import Partition
from torch.fx.passes.operator_support import OperatorSupportBase

from tosaic import _core

__all__ = ["compat_partitions"]

_GETITEM = "_operator.getitem"
_NO_COMPUTE = ("torch.ops.aten.view", _GETITEM)


def compat_partitions(
    graph_module: fx.GraphModule,
    operator_support: OperatorSupportBase,
    *,
    allows_single_node_partition: bool = False,
    non_compute_ops: Sequence[str] | None = None,
    allowed_single_node_partition_ops: Sequence[str] | None = None,
    skip_horizontal_fusion: bool = False,
) -> list[Partition]:
    """Proposes the partitions that torch.fx's CapabilityBasedPartitioner proposes, in much less time.

    The options are those of ``CapabilityBasedPartitioner`` of torch 2.13.

    Parameters
    ----------
    graph_module : torch.fx.GraphModule
    operator_support : OperatorSupportBase
        Is asked once for each node, from the last to the first.
    allows_single_node_partition : bool
        False drops partitions with fewer than two compute nodes.
    non_compute_ops : sequence of str, optional
        Qualified names of functions whose calls are no compute nodes.
    allowed_single_node_partition_ops : sequence of str, optional
        Qualified names of functions of which one call is enough for a partition.
    skip_horizontal_fusion : bool
        True: a node joins the partitions of its users only.

    Returns
    -------
    list of Partition
        The same ids and the same nodes in the same order as ``propose_partitions`` returns. The values of
        the dicts ``Partition.nodes`` are None.

    Raises
    ------
    InvalidGraph
        A node stands before one that it reads, or a getitem reads tuples that are not in the same
        partition (there, ``propose_partitions`` does not terminate).

    Examples
    --------
    >>> import torch
    >>> from torch.fx.passes.operator_support import create_op_support
    >>> class Model(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.neg(torch.sin(torch.argsort(torch.exp(torch.cos(x)))))
    >>> module = torch.fx.symbolic_trace(Model())
    >>> support = create_op_support(lambda _, node: node.name != "argsort" and node.op == "call_function")
    >>> [(p.id, [node.name for node in p.nodes]) for p in compat_partitions(module, support)]
    [(1, ['sin', 'neg']), (3, ['cos', 'exp'])]
    """
    nodes = list(graph_module.graph.nodes)
    index = {node: i for i, node in enumerate(nodes)}
    modules = dict(graph_module.named_modules())
    supported = [operator_support.is_node_supported(modules, node) for node in reversed(nodes)]
    names = _called(nodes)
    compute = None
    if not allows_single_node_partition:
        free = {*_NO_COMPUTE, *(non_compute_ops or ()), ""}
        alone = frozenset(allowed_single_node_partition_ops or ())
        compute = [(name not in free) + (name in alone) for name in names]
    try:
        found = _core.compat_partitions(
            user_counts=np.array([len(node.users) for node in nodes], np.int64),
            users=np.array([index[user] for node in nodes for user in node.users], np.int64),
            supported=np.array(supported[::-1], bool),
            getitem=np.array([name == _GETITEM for name in names], bool),
            compute=compute if compute is None else np.array(compute, np.int64),
            skip_horizontal_fusion=skip_horizontal_fusion,
        )
    except _core.InvalidGraph as error:
        raise _with_node_name(error, nodes) from None
    return [Partition(id=number, nodes=[nodes[i] for i in members]) for number, members in found]


def _called(nodes: Sequence[fx.Node]) -> list[str]:
    """Returns the qualified name of the function that each node calls; "" for other nodes."""
    known: dict[Any, str] = {}
    names = []
    for node in nodes:
        name = ""
        if node.op == "call_function":
            target = node.target
            name = known.get(target, "")
            if not name:
                assert callable(target)  # torch checks it when the node is made
                name = known[target] = _get_qualified_name(target)
        names.append(name)
    return names


def _with_node_name(error: _core.InvalidGraph, nodes: Sequence[fx.Node]) -> _core.InvalidGraph:
    parts = dict(error.parts)
    if parts.get("node", "").isdecimal():
        parts["node"] = nodes[int(parts["node"])].name
    return _core.make_error(_core.InvalidGraph, **parts)
