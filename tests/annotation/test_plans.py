"""Specs, slots, graphs and plans as values."""

from __future__ import annotations

from typing import Any

import pytest
import tosaic
from tosaic import annotation
from tosaic.annotation import (
    FLOAT,
    Call,
    CallGraph,
    Derived,
    Edge,
    Fixed,
    Foreign,
    GraphPort,
    Observed,
    Operand,
    Output,
    Plan,
    Shared,
    q_format,
)

from annotation.plans import graph_of, plan_of, specs_of

CHAIN = graph_of("c = conv2d(x, w)\nd = conv2d(c, w2)", outputs="d", inputs="unused x")


def derive(observers: Any) -> Any:
    return observers


SPECS = [
    Observed("int8", -127, 127, "per_channel_symmetric", 1, observer=derive),
    Observed("uint8", dynamic=True),
    Observed("i4", -8, 7, None),
    Observed("float8_e4m3fn"),
    Fixed("int16", 1 / 32767, 3, -32767, 32767, None, dynamic=True),
    Shared(Edge("x", "c")),
    Shared(Output("x")),
    Derived((Edge("x", "c"), Output("x")), derive, "int32", -5, 5, "per_channel_symmetric", 0, True),
    FLOAT,
    Foreign(object(), {"dtype": "int8", "qmin": None, "scale": 0.5}),
]


@pytest.mark.parametrize("spec", SPECS, ids=[type(spec).__name__ for spec in SPECS])
def test_a_plan_returns_an_equal_spec_with_the_same_objects(spec: Any) -> None:
    plan = Plan(CHAIN)
    plan[Output("c")] = spec
    assert plan[Output("c")] == spec
    plan[Output("c")] = spec
    assert plan.history == ()


@pytest.mark.parametrize("spec", [spec for spec in SPECS[1:] if not isinstance(spec, Derived | Foreign)])
def test_the_repr_of_specs_is_code(spec: Any) -> None:
    assert eval(repr(spec), vars(annotation)) == spec


def test_dtypes_of_graphs_and_of_torch_make_equal_specs() -> None:
    assert Observed("i8") == Observed("int8")
    assert Fixed("i16", 0.5).dtype == "int16"


@pytest.mark.parametrize(
    ("name", "dtype", "scale", "low", "high"),
    [
        ("Q0.7", "int8", 2**-7, -128, 127),
        ("Q7", "int8", 2**-7, -128, 127),
        ("Q15", "int16", 2**-15, -(2**15), 2**15 - 1),
        ("Q3.4", "int8", 2**-4, -128, 127),
        ("Q1.2", "int8", 2**-2, -8, 7),
        ("Q8.0", "int16", 1.0, -256, 255),
        ("Q0.31", "int32", 2**-31, -(2**31), 2**31 - 1),
    ],
)
def test_a_q_format_is_a_fixed_spec(name: str, dtype: str, scale: float, low: int, high: int) -> None:
    assert q_format(name) == Fixed(dtype, scale, 0, low, high, "per_tensor_symmetric")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: q_format("Q"), "[q_format] unknown fixed-point format: expected 'Qm.n' or 'Qn'"),
        (lambda: q_format("Q20.20"), "with at most 31 bits"),
        (lambda: q_format("Q15", dtype="int8"), "[q_format] the dtype cannot hold Q15: expected a signed"),
        (lambda: q_format("Q7", dtype="uint8"), "expected a signed integer dtype of at least 8 bits"),
        (
            lambda: Fixed("int8", 0.0),
            "[Fixed] the scale is wrong: expected a positive, finite number, got 0.0",
        ),
        (lambda: Fixed("int8", float("nan")), "the scale is wrong"),
        (lambda: Fixed("int8", 1e-300), "expected 1.18e-38 to 3.4e+38, as a float32, got 1e-300"),
        (lambda: Fixed("int8", 10**400), "as a float32, got 10"),
        (lambda: Fixed("int8", "1"), "expected a positive, finite number, got '1'"),
        (lambda: Fixed("int8", None), "expected a positive, finite number, got None"),
        (
            lambda: Fixed("int8", 0.1, 300),
            "[Fixed] the zero point is wrong: expected zero_point of int8 in -128..127, got 300",
        ),
        (lambda: Fixed("int8", 0.1, 0.5), "expected a whole number as zero_point, got 0.5"),
        (
            lambda: Fixed("uint8", 0.1, 0, -128, 127),
            "the range is wrong: expected qmin of uint8 in 0..255, got -128",
        ),
        (lambda: Fixed("int8", 0.1, 0, "a", 10), "expected a whole number as qmin, got 'a'"),
        (lambda: Fixed("int8", 0.1, scheme="per_channel_symmetric"), "expected one per tensor"),
        (lambda: Observed(qmax=1000), "expected qmax of int8 in -128..127, got 1000"),
        (lambda: Observed(axis="x"), "[Observed] the axis is wrong: expected a whole number as axis"),
        (lambda: Observed(dynamic=1), "the flag 'dynamic' is wrong"),
        (lambda: Observed(observer=3), "the observer is wrong: expected what makes an observer"),
        (lambda: Observed(8), "[Observed] the dtype is wrong: expected a name such as 'int8', got 8"),
        (lambda: Shared("relu"), "[Shared] the slot is wrong: expected Edge(producer, user) or Output"),
        (lambda: Derived("relu", max), "expected a tuple of Edge or Output, got 'relu'"),
        (lambda: Derived((Output("c"),), 3), "[Derived] the function is wrong"),
        (lambda: q_format("Q\u0660.\u0667"), "unknown fixed-point format"),
        (lambda: Observed("int8", 1, 0), "[Observed] the range is wrong: expected qmin below qmax"),
        (lambda: Observed("int8", 3, 3), "expected qmin below qmax, got (3, 3)"),
        (lambda: Fixed("int8", 0.1, 3, 3, 3), "[Fixed] the range is wrong: expected qmin below qmax"),
        (lambda: Observed(""), "[Observed] the dtype is wrong: expected a name such as 'int8', got ''"),
        (lambda: Plan(CHAIN)[Output("cc")], "[plan] the graph has no node 'cc'. Did you mean 'c'"),
        (lambda: Plan(CHAIN).set(Edge("x", "d"), FLOAT), "[plan] 'd' does not read 'x'"),
        (lambda: Plan(CHAIN).set(Output("c"), 8), "[plan] a spec is wrong: expected Observed, Fixed"),
        (
            lambda: Plan(CHAIN).get("c"),
            "[plan] a slot is wrong: expected Edge(producer, user) or Output(node)",
        ),
        (lambda: CallGraph([Call("a", "placehold")]), "[CallGraph] the kind of a node is wrong"),
        (
            lambda: CallGraph([Call("a", "call"), Call("a", "call")]),
            "two nodes have the same name (node 'a')",
        ),
        (
            lambda: CallGraph([Call("a", "call", operands=(Operand("args[0]", "b"),)), Call("b", "call")]),
            "[CallGraph] 'a' names a node that the graph does not have: got 'b'",
        ),
        (
            lambda: CallGraph([Call("a", "call", users=("a",))]),
            "the users of the node are not the nodes that",
        ),
        (lambda: CallGraph([Call("a", "call")], inputs=[GraphPort("p", "a")]), "input 'p' is no placeholder"),
    ],
)
def test_a_wrong_argument_is_refused(make: Any, text: str) -> None:
    with pytest.raises(tosaic.InvalidGraph) as caught:
        make()
    assert text in str(caught.value)


def test_dtypes_and_schemes_of_torch_become_their_names() -> None:
    torch = pytest.importorskip("torch")
    made = Observed(torch.int16, scheme=torch.per_tensor_symmetric)
    assert made == Observed("int16", scheme="per_tensor_symmetric")
    assert repr(made) == "Observed(dtype='int16', scheme='per_tensor_symmetric')"
    assert Fixed(torch.uint8, 1).dtype == "uint8"


def test_slots_have_the_order_of_the_graph_and_edges_the_order_of_setting() -> None:
    plan = plan_of(CHAIN, {"d, c>d, w2>d": FLOAT, "c": FLOAT, "w>c, x>c": FLOAT})
    assert list(specs_of(plan)) == ["w>c", "x>c", "c", "c>d", "w2>d", "d"]
    assert plan.slots() == tuple(plan)
    assert list(plan.entries("d")) == [Edge("c", "d"), Edge("w2", "d"), Output("d")]


def test_a_removed_spec_is_in_the_history() -> None:
    plan = plan_of(CHAIN, {"c": Observed()})
    with plan.authored_by("me"):
        del plan[Output("c")]
    (change,) = plan.history
    assert (change.set_by, change.changed_by, change.before, change.after) == (
        "quantizer",
        "me",
        Observed(),
        None,
    )
    assert Output("c") not in plan
    assert len(plan) == 0
    with pytest.raises(KeyError):
        del plan[Output("c")]


def test_a_replaced_spec_has_the_author_that_replaced_it() -> None:
    plan = plan_of(CHAIN, {"c": Observed()})
    with plan.authored_by("me"):
        plan[Output("c")] = FLOAT
    assert plan.author(Output("c")) == "me"
    assert [record.name for record in plan.authors] == ["quantizer", "me"]


def test_setting_a_spec_annotates_a_node_and_clearing_removes_its_flags() -> None:
    plan = Plan(CHAIN)
    assert (plan.annotated("c"), plan.has_annotation("c")) == (False, False)
    plan[Edge("x", "c")] = FLOAT
    plan.set_flags("c", allow_implicit_sharing=False)
    assert (plan.annotated("c"), plan.allow_implicit_sharing("c")) == (True, False)
    plan.clear("c")
    assert (plan.annotated("c"), plan.allow_implicit_sharing("c"), plan.has_annotation("c")) == (
        False,
        True,
        False,
    )


def test_a_node_may_have_an_annotation_without_specs() -> None:
    plan = Plan(CHAIN)
    plan.set_flags("c", annotated=False)
    assert plan.has_annotation("c")
    assert not plan.annotated("c")
    assert len(plan) == 0


def test_an_edge_that_the_graph_does_not_have_may_be_set_as_stale() -> None:
    plan = Plan(CHAIN)
    plan.set(Edge("x", "d"), Observed(), stale=True)
    assert plan[Edge("x", "d")] == Observed()


def test_a_copy_changes_independently() -> None:
    plan = plan_of(CHAIN, {"c": Observed()})
    copy = plan.copy()
    copy[Output("c")] = FLOAT
    assert (plan[Output("c")], copy[Output("c")]) == (Observed(), FLOAT)


def test_a_call_graph_returns_what_it_was_made_of() -> None:
    nodes = [
        Call("x", "placeholder", dtype="f32", shape=(1, -1), users=("y",)),
        Call("y", "call", "aten.relu.default", (Operand("args[0]", "x", "self"),), (("a", "B"),), "m.py:1"),
    ]
    graph = CallGraph(
        nodes, inputs=[GraphPort("in", "x")], outputs=[GraphPort("o", "y"), GraphPort("n", None)]
    )
    assert graph["x"] == nodes[0]
    assert graph[1].operands == nodes[1].operands
    assert graph[1].modules == (("a", "B"),)
    assert (graph[1].shape, graph[1].users) == (None, ())
    assert graph.inputs == (GraphPort("in", "x"),)
    assert graph.outputs == (GraphPort("o", "y"), GraphPort("n", None))
    assert (graph.names, len(graph), "x" in graph, "z" in graph) == (("x", "y"), 2, True, False)
    assert [call.name for call in graph] == ["x", "y"]


def test_users_are_visited_in_the_order_in_which_torch_lists_them() -> None:
    calls = [Call("x", "placeholder", users=("b", "a"))]
    calls += [Call(name, "call", operands=(Operand("args[0]", "x"),)) for name in "ab"]
    assert CallGraph(calls)["x"].users == ("b", "a")
