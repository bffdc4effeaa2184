"""The dialects of torch's programs: which operators quantize in them, and which convert dim orders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tosaic.base.verbs import Verb

Call: TypeAlias = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An operator, its positional arguments without the first (the tensor), and its keyword arguments."""


class Dialect(ABC):
    """The operators of a dialect."""

    @abstractmethod
    def quantized(self, name: str) -> Any:
        """Returns the operator of ``quantized_decomposed`` with this name."""

    @abstractmethod
    def conversion(self, program: Any, memory_format: Any, order: Sequence[int]) -> list[Call] | None:
        """Returns the calls that convert a tensor to a dim order, one after the other.

        Parameters
        ----------
        program : torch.export.ExportedProgram
            A program in the dialect.
        memory_format : torch.memory_format or None
            The memory format that is equal to `order`; None if there is none.
        order : sequence of int
            Logical axes, outermost first.

        Returns
        -------
        list or None
            None if the dialect has no conversion to this order.
        """


class Aten(Dialect):
    """What `torch.export.export` makes."""

    def quantized(self, name: str) -> Any:
        """See `Dialect`."""
        import torch.ao.quantization.fx._decomposed

        return getattr(torch.ops.quantized_decomposed, name).default

    def conversion(self, program: Any, memory_format: Any, order: Sequence[int]) -> list[Call] | None:
        """See `Dialect`."""
        del program
        clone = torch.ops.aten.clone.default
        if memory_format is not None:
            return [(clone, (), {"memory_format": memory_format})]
        permute = torch.ops.aten.permute.default
        back = [order.index(axis) for axis in range(len(order))]
        dense = {"memory_format": torch.contiguous_format}
        return [(permute, (list(order),), {}), (clone, (), dense), (permute, (back,), {})]


def dialect_of(program: Any) -> Dialect:
    """Returns the dialect of an exported program."""
    if str(program.dialect) != "EDGE":
        return Aten()
    return edge_dialect()


@Verb
def edge_dialect() -> Dialect:
    """Returns ExecuTorch's edge dialect."""
    raise NotImplementedError
