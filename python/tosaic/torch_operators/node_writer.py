"""Writes the graph nodes of calls that are given as ``torch.fx`` nodes, with name, target and ``meta``."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.ports.foreign import ForeignOp
from tosaic.torch_operators.aliasing import Aliases
from tosaic.torch_operators.call import Call
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.origins import Origin, Where, module_path, origin_of, source_of
from tosaic.torch_operators.value import NoValue, Ref

_CALLS = _core.CallWriter(module_path, source_of, Ref)


@dataclass(frozen=True)
class Shared:
    """State that the writers of a program and of its nested graphs share.

    Attributes
    ----------
    weights : object
        The constants of the program.
    sizes : object
        The values of symbolic sizes.
    diagnostics : Diagnostics
    rows : dict
        By call target: its row; None if the target is no operator.
    foreign : mapping of str to ForeignOp
        By target: operators that the user described.
    """

    weights: Any
    sizes: Any
    diagnostics: Diagnostics
    rows: dict[Any, OperatorRow | None] = field(default_factory=dict)
    foreign: Mapping[str, ForeignOp] = field(default_factory=dict)


class NodeWriter(Call):
    """Writes the nodes of one call after another into a builder.

    Parameters
    ----------
    shared : Shared
    builder : GraphBuilder
    prefix : str
        The prefix of FX names in origins: the path of a nested graph, such as ``cond.0.``.

    Attributes
    ----------
    node : node
        The call that is being read, which the reader sets.
    row : OperatorRow or None
        The row of the call.
    is_complex : bool
        True if its result is complex: `dtype` is then the dtype of its real and imaginary parts.
    aliases : Aliases or None
        Which nodes share memory; None if no call writes.
    """

    is_outermost = True
    """False inside of a decomposed call, whose nodes have the origin of the outer call."""

    def __init__(self, shared: Shared, builder: _core.GraphBuilder, prefix: str = "") -> None:
        super().__init__(builder)
        self.shared = shared
        self.prefix = prefix
        self.node: Any = None
        self.row: OperatorRow | None = None
        self.is_complex = False
        self.aliases: Aliases | None = None

    @abstractmethod
    def expect(self, node: Any, row: OperatorRow) -> None:
        """Sets the result types that are recorded for the call. A complex result has the type of a part."""

    @abstractmethod
    def type_of(self, recorded: Any) -> tuple[int, Sequence[int]]:
        """Returns dtype and shape of a recorded tensor; of a complex one, of a part."""

    # ---- the call ----

    def name(self) -> str:
        """Returns the name of the call."""
        return str(self.node.name)

    def origin(self) -> Origin:
        """Returns the origin of the call."""
        node, row = self.node, self.row
        target = row.target if row is not None else str(node.target).removeprefix("higher_order.")
        return origin_of(self.prefix + node.name, target, node.meta)

    def where(self) -> Where:
        """Returns the place of the call."""
        return Where.of(self.node, "import")

    def emit(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node of this call. Its type is checked against the type that torch recorded."""
        row = self.row
        if not self.is_outermost or row is None or row.mutates:
            return super().emit(op, attrs, operands)
        added: Ref = _CALLS.add(
            self.builder,
            op,
            attrs,
            operands,
            self.node,
            self.prefix,
            row.target,
            self.dtype,
            self.shape,
        )
        return added

    def target_name(self) -> str:
        """Returns the operator name of this call: ``add`` for ``add.Tensor``."""
        assert self.row is not None
        return str(self.row.name).partition(".")[0]

    def is_in_place(self) -> bool:
        """True if the call writes an operand, so that its result has the dtype of the operand."""
        return self.row is not None and bool(self.row.mutates)

    def first(self, result: Ref | None) -> list[Any] | None:
        """Returns the results of a call of which only the first is used; the others are `NoValue`."""
        return None if result is None else [result] + [NoValue(str(self.node.target))] * (len(self.types) - 1)

    def used_results(self) -> set[int]:
        """Returns the indices of results whose getitem has a user, or all if the tuple itself is used."""
        used = set()
        for user in self.node.users:
            if user.target is not operator.getitem:
                return set(range(len(self.types)))
            if user.users:
                used.add(user.args[1])
        return used

    def memory_of_operand(self, position: int) -> tuple[tuple[int, ...] | None, int]:
        """Returns strides and storage offset of an operand as torch recorded them; else (None, 0)."""
        operand = self.node.args[position]
        if self.aliases is not None and hasattr(operand, "meta"):
            operand = self.aliases.shaped_by(operand, self.node)
        recorded = operand.meta.get("val")
        if recorded is None:
            return None, 0
        sizes = self.shared.sizes
        return tuple(sizes.shape(recorded.stride())), int(sizes.value(recorded.storage_offset()))

    def note(self, rule: str, message: str) -> None:
        """Adds a diagnostic about this call."""
        self.shared.diagnostics.note(rule, message, self.name())
