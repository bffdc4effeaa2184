"""Annotations of other quantizers, read into a plan and made anew from it, give the same converted graph."""

from __future__ import annotations

import pytest
import torch
from fx.quantizer.quantizers import QUANTIZERS, Rebuilding, annotated, convert, differences
from models.quantize import laid_out_as_converted
from models.zoo import build
from tosaic.fx import read_annotations

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


def differences_of_rebuilt(quantizer: str, name: str) -> list[str]:
    """Quantizes a network twice, once with annotations made anew, and compares the converted graphs."""
    network = build(name)
    module = (
        network.module.to(memory_format=torch.channels_last) if quantizer == "cortex-m" else network.module
    )
    samples = [laid_out_as_converted(network.sample(i), quantizer) for i in range(2)]
    rebuilding = Rebuilding(QUANTIZERS[quantizer]())
    plain = convert(module, samples, QUANTIZERS[quantizer]())
    rebuilt = convert(module, samples, rebuilding)
    assert rebuilding.rebuilt > 10
    return differences(plain, rebuilt, samples[0])


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_annotations_made_anew_from_a_plan_convert_to_the_same_graph(quantizer: str) -> None:
    assert differences_of_rebuilt(quantizer, "mobilenet_v2_small") == []


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_plan_that_did_not_change_is_written_without_touching_an_object(quantizer: str) -> None:
    network = build("ds_cnn_small")
    model = annotated(network.module, network.sample(), QUANTIZERS[quantizer]())

    def objects() -> list[object]:
        found = [node.meta.get("quantization_annotation") for node in model.graph.nodes]
        return [
            (
                id(each),
                id(each.input_qspec_map),
                [*map(id, each.input_qspec_map.values())],
                id(each.output_qspec),
            )
            for each in found
            if each is not None
        ]

    before = objects()
    read_annotations(model).write()
    assert objects() == before
