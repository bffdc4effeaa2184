"""Norms, softmaxes and activations that a module spells out, quantized only at the boundary of the module,
lower to integers that are within one unit of what torch's q/dq graph computes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from function_module import FunctionModule
from torch import Tensor
from torchao.quantization.pt2e.observer import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer

pytestmark = pytest.mark.filterwarnings("ignore")

TARGETS = {torch.int8: "TOSA-1.0+INT", torch.int16: "TOSA-1.0+INT+int16"}
generator = torch.Generator().manual_seed(53)
W = torch.rand(64, generator=generator) + 0.5
B = torch.randn(64, generator=generator) * 0.3


class BoundaryQuantizer(Quantizer):
    """Observes the inputs and outputs of the program, and nothing between them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        symmetric = dtype == torch.int16
        self.spec = QuantizationSpec(
            dtype,
            MinMaxObserver.with_args(eps=2**-24),
            -32767 if symmetric else -128,
            32767 if symmetric else 127,
            qscheme=torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine,
        )

    def annotate(self, model: Any) -> Any:
        (output,) = [node for node in model.graph.nodes if node.op == "output"]
        inputs = [node for node in model.graph.nodes if node.op == "placeholder"]
        for node in (*inputs, *output.all_input_nodes):
            annotation = QuantizationAnnotation(output_qspec=self.spec, _annotated=True)
            node.meta["quantization_annotation"] = annotation
        return model

    def validate(self, model: Any) -> None:
        pass


def quantized(call: Callable[..., Any], samples: list[tuple[Tensor, ...]], dtype: torch.dtype) -> Any:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.export.export(FunctionModule(call).eval(), samples[0]).module()
        prepared = prepare_pt2e(traced, BoundaryQuantizer(dtype))
        for sample in samples:
            prepared(*sample)
        return torch.export.export(convert_pt2e(prepared), samples[0])


def rows(count: int = 1, scale: float = 1.0, shape: tuple[int, ...] = (2, 16, 64)) -> list[Any]:
    """Returns samples of `count` inputs, whose rows have different magnitudes."""

    def draw() -> Tensor:
        magnitudes = 10 ** (0.3 * torch.randn(*shape[:-1], 1, generator=generator))
        return torch.randn(*shape, generator=generator) * magnitudes * scale

    return [tuple(draw() for _ in range(count)) for _ in range(3)]


def root_mean_square(x: Tensor) -> Tensor:
    return x.pow(2).mean(-1, keepdim=True)


def llama_norm(x: Tensor) -> Tensor:
    dtype = x.dtype
    x = x.to(torch.float32)
    x = x * torch.rsqrt(root_mean_square(x) + 1e-6)
    return W * x.to(dtype)


def layer_norm(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    var = (x - mean).pow(2).mean(-1, keepdim=True)
    return W * (x - mean) / torch.sqrt(var + 1e-5) + B


def layer_norm_of_var(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * W + B


def channel_norm(x: Tensor) -> Tensor:
    mean = x.mean(1, keepdim=True)
    x = (x - mean) / torch.sqrt((x - mean).pow(2).mean(1, keepdim=True) + 1e-6)
    return W[:, None, None] * x + B[:, None, None]


def softmax(x: Tensor) -> Tensor:
    exps = torch.exp(x - x.max(-1, keepdim=True).values)
    return exps / exps.sum(-1, keepdim=True)


def log_softmax(x: Tensor) -> Tensor:
    below = x - x.amax(-1, keepdim=True)
    return below - below.exp().sum(-1, keepdim=True).log()


def bare_softmax(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def gelu_tanh_of_products(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


SPELLED: dict[str, tuple[Callable[..., Tensor], str, list[Any]]] = {
    "llama's norm": (llama_norm, "rms_norm", rows()),
    "gemma's norm": (
        lambda x: x * torch.pow(root_mean_square(x) + 1e-6, -0.5) * (1 + W),
        "rms_norm",
        rows(),
    ),
    "a quotient by the root": (
        lambda x: x / torch.sqrt((x * x).mean(-1, True) + 1e-6),
        "rms_norm",
        rows(),
    ),
    "a product with one over the root": (
        lambda x: x * (1 / torch.sqrt(root_mean_square(x) + 1e-6)),
        "rms_norm",
        rows(),
    ),
    "a sum of squares over its count": (
        lambda x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / 64 + 1e-6),
        "rms_norm",
        rows(),
    ),
    "a norm without an epsilon": (lambda x: x * torch.rsqrt(root_mean_square(x)), "rms_norm", rows()),
    "a norm with an epsilon beside the root": (
        lambda x: W * x / (torch.sqrt(root_mean_square(x)) + 1e-6),
        "rms_norm",
        rows(),
    ),
    "a sum of squares": (lambda x: x * torch.rsqrt(x.square().sum(-1, True) + 1e-6), "rms_norm", rows()),
    "a quotient by a length": (lambda x: x / x.norm(dim=-1, keepdim=True), "rms_norm", rows()),
    "a quotient by a length over channels": (F.normalize, "rms_norm", rows(shape=(2, 8, 4, 4))),
    "a norm over two axes": (
        lambda x: x * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + 1e-6),
        "rms_norm",
        rows(),
    ),
    "a norm of small rows": (llama_norm, "rms_norm", rows(scale=1e-3)),
    "a layer norm": (layer_norm, "layer_norm", rows()),
    "a layer norm of small rows": (layer_norm, "layer_norm", rows(scale=1e-3)),
    "a layer norm with var": (layer_norm_of_var, "layer_norm", rows()),
    "a layer norm with an unbiased var": (
        lambda x: (x - x.mean(-1, True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) + B,
        "layer_norm",
        rows(),
    ),
    "a layer norm with std": (
        lambda x: W * (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-6) + B,
        "layer_norm",
        rows(),
    ),
    "a layer norm with a biased std": (
        lambda x: (x - x.mean(-1, True)) / x.std(-1, keepdim=True, unbiased=False),
        "layer_norm",
        rows(),
    ),
    "a layer norm over channels": (channel_norm, "layer_norm", rows(shape=(2, 64, 4, 4))),
    "a softmax": (softmax, "softmax", rows()),
    "a softmax without a maximum": (bare_softmax, "softmax", rows()),
    "a logarithm of a softmax": (log_softmax, "log_softmax", rows()),
    "gelu": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2))), "gelu", rows()),
    "gelu with tanh": (gelu_tanh, "gelu", rows()),
    "gelu with tanh and products": (gelu_tanh_of_products, "gelu", rows()),
    "silu": (lambda x: x * torch.sigmoid(x), "silu", rows()),
    "silu with exp": (lambda x: x / (1 + torch.exp(-x)), "silu", rows()),
    "similarities of two rows": (lambda x, y: F.cosine_similarity(x, y, -1), "rms_norm", rows(2)),
    "similarities of all rows": (
        lambda x, y: F.cosine_similarity(x[:, :, None], y[:, None], -1),
        "rms_norm",
        rows(2),
    ),
    "similarities to one row": (
        lambda x: F.cosine_similarity(x, x[:, :1], 2),
        "rms_norm",
        rows(),
    ),
    "similarities to constants over channels": (
        lambda x: F.cosine_similarity(x[:, None], W[:8].view(1, 8, 1, 1) * B[:3].view(3, 1, 1, 1), 2),
        "rms_norm",
        rows(shape=(2, 8, 4, 4)),
    ),
    "a gated norm": (lambda x, g: llama_norm(x) * (g * torch.sigmoid(g)), "rms_norm", rows(2)),
}


@pytest.mark.parametrize("dtype", TARGETS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("name", SPELLED)
def test_what_is_spelled_out_is_exact_within_one_unit_if_only_its_boundary_is_quantized(
    name: str, dtype: torch.dtype
) -> None:
    call, op, samples = SPELLED[name]
    exported = quantized(call, samples, dtype)
    fused = tosaic.Pipeline.default(TARGETS[dtype])["fuse-composites"].run(
        tosaic.lower(exported, target="TOSA-1.0+FP").stages["exported"]
    )
    assert op in [node.op for node in fused.nodes]
    lowered = tosaic.lower(exported, target=TARGETS[dtype])
    assert not any(value.dtype == "f32" for value in lowered.graph.values)
    unit = lowered.outputs[0].qparams.scale
    for sample in samples:
        expected = exported.module()(*sample).detach().double().numpy()
        apart = np.rint((lowered.run(*sample) - expected) / unit)  # both are whole numbers of units
        assert np.abs(apart).max() <= 1


def test_a_gelu_of_8_bits_is_one_table() -> None:
    lowered = tosaic.lower(quantized(gelu_tanh, rows(), torch.int8), target="TOSA-1.0+INT")
    assert [node.op for node in lowered.graph.nodes] == ["tosa.table"]


def test_the_fused_operator_has_the_origins_of_all_nodes_of_the_norm() -> None:
    exported = quantized(llama_norm, rows(), torch.int8)
    program = tosaic.lower(exported, target="TOSA-1.0+FP").stages["exported"]
    fused = tosaic.Pipeline.default("TOSA-1.0+INT")["fuse-composites"].run(program)
    (norm,) = [node for node in fused.nodes if node.op == "rms_norm"]
    names = {origin.fx_name for origin in norm.origins}
    assert {"pow_1", "mean", "add", "rsqrt", "mul", "mul_1"} <= names


def not_closed(x: Tensor) -> tuple[Tensor, Tensor]:
    power = root_mean_square(x)
    return x * torch.rsqrt(power + 0.5), power


DIFFERENT: dict[str, Callable[[Tensor], Any]] = {
    "a mean with another reader": not_closed,
    "a mean over another axis than that of the centre": lambda x: (
        (x - x.mean(0, keepdim=True))
        * torch.rsqrt((x - x.mean(0, keepdim=True)).square().mean(1, keepdim=True) + 0.5)
    ),
    "a sum over another count": lambda x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / 5 + 0.5),
    "a square of something else": lambda x: x * torch.rsqrt(root_mean_square(x + 1) + 0.5),
    "a reduction without the axis": lambda x: x.T * torch.rsqrt(x.square().mean(-1) + 0.5),
    "an epsilon beside the root that is not small": lambda x: x / (torch.sqrt(root_mean_square(x)) + 0.5),
    "a length of another order": lambda x: x / x.norm(p=3, dim=-1, keepdim=True),
    "another factor": lambda x: x * 0.4 * (1 + torch.erf(x / math.sqrt(2))),
    "a gate of another number": lambda x: x * torch.sigmoid(1.702 * x),
    "a softmax that may overflow": lambda x: (30 * x).exp() / (30 * x).exp().sum(-1, keepdim=True),
    "shares of another axis": lambda x: x.exp() / x.exp().sum(0, keepdim=True).sum(1, keepdim=True),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_only_resembles_a_composite_is_not_fused_into_it(name: str) -> None:
    x = torch.randn(6, 6, generator=generator)
    program = tosaic.lower(quantized(DIFFERENT[name], [(x,)], torch.int8)).stages["exported"]
    fused = tosaic.Pipeline.default("TOSA-1.0+INT")["fuse-composites"].run(program)
    composites = {"layer_norm", "softmax", "log_softmax", "gelu", "silu", "rms_norm"}
    if name == "a mean over another axis than that of the centre":
        composites.remove("rms_norm")  # the norm of the centred numbers may be fused
    assert not composites & {node.op for node in fused.nodes}


def test_a_program_that_is_not_quantized_stays_as_it_is() -> None:
    exported = torch.export.export(FunctionModule(llama_norm), rows()[0])
    pipeline = tosaic.Pipeline.default("TOSA-1.0+FP+INT")
    with_pass = tosaic.lower(exported, pipeline=pipeline)
    pipeline.remove("fuse-composites")
    assert with_pass.to_bytes() == tosaic.lower(exported, pipeline=pipeline).to_bytes()
    assert not [t for t in with_pass.timings if t.name == "fuse-composites" and t.changed]
