"""Quantizers of other projects and ours, and helpers that quantize a network with one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import tosaic
from models.quantize import QUANTIZERS as OF_NETWORKS
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer
from tosaic.fx import read_annotations

__all__ = ["QUANTIZERS", "Rebuilding", "annotated", "convert", "differences", "exported_module", "qparams_of"]


def _vgf() -> Any:
    from executorch.backends.arm.quantizer import VgfQuantizer, get_symmetric_quantization_config
    from executorch.backends.arm.vgf import VgfCompileSpec

    return VgfQuantizer(VgfCompileSpec("TOSA-1.0+INT")).set_global(get_symmetric_quantization_config())


def _ethos_u() -> Any:
    from executorch.backends.arm.ethosu import EthosUCompileSpec
    from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config

    return EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(get_symmetric_quantization_config())


def _x86_inductor() -> Any:
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    return X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())


QUANTIZERS: dict[str, Callable[[], Any]] = {
    "xnnpack": OF_NETWORKS["xnnpack"],
    "arm": OF_NETWORKS["arm"],
    "vgf": _vgf,
    "ethos-u": _ethos_u,
    "cortex-m": OF_NETWORKS["cortex-m"],
    "x86-inductor": _x86_inductor,
    "tosaic": tosaic.Quantizer,
}
"""By name: a function that creates a quantizer with its usual int8 configuration."""


class Rebuilding(Quantizer):
    """Annotates as another quantizer does, then makes all annotations anew from the plan that it reads."""

    def __init__(self, inner: Quantizer) -> None:
        self.inner = inner
        self.rebuilt = 0

    def transform_for_annotation(self, model: Any) -> Any:
        return self.inner.transform_for_annotation(model)

    def annotate(self, model: Any) -> Any:
        self.inner.annotate(model)
        found = read_annotations(model)
        old = {node: node.meta["quantization_annotation"] for node in map(found.nodes.get, found.found)}
        found.rebuild()
        for node, annotation in old.items():
            assert node.meta["quantization_annotation"] is not annotation
            assert type(node.meta["quantization_annotation"]) is type(annotation)
        self.rebuilt += len(found.plan)
        return model

    def validate(self, model: Any) -> None:
        self.inner.validate(model)


def exported_module(module: nn.Module, sample: tuple[Any, ...]) -> Any:
    """Returns the graph that PT2E quantizes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), sample, strict=False).module(check_guards=False)


def annotated(module: nn.Module, sample: tuple[Any, ...], quantizer: Quantizer) -> Any:
    """Returns the graph of a module, transformed and annotated, without observers."""
    model = quantizer.transform_for_annotation(exported_module(module, sample))
    quantizer.annotate(model)
    return model


def convert(
    module: nn.Module,
    samples: Sequence[tuple[Any, ...]],
    quantizer: Quantizer,
    *,
    prepare: Any = prepare_pt2e,
) -> Any:
    """Quantizes a module, and returns the converted graph."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        prepared = prepare(exported_module(module, samples[0]), quantizer)
        for sample in samples:
            prepared(*sample)
        return convert_pt2e(prepared)


def differences(a: Any, b: Any, sample: tuple[Any, ...]) -> list[str]:
    """Returns in which calls, tensors and results two converted graphs differ."""
    found = []
    left, right = list(a.graph.nodes), list(b.graph.nodes)
    if len(left) != len(right):
        found.append(f"{len(left)} nodes and {len(right)} nodes")
    for one, other in zip(left, right, strict=False):
        texts = [(n.op, str(n.target), str(n.args), str(n.kwargs)) for n in (one, other)]
        if texts[0] != texts[1]:
            found.append(f"{one.name}: {texts[0]} and {texts[1]}")
    states = a.state_dict(), b.state_dict()
    if states[0].keys() != states[1].keys():
        found.append(f"tensors {sorted(states[0].keys() ^ states[1].keys())}")
    for name in states[0].keys() & states[1].keys():
        if not torch.equal(states[0][name], states[1][name]):
            found.append(f"tensor {name}")
    with torch.no_grad():
        results = [torch.utils._pytree.tree_leaves(each(*sample)) for each in (a, b)]
    for i, (one, other) in enumerate(zip(*results, strict=True)):
        if not torch.equal(one, other):
            found.append(f"result {i}")
    return found


def qparams_of(model: Any) -> list[tuple[str, Any, Any, int, int, str]]:
    """Returns each quantize node of a converted graph: what it reads, scale, zero point, range, dtype."""
    out = []
    for node in model.graph.nodes:
        if "quantize_per" not in str(node.target) or "dequantize" in str(node.target):
            continue
        scale, zero_point = node.args[1], node.args[2]
        *_, qmin, qmax, dtype = node.args
        if isinstance(scale, torch.fx.Node):
            scale, zero_point = (model.get_buffer(n.target).tolist() for n in (scale, zero_point))
        out.append((node.args[0].name, scale, zero_point, qmin, qmax, str(dtype).removeprefix("torch.")))
    return out
