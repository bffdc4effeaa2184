"""Several quantizers over one graph: who wins, what is reported, and what becomes of references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import tosaic
from fx.quantizer.quantizers import QUANTIZERS, convert, differences, exported_module, qparams_of
from fx.quantizer.test_traps import HALF_ROW, INT8, KEY, ByHand, Chain, Secretive, annotate_chain, rows
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
from torchao.quantization.pt2e.quantizer import (
    ComposableQuantizer,
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    SharedQuantizationSpec,
)
from tosaic.annotation import FLOAT, Edge, Output, Shared

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

HALF = FixedQParamsQuantizationSpec(torch.int8, 0.5, 0, -128, 127)
SAMPLES = [(torch.tensor([0.1, 0.5, 0.75, 1.0]),)]


def annotate_mul(nodes: dict[str, Any]) -> None:
    nodes["mul"].meta[KEY] = QuantizationAnnotation({nodes["relu"]: HALF}, HALF, _annotated=True)


class Named(ByHand):
    def __init__(self, name: str, function: Any) -> None:
        super().__init__(function)
        self.name = name


def test_the_first_or_the_last_quantizer_wins_a_node_as_the_policy_says() -> None:
    for policy, row in (("first", None), ("last", HALF_ROW)):
        composed = tosaic.fx.compose_quantizers(
            [Named("all", annotate_chain), Named("mul", annotate_mul)], conflict=policy
        )
        made = convert(Chain(), SAMPLES, composed)
        if row is None:
            assert differences(convert(Chain(), SAMPLES, ByHand(annotate_chain)), made, SAMPLES[0]) == []
        else:
            assert rows(made, "mul") == [row]
        (conflict,) = composed.conflicts
        assert (conflict.node, conflict.quantizers) == ("mul", ("all", "mul"))
        assert conflict.winner == ("all" if policy == "first" else "mul")
        lost = [change for change in composed.plan.history if change.slot == Output("mul")]
        assert [change.set_by for change in lost] == ["mul" if policy == "first" else "all"]
        assert "the policy is" in lost[0].reason


def test_conflicts_are_an_error_by_default_that_lists_all_nodes() -> None:
    composed = tosaic.fx.compose_quantizers([Named("all", annotate_chain), Named("mul", annotate_mul)])
    with pytest.raises(
        tosaic.QuantMismatch, match=r"1 node is annotated in different ways.*'mul' by all and mul"
    ):
        prepare_pt2e(exported_module(Chain(), SAMPLES[0]), composed)


def test_equal_annotations_are_not_a_conflict() -> None:
    composed = tosaic.fx.compose_quantizers([ByHand(annotate_chain), ByHand(annotate_chain)])
    made = convert(Chain(), SAMPLES, composed)
    assert composed.conflicts == ()
    assert differences(convert(Chain(), SAMPLES, ByHand(annotate_chain)), made, SAMPLES[0]) == []


def test_quantizers_of_different_nodes_compose_as_torchaos_composable_quantizer() -> None:
    def annotate_ends(nodes: dict[str, Any]) -> None:
        for name, producer in (("relu", "x"), ("tanh", "mul")):
            nodes[name].meta[KEY] = QuantizationAnnotation({nodes[producer]: INT8}, INT8, _annotated=True)

    quantizers = [ByHand(annotate_ends), ByHand(annotate_mul)]
    composed = convert(Chain(), SAMPLES, tosaic.fx.compose_quantizers(quantizers))
    assert differences(convert(Chain(), SAMPLES, ComposableQuantizer(quantizers)), composed, SAMPLES[0]) == []


def test_a_reference_to_a_node_that_another_quantizer_won_holds_if_the_winner_has_a_spec_there() -> None:
    def annotate_sharing(nodes: dict[str, Any]) -> None:
        annotate_chain(nodes)
        nodes["tanh"].meta[KEY].output_qspec = SharedQuantizationSpec(nodes["mul"])

    composed = tosaic.fx.compose_quantizers([ByHand(annotate_sharing), ByHand(annotate_mul)], conflict="last")
    made = convert(Chain(), SAMPLES, composed)
    assert composed.plan[Output("tanh")] == Shared(Output("mul"))
    assert rows(made, "tanh") == rows(made, "mul") == [HALF_ROW]


def test_a_reference_to_a_place_without_a_spec_gets_the_spec_that_it_shared() -> None:
    def annotate_sharing(nodes: dict[str, Any]) -> None:
        annotate_chain(nodes)
        nodes["tanh"].meta[KEY].output_qspec = SharedQuantizationSpec(nodes["relu"])
        nodes["tanh"].meta[KEY].input_qspec_map[nodes["mul"]] = SharedQuantizationSpec(nodes["relu"])

    def annotate_float_relu(nodes: dict[str, Any]) -> None:
        nodes["relu"].meta[KEY] = QuantizationAnnotation({nodes["x"]: None}, None, _annotated=True)

    composed = tosaic.fx.compose_quantizers(
        [ByHand(annotate_sharing), ByHand(annotate_float_relu)], conflict="last"
    )
    made = convert(Chain(), SAMPLES, composed)
    plan = composed.plan
    assert plan[Edge("mul", "tanh")].dtype == "int8"
    assert plan[Output("tanh")] == Shared(Edge("mul", "tanh"))
    assert rows(made, "tanh") == rows(made, "mul")[-1:]
    reasons = [change.reason for change in plan.history if change.slot == Output("tanh")]
    assert any("which has no spec now" in reason for reason in reasons)


def test_a_spec_derived_from_a_place_without_a_spec_is_dropped_and_reported() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(F.relu(x))

    def annotate_linear(nodes: dict[str, Any]) -> None:
        relu, weight, bias = nodes["linear"].args
        nodes["relu"].meta[KEY] = QuantizationAnnotation({}, INT8, _annotated=True)
        derived = DerivedQuantizationSpec(
            [relu, (weight, nodes["linear"])], lambda observers: None, torch.int32
        )
        nodes["linear"].meta[KEY] = QuantizationAnnotation(
            {weight: INT8, bias: derived}, INT8, _annotated=True
        )

    def annotate_float_relu(nodes: dict[str, Any]) -> None:
        nodes["relu"].meta[KEY] = QuantizationAnnotation(_annotated=True)

    composed = tosaic.fx.compose_quantizers(
        [ByHand(annotate_linear), ByHand(annotate_float_relu)], conflict="last"
    )
    convert(Linear(), SAMPLES, composed)
    bias = next(slot for slot in composed.plan.slots() if isinstance(slot, Edge) and "bias" in slot.producer)
    assert composed.plan[bias] == FLOAT
    assert any(change.slot == bias and "derived" in change.reason for change in composed.plan.history)


def test_each_quantizers_hooks_are_called() -> None:
    secretive = Secretive()

    def annotate_output(nodes: dict[str, Any]) -> None:
        nodes["output"].meta[KEY] = QuantizationAnnotation({nodes["tanh"]: HALF}, _annotated=True)

    made = convert(Chain(), SAMPLES, tosaic.fx.compose_quantizers([secretive, ByHand(annotate_output)]))
    assert secretive.transformed == 1
    assert secretive.observers
    assert rows(made, "tanh")


def test_two_quantizers_of_other_projects_compose_with_rules_around_one_of_them() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(F.relu(self.conv(x)))

    samples = [(torch.rand(1, 3, 8, 8),)]
    composed = tosaic.fx.compose_quantizers([QUANTIZERS["xnnpack"](), QUANTIZERS["arm"]()], conflict="first")
    made = convert(Net(), samples, composed)
    assert {each.winner for each in composed.conflicts} == {"XNNPACKQuantizer"}
    assert {each.quantizers for each in composed.conflicts} == {("XNNPACKQuantizer", "TOSAQuantizer")}
    assert [row[0] for row in qparams_of(made)] == ["x", "relu", "linear"]
    authors = {composed.plan.author(slot) for slot in composed.plan}
    assert authors == {"XNNPACKQuantizer", "TOSAQuantizer"}


def test_an_object_that_is_not_a_quantizer_is_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"\[compose_quantizers\] not a quantizer"):
        tosaic.fx.compose_quantizers([ByHand])
    with pytest.raises(tosaic.InvalidGraph, match=r"\[wrap_quantizer\] not a quantizer.*got int"):
        tosaic.wrap_quantizer(3, rules=[])
    with pytest.raises(tosaic.InvalidGraph, match="conflict"):
        tosaic.fx.compose_quantizers([], conflict="none")


def test_there_is_no_report_before_a_graph_was_annotated() -> None:
    for quantizer in (
        tosaic.fx.compose_quantizers([]),
        tosaic.wrap_quantizer(ByHand(annotate_mul), rules=[]),
    ):
        with pytest.raises(tosaic.InvalidGraph, match="has not annotated a graph yet"):
            _ = quantizer.report
