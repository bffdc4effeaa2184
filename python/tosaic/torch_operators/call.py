"""The call that a row of the torch table reads (`Call`), and a table of rows (`Rows`).

Whoever reads programs implements `Call`. Rows know nothing else of the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from tosaic import _core
from tosaic.torch_operators.origins import Where
from tosaic.torch_operators.value import NoValue, Ref

Emit = Callable[..., Any]
"""A row: a function of a `Call` and of the call's arguments, in the order of the schema."""
_Row = TypeVar("_Row", bound=Emit)
_Types = list[tuple[int, Sequence[int]]]


_READ_DATA: set[Emit] = set()


def reads_data(emit: _Row) -> _Row:
    """Marks a row that takes numbers which are read from data: a `NoValue` with a tensor."""
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
    """Returns a row for calls of which only the first result is read; others become opaque."""

    def emit_first(c: Call, *args: Any) -> list[Any] | None:
        return c.first(emit(c, *args)) if c.only_first() else None

    return emit_first


class Call(Protocol):
    """The call that a row reads, and the nodes that the row emits for it.

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

    builder: _core.GraphBuilder
    dtype: int
    shape: Sequence[int]
    types: _Types

    def target_name(self) -> str:
        """Returns the operator name of this call: ``add`` for ``add.Tensor``."""

    def emit(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node of this call; its type is checked against what torch recorded."""

    def emit_inferred(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds a node in front of the call's own node, with the type that the core infers."""

    def emit_result(self, index: int, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node for one result of a call with several results."""

    def emit_all(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> list[Ref]:
        """Adds one node with all results of the call."""

    def emit_many(
        self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int], types: _Types
    ) -> list[Ref]:
        """Adds one node with results of these types."""

    def first(self, result: Ref | None) -> list[Any] | None:
        """Returns the results of a call of which only the first is used; the others are `NoValue`."""

    def only_first(self) -> bool:
        """True if no result of the call except result 0 is used."""

    def used_results(self) -> set[int]:
        """Returns the indices of results whose getitem has a user, or all if the tuple itself is used."""

    def number(self, value: Any, like: Ref) -> Ref:
        """Returns a Python operand as a rank-0 constant that promotes as torch promotes the number."""

    def factor(self, value: Any, like: Ref) -> Ref:
        """Returns a Python operand of a product or quotient.

        Next to narrow floats, torch reads floats as f32.
        """

    def constant(self, value: bool | int | float, code: int) -> Ref:
        """Adds a rank-0 constant."""

    def lifted(self, elements: NDArray[Any]) -> Ref:
        """Adds a constant whose elements were computed at import."""

    def promoted(self, ref: Ref, *beside: Ref) -> Ref:
        """Returns an operand in torch's dtype next to the others: rank 0 is cast to a narrower dtype."""

    def promoted_factor(self, ref: Ref, beside: Ref) -> Ref:
        """Returns the second operand of a product or quotient in torch's dtype: f32 for an int by f16."""

    def alike(self, *refs: Ref) -> tuple[Ref, ...]:
        """Returns the operands of one call, each as torch reads it in a call with the others."""

    def known_elements(self, ref: Ref) -> NDArray[Any] | None:
        """Returns the elements of a constant, or None for other values.

        Notes that the import reads the elements.

        They come in the shape of the value as 64-bit numbers: as float64 for floats, and as int64 for all
        others.
        """

    def order_of_format(self, memory_format: Any, rank: int) -> tuple[int, ...] | None:
        """Returns the dim order that a memory format asks for; None for other formats and other values."""

    def memory_of_operand(self, position: int) -> tuple[tuple[int, ...] | None, int]:
        """Returns strides and storage offset of an operand as torch recorded them; else (None, 0)."""

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
