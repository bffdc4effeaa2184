"""Rules over plans: what they set, what follows by sharing, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import tosaic
from tosaic.annotation import (
    FLOAT,
    UNSET,
    CallGraph,
    Clear,
    Custom,
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

from annotation.plans import graph_of, plan_of, slot, slots, specs_of

INT8 = Observed("int8", -128, 127)
INT16 = Observed("int16", -32768, 32767)
IMAGE = Fixed("int8", 1 / 127, 0, -127, 127)
GRID = Fixed("int16", 1 / 32767, 0, -32767, 32767)
COARSE = Fixed("int8", 1 / 16)

CHAIN = graph_of("c = conv2d(x, w)\np = max_pool2d(c)\nd = conv2d(p, w2)", outputs="d", inputs="unused x")
WARP = graph_of(
    """f = conv2d(image, w)
    grid = add(base, f)
    s = grid_sampler(image, grid)
    c = conv2d(s, w2)""",
    outputs="c s c",
    inputs="image base",
)
CONCAT = graph_of("y = cat([a, b])\nc = conv2d(y, w)", outputs="c")


def chain() -> Plan:
    return plan_of(
        CHAIN,
        {"x>c, w>c, c, c>p": INT8, "p": Shared(Edge("c", "p")), "p>d, w2>d, d": INT8},
    )


def warp() -> Plan:
    return plan_of(WARP, {"image>f, w>f, f, base>grid, f>grid, grid, image>s, grid>s, s, s>c, w2>c, c": INT8})


def concat() -> Plan:
    root = Edge("a", "y")
    return plan_of(
        CONCAT, {"a, b, a>y": INT8, "b>y": Shared(root), "y": Shared(root), "y>c": INT8, "w>c, c": INT8}
    )


def resolved(plan: Plan) -> dict[Any, Any]:
    return {where: group.spec for group in plan.groups() for where in group.slots}


def refused(plan: Plan, rule: Any) -> str:
    with pytest.raises(tosaic.InvalidGraph) as caught:
        plan.apply(rule)
    return str(caught.value)


# ---- inputs ----


def test_a_spec_of_an_input_holds_for_the_placeholder_and_its_users_as_one_instance() -> None:
    plan = chain().apply(Inputs({1: IMAGE}))
    assert plan[Output("x")] == IMAGE
    assert plan[Edge("x", "c")] == Shared(Output("x"))
    assert plan.conflicts() == ()


def test_inputs_are_counted_with_those_that_nothing_reads() -> None:
    plan = chain().apply(Inputs({0: IMAGE}))
    assert plan[Output("unused")] == IMAGE
    assert Output("x") not in plan


@pytest.mark.parametrize("key", [1, "x", "in[1]"])
def test_an_input_is_chosen_by_position_name_or_path(key: Any) -> None:
    assert chain().apply(Inputs({key: IMAGE}))[Output("x")] == IMAGE


def test_users_that_had_different_specs_read_an_input_with_its_qparams_only() -> None:
    graph = graph_of("c = conv2d(x, w)\nd = add(x, c)", outputs="d")
    plan = plan_of(graph, {"x>c": INT8, "x>d": INT16, "d": INT16}).apply(Inputs({"x": IMAGE}))
    (group,) = [g for g in plan.groups() if Output("x") in g.slots]
    assert set(group.slots) == set(slots("x, x>c, x>d"))


def test_none_makes_an_input_and_its_edges_float() -> None:
    plan = chain().apply(Inputs({"x": None}))
    assert plan[Edge("x", "c")] == FLOAT
    assert Output("x") not in plan
    assert plan[Output("c")] == INT8


def test_what_shared_with_a_float_input_shares_what_it_had() -> None:
    plan = concat().apply(Inputs({"a": None}))
    assert specs_of(plan)["a>y"] == FLOAT
    assert specs_of(plan)["b>y"] == INT8
    assert specs_of(plan)["y"] == Shared(Edge("b", "y"))
    assert plan.conflicts() == ()


def test_a_derived_spec_becomes_float_with_a_slot_that_it_is_derived_from() -> None:
    graph = graph_of("c = conv2d(x, w, bias)", outputs="c")
    plan = plan_of(graph, {"x>c, w>c": INT8, "c": INT8})
    plan[Edge("bias", "c")] = Derived((Edge("x", "c"), Edge("w", "c")), len)
    plan.apply(Inputs({"x": None}))
    assert plan[Edge("bias", "c")] == FLOAT
    assert [change.reason for change in plan.history][-1] == "its spec was derived from one that is float now"


def test_an_integer_input_has_no_spec() -> None:
    graph = graph_of("e = embedding(w, ids)", outputs="e", dtypes={"ids": "i64"})
    text = "[Inputs] input 0, 'in[0]', is no tensor of floats, but of dtype i64 (node 'ids')."
    assert refused(Plan(graph), Inputs({0: IMAGE})).startswith(text)
    Plan(graph).apply(Inputs({0: None}))


# ---- sharing ----


def test_a_fixed_input_of_a_concat_does_not_hold_for_the_other_operands() -> None:
    plan = concat().apply(Inputs({"a": IMAGE}))
    specs = resolved(plan)
    assert specs[Output("a")] == IMAGE
    (group,) = [each for each in plan.groups() if Output("y") in each.slots]
    assert set(group.slots) == set(slots("a>y, b, b>y, y, y>c"))
    assert group.spec == INT8
    assert plan.authors[-1].notes == (
        "'a -> y' keeps the scale of the other operands, which the spec of the rule would clip",
    )
    assert plan.conflicts() == ()


def test_two_inputs_of_a_concat_may_have_fixed_specs_of_their_own() -> None:
    plan = concat().apply(Inputs({"a": IMAGE, "b": COARSE}))
    specs = resolved(plan)
    found = [specs[slot(text)] for text in ("a", "a>y", "b", "b>y", "y")]
    assert found == [IMAGE, INT8, COARSE, INT8, INT8]
    assert plan.conflicts() == ()


def test_a_concat_of_inputs_with_one_fixed_spec_has_that_spec() -> None:
    plan = concat().apply(Inputs({"a": IMAGE, "b": IMAGE}))
    specs = resolved(plan)
    assert {specs[where] for where in slots("a, a>y, b, b>y, y, y>c")} == {IMAGE}
    assert plan.conflicts() == ()


def test_a_fixed_result_of_a_concat_holds_where_it_reads_its_operands_only() -> None:
    graph = graph_of("f = conv2d(x, w)\ny = cat([f, g])\nd = conv2d(f, w2)", outputs="y d")
    root = Edge("f", "y")
    plan = plan_of(graph, {"f": INT8, "f>y": INT8, "g>y": Shared(root), "y": Shared(root), "f>d": INT8})
    specs = resolved(plan.apply(Outputs({0: IMAGE})))
    assert {specs[where] for where in slots("f>y, g>y, y")} == {IMAGE}
    assert {specs[where] for where in slots("f, f>d")} == {INT8}
    assert plan.conflicts() == ()


def test_an_operand_without_a_spec_at_the_concat_gets_the_scale_of_the_others() -> None:
    graph = graph_of("f = conv2d(x, w)\ng = conv2d(f, w2)\ny = cat([f, g])", outputs="y")
    plan = plan_of(graph, {"f": INT8, "g": Shared(Output("f")), "y": Shared(Output("f"))})
    plan.apply(Fix(Select(name="f"), IMAGE))
    specs = resolved(plan)
    assert [specs[slot(text)] for text in ("f", "f>y", "g", "y")] == [IMAGE, INT8, INT8, INT8]
    assert plan.conflicts() == ()


def test_a_fixed_output_behind_a_pool_does_not_change_a_fixed_input() -> None:
    graph = graph_of("p = max_pool2d(x)", outputs="p")
    plan = plan_of(graph, {"x>p": INT8, "p": Shared(Edge("x", "p"))})
    plan.apply(Inputs({0: IMAGE}), Outputs({0: COARSE}))
    assert resolved(plan) == {Output("x"): IMAGE, Edge("x", "p"): IMAGE, Output("p"): COARSE}


def test_a_fixed_spec_behind_a_pool_is_the_spec_in_front_of_it_too() -> None:
    plan = chain().apply(Fix(Select(op="max_pool2d"), IMAGE))
    specs = resolved(plan)
    assert {specs[where] for where in slots("c, c>p, p, p>d")} == {IMAGE}


def test_share_joins_slots_with_what_they_share_already() -> None:
    plan = chain().apply(Share((Output("d"), Edge("x", "c"))))
    (group,) = [g for g in plan.groups() if Output("d") in g.slots]
    assert group.slots == (Edge("x", "c"), Output("d"))
    assert plan.conflicts() == ()


def test_share_needs_a_spec() -> None:
    text = "[Share] the first slot, 'x', has no spec to share (node 'x')."
    assert refused(chain(), Share((Output("x"), Output("c")))) == text[:-1]


# ---- outputs ----


def test_a_spec_of_an_output_holds_for_its_producer_and_all_its_users() -> None:
    plan = warp().apply(Outputs({1: IMAGE}))
    assert resolved(plan)[Output("s")] == resolved(plan)[Edge("s", "c")] == IMAGE


@pytest.mark.parametrize("rule", [Outputs({0: IMAGE}), Outputs({2: IMAGE}), Outputs({0: IMAGE, 2: IMAGE})])
def test_a_tensor_that_is_returned_twice_has_two_positions(rule: Outputs) -> None:
    plan = warp().apply(rule)
    assert plan[Output("c")] == IMAGE
    assert plan.authors[-1].matches == len(rule.specs)


def test_two_specs_for_a_tensor_that_is_returned_twice_are_refused() -> None:
    text = refused(warp(), Outputs({0: IMAGE, 2: COARSE}))
    assert text.startswith("[Outputs] output 2, 'out[2]', has two specs (node 'c', model.py:7).")


def test_a_float_output_is_still_quantized_for_its_other_users() -> None:
    graph = graph_of("c = conv2d(x, w)\nd = conv2d(c, w2)", outputs="c d")
    plan = plan_of(graph, {"x>c, w>c, c": INT8, "w2>d, d": INT8}).apply(Outputs({0: None}))
    assert plan[Output("c")] == FLOAT
    assert plan[Edge("c", "d")] == INT8


# ---- operators ----


def test_specs_around_an_operator_are_set_by_the_names_of_its_schema() -> None:
    plan = warp().apply(Operator("grid_sampler", {"input": IMAGE, "grid": GRID}, result=IMAGE))
    specs = resolved(plan)
    assert [specs[slot(text)] for text in ("image>s", "grid>s", "s", "s>c")] == [IMAGE, GRID, IMAGE, IMAGE]
    assert plan.authors[-1].matches == 3


def test_the_producer_of_an_operand_has_its_spec_so_that_it_is_quantized_once() -> None:
    plan = warp().apply(Operator("grid_sampler", {1: GRID}))
    assert resolved(plan)[Output("grid")] == GRID


def test_other_readers_of_an_operand_have_their_own_qparams() -> None:
    plan = warp().apply(Operator("grid_sampler", {"input": IMAGE}))
    assert resolved(plan)[Edge("image", "s")] == IMAGE
    assert resolved(plan)[Edge("image", "f")] == INT8


def test_a_rule_with_specs_for_operand_and_result_of_a_chain_sets_both() -> None:
    graph = graph_of("a = relu(x)\nb = relu(a)", outputs="b")
    plan = plan_of(graph, {"x>a, a, a>b, b": INT8})
    plan.apply(Set(Select(op="relu"), {"self": COARSE}, result=IMAGE))
    specs = resolved(plan)
    assert [specs[slot(text)] for text in ("x>a", "a", "a>b", "b")] == [COARSE, IMAGE, COARSE, IMAGE]


def test_a_float_operand_is_read_float_and_others_read_what_they_had() -> None:
    graph = graph_of("a = relu(x)\nb = relu(a)\nc = add(a, b)", outputs="c")
    plan = plan_of(graph, {"x>a, a, a>b, b, a>c, b>c, c": INT8}).apply(Operator("add", {"self": None}))
    assert [plan[slot(text)] for text in ("a", "a>b", "a>c")] == [FLOAT, INT8, FLOAT]


def test_an_operator_that_reads_a_tensor_twice_takes_one_spec_for_it() -> None:
    graph = graph_of("y = add(x, x)", outputs="y")
    plan = plan_of(graph, {"x>y, y": INT8})
    assert plan.copy().apply(Operator("add", {0: IMAGE, 1: IMAGE}))[Edge("x", "y")] == IMAGE
    text = refused(plan, Operator("add", {0: IMAGE, 1: COARSE}))
    assert "operands args[0] and args[1] are one tensor" in text


def test_an_element_of_a_list_is_an_operand_by_its_path() -> None:
    plan = plan_of(CONCAT, {"a>y, b>y": INT8, "y": INT16})
    plan.apply(Operator("cat", {"args[0][1]": IMAGE}))
    assert [plan[Edge("a", "y")], plan[Edge("b", "y")]] == [INT8, IMAGE]
    assert plan.apply(Operator("cat", {"tensors": COARSE})).authors[-1].matches == 2


def test_integer_operands_are_passed_over() -> None:
    graph = graph_of("y = index(x, ids)", outputs="y", dtypes={"ids": "i64"})
    plan = plan_of(graph, {"x>y, y": INT8})
    plan.apply(Operator("index", {0: IMAGE}, allow_unmatched=True))
    assert "no selected node has a float operand" in refused(plan, Operator("index", {1: IMAGE}))


# ---- exclusion ----


def test_the_subgraph_that_feeds_only_the_grid_is_cleared() -> None:
    plan = warp().apply(ExcludeFeeding("grid_sampler", "grid"))
    assert specs_of(plan) == dict.fromkeys(["image>s", "grid>s", "s", "s>c", "w2>c", "c"], INT8)
    assert not plan.has_annotation("f")


def test_a_producer_that_also_feeds_the_image_stays_annotated() -> None:
    graph = graph_of(
        "c = conv2d(x, w)\nf = conv2d(c, w2)\ngrid = tanh(f)\ns = grid_sampler(c, grid)", outputs="s"
    )
    plan = plan_of(graph, {"x>c, w>c, c, c>f, w2>f, f, f>grid, grid, c>s, grid>s, s": INT8})
    plan.apply(ExcludeFeeding("grid_sampler", "grid"))
    assert set(specs_of(plan)) == {"x>c", "w>c", "c", "c>s", "grid>s", "s"}


def test_the_excluded_subgraph_ends_behind_the_nodes_of_until() -> None:
    plan = warp().apply(ExcludeFeeding("grid_sampler", "grid", until=Select(op="conv2d")))
    assert {"image>f", "w>f", "f"} <= set(specs_of(plan))
    assert not {"grid", "f>grid"} & set(specs_of(plan))


def test_a_node_that_is_returned_is_not_excluded() -> None:
    graph = graph_of("g = tanh(f)\ns = grid_sampler(x, g)", outputs="s g", inputs="x f")
    plan = plan_of(graph, {"f>g, g, x>s, g>s, s": INT8})
    text = refused(plan, ExcludeFeeding("grid_sampler", "grid"))
    assert text.startswith(
        "[ExcludeFeeding] nothing feeds operand 'grid' of 's' only (node 's', model.py:7)."
    )


def test_the_operand_of_an_excluded_subgraph_is_still_quantized() -> None:
    graph = graph_of("g = tanh(f)\ns = grid_sampler(x, g)", outputs="s", inputs="x f")
    plan = plan_of(graph, {"f>g, g, x>s, s": INT8}).apply(ExcludeFeeding("grid_sampler", "grid"))
    assert plan[Edge("g", "s")] == INT8


# ---- order and history ----


def test_of_two_rules_in_conflict_the_last_wins_and_the_history_has_both() -> None:
    first, last = Inputs({"x": IMAGE}), Inputs({"x": COARSE})
    plan = chain().apply(first, last)
    assert resolved(plan)[Edge("x", "c")] == COARSE
    (change,) = [c for c in plan.history if c.slot == Output("x")]
    assert (change.before, change.set_by, change.after, change.changed_by) == (
        IMAGE,
        repr(first),
        COARSE,
        repr(last),
    )


def test_clear_removes_annotations() -> None:
    plan = chain().apply(Clear(Select(type="Conv2D", module="block.d")))
    assert set(specs_of(plan)) == {"x>c", "w>c", "c", "c>p", "p"}
    assert [change.after for change in plan.history] == [None] * 3


def test_a_rule_is_a_callable_and_a_callable_is_a_rule() -> None:
    def widen(plan: Plan) -> None:
        for name in plan.select(Select(op="conv2d")):
            plan[Output(name)] = INT16
        Inputs({"x": IMAGE})(plan)

    plan = chain().apply(widen)
    assert plan.author(Output("d")) == "widen"
    assert plan.author(Output("x")) == repr(Inputs({"x": IMAGE}))
    assert [(record.name, record.matches) for record in plan.authors][1] == ("widen", 4)


def test_a_rule_may_return_a_changed_copy() -> None:
    def copied(plan: Plan) -> Plan:
        made = plan.copy()
        made[Output("d")] = INT16
        return made

    plan = chain()
    made = plan.apply(copied)
    assert (plan[Output("d")], made[Output("d")]) == (INT8, INT16)


def test_a_rule_may_not_return_a_plan_of_another_graph() -> None:
    assert "expected None or a Plan" in refused(chain(), Custom(lambda plan: concat(), "other"))


# ---- rules that match nothing ----


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Inputs({7: IMAGE}), "[Inputs] unknown input: expected a position below 2, a path or a name, got 7"),
        (Inputs({-1: IMAGE}), "got -1"),
        (Inputs({"unusd": IMAGE}), "got 'unusd'. Did you mean 'unused'"),
        (Outputs({"out[1]": IMAGE}), "unknown output"),
        (Operator("conv3d"), "[Operator] no node has op='conv3d'. Did you mean 'aten.conv2d.default'"),
        (Operator("conv2d", {"wieght": IMAGE}), "reads no node as operand 'wieght' (node 'c', model.py:7)"),
        (Operator("conv2d", {"wieght": IMAGE}), "Did you mean 'weight'"),
        (Operator("conv2d", {5: IMAGE}), "It reads input, weight"),
        (
            Set(Select(module="blok.c"), result=IMAGE),
            "[Set] no node has module='blok.c'. Did you mean 'block.c'",
        ),
        (Clear(Select(type="Conv3D")), "Did you mean 'torch.nn.Conv2D'"),
        (Clear(Select(name="cc")), "no node has name='cc'"),
        (Clear(Select(regex="^z")), "no node has regex='^z'"),
        (Clear(Select(op="conv2d", module="block.p")), "no node has module='block.p', op='conv2d' at once"),
        (Clear(Select(regex="(")), "[Select] the regular expression is malformed"),
        (Clear(Select(nodes=("c", "zz"))), "[Select] the graph has no node 'zz'"),
        (Fix(Select(op="tanh"), IMAGE), "[Fix] no node has op='tanh'"),
        (ExcludeFeeding("conv2d", "grid"), "reads no node as operand 'grid'"),
        (
            ExcludeFeeding("conv2d", 0, until=Select(op="tanh")),
            "`until` selects no node: no node has op='tanh'",
        ),
        (Share(()), "[Share] the rule matches nothing"),
        (Custom(lambda plan: None, "idle"), "[idle] the rule changes nothing"),
    ],
)
def test_a_rule_that_matches_nothing_is_refused_with_near_names(rule: Any, text: str) -> None:
    assert text in refused(chain(), rule)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Inputs([IMAGE]), "[Inputs] 'specs' is wrong: expected specs by position or name"),
        (lambda: Operator("conv2d", (IMAGE,)), "[Operator] 'operands' is wrong"),
        (lambda: Set("conv2d", {0: IMAGE}), "[Set] 'where' is wrong: expected a Select, such as"),
        (
            lambda: ExcludeFeeding("conv2d", 0, until="p"),
            "[ExcludeFeeding] 'until' is wrong: expected a Select",
        ),
        (lambda: Share("c"), "[Share] 'slots' is wrong: expected a tuple of Edge and Output, got 'c'"),
        (lambda: Custom("c"), "[Custom] 'function' is wrong: expected a function of a plan, got 'c'"),
        (lambda: Select(name=3), "[Select] the condition 'name' is wrong: expected a string, got 3"),
        (lambda: Select(nodes="relu"), "[Select] the condition 'nodes' is wrong: expected a list of names"),
        (lambda: Clear(Select(op=max)), "[Select] the condition 'op' is wrong: expected a string"),
    ],
)
def test_a_rule_with_a_wrong_field_is_refused_when_it_is_made(make: Any, text: str) -> None:
    with pytest.raises(tosaic.InvalidGraph) as caught:
        make()
    assert text in str(caught.value)


def test_the_error_of_a_function_names_the_rule() -> None:
    def divide(plan: Plan) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        chain().apply(divide)
    assert getattr(caught.value, "__notes__", ["in the rule 'divide'"]) == ["in the rule 'divide'"]


@pytest.mark.parametrize(
    "rule",
    [
        Inputs({7: IMAGE}, allow_unmatched=True),
        Operator("conv3d", {"weight": IMAGE}, allow_unmatched=True),
        Operator("conv2d", {"wieght": IMAGE}, allow_unmatched=True),
        ExcludeFeeding("conv3d", 0, allow_unmatched=True),
        Clear(Select(op="tanh"), allow_unmatched=True),
        Custom(lambda plan: None, "idle", allow_unmatched=True),
    ],
)
def test_a_rule_that_matches_nothing_may_be_allowed(rule: Any) -> None:
    plan = chain()
    before = specs_of(plan)
    assert plan.apply(rule).authors[-1].matches == 0
    assert specs_of(plan) == before


# ---- selections ----


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (Select(), ("c", "p", "d")),
        (Select(op="conv2d"), ("c", "d")),
        (Select(op="aten.conv2d"), ("c", "d")),
        (Select(op="aten.max_pool2d.default"), ("p",)),
        (Select(type="torch.nn.Conv2D"), ("c", "d")),
        (Select(module="block.?"), ("c", "p", "d")),
        (Select(module="*c"), ("c",)),
        (Select(module="", op="conv2d"), ("c", "d")),
        (Select(name="x"), ("x",)),
        (Select(regex="^w|d$"), ("unused", "w", "w2", "d")),
        (Select(nodes=("d", "w"), regex="w"), ("w",)),
    ],
)
def test_a_selection_has_the_nodes_that_fulfil_all_conditions(where: Select, names: tuple[str, ...]) -> None:
    assert sorted(chain().select(where)) == sorted(names)


def test_a_module_path_selects_what_is_below_it() -> None:
    call: Any = CHAIN["c"]
    modules = (("", "Net"), ("layer1", "Block"), ("layer1.conv", "torch.nn.Conv2d"))
    nodes = [CHAIN[n] for n in CHAIN.names if n in ("x", "w")]
    graph = CallGraph([*nodes, type(call)("c", "call", "aten.conv2d.default", call.operands, modules)])
    assert Plan(graph).select(Select(module="layer1")) == ("c",)
    assert Plan(graph).select(Select(module="layer1.*")) == ("c",)
    assert Plan(graph).select(Select(module="layer")) == ()


# ---- what the quantizer says, and ranges ----


def test_an_entry_may_leave_an_input_or_output_as_the_quantizer_says() -> None:
    plan = chain()
    before = {each: plan[each] for each in plan}
    plan.apply(Inputs({"x": UNSET}), Outputs({0: UNSET}), Set(Select(op="conv2d"), {"input": UNSET}))
    assert {each: plan[each] for each in plan} == before
    plan.apply(Inputs({"x": UNSET, "unused": None}), Operator("conv2d", {"input": UNSET}, result=INT16))
    assert plan[slot("x>c")] == INT8
    assert "'y'" in refused(plan, Inputs({"y": UNSET}))


def test_a_fixed_spec_without_a_range_has_the_range_of_its_dtype() -> None:
    assert Fixed("int8", 1 / 32) == Fixed("int8", 1 / 32, 0, -128, 127)
    assert Fixed("uint8", 1 / 255, 3, qmax=100) == Fixed("uint8", 1 / 255, 3, 0, 100)
    assert (Fixed("i16", 0.5).qmin, Fixed("i4", 0.5).qmax) == (-32768, 7)
