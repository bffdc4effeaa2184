"""Whole programs: signatures, weights, symbolic sizes, dim orders, origins, and the networks."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
import tosaic._core as core
from fx.exporting import exported, imported, ops
from models.zoo import SMALL, build
from torch import nn
from torch.export import Dim
from tosaic.fx import from_exported
from tosaic.torch_operators.origins import module_path, source_of

# torch's own run_decompositions uses a class that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

Pair = namedtuple("Pair", ["left", "right"])


class Nested(nn.Module):
    def forward(self, x: Any, batch: Any, k: int = 2, *, scale: Any = None) -> Any:
        return {"a": x * k, "n": None, "i": 5}, Pair(batch["m"][0] + scale, [batch["m"][0]])


@pytest.fixture(scope="module")
def nested() -> Any:
    x, m = torch.ones(2, 3), torch.ones(3)
    return from_exported(torch.export.export(Nested(), (x, {"m": [m]}, 3), {"scale": torch.ones(1)}))


def test_inputs_and_outputs_are_named_by_their_paths_in_the_call(nested: Any) -> None:
    assert [i.path for i in nested.graph.inputs] == ["x", "batch['m'][0]", "scale"]
    assert [o.path for o in nested.graph.outputs] == ["out[0]['a']", "out[1].left", "out[1].right[0]"]


def test_nested_arguments_flatten_by_position_and_by_name(nested: Any) -> None:
    by_position = nested.signature.flatten(("X", {"m": ["M"]}, 3), {"scale": "S"})
    by_name = nested.signature.flatten((), {"k": 3, "batch": {"m": ["M"]}, "scale": "S", "x": "X"})
    assert by_position == by_name == ["X", "M", "S"]


def test_results_are_nested_again_with_their_constants(nested: Any) -> None:
    first, second = nested.signature.unflatten(["A", "L", "R"])
    assert first == {"a": "A", "n": None, "i": 5}
    assert (second.left, second.right) == ("L", ["R"])


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("X", {"m": ["M"]}, 4), {"scale": "S"}, "input 'k' was specialised by export: expected 3, got 4"),
        (("X", {"m": []}, 3), {"scale": "S"}, "expected a list of 1, got a list of 0"),
        (("X", {"q": ["M"]}, 3), {"scale": "S"}, "a dict with the keys"),
        (("X",), {}, "arguments are not those of the exported call"),
    ],
)
def test_other_arguments_are_refused(nested: Any, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(core.InvalidGraph, match="inputs") as error:
        nested.signature.flatten(args, kwargs)
    assert message in str(error.value)


def test_a_signature_needs_no_torch() -> None:
    code = (
        "import sys; from tosaic.ports.signature import Tree;"
        "t = Tree('dict', (Tree('leaf'), Tree('none')), ('a', 'b'));"
        "assert t.flatten({'b': None, 'a': 1}) == [1] and t.unflatten([2]) == {'a': 2, 'b': None};"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4).t())
        self.offset = nn.Parameter(torch.randn(4).to(torch.bfloat16))

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(i) + self.table[:, 0] + self.offset)


def test_weights_are_views_of_torchs_memory_and_tied_weights_are_one_constant() -> None:
    module = Tied()
    result = imported(module, torch.tensor([1, 2]))
    by_name = {c.name: c for c in result.graph.constants.values()}
    (tied,) = by_name.keys() & {"embed.weight", "head.weight"}
    assert by_name[tied].data_ptr == module.embed.weight.data_ptr()
    assert by_name["offset"].data_ptr == module.offset.data_ptr()
    weight = by_name[tied].array
    assert not weight.flags.writeable
    np.testing.assert_array_equal(weight, module.embed.weight.detach().numpy())


def test_weights_that_are_not_dense_are_copied_and_reported() -> None:
    module = Tied()
    result = imported(module, torch.tensor([1, 2]))
    (note,) = [d for d in result.diagnostics if d.rule == "copied-weight"]
    assert note.name == "table"
    np.testing.assert_array_equal(result.graph.constants["table"].array, module.table.numpy())


def test_a_weight_changed_in_place_is_refused_when_it_is_read() -> None:
    module = nn.Linear(2, 2)
    constant = imported(module, torch.ones(1, 2)).graph.constants["weight"]
    assert constant.array.shape == (2, 2)
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(core.InvalidGraph, match="'weight' was changed in place after import"):
        constant.array.sum()


def test_the_array_of_a_constant_outlives_the_graph() -> None:
    graph = imported(nn.Linear(3, 2), torch.ones(1, 3)).graph
    array = graph.constants["bias"].array
    del graph
    assert np.isfinite(array).all()


def dynamic() -> Any:
    rows = Dim("rows", min=2, max=64)
    return exported(
        lambda x, y: torch.cat([x, x]).flatten() + y.sum() + x.shape[0],
        torch.ones(4, 3),
        torch.ones(8),
        dynamic_shapes=(({0: rows}, {0: 2 * rows}),),
    )


@pytest.mark.parametrize(
    "bind", [{0: {0: 5}}, {1: {0: 10}}, (np.ones((5, 3)), np.ones(10)), ((np.ones((5, 3)), np.ones(10)), {})]
)
def test_symbols_are_bound_by_axis_or_by_example(bind: Any) -> None:
    graph = from_exported(dynamic(), bind=bind).graph
    assert [i.value.shape for i in graph.inputs] == [(5, 3), (10,)]
    assert graph.outputs[0].value.shape == (30,)
    graph.verify()


@pytest.mark.parametrize(
    ("bind", "kind", "message"),
    [
        (
            None,
            core.UnsupportedOp,
            r"not bound: expected a size for each, got axis 0 of input '\w+' \(s\w+\)",
        ),
        ({0: {0: 100}}, core.InvalidGraph, "exported for another range: expected 2 to 64, got 100"),
        ({0: {0: 5}, 1: {0: 11}}, core.InvalidGraph, "expected 10, got 11"),
        ({0: {1: 4}}, core.InvalidGraph, "is static: expected 3, got 4"),
        ({"nope": {0: 1}}, core.InvalidGraph, "no such input"),
        ({0: {7: 1}}, core.InvalidGraph, "no such axis"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(bind: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        from_exported(dynamic(), bind=bind)


def test_the_orders_of_inputs_follow_the_traced_strides() -> None:
    conv = nn.Conv2d(3, 4, 3)
    x = torch.ones(1, 3, 8, 8).to(memory_format=torch.channels_last)
    graph = imported(conv, x).graph
    assert graph.inputs[0].dim_order == (0, 2, 3, 1)
    assert imported(conv, x.contiguous()).graph.inputs[0].dim_order == (0, 1, 2, 3)


def test_an_ambiguous_order_is_row_major_and_reported() -> None:
    x = torch.ones(2, 1, 8, 8).to(memory_format=torch.channels_last)
    result = imported(nn.Conv2d(1, 4, 3), x)
    assert result.graph.inputs[0].dim_order == (0, 1, 2, 3)
    assert [d.rule for d in result.diagnostics if d.name == result.graph.inputs[0].name] == [
        "ambiguous-order"
    ]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


@pytest.mark.parametrize("strict", [False, True])
def test_origins_name_the_call_its_module_and_its_line(strict: bool) -> None:
    result = imported(Block(), torch.ones(1, 3), strict=strict)
    linear = result.graph.nodes[2]
    assert (linear.op, linear.origin.target) == ("linear", "aten.linear.default")
    assert linear.origin.module_path == "layers.1"
    assert linear.origin.source.startswith("test_programs.py:")
    assert linear.origin.fx_name == linear.name


def test_sources_prefer_frames_outside_torch() -> None:
    torch_frame = '  File "/v/site-packages/torch/nn/modules/linear.py", line 9, in forward\n    return 1\n'
    user_frame = '  File "/home/me/model.py", line 41, in forward\n    x = f(x)\n'
    assert source_of(user_frame + torch_frame) == ("/home/me/model.py", 41)
    assert source_of(torch_frame) == ("/v/site-packages/torch/nn/modules/linear.py", 9)
    assert source_of("") == ("", 0)
    assert module_path("L['self'].layers[0].conv") == "layers.0.conv"


def test_every_form_of_a_program_is_imported_with_the_same_inputs() -> None:
    module, x = Block(), torch.ones(1, 3)
    forms = [exported(module, x, strict=strict) for strict in (False, True)]
    forms += [form.run_decompositions({}) for form in forms] + [forms[0].run_decompositions()]
    for form in forms:
        result = from_exported(form)
        assert "opaque" not in ops(result)
        assert [i.path for i in result.graph.inputs] == ["x"]
        result.graph.verify()


class Filled(nn.Module):
    """Writes one row into all rows of a buffer, and of an input, and reads neither again."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(3, 2, dtype=dtype))

    def forward(self, x: Any, given: Any) -> Any:
        before = self.rows * 2
        self.rows.copy_(x * 3)
        given.copy_(x)
        return before


@pytest.mark.parametrize("way", ["program", "file"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_a_decomposed_program_writes_in_the_type_of_what_it_writes(
    dtype: torch.dtype, way: str, tmp_path: Path
) -> None:
    """Torch's decomposition of ``copy_`` drops the cast and the broadcast, but torch's runtime does both."""
    calls = [(torch.tensor([1.7, -2.2]) * k, torch.zeros(3, 2, dtype=dtype)) for k in (1, 2, 3)]
    program = torch.export.export(Filled(dtype), calls[0]).run_decompositions({})
    module, ours = program.module(), from_any(program, way, tmp_path)
    for x, given in calls:
        wanted, ours_given = module(x, torch_given := given.clone()), given.clone()
        np.testing.assert_array_equal(np.asarray(ours.run(x, ours_given)), wanted.numpy())
        np.testing.assert_array_equal(ours_given.numpy(), torch_given.numpy())


def from_any(program: Any, way: str, folder: Path) -> Any:
    if way == "program":
        return tosaic.from_exported(program)
    torch.export.save(program, folder / "p.pt2")
    return tosaic.open_program(folder / "p.pt2")


def test_edge_dialect_imports() -> None:
    exir = pytest.importorskip("executorch.exir", reason="the edge dialect is ExecuTorch's")
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(), nn.Flatten(), nn.LazyLinear(5))
    x = torch.randn(1, 3, 8, 8)
    module(x)
    ep = exported(nn.Sequential(module, nn.Softmax(-1)), x)
    result = from_exported(exir.to_edge(ep).exported_program())
    assert "opaque" not in ops(result), [n.attrs for n in result.graph.nodes if n.op == "opaque"]
    assert {"conv", "batch_norm", "clamp", "softmax"} <= set(ops(result))
    result.graph.verify()

    moved = exported(lambda t: t.to(memory_format=torch.channels_last).clone() + t.to(torch.float64), x)
    clones = [n for n in from_exported(exir.to_edge(moved).exported_program()).graph.nodes if n.op == "clone"]
    assert (0, 2, 3, 1) in [n.attrs["order"] for n in clones]


def test_text_round_trips() -> None:
    graph = imported(Block(), torch.ones(1, 3)).graph
    again = core.Graph.parse(graph.text(), graph_constants(graph))
    assert again.text() == str(graph)
    assert graph.diff(again) == ""
    assert "linear" in graph.dot()
    assert repr(graph).startswith(
        "<tosaic.program.Graph 'forward' @exported: 1 inputs, 4 nodes, 4 constants, 1 outputs"
    )


def graph_constants(graph: Any) -> Any:
    return {c.name: c for c in graph.constants.values()}


@pytest.mark.parametrize("name", SMALL)
def test_networks_import_without_opaque_nodes_decomposed_or_not(name: str) -> None:
    ep = build(name).export()
    for form in (ep, ep.run_decompositions({}), ep.run_decompositions()):
        result = from_exported(form)
        assert "opaque" not in ops(result)
        result.graph.verify()
