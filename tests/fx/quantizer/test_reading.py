"""Reading and writing annotations: kinds of specs, references, classes, and what is never touched."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.quantizer.quantizers import exported_module
from torch import nn
from torchao.quantization.pt2e import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.prepare import prepare
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import QuantizationSpecBase
from tosaic.annotation import FLOAT, Derived, Edge, Fixed, Foreign, Observed, Output, Shared
from tosaic.fx import read_annotations

KEY = "quantization_annotation"
INT8 = QuantizationSpec(torch.int8, HistogramObserver, -128, 127, torch.per_tensor_affine)
WEIGHT = QuantizationSpec(torch.int8, PerChannelMinMaxObserver, -127, 127, torch.per_channel_symmetric, 0)
FIXED = FixedQParamsQuantizationSpec(torch.int16, 1 / 32767, 0, -32767, 32767, torch.per_tensor_symmetric)


@dataclass
class Annotation(QuantizationAnnotation):
    pattern: str = ""


@dataclass(frozen=True)
class Logarithmic(QuantizationSpecBase):
    dtype: torch.dtype = torch.int8
    base: float = 2.0


def derive(observers):
    scale = observers[0].calculate_qparams()[0] * observers[1].calculate_qparams()[0]
    return scale.to(torch.float32), torch.zeros_like(scale, dtype=torch.int32)


def conv_and_relu():
    """Returns the graph of a convolution and a ReLU, and its nodes by name."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    model = exported_module(module, (torch.randn(1, 3, 8, 8),))
    return model, {node.name: node for node in model.graph.nodes}


def annotate_all_kinds(nodes) -> None:
    x, weight, bias, conv, relu = (
        nodes[name] for name in ("input_1", "_0_weight", "_0_bias", "conv2d", "relu")
    )
    bias_spec = DerivedQuantizationSpec(
        [(x, conv), (weight, conv)], derive, torch.int32, -(2**31), 2**31 - 1, torch.per_channel_symmetric, 0
    )
    conv.meta[KEY] = Annotation({x: INT8, weight: WEIGHT, bias: bias_spec}, pattern="conv", _annotated=True)
    relu.meta[KEY] = QuantizationAnnotation({conv: None}, SharedQuantizationSpec((x, conv)), False, True)
    nodes["output"].meta[KEY] = QuantizationAnnotation({relu: FIXED})


@pytest.fixture
def every_kind():
    model, nodes = conv_and_relu()
    annotate_all_kinds({**nodes, **_aliases(nodes)})
    return model, {**nodes, **_aliases(nodes)}


def _aliases(nodes):
    """Names of placeholders and parameters differ between versions of torch."""
    names = list(nodes)
    return {
        "input_1": next(nodes[name] for name in names if nodes[name].op == "placeholder"),
        "_0_weight": next(nodes[name] for name in names if name.endswith("weight")),
        "_0_bias": next(nodes[name] for name in names if name.endswith("bias")),
    }


def test_every_kind_of_spec_is_read_with_all_of_its_fields(every_kind) -> None:
    model, nodes = every_kind
    plan = read_annotations(model, author="hand").plan
    x, weight, bias = (nodes[name].name for name in ("input_1", "_0_weight", "_0_bias"))
    assert plan.entries("conv2d") == {
        Edge(x, "conv2d"): Observed("int8", -128, 127, "per_tensor_affine", observer=HistogramObserver),
        Edge(weight, "conv2d"): Observed(
            "int8", -127, 127, "per_channel_symmetric", 0, observer=PerChannelMinMaxObserver
        ),
        Edge(bias, "conv2d"): Derived(
            (Edge(x, "conv2d"), Edge(weight, "conv2d")),
            derive,
            "int32",
            -(2**31),
            2**31 - 1,
            "per_channel_symmetric",
            0,
        ),
    }
    assert plan.entries("relu") == {
        Edge("conv2d", "relu"): FLOAT,
        Output("relu"): Shared(Edge(x, "conv2d")),
    }
    assert plan[Edge("relu", "output")] == Fixed("int16", 1 / 32767, 0, -32767, 32767, "per_tensor_symmetric")
    assert (plan.annotated("relu"), plan.allow_implicit_sharing("relu")) == (True, False)
    assert (plan.annotated("output"), plan.allow_implicit_sharing("output")) == (False, True)
    assert plan.author(Output("relu")) == "hand"


def test_annotations_made_anew_equal_those_that_were_read(every_kind) -> None:
    model, nodes = every_kind
    before = {name: node.meta[KEY] for name, node in nodes.items() if KEY in node.meta}
    read_annotations(model).rebuild()
    assert {name for name, node in nodes.items() if KEY in node.meta} == before.keys()
    for name, annotation in before.items():
        made = nodes[name].meta[KEY]
        assert made is not annotation
        assert made == annotation
        assert list(made.input_qspec_map) == list(annotation.input_qspec_map)
    assert nodes["conv2d"].meta[KEY].pattern == "conv"
    rebuilt = nodes["conv2d"].meta[KEY].input_qspec_map[nodes["input_1"]]
    assert rebuilt is not INT8
    assert rebuilt == INT8


def test_a_changed_entry_leaves_all_other_objects_as_they_are(every_kind) -> None:
    model, nodes = every_kind
    conv, relu = nodes["conv2d"], nodes["relu"]
    annotation, bias = conv.meta[KEY], conv.meta[KEY].input_qspec_map[nodes["_0_bias"]]
    untouched = relu.meta[KEY], relu.meta[KEY].input_qspec_map
    found = read_annotations(model)
    found.plan[Edge(nodes["input_1"].name, "conv2d")] = Fixed("int8", 0.5)
    found.write()
    assert conv.meta[KEY] is annotation
    assert (relu.meta[KEY], relu.meta[KEY].input_qspec_map) == untouched
    assert relu.meta[KEY].input_qspec_map is untouched[1]
    specs = annotation.input_qspec_map
    assert specs[nodes["input_1"]] == FixedQParamsQuantizationSpec(
        torch.int8, 0.5, 0, -128, 127, torch.per_tensor_affine
    )
    assert specs[nodes["_0_weight"]] is WEIGHT
    assert specs[nodes["_0_bias"]] is bias


def test_an_erased_entry_has_none_so_that_later_entries_have_their_positions(every_kind) -> None:
    model, nodes = every_kind
    found = read_annotations(model)
    del found.plan[Edge(nodes["input_1"].name, "conv2d")]
    found.write()
    specs = nodes["conv2d"].meta[KEY].input_qspec_map
    assert list(specs) == [nodes["input_1"], nodes["_0_weight"], nodes["_0_bias"]]
    assert specs[nodes["input_1"]] is None


def test_an_entry_that_is_added_stands_where_its_argument_stands() -> None:
    model, nodes = conv_and_relu()
    nodes |= _aliases(nodes)
    nodes["conv2d"].meta[KEY] = QuantizationAnnotation({nodes["_0_bias"]: FIXED})
    found = read_annotations(model)
    found.plan[Edge(nodes["_0_weight"].name, "conv2d")] = Observed()
    found.write()
    specs = nodes["conv2d"].meta[KEY].input_qspec_map
    assert list(specs) == [nodes["input_1"], nodes["_0_weight"], nodes["_0_bias"]]
    assert specs[nodes["input_1"]] is None
    assert specs[nodes["_0_weight"]].observer_or_fake_quant_ctr is MinMaxObserver


def test_a_cleared_node_has_no_annotation(every_kind) -> None:
    model, nodes = every_kind
    found = read_annotations(model)
    found.plan.clear("relu")
    found.write()
    assert KEY not in nodes["relu"].meta
    assert KEY in nodes["conv2d"].meta


def test_an_annotation_that_two_nodes_share_is_changed_for_one_of_them_only() -> None:
    model = exported_module(nn.Sequential(nn.ReLU(), nn.ReLU()), (torch.ones(2),))
    first, second = (node for node in model.graph.nodes if node.op == "call_function")
    first.meta[KEY] = second.meta[KEY] = shared = QuantizationAnnotation(output_qspec=INT8)
    found = read_annotations(model)
    found.plan[Output(second.name)] = Fixed("int8", 0.5)
    found.write()
    assert first.meta[KEY] is shared
    assert shared.output_qspec is INT8
    assert second.meta[KEY].output_qspec.scale == 0.5


def test_a_spec_of_an_unknown_class_is_written_as_it_was_read() -> None:
    model, nodes = conv_and_relu()
    nodes["relu"].meta[KEY] = QuantizationAnnotation(output_qspec=Logarithmic())
    found = read_annotations(model)
    spec = found.plan[Output("relu")]
    assert isinstance(spec, Foreign)
    assert spec.fields == {"dtype": "int8"}
    found.plan[Output("conv2d")] = spec
    found.rebuild()
    assert nodes["relu"].meta[KEY].output_qspec is spec.object
    assert nodes["conv2d"].meta[KEY].output_qspec is spec.object


def test_entries_and_references_of_nodes_that_left_the_graph_survive_a_write() -> None:
    model, nodes = conv_and_relu()
    gone = model.graph.create_node("call_function", torch.ops.aten.relu.default, (nodes["conv2d"],), {})
    model.graph.erase_node(gone)
    stale = SharedQuantizationSpec((gone, nodes["relu"]))
    nodes["relu"].meta[KEY] = QuantizationAnnotation({gone: INT8, nodes["conv2d"]: stale}, INT8)
    found = read_annotations(model)
    assert found.plan.slots() == (Edge("conv2d", "relu"), Output("relu"))
    found.plan[Output("relu")] = Fixed("int8", 0.5)
    found.write()
    specs = nodes["relu"].meta[KEY].input_qspec_map
    assert specs[gone] is INT8
    assert specs[nodes["conv2d"]] is stale


def test_a_spec_without_an_observer_gets_the_usual_one_of_its_place() -> None:
    model, nodes = conv_and_relu()
    nodes |= _aliases(nodes)
    found = read_annotations(model)
    found.plan[Edge(nodes["input_1"].name, "conv2d")] = Observed("int8")
    found.plan[Edge(nodes["_0_weight"].name, "conv2d")] = Observed(
        "int4", scheme="per_channel_symmetric", axis=0
    )
    found.write()
    specs = nodes["conv2d"].meta[KEY].input_qspec_map
    assert specs[nodes["input_1"]].observer_or_fake_quant_ctr is HistogramObserver
    weight = specs[nodes["_0_weight"]]
    assert weight.observer_or_fake_quant_ctr is PerChannelMinMaxObserver
    assert (weight.dtype, weight.quant_min, weight.quant_max, weight.ch_axis) == (torch.int8, -8, 7, 0)
    prepare(model, {}, is_qat=False)  # torchao accepts the annotations


def test_a_dtype_that_torch_lacks_is_an_error_at_the_node() -> None:
    model, _ = conv_and_relu()
    found = read_annotations(model)
    found.plan[Output("relu")] = Observed("int9")
    with pytest.raises(
        tosaic.InvalidGraph, match=r"torch has no such dtype for Output\('relu'\).*'int9'.*node 'relu'"
    ):
        found.write()


def test_the_graph_has_the_callers_inputs_and_outputs_by_path() -> None:
    class Nested(nn.Module):
        def forward(self, unused, batch, *, scale=None):
            y = F.relu(batch["image"])
            return {"a": y, "b": (y, batch["image"] * scale)}

    arguments = (torch.ones(2), {"image": torch.ones(2), "mask": torch.ones(3)})
    with torch.no_grad():
        exported = torch.export.export(Nested(), arguments, {"scale": torch.ones(2)})
    graph = read_annotations(exported.module(check_guards=False)).plan.graph
    assert [(port.path, port.node) for port in graph.inputs] == [
        ("unused", "unused"),
        ("batch['image']", "batch_image"),
        ("batch['mask']", "batch_mask"),
        ("scale", "scale"),
    ]
    assert [(port.path, port.node) for port in graph.outputs] == [
        ("out['a']", "relu"),
        ("out['b'][0]", "relu"),
        ("out['b'][1]", "mul"),
    ]
    relu = graph["relu"]
    assert (relu.target, relu.dtype, relu.shape) == ("aten.relu.default", "f32", (2,))
    assert [(each.path, each.producer, each.name) for each in relu.operands] == [
        ("args[0]", "batch_image", "self")
    ]


def test_what_is_not_a_graph_of_torch_is_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"\[read_annotations\] not a graph of torch: .*got ReLU"):
        read_annotations(nn.ReLU())
