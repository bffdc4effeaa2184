"""Writes the nodes of the call that is being read. To rows, a `NodeWriter` is a `Call`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch.fx import Node

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.fx.reading.decomposed import Decompositions
from tosaic.fx.reading.memory_order import order_of_format
from tosaic.fx.reading.shapes import Sizes
from tosaic.fx.reading.weights import CODE_OF, REAL_OF, Weights, dtype_code
from tosaic.ports.foreign import ForeignOp
from tosaic.torch_operators.aliasing import Aliases
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.origins import error_at, origin_of
from tosaic.torch_operators.value import Complex, Ref
from tosaic.torch_operators.writer import CallWriter

__all__ = ["NodeWriter", "Shared"]

_INT = frozenset({int})


@dataclass(frozen=True)
class Shared:
    """What the importers of a program, of its regions and of its decomposed calls share."""

    weights: Weights
    sizes: Sizes
    diagnostics: Diagnostics
    rows: dict[Any, OperatorRow | None]
    decompositions: Decompositions
    foreign: Mapping[str, ForeignOp] = field(default_factory=dict)  # by target
    by_torch: dict[str, ForeignOp] = field(default_factory=dict)  # by target: operators that torch runs
    written: list[Aliases] = field(default_factory=list)  # of the graphs that write in place
    can_be_decomposed: Callable[[], bool] = lambda: True  # by torch: the program as a whole


class NodeWriter(CallWriter):
    """Writes the nodes of one call after another into a builder.

    Parameters
    ----------
    shared : Shared
    builder : GraphBuilder
    prefix : str
        The prefix of FX names in origins: the path of a nested graph, such as ``cond.0.``.
    outer : NodeWriter, optional
        For the inside of a decomposed call, the writer of that call: the nodes have its origin, names derived
        from its name, and its place in errors.
    results : iterable of Node
        The nodes inside a decomposed call that are its results: they have its name.
    """

    def __init__(
        self,
        shared: Shared,
        builder: _core.GraphBuilder,
        prefix: str = "",
        outer: NodeWriter | None = None,
        results: Iterable[Node] = (),
    ) -> None:
        super().__init__(builder)
        self._node: Any = None
        self._row: OperatorRow | None = None
        self._shared = shared
        self._prefix = prefix
        self._aliases: Aliases | None = None
        self._shape_of = shared.sizes.shape
        self._outer = outer
        self._results = frozenset(results)
        self._is_complex = False

    # ---- the call ----

    def _expect(self, node: Any, row: OperatorRow) -> None:
        """Sets the result types that torch recorded for the call. A complex result has the type of a part."""
        recorded = node.meta.get("val")
        self._is_complex = False
        if isinstance(recorded, torch.Tensor):
            dtype, shape = recorded.dtype, recorded.shape
            code = CODE_OF.get(dtype)
            if code is None:
                self._is_complex = dtype in REAL_OF
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
            self.types.append(self._type_of(item) if isinstance(item, torch.Tensor) else (-1, ()))
        if self.types:
            self.dtype, self.shape = self.types[0]

    def _type_of(self, tensor: Any) -> tuple[int, Sequence[int]]:
        real = REAL_OF.get(tensor.dtype, tensor.dtype)
        return dtype_code(real, f"a result of '{self._node.name}'"), self._shape_of(tensor.shape)

    # ---- nodes ----

    def _name(self) -> str:
        """Returns the name of the next node.

        It is the name of the call or, in a decomposition, one that begins with the name of the outer call.
        """
        if self._outer is None:
            return str(self._node.name)
        outer = self._outer._name()
        return outer if self._node in self._results else f"{outer}.{self._node.name}"

    def _origin(self) -> tuple[str, str, str, str, int]:
        if self._outer is not None:
            return self._outer._origin()
        node, row = self._node, self._row
        target = row.target if row is not None else str(node.target)
        return origin_of(self._prefix + node.name, target, node.meta)

    def complex_constant(self, tensor: torch.Tensor, name: str, kind: str) -> Complex:
        """Adds both parts of a complex tensor of the program as copied constants."""
        code = CODE_OF[REAL_OF[tensor.dtype]]
        real, imag = (
            Ref(self.builder.add_constant(part), code, tuple(tensor.shape))
            for part in self._shared.weights.parts(tensor, name, kind)
        )
        return Complex(real, imag)

    def constant(self, value: bool | int | float, code: int) -> Ref:
        """Adds a rank-0 constant."""
        return Ref(self.builder.add_constant(self._shared.weights.number(value, code)), code, ())

    def memory_of_operand(self, position: int) -> tuple[tuple[int, ...] | None, int]:
        """Returns strides and storage offset of an operand as torch recorded them; else (None, 0)."""
        operand = self._node.args[position]
        if self._aliases is not None and isinstance(operand, Node):
            operand = self._aliases.shaped_by(operand, self._node)
        recorded = operand.meta.get("val")
        if recorded is None:
            return None, 0
        sizes = self._shared.sizes
        return tuple(sizes.shape(recorded.stride())), int(sizes.value(recorded.storage_offset()))

    def note(self, rule: str, message: str) -> None:
        """Adds a diagnostic about this call."""
        self._shared.diagnostics.note(rule, message, self._name())

    def error(
        self,
        kind: type[Exception],
        what: str,
        *,
        expected: str = "",
        got: str = "",
        hint: str = "",
        node: Any = None,
    ) -> Exception:
        """Returns an error located at this call, or at `node`."""
        if self._outer is not None:
            return self._outer.error(kind, what, expected=expected, got=got, hint=hint)
        node = self._node if node is None else node
        return error_at(kind, node, what, where="import", expected=expected, got=got, hint=hint)

    # ---- constants ----

    def lifted(self, elements: NDArray[Any]) -> Ref:
        """Adds a constant whose elements were computed at import."""
        return self.lifted_tensor(torch.tensor(elements))

    def lifted_tensor(self, tensor: torch.Tensor) -> Ref:
        """Adds a constant from a tensor that was computed at import."""
        constant = self._shared.weights.tensor(tensor, self._name(), "lifted")
        value = self.builder.add_constant(constant)
        return Ref(value, CODE_OF[tensor.dtype], tuple(tensor.shape), tensor)

    def known_elements(self, ref: Ref) -> NDArray[Any] | None:
        """Returns the elements of a constant, or None for other values.

        Notes that the import reads the elements.
        """
        return None if ref.held is None else self._shared.weights.numbers(ref.held)

    def order_of_format(self, memory_format: Any, rank: int) -> tuple[int, ...] | None:
        """Returns the dim order that a memory format asks for; None for other formats and other values."""
        return order_of_format(memory_format, rank)
