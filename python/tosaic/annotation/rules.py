"""Rules that change plans, as data.

A rule is a callable over a `Plan`; `Plan.apply` runs rules in order. A later rule replaces what an earlier
one set, and the history of the plan has both. A rule that matches nothing raises an error, unless
``allow_unmatched=True``. If a rule takes specs, None means that the tensor becomes float, and `UNSET` that
the quantizer's spec stays.

A spec that a rule sets applies to all slots of the sharing group: concat, views and pools keep one
scale for operands and result, as their quantizer requires. The sharing group is split only if the spec would
replace another fixed spec; the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tosaic.annotation.plan import CoreRule, Plan
from tosaic.annotation.select import Select
from tosaic.annotation.specs import UNSET, Fixed, Slot, Spec, Unset
from tosaic.base.options import invalid, shown

__all__ = [
    "Clear",
    "Custom",
    "ExcludeFeeding",
    "Fix",
    "Inputs",
    "Operator",
    "Outputs",
    "Rule",
    "Set",
    "Share",
]

Specs: TypeAlias = Mapping[int | str, Spec | Unset | None]


_EVERYWHERE = Select()


def _check(rule: Any, field_name: str, is_right: bool, expected: str) -> None:
    if not is_right:
        raise invalid(
            type(rule).__name__,
            f"'{field_name}' is wrong",
            expected=expected,
            got=shown(getattr(rule, field_name)),
        )


class _Checked(CoreRule):
    """A rule whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        for name in ("specs", "operands"):
            if hasattr(self, name):
                value = getattr(self, name)
                _check(self, name, isinstance(value, Mapping), "specs by position or name, such as {0: spec}")
        for name in ("where", "until"):
            value = getattr(self, name, None)
            if hasattr(self, name) and not (name == "until" and value is None):
                _check(self, name, isinstance(value, Select), "a Select, such as Select(op='conv2d')")
        if hasattr(self, "slots"):
            value = self.slots
            _check(self, "slots", isinstance(value, list | tuple), "a tuple of Edge and Output")


@dataclass(frozen=True, repr=False)
class Inputs(_Checked):
    """Specs of the inputs of the graph.

    The placeholder's output gets the spec, and its users read it with the same qparams, so the input is
    quantized once. With None, the input and its edges are float: a call that reads the input and quantized
    tensors then mixes integers and floats, which integer-only backends refuse. With `UNSET`, the quantizer's
    specs stay.

    Attributes
    ----------
    specs : mapping of int or str to spec, UNSET or None
        By position (inputs that nothing reads count), path (``"batch['x']"``) or name of the placeholder.
    allow_unmatched : bool
        Inputs that do not exist are passed over.
    """

    specs: Specs
    allow_unmatched: bool = False

    def core_rule(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind and the fields of the rule for the core."""
        return "inputs", {"specs": dict(self.specs)}


@dataclass(frozen=True, repr=False)
class Outputs(_Checked):
    """Specs of the outputs of the graph.

    The returned node's output gets the spec, and all its users read it with the same qparams. With None, the
    caller gets floats, and the other users quantize the tensor at their own edges. With `UNSET`, the
    quantizer's specs stay.

    Attributes
    ----------
    specs : mapping of int or str to spec, UNSET or None
        By position (a tensor that is returned twice counts twice), path, or name of the returned node.
    allow_unmatched : bool
        Outputs that do not exist are passed over.
    """

    specs: Specs
    allow_unmatched: bool = False

    def core_rule(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind and the fields of the rule for the core."""
        return "outputs", {"specs": dict(self.specs)}


@dataclass(frozen=True, repr=False)
class Set(_Checked):
    """Specs around the selected nodes.

    The output of an operand's producer gets the spec, too, unless other nodes also quantize this tensor: then
    each of them reads it with its own qparams.

    Attributes
    ----------
    where : Select
    operands : mapping of int or str to spec, UNSET or None
        By name in the operator's schema (``"weight"``), by position, or by path (``"args[0][1]"``).
    result : spec or None, optional
        Not set: results stay as they are. None: results are float.
    allow_unmatched : bool
    """

    where: Select
    operands: Specs = field(default_factory=dict)
    result: Spec | Unset | None = UNSET
    allow_unmatched: bool = False

    def core_rule(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind and the fields of the rule for the core."""
        return _around(self.where, self.operands, self.result)


@dataclass(frozen=True, repr=False)
class Operator(_Checked):
    """Specs around an operator, such as image, grid and result of a grid sampler.

    Attributes
    ----------
    op : str
        ``"grid_sampler"`` or ``"aten.grid_sampler.default"``.
    operands, result
        As in `Set`.
    where : Select
        Restricts the rule to nodes that it selects.
    allow_unmatched : bool

    Examples
    --------
    >>> from tosaic.annotation import q_format
    >>> image, grid = q_format("Q0.7"), q_format("Q0.15")
    >>> rule = Operator("grid_sampler", {"input": image, "grid": grid}, result=image)
    """

    op: str
    operands: Specs = field(default_factory=dict)
    result: Spec | Unset | None = UNSET
    where: Select = _EVERYWHERE
    allow_unmatched: bool = False

    def core_rule(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind and the fields of the rule for the core."""
        return _around(_with_op(self.where, self.op), self.operands, self.result)


@dataclass(frozen=True, repr=False)
class Fix(_Checked):
    """A fixed spec for the results of the selected nodes.

    Attributes
    ----------
    where : Select
    spec : Fixed
    allow_unmatched : bool
    """

    where: Select
    spec: Fixed
    allow_unmatched: bool = False

    def core_rule(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind and the fields of the rule for the core."""
        return _around(self.where, {}, self.spec)


@dataclass(frozen=True, repr=False)
class ExcludeFeeding(_Checked):
    """Clears the subgraph that feeds only one operand of an operator.

    The subgraph consists of all nodes whose results are read, directly or through other such nodes, by this
    operand only. A node that also feeds something else stays annotated. The edge into the operator stays
    annotated, too.

    Attributes
    ----------
    op : str
        ``"grid_sampler"`` or ``"aten.grid_sampler.default"``.
    operand : str or int
        As in `Set`.
    until : Select, optional
        The subgraph ends after these nodes, which stay annotated.
    where : Select
        Restricts the rule to operators that it selects.
    allow_unmatched : bool
    """

    op: str
    operand: str | int
    until: Select | None = None
    where: Select = _EVERYWHERE
    allow_unmatched: bool = False

    def core_rule(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind and the fields of the rule for the core."""
        where = _with_op(self.where, self.op)
        return "exclude", {"where": where, "operand": self.operand, "until": self.until}


@dataclass(frozen=True, repr=False)
class Clear(_Checked):
    """Removes the annotations of the selected nodes.

    Attributes
    ----------
    where : Select
    allow_unmatched : bool
    """

    where: Select
    allow_unmatched: bool = False

    def core_rule(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind and the fields of the rule for the core."""
        return "clear", {"where": self.where}


@dataclass(frozen=True, repr=False)
class Share(_Checked):
    """Slots that get the scale and zero point of the first slot.

    The first slot must have a spec that is not derived.

    Attributes
    ----------
    slots : tuple of Edge or Output
    allow_unmatched : bool
    """

    slots: tuple[Slot, ...]
    allow_unmatched: bool = False

    def core_rule(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind and the fields of the rule for the core."""
        return "share", {"slots": tuple(self.slots)}


@dataclass(frozen=True)
class Custom:
    """A rule of the user, with a name for the history and the report.

    Attributes
    ----------
    function : callable
        Takes a `Plan`. Changes it in place and returns None, or returns a changed copy.
    name : str
        Empty: the name of the function.
    allow_unmatched : bool
        The function may change nothing.
    """

    function: Callable[[Plan], Plan | None]
    name: str = ""
    allow_unmatched: bool = False

    def __post_init__(self) -> None:
        _check(self, "function", callable(self.function), "a function of a plan")
        if not self.name:
            name = getattr(self.function, "__name__", type(self.function).__name__)
            object.__setattr__(self, "name", name)

    def __call__(self, plan: Plan) -> Plan | None:
        """Calls the function."""
        return self.function(plan)

    def __repr__(self) -> str:
        """Returns the call that makes this rule, with the function's name for the function."""
        function = getattr(self.function, "__name__", type(self.function).__name__)
        named = f", name={self.name!r}" if self.name != function else ""
        return f"Custom({function}{named}{', allow_unmatched=True' if self.allow_unmatched else ''})"


Rule: TypeAlias = Callable[[Plan], Plan | None]
"""The argument of `Plan.apply`. A plain callable is treated as `Custom(callable)`."""


def _with_op(where: Select, op: str) -> Select:
    return Select(where.name, where.regex, where.module, where.type, op, where.nodes)


def _around(where: Select, operands: Specs, result: Spec | Unset | None) -> tuple[str, dict[str, Any]]:
    fields: dict[str, Any] = {"where": where, "operands": dict(operands)}
    if result is not UNSET:
        fields["result"] = result
    return "around", fields
