"""Programs with operators of ExecuTorch's Cortex-M backend, by our plan: operators, integers and refusals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.backends.cortex_m.passes.cortex_m_pass_manager")

import torch.nn.functional as F  # noqa: E402
import tosaic  # noqa: E402
from cortex_m.networks import _Backend, _network  # noqa: E402
from cortex_m.reference import backend_of, called  # noqa: E402
from executorch.backends.arm._passes import FoldAndAnnotateQParamsPass  # noqa: E402
from models.quantize import converted, laid_out_as_converted  # noqa: E402
from torch import nn  # noqa: E402
from tosaic.executorch import KernelProgram, cortex_m_program  # noqa: E402
from tosaic.executorch.cortex_m.call_marks import is_claimed  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread_without_traces"),
]

CORTEX = "cortex-m55"
Claimants = list[Any]


class Twice(nn.Module):
    """Two convolutions. The first has a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Attention(nn.Module):
    """Products of batches of matrices, which ExecuTorch decomposes into views and a product of rank 3."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.matmul(q, k), -1)


class Pooled(nn.Module):
    """A pool and a reshape, without a quantization after them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(torch.tanh(x), 2).flatten(1)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(torch.sigmoid(x)))


def _quantized(module: nn.Module, *args: torch.Tensor) -> tosaic.QuantizedProgram:
    return tosaic.quantize(torch.export.export(module.eval(), args), [args])


def _sample(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def _kernels(program: Any) -> Counter[str]:
    """Returns how often a program calls each operator of the backend."""
    return Counter(name for name in called(program) if name.startswith("cortex_m."))


def _run(made: KernelProgram, *args: torch.Tensor) -> np.ndarray:
    """Runs the Python operators, which average as the kernel does, on arrays in channels-last order."""
    module = made.edge.exported_program().module(check_guards=False)
    with torch.no_grad():
        result = _Backend(module).run(*laid_out_as_converted(args, "cortex-m"))
    return np.asarray(result[0] if isinstance(result, tuple | list) else result)


def _split(program: Any, claimants: Claimants, *args: torch.Tensor) -> np.ndarray:
    return np.asarray(tosaic.lower(program, unsupported="split", claimants=claimants).run(*args))


class Anchors(nn.Module):
    """A buffer and a convolution of rank 5, which have no channels-last order of images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv3d(1, 2, 2)
        self.register_buffer("grid", torch.rand(1, 1, 6, 6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).view(1, 2, 2, 6, 6).permute(0, 1, 3, 4, 2) + self.grid
        return self.second(y[:, :1])


class Shaped(nn.Module):
    """Calls that depend on the strides of an image, of a result, and of a weight."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call, self.first = call, nn.Conv2d(3, 4, 3)
        self.position = nn.Parameter(torch.rand(1, 4, 3, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.call == "view of an image":
            return x.view(1, -1) + self.first(x).mean()
        if self.call == "view of a result":
            return torch.relu(self.first(x).view(1, -1))
        if self.call == "view of a weight":
            return self.first(x).flatten(1) + self.position.view(1, -1)
        if self.call == "strided image":
            return self.first(x.as_strided((1, 3, 4, 4), (192, 64, 16, 2), 1))
        return torch.relu(self.first(x).transpose(2, 3).as_strided((1, 4, 3, 3), (144, 36, 12, 2)))


class Complex(nn.Module):
    """Complex values between two linear layers."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call, self.first, self.last = call, nn.Linear(8, 8), nn.LazyLinear(4)
        self.register_buffer("table", torch.polar(torch.ones(4, 4), torch.arange(16.0).reshape(4, 4)))
        self.register_buffer("window", torch.hann_window(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        z = torch.view_as_complex(y.reshape(1, 4, 4, 2))
        results = {
            "rotary embedding": lambda: torch.view_as_real(z * self.table).flatten(-2),
            "product of matrices": lambda: torch.view_as_real(z @ self.table).flatten(-2),
            "conjugate": lambda: (2 * z.conj()).imag + (z * (1 + 2j)).abs(),
            "polar": lambda: torch.polar(y.abs() + 1, y).real,
            "cast": lambda: (y.to(torch.complex64) * 1j).imag,
            "rfft": lambda: torch.fft.rfft(y).abs(),
            "irfft": lambda: torch.fft.irfft(torch.fft.rfft(y)),
            "filter": lambda: torch.fft.irfft(torch.fft.rfft(y) * self.table[:, :1]),
            "stft": lambda: torch.view_as_real(
                torch.stft(y.flatten(1), 8, 4, window=self.window, return_complex=True)
            ).flatten(-2),
        }
        return self.last(results[self.call]())


class Blur(nn.Module):
    """A filter of each channel, whose weight the graph computes, in front of a convolution."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.last = how, nn.Conv2d(3, 4, 3)
        self.register_buffer("kernel", torch.rand(3, 1, 3, 3))

    def weight(self) -> torch.Tensor:
        if self.how == "products":
            rows = torch.exp(-((torch.arange(5.0) - 2) ** 2) / 2)
            return (rows[:, None] * rows / rows.sum() ** 2).expand(3, 1, 5, 5)
        if self.how == "writes":
            weight = torch.zeros(3, 1, 5, 5)
            weight[:, :, 2] = 0.5
            weight[..., 2] += 0.25
            return weight
        sobel = [[1, 2, 1], [0, 0, 0], [-1, -2, -1]]
        results = {
            "quotient": lambda: torch.ones(3, 1, 5, 5) / 25,
            "buffer": lambda: self.kernel / self.kernel.sum(),
            "list": lambda: torch.tensor(sobel, dtype=torch.float32).repeat(3, 1, 1, 1),
            "integers": lambda: torch.tensor(sobel).float().repeat(3, 1, 1, 1) / 4,
            "unit matrix": lambda: torch.eye(5).expand(3, 1, 5, 5),
        }
        return results[self.how]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.conv2d(x, self.weight(), groups=3))


class Table(nn.Module):
    """Tables of numbers that the graph computes, mostly from integers."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first = how, nn.Conv2d(3, 2, 3, 2, 1)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "coordinates":
            return self.first(torch.cat([x[:, :1], torch.linspace(-1, 1, 16).expand(1, 2, 16, 16)], 1))
        y = self.first(x)
        if self.how == "twice":
            rows = torch.arange(8).float()
            return (y + rows) * rows[:, None]
        results = {
            "grid": lambda: (
                y + torch.stack(torch.meshgrid([torch.arange(8)] * 2, indexing="ij")).float()[None]
            ),
            "sums": lambda: y + torch.ones(1, 1, 8, 8, dtype=torch.int64).cumsum(3).float(),
            "comparison": lambda: y * (torch.arange(8) > 3).float(),
            "float64": lambda: y * torch.arange(8, dtype=torch.float64).float(),
        }
        return results[self.how]()


# ---- one claimant ----


@pytest.mark.parametrize("name", ["cifar_cnn", "ds_cnn_small"])
def test_a_network_of_executorchs_quantizer_gets_the_kernels_of_executorchs_flow(name: str) -> None:
    network = _network(name)
    program = converted(network.module, [network.sample(i) for i in range(4)], "cortex-m")
    sample = laid_out_as_converted(network.sample(100), "cortex-m")
    made = cortex_m_program(program)
    assert _kernels(made.edge.exported_program()) == _kernels(backend_of(program))
    assert not made.refused
    assert not made.left
    assert all("decomposed" not in name for name in called(made.edge.exported_program()))
    result = _run(made, *sample)
    assert len(np.unique(result)) > 1
    np.testing.assert_array_equal(result, _split(program, [CORTEX], *sample))


def test_a_program_that_tosaic_quantized_is_exported_anew_in_channels_last_order() -> None:
    torch.manual_seed(0)
    x = _sample(1, 3, 8, 8)
    quantized = _quantized(Twice(), x)
    made = cortex_m_program(quantized)
    assert made.channels_last == ("x",)
    (image,) = (node for node in made.edge.exported_program().graph.nodes if node.name == "x")
    assert image.meta["val"].dim_order() == (0, 2, 3, 1)
    assert {each.status for each in made.nodes} <= {"kernel", "merged", "integers"}
    assert _kernels(made.edge.exported_program())["cortex_m.quantized_conv2d"] == 2
    np.testing.assert_array_equal(_run(made, x), _split(quantized, [CORTEX], x))


def test_tensors_of_rank_5_keep_their_order() -> None:
    torch.manual_seed(0)
    x = _sample(1, 3, 8, 8)
    quantized = _quantized(Anchors(), x)
    made = cortex_m_program(quantized)
    assert made.channels_last == ("x",)
    assert _kernels(made.edge.exported_program())["cortex_m.quantized_conv2d"] == 1
    np.testing.assert_allclose(_run(made, x), np.asarray(quantized.run(x)), atol=1e-5)


@pytest.mark.parametrize(
    "call", ["view of an image", "view of a result", "view of a weight", "strided image", "strided result"]
)
def test_calls_that_depend_on_strides_read_the_same_elements(call: str) -> None:
    torch.manual_seed(0)
    x = _sample(1, 3, 8, 8)
    quantized = _quantized(Shaped(call), x)
    made = cortex_m_program(quantized)
    assert made.channels_last == ("x",)
    assert "cortex_m.quantized_conv2d" in _kernels(made.edge.exported_program())
    step = quantized.outputs[0].quantized[0].scale
    expected = np.asarray(quantized.run(x))
    assert len(np.unique(expected)) > 8
    np.testing.assert_allclose(_run(made, x), expected, atol=1.01 * step)


def test_strides_over_memory_that_has_gaps_are_refused() -> None:
    class Gaps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, 1:].as_strided((1, 2, 4), (1, 64, 2)) * 2

    quantized = _quantized(Gaps(), _sample(1, 3, 8, 8))
    with pytest.raises(tosaic.UnsupportedOp, match="'as_strided' reads memory by its strides") as refused:
        cortex_m_program(quantized)
    assert "x.clone()" in str(refused.value)


@pytest.mark.parametrize(
    ("call", "transforms"),
    [
        *((call, ()) for call in ("rotary embedding", "product of matrices", "conjugate", "polar", "cast")),
        ("rfft", ("_fft_r2c",)),
        ("stft", ("_fft_r2c",)),
        ("irfft", ("_fft_c2r", "_fft_r2c")),
    ],
)
def test_complex_values_are_pairs_of_real_ones_except_at_transforms(
    call: str, transforms: tuple[str, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module, x = Complex(call).eval(), _sample(1, 4, 8)
    module(x)
    state = {name: (each, each.clone()) for name, each in module.state_dict(keep_vars=True).items()}
    result = tosaic.export_model(
        module, (x,), recipe="cortex-m", samples=[(x,)], folder=tmp_path / "out", verbose=0
    )
    assert result.ok
    assert not any("no program of Cortex-M kernels" in note for note in result.notes)
    operators = tosaic.load_pte(tmp_path / "out" / "model.cortex_m.pte").method().operators
    assert "cortex_m::quantized_linear.out" in operators
    absent = ("aten::complex.out", "aten::polar.out", "aten::view_as_complex_copy.out", "aten::imag.out")
    assert not set(absent) & set(operators)
    assert sorted(name for name in operators if "fft" in name) == [f"aten::{name}.out" for name in transforms]
    after = module.state_dict(keep_vars=True)
    assert all(after[name] is each and torch.equal(each, before) for name, (each, before) in state.items())
    made = cortex_m_program(result.quantized)
    expected = np.asarray(result.quantized.run(x))
    assert len(np.unique(expected)) > 8
    step = result.quantized.outputs[0].quantized[0].scale
    np.testing.assert_allclose(_run(made, x), expected, atol=1.01 * step)


def test_a_call_that_stays_complex_and_reads_pairs_is_noted() -> None:
    x = _sample(1, 4, 8)
    module = Complex("filter").eval()
    module(x)
    result = tosaic.export_model(module, (x,), recipe="cortex-m", samples=[(x,)], verbose=0)
    (note,) = (each for each in result.notes if "aten::complex" in each)
    assert "Register a kernel of your own" in note
    expected = np.asarray(result.quantized.run(x))
    step = result.quantized.outputs[0].quantized[0].scale
    np.testing.assert_allclose(_run(cortex_m_program(result.quantized), x), expected, atol=1.01 * step)


def test_the_program_of_the_caller_is_not_changed() -> None:
    torch.manual_seed(0)
    program = _quantized(Twice(), _sample(1, 3, 8, 8)).to_exported()
    before = str(program.graph), [dict(node.meta.get("custom", {})) for node in program.graph.nodes]
    cortex_m_program(program)
    after = str(program.graph), [dict(node.meta.get("custom", {})) for node in program.graph.nodes]
    assert after == before


@pytest.mark.parametrize(
    ("module", "shapes", "kernel"),
    [
        (Attention(), ((1, 2, 4, 8), (1, 2, 8, 4)), "cortex_m::quantized_batch_matmul"),
        (Pooled(), ((1, 4, 8, 8),), "cortex_m::quantized_max_pool2d"),
    ],
    ids=["decomposed", "without a quantization behind it"],
)
def test_calls_without_conversions_of_their_own_become_kernels(
    module: nn.Module, shapes: tuple[tuple[int, ...], ...], kernel: str
) -> None:
    args = tuple(_sample(*shape) for shape in shapes)
    quantized = _quantized(module, *args)
    made = cortex_m_program(quantized)
    assert not made.refused
    assert not made.left
    assert kernel in {name for each in made.nodes for name in each.kernels}
    result = _run(made, *args)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, _split(quantized, [CORTEX], *args))


def test_the_core_of_the_claimant_decides_the_kernels() -> None:
    """Fully connected kernels read sums of weights on cores with vectors, and a bias on other cores."""
    network = _network("cifar_cnn")
    program = converted(network.module, [network.sample(0)], "cortex-m")
    for core, has_bias in (("cortex-m55", False), ("cortex-m4", True)):
        made = cortex_m_program(program, claimants=core)
        nodes = made.edge.exported_program().graph.nodes
        (linear,) = (node for node in nodes if "quantized_linear" in str(node.target))
        assert (linear.args[2] is not None) == has_bias


def test_a_program_whose_inputs_and_outputs_are_integers_has_kernels_alone() -> None:
    torch.manual_seed(0)
    x = _sample(1, 3, 8, 8)
    quantized = _quantized(Twice(), x)
    integers, io = tosaic.extract_io_quant(quantized.to_exported())
    made = cortex_m_program(integers)
    assert not made.refused
    assert _kernels(made.edge.exported_program()) == {"cortex_m.quantized_conv2d": 2}
    result = _run(made, torch.from_numpy(io.input(0).quantize(x.numpy())))
    assert result.dtype == np.int8
    np.testing.assert_array_equal(io.output(0).dequantize(result), _split(quantized, [CORTEX], x))


# ---- what is left ----


def test_a_denied_node_stays_between_dequantize_and_quantize_calls() -> None:
    torch.manual_seed(0)
    x = _sample(1, 3, 8, 8)
    quantized = _quantized(Twice(), x)
    claimant = tosaic.Claimant.named(CORTEX).deny(name="conv2d_1", why="the host is more exact")
    made = cortex_m_program(quantized, claimants=claimant)
    left = made.why("conv2d_1")
    assert (left.status, left.claimant, left.kernels) == ("left", "host", ())
    assert "the host is more exact" in left.reason
    calls = Counter(called(made.edge.exported_program()))
    assert calls["cortex_m.quantized_conv2d"] == calls["aten.convolution"] == 1
    (convolution,) = (
        node for node in made.edge.exported_program().graph.nodes if "aten.convolution" in str(node.target)
    )
    assert all("quantized_decomposed" in str(each.target) for each in convolution.args[:3])
    assert made.why("conv2d").kernels == ("cortex_m::quantized_conv2d",)
    np.testing.assert_array_equal(_run(made, x), _split(quantized, [claimant], x))


def test_groups_of_another_claimant_are_left_as_calls_of_torch() -> None:
    network = _network("cifar_cnn")
    program = converted(network.module, [network.sample(i) for i in range(4)], "cortex-m")
    sample = laid_out_as_converted(network.sample(100), "cortex-m")
    made = cortex_m_program(program, claimants=["neutron", CORTEX])
    assert _kernels(made.edge.exported_program()) == {
        "cortex_m.quantize_per_tensor": 1,
        "cortex_m.quantized_activation": 1,
        "cortex_m.dequantize_per_tensor": 1,
    }
    assert {each.op for each in made.nodes if each.status == "kernel"} == {"dequantize", "gelu", "quantize"}
    assert sorted(made.left) == ["neutron"]
    assert {each.claimant for each in made.left["neutron"]} == {"neutron"}
    assert all(each.reason == "it is for neutron" for each in made.left["neutron"])
    calls = Counter(called(made.edge.exported_program()))
    assert (calls["aten.convolution"], calls["aten.linear"]) == (3, 1)
    with torch.no_grad():
        expected = np.asarray(program.module(check_guards=False)(*sample))
    step = made.plan.graph.outputs[0].value.producer.operands[0].qparams.scales[0]
    assert abs(_run(made, *sample) - expected).max() <= step * 1.001


# ---- what ExecuTorch refuses ----


def test_a_call_that_a_pass_raises_for_is_refused_by_name_and_computed_as_before() -> None:
    torch.manual_seed(0)
    x = _sample(4, 8)
    quantized = _quantized(Linear(), x)
    made = cortex_m_program(quantized)
    (refused,) = made.refused
    assert (refused.node, refused.op, refused.calls) == ("linear", "linear", ("linear",))
    assert refused.reason.startswith("AtenToCortexMPass: cortex_m::quantized_linear assumes symmetric weight")
    calls = Counter(called(made.edge.exported_program()))
    assert (calls["aten.linear"], calls["cortex_m.quantized_activation"]) == (1, 2)
    with torch.no_grad():
        expected = quantized.to_exported().module(check_guards=False)(x)
    np.testing.assert_allclose(_run(made, x), expected, atol=1.001 / 128)


def _sum(scale: float) -> Any:
    """Returns a program of one sum whose result has a scale that is much less than the operands' scales."""
    one = (0.1, 0, -128, 127, torch.int8)

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ops = torch.ops.quantized_decomposed
            x, y = (ops.dequantize_per_tensor(ops.quantize_per_tensor(each, *one), *one) for each in (x, y))
            last = (scale, *one[1:])
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(x + y, *last), *last)

    return torch.export.export(Sum(), (_sample(1, 8), _sample(1, 8)))


def test_a_sum_that_would_overflow_is_refused_with_the_reason_of_the_pass() -> None:
    assert [each.status for each in cortex_m_program(_sum(0.1)).nodes] == ["kernel"] * 4
    made = cortex_m_program(_sum(1e-8))
    (refused,) = made.refused
    assert refused.op == "add"
    assert "needs a requantization the int32 kernel cannot hold" in refused.reason
    assert {each.status for each in made.nodes if each.op != "add"} == {"kernel"}
    assert "cortex_m.quantized_add" not in _kernels(made.edge.exported_program())


def test_a_call_in_the_loop_of_a_pass_that_fails_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = _sample(1, 3, 8, 8)
    quantized = _quantized(Twice(), x)
    whole, program = cortex_m_program(quantized), quantized.to_exported()

    def call(self: Any, graph_module: Any) -> Any:
        for node in graph_module.graph.nodes:
            is_first = "convolution" in str(node.target) and node.args[4] == [1, 1]
            if is_first and is_claimed(node.meta):
                raise KeyError("no such form")
        return inner(self, graph_module)

    inner = FoldAndAnnotateQParamsPass.call
    monkeypatch.setattr(FoldAndAnnotateQParamsPass, "call", call)
    made = cortex_m_program(program)
    reasons = {each.node: each.reason for each in made.refused}
    assert reasons["conv2d"] == "FoldAndAnnotateQParamsPass: 'no such form'", reasons
    assert "conv2d_1" not in reasons
    assert _kernels(whole.edge.exported_program())["cortex_m.quantized_conv2d"] == 2
    assert _kernels(made.edge.exported_program())["cortex_m.quantized_conv2d"] == 1
    step = quantized.outputs[0].quantized[0].scale
    np.testing.assert_allclose(_run(made, x), np.asarray(quantized.run(x)), atol=1.01 * step)


def test_a_pass_that_fails_on_a_call_of_others_names_it_and_its_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(self: Any, graph_module: Any) -> Any:
        for node in graph_module.graph.nodes:
            if "convolution" in str(node.target) and not is_claimed(node.meta):
                raise KeyError("no such form")
        return inner(self, graph_module)

    inner = FoldAndAnnotateQParamsPass.call
    monkeypatch.setattr(FoldAndAnnotateQParamsPass, "call", call)
    claimant = tosaic.Claimant.named(CORTEX).deny(name="conv2d")
    with pytest.raises(tosaic.UnsupportedOp, match="FoldAndAnnotateQParamsPass fails on") as refused:
        cortex_m_program(_quantized(Twice(), _sample(1, 3, 8, 8)), claimants=[claimant])
    assert "It fails on 'conv2d'. Deny what reads it" in str(refused.value)
    assert "deny(name=['relu'" in str(refused.value)


def test_a_join_of_integers_and_a_constant_of_floats_is_computed_with_floats() -> None:
    torch.manual_seed(0)
    x = _sample(1, 3, 16, 16)
    quantized = _quantized(Table("coordinates"), x)
    made = cortex_m_program(quantized)
    (refused,) = made.refused
    assert (refused.node, refused.reason) == ("cat", "its operand 'expand' stays floats")
    np.testing.assert_array_equal(_run(made, x), _split(quantized, [CORTEX], x))


# ---- constants that the graph computes ----


@pytest.mark.parametrize(
    "how", ["quotient", "products", "writes", "buffer", "list", "integers", "unit matrix"]
)
def test_a_weight_that_the_graph_computes_is_a_weight_of_integers(how: str) -> None:
    torch.manual_seed(0)
    x = _sample(1, 3, 12, 12)
    module = Blur(how)
    kernel, quantized = module.kernel.clone(), _quantized(module, x)
    made = cortex_m_program(quantized)
    kernels = _kernels(made.edge.exported_program())
    assert kernels["cortex_m.quantized_depthwise_conv2d"] == kernels["cortex_m.quantized_conv2d"] == 1
    assert not [
        name for name in called(made.edge.exported_program()) if name.startswith(("aten", "quantized"))
    ]
    assert torch.equal(module.kernel, kernel)
    np.testing.assert_array_equal(_run(made, x), _split(quantized, [CORTEX], x))


@pytest.mark.parametrize("how", ["grid", "sums", "coordinates", "comparison", "float64", "twice"])
def test_a_table_of_integers_that_become_floats_is_a_constant(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = _sample(1, 3, 16, 16)
    result = tosaic.export_model(
        Table(how), (x,), recipe="cortex-m", samples=[(x,)], folder=tmp_path / "out", verbose=0
    )
    assert result.ok
    assert not any("no program of Cortex-M kernels" in note for note in result.notes)
    operators = set(tosaic.load_pte(tmp_path / "out" / "model.cortex_m.pte").method().operators)
    assert not operators & {
        f"aten::{name}.out" for name in ("full", "cumsum", "stack", "where", "unsqueeze_copy")
    }
    assert not any("arange" in name for name in operators)
    made = cortex_m_program(result.quantized)
    np.testing.assert_array_equal(_run(made, x), _split(result.quantized, [CORTEX], x))


# ---- files, reports, wrong input ----


def test_the_pte_file_calls_the_kernels_that_the_nodes_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = cortex_m_program(_quantized(Twice(), _sample(1, 3, 8, 8)))
    named = {name for each in made.nodes for name in each.kernels}
    assert tosaic.executorch.save_pte(made.edge, tmp_path / "model.pte") > 0
    kernels = tosaic.registration.kernel_list(tmp_path / "model.pte")
    assert {name.removesuffix(".out") for name in kernels.operators} == named
    assert kernels["cortex_m::quantized_conv2d.out"].calls == 2
    (image,) = tosaic.load_pte(tmp_path / "model.pte").method().inputs
    assert (image.dim_order, image.path) == ((0, 2, 3, 1), "x")


def test_the_report_says_what_became_of_each_node() -> None:
    torch.manual_seed(0)
    made = cortex_m_program(_quantized(Linear(), _sample(4, 8)))
    text = made.report().full_text
    for words in ("kernels of cortex-m55", "refused", "linear", "cortex_m::quantized_activation", "merged"):
        assert (words in text) == (words != "merged"), words
    assert [each.node for each in made.report().data["nodes"]] == [each.node for each in made.nodes]
    assert "<table" in made.report().html
    assert '"status": "refused"' in made.report().json


def test_wrong_input_is_refused() -> None:
    exported = torch.export.export(Twice().eval(), (_sample(1, 3, 8, 8),))
    with pytest.raises(tosaic.InvalidGraph, match="the program is not quantized"):
        cortex_m_program(exported)
    quantized = _quantized(Twice(), _sample(1, 3, 8, 8))
    with pytest.raises(tosaic.InvalidGraph, match="a QuantizedProgram or a torch"):
        cortex_m_program(tosaic.from_exported(exported))
    for claimants in ("neutron", ["neutron"], ["cortex-m4", CORTEX]):
        with pytest.raises(tosaic.InvalidGraph, match="one Cortex-M, such as 'cortex-m55'"):
            cortex_m_program(quantized, claimants=claimants)
    with pytest.raises(tosaic.InvalidGraph, match="list of names"):
        cortex_m_program(quantized, claimants=[])
    with pytest.raises(tosaic.InvalidGraph, match=r"the plan has no such node.*Did you mean 'conv2d"):
        cortex_m_program(quantized).why("conv2")
