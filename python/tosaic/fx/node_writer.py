"""Writes the nodes of the call that is being read. To rows, a `NodeWriter` is a `Call`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from numpy.typing import NDArray
from torch.fx import Node

from tosaic import _core
from tosaic.diagnostics import Diagnostics
from tosaic.foreign import ForeignOp
from tosaic.fx.aliasing import Aliases
from tosaic.fx.decomposed import Decompositions
from tosaic.fx.memory_order import order_of_format
from tosaic.fx.origins import error_at, origin_of
from tosaic.fx.shapes import Sizes
from tosaic.fx.targets import Row
from tosaic.fx.weights import CODE_OF, REAL_OF, TORCH_OF, Weights, dtype_code
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.dtypes import CATEGORY, DEFAULT_OF_CATEGORY, NARROW_FLOATS
from tosaic.torch_operators.value import Complex, NoValue, Ref

__all__ = ["NodeWriter", "Shared"]


@dataclass(frozen=True)
class Shared:
    """What the importers of a program, of its regions and of its decomposed calls share."""

    weights: Weights
    sizes: Sizes
    diagnostics: Diagnostics
    rows: dict[Any, Row | None]
    decompositions: Decompositions
    foreign: Mapping[str, ForeignOp] = field(default_factory=dict)  # by target
    constants: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)  # by (builder, value id)


class NodeWriter:
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
        self.builder = builder
        self.dtype = -1
        self.shape: Sequence[int] = ()
        self.types: list[tuple[int, Sequence[int]]] = []
        self._node: Any = None
        self._row: Row | None = None
        self._shared = shared
        self._prefix = prefix
        self._aliases: Aliases | None = None
        self._shape_of = shared.sizes.shape
        self._outer = outer
        self._results = frozenset(results)
        self._is_complex = False

    # ---- the call ----

    def target_name(self) -> str:
        """Returns the operator name of this call: ``add`` for ``add.Tensor``."""
        assert self._row is not None
        return self._row.name.partition(".")[0]

    def _expect(self, node: Any, row: Row) -> None:
        """Sets the result types that torch recorded for the call. A complex result has the type of a part."""
        recorded = node.meta.get("val")
        self._is_complex = False
        if isinstance(recorded, torch.Tensor):
            self.dtype = CODE_OF.get(recorded.dtype, -1)
            self.shape = self._shape_of(recorded.shape)
            if self.dtype < 0:
                self._is_complex = recorded.dtype in REAL_OF
                real = REAL_OF.get(recorded.dtype, recorded.dtype)
                self.dtype = dtype_code(real, f"the result of '{node.name}'")
            if not row.single:
                self.types = [(self.dtype, self.shape)]
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

    def emit(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node of this call. Its type is checked against the type that torch recorded."""
        row, builder = self._row, self.builder
        origin = self._origin()
        if row is not None and row.mutates:
            return self._emit_in_place(op, attrs, operands, origin)
        value = builder.add(op, attrs, operands, self._name(), origin, self.dtype, self.shape)
        return Ref(value, self.dtype, self.shape)

    def _emit_in_place(
        self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int], origin: Any
    ) -> Ref:
        """Adds the node of an in-place call.

        Its result has the operand's dtype: a promoted one is cast back.
        """
        value = self.builder.add(op, attrs, operands, self._name(), origin, None, None)
        dtype, shape = self.builder.type(value)
        if shape != tuple(self.shape):
            raise self.error(
                _core.InvalidGraph,
                "an in-place call changes the shape",
                expected=str(tuple(self.shape)),
                got=str(shape),
            )
        if dtype != self.dtype:
            cast = {"dtype": self.dtype}
            value = self.builder.add(OP["cast"], cast, (value,), self._name(), origin, self.dtype, self.shape)
        return Ref(value, self.dtype, self.shape)

    def emit_inferred(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds a node in front of the call's own node, with the type that the core infers."""
        value = self.builder.add(op, attrs, operands, self._name(), self._origin(), None, None)
        return Ref(value, *self.builder.type(value))

    def emit_result(self, index: int, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node for one result of a call with several results."""
        dtype, shape = self.types[index]
        value = self.builder.add(op, attrs, operands, self._name(), self._origin(), dtype, shape)
        return Ref(value, dtype, shape)

    def emit_all(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> list[Ref]:
        """Adds one node with all results of the call."""
        return self.emit_many(op, attrs, operands, self.types)

    def emit_many(
        self,
        op: int,
        attrs: dict[str, Any] | None,
        operands: Sequence[int],
        types: list[tuple[int, Sequence[int]]],
    ) -> list[Ref]:
        """Adds one node with results of these types."""
        first = self.builder.add_many(op, attrs, operands, self._name(), self._origin(), types)
        return [Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(types)]

    def first(self, result: Ref | None) -> list[Any] | None:
        """Returns the results of a call of which only the first is used; the others are `NoValue`."""
        return (
            None if result is None else [result] + [NoValue(str(self._node.target))] * (len(self.types) - 1)
        )

    def used_results(self) -> set[int]:
        """Returns the indices of results whose getitem has a user, or all if the tuple itself is used."""
        used = set()
        for user in self._node.users:
            if user.target is not operator.getitem:
                return set(range(len(self.types)))
            if user.users:
                used.add(user.args[1])
        return used

    def only_first(self) -> bool:
        """True if no result of the call except result 0 is used."""
        return self.used_results() <= {0}

    def number(self, value: Any, like: Ref) -> Ref:
        """Returns a Python operand as a rank-0 constant that promotes as torch promotes the number."""
        category = 2 if isinstance(value, float) else 0 if isinstance(value, bool) else 1
        if not isinstance(value, bool | int | float):
            raise self.error(_core.UnsupportedOp, "an operand is no real number", got=_shown(value))
        code = like.dtype if category <= CATEGORY[like.dtype] else DEFAULT_OF_CATEGORY[category]
        return self.constant(value, code)

    def promoted(self, ref: Ref, *beside: Ref) -> Ref:
        """Returns an operand as torch reads it: one of rank 0 is cast to the dtype of a narrower operand.

        `beside` are the other operands. An integer wraps around if they are narrower integers, unless the
        call turns integers into floats. A value may become infinite if they are narrow floats. For a factor
        see `promoted_factor`.
        """
        ranked = [TORCH_OF[other.dtype] for other in beside if other.shape]
        category = CATEGORY[ref.dtype]
        if ref.shape or not ranked:
            return ref
        common = reduce(torch.promote_types, ranked)
        code = CODE_OF[common]
        if CATEGORY[code] != category:
            narrows = category == 1 and code in NARROW_FLOATS
        else:
            narrows = torch.promote_types(TORCH_OF[ref.dtype], common) != common
            narrows = narrows and (category == 2 or CATEGORY[self.dtype] != 2)
        return self.emit_inferred(OP["cast"], {"dtype": code}, (ref.id,)) if narrows else ref

    def promoted_factor(self, ref: Ref, beside: Ref) -> Ref:
        """Returns the second operand of a product or quotient as torch reads it: an int beside f16 is f32."""
        if CATEGORY[ref.dtype] == 2 or ref.shape or not beside.shape:
            return ref
        if CATEGORY[ref.dtype] == 1 and beside.dtype in NARROW_FLOATS:
            return self.emit_inferred(OP["cast"], {"dtype": DEFAULT_OF_CATEGORY[2]}, (ref.id,))
        return self.promoted(ref, beside)

    def alike(self, *refs: Ref) -> tuple[Ref, ...]:
        """Returns the operands of one call, each as torch reads it in a call with the others."""
        return tuple(self.promoted(ref, *refs) for ref in refs)

    def factor(self, value: Any, like: Ref) -> Ref:
        """Returns a Python operand of a product or quotient.

        Beside narrow floats, torch reads floats as f32.
        """
        if isinstance(value, float) and like.dtype in NARROW_FLOATS:
            return self.constant(value, DEFAULT_OF_CATEGORY[2])
        return self.number(value, like)

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
        ref = Ref(self.builder.add_constant(constant), CODE_OF[tensor.dtype], tuple(tensor.shape))
        self.remember(ref, tensor)
        return ref

    def remember(self, ref: Ref, tensor: torch.Tensor) -> None:
        """Notes that a value is the constant `tensor`."""
        self._shared.constants[id(self.builder), ref.id] = tensor

    def known_elements(self, ref: Ref) -> NDArray[Any] | None:
        """Returns the elements of a constant, or None for other values.

        Notes that the import reads the elements.
        """
        tensor = self._held(ref)
        if tensor is None:
            return None
        self._shared.weights.read(tensor)
        wide = torch.float64 if tensor.is_floating_point() else torch.int64
        return tensor.detach().to(wide, copy=True).numpy()  # torch pins memory shared with numpy

    def order_of_format(self, memory_format: Any, rank: int) -> tuple[int, ...] | None:
        """Returns the dim order that a memory format asks for; None for other formats and other values."""
        return order_of_format(memory_format, rank)

    def _held(self, ref: Ref) -> torch.Tensor | None:
        return self._shared.constants.get((id(self.builder), ref.id))

    def same(self, ref: Ref, result: Ref) -> Ref:
        """Returns `result`, after noting that it is the same constant as `ref`, if `ref` is one."""
        tensor = self._held(ref)
        if tensor is not None:
            self.remember(result, tensor)
        return result


def _shown(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Ref | NoValue) else repr(value)
