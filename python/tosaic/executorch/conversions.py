"""Dim-order conversions as ExecuTorch's edge dialect has them.

``dim_order_ops._clone_dim_order`` carries any list in its schema, but only row-major order and, at rank 4,
channels last have a meaning to it; a program that was made without dim-order operators
(``EdgeCompileConfig(_skip_dim_order=True)``) has ``aten.clone`` with a memory format instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["ConversionsOutside", "conversion"]

_CONVERSIONS = ("_clone_dim_order", "aten.clone")


class ConversionsOutside:
    """Keeps dim-order conversions at the border of a program out of a partition, on the host.

    For ``additional_checks`` of ExecuTorch's partitioners. What stands between two operators is left to the
    partitioner: on the host it would cut the partition in two.

    Examples
    --------
    ``TOSAPartitioner(spec, additional_checks=[ConversionsOutside()])``
    """

    def is_node_supported(self, submodules: Mapping[str, Any], node: Any) -> bool:  # noqa: ARG002
        """False for a conversion of an input, or one whose readers are all outputs."""
        if not any(name in str(node.target) for name in _CONVERSIONS):
            return True
        is_first = node.args[0].op == "placeholder"
        return not is_first and any(user.op != "output" for user in node.users)


def conversion(program: Any, memory_format: Any, order: Sequence[int]) -> tuple[Any, dict[str, Any]] | None:
    """Operator and keyword arguments that bring a tensor to an order; None if the dialect cannot say it.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        In the edge dialect.
    memory_format : torch.memory_format or None
        That means the order.
    order : sequence of int
        Logical axes, outermost first.
    """
    from executorch.exir.dialects._ops import ops
    from executorch.exir.dim_order_utils import get_dim_order

    if memory_format is None:
        return None
    try:
        known = get_dim_order(memory_format, len(order))
    except AssertionError:
        return None
    if getattr(program.verifier(), "use_dim_order", True):
        return ops.edge.dim_order_ops._clone_dim_order.default, {"dim_order": list(known)}
    return ops.edge.aten.clone.default, {"memory_format": memory_format}
