"""Writes the nodes of the calls of torch's programs. The functions of rows see a `TorchWriter` as `Call`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch.fx import Node

from tosaic import _core
from tosaic.fx.reading.decomposed import Decompositions
from tosaic.fx.reading.memory_order import order_of_format
from tosaic.fx.reading.shapes import Sizes
from tosaic.fx.reading.weights import CODE_OF, REAL_OF, Weights, dtype_code
from tosaic.ports.foreign import ForeignOp
from tosaic.torch_operators import node_writer
from tosaic.torch_operators.aliasing import Aliases
from tosaic.torch_operators.node_writer import NodeWriter
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.origins import Origin, Where
from tosaic.torch_operators.value import Complex, Ref

_INT = frozenset({int})


@dataclass(frozen=True)
class Shared(node_writer.Shared):
    """State that the importers of a program, of its nested graphs and of its decomposed calls share.

    Attributes
    ----------
    decompositions : Decompositions
    by_torch : dict of str to ForeignOp
        By target: operators that torch runs.
    written : list of Aliases
        The aliases of the graphs that write in place.
    can_be_decomposed : callable
        Whether torch can decompose the program as a whole.
    """

    weights: Weights
    sizes: Sizes
    decompositions: Decompositions = field(default_factory=Decompositions)
    by_torch: dict[str, ForeignOp] = field(default_factory=dict)
    written: list[Aliases] = field(default_factory=list)
    can_be_decomposed: Callable[[], bool] = lambda: True


class TorchWriter(NodeWriter):
    """Writes the nodes of one call after another into a builder.

    Parameters
    ----------
    shared : Shared
    builder : GraphBuilder
    prefix : str
        The prefix of FX names in origins: the path of a nested graph, such as ``cond.0.``.
    outer : TorchWriter, optional
        For the inside of a decomposed call, the writer of that call: the nodes have its origin, names derived
        from its name, and its place in errors.
    results : iterable of Node
        The nodes inside a decomposed call that are its results: they have its name.
    """

    shared: Shared

    def __init__(
        self,
        shared: Shared,
        builder: _core.GraphBuilder,
        prefix: str = "",
        outer: TorchWriter | None = None,
        results: Iterable[Node] = (),
    ) -> None:
        super().__init__(shared, builder, prefix)
        self.is_outermost = outer is None
        self._shape_of = shared.sizes.shape
        self._outer = outer
        self._results = frozenset(results)

    # ---- the call ----

    def expect(self, node: Any, row: OperatorRow) -> None:
        """Sets the result types that torch recorded for the call. A complex result has the type of a part."""
        recorded = node.meta.get("val")
        self.is_complex = False
        if isinstance(recorded, torch.Tensor):
            dtype, shape = recorded.dtype, recorded.shape
            code = CODE_OF.get(dtype)
            if code is None:
                self.is_complex = dtype in REAL_OF
                code = dtype_code(REAL_OF.get(dtype, dtype), f"the result of '{node.name}'")
            self.dtype = code
            self.shape = shape if _INT.issuperset(map(type, shape)) else self._shape_of(shape)
            if not row.single:
                self.types = [(code, self.shape)]
            return
        if recorded is None and row.single:
            raise self.error(
                _core.InvalidGraph,
                "the node records no result",
                expected="meta['val']",
                hint="Export the program again",
            )
        self.dtype = -1
        self.types = []
        for item in recorded if isinstance(recorded, list | tuple) else ():
            self.types.append(self.type_of(item) if isinstance(item, torch.Tensor) else (-1, ()))
        if self.types:
            self.dtype, self.shape = self.types[0]

    def type_of(self, recorded: Any) -> tuple[int, Sequence[int]]:
        """Returns dtype and shape of a recorded tensor; of a complex one, of a part."""
        real = REAL_OF.get(recorded.dtype, recorded.dtype)
        return dtype_code(real, f"a result of '{self.node.name}'"), self._shape_of(recorded.shape)

    # ---- nodes ----

    def name(self) -> str:
        """Returns the name of the next node.

        It is the name of the call or, in a decomposition, one that begins with the name of the outer call.
        """
        if self._outer is None:
            return super().name()
        outer = self._outer.name()
        return outer if self.node in self._results else f"{outer}.{self.node.name}"

    def origin(self) -> Origin:
        """Returns the origin of the call in the program, also inside of a decomposed call."""
        return super().origin() if self._outer is None else self._outer.origin()

    def where(self) -> Where:
        """Returns the place of the call in the program, also inside of a decomposed call."""
        return super().where() if self._outer is None else self._outer.where()

    def complex_constant(self, tensor: torch.Tensor, name: str, kind: str) -> Complex:
        """Adds both parts of a complex tensor of the program as copied constants."""
        code = CODE_OF[REAL_OF[tensor.dtype]]
        real, imag = (
            Ref(self.builder.add_constant(part), code, tuple(tensor.shape))
            for part in self.shared.weights.parts(tensor, name, kind)
        )
        return Complex(real, imag)

    def constant(self, value: bool | int | float, code: int) -> Ref:
        """Adds a rank-0 constant."""
        return Ref(self.builder.add_constant(self.shared.weights.number(value, code)), code, ())

    # ---- constants ----

    def lifted(self, elements: NDArray[Any]) -> Ref:
        """Adds a constant whose elements were computed at import."""
        return self.lifted_tensor(torch.tensor(elements))

    def lifted_tensor(self, tensor: torch.Tensor) -> Ref:
        """Adds a constant from a tensor that was computed at import."""
        constant = self.shared.weights.tensor(tensor, self.name(), "lifted")
        value = self.builder.add_constant(constant)
        return Ref(value, CODE_OF[tensor.dtype], tuple(tensor.shape), tensor)

    def known_elements(self, ref: Ref) -> NDArray[Any] | None:
        """Returns the elements of a constant, or None for other values.

        Records that the import reads the elements.
        """
        return None if ref.held is None else self.shared.weights.numbers(ref.held)

    def order_of_format(self, memory_format: Any, rank: int) -> tuple[int, ...] | None:
        """Returns the dim order that a memory format asks for; None for other formats and other values."""
        return order_of_format(memory_format, rank)
