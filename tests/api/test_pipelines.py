"""Pipelines as values: listed, changed, run, and refused by name if their order has a fault."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + x)


@pytest.fixture(scope="module")
def program() -> tosaic.Program:
    return tosaic.from_exported(torch.export.export(Twice(), (X,)))


def double(graph: tosaic.program.Graph) -> tosaic.program.Graph | None:
    """Replaces add(x, x) by mul(x, 2)."""
    rewriter = tosaic.Rewriter(graph)
    for node in graph.nodes:
        if node.op == "add" and node.operands[0] == node.operands[1]:
            two = rewriter.constant(node, np.float32(2))
            rewriter.replace(node, rewriter.emit(node, "mul", [node.operands[0], two]))
        else:
            rewriter.copy(node)
    return rewriter.finish()


def test_the_default_pipeline_lists_what_lower_runs(program: tosaic.Program) -> None:
    for target in ("TOSA-1.0+FP", "TOSA-1.0+INT+FP"):
        pipeline = tosaic.Pipeline.default(target)
        ran = [(timing.section, timing.name) for timing in tosaic.lower(program, target=target).timings]
        assert ran == [("", "verify"), *((step.section, step.name) for step in pipeline)]
        assert len(pipeline) == len(list(pipeline)) > 10


def test_a_pass_written_in_python_runs_at_its_place(program: tosaic.Program) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    pipeline.insert_before("decompose", double)
    lowered = tosaic.lower(program, pipeline=pipeline)
    assert "double" in pipeline
    assert next(t for t in lowered.timings if t.name == "double").changed
    assert lowered.stages["canonical"].nodes[0].op == "mul"
    np.testing.assert_array_equal(lowered.run(X.numpy()), Twice()(X).numpy())
    assert tosaic.compare(program, lowered, (X,)).ok


def test_a_pass_that_returns_none_or_the_graph_itself_changes_nothing(program: tosaic.Program) -> None:
    stages = []

    def look(graph: tosaic.program.Graph) -> None:
        stages.append(graph.stage)

    def same(graph: tosaic.program.Graph) -> tosaic.program.Graph:
        return graph

    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    pipeline.insert_before("simplify/fold-constants", look)
    pipeline.insert_after("legalize-tosa", look)
    pipeline.insert_after("legalize-tosa", same)
    lowered = tosaic.lower(program, pipeline=pipeline)
    assert stages == ["exported", "tosa"]
    assert not any(t.changed for t in lowered.timings if t.name in ("look", "same"))
    assert lowered.to_bytes() == tosaic.lower(program).to_bytes()


def test_a_pass_is_run_only_on_graphs_at_its_stages(program: tosaic.Program) -> None:
    ran = []
    pipeline = tosaic.Pipeline.default("TOSA-1.0+INT+FP")
    pipeline.insert_after("lower-to-integer", tosaic.lowering.Pass("count", ran.append, takes=["integer"]))
    tosaic.lower(program, pipeline=pipeline)  # nothing is quantized, so the graph stays at stage exported
    assert ran == []


def test_a_copy_is_changed_apart() -> None:
    first = tosaic.Pipeline.default("TOSA-1.0+FP")
    second = first.copy()
    second.remove("choose-shapes")
    assert "choose-shapes" in first
    assert "choose-shapes" not in second
    assert first["choose-shapes"].takes == ("exported", "integer")


def test_copies_of_any_kind_are_changed_apart() -> None:
    first = tosaic.Pipeline.default("TOSA-1.0+FP")
    for second in (copy.copy(first), copy.deepcopy(first)):
        second.remove("choose-shapes")
        assert "choose-shapes" in first
        assert "choose-shapes" not in second
    assert copy.deepcopy(first["decompose"]).name == "decompose"


def test_pipelines_and_passes_are_not_pickled() -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    for each, name in ((pipeline, "tosaic.Pipeline"), (pipeline["decompose"], "tosaic.lowering.Pass")):
        with pytest.raises(tosaic.InvalidGraph, match=rf"a {name} cannot be pickled"):
            pickle.dumps(each)


def test_a_pass_of_the_pipeline_runs_alone(program: tosaic.Program) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    graph = pipeline["decompose"].run(program.graph)
    assert graph is program.graph
    assert pipeline["legalize-tosa"].run(graph).stage == "tosa"
    assert tosaic.lowering.Pass("double", double).run(graph).nodes[0].op == "mul"


def test_check_takes_a_pipeline(program: tosaic.Program) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")

    def refuse(graph: tosaic.program.Graph) -> None:
        raise tosaic.UnsupportedOp("not today")

    assert tosaic.check(program, pipeline=pipeline).ok
    pipeline.insert_before("decompose", lambda graph: None)
    assert tosaic.check(program, pipeline=pipeline).target == "TOSA-1.0+FP"


EMPTY = "tosaic 1\ngraph @forward stage=exported {\n}\n"
FAULTS: list[tuple[Any, str]] = [
    (
        lambda p: p.remove("unroll"),
        r"has no such pass: expected one of simplify/fold-constants, .*got 'unroll'",
    ),
    (
        lambda p: p.remove("simplify"),
        r"several passes .* expected one of simplify/simplify, decompose/simplify",
    ),
    (lambda p: p.remove("sinkreshapes"), r"got 'sinkreshapes'\. Did you mean 'decompose/sink-reshapes'\.$"),
    (
        lambda p: p.insert_after("fold-qdq", double),
        r"got 'fold-qdq'\. Passes of section quantize need a target with profile INT, such as TOSA-1\.0\+FP",
    ),
    (
        lambda p: p.insert_after("decompose", tosaic.lowering.Pass("simplify", double)),
        r"has a pass of this name.* Give it a name of its own: tosaic\.lowering\.Pass\('my-pass', function\)",
    ),
    (
        lambda p: p.insert_after("decompose", 3),
        r"'pass_': expected a tosaic.lowering.Pass, or a callable .*got 3",
    ),
    (lambda p: p.insert_after(3, double), r"'anchor': expected the name of a pass"),
    (lambda p: p["unroll"], r"has no such pass"),
    (
        lambda p: tosaic.lowering.Pass("mine", double, takes=["lowered"]),
        r"'takes': expected a sequence of exported",
    ),
    (
        lambda p: tosaic.lowering.Pass("mine", double, takes="tosa"),
        r"'takes': expected a sequence of exported",
    ),
    (lambda p: tosaic.lowering.Pass("mine", double, makes="lowered"), r"'makes': expected one of exported"),
    (lambda p: tosaic.lowering.Pass("mine", 3), r"'run': expected a callable"),
    (lambda p: tosaic.lowering.Pass(3, double), r"'name': expected a string"),
    (lambda p: tosaic.lowering.Pass("", double), r"'name': expected a string"),
    (
        lambda p: tosaic.lowering.Pass("a/b", double),
        r"'name': expected a string such as 'my-pass', without '/'",
    ),
    (lambda p: tosaic.lowering.Pass("a\0b", double), r"'name': expected a string"),
    (lambda p: tosaic.lowering.Pass("mine", double, takes=[]), r"'takes': expected at least one of exported"),
    (
        lambda p: p["decompose"].run(tosaic.program.Graph.parse(EMPTY), target=3),
        r"'target': expected a string",
    ),
    (lambda p: p["decompose"].run("text"), r"'graph': expected a tosaic.program.Graph, got 'text'"),
    (lambda p: tosaic.Pipeline("TOSA-1.0+FP"), r"expected a pipeline that Pipeline.default"),
    (lambda p: tosaic.Pipeline.default("TOSA-9"), r"\[target\]"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_a_wrong_change_is_refused_and_changes_nothing(change: Any, message: str) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    before = [step.id for step in pipeline]
    with pytest.raises(tosaic.InvalidGraph, match=message):
        change(pipeline)
    assert [step.id for step in pipeline] == before


ORDERS: list[tuple[Any, str]] = [
    (lambda p: p.remove("decompose"), r"'assign-dim-order' needs pass 'decompose' before it"),
    (lambda p: p.remove("assign-dim-order"), r"'legalize/legalize-tosa' needs pass 'assign-dim-order'"),
    (lambda p: p.remove("legalize-tosa"), r"no pass makes a graph at stage tosa: expected 'legalize-tosa'"),
    (
        lambda p: p.insert_after("legalize-tosa", tosaic.lowering.Pass("late", double, takes=["exported"])),
        r"'legalize/late' takes graphs at stage exported: expected a place before 'legalize/legalize-tosa', "
        r"got a place where graphs are at stage tosa",
    ),
    (
        lambda p: p.insert_before("decompose", tosaic.lowering.Pass("mine", double, needs=["legalize-tosa"])),
        r"'decompose/mine' needs pass 'legalize-tosa' before it: .*got it stands after it",
    ),
]


def test_a_pass_that_claims_stage_tosa_and_returns_nothing_is_named(program: tosaic.Program) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    pipeline.replace("legalize-tosa", tosaic.lowering.Pass("mine", lambda graph: None, makes="tosa"))
    with pytest.raises(
        tosaic.InvalidGraph,
        match=r"do not lead to stage tosa: .* got a graph at stage exported\. Pass 'legalize/mine' claims to "
        r"make a graph at stage tosa, and returned none",
    ):
        tosaic.lower(program, pipeline=pipeline)


@pytest.mark.parametrize(("change", "message"), ORDERS)
def test_a_fault_of_the_order_is_refused_before_any_pass_runs(
    program: tosaic.Program, change: Any, message: str
) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    change(pipeline)
    ran = []
    pipeline.insert_before("simplify/fold-constants", ran.append)
    message = message.replace("'assign-dim-order' needs", "'layout/assign-dim-order' needs")
    for use in (pipeline.check, lambda: tosaic.lower(program, pipeline=pipeline)):
        with pytest.raises(tosaic.InvalidGraph, match=message):
            use()
    assert ran == []


def relabelled(graph: tosaic.program.Graph) -> tosaic.program.Graph:
    return tosaic.program.Graph.parse(graph.text().replace("stage=exported", "stage=integer"))


RESULTS: list[tuple[Any, str]] = [
    (
        lambda graph: tosaic.program.Graph.parse(graph.text().replace("3,4", "3,5")),
        r"other inputs or outputs: expected inputs 'x' \[3,4\], outputs .*\[3,4\], got inputs 'x' \[3,5\], ",
    ),
    (
        lambda graph: tosaic.program.Graph.parse(graph.text().replace("f32", "f16")),
        r"pass 'mine' changes the type of input 'x': expected f32\[3,4\], got f16\[3,4\]",
    ),
    (
        relabelled,
        r"pass 'mine' returns a graph at another stage than it claims: expected exported, got integer",
    ),
    (
        lambda graph: "text",
        r"pass 'mine' failed: it does not return a graph: expected a tosaic.program.Graph, or None .*got str",
    ),
    (
        lambda graph: tosaic.program.Graph.parse(graph.text().replace('path="x"', 'path="y"')),
        r"pass 'mine' returns a graph with other inputs or outputs: expected inputs 'x' \[3,4\], .* 'y'",
    ),
    (
        lambda graph: tosaic.program.Graph.parse(graph.text().replace("[3,4]", "[5,4]")),
        r"other inputs or outputs: expected inputs 'x' \[3,4\], outputs .*\[3,4\], got inputs 'x' \[5,4\], ",
    ),
]


@pytest.mark.parametrize(("run", "message"), RESULTS)
def test_what_a_pass_returns_is_checked(program: tosaic.Program, run: Any, message: str) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    pipeline.insert_before("decompose", tosaic.lowering.Pass("mine", run))
    with pytest.raises(tosaic.InvalidGraph, match=message):
        tosaic.lower(program, pipeline=pipeline)


def test_an_exception_of_a_pass_says_which_pass_it_comes_from(program: tosaic.Program) -> None:
    def wrong(graph: tosaic.program.Graph) -> None:
        raise KeyError("nothing")

    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    pipeline.insert_before("decompose", wrong)
    with pytest.raises(KeyError) as raised:
        tosaic.lower(program, pipeline=pipeline)
    assert raised.value.__notes__ == ["in pass 'wrong' of the pipeline, on a graph at stage exported"]


def test_two_functions_without_a_name_need_names() -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    pipeline.insert_before("decompose", lambda graph: None)
    with pytest.raises(
        tosaic.InvalidGraph, match=r"got '<lambda>'\. Give it a name of its own: tosaic\.lowering\.Pass"
    ):
        pipeline.insert_before("decompose", lambda graph: None)


def test_a_pass_alone_refuses_a_graph_at_a_stage_that_it_does_not_take(program: tosaic.Program) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+INT+FP")
    with pytest.raises(
        tosaic.InvalidGraph,
        match=r"pass 'lower-to-integer' takes graphs at stage quantized: expected a graph at stage "
        r"quantized, got a graph at stage exported\. Run 'fold-qdq' before it\.",
    ):
        pipeline["lower-to-integer"].run(program.graph)
    mine = tosaic.lowering.Pass("mine", double, takes=["tosa"])
    with pytest.raises(tosaic.InvalidGraph, match=r"at stage tosa are made by 'legalize-tosa'\."):
        mine.run(program.graph)


def test_a_place_for_a_pass_at_stage_quantized_is_named() -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+INT")
    pipeline.insert_after("decompose", tosaic.lowering.Pass("mine", double, takes=["quantized"]))
    with pytest.raises(
        tosaic.InvalidGraph, match=r"expected a place before 'quantize/quantize-boundary'|before 'q"
    ):
        pipeline.check()
    pipeline = tosaic.Pipeline.default("TOSA-1.0+INT")
    pipeline.insert_before("fold-qdq", tosaic.lowering.Pass("mine", double, takes=["quantized"]))
    with pytest.raises(tosaic.InvalidGraph, match=r"expected a place after 'quantize/fold-qdq', got"):
        pipeline.check()


def test_a_pass_in_the_place_of_decompose_that_expands_nothing_is_named() -> None:
    silu = torch.export.export(nn.SiLU(), (X,))
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    pipeline.replace("decompose", tosaic.lowering.Pass("nothing", lambda graph: None))
    with pytest.raises(
        tosaic.UnsupportedOp,
        match=r"pass 'decompose/nothing' stands in the place of 'decompose', and does not expand all",
    ):
        tosaic.lower(silu, pipeline=pipeline)


def test_another_target_beside_a_pipeline_is_refused(program: tosaic.Program) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
    assert tosaic.lower(program, pipeline=pipeline, target="TOSA-1.0+FP").target == "TOSA-1.0+FP"
    for use in (tosaic.lower, tosaic.check):
        with pytest.raises(
            tosaic.InvalidGraph, match=r"for another target: expected TOSA-1.0\+FP, got TOSA-1.0\+INT"
        ):
            use(program, pipeline=pipeline, target="TOSA-1.0+INT")
        with pytest.raises(tosaic.InvalidGraph, match=r"'pipeline': expected a tosaic\.Pipeline, or None"):
            use(program, pipeline="TOSA-1.0+FP")


def test_a_pipeline_is_shown_as_a_table() -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+INT")
    assert repr(pipeline).startswith("30 passes for TOSA-1.0+INT")
    assert all(step.name in repr(pipeline) for step in pipeline)
    assert "<table" in pipeline._repr_html_()
    assert repr(pipeline["legalize-tosa"]) == "<Pass 'legalize-tosa': exported, integer -> tosa>"


# ---- the rewriter ----


def test_a_rewriter_that_keeps_every_node_makes_no_graph(program: tosaic.Program) -> None:
    rewriter = tosaic.Rewriter(program.graph)
    assert rewriter.source is program.graph
    for node in program.graph.nodes:
        rewriter.copy(node)
    assert rewriter.finish() is None


HALVES = tosaic.ports.QParams("i8", (0.5,), (3,), -128, 127)
MISUSE: list[tuple[Any, str]] = [
    (lambda r, n: r.copy(n[1]), r"visited in order.* expected 'add', got 'relu'"),
    (lambda r, n: (r.copy(n[0]), r.copy(n[0])), r"visited in order.* expected 'relu', got 'add'"),
    (lambda r, n: r.finish(), r"not all nodes were visited: expected copy or replace for 'add'"),
    (lambda r, n: r.emit(n[0], "no_such", []), r"unknown operator"),
    (
        lambda r, n: r.emit(n[0], "tosa.sigmoid", [n[0].operands[0]]),
        r"'tosa.sigmoid' may not stand at stage exported: expected a graph at stage integer, tosa, got stage "
        r"exported \(node 'add'\)\. At this stage, emit 'sigmoid'\.",
    ),
    (lambda r, n: r.emit(n[0], "add", [n[0].operands[0]]), r"add"),
    (lambda r, n: r.emit(n[0], "add", [1, 2]), r"no value of the graph"),
    (lambda r, n: r.emit(n[0], "relu", [n[1].operands[0]]), r"read before its node is visited"),
    (
        lambda r, n: r.emit(n[0], "softmax", [n[0].operands[0]], {"direction": 0}),
        r"unknown attribute of 'softmax': expected one of .*axis.*, got 'direction' \(node 'add', ",
    ),
    (
        lambda r, n: r.emit(n[0], "relu", [n[0].operands[0]], {"alpha": 0}),
        r"unknown attribute of 'relu': expected 'relu' has no attributes",
    ),
    (
        lambda r, n: r.emit(n[0], "leaky_relu", [n[0].operands[0]], {"alpha": "steep"}),
        r"attribute 'alpha' of 'leaky_relu' has a wrong value: expected a number, got 'steep' \(node 'add', ",
    ),
    (
        lambda r, n: r.emit(n[0], "softmax", [n[0].operands[0]], {"axis": 1.5}),
        r"attribute 'axis' of 'softmax' has a wrong value: expected an integer of at most 64 bits, got 1.5",
    ),
    (
        lambda r, n: r.emit(n[0], "relu", [n[0].operands[0]], qparams=HALVES),
        r"only at stage quantized does a result of 'relu' become integers .* Emit 'quantize', or insert",
    ),
    (lambda r, n: r.emit(n[0], "relu", [n[0].operands[0]], qparams=3), r"expected a tosaic\.ports\.QParams"),
    (lambda r, n: r.constant(n[0], np.zeros(2)), r"dtype that TOSA lacks: .* Write .*dtype='f32'\)"),
    (lambda r, n: r.constant(n[0], 3.0, dtype="float"), r"'dtype': expected one of bool, .*got 'float'"),
    (lambda r, n: r.replace(n[0], r.constant(n[0], np.zeros(2, np.float32))), r"another type: .*f32\[3,4\]"),
    (lambda r, n: r.replace(n[0], []), r"another number of results: expected 1, got 0"),
    (lambda r, n: r.replace(n[0], 3), r"replaced by values"),
    (lambda r, n: r.constant(n[0], "text"), r"\[rewriter\] constant 'constant' is not an array"),
    (lambda r, n: r.constant(n[0], np.ones(2), name=3), r"'name': expected a string"),
    (lambda r, n: r.constant(None, np.ones(2)), r"'at': expected a node of the graph, got None"),
    (lambda r, n: r.copy(n[0].results[0]), r"'node': expected a node of the graph"),
    (lambda r, n: r.emit(n[0].results[0], "relu", []), r"'at': expected a node of the graph"),
    (lambda r, n: r.emit(n[0], 3, []), r"'op': expected the name of an operator, such as 'add', got 3"),
    (lambda r, n: r.emit(n[0], "relu", n[0].operands[0]), r"'operands': expected a sequence of values"),
    (
        lambda r, n: r.emit(n[0], "softmax", [n[0].operands[0]], {3: 0}),
        r"'attrs': expected attributes by name",
    ),
    (
        lambda r, n: r.emit(n[0], "softmax", [n[0].operands[0]], {"axis": 2**70}),
        r"attribute 'axis' of 'softmax' .* an integer of at most 64 bits, got 11805",
    ),
]


@pytest.mark.parametrize(("use", "message"), MISUSE)
def test_misuse_of_a_rewriter_is_refused(program: tosaic.Program, use: Any, message: str) -> None:
    with pytest.raises(tosaic.Error, match=message):
        use(tosaic.Rewriter(program.graph), list(program.graph.nodes))


def test_a_node_of_another_graph_is_refused(program: tosaic.Program) -> None:
    other = tosaic.program.Graph.parse(program.graph.text())
    with pytest.raises(tosaic.InvalidGraph, match="the node is of another graph"):
        tosaic.Rewriter(program.graph).copy(other.nodes[0])


def test_a_value_is_shown_after_its_rewriter_has_finished(program: tosaic.Program) -> None:
    rewriter = tosaic.Rewriter(program.graph)
    add, relu = program.graph.nodes
    value = rewriter.emit(add, "add", add.operands)
    rewriter.replace(add, value)
    rewriter.copy(relu)
    assert rewriter.finish() is not None
    assert (value.shape, value.dtype) == ((3, 4), "f32")
    assert repr(value) == "<NewValue %add.add: f32[3,4]>"
    with pytest.raises(tosaic.InvalidGraph, match=r"no value of the graph.*got <NewValue %add\.add"):
        tosaic.Rewriter(program.graph).emit(add, "relu", [value])


def test_a_constant_of_a_later_node_is_an_operand_and_a_replacement(program: tosaic.Program) -> None:
    """Constants after the first changed node have other ids in the new graph."""

    def late(graph: tosaic.program.Graph) -> tosaic.program.Graph | None:
        rewriter = tosaic.Rewriter(graph)
        for node in graph.nodes:
            if node.op != "relu":
                rewriter.copy(node)
                continue
            total = rewriter.emit(node, "relu", node.operands)
            for number in (2, 7):
                constant = rewriter.constant(node, np.full((3, 4), number, np.float32), name=f"late{number}")
                total = rewriter.emit(node, "add", [total, constant])
            rewriter.replace(node, total)
        return rewriter.finish()

    def early(graph: tosaic.program.Graph) -> tosaic.program.Graph | None:
        rewriter = tosaic.Rewriter(graph)
        (constant,) = [v for node in graph.nodes for v in node.operands if v.name == "late2"]
        for node in graph.nodes:
            if node.name == "add":
                rewriter.replace(node, rewriter.emit(node, "mul", [node.operands[0], constant]))
            else:
                rewriter.copy(node)
        return rewriter.finish()

    def instead(graph: tosaic.program.Graph) -> tosaic.program.Graph | None:
        rewriter = tosaic.Rewriter(graph)
        (constant,) = [v for node in graph.nodes for v in node.operands if v.name == "late2"]
        for node in graph.nodes:
            if node.name == "add":
                rewriter.replace(node, constant)
            else:
                rewriter.copy(node)
        return rewriter.finish()

    for change, expected in ((early, np.maximum(2 * X.numpy(), 0) + 9), (instead, np.full((3, 4), 11))):
        pipeline = tosaic.Pipeline.default("TOSA-1.0+FP")
        pipeline.insert_before("decompose", late)
        pipeline.insert_before("decompose", change)
        np.testing.assert_array_equal(tosaic.lower(program, pipeline=pipeline).run(X), expected)


def test_an_operator_of_several_results_is_emitted() -> None:
    program = tosaic.from_exported(torch.export.export(nn.ReLU(), (X,)))
    rewriter = tosaic.Rewriter(program.graph)
    (node,) = program.graph.nodes
    left, right = rewriter.emit(node, "split", [node.operands[0]], {"axis": 1, "sizes": (1, 3)})
    assert (left.shape, right.shape, right.dtype) == ((3, 1), (3, 3), "f32")
    rewriter.replace(
        node, rewriter.emit(node, "relu", [rewriter.emit(node, "cat", [left, right], {"axis": 1})])
    )
    graph = rewriter.finish()
    assert graph is not None
    graph.verify()
    np.testing.assert_array_equal(tosaic.program.from_graph(graph).run(X.numpy()), X.relu().numpy())


def test_python_numbers_become_constants_as_torch_tensor_converts_them(program: tosaic.Program) -> None:
    rewriter = tosaic.Rewriter(program.graph)
    node = program.graph.nodes[0]
    numbers = [3.0, [1, 2], True, np.float16(3), torch.ones(2)]
    dtypes = [rewriter.constant(node, number).dtype for number in numbers]
    assert dtypes == ["f32", "i64", "bool", "f16", "f32"]
    assert rewriter.constant(node, np.zeros(2), dtype="f32").dtype == "f32"
    assert rewriter.constant(node, 3, dtype="i8").dtype == "i8"
    with pytest.raises(tosaic.InvalidGraph, match="a dtype that TOSA lacks"):
        rewriter.constant(node, np.float64(3))


# ---- passes on quantized programs ----


def quantized_program() -> torch.export.ExportedProgram:
    import torch.ao.quantization.fx._decomposed  # registers torch.ops.quantized_decomposed

    q = torch.ops.quantized_decomposed

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = q.quantize_per_tensor(x, 0.03, 3, -128, 127, torch.int8)
            y = self.conv(q.dequantize_per_tensor(x, 0.03, 3, -128, 127, torch.int8))
            y = q.quantize_per_tensor(y, 0.02, 1, -128, 127, torch.int8)
            y = torch.relu(q.dequantize_per_tensor(y, 0.02, 1, -128, 127, torch.int8))
            y = q.quantize_per_tensor(y, 0.01, -128, -128, 127, torch.int8)
            return q.dequantize_per_tensor(y, 0.01, -128, -128, 127, torch.int8)

    torch.manual_seed(0)
    weight = torch.randint(-127, 128, (2, 2, 1, 1)) * 0.01
    net = Net().eval()
    with torch.no_grad():
        net.conv.weight.copy_(weight)
    return torch.export.export(net, (IMAGE,))


IMAGE = torch.linspace(-3, 3, 2 * 3 * 3).reshape(1, 2, 3, 3)


@pytest.fixture(scope="module")
def quantized() -> torch.export.ExportedProgram:
    return quantized_program()


@pytest.fixture(scope="module")
def folded(quantized: torch.export.ExportedProgram) -> tosaic.program.Graph:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+INT+FP")
    return pipeline["fold-qdq"].run(tosaic.from_exported(quantized).graph)


def with_clamp(graph: tosaic.program.Graph, **options: Any) -> tosaic.program.Graph | None:
    """Replaces relu(x) by clamp(x, min=0), with the qparams of the relu."""
    rewriter = tosaic.Rewriter(graph)
    for node in graph.nodes:
        if node.op == "relu":
            qparams = options.get("qparams", node.results[0].qparams)
            clamped = rewriter.emit(node, "clamp", node.operands, {"min": 0.0}, qparams=qparams)
            assert clamped.qparams == qparams
            rewriter.replace(node, clamped)
        else:
            rewriter.copy(node)
    return rewriter.finish()


def at_relu(graph: tosaic.program.Graph) -> tuple[tosaic.Rewriter, tosaic.program.Node]:
    rewriter = tosaic.Rewriter(graph)
    for node in graph.nodes:
        if node.op == "relu":
            return rewriter, node
        rewriter.copy(node)
    raise AssertionError("no relu")


def test_a_pass_emits_quantized_values(quantized: torch.export.ExportedProgram) -> None:
    pipeline = tosaic.Pipeline.default("TOSA-1.0+INT+FP")
    pipeline.insert_before(
        "lower-to-integer", tosaic.lowering.Pass("with-clamp", with_clamp, takes=["quantized"])
    )
    lowered = tosaic.lower(quantized, pipeline=pipeline)
    assert next(timing for timing in lowered.timings if timing.name == "with-clamp").changed
    np.testing.assert_array_equal(
        lowered.run(IMAGE), tosaic.lower(quantized, target="TOSA-1.0+INT+FP").run(IMAGE)
    )
    assert tosaic.compare(quantized, lowered, (IMAGE,)).ok


def test_quantized_values_have_qparams_and_floats_have_none(folded: tosaic.program.Graph) -> None:
    (relu,) = [node for node in folded.nodes if node.op == "relu"]
    assert relu.results[0].qparams == tosaic.ports.QParams("i8", (0.01,), (-128,), -128, 127)
    assert folded.inputs[0].value.qparams is None


def test_a_node_between_dequantize_and_quantize_gives_quantized_values(folded: tosaic.program.Graph) -> None:
    rewriter, node = at_relu(folded)
    old, out = node.operands[0].qparams, node.results[0].qparams
    assert old is not None
    assert out is not None
    fields = ("axis", "qmin", "qmax", "scales", "zero_points")
    x = rewriter.emit(
        node, "dequantize", node.operands, {k: getattr(old, k) for k in fields} | {"dtype": "f32"}
    )
    assert (x.dtype, x.qparams) == ("f32", None)
    y = rewriter.emit(node, "relu", [x])
    z = rewriter.emit(node, "quantize", [y], {k: getattr(out, k) for k in fields} | {"dtype": "i8"})
    assert (z.dtype, z.qparams) == ("i8", out)
    rewriter.replace(node, z)


QUANTIZED_MISUSE: list[tuple[Any, str]] = [
    (
        lambda r, n: r.emit(n, "clamp", n.operands, {"min": 0.0}),
        r"'clamp' computes over quantized values, so its result needs qparams: .* \(node 'relu_1', .*"
        r"Write rewriter\.emit\(node, 'clamp', \[\.\.\.\], qparams=node\.results\[0\]\.qparams\)",
    ),
    (
        lambda r, n: r.replace(n, n.operands[0]),
        r"other qparams: expected i8\[1,2,3,3\] q\(i8 -128..127 scale 0.01 zp -128\), got "
        r"i8\[1,2,3,3\] q\(.* scale 0.02 zp 1\) .*Emit it with qparams=node.results\[0\].qparams",
    ),
    (
        lambda r, n: r.emit(
            n, "clamp", n.operands, {"min": 0.0}, qparams=tosaic.ports.QParams("i8", (0.5,), (3,), 0, 300)
        ),
        r"the qparams of 'clamp' make no sense: expected a range within -128..127, got 0..300",
    ),
    (
        lambda r, n: r.emit(n, "clamp", n.operands, {"min": 0.0}, qparams=[HALVES, None]),
        r"'clamp' gets another number of qparams than it has results: expected 1, got 2",
    ),
    (
        lambda r, n: r.emit(n, "argmax", n.operands, {"axis": 1}, qparams=HALVES),
        r"the result of 'argmax' is no f32, so it cannot be quantized",
    ),
    (
        lambda r, n: r.replace(n, r.constant(n, np.zeros((1, 2, 3, 3), np.int8))),
        r"other qparams: .*got i8\[1,2,3,3\] ",
    ),
    (
        lambda r, n: r.constant(n, np.zeros(2, np.int16), qparams=HALVES),
        r"constant 'constant' has another dtype than its qparams: expected i8, got i16",
    ),
]


@pytest.mark.parametrize(("use", "message"), QUANTIZED_MISUSE)
def test_misuse_of_a_rewriter_at_stage_quantized_is_refused(
    folded: tosaic.program.Graph, use: Any, message: str
) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        use(*at_relu(folded))


def test_a_quantized_constant_replaces_a_quantized_value(folded: tosaic.program.Graph) -> None:
    rewriter, node = at_relu(folded)
    zeros = rewriter.constant(node, np.zeros((1, 2, 3, 3), np.int8), qparams=node.results[0].qparams)
    rewriter.replace(node, zeros)


def test_an_error_at_stage_quantized_names_the_node_that_is_in_the_graph(
    folded: tosaic.program.Graph,
) -> None:
    rewriter, node = at_relu(folded)
    assert (node.name, node.origins[0].fx_name) == ("relu_1", "dequantize_per_tensor_1")
    with pytest.raises(tosaic.InvalidGraph, match=r"\(node 'relu_1', test_pipelines\.py:\d+\)"):
        rewriter.emit(node, "add", [node.operands[0]])


REMOVED: list[tuple[list[str], str, str]] = [
    (
        ["lower-to-integer"],
        "TOSA-1.0+INT+FP",
        r"do not lead to stage tosa: expected a graph at stage tosa after the last pass, got a graph at "
        r"stage quantized\. Pass 'quantize/quantize-boundary' was skipped, .*takes graphs at stage exported, "
        r"integer\. The pipeline lacks 'lower-to-integer', which makes a graph at stage integer\.",
    ),
    (
        ["lower-to-integer"],
        "TOSA-1.0+INT",
        r"The pipeline lacks 'lower-to-integer', which makes a graph at st",
    ),
    (
        ["quantize-boundary"],
        "TOSA-1.0+INT",
        r"the pipeline has no 'quantize-boundary', so that floats are left",
    ),
    (
        ["lower-to-integer", "fold-qdq"],
        "TOSA-1.0+INT",
        r"the pipeline has no 'fold-qdq', 'lower-to-integer', so that floats are left",
    ),
]


@pytest.mark.parametrize(("names", "target", "message"), REMOVED)
def test_a_quantized_program_says_which_pass_it_lacks(
    quantized: torch.export.ExportedProgram, names: list[str], target: str, message: str
) -> None:
    pipeline = tosaic.Pipeline.default(target)
    for name in names:
        pipeline.remove(name)
    with pytest.raises(tosaic.Error, match=message):
        tosaic.lower(quantized, pipeline=pipeline)
