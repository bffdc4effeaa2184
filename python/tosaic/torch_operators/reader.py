"""`Reader`: the interface of a reader of nodes that its parts use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar

from tosaic import _core
from tosaic.ports.foreign import ForeignOp
from tosaic.torch_operators.aliasing import Conflict
from tosaic.torch_operators.node_writer import NodeWriter

FUNCTIONALIZE = "Call ep.run_decompositions() first, which makes the program functional"
OUT_OF_PLACE = "Write a call that returns the new value: y = y.mul(2) in place of y.mul_(2)"


class Reader(ABC):
    """Reads the nodes of one graph.

    Parameters
    ----------
    writer : NodeWriter
        Writes the nodes of the call that is being read.
    owner : object
        The object with the attributes that the graph reads.

    Attributes
    ----------
    env : dict
        By node: its `Ref`, a list of them, a number, or a `NoValue`.
    """

    tensor_type: ClassVar[Any]
    """The Python types of a recorded tensor."""
    number_types: ClassVar[Any]
    """The Python types of a recorded number."""

    def __init__(self, writer: NodeWriter, owner: Any = None) -> None:
        self.writer = writer
        self.owner = owner
        self.env: dict[Any, Any] = {}

    @abstractmethod
    def prepare(self, nodes: Sequence[Any], states: Container[Any] = ()) -> None:
        """Resolves the call targets; if a call writes to its operands, finds out which nodes share memory.

        `states` are the attributes that calls may write, since their new values are stored in the module.
        """

    @abstractmethod
    def read(self) -> None:
        """Reads every call and attribute; placeholders must be in ``env`` already, and attributes may be."""

    @abstractmethod
    def resolved(self, value: Any) -> Any:
        """Replaces the nodes in an argument by their values, and symbolic sizes by numbers."""

    # ---- nested graphs ----

    @abstractmethod
    def inner(self, module: Any, builder: _core.GraphBuilder, prefix: str) -> Reader:
        """Returns a reader for a nested graph."""

    @abstractmethod
    def nested_of(self, attribute: Any, owner: Any) -> Any:
        """Returns the nested graph that is the given attribute of `owner`."""

    @abstractmethod
    def is_higher_order(self, target: Any) -> bool:
        """True if a call of the target runs a nested graph."""

    # ---- calls without a row ----

    @abstractmethod
    def describe(self, value: Any) -> dict[str, str] | None:
        """Returns the entry of `arguments_json` for a dtype, a device or the like."""

    def mark(self) -> str:
        """Returns ``training`` or ``random`` if TOSA lacks the call for this reason; else empty."""
        return ""

    def run_by_torch(self, target: str) -> ForeignOp | None:
        """Returns a description of an operator of torch that tosaic does not have, if torch may run it."""
        del target
        return None

    def computed_at_import(self, operator: ForeignOp, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns the results of a call that torch runs, as constants; None if an operand is no constant."""
        del operator, args, kwargs
        return None

    # ---- refusals ----

    def autocast_hint(self) -> str:
        """Returns the hint how to make the casts of an autocast region explicit."""
        return "Save ep.run_decompositions({}), which writes out its casts"

    def functional_hint(self) -> str:
        """Returns the hint how to make the program functional with the same numbers."""
        return OUT_OF_PLACE

    def refuse_write(self, conflict: Conflict, hint: str = "") -> Exception:
        """Returns the error for a write to memory that something else reads."""
        return self.writer.error(
            _core.UnsupportedOp, f"it writes to {conflict.what}", hint=hint or self.functional_hint()
        )
