"""What a plan comes to, and its report as text, JSON and HTML."""

from __future__ import annotations

import json

from tosaic.annotation import (
    FLOAT,
    Clear,
    Derived,
    Edge,
    Fixed,
    Foreign,
    Inputs,
    Observed,
    Output,
    Outputs,
    Plan,
    Requantized,
    Resolution,
    Select,
    Shared,
    resolve,
)

from annotation.plans import graph_of, plan_of

INT8 = Observed("int8", -128, 127)
IMAGE = Fixed("int8", 1 / 127, 0, -127, 127)
GRAPH = graph_of("c = conv2d(x, w)\np = max_pool2d(c)\nd = conv2d(p, w2)\ne = tanh(d)", outputs="e")


def plan() -> Plan:
    made = plan_of(GRAPH, {"x>c, w>c, c, c>p": INT8, "p": Shared(Edge("c", "p")), "p>d, w2>d": INT8})
    made.set_flags("d", annotated=True)
    return made


def rows(resolution: Resolution) -> dict[str, tuple[str, str]]:
    return {row.node: (row.reason, row.rule) for row in resolution.left_float}


def test_a_slot_comes_to_the_spec_of_its_group() -> None:
    found = {row.slot: row for row in resolve(plan()).slots}
    pool = found[Output("p")]
    assert (pool.spec, pool.resolved, pool.decided_by) == (Shared(Edge("c", "p")), INT8, Output("c"))
    assert pool.group == found[Output("c")].group


def test_what_is_left_float_has_a_reason() -> None:
    made = plan()
    made[Output("x")] = INT8
    assert rows(resolve(made)) == {"d": ("annotated without a spec", ""), "e": ("not annotated", "")}
    clear, float_input = Clear(Select(name="p")), Inputs({0: None})
    made.apply(clear, Clear(Select(name="d")), float_input)
    assert rows(resolve(made)) == {
        "x": ("set to float", repr(float_input)),
        "p": ("spec removed", repr(Clear(Select(name="d")))),
        "d": ("not annotated", ""),
        "e": ("not annotated", ""),
    }


def test_integers_are_not_left_float() -> None:
    graph = graph_of("e = embedding(w, ids)", outputs="e", dtypes={"ids": "i64"})
    assert list(rows(resolve(Plan(graph)))) == ["e"]


def test_overwritten_dropped_and_unmatched_are_told_apart() -> None:
    unmatched = Clear(Select(op="nothing"), allow_unmatched=True)
    found = resolve(
        plan().apply(Outputs({0: IMAGE}), Inputs({0: IMAGE}), Clear(Select(op="tanh")), unmatched)
    )
    assert {change.slot for change in found.overwritten} == {Edge("x", "c")}
    assert {change.slot for change in found.dropped} == {Output("e")}
    assert [record.name for record in found.unmatched] == [repr(unmatched)]


def test_a_tensor_that_is_quantized_twice_is_listed() -> None:
    made = plan()
    made[Edge("p", "d")] = Observed("int16")
    assert resolve(made).requantized == (Requantized(Output("p"), Edge("p", "d")),)
    made[Edge("p", "d")] = FLOAT
    assert resolve(made).requantized == ()


def test_an_edge_that_the_graph_lost_is_stale() -> None:
    made = plan()
    made.set(Edge("x", "d"), INT8, stale=True)
    assert [row.slot for row in resolve(made).slots if row.stale] == [Edge("x", "d")]


def test_an_observer_without_effect_is_a_conflict() -> None:
    made = plan()
    made[Edge("c", "p")] = Observed("int8", -128, 127, observer=min)
    found = resolve(made)
    (conflict,) = found.conflicts
    assert (conflict.kind, conflict.slot, conflict.other) == (
        "unequal observers",
        Output("c"),
        Edge("c", "p"),
    )
    assert conflict.text == "'c -> p' shares its qparams with 'c', so that its own observer has no effect"
    assert found.report().ok


def test_a_reference_to_a_slot_without_a_spec_is_a_conflict() -> None:
    made = plan()
    del made[Edge("c", "p")]
    (conflict,) = resolve(made).conflicts
    assert conflict.text == "'p' refers to 'c -> p', which has no spec"
    assert not resolve(made).report().ok


def test_a_derived_spec_of_a_float_slot_is_a_conflict() -> None:
    graph = graph_of("c = conv2d(x, w, bias)", outputs="c")
    made = plan_of(
        graph, {"x>c": FLOAT, "w>c": INT8, "bias>c": Derived((Edge("x", "c"), Edge("w", "c")), len)}
    )
    (conflict,) = resolve(made).conflicts
    assert conflict.text == "'bias -> c' is derived from 'x -> c', which is float"


def test_the_report_has_one_screen_of_facts_and_folds_the_rest() -> None:
    report = resolve(plan().apply(Inputs({0: IMAGE}))).report()
    assert report.text.startswith("ok: 8 quantized slots in 4 sharing groups\n")
    assert "left float       2 tensors: 1 annotated without a spec, 1 not annotated" in report.text
    assert "x -> c" not in report.text
    assert "x -> c  int8 -128..127 per_tensor_affine  quantizer  as x" in report.full_text
    assert "because" in report.full_text


def test_the_title_of_the_report_does_not_count_groups_of_floats() -> None:
    made = plan()
    before = resolve(made).report().text.splitlines()[0]
    assert before == "ok: 7 quantized slots in 4 sharing groups"
    made[Output("e")] = FLOAT
    assert resolve(made).report().text.splitlines()[0] == before


def test_long_rules_are_cut_in_the_table_and_in_full_behind_it() -> None:
    rule = Inputs({0: IMAGE}, allow_unmatched=True)
    report = resolve(plan().apply(rule)).report()
    assert repr(rule) not in report.text
    assert max(map(len, report.text.splitlines())) <= 80
    assert repr(rule) in report.full_text
    assert json.loads(report.json)["authors"][-1]["name"] == repr(rule)


def test_the_report_is_data_for_json() -> None:
    made = plan()
    made[Output("d")] = Foreign(object(), {"dtype": "int8"})
    data = json.loads(resolve(made).report().json)
    assert data["slots"][0]["spec"]["dtype"] == "int8"
    assert data["groups"][1] == {
        "slots": ["w -> c"],
        "root": "w -> c",
        "decided_by": "w -> c",
        "spec": data["slots"][1]["spec"],
    }
    assert [row["node"] for row in data["left_float"]] == ["e"]
    assert data["authors"] == [{"name": "quantizer", "matches": None, "notes": []}]


def test_the_report_is_a_page_without_other_files() -> None:
    page = resolve(plan().apply(Inputs({0: IMAGE}))).report().html
    assert "<details><summary>history</summary>" in page
    assert not any(loads in page for loads in ("<script", "<link", "src=", "url("))


def test_a_call_that_reads_integers_and_floats_has_a_row() -> None:
    """A float input next to a quantized tensor leaves an operator half quantized, which backends refuse."""
    graph = graph_of("c = conv2d(x, w, bias)\ny = add(c, z)\nv = add(y, c)", outputs="v", inputs="x z")
    plan = plan_of(graph, {"x>c, w>c, c, c>y, z>y, y, y>v, c>v, v": Observed("int8", -128, 127)})
    assert resolve(plan).mixed == ()
    plan.apply(Inputs({"z": None}))
    (row,) = resolve(plan).mixed
    assert (row.node, row.integers, row.floats, row.source) == ("y", ("c",), ("z",), "model.py:7")
    text = str(resolve(plan))
    assert "calls of integers and floats" in text
