"""Dim-order conversions in ExecuTorch's edge dialect.

The schema of ``dim_order_ops._clone_dim_order`` accepts any list as dim order, but the operator supports only
row-major and, at rank 4, channels last. A program that was made without dim-order operators
(``EdgeCompileConfig(_skip_dim_order=True)``) has ``aten.clone`` with a memory format instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tosaic.base.options import checked

_CONVERSIONS = ("_clone_dim_order", "aten.clone")


class ConversionsOutside:
    """Excludes dim-order conversions of program inputs and outputs from a partition: they run on the host.

    An object of this class is for ``additional_checks`` of ExecuTorch's partitioners. Conversions between two
    operators are not excluded: on the host they would cut the partition in two.

    Examples
    --------
    ``TOSAPartitioner(spec, additional_checks=[ConversionsOutside()])``
    """

    def is_node_supported(self, submodules: Mapping[str, Any], node: Any) -> bool:  # noqa: ARG002
        """False for a conversion of a program input, and for a conversion that only program outputs read."""
        if not any(name in str(node.target) for name in _CONVERSIONS):
            return True
        is_first = node.args[0].op == "placeholder"
        return not is_first and any(user.op != "output" for user in node.users)


@checked
def conversion(program: Any, memory_format: Any, order: Sequence[int]) -> tuple[Any, dict[str, Any]] | None:
    """Returns the operator and keyword arguments that convert a tensor to a dim order.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        A program in the edge dialect.
    memory_format : torch.memory_format or None
        The memory format that is equal to `order`; None if there is none.
    order : sequence of int
        Logical axes, outermost first.

    Returns
    -------
    tuple or None
        None if the dialect has no conversion to this order.
    """
    from executorch.exir.dialects._ops import ops
    from executorch.exir.dim_order_utils import get_dim_order

    if memory_format is None:
        return None
    try:
        known = get_dim_order(memory_format, len(order))
    except AssertionError:
        return None
    if _has_dim_order_operators(program):
        return ops.edge.dim_order_ops._clone_dim_order.default, {"dim_order": list(known)}
    return ops.edge.aten.clone.default, {"memory_format": memory_format}


def order_operator(program: Any, order: Sequence[int]) -> tuple[Any, dict[str, Any]]:
    """Returns the operator, with its keyword arguments, that copies a tensor into a dim order at run time.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        A program in the edge dialect.
    order : sequence of int
        Row-major, or channels last at rank 4.
    """
    from executorch.exir.dialects._ops import ops
    from executorch.exir.dim_order_utils import get_memory_format

    if _has_dim_order_operators(program):
        return ops.edge.dim_order_ops._to_dim_order_copy.default, {"dim_order": list(order)}
    return ops.edge.aten._to_copy.default, {"memory_format": get_memory_format(list(order))}


def _has_dim_order_operators(program: Any) -> bool:
    """False if the program was made with ``EdgeCompileConfig(_skip_dim_order=True)``."""
    return bool(getattr(program.verifier(), "use_dim_order", True))
