"""The partitions that torch.fx's CapabilityBasedPartitioner proposes, computed by the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
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
        A node stands before one that it reads, or a getitem reads tuples that are not in the same partition (there,
        ``propose_partitions`` does not terminate).

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
    supported = [operator_support.is_node_supported(modules, node) for node in reversed(nodes)][::-1]
    names = _Names()
    compute = None
    if not allows_single_node_partition:
        free = {*_NO_COMPUTE, *(non_compute_ops or ())}
        compute = names.counts(nodes, free, frozenset(allowed_single_node_partition_ops or ()))
    try:
        found = _core.compat_partitions(
            user_counts=np.array([len(node.users) for node in nodes], np.int64),
            users=np.array([index[user] for node in nodes for user in node.users], np.int64),
            supported=np.array(supported, bool),
            getitem=np.array([names.of(node) == _GETITEM for node in nodes], bool),
            compute=compute,
            skip_horizontal_fusion=skip_horizontal_fusion,
        )
    except _core.InvalidGraph as error:
        raise _with_node_name(error, nodes) from None
    return [Partition(id=id, nodes=[nodes[i] for i in members]) for id, members in found]


class _Names:
    """The qualified names of the functions that nodes call: "" for nodes that are no calls of functions."""

    def __init__(self) -> None:
        self._of: dict[Callable[..., Any], str] = {}

    def of(self, node: fx.Node) -> str:
        if node.op != "call_function":
            return ""
        target = node.target
        assert callable(target)  # torch checks it when the node is made
        name = self._of.get(target)
        if name is None:
            name = self._of[target] = _get_qualified_name(target)
        return name

    def counts(
        self, nodes: Sequence[fx.Node], free: set[str], alone: frozenset[str]
    ) -> npt.NDArray[np.int64]:
        """Returns how much each node counts: 1 for a compute node, and 1 more for one that may be alone."""
        names = [self.of(node) for node in nodes]
        return np.array([name != "" and (name not in free) + (name in alone) for name in names], np.int64)


def _with_node_name(error: _core.InvalidGraph, nodes: Sequence[fx.Node]) -> _core.InvalidGraph:
    parts = dict(error.parts)
    if parts.get("node", "").isdecimal():
        parts["node"] = nodes[int(parts["node"])].name
    return _core.make_error(_core.InvalidGraph, **parts)
