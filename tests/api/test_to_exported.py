"""`QuantizedProgram.to_exported` of calls that torch's graph has in another form than the plan.

Every test compares torch, a program that is read again, and both lowered programs with the quantized program.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from executorch.exir import to_edge
from function_module import FunctionModule
from torch import Tensor, nn
from torch.export import Dim
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

pytestmark = pytest.mark.filterwarnings("ignore")
QUANTIZE = (
    torch.ops.quantized_decomposed.quantize_per_tensor.default,
    torch.ops.quantized_decomposed.quantize_per_channel.default,
)


def leaves(results: Any) -> list[Any]:
    return [np.asarray(each) for each in torch.utils._pytree.tree_leaves(results)]


def samples_of(*shapes: tuple[int, ...], count: int = 4) -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [tuple(torch.randn(*shape, generator=generator) for shape in shapes) for _ in range(count)]


def copies(sample: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(each.clone() for each in sample)


def require_same(
    quantized: Any, samples: Any, *, bind: Any = None, target: str = "TOSA-1.0+INT", halves: bool = False
) -> Any:
    """Returns the exported program: torch's numbers over calls in a row equal the quantized program's.

    With floats in the target, torch's kernels and lowering may round the other way in the middle between two
    integers. So may floats of 16 bits, which the quantized program computes as f32.
    """
    exported = quantized.to_exported()
    again, module = tosaic.from_exported(exported, bind=bind), exported.module()
    lowered, wanted = (tosaic.lower(each, target=target) for each in (again, quantized))
    units = [1.001 * port.qparams.scales[0] if "FP" in target else 0 for port in quantized.outputs]
    quantized.reset_state()
    for sample in samples[:3]:
        right = leaves(quantized.run(*copies(sample)))
        with torch.no_grad():
            in_torch = leaves(module(*copies(sample)))
        same = leaves(again.run(*copies(sample)))
        integers = [leaves(each.run(*copies(sample))) for each in (lowered, wanted)]
        for unit, found, in_tosaic, one, two, each in zip(
            units, in_torch, same, *integers, right, strict=True
        ):
            np.testing.assert_allclose(in_tosaic, each, rtol=0, atol=unit if halves else 0)
            np.testing.assert_allclose(found, each, rtol=0, atol=unit)
            np.testing.assert_allclose(one, two, rtol=0, atol=unit)
    return exported


def quantized_of(module: nn.Module, samples: Any, **options: Any) -> Any:
    exported = torch.export.export(module.eval(), samples[0])
    return tosaic.quantize(exported, samples, progress=False, **options)


def rounded(exported: Any) -> list[str]:
    """The names of the nodes that quantize nodes read."""
    return [str(node.args[0]) for node in exported.graph.nodes if node.target in QUANTIZE]


# ---- wrappers ----


class Layers(nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        with torch.no_grad():
            self.norm.running_var.uniform_(0.5, 2)
        self.register_buffer("h", torch.zeros(2, 8))
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def several_results(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = torch.relu(m.a(x))
        g = torch.sigmoid(h)
    return m.b(h) * 2, g


def nested(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = torch.relu(m.a(x))
        with torch.enable_grad():
            h = torch.tanh(h * 2)
        h = h + x
    return m.b(h)


def twice(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = torch.relu(m.a(x))
    with torch.no_grad():
        h = torch.relu(m.a(h))
    return m.b(h)


def without_autocast(m: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", enabled=False):
        h = torch.relu(m.a(x))
    return m.b(h)


def folded_norm(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = F.relu(m.norm(m.conv(x.view(1, 2, 2, 4).repeat(1, 1, 2, 1))))
    return h * 2


def state_in_place(m: Any, x: Tensor) -> Any:
    y = m.a(x)
    with torch.no_grad():
        m.h.mul_(0.9).add_(y)
        m.n.add_(1)
    return m.h * 2, m.n.clone()


def state_copied(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        y = torch.tanh(m.a(x) + m.h)
        m.h.copy_(y)
    return y * 2


def state_in_part(m: Any, x: Tensor) -> Any:
    y = m.a(x)
    with torch.no_grad():
        m.h[:, :4] = y[:, :4]
    return m.h + y


def local_in_place(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.a(x)
        h.relu_()
        h[:, :2] = 0.5
    return m.b(h)


def split(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        u, v = m.a(x).chunk(2, 1)
    return u * v, u + v


WRAPPED = [
    several_results,
    nested,
    twice,
    without_autocast,
    folded_norm,
    state_in_place,
    state_copied,
    state_in_part,
    local_in_place,
    split,
]


@pytest.mark.parametrize("forward", WRAPPED, ids=lambda each: each.__name__)
def test_calls_inside_of_wrappers_are_calls_of_the_exported_program(forward: Any) -> None:
    samples = samples_of((2, 8))
    exported = require_same(quantized_of(Layers(forward), samples), samples)
    assert not any("wrap_with" in str(node.target) for node in exported.graph.nodes)
    to_edge(copy.deepcopy(exported))


def test_a_wrapper_that_changes_dtypes_is_quantized_with_its_casts_written_out() -> None:
    class Half(Layers):
        def forward(self, x: Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = torch.relu(self.a(x))
            return self.b(h.float())

    samples = samples_of((2, 8))
    exported = torch.export.export(Half(nested).eval(), samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False)
    require_same(quantized, samples, target="TOSA-1.0+INT+FP+bf16", halves=True)
    assert any("_to_copy" in str(node.target) for node in quantized.to_exported().graph.nodes)
    made = tosaic.export_model(Half(nested).eval(), samples[0], samples=samples, recipe="tosa-int8")
    assert made.ok


def test_a_file_with_an_autocast_names_the_program_to_save(tmp_path: Path) -> None:
    class Half(Layers):
        def forward(self, x: Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = torch.relu(self.a(x))
            return self.b(h.float())

    samples = samples_of((2, 8))
    exported = torch.export.export(Half(nested).eval(), samples[0])
    torch.export.save(exported, tmp_path / "half.pt2")
    with pytest.raises(tosaic.UnsupportedOp, match=r"autocast changes dtypes.*Save ep.run_decompositions"):
        tosaic.open_program(tmp_path / "half.pt2")
    torch.export.save(exported.run_decompositions({}), tmp_path / "explicit.pt2")
    program = tosaic.open_program(tmp_path / "explicit.pt2")
    expected = exported.module()(*samples[0]).detach().numpy()
    assert np.allclose(program.run(*samples[0]), expected, rtol=1e-2, atol=1e-2)


def test_bodies_of_loops_compute_with_floats_also_if_their_calls_have_names_of_the_graph() -> None:
    class Loop(Layers):
        def forward(self, x: Tensor) -> Any:
            weight = self.a.weight

            def body(i: Tensor, x: Tensor, weight: Tensor) -> Any:
                return i + 1, F.linear(x, weight) * 0.5, weight.clone()

            start = torch.tensor(0)
            _, h, _ = torch.while_loop(lambda i, x, w: i < 3, body, (start, x, weight))
            return self.b(torch.relu(self.a(h)))

    samples = samples_of((2, 8))
    quantized = quantized_of(Loop(nested), samples)
    module = quantized.to_exported().module()
    for sample in samples:
        with torch.no_grad():
            found = module(*sample).numpy()
        unit = quantized.outputs[0].qparams.scales[0]
        np.testing.assert_allclose(found, quantized.run(*sample), atol=1.001 * unit)


@pytest.mark.parametrize("name", ["map", "scan"])
def test_control_flow_without_a_counterpart_is_named_with_the_way_out(name: str) -> None:
    from torch._higher_order_ops.map import map as mapped
    from torch._higher_order_ops.scan import scan

    class Rows(Layers):
        def forward(self, x: Tensor) -> Any:
            if name == "map":
                return mapped(lambda row, w: torch.relu(row @ w), x, self.a.weight.clone())
            return scan(lambda total, row: (total + row, total * row), torch.zeros(8), x)[1]

    exported = torch.export.export(Rows(nested).eval(), samples_of((2, 8))[0])
    with pytest.raises(tosaic.UnsupportedOp, match=rf"{name}.* runs a nested graph.*a loop of Python"):
        tosaic.from_exported(exported)


# ---- contractions whose weight is moved ----


class Weighted(nn.Module):
    def __init__(self, function: Any, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self.weights)


MOVED: dict[str, tuple[Any, tuple[int, ...], list[tuple[int, ...]]]] = {
    "tensordot": (lambda x, w: torch.relu(torch.tensordot(x, w, dims=2)), (2, 3, 4), [(3, 4, 5)]),
    "tensordot, axes in another order": (
        lambda x, w: torch.tensordot(torch.tanh(x), w, dims=([1, 2], [2, 1])),
        (2, 3, 4),
        [(5, 4, 3)],
    ),
    "tensordot, columns of two axes": (
        lambda x, w: torch.relu(torch.tensordot(x, w, dims=2)),
        (2, 3, 4),
        [(3, 4, 5, 6)],
    ),
    "tensordot, weight first": (
        lambda x, w: torch.relu(torch.tensordot(w, x, dims=([2, 3], [1, 0]))),
        (3, 4, 2),
        [(5, 6, 4, 3)],
    ),
    "tensordot, one weight twice": (
        lambda x, w: torch.tensordot(torch.relu(torch.tensordot(x, w, dims=2)), w, dims=([1, 2], [2, 3])),
        (2, 3, 4),
        [(3, 4, 5, 6)],
    ),
    "tensordot beside a product": (
        lambda x, w, v: torch.tensordot(torch.relu(x), w, dims=2) + torch.relu(x).flatten(1) @ v,
        (2, 3, 4),
        [(3, 4, 5), (12, 5)],
    ),
    "inner": (lambda x, w, v: torch.inner(v, torch.relu(torch.inner(x, w))), (2, 4), [(5, 4), (3, 5)]),
    "addbmm": (lambda x, b, w: torch.addbmm(b, x, w, beta=0.5, alpha=2), (3, 2, 4), [(2, 5), (3, 4, 5)]),
    "conv_tbc": (lambda x, w, b: torch.conv_tbc(x, w, b, 1), (6, 2, 4), [(3, 4, 5), (5,)]),
    "einsum": (lambda x, w: torch.einsum("bij,iej->be", x, w), (2, 3, 4), [(3, 5, 4)]),
    "multi_dot": (
        lambda x, c, a, b: torch.linalg.multi_dot([c, x, a, b]),
        (2, 4),
        [(7, 2), (4, 5), (5, 3)],
    ),
    "bilinear": (lambda x, y, w: F.bilinear(x, y, w), (2, 4), [(2, 3), (5, 4, 3)]),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_weight_that_a_call_moves_has_its_integers_in_torch(name: str) -> None:
    function, shape, weights = MOVED[name]
    samples = samples_of(shape)
    require_same(quantized_of(Weighted(function, *weights), samples), samples)


@pytest.mark.parametrize("options", [{"tools": ["gptq"]}, {"config": "groups"}], ids=["tool", "groups"])
def test_a_weight_that_a_call_moves_has_changed_elements_and_groups_in_torch(options: Any) -> None:
    if "config" in options:
        options = {"config": tosaic.QConfig.int8(weight_bits=4, group_size=4)}
    samples = samples_of((8, 4, 8), count=6)
    module = Weighted(lambda x, w: torch.relu(torch.tensordot(x, w, dims=2)), (4, 8, 5, 6))
    quantized = quantized_of(module, samples, **options)
    exported = require_same(quantized, samples)
    integers = [each for each in exported.state_dict.values() if each.dtype == torch.int8]
    assert any(each.numel() == 4 * 8 * 5 * 6 for each in integers)


# ---- complex values ----


class Complexes(nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(9, 8), nn.Linear(16, 8)
        angles = torch.outer(torch.arange(2.0), torch.tensor([1, 0.5, 0.1, 0.05, 0.01, 0.2, 0.3, 0.4]))
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles))
        self.filter = nn.Parameter(torch.randn(9, 2))
        self.register_buffer("window", torch.hann_window(16))
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def filtered(m: Any, x: Tensor) -> Any:
    spectrum = torch.fft.rfft(x) * torch.view_as_complex(m.filter)
    return torch.relu(m.c(torch.fft.irfft(spectrum, n=16)))


def turned(m: Any, x: Tensor) -> Any:
    pairs = torch.view_as_complex(m.a(x).reshape(2, 8, 2))
    return m.c(torch.view_as_real(pairs * m.turn).flatten(1))


def taken_apart_and_whole(m: Any, x: Tensor) -> Any:
    z = torch.fft.rfft(torch.relu(m.a(x)))
    return m.b(z.real * z.real + z.real * z.imag), torch.relu(m.b(z.abs()))


def conjugated(m: Any, x: Tensor) -> Any:
    z = torch.fft.rfft(x)
    return m.b((z * z.conj()).real.sqrt())


def joined(m: Any, x: Tensor) -> Any:
    z = torch.fft.rfft(torch.relu(x))
    return m.b(torch.cat([z, z * 2], 0).unsqueeze(0)[0].abs())


def spectrogram(m: Any, x: Tensor) -> Any:
    z = torch.stft(x.flatten()[None], 16, 8, window=m.window, center=False, return_complex=True)
    return torch.relu(m.b(z.abs().square().transpose(1, 2)))


COMPLEX = [
    (filtered, ["real", "imag", "real_1", "imag_1", "fft_irfft", "relu"]),
    (turned, ["x", "linear", "real", "imag", "view_as_real", "linear_1"]),
    (taken_apart_and_whole, None),
    (conjugated, None),
    (joined, None),
    (spectrogram, None),
]


@pytest.mark.parametrize(("forward", "names"), COMPLEX, ids=lambda each: getattr(each, "__name__", ""))
def test_the_parts_of_complex_values_are_rounded_in_torch(forward: Any, names: Any) -> None:
    samples = samples_of((2, 16))
    quantized = quantized_of(Complexes(forward), samples)
    exported = require_same(quantized, samples, target="TOSA-1.0+INT+FP+fft")
    if names is not None:
        assert rounded(exported) == names


def test_a_rotation_by_complex_numbers_is_lowered_to_integers() -> None:
    samples = samples_of((2, 16))
    require_same(quantized_of(Complexes(turned), samples), samples)


# ---- states ----


class Stateful(nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.e = nn.Linear(8, 8), nn.Embedding(4, 8)
        self.register_buffer("h", torch.ones(2, 8))
        self.register_buffer("k", torch.rand(2, 8))
        self.register_buffer("i", torch.zeros(2, dtype=torch.int64))
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def stored_with_another_scale(m: Any, x: Tensor) -> Any:
    m.h.copy_(torch.tanh(m.a(m.h)))
    return x * m.h


def chosen_by_a_counter(m: Any, x: Tensor) -> Any:
    m.i.copy_((m.i + 1) % 4)
    m.h.copy_(m.e(m.i))
    return m.a(x) * m.h


def of_constants(m: Any, x: Tensor) -> Any:
    m.h.copy_(m.h * 0.5 + m.k)
    return m.a(x) + m.h


@pytest.mark.parametrize(
    "forward",
    [stored_with_another_scale, chosen_by_a_counter, of_constants],
    ids=lambda each: each.__name__,
)
def test_states_that_meet_constants_only_equal_the_programs_states(forward: Any) -> None:
    samples = samples_of((2, 8))
    require_same(quantized_of(Stateful(forward), samples), samples)


class Caches(nn.Module):
    """Buffers that calls write: `h` and `n`, what layers hold of them, and buffers over the same memory."""

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("h", torch.zeros(4, 8))
        self.register_buffer("n", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("fine", torch.zeros(4, 8, dtype=torch.float16))
        self.register_buffer("twin", self.h)
        self.register_buffer("part", self.h[:2])
        self.held = [self.h, self.n]
        self.function = forward
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def cache_of_a_layer(m: Any, x: Tensor) -> Any:
    keys = m.held[0].index_copy_(0, m.held[1] % 4, m.a(x[:1]))
    m.held[1].add_(1)
    return m.b(keys.mean(0, keepdim=True))


def cache_of_a_layer_and_of_the_model(m: Any, x: Tensor) -> Any:
    m.held[0].index_copy_(0, m.n % 4, m.a(x[:1]))
    m.n.add_(1)
    return m.b(m.h.mean(0, keepdim=True))


def written_by_another_name(m: Any, x: Tensor) -> Any:
    y = m.b(m.h)
    m.twin.mul_(0.9).add_(m.a(x[:1]))
    return y


def seen_by_its_part(m: Any, x: Tensor) -> Any:
    m.h.mul_(0.9).add_(m.a(x[:1]))
    return m.b(m.part)


def read_then_written_in_part(m: Any, x: Tensor) -> Any:
    y = m.b(m.h * 0.5)
    m.h[1:3].add_(m.a(x))
    return y


def read_then_written_transposed(m: Any, x: Tensor) -> Any:
    y = m.b(m.h)
    m.h.t().copy_(m.a(x[:1]).expand(4, 8).t())
    return y


def written_as_out(m: Any, x: Tensor) -> Any:
    y = m.b(m.h)
    torch.add(m.h * 0.5, m.a(x[:1]), out=m.h)
    return y


def written_twice(m: Any, x: Tensor) -> Any:
    y = m.b(m.h)
    m.h.copy_(m.a(x[:1]))
    m.h.clamp_(-0.5, 0.5)
    return y


@pytest.mark.parametrize(
    "forward",
    [
        cache_of_a_layer,
        cache_of_a_layer_and_of_the_model,
        written_by_another_name,
        seen_by_its_part,
        read_then_written_in_part,
        read_then_written_transposed,
        written_as_out,
        written_twice,
    ],
    ids=lambda each: each.__name__,
)
def test_every_call_sees_what_the_calls_before_have_written(forward: Any) -> None:
    """Before, a write through a quantize node was lost, or not rounded as in the quantized program."""
    samples = samples_of((2, 8), count=6)
    require_same(quantized_of(Caches(forward), samples), samples[:1] + samples[3:])


def test_a_cache_that_is_listed_twice_is_one_buffer() -> None:
    samples = samples_of((2, 8), count=6)
    module = quantized_of(Caches(cache_of_a_layer), samples).to_exported().module()
    before = module.get_buffer("h").clone()
    module(*samples[0])
    assert not torch.equal(module.get_buffer("h"), before)
    assert [name for name, _ in module.named_buffers() if "lifted" in name] == []


def test_a_state_of_halves_keeps_its_dtype_when_floats_are_added() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        m.fine.mul_(0.9).add_(m.a(x[:1]))
        return m.b(m.fine.float())

    samples = samples_of((2, 8), count=6)
    quantized = quantized_of(Caches(forward), samples)
    exported = require_same(quantized, samples, target="TOSA-1.0+INT+FP", halves=True)
    assert exported.module().get_buffer("fine").dtype == torch.float16


def test_a_write_that_cannot_be_functional_is_refused(monkeypatch: Any) -> None:
    samples = samples_of((2, 8), count=6)
    quantized = quantized_of(Caches(written_as_out), samples)
    monkeypatch.setattr("tosaic.fx.quantizer.functional_parts.functional_overload", lambda node: None)
    with pytest.raises(tosaic.UnsupportedOp, match=r"\[to_exported\] .* writes 'h'.* out of place"):
        quantized.to_exported()


# ---- results of a call that has several ----


def top_scores_normalized(m: Any, x: Tensor) -> Any:
    v, i = torch.topk(m.a(x).softmax(-1), 2)
    v /= v.sum(-1, keepdim=True)
    return v.reshape(-1)[:, None] * m.b(x)[:1], i


def greatest_in_place(m: Any, x: Tensor) -> Any:
    v, i = m.a(x).max(-1, keepdim=True)
    v.mul_(0.5)
    return v.view(-1) + 1, i


def sorted_in_part(m: Any, x: Tensor) -> Any:
    v, i = torch.sort(m.a(x), -1)
    v[:, :2] = 0
    i[:, 1:].add_(1)
    return v * 0.5, i


def one_chunk(m: Any, x: Tensor) -> Any:
    a, b = m.a(x).chunk(2, -1)
    a.mul_(0.5)
    return a.reshape(-1) + b.reshape(-1)


def chunks_and_whole(m: Any, x: Tensor) -> Any:
    y = m.a(x)
    a, b = y.split([3, 5], -1)
    b.div_(2)
    flat = b.reshape(-1)
    a.add_(1)
    return flat * 2, y.reshape(-1) + 1


def one_row(m: Any, x: Tensor) -> Any:
    rows = m.a(x).unbind(0)
    rows[1].relu_()
    return torch.stack(rows) * 0.5


RESULTS = [
    top_scores_normalized,
    greatest_in_place,
    sorted_in_part,
    one_chunk,
    chunks_and_whole,
    one_row,
]


@pytest.mark.parametrize("forward", RESULTS, ids=lambda each: each.__name__)
def test_one_of_several_results_is_written_in_place(forward: Any) -> None:
    samples = samples_of((2, 8))
    require_same(quantized_of(Caches(forward), samples), samples)


@pytest.mark.parametrize("forward", RESULTS, ids=lambda each: each.__name__)
def test_torchaos_flow_computes_a_write_to_one_of_several_results(forward: Any) -> None:
    samples = samples_of((2, 8), count=6)
    model = Caches(forward).eval()
    prepared = prepare_pt2e(torch.export.export(model, samples[0]).module(), tosaic.Quantizer())
    for sample in samples:
        prepared(*sample)
    converted = convert_pt2e(prepared)
    for sample in samples:
        found, wanted = converted(*sample), model(*sample)
        for one, two in zip(leaves(found), leaves(wanted), strict=True):
            if one.dtype.kind == "f":  # numbers that are nearly equal may change places
                assert np.square(one - two).sum() < 1e-2 * np.square(two).sum()


# ---- symbolic sizes ----


class Sized(nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)
        self.table = nn.Parameter(torch.randn(32, 8))
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def by_row(m: Any, x: Tensor) -> Any:
    return m.b(torch.relu(m.a(x)))


def scaled_by_size(m: Any, x: Tensor) -> Any:
    return m.b(torch.relu(m.a(x)) * x.shape[0])


def part_of_a_table(m: Any, x: Tensor) -> Any:
    return m.a(x + m.table[: x.shape[0]])


def columns_written(m: Any, x: Tensor) -> Any:
    h = torch.relu(m.a(x))
    h[:, 2:6] = m.b.bias * 2
    return m.b(h)


def in_a_wrapper(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = torch.relu(m.a(x))
    return m.b(h)


def rows_written(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    h[1:].mul_(2)
    return m.b(h)


def symbolic(forward: Any, size: int) -> tuple[Any, Any, Any]:
    """A program with a batch of any size, its quantized form for one size, and samples of that size."""
    dimension = Dim("rows", min=3 if forward is rows_written else 1, max=32)
    exported = torch.export.export(
        Sized(forward).eval(), samples_of((3, 8))[0], dynamic_shapes=({0: dimension},)
    )
    samples = samples_of((size, 8), count=16)
    bind = {"x": {0: size}}
    return exported, tosaic.quantize(exported, samples, progress=False, bind=bind), samples


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize(
    "forward",
    [by_row, scaled_by_size, part_of_a_table, columns_written, in_a_wrapper],
    ids=lambda each: each.__name__,
)
def test_symbolic_sizes_stay_symbolic_with_their_range(forward: Any, size: int, caplog: Any) -> None:
    exported, quantized, samples = symbolic(forward, size)
    found = require_same(quantized, samples, bind={"x": {0: size}})
    assert "to_exported" not in caplog.text
    (bounds,) = found.range_constraints.values()
    assert (int(bounds.lower), int(bounds.upper)) == (1, 32)
    for rows in (size + 1, 11):
        x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows)) * 0.5
        with torch.no_grad():
            wanted, computed = exported.module()(x), found.module()(x)
        assert computed.shape == wanted.shape
        if forward is not scaled_by_size:  # its range grows with the size
            noise = float(((computed - wanted) ** 2).sum() / (wanted**2).sum())
            assert noise < 0.01


def test_two_inputs_keep_the_relation_of_their_sizes() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.a(x) + y[::2]

    rows, samples = Dim("rows", min=2, max=16), samples_of((3, 8), (6, 8))
    exported = torch.export.export(Two().eval(), samples[0], dynamic_shapes=({0: rows}, {0: 2 * rows}))
    quantized = tosaic.quantize(exported, samples, progress=False, bind=samples[0])
    module = require_same(quantized, samples, bind=samples[0]).module()
    assert module(torch.zeros(5, 8), torch.zeros(10, 8)).shape == (5, 8)
    with pytest.raises(AssertionError, match=r"Guard failed"):
        module(torch.zeros(5, 8), torch.zeros(9, 8))


def test_a_place_that_depends_on_a_symbolic_size_makes_a_program_of_one_size(caplog: Any) -> None:
    _, quantized, samples = symbolic(rows_written, 5)
    with caplog.at_level(logging.WARNING):
        module = require_same(quantized, samples).module()
    assert "sizes of 'bind'" in caplog.text
    with pytest.raises(AssertionError, match=r"x.size\(\)\[0\] == 5"):
        module(torch.zeros(3, 8))


def test_the_program_of_cortex_m_has_the_sizes_of_the_quantized_program() -> None:
    _, quantized, _ = symbolic(by_row, 1)
    made = tosaic.executorch.cortex_m_program(quantized)
    assert made.edge.exported_program().range_constraints == {}


# ---- one tensor with two scales ----


def test_a_reader_with_a_scale_of_its_own_does_not_get_the_scale_of_the_tensor() -> None:
    samples = samples_of((2, 8))
    exported = require_same(quantized_of(Stateful(stored_with_another_scale), samples), samples)
    (store,) = [n for n in exported.graph.nodes if n.target == torch.ops.aten.copy_.default]
    (product,) = [n for n in exported.graph.nodes if n.target == torch.ops.aten.mul.Tensor]
    assert store.args[1].args[1] != product.args[1].args[1]


def test_a_tensor_that_a_call_reads_in_two_ways_is_rounded_in_both() -> None:
    """Before, the second operand was not rounded: a call that does nothing returns the same tensor."""

    def product(x: Tensor) -> Tensor:
        return x * x.detach() + x.contiguous()

    samples = samples_of((2, 40))
    require_same(quantized_of(FunctionModule(product), samples), samples)


def test_functions_without_parameters_are_exported_as_well() -> None:
    samples = samples_of((2, 3, 4), (5, 4, 3))
    module = FunctionModule(lambda x, y: torch.tensordot(x, y, dims=([1, 2], [2, 1])))
    require_same(quantized_of(module, samples), samples)


def test_a_constant_that_the_import_makes_has_no_place_in_torchs_graph() -> None:
    """Sums at positions begin with zeros that torch's graph does not have as a tensor."""

    class Segments(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            place = torch.tensor([0, 1, 0, 2])[None, :, None].expand(x.shape)
            return self.last(x.new_zeros(1, 3, 8).scatter_reduce(1, place, x, "sum", include_self=False))

    torch.manual_seed(0)
    samples = [(torch.randn(1, 4, 8),) for _ in range(4)]
    exported = torch.export.export(Segments().eval(), samples[0])
    quantized = tosaic.quantize(
        exported, samples, config=tosaic.QConfig.int8(every_operator=True), progress=False
    )
    written = quantized.to_exported()
    found = written.module()(*samples[0])
    np.testing.assert_allclose(np.asarray(found), np.asarray(quantized.run(*samples[0])), atol=0.02)
