"""The call that a row of the torch table reads (`Call`), and a table of rows (`Rows`).

A reader of programs owns a `Call`, and sets which call is being read. The rows of the table then write
nodes with it, without knowing the reader.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce, wraps
from typing import Any, TypeVar

from numpy.typing import NDArray

from tosaic import _core
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.dtypes import CATEGORY, DEFAULT_OF_CATEGORY, NARROW_FLOATS
from tosaic.torch_operators.origins import Origin, Where
from tosaic.torch_operators.value import NoValue, Ref

Emit = Callable[..., Any]
"""A row: a function of a `Call` and of the call's arguments, in the order of the schema."""
_Row = TypeVar("_Row", bound=Emit)
_Types = list[tuple[int, Sequence[int]]]


_READ_DATA: set[Emit] = set()


def reads_data(emit: _Row) -> _Row:
    """Marks a row that accepts numbers computed from data, as a `NoValue` with a tensor."""
    _READ_DATA.add(emit)
    return emit


def can_read_data(emit: Emit | None, values: Sequence[Any]) -> bool:
    """True if the row takes these arguments, some of which are a `NoValue`."""
    return emit in _READ_DATA and all(
        value.tensor is not None for value in values if isinstance(value, NoValue)
    )


class Rows(dict[str, Emit]):
    """Rows by schema name: ``conv2d``, ``add.Tensor``."""

    def on(self, *names: str) -> Callable[[_Row], _Row]:
        """Returns a decorator that adds a row under these names."""

        def register(emit: _Row) -> _Row:
            for name in names:
                self[name] = emit
            return emit

        return register

    @classmethod
    def joined(cls, *tables: Rows) -> Rows:
        """Returns all rows of several tables. A name may occur in only one of them."""
        found = cls()
        for table in tables:
            twice = found.keys() & table.keys()
            assert not twice, f"rows in two tables: {sorted(twice)}"
            found.update(table)
        return found


def first_of(emit: Emit) -> Emit:
    """Returns a row for calls of which only the first result is used; other calls become opaque."""

    @wraps(emit)
    def emit_first(c: Call, *args: Any) -> list[Any] | None:
        return c.first(emit(c, *args)) if c.only_first() else None

    return emit_first


def with_parameters(emit: Emit, types: Mapping[str, str]) -> Emit:
    """Returns the row with annotated parameters, by which `tosaic.pte.rows` matches a file's arguments."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = {"c": "Call", **types}
    parameters = [inspect.Parameter(name, kind, annotation=each) for name, each in named.items()]
    emit.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return emit


class Call(ABC):
    """Writes the nodes of one call after another into a builder. Rows read the current call from it.

    A subclass decides the names and origins of nodes, and makes constants.

    Attributes
    ----------
    builder : GraphBuilder
        The builder of the graph that is being made.
    dtype : int
        Position in DTYPES of the dtype that torch recorded for the result, or for result 0.
    shape : sequence of int
        The shape that torch recorded for that result.
    types : list of (int, sequence of int)
        Dtype and shape of each result, if the call has several.
    """

    def __init__(self, builder: _core.GraphBuilder) -> None:
        self.builder = builder
        self.dtype = -1
        self.shape: Sequence[int] = ()
        self.types: _Types = []

    @abstractmethod
    def name(self) -> str:
        """Returns the name of the next node."""

    @abstractmethod
    def origin(self) -> Origin:
        """Returns the origin of the next node."""

    @abstractmethod
    def where(self) -> Where:
        """Returns the place of this call, for errors."""

    @abstractmethod
    def constant(self, value: bool | int | float, code: int) -> Ref:
        """Adds a rank-0 constant."""

    @abstractmethod
    def is_in_place(self) -> bool:
        """True if the call writes an operand, so that its result has the dtype of the operand."""

    @abstractmethod
    def target_name(self) -> str:
        """Returns the operator name of this call: ``add`` for ``add.Tensor``."""

    @abstractmethod
    def first(self, result: Ref | None) -> list[Any] | None:
        """Returns the results of a call of which only the first is used; the others are `NoValue`."""

    @abstractmethod
    def used_results(self) -> set[int]:
        """Returns the indices of results whose getitem has a user, or all if the tuple itself is used."""

    def only_first(self) -> bool:
        """True if no result of the call except result 0 is used."""
        return self.used_results() <= {0}

    @abstractmethod
    def lifted(self, elements: NDArray[Any]) -> Ref:
        """Adds a constant whose elements were computed at import."""

    @abstractmethod
    def known_elements(self, ref: Ref) -> NDArray[Any] | None:
        """Returns the elements of a constant, or None for other values.

        Records that the import reads the elements.

        The elements have the shape of the value, and are 64-bit numbers: float64 for floats, and int64 for
        all others.
        """

    @abstractmethod
    def order_of_format(self, memory_format: Any, rank: int) -> tuple[int, ...] | None:
        """Returns the dim order that a memory format asks for; None for other formats and other values."""

    @abstractmethod
    def memory_of_operand(self, position: int) -> tuple[tuple[int, ...] | None, int]:
        """Returns strides and storage offset of an operand as torch recorded them; else (None, 0)."""

    @abstractmethod
    def note(self, rule: str, message: str) -> None:
        """Adds a diagnostic about this call."""

    def error(
        self,
        kind: type[Exception],
        what: str,
        *,
        expected: str = "",
        got: str = "",
        hint: str = "",
        at: Where | None = None,
    ) -> Exception:
        """Returns an error located at this call, or at another place."""
        place = self.where() if at is None else at
        return place.error(kind, what, expected=expected, got=got, hint=hint)

    # ---- nodes ----

    def emit(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node of this call. Its type is checked against the type that torch recorded."""
        origin = self.origin()
        if self.is_in_place():
            return self._emit_in_place(op, attrs, operands, origin)
        value = self.builder.add(op, attrs, operands, self.name(), origin, self.dtype, self.shape)
        return Ref(value, self.dtype, self.shape)

    def _emit_in_place(
        self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int], origin: Any
    ) -> Ref:
        """Adds the node of an in-place call.

        The result is cast to the operand's dtype if it was promoted.
        """
        value = self.builder.add(op, attrs, operands, self.name(), origin, None, None)
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
            value = self.builder.add(OP["cast"], cast, (value,), self.name(), origin, self.dtype, self.shape)
        return Ref(value, self.dtype, self.shape)

    def emit_inferred(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds a node in front of the call's own node, with the type that the core infers."""
        value = self.builder.add(op, attrs, operands, self.name(), self.origin(), None, None)
        return Ref(value, *self.builder.type(value))

    def emit_result(self, index: int, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node for one result of a call with several results."""
        dtype, shape = self.types[index]
        value = self.builder.add(op, attrs, operands, self.name(), self.origin(), dtype, shape)
        return Ref(value, dtype, shape)

    def emit_all(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> list[Ref]:
        """Adds one node with all results of the call."""
        return self.emit_many(op, attrs, operands, self.types)

    def emit_many(
        self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int], types: _Types
    ) -> list[Ref]:
        """Adds one node with results of these types."""
        first = self.builder.add_many(op, attrs, operands, self.name(), self.origin(), types)
        return [Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(types)]

    # ---- operands ----

    def number(self, value: Any, like: Ref) -> Ref:
        """Returns a Python operand as a value of rank 0 that promotes as torch promotes the number."""
        if isinstance(value, NoValue) and value.tensor is not None:
            return self._cast(value.tensor, _promoted_code(CATEGORY[value.tensor.dtype], like))
        category = 2 if isinstance(value, float) else 0 if isinstance(value, bool) else 1
        if not isinstance(value, bool | int | float):
            raise self.error(_core.UnsupportedOp, "an operand is no real number", got=_shown(value))
        return self.constant(value, _promoted_code(category, like))

    def _cast(self, ref: Ref, code: int) -> Ref:
        return ref if ref.dtype == code else self.emit_inferred(OP["cast"], {"dtype": code}, (ref.id,))

    def promoted(self, ref: Ref, *beside: Ref) -> Ref:
        """Returns an operand as torch reads it: one of rank 0 is cast to the dtype of a narrower operand.

        `beside` are the other operands. An integer is cast to narrower integers with wrap-around, unless the
        call turns integers into floats. A value that is cast to a narrow float may become infinite. For a
        factor see `promoted_factor`.
        """
        ranked = [other.dtype for other in beside if other.shape]
        category = CATEGORY[ref.dtype]
        if ref.shape or not ranked:
            return ref
        code = reduce(_core.promote, ranked)
        if CATEGORY[code] != category:
            narrows = category == 1 and code in NARROW_FLOATS
        else:
            narrows = _core.promote(ref.dtype, code) != code
            narrows = narrows and (category == 2 or CATEGORY[self.dtype] != 2)
        return self.emit_inferred(OP["cast"], {"dtype": code}, (ref.id,)) if narrows else ref

    def promoted_factor(self, ref: Ref, beside: Ref) -> Ref:
        """Returns the second operand of a product or quotient in torch's dtype: f32 for an int by f16."""
        if CATEGORY[ref.dtype] == 2 or ref.shape or not beside.shape:
            return ref
        if CATEGORY[ref.dtype] == 1 and beside.dtype in NARROW_FLOATS:
            return self.emit_inferred(OP["cast"], {"dtype": DEFAULT_OF_CATEGORY[2]}, (ref.id,))
        return self.promoted(ref, beside)

    def alike(self, *refs: Ref) -> tuple[Ref, ...]:
        """Returns the operands of one call, each with the dtype that torch gives it next to the others."""
        return tuple(self.promoted(ref, *refs) for ref in refs)

    def factor(self, value: Any, like: Ref) -> Ref:
        """Returns a Python operand of a product or quotient.

        If the other operand is a narrow float, torch uses a float operand as f32.
        """
        if like.dtype in NARROW_FLOATS:
            if isinstance(value, float):
                return self.constant(value, DEFAULT_OF_CATEGORY[2])
            if isinstance(value, NoValue) and value.tensor is not None and CATEGORY[value.tensor.dtype] == 2:
                return self._cast(value.tensor, DEFAULT_OF_CATEGORY[2])
        return self.number(value, like)


def _promoted_code(category: int, like: Ref) -> int:
    return like.dtype if category <= CATEGORY[like.dtype] else DEFAULT_OF_CATEGORY[category]


def _shown(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Ref | NoValue) else repr(value)
