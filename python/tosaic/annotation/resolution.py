"""The result of a plan, as data: resolved specs, groups, conflicts, history, float tensors with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tosaic.annotation.crowded import HIDING_REMEDY
from tosaic.annotation.plan import Change, Conflict, Group, Plan, RuleRecord
from tosaic.annotation.specs import Derived, Edge, Fixed, Foreign, Observed, Output, Slot, Spec
from tosaic.base.dtypes import is_float
from tosaic.base.reportable import Reportable


@dataclass(frozen=True)
class ResolvedSlot:
    """A slot of a plan.

    Attributes
    ----------
    slot : Edge or Output
    spec : spec
        As it was set.
    resolved : spec, optional
        The spec of its group, which applies to the slot. None: the group has a conflict.
    decided_by : Edge or Output, optional
        The slot from which `resolved` comes.
    group : int, optional
        Index into `Resolution.groups`. None: an output that is explicitly float.
    set_by : str
        The quantizer or rule that set it.
    stale : bool
        An edge that the graph does not have; the spec has no effect.
    """

    slot: Slot
    spec: Spec
    resolved: Spec | None
    decided_by: Slot | None
    group: int | None
    set_by: str
    stale: bool


@dataclass(frozen=True)
class Requantized:
    """A tensor that is quantized at its output, and then again, with other qparams, at an edge.

    Attributes
    ----------
    output : Output
    edge : Edge
    """

    output: Slot
    edge: Slot


@dataclass(frozen=True)
class FloatTensor:
    """A float tensor that no slot quantizes: an input of the caller, or the result of a call.

    Attributes
    ----------
    node : str
    reason : str
        ``set to float``, ``spec removed``, ``annotated without a spec`` (as inside of a pattern that is
        quantized as a whole), ``not annotated``, or why `tosaic.Quantizer` left it float.
    rule : str
        The rule or quantizer that set it to float or removed its spec; else empty.
    target, module_path, source : str
        The target and the origin of the node, as far as torch recorded them.
    """

    node: str
    reason: str
    rule: str
    target: str
    module_path: str
    source: str


@dataclass(frozen=True)
class NarrowOperand:
    """Numbers that use few of the integers of a result.

    The numbers belong to an operand of a join, such as a concatenation, or an operator combines them with
    far larger numbers, such as a selection between data and -300.

    Attributes
    ----------
    node, operand : str
        The operator, and the operand that it reads; empty if the numbers may belong to several operands.
    integers : int
        How many integers of the result lie between the least and the greatest of the numbers.
    of : int
        How many integers the result has.
    least, greatest : float
        The range of the numbers over the samples.
    module_path, source : str
        The origin of the operator, as far as torch recorded it.
    beside : float, optional
        The largest number of the result. None for operands of joins.
    """

    node: str
    operand: str
    integers: int
    of: int
    least: float
    greatest: float
    module_path: str = ""
    source: str = ""
    beside: float | None = None

    @property
    def text(self) -> str:
        """A sentence with the loss and a remedy."""
        place = f" ({self.source})" if self.source else ""
        if self.beside is not None:
            whose = f" of '{self.operand}'" if self.operand else ""
            return (
                f"'{self.node}'{place} leaves {self.integers} of its {self.of:,} integers to the numbers"
                f"{whose} from {self.least:.3g} to {self.greatest:.3g}, since others are about "
                f"{self.beside:.3g}. {HIDING_REMEDY}. If they are results, return or read the operands of "
                f"'{self.node}' separately"
            )
        return (
            f"'{self.node}'{place} joins '{self.operand}', in {self.least:.4g} to {self.greatest:.4g}, with "
            f"wider numbers: it uses {self.integers} of the {self.of:,} integers of the result. Return the "
            f"tensors separately, or scale them to one range before '{self.node}'"
        )


@dataclass(frozen=True)
class MixedOperands:
    """A call that reads quantized tensors and float tensors: no integer-only backend can compute it.

    A bias without a spec does not count.

    Attributes
    ----------
    node : str
    integers, floats : tuple of str
        The nodes whose tensors the call reads as integers, and as floats.
    target, module_path, source : str
        The target and the origin of the call, as far as torch recorded them.
    """

    node: str
    integers: tuple[str, ...]
    floats: tuple[str, ...]
    target: str
    module_path: str
    source: str


@dataclass(frozen=True)
class Resolution(Reportable):
    """The result of a plan, as torchao's prepare would read it.

    Attributes
    ----------
    slots : tuple of ResolvedSlot
        In the order of the plan.
    groups : tuple of Group
    conflicts : tuple of Conflict
    requantized : tuple of Requantized
    left_float : tuple of FloatTensor
        For `tosaic.Quantizer` and annotations: all float tensors that no slot quantizes. For
        `tosaic.quantize`: only the float tensors that are computed with floats, or passed on as floats.
    not_rounded : tuple of FloatTensor
        For `tosaic.quantize`: results that are parts of integer arithmetic, although they have no scale of
        their own. Either their readers round them, or they have the same integers as an operand.
    mixed : tuple of MixedOperands
        Calls that read quantized tensors and float tensors.
    history : tuple of Change
        Specs that were replaced or removed.
    authors : tuple of RuleRecord
        Quantizers and rules, with their matches.
    narrow : tuple of NarrowOperand
        For `tosaic.quantize`: operands of joins, and numbers next to far larger ones, that use fewer than 16
        of the integers of a result.
    """

    slots: tuple[ResolvedSlot, ...]
    groups: tuple[Group, ...]
    conflicts: tuple[Conflict, ...]
    requantized: tuple[Requantized, ...]
    left_float: tuple[FloatTensor, ...]
    history: tuple[Change, ...]
    authors: tuple[RuleRecord, ...]
    not_rounded: tuple[FloatTensor, ...] = ()
    narrow: tuple[NarrowOperand, ...] = ()
    mixed: tuple[MixedOperands, ...] = ()

    @property
    def overwritten(self) -> tuple[Change, ...]:
        """Specs that somebody else replaced."""
        return tuple(c for c in self.history if c.after is not None and c.set_by != c.changed_by)

    @property
    def dropped(self) -> tuple[Change, ...]:
        """Specs that were removed."""
        return tuple(c for c in self.history if c.after is None)

    @property
    def unmatched(self) -> tuple[RuleRecord, ...]:
        """Rules that matched nothing."""
        return tuple(record for record in self.authors if record.matches == 0)

    __repr__ = Reportable.__str__


def resolve(plan: Plan, reasons: Mapping[str, str] | None = None) -> Resolution:
    """Returns the result of a plan, as torchao's prepare would read it.

    Parameters
    ----------
    plan : Plan
    reasons : mapping of str to str, optional
        By node, why a quantizer set no spec for it; nodes outside the plan are in bodies of control flow.
    """
    found = plan.core.resolve()
    left = [FloatTensor(*row) for row in found["left_float"]]
    slots = tuple(ResolvedSlot(*row) for row in found["slots"])
    return Resolution(
        slots=slots,
        groups=plan.groups(),
        conflicts=plan.conflicts(),
        requantized=tuple(Requantized(*row) for row in found["requantized"]),
        left_float=tuple(_left_float(left, plan, reasons or {})),
        history=plan.history,
        authors=plan.authors,
        mixed=tuple(_mixed(slots, plan)),
    )


def _mixed(slots: Sequence[ResolvedSlot], plan: Plan) -> Iterator[MixedOperands]:
    specs = {row.slot: row.resolved for row in slots if not row.stale}
    dtypes: dict[str, str] = {}
    for call in plan.graph:
        dtypes[call.name] = call.dtype
        if call.kind != "call":
            continue
        read: dict[str, bool] = {}
        for operand in call.operands:
            slot = Edge(operand.producer, call.name)
            spec = specs.get(slot if slot in specs else Output(operand.producer))
            is_integers = isinstance(spec, Observed | Fixed | Derived | Foreign)
            if is_float(dtypes[operand.producer]) and (is_integers or operand.name != "bias"):
                read[operand.producer] = is_integers
        integers = tuple(name for name, is_integers in read.items() if is_integers)
        floats = tuple(name for name in read if name not in integers)
        if integers and floats:
            path = call.modules[-1][0] if call.modules else ""
            yield MixedOperands(call.name, integers, floats, call.target, path, call.source)


def _left_float(rows: Sequence[FloatTensor], plan: Plan, reasons: Mapping[str, str]) -> Iterator[FloatTensor]:
    for row in rows:
        says_why = row.reason in ("set to float", "spec removed") or row.node not in reasons
        yield row if says_why else replace(row, reason=reasons[row.node])
    shown = {row.node for row in rows}
    for name, reason in reasons.items():
        if name in plan.graph and name not in shown:
            call = plan.graph[name]
            module_path = call.modules[-1][0] if call.modules else ""
            yield FloatTensor(name, reason, "", call.target, module_path, call.source)
        elif name not in shown:
            yield FloatTensor(name, reason, rule="", target="", module_path="", source="")
