"""Plans which tensors of a program get which integers: the plan of `tosaic.Quantizer`, made without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from tosaic import _core
from tosaic.annotation.bias import free_crowded_addends
from tosaic.annotation.call_graph import CallGraph
from tosaic.annotation.choice import planner_fields
from tosaic.annotation.config import QConfig
from tosaic.annotation.plan import Group, Plan
from tosaic.annotation.resolution import FloatTensor, Resolution, resolve
from tosaic.annotation.specs import Edge, Output, Slot
from tosaic.annotation.states import hold_stored_numbers, share_states
from tosaic.base.dtypes import is_float
from tosaic.base.options import invalid
from tosaic.lowering.pipeline import Pipeline
from tosaic.program.overrides import all_nodes

_FOLDED_FIRST = ("fold-constants", "dead-code", "fold-batch-norm")
_IN_BODY = "integer lowering computes bodies of control flow with floats"
_NOT_ROUNDED = "it moves numbers, or depends on constants or integers only"


def product_of_scales() -> None:
    """Represents in plans the function of a derived bias: the product of the scales of data and weight."""


@dataclass(frozen=True)
class PlannedProgram:
    """A float graph, and the plan for each of its tensors.

    Attributes
    ----------
    graph : Graph
        At stage ``exported``, with constants and batch norms folded.
    plan : Plan
        A spec for each tensor that is rounded. Calls are named as in torch's graph.
    values : tuple of int
        By call of the plan's graph: the value that it computes, or -1.
    nodes : tuple of tuple of int
        By call: its nodes.
    call_of_node : tuple of int
        By node of the graph: its call.
    left_float : dict of str to str
        The calls whose float results get no scale of their own, and why.
    in_integers : frozenset of str
        The calls of `left_float` that are parts of integer arithmetic.
    joined : tuple of (Edge or Output, Output)
        Operands of joins that are rescaled to the scale of the result, unless the ranges of samples nearly
        agree.
    every_operator : bool
        As in `QConfig`: the target computes one operator at a time.
    scaled : tuple of (Edge or Output, Output, float)
        An operand, the result of its product or quotient by a number, and the factor: the result has the same
        integers as the operand, with another scale.
    """

    graph: _core.Graph
    plan: Plan
    values: tuple[int, ...]
    nodes: tuple[tuple[int, ...], ...]
    call_of_node: tuple[int, ...]
    left_float: dict[str, str]
    in_integers: frozenset[str] = frozenset()
    joined: tuple[tuple[Slot, Slot], ...] = ()
    every_operator: bool = False
    scaled: tuple[tuple[Slot, Slot, float], ...] = ()

    def call(self, name: str) -> int:
        """Returns the position of a call."""
        return self._positions[name]

    def value_of(self, slot: Slot) -> int:
        """Returns the index of the slot's value in the graph, or -1 if its call returns several tensors."""
        return self.values[self.call(slot.node if isinstance(slot, Output) else slot.producer)]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.plan.graph.names)}

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups of slots that share one scale, in the order of the plan."""
        return self.plan.groups()

    def group_of(self, slot: Slot) -> Group:
        """Returns the group of slots that share the scale of this slot."""
        return self._group_of[slot]

    @cached_property
    def _group_of(self) -> dict[Slot, Group]:
        return {slot: group for group in self.groups for slot in group.slots}

    @property
    def report(self) -> Resolution:
        """What each rule rounds; which tensors stay float or have no scale of their own, with reasons."""
        found = resolve(self.plan, self.left_float)
        left = tuple(map(self._with_reason, found.left_float))
        used = {row.set_by for row in found.slots}
        return replace(
            found,
            left_float=tuple(row for row in left if not self._is_in_integers(row)),
            not_rounded=tuple(row for row in left if self._is_in_integers(row)),
            authors=tuple(each for each in found.authors if each.name in used or each.matches is not None),
        )

    def _is_in_integers(self, row: FloatTensor) -> bool:
        is_own_reason = row.reason == self.left_float.get(row.node)
        return row.reason == _NOT_ROUNDED or (is_own_reason and row.node in self.in_integers)

    def _with_reason(self, row: FloatTensor) -> FloatTensor:
        if row.reason not in ("not annotated", "annotated without a spec"):
            return row
        is_call = row.node in self.plan.graph and self.plan.graph[row.node].kind == "call"
        return replace(row, reason=_NOT_ROUNDED if is_call else "no call that reads it is quantized")


def prepared_graph(graph: _core.Graph) -> _core.Graph:
    """Folds constants and batch norms, so that weights are the same as in the later integer program.

    Weights that are already quantized become floats, and are quantized again.

    Raises
    ------
    InvalidGraph
        The graph is quantized already, or not at stage ``exported``.
    """
    if graph.stage == "exported":
        graph = _core.with_float_weights(graph)
    quantized = next((node for node in all_nodes(graph) if node.op in ("quantize", "dequantize")), None)
    if graph.stage != "exported" or quantized is not None:
        raise invalid(
            "quantize",
            "the program is quantized or lowered already",
            expected="a program of floats at stage exported",
            got=f"stage {graph.stage}" if quantized is None else f"{quantized.op} nodes",
            node="" if quantized is None else quantized.name,
            hint="Quantize the program that was imported",
        )
    passes = Pipeline.default()
    for name in _FOLDED_FIRST:
        graph = passes[f"simplify/{name}"].run(graph)
    return passes["simplify/dead-code"].run(_core.fold_returned(graph))


def plan_program(
    graph: _core.Graph,
    config: QConfig,
    *,
    module_types: Mapping[str, str] | None = None,
    rules: Sequence[Callable[[Plan], Plan | None]] = (),
    required: bool = True,
) -> PlannedProgram:
    """Plans a graph that `prepared_graph` returned.

    Raises
    ------
    InvalidGraph
        A selection of the configuration or a rule matches nothing, a rule quantizes a tensor of float64, or
        nothing at all is quantized although something is `required`.
    """
    core, values, of_node, nodes = _core.graph_calls(graph, dict(module_types or {}))
    plan = Plan(CallGraph.of_core(core), author="quantize")
    chosen, precisions = config.resolve(plan)
    _choose_items(plan, chosen)
    fields = [
        planner_fields(each, product_of_scales if each.bias == "derived" else None) for each in precisions
    ]
    left, joined, scaled = _core.plan_specs(
        plan.core, graph, values, chosen, fields, config.every_operator, of_node
    )
    left_float = {name: reason for name, reason, _ in left}
    in_integers = frozenset(name for name, _, is_float in left if not is_float)
    _share_states(plan, graph, values)
    # torchao also shares equal specs implicitly, which may close a circle of references.
    plan.refer_to_first()
    value_of = dict(zip(plan.graph.names, values, strict=True))
    elements_of = partial(_elements, graph, value_of)
    if not config.every_operator:
        free_crowded_addends(plan, elements_of)
    for rule in rules:
        plan = _applied(plan, rule)
    _require_no_doubles(plan)
    for node in graph.nodes:
        for region in node.regions:
            left_float |= {f"{node.name}.{each.name}": _IN_BODY for each in all_nodes(region)}
    planned = PlannedProgram(
        graph,
        plan,
        tuple(values),
        tuple(map(tuple, nodes)),
        tuple(of_node),
        left_float,
        in_integers,
        tuple(joined),
        config.every_operator,
        tuple(scaled),
    )
    _require_consistent(planned)
    if required and not len(planned.plan):
        raise _nothing_quantized(planned)
    return planned


def _elements(graph: _core.Graph, value_of: Mapping[str, int], name: str) -> Any:
    """Returns the elements of a constant, by the name of its call; None for other calls."""
    value = value_of[name]
    constant = graph.values[value].constant if value >= 0 else None
    return None if constant is None else constant.array


def _share_states(plan: Plan, graph: _core.Graph, values: Sequence[int]) -> None:
    names = {value: name for value, name in zip(values, plan.graph.names, strict=True) if value >= 0}
    written = {each.path: names[each.value.id] for each in graph.outputs if each.kind != "user"}
    states = [each for each in graph.inputs if each.kind == "state" and each.path in written]
    share_states(plan, [(names[each.value.id], written[each.path]) for each in states])
    inputs = {each.path for each in graph.inputs if each.kind == "user"}
    hold_stored_numbers(plan, [name for path, name in written.items() if path in inputs])


def _applied(plan: Plan, rule: Callable[[Plan], Plan | None]) -> Plan:
    try:
        return plan.apply(rule)
    except (_core.Error, MemoryError):
        raise
    except Exception as error:
        raise invalid(
            "quantize",
            f"the rule '{getattr(rule, '__name__', type(rule).__name__)}' raised {type(error).__name__}",
            got=str(error),
        ) from error


def _choose_items(plan: Plan, chosen: list[int]) -> None:
    """Gives each result of a call with several results the precision of the call."""
    at = {}
    for position, call in enumerate(plan.graph):
        at[call.name] = position
        if call.target == "getitem":
            chosen[position] = chosen[at[call.operands[0].producer]]


def _require_no_doubles(plan: Plan) -> None:
    """Refuses specs of float64 tensors, which only rules can set."""
    for slot in plan.slots():
        name = slot.producer if isinstance(slot, Edge) else slot.node
        if plan.get(slot) is not None and plan.graph[name].dtype == "f64":
            raise invalid(
                "quantize",
                f"the rule '{plan.author(slot)}' quantizes a tensor of float64",
                expected="tensors of float32, float16 or bfloat16, which torch quantizes",
                got="f64",
                node=name,
                hint="model.float() makes a model of float32",
            )


def _require_consistent(planned: PlannedProgram) -> None:
    conflicts = [each for each in planned.plan.conflicts() if each.kind != "unequal observers"]
    if conflicts:
        raise invalid(
            "quantize", conflicts[0].text, got=f"{len(conflicts)} such specs" if len(conflicts) > 1 else ""
        )


def _nothing_quantized(planned: PlannedProgram) -> Exception:
    if any(is_float(each.dtype) for each in planned.graph.values):
        hint = (
            "Lower the program of floats in its place: tosaic.lower(program, unsupported='split', "
            "claimants=['TOSA-1.0+FP']), or export_model(.., quantize=False, claimants=['TOSA-1.0+FP'])"
        )
    else:
        hint = "Lower it as it is: a program without floats needs no quantization"
    reasons = sorted(set(planned.left_float.values()))
    return invalid(
        "quantize",
        "nothing of the program is quantized",
        expected="a call with floats that the configuration selects",
        got="; ".join(reasons) if reasons else "no call to which a rule of the configuration gives qparams",
        hint=hint,
    )
