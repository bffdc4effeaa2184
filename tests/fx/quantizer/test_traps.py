"""Graphs and annotations on which rewriting can go wrong, each compared with what torchao converts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.quantizer.quantizers import QUANTIZERS, convert, differences, exported_module, qparams_of
from torch import nn
from torchao.quantization.pt2e import HistogramObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)
from tosaic.annotation import (
    Edge,
    Fix,
    Fixed,
    Inputs,
    Observed,
    Operator,
    Output,
    Outputs,
    Select,
    Set,
    Share,
)

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

KEY = "quantization_annotation"
SNORM = Fixed("int8", 1 / 127, 0, -127, 127, "per_tensor_symmetric")
SNORM_ROW = (pytest.approx(1 / 127), 0, -127, 127, "int8")
HALF = Fixed("int8", 0.5, 0, -128, 127)
HALF_ROW = (0.5, 0, -128, 127, "int8")
INT8 = QuantizationSpec(torch.int8, HistogramObserver, -128, 127, torch.per_tensor_affine)


class ByHand(Quantizer):
    """A quantizer that calls a function with the nodes by name."""

    def __init__(self, function: Callable[[dict[str, Any]], None]) -> None:
        self.function = function

    def annotate(self, model: Any) -> Any:
        self.function({node.name: node for node in model.graph.nodes})
        return model

    def validate(self, model: Any) -> None:
        pass


def rows(model: Any, name: str) -> list[tuple[Any, ...]]:
    """Returns scale, zero point, range and dtype of the quantize nodes that read a node."""
    return [row[1:] for row in qparams_of(model) if row[0] == name]


def xnnpack() -> Any:
    return QUANTIZERS["xnnpack"]()


class Convolution(nn.Module):
    """A convolution of the second input; the first is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, unused: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        return self.conv(image)


def test_an_unused_input_before_a_quantized_one_counts() -> None:
    torch.manual_seed(1)
    module, samples = Convolution(), [(torch.randn(2), torch.rand(1, 3, 8, 8))]
    plain = convert(module, samples, xnnpack())
    for key in (1, "image"):
        wrapped = tosaic.wrap_quantizer(xnnpack(), rules=[Inputs({key: SNORM})])
        made = convert(module, samples, wrapped)
        assert rows(made, "image") == [SNORM_ROW]
        assert rows(made, "conv2d") == rows(plain, "conv2d")
    assert rows(plain, "image") != [SNORM_ROW]


def test_an_unused_input_itself_may_have_a_spec() -> None:
    wrapped = tosaic.wrap_quantizer(xnnpack(), rules=[Inputs({0: SNORM, 1: None})])
    made = convert(Convolution(), [(torch.randn(2), torch.rand(1, 3, 8, 8))], wrapped)
    assert rows(made, "image") == []
    image = next(node for node in made.graph.nodes if node.name == "image")
    assert [user.name for user in image.users] == ["conv2d"]


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1.5
        return y, y


def annotate_add(nodes: dict[str, Any]) -> None:
    nodes["add"].meta[KEY] = QuantizationAnnotation({nodes["x"]: INT8}, INT8, _annotated=True)


def test_a_tensor_that_is_returned_twice_is_quantized_once() -> None:
    samples = [(torch.rand(4),)]
    for specs in ({0: SNORM}, {1: SNORM}, {0: SNORM, 1: SNORM}):
        made = convert(Twice(), samples, tosaic.wrap_quantizer(ByHand(annotate_add), rules=[Outputs(specs)]))
        assert rows(made, "add") == [SNORM_ROW]
        first, second = made(*samples[0])
        assert torch.equal(first, second)


def test_a_tensor_that_is_returned_twice_cannot_have_two_specs() -> None:
    wrapped = tosaic.wrap_quantizer(ByHand(annotate_add), rules=[Outputs({0: SNORM, 1: HALF})])
    with pytest.raises(tosaic.InvalidGraph, match=r"output 1.* has two specs"):
        prepare_pt2e(exported_module(Twice(), (torch.rand(4),)), wrapped)


class Split(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = torch.split(x, 2)
        return a + 1.0, b * 2.0


def test_each_output_of_a_node_with_several_has_its_own_spec() -> None:
    def annotate(nodes: dict[str, Any]) -> None:
        for name, producer in (("add", "getitem"), ("mul", "getitem_1")):
            nodes[name].meta[KEY] = QuantizationAnnotation({nodes[producer]: INT8}, INT8, _annotated=True)

    samples = [(torch.randn(4),)]
    rules = [Fix(Select(name="getitem"), SNORM), Set(Select(name="getitem_1"), result=HALF)]
    plain = convert(Split(), samples, ByHand(annotate))
    made = convert(Split(), samples, tosaic.wrap_quantizer(ByHand(annotate), rules=rules))
    assert rows(made, "getitem") == [SNORM_ROW]
    assert rows(made, "getitem_1") == [HALF_ROW]
    assert rows(made, "add") == rows(plain, "add")
    assert rows(made, "mul") == rows(plain, "mul")


class Five(nn.Module):
    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * (i + 1.0) for i, x in enumerate(xs)])


@pytest.mark.parametrize("quantizer", ["arm", "xnnpack"])
def test_a_concat_of_five_inputs_shares_what_a_rule_sets_for_its_result(quantizer: str) -> None:
    samples = [tuple(torch.randn(3) for _ in range(5))]
    plain = convert(Five(), samples, QUANTIZERS[quantizer]())
    wrapped = tosaic.wrap_quantizer(QUANTIZERS[quantizer](), rules=[Operator("cat", result=HALF)])
    made = convert(Five(), samples, wrapped)
    products = ["mul", "mul_1", "mul_2", "mul_3", "mul_4"]
    assert len({rows(plain, name)[0] for name in products} | {rows(plain, "cat")[0]}) == 1
    assert [rows(made, name) for name in [*products, "cat"]] == [[HALF_ROW]] * 6
    assert len(made.graph.nodes) == len(plain.graph.nodes)


def test_a_cycle_of_sharing_through_a_residual_is_one_group() -> None:
    class Block(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.view(2, 2)
            return torch.cat([x, y.view(4)])

    def annotate(nodes: dict[str, Any]) -> None:
        x, view, back, cat = (nodes[name] for name in ("x", "view", "view_1", "cat"))
        share = SharedQuantizationSpec
        cat.meta[KEY] = QuantizationAnnotation(
            {x: INT8, back: share((x, cat))}, share((x, cat)), _annotated=True
        )
        back.meta[KEY] = QuantizationAnnotation({view: share(view)}, share((view, back)), _annotated=True)
        view.meta[KEY] = QuantizationAnnotation({x: share((x, cat))}, share((x, view)), _annotated=True)

    def annotate_in_order(nodes: dict[str, Any]) -> None:
        x, view, back, cat = (nodes[name] for name in ("x", "view", "view_1", "cat"))
        share = SharedQuantizationSpec
        view.meta[KEY] = QuantizationAnnotation({x: INT8}, share((x, view)), _annotated=True)
        back.meta[KEY] = QuantizationAnnotation({view: share(view)}, share((view, back)), _annotated=True)
        cat.meta[KEY] = QuantizationAnnotation(
            {x: share((x, view)), back: share((x, cat))}, share((x, cat)), _annotated=True
        )

    samples = [(torch.rand(4),)]
    plain = convert(Block(), samples, ByHand(annotate_in_order))
    assert len({row[1:] for row in qparams_of(plain)}) == 1
    for rules in ([Inputs({0: HALF})], [Outputs({0: HALF})], [Operator("view", result=HALF)]):
        for by_hand in (annotate_in_order, annotate):
            made = convert(Block(), samples, tosaic.wrap_quantizer(ByHand(by_hand), rules=rules))
            found = {row[0]: row[1:] for row in qparams_of(made)}
            assert found["view"] == found["view_1"] == HALF_ROW
            if isinstance(rules[0], Outputs):
                assert set(found.values()) == {HALF_ROW}
                assert len(made.graph.nodes) == len(plain.graph.nodes)
            else:  # a fixed spec stops at a concatenation, whose operands share what is observed
                assert found["cat"] == qparams_of(plain)[-1][1:] != HALF_ROW


def test_convolutions_with_batch_norms_train_with_rules_whether_they_have_a_bias_or_not() -> None:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    config = get_symmetric_quantization_config(is_per_channel=True, is_qat=True)
    sample = (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2)),)
    int4 = Observed("int4", scheme="per_channel_symmetric", axis=0)
    weights = Set(Select(op="conv2d"), operands={"weight": int4})
    parts = [[nn.Conv2d(3, 3, 3, bias=bias), nn.BatchNorm2d(3), nn.ReLU()] for bias in (False, True)]
    model = torch.export.export(nn.Sequential(*parts[0], *parts[1]), sample).module(check_guards=False)
    wrapped = tosaic.wrap_quantizer(
        XNNPACKQuantizer().set_global(config), rules=[Inputs({0: HALF}), weights, Outputs({0: SNORM})]
    )
    prepared = prepare_qat_pt2e(model, wrapped)
    prepared(*sample)
    made = convert_pt2e(prepared)  # once: torchao traces its patterns of convolutions for many seconds
    first, middle, last = qparams_of(made)
    assert [first[0], middle[0], last[0]] == ["input_1", "relu", "relu_1"]
    assert [first[1:], last[1:]] == [HALF_ROW, SNORM_ROW]
    assert middle[3:] == (-128, 127, "int8")
    weight_ranges = [n.args[-3:-1] for n in made.graph.nodes if "dequantize_per_channel" in str(n.target)]
    assert weight_ranges == [(-8, 7)] * 2  # not the -127..127 of the quantizer
    convolutions = [node for node in made.graph.nodes if "conv2d" in str(node.target)]
    assert [node.args[2] is None for node in convolutions] == [False, False]  # biases of the batch norms
    assert not [node for node in made.graph.nodes if "batch_norm" in str(node.target)]


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.linear = nn.Linear(4, 4)

    def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.table(tokens) + x)


def test_an_integer_input_counts_but_has_no_spec() -> None:
    samples = [(torch.tensor([1, 2]), torch.rand(2, 4))]
    made = convert(Embedding(), samples, tosaic.wrap_quantizer(xnnpack(), rules=[Inputs({1: SNORM})]))
    assert rows(made, "x") == [SNORM_ROW]
    assert rows(made, "tokens") == []
    wrapped = tosaic.wrap_quantizer(xnnpack(), rules=[Inputs({"tokens": SNORM})])
    with pytest.raises(
        tosaic.InvalidGraph, match="input 0, 'tokens', is no tensor of floats, but of dtype i64"
    ):
        prepare_pt2e(exported_module(Embedding(), samples[0]), wrapped)


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(F.relu(x) * 2.0)


def annotate_chain(nodes: dict[str, Any]) -> None:
    for name, producer in (("relu", "x"), ("mul", "relu"), ("tanh", "mul")):
        nodes[name].meta[KEY] = QuantizationAnnotation({nodes[producer]: INT8}, INT8, _annotated=True)


def test_a_spec_that_is_shared_with_a_later_slot_gets_its_qparams() -> None:
    def annotate(nodes: dict[str, Any]) -> None:
        annotate_chain(nodes)
        nodes["relu"].meta[KEY].output_qspec = SharedQuantizationSpec(nodes["mul"])
        nodes["mul"].meta[KEY].input_qspec_map = {}

    samples = [(torch.rand(4),)]
    with pytest.raises(AssertionError, match="please make sure only refer to edge or node"):
        convert(Chain(), samples, ByHand(annotate))
    share = Share([Output("mul"), Edge("relu", "mul"), Output("relu")])
    made = convert(Chain(), samples, tosaic.wrap_quantizer(ByHand(annotate_chain), rules=[share]))
    (shared,) = rows(made, "relu")
    assert rows(made, "mul") == [shared]
    fixed = convert(
        Chain(),
        samples,
        tosaic.wrap_quantizer(ByHand(annotate_chain), rules=[share, Fix(Select(name="mul"), HALF)]),
    )
    assert rows(fixed, "relu") == rows(fixed, "mul") == [HALF_ROW]


def test_a_wrapper_around_a_wrapper_applies_the_inner_rules_first() -> None:
    samples = [(torch.rand(4),)]
    inner = tosaic.wrap_quantizer(ByHand(annotate_chain), rules=[Inputs({0: HALF}), Outputs({0: HALF})])
    outer = tosaic.wrap_quantizer(inner, rules=[Outputs({0: SNORM})])
    made = convert(Chain(), samples, outer)
    assert rows(made, "x") == [HALF_ROW]
    assert rows(made, "tanh") == [SNORM_ROW]


def test_a_rule_that_matches_nothing_is_an_error_unless_it_allows_that() -> None:
    model = exported_module(Chain(), (torch.rand(4),))
    for rule, text in (
        (Operator("grid_sampler", result=SNORM), "grid_sampler"),
        (Inputs({"y": SNORM}), "unknown input.*got 'y'"),
        (Fix(Select(name="relo"), SNORM), "relu"),
    ):
        with pytest.raises(tosaic.InvalidGraph, match=text):
            prepare_pt2e(model, tosaic.wrap_quantizer(ByHand(annotate_chain), rules=[rule]))
    allowed = Operator("grid_sampler", result=SNORM, allow_unmatched=True)
    samples = [(torch.rand(4),)]
    made = convert(Chain(), samples, tosaic.wrap_quantizer(ByHand(annotate_chain), rules=[allowed]))
    assert differences(convert(Chain(), samples, ByHand(annotate_chain)), made, samples[0]) == []


def test_of_two_rules_in_conflict_the_last_wins_and_the_report_has_both() -> None:
    rules = [Outputs({0: HALF}), Fix(Select(name="tanh"), SNORM)]
    wrapped = tosaic.wrap_quantizer(ByHand(annotate_chain), rules=rules)
    made = convert(Chain(), [(torch.rand(4),)], wrapped)
    assert rows(made, "tanh") == [SNORM_ROW]
    replaced = [change for change in wrapped.plan.history if change.slot == Output("tanh")]
    assert replaced[0].set_by == "ByHand"
    assert (replaced[-1].before, replaced[-1].after) == (HALF, SNORM)


@dataclass
class Private(QuantizationAnnotation):
    owner: str = ""


class Secretive(Quantizer):
    """Remembers its annotations by identity and marks nodes; checks both when torchao validates."""

    def __init__(self) -> None:
        self.remembered: dict[Any, Any] = {}
        self.observers: dict[Any, Any] = {}
        self.transformed = 0

    def transform_for_annotation(self, model: Any) -> Any:
        self.transformed += 1
        return model

    def annotate(self, model: Any) -> Any:
        nodes = {node.name: node for node in model.graph.nodes}
        for name, producer in (("relu", "x"), ("mul", "relu"), ("tanh", "mul")):
            made = Private({nodes[producer]: INT8}, INT8, _annotated=True, owner=name)
            nodes[name].meta |= {KEY: made, "secret": name}
            self.remembered[nodes[name]] = made
        return model

    def validate(self, model: Any) -> None:
        for node, annotation in self.remembered.items():
            assert node.meta[KEY] is annotation
            assert annotation.owner == node.meta["secret"] == node.name

    def prepare_obs_or_fq_callback(self, model: Any, observers: dict[Any, Any]) -> None:
        assert all(node in observers for node in self.remembered)
        self.observers = observers


def test_private_metadata_and_hooks_of_a_quantizer_work_on() -> None:
    inner = Secretive()
    made = convert(Chain(), [(torch.rand(4),)], tosaic.wrap_quantizer(inner, rules=[Outputs({0: SNORM})]))
    assert rows(made, "tanh") == [SNORM_ROW]
    assert inner.transformed == 1
    assert {type(each).__name__ for each in inner.observers.values()} == {
        "HistogramObserver",
        "FixedQParamsObserver",
    }


class Loop(nn.Module):
    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        def proceed(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return i < 3

        def body(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, torch.relu(x) * 0.5

        return torch.while_loop(proceed, body, (count, torch.tanh(x)))[1]


def annotate_everything(nodes: dict[str, Any]) -> None:
    for node in nodes.values():
        if node.name.split("_")[0] in ("relu", "mul", "tanh"):
            node.meta[KEY] = QuantizationAnnotation({node.args[0]: INT8}, INT8, _annotated=True)


def test_bodies_of_loops_get_rules_except_rules_of_inputs_and_outputs() -> None:
    samples = [(torch.rand(4), torch.tensor(0))]
    rules = [Inputs({0: SNORM}), Operator("relu", result=HALF)]
    wrapped = tosaic.wrap_quantizer(ByHand(annotate_everything), rules=rules)
    plain = convert(Loop(), samples, ByHand(annotate_everything))
    made = convert(Loop(), samples, wrapped)
    (path,) = wrapped.body_plans
    body, plain_body = made.get_submodule(path), plain.get_submodule(path)
    assert rows(made, "x") == [SNORM_ROW]
    assert rows(made, "tanh") == rows(plain, "tanh")
    assert [row[1:] for row in qparams_of(body) if "relu" in row[0]] == [HALF_ROW]
    assert len(qparams_of(body)) == len(qparams_of(plain_body))
    assert not [row for row in qparams_of(body) if row[1:] == SNORM_ROW]


def test_a_rule_that_matches_in_no_body_either_is_an_error() -> None:
    model = exported_module(Loop(), (torch.rand(4), torch.tensor(0)))
    wrapped = tosaic.wrap_quantizer(ByHand(annotate_everything), rules=[Operator("cat", result=HALF)])
    with pytest.raises(tosaic.InvalidGraph, match="cat"):
        prepare_pt2e(model, wrapped)


class Branches(nn.Module):
    def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(flag, lambda x: torch.sigmoid(x) * 2.0, lambda x: torch.tanh(x) * 0.5, (x * 3.0,))
        return y + 1.0


def test_branches_that_arms_flow_quantizes_get_rules() -> None:
    from executorch.backends.arm.quantizer import TOSAQuantizer

    samples = [(torch.tensor(True), torch.rand(4)), (torch.tensor(False), torch.rand(4))]

    def quantized(rules: list[Any] | None) -> tuple[Any, Any]:
        quantizer = QUANTIZERS["arm"]()
        if rules is not None:
            quantizer = tosaic.wrap_quantizer(quantizer, rules=rules)
        model = exported_module(Branches(), samples[0])
        with torch.no_grad():
            return quantizer, TOSAQuantizer._quantize_with_submodules(quantizer, model, samples)

    _, plain = quantized(None)
    wrapped, made = quantized([Inputs({1: SNORM}), Operator("mul", result=HALF)])
    assert len(wrapped.body_plans) == 2
    for path in wrapped.body_plans:
        body = made.get_submodule(path)
        assert HALF_ROW in [row[1:] for row in qparams_of(body)]
        assert len(qparams_of(body)) == len(qparams_of(plain.get_submodule(path)))
        assert SNORM_ROW not in [row[1:] for row in qparams_of(body)]
    assert rows(made, "x") == [SNORM_ROW]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(self.conv(x))
        return y + y


@pytest.mark.parametrize("quantizer", ["arm", "xnnpack"])
def test_a_module_that_is_used_twice_is_selected_twice_and_its_weight_once(quantizer: str) -> None:
    torch.manual_seed(3)
    samples = [(torch.rand(1, 4, 3, 3),)]
    module = Shared()
    plain = convert(module, samples, QUANTIZERS[quantizer]())
    wrapped = tosaic.wrap_quantizer(
        QUANTIZERS[quantizer](),
        rules=[Set(Select(module="conv"), result=HALF), Operator("add", operands={0: SNORM})],
    )
    made = convert(module, samples, wrapped)
    assert rows(made, "conv2d") == [HALF_ROW]
    assert rows(made, "conv2d_1") == [SNORM_ROW]  # the last rule: the operand of the sum, read twice
    assert len(qparams_of(made)) == len(qparams_of(plain))
    add = next(node for node in made.graph.nodes if node.name == "add")
    assert add.args[0] is add.args[1]


def test_annotations_of_quantizers_that_ran_before_are_neither_read_nor_changed() -> None:
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer

    def annotate_relu(nodes: dict[str, Any]) -> None:
        nodes["relu"].meta[KEY] = QuantizationAnnotation({nodes["x"]: INT8}, INT8, _annotated=True)

    def annotate_rest(nodes: dict[str, Any]) -> None:
        for name, producer in (("mul", "relu"), ("tanh", "mul")):
            nodes[name].meta[KEY] = QuantizationAnnotation({nodes[producer]: INT8}, INT8, _annotated=True)

    rule = Set(Select(nodes=("relu", "mul")), result=HALF)
    wrapped = tosaic.wrap_quantizer(ByHand(annotate_rest), rules=[rule])
    samples = [(torch.rand(4),)]
    plain = convert(Chain(), samples, ComposableQuantizer([ByHand(annotate_relu), ByHand(annotate_rest)]))
    made = convert(Chain(), samples, ComposableQuantizer([ByHand(annotate_relu), wrapped]))
    assert rows(made, "mul") == [HALF_ROW]
    assert rows(made, "relu")[0] == rows(plain, "relu")[0]
    assert [each.slot for each in wrapped.refused] == [Output("relu")]
    assert wrapped.plan.author(Output("relu")) == "earlier quantizers"
    assert any(change.slot == Output("relu") and change.before == HALF for change in wrapped.report.dropped)


def test_what_the_inner_quantizer_adds_to_the_annotation_of_another_is_its_own() -> None:
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer

    def annotate_relu(nodes: dict[str, Any]) -> None:
        nodes["relu"].meta[KEY] = QuantizationAnnotation({nodes["x"]: INT8}, None, _annotated=True)

    def add_output(nodes: dict[str, Any]) -> None:
        nodes["relu"].meta[KEY].output_qspec = INT8

    rules = [Fix(Select(name="relu"), HALF), Inputs({0: SNORM})]
    wrapped = tosaic.wrap_quantizer(ByHand(add_output), rules=rules)
    samples = [(torch.rand(4),)]
    made = convert(Chain(), samples, ComposableQuantizer([ByHand(annotate_relu), wrapped]))
    assert rows(made, "relu") == [HALF_ROW]
    # The input's own slot gets the spec; the edge of the first quantizer quantizes the tensor a second time.
    assert rows(made, "x") == [SNORM_ROW]
    assert wrapped.plan[Edge("x", "relu")] == Observed(
        "int8", -128, 127, "per_tensor_affine", observer=HistogramObserver
    )
    assert wrapped.plan.author(Edge("x", "relu")) == "earlier quantizers"
    assert [(each.output, each.edge) for each in wrapped.report.requantized] == [
        (Output("x"), Edge("x", "relu"))
    ]


# ---- errors, copies ----


def failing(kind: str) -> Any:
    """Returns a quantizer that fails after its inner quantizers have annotated the graph."""
    if kind == "wrapped":
        return tosaic.wrap_quantizer(xnnpack(), rules=[Inputs({"imag": SNORM})])
    return tosaic.fx.compose_quantizers([xnnpack(), tosaic.Quantizer()], conflict="error")


@pytest.mark.parametrize("kind", ["wrapped", "composed"])
def test_after_an_error_the_graph_is_as_it_was(kind: str) -> None:
    sample = (torch.randn(1), torch.randn(1, 3, 8, 8))
    model = exported_module(Convolution(), sample)
    first = next(node for node in model.graph.nodes if node.name == "conv2d")
    mine = first.meta[KEY] = QuantizationAnnotation(input_qspec_map={first.args[0]: INT8})
    before = {node.name: dict(node.meta) for node in model.graph.nodes}
    with pytest.raises(tosaic.InvalidGraph if kind == "wrapped" else tosaic.QuantMismatch):
        failing(kind).annotate(model)
    assert {node.name: dict(node.meta) for node in model.graph.nodes} == before
    assert first.meta[KEY] is mine
    assert mine.input_qspec_map == {first.args[0]: INT8}
    assert (mine.output_qspec, mine._annotated) == (None, False)
    del first.meta[KEY]
    again = tosaic.wrap_quantizer(xnnpack(), rules=[Inputs({"image": SNORM})])
    again.annotate(model)
    assert again.plan[Output("image")] == SNORM


def test_a_graph_that_is_prepared_already_is_refused() -> None:
    sample = (torch.randn(1), torch.randn(1, 3, 8, 8))
    prepared = prepare_pt2e(exported_module(Convolution(), sample), tosaic.Quantizer())
    for quantizer in (tosaic.Quantizer(), tosaic.wrap_quantizer(xnnpack(), rules=[])):
        with pytest.raises(
            tosaic.InvalidGraph, match="the graph is prepared already: expected a graph without"
        ):
            quantizer.annotate(prepared)


def test_references_that_lead_to_no_spec_are_an_error_that_names_the_rule() -> None:
    sample = (torch.randn(1), torch.randn(1, 3, 8, 8))
    rule = Inputs({"image": tosaic.annotation.Shared(Output("image"))})
    quantizer = tosaic.wrap_quantizer(xnnpack(), rules=[rule])
    with pytest.raises(tosaic.QuantMismatch, match=r"leads to no spec.*set by Inputs.*node 'conv2d'"):
        prepare_pt2e(exported_module(Convolution(), sample), quantizer)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_of_quantizers_have_rules_but_no_plan(copied: Any) -> None:
    sample = (torch.randn(1), torch.randn(1, 3, 8, 8))
    wrapped = tosaic.wrap_quantizer(tosaic.Quantizer(), rules=[Inputs({"image": SNORM})])
    for quantizer in (wrapped, tosaic.fx.compose_quantizers([wrapped])):
        convert(Convolution(), [sample], quantizer)
        other = copied(quantizer)
        with pytest.raises(tosaic.InvalidGraph, match="has not annotated a graph yet"):
            _ = other.plan
        assert rows(convert(Convolution(), [sample], other), "image") == [SNORM_ROW]
        assert Output("image") in quantizer.plan
