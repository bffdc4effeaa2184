"""Operators that stay whole until a program is partitioned, because a delegate takes their calls.

ExecuTorch decomposes composite calls for which it has no kernel: softmax, layer norm, attention, hardswish.
The parts of a decomposed call in a quantized program exchange floats, so the call is lowered less exactly, or
not at all. A call that stays whole must be in a delegate afterwards: ExecuTorch cannot decompose it any
more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tosaic.executorch.delegates.groups import DelegateGroups
from tosaic.fx.io.quantize_calls import torch_operator
from tosaic.fx.reading.targets import row_for


@dataclass(frozen=True)
class Whole:
    """The operators that stay whole.

    Attributes
    ----------
    operators : tuple
        Operators of torch.
    accept : callable or None
        Whether a call stays whole; None if all calls of the operators do.
    """

    operators: tuple[Any, ...]
    accept: Callable[[Any], bool] | None


@cache
def decomposed_operators() -> frozenset[Any]:
    """Returns the operators that ExecuTorch decomposes by default and that may stay whole.

    An operator whose result shares memory with an operand, or that writes to one, cannot stay whole.
    """
    from executorch.exir.program._program import _default_decomposition_table

    operators = filter(None, map(torch_operator, _default_decomposition_table()))
    return frozenset(each for each in operators if not _shares_memory(each))


def _shares_memory(operator: Any) -> bool:
    schema = operator._schema
    return schema.is_mutable or any(each.alias_info is not None for each in schema.returns)


def kept_whole(program: Any, groups: DelegateGroups) -> Whole:
    """Returns the operators of calls that will be in delegates, if ExecuTorch would decompose them.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        In ATen dialect.
    groups : DelegateGroups
        The groups of the program.
    """
    inside = {node for nodes in groups.groups.values() for node in nodes}
    may = decomposed_operators()
    calls = [node for node in program.graph.nodes if node.op == "call_function" and node.target in may]
    kept = {node for node in calls if node in inside and row_for(node.target) is not None}
    operators = tuple(dict.fromkeys(node.target for node in calls if node in kept))
    is_all = all(node in kept for node in calls if node.target in operators)
    return Whole(operators, None if is_all else kept.__contains__)
