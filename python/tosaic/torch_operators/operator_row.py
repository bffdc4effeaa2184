"""Facts about one call target besides its row: parameters, defaults, the operands that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tosaic.torch_operators.call import Emit
from tosaic.torch_operators.casts import is_identity_in_place
from tosaic.torch_operators.table import DROPPED, EVALUATED

# Schema parameters whose value differs between training and inference.
_TRAINING = ("train", "training", "dropout", "dropout_p")
_CHANGES_SHAPE = frozenset(
    {
        "as_strided_",
        "resize_",
        "resize_as_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of an operator.

    Attributes
    ----------
    name : str
    default : object
        None if there is none.
    has_default, keyword_only : bool
    aliases : frozenset of str
        The alias sets of the parameter, as in ``Tensor(a!) self``. Empty if it is not annotated.
    writes : bool
        True if the call writes to the operand.
    """

    name: str
    default: Any = None
    has_default: bool = False
    keyword_only: bool = False
    aliases: frozenset[str] = frozenset()
    writes: bool = False


@dataclass(frozen=True)
class Result:
    """A result of an operator: whether it is exactly one tensor, and its alias sets."""

    is_tensor: bool
    aliases: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Schema:
    """The signature of an operator.

    `is_pointwise` is True if each element of the result depends only on elements at the same place.
    """

    parameters: tuple[Parameter, ...] = ()
    results: tuple[Result, ...] = ()
    is_pointwise: bool = False


class OperatorRow:
    """Facts about one call target, so that reading a call does not need its schema.

    Attributes
    ----------
    target : str
        ``aten.conv2d.default``.
    name : str
        Schema name in the form of the table's keys: ``conv2d``, ``add_.Tensor``.
    emit : callable or None
        The row of the table; None if there is none.
    names, defaults : tuple
        The parameters in order, and their defaults.
    required : int
        The number of parameters without a default that are passed by position.
    needed_by_name : frozenset of str
        Keyword-only parameters without a default.
    mutates : tuple of int
        Positions of the operands that the call writes to.
    returned : list of int or None
        For each parameter, the index of the result that is the new value of the written operand; None if
        there is none.
    is_pointwise : bool
        True if each element of the result depends only on elements at the same place.
    returns_operand : bool
        True for an in-place call that returns its first operand, with the same shape.
    shares : bool
        True if the schema says that a result may share memory with an operand.
    single : bool
        True if the call returns exactly one tensor.
    fills : bool
        True if the call writes the same number to all elements of its operand.
    changes_shape : bool
        True if the call changes the shape of its operand, but not its elements.
    dropped, evaluated, getitem : bool
        `dropped` is True for assertions, `evaluated` for calls that return sizes, `getitem` for
        ``operator.getitem``.
    is_ordinary : bool
        False for these three, and for an operator without parameters.
    is_plain : bool
        True if a row of the table reads the call, which returns one tensor and writes no operand.
    training_at : tuple of int
        Positions of the parameters that distinguish training from inference.
    """

    __slots__ = (
        "_dropout_at",
        "_running_mean_at",
        "arity",
        "changes_shape",
        "defaults",
        "dropped",
        "emit",
        "evaluated",
        "fills",
        "getitem",
        "is_ordinary",
        "is_plain",
        "is_pointwise",
        "mutates",
        "name",
        "names",
        "needed_by_name",
        "required",
        "returned",
        "returns_operand",
        "shares",
        "single",
        "target",
        "training_at",
    )

    def __init__(self, target: str, name: str, schema: Schema, emit: Emit | None) -> None:
        self.target = target
        self.name = name
        self.emit = emit
        self.getitem = False
        parameters = schema.parameters
        self.names = tuple(each.name for each in parameters)
        self.defaults = tuple(each.default for each in parameters)
        self.required = sum(not (each.has_default or each.keyword_only) for each in parameters)
        self.needed_by_name = frozenset(
            each.name for each in parameters if each.keyword_only and not each.has_default
        )
        self.arity = len(parameters)
        self.mutates = tuple(i for i, each in enumerate(parameters) if each.writes)
        self.training_at = tuple(i for i, each in enumerate(parameters) if each.name in _TRAINING)
        self._dropout_at = next((i for i in self.training_at if self.names[i] == "dropout"), None)
        self._running_mean_at: int | None = None
        if "momentum" in self.names:
            self._running_mean_at = self.names.index("running_mean") if "running_mean" in self.names else -1
        base, _, _ = name.partition(".")
        self.changes_shape = base in _CHANGES_SHAPE
        self.fills = base in ("fill_", "zero_")
        self.dropped = name in DROPPED
        self.evaluated = name in EVALUATED
        self.is_ordinary = bool(parameters) and not (self.dropped or self.evaluated)
        # The table does not read results of dynamic types.
        self.single = len(schema.results) == 1 and schema.results[0].is_tensor
        self.is_plain = self.is_ordinary and emit is not None and self.single and not self.mutates
        self.returned = [_returned(each, schema.results) for each in parameters]
        self.is_pointwise = schema.is_pointwise or base in ("copy", "copy_")
        self.returns_operand = (
            self.mutates == (0,)
            and self.single
            and self.returned[0] == 0
            and base.endswith("_")
            and not self.changes_shape
            and base not in ("set_", "resize_")
        )
        # Results that are lists have no annotation: Tensor(a -> *) self returns Tensor(a)[].
        viewed = any(each.aliases and not each.writes for each in parameters)
        self.shares = viewed or any(each.aliases for each in schema.results)

    def complete(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Returns all arguments in the order of the schema, with defaults filled in."""
        if not kwargs:
            return (*args, *self.defaults[len(args) :])
        rest = [
            kwargs.get(name, default)
            for name, default in zip(self.names[len(args) :], self.defaults[len(args) :], strict=False)
        ]
        return (*args, *rest)

    def is_training(self, values: Sequence[Any]) -> bool:
        """True if a module in training mode makes the call with these arguments, in the order of the schema.

        Only differences with an effect count: training mode changes a recurrent layer only through its
        dropout, and does not change a norm without running statistics.
        """
        if (at := self._running_mean_at) is not None and (at < 0 or values[at] is None):
            return False
        if (at := self._dropout_at) is not None and not values[at]:
            return False
        return any(
            values[i] is True or (self.names[i] == "dropout_p" and bool(values[i])) for i in self.training_at
        )

    def writes_nothing(self, node: Any) -> bool:
        """True if the call is in-place by name only."""
        return is_identity_in_place(self.name.partition(".")[0], self.complete(node.args, node.kwargs))


def getitem_row() -> OperatorRow:
    """Returns the row of ``operator.getitem``."""
    row = OperatorRow("getitem", "getitem", Schema(), None)
    row.getitem = True
    return row


def _returned(parameter: Parameter, results: Sequence[Result]) -> int | None:
    """Returns the index of the result that is this written operand's new value; None if there is none."""
    if not parameter.writes:
        return None
    return next((i for i, result in enumerate(results) if result.aliases & parameter.aliases), None)
