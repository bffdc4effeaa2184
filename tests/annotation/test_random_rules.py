"""Random rules leave plans that torch accepts, with the specs that the last rule asked for."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tosaic
from tosaic.annotation import (
    FLOAT,
    Clear,
    Derived,
    Edge,
    ExcludeFeeding,
    Fix,
    Fixed,
    Inputs,
    Observed,
    Operator,
    Output,
    Outputs,
    Plan,
    Select,
    Set,
    Share,
    Shared,
)

from annotation.plans import graph_of

OBSERVED = [Observed("int8", -128, 127), Observed("int8", -128, 127), Observed("int16", -32768, 32767)]
FIXED = [Fixed("int8", 1 / 127, 0, -127, 127), Fixed("int16", 1 / 32767), Fixed("int8", 1 / 16)]
OPS = {"relu": 1, "add": 2, "conv2d": 2, "cat": 3, "grid_sampler": 2}


def random_plan(source: random.Random) -> Plan:
    names, lines = ["x", "y"], []
    for number in range(source.randint(3, 12)):
        op = source.choice(list(OPS))
        read = [source.choice(names[-4:]) for _ in range(OPS[op])]
        if op == "conv2d":
            read[1] = f"w{number}"
        text = ", ".join(read)
        lines.append(f"n{number} = {op}([{text}])" if op == "cat" else f"n{number} = {op}({text})")
        names.append(f"n{number}")
    outputs = " ".join([names[-1], *source.sample(names, 2)])
    plan = Plan(graph_of("\n".join(lines), outputs=outputs, inputs="x y"), author="quantizer")
    earlier: list[Any] = []
    for call in plan.graph:
        if call.kind == "output":
            continue
        edges = [Edge(name, call.name) for name in dict.fromkeys(o.producer for o in call.operands)]
        for where in [*edges, Output(call.name)]:
            annotate(plan, where, edges, earlier, source)
        if plan.has_annotation(call.name) and source.random() < 0.1:
            plan.set_flags(call.name, allow_implicit_sharing=False)
    return plan


def annotate(plan: Plan, where: Any, edges: list[Edge], earlier: list[Any], source: random.Random) -> None:
    kind = source.random()
    own = [edge for edge in edges if edge in earlier]
    if kind < 0.2:
        return
    if kind < 0.3 and earlier:
        plan[where] = Shared(source.choice(earlier))
    elif kind < 0.5 and own:
        plan[where] = Shared(own[0])
    elif kind < 0.55 and len(own) > 1:
        plan[where] = Derived(tuple(own), len, "int8", -128, 127, "per_tensor_affine")
    elif kind < 0.6:
        plan[where] = source.choice(FIXED)
    else:
        plan[where] = source.choice(OBSERVED)
    earlier.append(where)


def random_rule(plan: Plan, source: random.Random) -> Any:
    spec = source.choice([*OBSERVED, *FIXED, *FIXED, None])
    op = source.choice(list(OPS))
    node = source.choice([call.name for call in plan.graph if call.kind == "call"])
    return source.choice(
        [
            Inputs({source.choice([0, 1, "x"]): spec}),
            Outputs({source.choice([0, 1, 2]): spec}),
            Operator(op, {0: spec}, allow_unmatched=True),
            Set(Select(op=op), {0: source.choice(FIXED)}, result=spec, allow_unmatched=True),
            Fix(Select(name=node), source.choice(FIXED)),
            ExcludeFeeding(op, source.choice([0, 1]), allow_unmatched=True),
            Clear(Select(name=node)),
            Share(tuple(source.sample(plan.slots(), min(2, len(plan))))),
        ]
    )


def refused_kinds(plan: Plan) -> set[str]:
    return {conflict.kind for conflict in plan.conflicts()} - {"unequal observers"}


def comes_to(plan: Plan) -> dict[Any, Any]:
    return {where: group.spec for group in plan.groups() for where in group.slots}


def check_asked(plan: Plan, rule: Any) -> None:
    """Checks that the slots of the rule have its specs in the end."""
    specs = comes_to(plan)
    if isinstance(rule, Inputs | Outputs):
        ports = plan.graph.inputs if isinstance(rule, Inputs) else plan.graph.outputs
        ((key, spec),) = rule.specs.items()
        name = "x" if key == "x" else ports[key].node
        assert specs.get(Output(name)) == (None if spec is None else spec)
        if spec is not None:
            users = [Edge(name, user) for user in plan.graph[name].users if not joins(plan, user)]
            assert {specs[edge] for edge in users if edge in specs} <= {spec, FLOAT}
        assert spec is not None or isinstance(rule, Outputs) or not quantized_edges(plan, name, specs)
    elif isinstance(rule, Fix):
        assert specs[Output(rule.where.name)] == rule.spec
    elif isinstance(rule, Clear):
        assert not plan.has_annotation(rule.where.name)
    elif isinstance(rule, Share):
        (group,) = [g for g in plan.groups() if rule.slots[0] in g.slots]
        assert set(rule.slots) <= set(group.slots)


def joins(plan: Plan, call: str) -> bool:
    """True if the call has several operands: where they share one scale, a fixed spec of one stops."""
    return len({operand.producer for operand in plan.graph[call].operands}) > 1


def quantized_edges(plan: Plan, name: str, specs: dict[Any, Any]) -> list[Edge]:
    edges = [Edge(name, user) for user in plan.graph[name].users]
    return [edge for edge in edges if specs.get(edge, FLOAT) != FLOAT]


@pytest.mark.parametrize("part", range(4))
def test_rules_leave_plans_that_torch_accepts_and_set_what_they_ask_for(part: int) -> None:
    applied = 0
    for seed in range(part * 500, part * 500 + 500):
        source = random.Random(seed)
        plan = random_plan(source)
        if refused_kinds(plan):
            continue
        for _ in range(3):
            rule = random_rule(plan, source)
            before = plan.copy()
            try:
                plan.apply(rule)
            except tosaic.InvalidGraph:  # no spec to share, one edge with two specs
                plan = before
                continue
            applied += 1
            try:
                assert not refused_kinds(plan)
                check_asked(plan, rule)
            except BaseException:
                print("seed", seed, rule)
                raise
    assert applied > 500
