"""The kernel calls of a method by operator, dtypes and dim orders.

The tensors of a call count as in ExecuTorch's ``gen_oplist``: in order, results included. For a list of
tensors, only its first tensor counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tosaic import _core
from tosaic.pte.kernel_names import KernelVariant
from tosaic.pte.plain import operator_text
from tosaic.pte.scalar_type import scalar_type

_TENSOR_LISTS = (_core.PteTensorList, _core.PteOptionalTensorList)


@dataclass(frozen=True)
class KernelCalls:
    """The calls of an operator with the same dtypes and dim orders.

    Attributes
    ----------
    operator : str
        Name and overload: ``aten::add.out``.
    variant : KernelVariant
    calls : int
    """

    operator: str
    variant: KernelVariant
    calls: int


def kernel_calls(method: _core.PteMethod) -> tuple[KernelCalls, ...]:
    """Returns the kernel calls of a method, by operator and variant."""
    operators = [operator_text(each) for each in method.operators]
    values = method.values
    counts = Counter(
        (operators[each.op], _variant(values, each.args))
        for chain in method.chains
        for each in chain.instructions
        if isinstance(each, _core.PteKernelCall)
    )
    return tuple(KernelCalls(*key, calls) for key, calls in sorted(counts.items()))


def _variant(values: list[Any], args: list[int]) -> KernelVariant:
    tensors = [tensor for index in args for tensor in _tensors(values, index)]
    return KernelVariant(
        tuple(scalar_type(tensor)[0] for tensor in tensors),
        tuple(tuple(tensor.dim_order) for tensor in tensors),
    )


def _tensors(values: list[Any], index: int) -> Iterator[_core.PteTensor]:
    """Yields the tensor that represents an argument, if there is one."""
    value = values[index]
    items = (
        [values[item] for item in value.items if item >= 0] if isinstance(value, _TENSOR_LISTS) else [value]
    )
    yield from [item for item in items if isinstance(item, _core.PteTensor)][:1]
