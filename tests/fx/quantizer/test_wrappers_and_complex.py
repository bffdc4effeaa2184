"""tosaic's quantizer on graphs with wrappers, complex values and symbolic sizes, in torchao's flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from torch import Tensor, nn
from torch.export import Dim
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

pytestmark = pytest.mark.filterwarnings("ignore")
QUANTIZE = torch.ops.quantized_decomposed.quantize_per_tensor.default


def samples_of(*shape: int, count: int = 6) -> list[tuple[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(*shape, generator=generator) * 0.5,) for _ in range(count)]


def converted(module: nn.Module, samples: Any, quantizer: Any = None) -> Any:
    prepared = prepare_pt2e(
        torch.export.export(module.eval(), samples[0]).module(), quantizer or tosaic.Quantizer()
    )
    with torch.no_grad():
        for (x,) in samples:
            prepared(x.clone())
    return torch.export.export(convert_pt2e(prepared), samples[0])


def qparams(program: Any) -> list[Any]:
    return [node.args[1:3] for node in program.graph.nodes if node.target == QUANTIZE]


class Block(nn.Module):
    """A convolution with a batch norm, and a linear layer, some of them in a wrapper."""

    def __init__(self, wrapper: Callable[[], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.wrapper = wrapper
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)
        with torch.no_grad():
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Any:
        with self.wrapper():
            h = F.relu(self.norm(self.conv(x)))
            h = h.mean((2, 3))
        return self.linear(h)


@pytest.mark.parametrize(
    "wrapper", [torch.no_grad, lambda: torch.autocast("cpu", enabled=False)], ids=["no_grad", "autocast"]
)
def test_calls_inside_of_wrappers_are_quantized_as_those_outside(wrapper: Any) -> None:
    import contextlib

    samples = samples_of(1, 3, 8, 8)
    found = converted(Block(wrapper), samples)
    plain = converted(Block(contextlib.nullcontext), samples)
    assert qparams(found) == qparams(plain)
    lowered = [tosaic.lower(each, target="TOSA-1.0+INT") for each in (found, plain)]
    for (x,) in samples:
        np.testing.assert_array_equal(lowered[0].run(x), lowered[1].run(x))


def test_wrappers_stay_in_a_graph_that_is_trained() -> None:
    model = torch.export.export(Block(torch.no_grad).train(), samples_of(1, 3, 8, 8)[0]).module()
    prepared = prepare_qat_pt2e(model, tosaic.Quantizer(qat=True))
    prepared(samples_of(1, 3, 8, 8)[0][0]).sum().backward()
    gradients = {name: each.grad is not None for name, each in prepared.named_parameters()}
    assert not gradients["conv.weight"]
    assert gradients["linear.weight"]


class LogMel(nn.Module):
    """A log-mel spectrogram in front of a convolutional network."""

    def __init__(self, front: str) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.front = front
        self.register_buffer("window", torch.hann_window(32))
        self.register_buffer("mel", torch.rand(8, 17) / 17)
        layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.ReLU()
        self.network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 6 * 13, 5))

    def power(self, x: Tensor) -> Tensor:
        if self.front == "rfft":
            frames = x.unfold(-1, 32, 16) * self.window
            return torch.fft.rfft(frames).abs().square().transpose(1, 2)
        if self.front == "no_grad":
            with torch.no_grad():
                return torch.stft(x, 32, 16, window=self.window, center=False, return_complex=True).abs() ** 2
        z = torch.stft(x, 32, 16, window=self.window, center=False, return_complex=True)
        return torch.view_as_real(z).square().sum(-1)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.log(self.mel @ self.power(x) + 1e-3)
        return self.network(features[:, None])


@pytest.mark.parametrize("front", ["stft", "rfft", "no_grad"])
@pytest.mark.parametrize("door", ["Quantizer", "quantize"])
def test_a_network_behind_a_spectrogram_is_quantized_and_no_complex_value_is(door: str, front: str) -> None:
    samples = samples_of(1, 256)
    network = LogMel(front).eval()
    # Squares have ranges that 8 bits do not hold: the front end stays float, as such networks are deployed.
    float_front = ("matmul", "square", "pow", "sum", "abs", "log", "add", "mul", "unfold", "stft", "fft_rfft")
    present = {str(node.target) for node in torch.export.export(network, samples[0]).graph.nodes}
    config = tosaic.QConfig.int8()
    for op in float_front:
        if any(each.startswith(f"aten.{op}.") for each in present):
            config = config.set(None, op=op)
    if door == "Quantizer":
        found = converted(network, samples, tosaic.Quantizer(config))
    else:
        exported = torch.export.export(network, samples[0])
        found = tosaic.quantize(exported, samples, config=config, progress=False).to_exported()
    for node in found.graph.nodes:
        if node.target == QUANTIZE:
            assert not node.args[0].meta["val"].is_complex()
    convolutions = [node for node in found.graph.nodes if node.target == torch.ops.aten.conv2d.default]
    assert len(convolutions) == 2
    for node in convolutions:
        assert "dequantize" in str(node.args[0].target)
        assert "dequantize" in str(node.args[1].target)
    lowered = tosaic.lower(found, target="TOSA-1.0+INT+FP+fft")
    module = found.module()
    for (x,) in samples:
        with torch.no_grad():
            exact, torchs = network(x).numpy(), module(x).numpy()
        assert 10 * np.log10((exact**2).sum() / ((lowered.run(x) - exact) ** 2).sum()) > 20
        unit = qparams(found)[-1][0]
        assert np.abs(lowered.run(x) - torchs).max() <= 1.001 * unit


def test_the_report_says_why_complex_values_are_float() -> None:
    quantizer = tosaic.Quantizer()
    converted(LogMel("rfft"), samples_of(1, 256), quantizer)
    assert quantizer.left_float["fft_rfft"] == "its result is complex"


class Written(nn.Module):
    def __init__(self, *, rows: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.rows = rows
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        (h[1:] if self.rows else h[:, 1:]).mul_(2)
        return self.b(h)


def test_a_place_that_a_symbolic_size_does_not_change_is_written_for_all_sizes() -> None:
    samples, dimension = samples_of(3, 8), Dim("rows", min=2, max=16)
    exported = torch.export.export(Written(rows=False).eval(), samples[0], dynamic_shapes=({0: dimension},))
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer())
    for (x,) in samples:
        prepared(x)
    module = convert_pt2e(prepared)
    x = torch.cat([x for (x,) in samples[:2]])
    wanted, found = exported.module()(x), module(x)
    assert float(((found - wanted) ** 2).sum() / (wanted**2).sum()) < 0.01


def test_a_place_that_a_symbolic_size_changes_is_refused_with_the_way_out() -> None:
    """Before, the converted graph wrote to the place for the traced size, and failed at another size."""
    samples, dimension = samples_of(3, 8), Dim("rows", min=3, max=16)
    exported = torch.export.export(Written(rows=True).eval(), samples[0], dynamic_shapes=({0: dimension},))
    with pytest.raises(tosaic.UnsupportedOp, match=r"'linear'.*or use tosaic.quantize"):
        prepare_pt2e(exported.module(), tosaic.Quantizer())
    quantized = tosaic.quantize(exported, samples, progress=False, bind=samples[0])
    np.testing.assert_array_equal(
        quantized.to_exported().module()(samples[0][0]).detach().numpy(), quantized.run(*samples[0])
    )
