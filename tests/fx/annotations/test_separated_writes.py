"""tosaic.Quantizer refuses writes that quantize nodes would separate from those who see them."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import tosaic

torch = pytest.importorskip("torch")

from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from tosaic.fx.annotations.memory import Roots  # noqa: E402
from tosaic.fx.annotations.separated_writes import refuse_separated_writes  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(torch.nn.Module):
    """Two linear layers, buffers of which two share memory, and a function of the module and an input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.function = function
        self.one, self.two = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.register_buffer("state", torch.randn(4, 6))
        tied = torch.randn(4, 6)
        self.register_buffer("tied", tied)
        self.register_buffer("twin", tied[:])

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def write_a_view(s: Any, x: Any) -> Any:
    y = s.one(x)
    y.view(-1).view(4, 6).relu_()
    return s.two(y) + y


def write_the_input(s: Any, x: Any) -> Any:
    y = s.one(x)
    x.mul_(0.5)
    return s.two(x) + y


def write_what_is_the_input(s: Any, x: Any) -> Any:
    y = s.one(x)
    same = x.contiguous().to(torch.float32)
    same.add_(y)
    return s.two(same)


REFUSED = {
    write_a_view: r"the memory of 'linear', which 'linear_1' reads later.*\(node 'relu_', "
    r"test_separated_writes.py:\d+\)",
    write_the_input: r"writes to 'x', an input.*\(node 'mul_'",
    write_what_is_the_input: r"writes to 'x', an input.*\(node 'add_'",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
@torch.no_grad()
def test_a_write_that_quantize_nodes_hide_is_refused_by_node(function: Any) -> None:
    exported = torch.export.export(Net(function).eval(), (torch.randn(4, 6),))
    with pytest.raises(tosaic.UnsupportedOp, match=REFUSED[function]):
        prepare_pt2e(exported.module(), tosaic.Quantizer())


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
@torch.no_grad()
def test_the_way_out_that_the_error_names_is_accurate(function: Any) -> None:
    exported = torch.export.export(Net(function).eval(), (torch.randn(4, 6),))
    samples = [(torch.randn(4, 6),) for _ in range(4)]
    quantized = tosaic.quantize(deepcopy(exported), samples, progress=False)
    x = torch.randn(4, 6)
    assert snr(quantized.run(x.clone()), exported.module()(x.clone())) > 30


def write_a_result(s: Any, x: Any) -> Any:
    y = s.one(x)
    z = y * 2
    y.mul_(3)
    y.relu_()
    return s.two(z) + y


def write_views_of_what_nobody_else_reads(s: Any, x: Any) -> Any:
    y = s.one(x).view(6, 4)
    y.relu_()
    return s.two(y.view(4, 6))


def update_a_state(s: Any, x: Any) -> Any:
    s.state.mul_(0.5).add_(s.one(x), alpha=0.5)
    return s.two(s.state)


def read_a_buffer_that_shares_memory(s: Any, x: Any) -> Any:
    s.tied.copy_(s.one(x))
    return s.two(s.twin)


def read_a_view_of_a_buffer_that_shares_memory(s: Any, x: Any) -> Any:
    s.tied.copy_(s.one(x))
    return s.two(s.twin.view(6, 4).view(4, 6) * 2)


def store_a_row_in_each_row(s: Any, x: Any) -> Any:
    s.state.copy_(s.one(x)[0])
    return s.two(s.state)


def write_a_copy_of_the_input(s: Any, x: Any) -> Any:
    y = x.clone()
    y.mul_(2)
    return s.two(y) + x


TAKEN = [
    write_a_result,
    write_views_of_what_nobody_else_reads,
    update_a_state,
    read_a_buffer_that_shares_memory,
    read_a_view_of_a_buffer_that_shares_memory,
    store_a_row_in_each_row,
    write_a_copy_of_the_input,
]


def snr(found: Any, wanted: Any) -> float:
    wanted = torch.as_tensor(wanted)
    return float(10 * torch.log10(wanted.square().mean() / (wanted - torch.as_tensor(found)).square().mean()))


@pytest.mark.parametrize("function", TAKEN, ids=lambda function: function.__name__)
@torch.no_grad()
def test_a_write_that_only_its_readers_see_is_quantized(function: Any) -> None:
    exported = torch.export.export(Net(function).eval(), (torch.randn(4, 6),))
    prepared = prepare_pt2e(deepcopy(exported).module(), tosaic.Quantizer())
    samples = [torch.randn(4, 6) for _ in range(4)]
    for x in samples:
        prepared(x.clone())
    converted, model = convert_pt2e(prepared), exported.module()
    for x in samples:  # what the state held at first is gone
        model(x.clone())
    for x in samples:
        assert snr(converted(x.clone()), model(x.clone())) > 28


def test_the_cost_grows_with_the_graph() -> None:
    """Each write looked at all nodes: 1,000 calls in place took 4 s. Views of views took one frame each."""
    graph = torch.fx.Graph()
    y = graph.call_function(torch.ops.aten.clone.default, (graph.placeholder("x"),))
    for _ in range(8000):
        y = graph.call_function(torch.ops.aten.add_.Tensor, (y, 1))
    for _ in range(2000):
        y = graph.call_function(torch.ops.aten.alias.default, (y,))
    graph.output(y)
    model = torch.fx.GraphModule(torch.nn.Module(), graph)
    began = time.process_time()
    refuse_separated_writes(model)
    assert Roots().of(y)
    assert time.process_time() - began < 20
