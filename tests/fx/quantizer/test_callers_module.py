"""Nothing that quantizes, lowers or exports changes the caller's module, or the exported program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import tosaic
from models.quantize import QUANTIZERS as OF_NETWORKS
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from tosaic import recipes

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    pytest.mark.filterwarnings("ignore"),
]


class Scaled(nn.Module):
    """A convolution whose result is multiplied: Arm's passes fold that into the weights, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.other = nn.Conv2d(4, 4, 1)
        self.linear = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.linear.weight
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("table", torch.rand(4))
        self.threshold = nn.Parameter(torch.randn(1, 4, 6, 6))  # it stays float, and has the rank of images

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x) * 40
        y = torch.where(self.threshold > 0, y, y * 0.5)
        y = self.other(self.norm(y)).relu() * self.table[:, None, None]
        y = nn.functional.gelu(y).mean((2, 3))
        return self.dropout(self.tied(torch.softmax(self.linear(y), -1)))


class Before:
    """A module and its exported program, as they were."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.x = torch.randn(1, 3, 8, 8)
        self.module = Scaled().eval()
        self.tensors = {name: each.clone() for name, each in self.module.state_dict().items()}
        self.memory = self._memory()
        self.exported = torch.export.export(self.module, (self.x,))
        self.code = self.exported.graph_module.code
        self.result = self.module(self.x)

    def require_unchanged(self) -> None:
        for name, each in self.module.state_dict().items():
            assert torch.equal(each, self.tensors[name]), name
            assert torch.equal(self.exported.state_dict[name], each), name
        assert self._memory() == self.memory
        assert self.module.tied.weight is self.module.linear.weight
        assert not any(each.training for each in self.module.modules())
        assert self.exported.graph_module.code == self.code
        assert torch.equal(self.exported.module()(self.x), self.result)

    def _memory(self) -> dict[str, Any]:
        held = self.module.state_dict().items()
        return {name: (each.data_ptr(), each.stride(), each.dtype, each._version) for name, each in held}


_arm = OF_NETWORKS["arm"]

QUANTIZERS: dict[str, Callable[[], Any]] = {
    "tosaic": tosaic.Quantizer,
    "tosaic for arm": lambda: tosaic.Quantizer(compatible_with="arm"),
    "arm, wrapped": lambda: tosaic.wrap_quantizer(_arm(), rules=[]),
    "arm, composed": lambda: tosaic.fx.compose_quantizers([_arm(), tosaic.Quantizer()], conflict="first"),
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_quantizer_does_not_change_the_module_and_prepares_it_the_same_way_again(name: str) -> None:
    before = Before()
    results = []
    for _ in range(2):
        prepared = prepare_pt2e(before.exported.module(check_guards=False), QUANTIZERS[name]())
        prepared(before.x)
        converted = convert_pt2e(prepared)
        results.append(converted(before.x))
        before.require_unchanged()
    assert torch.equal(results[0], results[1])
    assert torch.allclose(results[0], before.result, atol=0.05)


def test_weights_that_no_pass_has_changed_share_the_modules_memory() -> None:
    before = Before()
    prepared = prepare_pt2e(before.exported.module(), tosaic.Quantizer(compatible_with="arm"))
    shared = {each.data_ptr() for each in before.module.parameters()}
    own = [each for each in prepared.parameters() if each.data_ptr() not in shared]
    conv = before.module.conv
    assert sorted(each.shape for each in own) == sorted([conv.bias.shape, conv.weight.shape])
    assert before.module.linear.weight.data_ptr() in {each.data_ptr() for each in prepared.parameters()}


def _train(prepared: Any) -> None:
    with torch.no_grad():
        prepared(torch.randn(1, 3, 8, 8))
        for each in prepared.parameters():
            each.add_(0.01)


def _calls(graph: Any) -> list[str]:
    return [node.name for node in graph.graph.nodes if node.op == "call_function"]


def _decompose(graph: Any) -> Any:
    return tosaic.executorch.decompose_for_arm(graph, _calls(graph), "TOSA-1.0+INT")


WAYS: dict[str, Callable[[Before, Path], Any]] = {
    "quantize": lambda b, _: tosaic.quantize(
        b.exported, [b.x], tools=["equalize", "smooth", "bias_correction"], progress=False
    ),
    "lower and compare": lambda b, _: tosaic.compare(b.exported, tosaic.lower(b.exported), (b.x,)),
    "export of a module": lambda b, folder: tosaic.export_model(
        b.module, (b.x,), folder=folder, recipe="tosa-int8"
    ),
    "export of a program": lambda b, folder: tosaic.export_model(
        b.exported, folder=folder, samples=[(b.x,)], recipe="tosa-int8"
    ),
    "export for Cortex-M": lambda b, folder: tosaic.export_model(
        b.module, (b.x,), folder=folder, recipe="cortex-m"
    ),
    "export of a program for Cortex-M": lambda b, folder: tosaic.export_model(
        b.exported, folder=folder, samples=[(b.x,)], recipe="cortex-m"
    ),
    "decompositions for arm": lambda b, _: _decompose(b.exported.module()),
    "training": lambda b, folder: tosaic.export_model(
        b.module,
        (b.x,),
        folder=folder,
        recipe=recipes.named("tosa-int8").replace(stages=[recipes.qat(_train)]),
        check_on=(),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_tosaic_changes_the_module_or_the_exported_program(way: str, tmp_path: Path) -> None:
    before = Before()
    WAYS[way](before, tmp_path / "folder")
    before.require_unchanged()


class Counting(nn.Module):
    """A batch norm in training mode, and states that a pass may compute: they depend on no input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls.add_(1)
        self.steps.add_(1.0)
        y = self.norm(self.conv(x) * 40).mean((0, 2, 3))
        self.mean.add_(y.detach())
        return y * self.steps, self.mean + 0, self.calls + 0


@pytest.mark.parametrize("is_training", [False, True])
def test_decompositions_for_arm_leave_states_and_gradients_alone(is_training: bool) -> None:
    module = Counting().train(is_training)
    graph = torch.export.export(module, (torch.randn(2, 3, 8, 8),)).module()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    before = {name: (each.detach().clone(), each.requires_grad) for name, each in tensors.items()}
    decomposed = _decompose(graph)
    for name, each in tensors.items():
        assert torch.equal(each, before[name][0]), name
        assert each.requires_grad == before[name][1], name
    kept = {each.data_ptr() for each in (*decomposed.parameters(), *decomposed.buffers())}
    assert module.calls.data_ptr() in kept


def test_a_program_for_arm_counts_from_what_the_module_holds() -> None:
    module = Counting().eval()
    x = torch.randn(2, 3, 8, 8)
    graph = torch.export.export(module, (x,)).module(check_guards=False)
    prepared = prepare_pt2e(graph, tosaic.Quantizer(compatible_with="arm"))
    assert (int(module.calls), float(module.steps)) == (0, 0)
    assert [int(prepared(x)[2]) for _ in range(3)] == [1, 2, 3]
