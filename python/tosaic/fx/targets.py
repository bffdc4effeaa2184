"""Resolves FX call targets once: the table's row for each, its defaults, and the operands it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from tosaic.torch_operators.call import Emit
from tosaic.torch_operators.casts import contiguous, dropout, is_identity_in_place, to
from tosaic.torch_operators.table import DROPPED, EVALUATED, TABLE, WHOLE

__all__ = ["Row", "default_of", "row_for", "schema_name"]

_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
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
_MAY_RETURN_OPERAND = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "type_as")


def default_of(argument: Any) -> Any:
    """Returns the default of a schema parameter.

    Schemas store memory formats as numbers; these are converted.
    """
    default = argument.default_value
    if type(default) is int and "MemoryFormat" in str(argument.real_type):
        return _FORMATS[default]
    return default


class Row:
    """What is known of one call target, so that reading a call does not need its schema.

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
    single : bool
        True if the call returns exactly one tensor.
    changes_shape : bool
        True if the operand has another shape after the call, with the same elements.
    dropped, evaluated, getitem : bool
        `dropped` is True for assertions, `evaluated` for calls that return sizes, `getitem` for
        ``operator.getitem``.
    training_at : tuple of int
        Positions of the parameters that distinguish training from inference.
    """

    __slots__ = (
        "_aliased",
        "arity",
        "changes_shape",
        "defaults",
        "dropped",
        "emit",
        "evaluated",
        "getitem",
        "mutates",
        "name",
        "names",
        "needed_by_name",
        "required",
        "returned",
        "single",
        "target",
        "training_at",
    )

    def __init__(self, target: str, name: str, schema: Any) -> None:
        self.target = target
        self.name = name
        self.getitem = False
        arguments = [] if schema is None else list(schema.arguments)
        returns = [] if schema is None else list(schema.returns)
        self.names = tuple(argument.name for argument in arguments)
        self.defaults = tuple(map(default_of, arguments))
        self.required = sum(not (a.has_default_value() or a.kwarg_only) for a in arguments)
        self.needed_by_name = frozenset(
            a.name for a in arguments if a.kwarg_only and not a.has_default_value()
        )
        self.arity = len(arguments)
        self.mutates = tuple(
            i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
        )
        self.training_at = tuple(i for i, a in enumerate(arguments) if a.name in _TRAINING)
        base, _, overload = name.partition(".")
        self.changes_shape = base in _CHANGES_SHAPE
        self.dropped = name in DROPPED
        self.evaluated = name in EVALUATED
        self.emit = self._row(base, overload, returns)
        # The table does not read results of dynamic types.
        self.single = len(returns) == 1 and str(returns[0].type) == "Tensor"
        self.returned = [self._returned(argument, returns) for argument in arguments]
        aliased = [i for i, a in enumerate(arguments) if a.alias_info is not None]
        self._aliased = aliased[0] if aliased else 0 if base in _MAY_RETURN_OPERAND else None

    def _row(self, base: str, overload: str, returns: Sequence[Any]) -> Emit | None:
        suffix = f".{overload}" if overload else ""
        if not self.mutates:
            return TABLE.get(base + suffix) or TABLE.get(base.removesuffix("_copy") + suffix)
        if self.mutates != (0,) or len(returns) != 1:
            return None
        if base.startswith("__i") and base.endswith("__"):
            return TABLE.get(f"__{base[3:]}{suffix}")
        if not base.endswith("_"):
            return None
        return TABLE.get(base.removesuffix("_") + suffix) or self._overload_alike(base.removesuffix("_"))

    def _overload_alike(self, base: str) -> Emit | None:
        """Returns the row of the overload with the same parameters: ``transpose.int`` for ``transpose_``."""
        packet = getattr(torch.ops.aten, base, None)
        for overload in () if packet is None else packet.overloads():
            schema = getattr(packet, overload)._schema
            if tuple(argument.name for argument in schema.arguments) == self.names:
                return TABLE.get(schema_name(schema))
        return None

    @staticmethod
    def _returned(argument: Any, returns: Sequence[Any]) -> int | None:
        """Returns the index of the result that is this written operand's new value; None if there is none."""
        if argument.alias_info is None or not argument.alias_info.is_write:
            return None
        for i, result in enumerate(returns):
            if (
                result.alias_info is not None
                and result.alias_info.before_set & argument.alias_info.before_set
            ):
                return i
        return None

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
        if "momentum" in self.names:
            at = self.names.index("running_mean") if "running_mean" in self.names else -1
            if at < 0 or values[at] is None:
                return False
        told = {self.names[i]: values[i] for i in self.training_at}
        if "dropout" in told and not told["dropout"]:
            return False
        return any(value is True for value in told.values()) or bool(told.get("dropout_p"))

    def shared_operand(self, node: Node) -> Node | None:
        """Returns the operand whose memory the result shares, by schema and recorded types, or None."""
        if self._aliased is None:
            return None
        args = self.complete(node.args, node.kwargs)
        operand = args[self._aliased] if self._aliased < len(args) else None
        if not isinstance(operand, Node):
            return None
        if self.mutates:
            return operand
        before, after = operand.meta.get("val"), node.meta.get("val")
        if self.emit is to and (getattr(before, "dtype", None) != getattr(after, "dtype", None)):
            return None
        if self.emit is contiguous and before is not None and not before.is_contiguous(memory_format=args[1]):
            return None
        if self.emit is dropout and args[2] and args[1]:
            return None
        return operand

    def is_whole(self, node: Node, operand: Node) -> bool:
        """True if the result is all of the operand, with the same shape."""
        before, after = operand.meta.get("val"), node.meta.get("val")
        return self.emit in WHOLE and getattr(before, "shape", 0) == getattr(after, "shape", 1)

    def writes_nothing(self, node: Node) -> bool:
        """True if the call is in-place by name only."""
        return is_identity_in_place(self.name.partition(".")[0], self.complete(node.args, node.kwargs))


def schema_name(schema: Any) -> str:
    """Returns the key in the table: ``add.Tensor``, or outside aten ``torchao::quantize_affine``."""
    name = str(schema.name).removeprefix("aten::")
    overload = schema.overload_name
    return f"{name}.{overload}" if overload and overload != "default" else name


def row_for(target: Any) -> Row | None:
    """Returns the row of an overload of torch or of ExecuTorch's edge dialect; None for other callables."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return None
    name = schema_name(schema)
    namespace, _, bare = name.rpartition("::")
    shown = f"{namespace or 'aten'}.{bare.partition('.')[0]}.{schema.overload_name or 'default'}"
    return Row(shown, name, schema)
