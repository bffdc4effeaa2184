"""`tosaic.compare` reports ok for correctly lowered small networks and layers, and FAILED for wrong ones.

tests/full/verdicts.py tests all networks and layers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import tosaic
from layers.measuring import classes, layers_of
from layers.table import OUT_OF_REACH
from models.integers import convert, laid_out
from models.tampering import tampered
from models.verdicts import shows, verdicts
from models.zoo import build
from torch import nn

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers and torch.export warn about their own code
    pytest.mark.usefixtures("one_thread_without_traces"),
]


@pytest.mark.parametrize("name", ["resnet18_small", "bert4_small"])
def test_the_verdict_for_a_float_network_is_right(name: str) -> None:
    network = build(name)
    program = network.export()
    found = verdicts(program, tosaic.lower(program), [network.sample(0), network.sample(1)])
    assert (found.refused, found.missed) == ({}, {})
    assert found.judged == found.rows > 10
    assert found.share < 0.5
    assert found.spoiled["weight"] == 1


@pytest.mark.parametrize(
    ("name", "quantizer"),
    [("ds_cnn_small", "xnnpack"), ("resnet18_small", "xnnpack"), ("llama2_small", "arm")],
)
def test_the_verdict_for_a_quantized_network_is_right(
    name: str, quantizer: str, converted_programs: Path
) -> None:
    network = build(name)
    program = convert(network, quantizer, converted_programs)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    whole = tosaic.lower(program, target="TOSA-1.0+INT", io={"outputs": "int8"})
    samples = [laid_out(lowered.inputs, network.sample(i)) for i in range(2)]
    found = verdicts(program, lowered, samples, forms={"integers": whole}, wrong=2)
    assert (found.refused, found.missed) == ({}, {})
    assert found.judged == found.rows > 10
    assert found.spoiled["weight"] == found.spoiled["zero point"] == 2


@pytest.mark.parametrize("name", [name for name in classes() if name not in OUT_OF_REACH][::8])
def test_the_verdict_for_a_correctly_lowered_layer_is_ok(name: str) -> None:
    for layer in layers_of(name, functional=False):
        inputs = tuple(t.tensor() for t in layer.inputs)
        if any(x.dtype == torch.bfloat16 for x in inputs):
            continue
        program = torch.export.export(layer.module(), inputs, strict=False)
        try:
            lowered = tosaic.lower(program)
        except (tosaic.UnsupportedOp, tosaic.SpecViolation):
            lowered = tosaic.lower(program, target="TOSA-1.0+FP+INT")
        comparison = tosaic.compare(program, lowered, inputs)
        assert comparison, f"{layer.name}: {comparison}"


@pytest.mark.parametrize("matters", [False, True])
def test_a_wrong_order_counts_as_wrong_if_it_changes_a_result(matters: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 5)).eval()
    if not matters:  # one weight for all pixels of a channel: height and width may be swapped before
        with torch.no_grad():
            module[2].weight.copy_(torch.randn(5, 4).repeat_interleave(36, dim=1))
    x = torch.randn(1, 1, 8, 8)
    program = torch.export.export(module, (x,))
    lowered = tosaic.lower(program)
    wrong = tampered(lowered, "order", 0)
    assert wrong is not None
    assert shows(lowered, wrong, (x,)) == matters
    assert tosaic.compare(program, wrong, (x,)).ok != matters
