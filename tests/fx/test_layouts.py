"""Layout plans on torch programs: annotated strides, conversions, inputs and outputs, and cases that other
compilers get wrong."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
import tosaic
from function_module import FunctionModule
from fx.exporting import exported
from models import zoo
from models.quantize import converted
from torch import nn
from tosaic.base.dim_order import has_order
from tosaic.fx import AppliedLayout, Conversion, Convert, apply_layout

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread_without_traces")]
Q = torch.ops.quantized_decomposed
LAST, ROWS = (0, 2, 3, 1), (0, 1, 2, 3)
MODES = ("annotate", "convert")
X = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(0))
CHANNELS_LAST = {"memory_format": torch.channels_last}


def conv(inputs: int = 4, outputs: int = 4, kernel: int = 3, **options: Any) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(inputs, outputs, kernel, **options).eval().requires_grad_(False)


def functional(what: Any, *args: Any) -> Any:
    return exported(what, *args).run_decompositions({})


def val(applied: AppliedLayout, name: str) -> torch.Tensor:
    return node(applied, name).meta["val"]


def node(applied: AppliedLayout, name: str) -> torch.fx.Node:
    (found,) = [n for n in applied.program.graph.nodes if n.name == name]
    return found


def is_in(tensor: torch.Tensor, order: tuple[int, ...]) -> bool:
    return has_order(tensor.shape, tensor.stride(), order)


class Lying(torch.fx.Interpreter):
    """Runs a program, and records the nodes whose results do not have the strides of ``meta["val"]``."""

    def __init__(self, program: Any, nodes: set[str] | None = None) -> None:
        super().__init__(program.graph_module)
        self.wrong: list[str] = []
        self._nodes = nodes

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function" and (self._nodes is None or n.name in self._nodes):
            told, made = (torch.utils._pytree.tree_leaves(each) for each in (n.meta["val"], result))
            pairs = zip(told, made, strict=True)
            if any(isinstance(a, torch.Tensor) and _strides(a) != _strides(b) for a, b in pairs):
                self.wrong.append(n.name)
        return result


def _strides(tensor: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def flat_inputs(program: Any, args: tuple[Any, ...]) -> list[Any]:
    signature, known = program.graph_signature, {**program.constants, **program.state_dict}
    lifted = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    users = iter(args)
    places = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    return [known[lifted[name]] if name in lifted else next(users) for name in places]


def untrue(program: Any, args: tuple[Any, ...], nodes: set[str] | None = None) -> list[str]:
    interpreter = Lying(program, nodes)
    with torch.no_grad():
        interpreter.run(*flat_inputs(program, args))
    return interpreter.wrong


def run(program: Any, *args: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        return torch.utils._pytree.tree_leaves(program.module()(*args))


def same(a: Any, b: Any, *args: Any, tolerance: float = 1e-4) -> None:
    a, b = copy.deepcopy(a), copy.deepcopy(b)  # a run writes the states of its program
    for found, expected in zip(run(a, *args), run(b, *args), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def seen(conversions: tuple[Conversion, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return [(each.value, each.to_order) for each in conversions]


# ---- cases that other compilers get wrong ----


def quantized_depthwise() -> Any:
    weight = torch.randint(-127, 128, (8, 1, 3, 3)).to(torch.int8)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            number = Q.dequantize_per_tensor(x, 0.02, 3, -128, 127, torch.int8)
            kernel = Q.dequantize_per_tensor(self.weight, 0.01, 0, -127, 127, torch.int8)
            return Q.quantize_per_tensor(F.conv2d(number, kernel, groups=4), 0.05, 1, -128, 127, torch.int8)

    return exported(Net(), torch.randint(-128, 128, (2, 4, 6, 8)).to(torch.int8))


@pytest.mark.parametrize("mode", MODES)
def test_an_activation_that_a_depthwise_convolution_reads_behind_a_dequantize_is_not_a_weight(
    mode: str,
) -> None:
    ep = quantized_depthwise()
    applied = apply_layout(ep, mode=mode, weights=True)
    assert is_in(val(applied, "x"), ROWS)
    assert is_in(val(applied, "dequantize_per_tensor"), LAST)
    for weight in ("b_weight", "dequantize_per_tensor_1"):
        assert is_in(val(applied, weight), (2, 3, 0, 1))
        assert not is_in(val(applied, weight), ROWS)
    same(applied.program, ep, ep.example_inputs[0][0], tolerance=0)


def test_a_weight_is_moved_only_on_request() -> None:
    ep = quantized_depthwise()
    kept, moved = apply_layout(ep), apply_layout(ep, weights=True)
    assert kept.program.state_dict["weight"] is ep.state_dict["weight"]
    assert {"b_weight", "dequantize_per_tensor_1"}.isdisjoint(kept.changed)
    assert moved.program.state_dict["weight"].stride() == val(moved, "b_weight").stride() == (1, 1, 24, 8)
    assert ep.state_dict["weight"].is_contiguous()


def test_a_weight_whose_readers_need_two_orders_is_not_moved() -> None:
    weight = nn.Parameter(torch.randn(4, 4, 3, 3))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor) -> Any:
            return F.conv2d(x, self.weight), F.conv_transpose2d(x, self.weight)

    applied = apply_layout(exported(Net(), X), weights=True)
    assert applied.program.state_dict["weight"].is_contiguous()
    assert is_in(val(applied, "p_weight"), ROWS)


def test_all_readers_count_not_only_the_first() -> None:
    first, second = conv(), conv()
    ep = functional(lambda x: (x.relu().flatten(1).amax(1), first(x.relu() * 1.0), second(x)), X)
    applied = apply_layout(ep, mode="convert", orders={"outputs": {1: "channels_last", 2: "channels_last"}})
    (made,) = [c for c in applied.conversions if c.value == "args_0"]
    assert made.to_order == LAST
    assert is_in(val(applied, "args_0"), ROWS)
    read = [n.args[0].meta["val"] for n in applied.program.graph.nodes if "conv" in str(n.target)]
    assert len(read) == 2
    assert all(is_in(tensor, LAST) for tensor in read)
    same(applied.program, ep, X)


def test_a_value_is_converted_once_for_all_its_readers() -> None:
    pools = [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3)]
    ep = functional(lambda x: tuple(pool(x).sum((1, 2, 3)) for pool in pools), X)
    (made,) = apply_layout(ep, mode="convert").conversions
    assert made.value == "args_0"
    assert len(made.read_by) == 3


@pytest.mark.parametrize("mode", MODES)
def test_a_pad_on_a_channels_last_input_is_channels_last(mode: str) -> None:
    ep = functional(lambda x: F.pad(x, (1, 1, 1, 1), value=0.5), X)
    applied = apply_layout(ep, mode=mode, orders={"inputs": "channels_last", "outputs": "channels_last"})
    padded = val(applied, "pad")
    assert padded.is_contiguous(**CHANNELS_LAST)
    assert not padded.is_contiguous()
    assert applied.conversions == ()
    assert untrue(applied.program, (X.to(**CHANNELS_LAST),)) == []


def test_a_clone_with_a_memory_format_has_that_format() -> None:
    first, second = conv(), conv()

    def call(x: torch.Tensor) -> torch.Tensor:
        return second(first(x).clone(memory_format=torch.contiguous_format))

    ep = functional(call, X)
    annotated, made = apply_layout(ep), apply_layout(ep, mode="convert")
    assert node(annotated, "clone").kwargs == {"memory_format": torch.contiguous_format}
    assert is_in(val(annotated, "clone"), ROWS)
    assert node(made, "clone").kwargs == {"memory_format": torch.channels_last}
    assert is_in(val(made, "clone"), LAST)
    assert [c.value for c in made.conversions] == ["args_0", "conv2d_1"]
    assert untrue(made.program, (X,)) == []
    same(made.program, ep, X)


def test_a_call_with_a_default_memory_format_has_that_format() -> None:
    first, second = conv(), conv()
    ep = exported(lambda x: second(first(x).permute(0, 1, 3, 2).contiguous()), X)
    assert is_in(val(apply_layout(ep), "contiguous"), ROWS)
    made = apply_layout(ep, mode="convert")
    assert is_in(node(made, "conv2d_1").args[0].meta["val"], LAST)
    assert untrue(made.program, (X,)) == []
    same(made.program, ep, X)


@pytest.mark.parametrize("mode", MODES)
def test_a_reduction_that_drops_its_axes_preserves_the_order_of_the_other_axes(mode: str) -> None:
    layer = conv()
    ep = functional(lambda x: layer(x).amax(2).relu().permute(0, 2, 1) * 2, X)
    applied = apply_layout(ep, mode="annotate")
    assert applied.orders["amax"] == (0, 2, 1)
    assert val(applied, "amax").stride() == val(applied, "relu").stride() == (24, 1, 4)
    same(apply_layout(ep, mode=mode).program, ep, X)


def test_nodes_that_do_not_change_are_not_traced_again() -> None:
    layer = conv(bias=False)
    ep = functional(lambda x, y: (layer(x), (y.exp() * 2).reshape(8, 48).softmax(-1)), X, X)
    before = {n.name: n.meta.get("val") for n in ep.graph.nodes}
    applied = apply_layout(ep, mode="convert")
    kept = {n.name for n in applied.program.graph.nodes if n.meta.get("val") is before.get(n.name)}
    new = {c.node for c in applied.conversions}
    assert len(new) == 2
    assert {n.name for n in applied.program.graph.nodes} - kept == {"conv2d", *new, "output"} - kept
    assert applied.changed == ("conv2d",)


def test_a_call_that_is_traced_again_has_its_keyword_arguments() -> None:
    layer = conv()
    ep = functional(lambda x: (layer(x).to(torch.float64) * 2).sum((2, 3), dtype=torch.float32), X)
    applied = apply_layout(ep, mode="convert")
    for n in ep.graph.nodes:
        if n.op == "call_function" and "val" in n.meta:
            assert node(applied, n.name).kwargs == n.kwargs
            assert val(applied, n.name).dtype == n.meta["val"].dtype
            assert val(applied, n.name).shape == n.meta["val"].shape
    assert any(n.kwargs for n in ep.graph.nodes)
    same(applied.program, ep, X)


@pytest.mark.parametrize("through", ["", "dequantize", "both"])
@pytest.mark.parametrize("mode", MODES)
def test_a_grid_is_never_channels_last(mode: str, through: str) -> None:
    def call(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        if through == "both":
            grid = Q.quantize_per_tensor(grid, 1 / 127, 0, -128, 127, torch.int8)
        if through:
            grid = Q.dequantize_per_tensor(grid, 1 / 127, 0, -128, 127, torch.int8)
        return F.grid_sample(x.relu(), grid, align_corners=False)

    grid = torch.randint(-127, 128, (2, 5, 7, 2)).to(torch.int8) if through == "dequantize" else None
    args = (X, torch.rand(2, 5, 7, 2) if grid is None else grid)
    ep = exported(call, *args)
    applied = apply_layout(ep, mode=mode, orders={"inputs": "channels_last", "outputs": "channels_last"})
    (sampler,) = [n for n in applied.program.graph.nodes if "grid_sampler" in str(n.target)]
    assert is_in(sampler.args[0].meta["val"], LAST)
    chain = [sampler.args[1]]
    while chain[-1].op != "placeholder":
        chain.append(chain[-1].args[0])
    assert len(chain) == {"": 1, "dequantize": 2, "both": 3}[through]
    assert all(is_in(n.meta["val"], ROWS) for n in chain)
    same(applied.program, ep, X.to(**CHANNELS_LAST), args[1])
    with pytest.raises(tosaic.LayoutMismatch, match="input 'args_1' is the grid of a grid sampler"):
        apply_layout(ep, orders={"inputs": {"args_1": "channels_last"}})
    with pytest.raises(tosaic.LayoutMismatch, match="its coordinates, the last axis, innermost"):
        tosaic.lower(ep, orders={"inputs": {1: "channels_last"}})


@pytest.mark.parametrize("shape", [(3, 1, 3, 3), (2, 3, 1, 1), (1, 1, 1, 1)])
def test_axes_of_extent_1_are_wildcards(shape: tuple[int, ...]) -> None:
    base = torch.randn(shape)
    for order in permutations(range(4)):
        back = [order.index(axis) for axis in range(4)]
        x = base.permute(order).contiguous().permute(back)
        if not is_in(x, ROWS):
            continue
        ep = functional(lambda x: F.max_pool2d(x, 1), x)
        for mode in MODES:
            applied = apply_layout(ep, mode=mode, orders={"inputs": "channels_last"})
            assert "args_0" not in applied.changed
            assert not [c for c in applied.conversions if c.value == "args_0"]


# ---- networks ----

FLOAT = ("mobilenet_v2_small", "efficientnet_b0_small", "convnext_tiny_small", "unet_small", "bert4_small")


@pytest.fixture(scope="module", params=[*FLOAT, "mobilenet_v2_small int8", "deit_tiny_small int8"])
def network(request: Any) -> tuple[Any, tuple[Any, ...]]:
    name, _, int8 = request.param.partition(" ")
    made = zoo.build(name)
    sample = made.sample()
    ep = converted(made.module, [sample], "xnnpack") if int8 else made.export()
    return ep.run_decompositions({}), sample


def test_a_converted_network_has_the_same_results_and_the_annotated_strides(network: Any) -> None:
    ep, sample = network
    applied = apply_layout(ep, mode="convert")
    assert applied.layout.is_minimal
    assert 0 < len(applied.conversions) <= len(applied.layout.transposes)
    assert untrue(applied.program, sample) == []
    same(applied.program, ep, *sample)


def test_an_annotated_network_has_the_same_results_and_the_planned_orders(network: Any) -> None:
    ep, sample = network
    applied = apply_layout(ep)
    assert applied.conversions == ()
    assert [(n.name, n.target, n.kwargs) for n in ep.graph.nodes] == [
        (n.name, n.target, n.kwargs) for n in applied.program.graph.nodes
    ]
    outputs = {n.name for n in applied.program.graph.output_node().all_input_nodes}
    checked = 0
    for n in applied.program.graph.nodes:
        planned = applied.orders.get(n.name)
        names_format = {"memory_format", "dim_order"} & set(n.kwargs)
        if n.op != "call_function" or n.name in outputs or planned is None or names_format:
            continue
        if isinstance(n.meta["val"], torch.Tensor):
            assert is_in(n.meta["val"], planned), n.name
            checked += 1
    assert checked > 20
    for found, expected in zip(run(applied.program, *sample), run(ep, *sample), strict=True):
        assert torch.equal(found, expected)


def test_orders_agree_across_quantize_and_dequantize(network: Any) -> None:
    ep, _ = network
    applied = apply_layout(ep)
    clashes = {t.value for t in applied.layout.transposes}
    outputs = {n.name for n in applied.program.graph.output_node().all_input_nodes}
    count = 0
    for n in applied.program.graph.nodes:
        if "quantize_per" not in str(n.target) or n.name in outputs or n.name not in applied.orders:
            continue
        source = n.args[0]
        if source.name not in clashes and source.name in applied.orders:
            assert applied.orders[source.name] == applied.orders[n.name]
            assert is_in(source.meta["val"], applied.orders[n.name])
            count += 1
    assert count > 20 or not any("quantize_per" in str(n.target) for n in ep.graph.nodes)


def test_the_given_program_does_not_change(network: Any) -> None:
    ep, _ = network
    text = str(ep)
    strides = [
        [t.stride() for t in torch.utils._pytree.tree_leaves(n.meta.get("val")) if hasattr(t, "stride")]
        for n in ep.graph.nodes
    ]
    kwargs = [copy.copy(n.kwargs) for n in ep.graph.nodes]
    for mode in MODES:
        apply_layout(ep, mode=mode, weights=True, orders={"inputs": Convert("channels_last")})
    assert str(ep) == text
    assert kwargs == [n.kwargs for n in ep.graph.nodes]
    assert strides == [
        [t.stride() for t in torch.utils._pytree.tree_leaves(n.meta.get("val")) if hasattr(t, "stride")]
        for n in ep.graph.nodes
    ]


# ---- inputs and outputs ----


def test_inputs_and_outputs_have_the_traced_orders_by_default() -> None:
    x = X.to(**CHANNELS_LAST)
    ep = functional(conv(), x)
    applied = apply_layout(ep, mode="convert")
    assert applied.conversions == ()
    assert applied.layout.transposes == ()
    assert untrue(applied.program, (x,)) == []


def test_an_input_of_declared_order_is_annotated_and_so_is_its_example() -> None:
    applied = apply_layout(functional(conv(), X), orders={"inputs": {"input": "channels_last"}})
    assert val(applied, "input").stride() == X.to(**CHANNELS_LAST).stride()
    ((example,), _) = applied.program.example_inputs
    assert example.is_contiguous(**CHANNELS_LAST)
    assert torch.equal(example, X)


def test_a_view_that_a_declared_order_forbids_becomes_a_reshape() -> None:
    layer = conv()
    ep = functional(lambda x: layer(x).flatten(1), X)
    applied = apply_layout(ep, orders={"inputs": "channels_last"})
    assert [str(n.target) for n in applied.program.graph.nodes if n.op == "call_function"] == [
        "aten.conv2d.default",
        "aten.reshape.default",
    ]
    with torch.no_grad():
        found = applied.program.module()(X.to(**CHANNELS_LAST))
        torch.testing.assert_close(found, ep.module()(X), rtol=1e-4, atol=1e-5)


def test_a_copy_with_a_memory_format_serves_as_the_conversion() -> None:
    layer = conv()
    ep = functional(lambda x: layer(x.contiguous(**CHANNELS_LAST)), X)
    applied = apply_layout(ep, mode="convert", orders={"outputs": "channels_last"})
    assert applied.conversions == ()
    same(applied.program, ep, X)


def test_an_output_has_its_declared_order() -> None:
    ep = functional(conv(), X)
    assert val(apply_layout(ep), "conv2d").is_contiguous()
    declared = apply_layout(ep, orders={"outputs": "channels_last"})
    assert val(declared, "conv2d").is_contiguous(**CHANNELS_LAST)


# Calls whose fake tensors have other strides than the tensors that torch computes.
OTHERWISE = {
    "max_pool1d": (lambda x: F.max_pool1d(x, 2) * 2, "channels_last", (0, 2, 1)),
    "roll": (lambda x: F.max_pool2d(x.roll(1, 3), 3, 1).roll(1, 2), "contiguous", ROWS),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), "contiguous", ROWS),
    "channel_shuffle, declared otherwise": (lambda x: F.channel_shuffle(x, 2), (3, 0, 1, 2), (3, 0, 1, 2)),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_result_has_the_declared_order_if_its_fake_tensor_has_other_strides(name: str) -> None:
    call, declared, order = OTHERWISE[name]
    x = X.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    if len(order) == 3:
        x = X[0].transpose(1, 2).contiguous().transpose(1, 2)
    ep = exported(call, x)
    applied = apply_layout(ep, mode="convert", orders={"outputs": declared})
    (result,) = run(applied.program, x)
    assert applied.unmet == ()
    assert is_in(result, order)
    assert untrue(applied.program, (x,)) == []
    torch.testing.assert_close(result, call(x))


@pytest.mark.parametrize("name", OTHERWISE)
def test_every_call_of_a_converted_program_has_its_annotated_strides_without_declared_orders(
    name: str,
) -> None:
    call, _, order = OTHERWISE[name]
    x = X.to(**CHANNELS_LAST) if len(order) == 4 else X[0].transpose(1, 2).contiguous().transpose(1, 2)
    applied = apply_layout(exported(call, x), mode="convert")
    assert untrue(applied.program, (x,)) == []
    torch.testing.assert_close(run(applied.program, x)[0], call(x))


@pytest.mark.parametrize("mode", MODES)
def test_converted_inputs_and_outputs_have_the_traced_order_for_the_caller(mode: str) -> None:
    ep = functional(conv(), X)
    both = {"inputs": {0: Convert("channels_last")}, "outputs": {"out": Convert(LAST)}}
    applied = apply_layout(ep, mode=mode, orders=both)
    assert seen(applied.conversions) == [("input", LAST), ("conv2d", ROWS)]
    assert [c.read_by for c in applied.conversions] == [("conv2d",), ("output",)]
    assert applied.layout.transposes == ()
    (spec,) = applied.program.graph_signature.output_specs
    assert spec.arg.name == applied.conversions[1].node
    assert is_in(val(applied, "conv2d"), LAST)
    assert untrue(applied.program, (X,), {c.node for c in applied.conversions}) == []
    same(applied.program, ep, X)


def test_each_input_may_have_its_own_order() -> None:
    ep = functional(lambda a, b, c: F.max_pool2d(a, 2) + F.max_pool2d(b, 2) + F.max_pool2d(c, 2), X, X, X)
    orders = {"inputs": {"args_0": "channels_last", 1: Convert("channels_last")}}
    applied = apply_layout(ep, mode="convert", orders=orders)
    assert is_in(val(applied, "args_0"), LAST)
    assert is_in(val(applied, "args_1"), ROWS)
    assert [c.value for c in applied.conversions][:2] == ["args_1", "args_2"]
    same(applied.program, ep, X.to(**CHANNELS_LAST), X, X)


def test_an_order_without_a_memory_format_is_a_copy_between_two_views() -> None:
    ep = functional(lambda x: x * 2, X)
    applied = apply_layout(ep, orders={"inputs": Convert((0, 3, 1, 2)), "outputs": (0, 3, 1, 2)})
    (made,) = applied.conversions
    assert made.to_order == (0, 3, 1, 2)
    assert val(applied, made.node).stride() == val(applied, "mul").stride() == (192, 6, 1, 24)
    assert untrue(applied.program, (X,)) == []


def test_each_output_is_converted_even_if_it_is_an_input_or_occurs_twice() -> None:
    ep = functional(lambda x: (x, x, x.relu()), X)
    for mode in MODES:
        applied = apply_layout(ep, mode=mode, orders={"outputs": {1: "channels_last"}})
        (made,) = [c for c in applied.conversions if c.value == "args_0"]
        names = [spec.arg.name for spec in applied.program.graph_signature.output_specs]
        assert names[:2] == ["args_0", made.node]
        same(applied.program, ep, X)


def test_each_of_several_results_has_its_order() -> None:
    layer = conv(4, 8)
    ep = functional(lambda x: [part.relu() * 2 for part in layer(x).split(3, 1)], X)
    orders = {"outputs": "channels_last"}
    applied = apply_layout(ep, orders=orders)
    picks = [n for n in applied.program.graph.nodes if n.target is operator.getitem]
    assert len(picks) == 3
    for pick in picks:
        source, index = pick.args
        assert is_in(pick.meta["val"], LAST)
        assert is_in(source.meta["val"][index], LAST)
        assert not is_in(pick.meta["val"], ROWS)
    made = apply_layout(ep, mode="convert", orders=orders)
    assert untrue(made.program, (X,)) == []
    same(made.program, ep, X)


def test_a_mutated_buffer_is_written_in_its_own_order() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(2, 4, 4, 6))
            self.conv = conv()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state.add_(self.conv(x))
            return self.state * 2

    ep = exported(Net(), X).run_decompositions({})
    applied = apply_layout(ep, mode="convert")
    (spec, _) = applied.program.graph_signature.output_specs
    assert spec.target == "state"
    assert val(applied, spec.arg.name).is_contiguous()
    same(applied.program, ep, X)


def test_nested_graphs_get_their_operands_in_the_traced_order() -> None:
    layer = conv(padding=1)

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = layer(x)
            return torch.cond(y.sum() > 0, lambda a: a.view(2, -1) * 2, lambda a: a.view(2, -1) - 1, (y,))

    ep = functional(Net(), X)
    applied = apply_layout(ep, mode="convert")
    (call,) = [n for n in applied.program.graph.nodes if str(n.target) == "cond"]
    assert all(is_in(arg.meta["val"], ROWS) for arg in call.args[3])
    same(applied.program, ep, X)


@pytest.mark.parametrize("mode", MODES)
def test_symbolic_sizes_stay_symbolic(mode: str) -> None:
    batch = torch.export.Dim("batch", min=1, max=9)
    ep = torch.export.export(
        FunctionModule(conv()), (X,), dynamic_shapes=(({0: batch},),)
    ).run_decompositions({})
    applied = apply_layout(ep, mode=mode, bind={0: {0: 1}})
    assert str(applied.program.range_constraints) == str(ep.range_constraints)
    assert len(applied.conversions) == (2 if mode == "convert" else 0)
    x = torch.randn(5, 4, 6, 8)
    same(applied.program, ep, x)


@pytest.mark.parametrize("mode", MODES)
def test_the_program_can_be_saved_loaded_and_unflattened(mode: str, tmp_path: Any) -> None:
    net = nn.Sequential(conv(), nn.ReLU(), conv()).eval()
    ep = exported(net, X)
    applied = apply_layout(ep, mode=mode, orders={"outputs": Convert("channels_last")})
    torch.export.save(applied.program, tmp_path / "laid.pt2")
    loaded = torch.export.load(tmp_path / "laid.pt2")
    assert [n.name for n in loaded.graph.nodes] == [n.name for n in applied.program.graph.nodes]
    for n in loaded.graph.nodes:
        if n.op == "call_function":
            assert n.meta["val"].stride() == val(applied, n.name).stride()
    with torch.no_grad():
        torch.testing.assert_close(torch.export.unflatten(applied.program)(X), net(X))
    same(loaded, ep, X)


# ---- refusals ----


def refuses(kind: type[Exception], message: str, ep: Any, **options: Any) -> None:
    with pytest.raises(kind, match=message):
        apply_layout(ep, **options)


def test_invalid_requests_are_refused() -> None:
    ep = functional(conv(), X)
    refuses(tosaic.InvalidGraph, "unknown mode: expected annotate or convert, got 'both'", ep, mode="both")
    refuses(tosaic.InvalidGraph, "unknown objective", ep, objective="speed")
    refuses(tosaic.InvalidGraph, "unknown entry of 'orders'", ep, orders={"input": "traced"})
    refuses(tosaic.InvalidGraph, "no such entry of inputs", ep, orders={"inputs": {"y": Convert("traced")}})
    refuses(tosaic.InvalidGraph, "unknown order of", ep, orders={"inputs": Convert("nchw")})
    refuses(tosaic.InvalidGraph, "none of its axes", ep, orders={"inputs": {0: (0, 1, 2)}})
    refuses(tosaic.LayoutMismatch, "buffer.permute", ep, orders={"inputs": {0: "nhwc"}})
    refuses(tosaic.InvalidGraph, "not an exported program", conv())


def test_a_program_that_writes_in_place_is_annotated_but_not_converted() -> None:
    layer = conv()

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return layer(x).relu_() * 2

    ep = exported(Net(), X)
    for options in ({"mode": "convert"}, {"orders": {"inputs": Convert("channels_last")}}):
        refuses(tosaic.UnsupportedOp, r"relu_.*writes to its operand.*test_layouts.py:\d+\)", ep, **options)
    assert is_in(val(apply_layout(ep), "relu_"), LAST)


def strided(module: Callable[..., Any]) -> Any:
    return functional(lambda x: module(x).as_strided((2, 4, 24), (96, 24, 1)) * 2, X)


def test_a_call_that_addresses_memory_gets_its_operand_in_the_traced_order() -> None:
    ep = strided(conv())
    assert is_in(val(apply_layout(ep), "conv2d"), ROWS)
    made = apply_layout(ep, mode="convert")
    assert [c.to_order for c in made.conversions] == [LAST, ROWS]
    same(made.program, ep, X)
    orders = {"inputs": "channels_last"}
    refuses(tosaic.LayoutMismatch, r"addresses the memory of 'conv2d'.*as traced", ep, orders=orders)
    declared = apply_layout(ep, mode="convert", orders=orders)
    torch.testing.assert_close(run(declared.program, X.to(**CHANNELS_LAST)), run(ep, X), rtol=1e-4, atol=1e-4)
