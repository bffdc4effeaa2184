"""Which nodes claimants take, and why not: `tosaic.Claimant`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import tosaic
from quantize_calls import qdq
from random_graphs.quantized import quantized_program
from refusals import refusal
from torch import nn
from tosaic import Claimant, InvalidGraph, _core

from partitions.device_cases import CASES, DeviceCase, exported

_BY_NAME = {case.name: case for case in CASES}
_TARGETS = ("TOSA-1.0+INT", "TOSA-1.0+INT+int16", "TOSA-1.0+INT+FP+int16")


def rules_of(claimant: str, case: DeviceCase | str) -> set[str]:
    """The rules that the operator of a case breaks; quantize and dequantize nodes are left out."""
    program = tosaic.from_exported(exported(_BY_NAME[case] if isinstance(case, str) else case))
    verdicts = Claimant.named(claimant).supports(program)
    assert isinstance(verdicts, tuple)
    converts = ("quantize", "dequantize")
    return {reason.rule for verdict in verdicts if verdict.op not in converts for reason in verdict.reasons}


def case(call: Callable[..., torch.Tensor], *shapes: tuple[int, ...], **more: Any) -> DeviceCase:
    return DeviceCase("case", call, shapes, **more)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.head = nn.Conv2d(4, 4, 3, stride=4, dilation=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = [qdq(conv.weight, 0.01) for conv in (self.body[0], self.head)]
        x = qdq(x, 0.05)
        x = qdq(torch.relu(qdq(F.conv2d(x, weights[0]), 0.05)), 0.05)
        x = qdq(F.conv2d(x, weights[1], stride=4, dilation=2), 0.05)
        return torch.sin(x)


@pytest.fixture(scope="module")
def net() -> tosaic.Program:
    """Two quantized convolutions, of which one has stride 4 and dilation 2, and a sine of floats."""
    return tosaic.from_exported(torch.export.export(_Net().eval(), (torch.zeros(1, 3, 16, 16),)))


# ---- names ----


def test_every_name_makes_a_claimant() -> None:
    for name in Claimant.names():
        assert Claimant.named(name).name == name


def test_the_target_of_a_tosa_claimant_is_its_canonical_text() -> None:
    claimant = Claimant.named("tosa-1.0+int16+int")
    assert claimant.name == claimant.target == "TOSA-1.0+INT+int16"


def test_a_double_rounding_target_rounds_twice() -> None:
    assert Claimant.named("TOSA-1.0+INT+doubleround").rounding == "double_round"
    assert Claimant.named("TOSA-1.0+INT").rounding == "single_round"


def test_an_unknown_name_lists_the_names_and_near_ones() -> None:
    text = refusal(InvalidGraph, Claimant.named, "ethos-u55-120")
    assert text.startswith(
        "[claimant] unknown claimant: expected a TOSA target such as 'TOSA-1.0+INT', or one of host"
    )
    assert "got 'ethos-u55-120'. Did you mean 'ethos-u55-128'." in text


def test_a_name_that_is_not_a_string_is_refused() -> None:
    assert "unknown value of 'name'" in refusal(InvalidGraph, Claimant.named, 3)


# ---- agreement with lowering ----


@pytest.mark.parametrize("target", _TARGETS)
def test_verdicts_agree_with_lowering_on_operator_sized_programs(target: str) -> None:
    claimant, judged = Claimant.named(target), 0
    for each in random.Random(0).sample(CASES, 40):
        program = tosaic.from_exported(exported(each))
        verdicts = claimant.supports(program)
        assert isinstance(verdicts, tuple)
        claimed = all(v for v in verdicts if v.op not in ("quantize", "dequantize"))
        assert claimed == tosaic.check(program, target=target).ok, each.name
        judged += claimed
    assert judged > 10


@pytest.mark.parametrize("seed", range(20))
def test_a_node_of_a_random_program_is_claimed_if_it_or_its_region_of_floats_lowers_alone(seed: int) -> None:
    program, _ = quantized_program(seed)
    graph = _core.with_own_dequantize(_core.before_integers(program.graph))
    target = "TOSA-1.0+INT+int16"
    verdicts = Claimant.named(target).verdicts(graph)
    regions = {node: region for region in _core.float_regions(graph) for node in region}
    for i, verdict in enumerate(verdicts):
        unit = regions.get(i, [i])
        groups = [0 if k in unit else -1 for k in range(len(verdicts))]
        (alone, _, _), *_ = _core.split(graph, groups)[1]
        floats = any(port.value.dtype.startswith("f") for port in (*alone.inputs, *alone.outputs))
        lowers = not floats and not _core.problems(alone, pipeline=target)
        assert verdict.supported == lowers, verdict


def test_the_host_takes_everything(net: tosaic.Program) -> None:
    assert all(Claimant.named("host").supports(net))


def test_a_target_of_integers_refuses_floats(net: tosaic.Program) -> None:
    verdict = Claimant.named("TOSA-1.0+INT").supports(net, "sin")
    assert isinstance(verdict, tosaic.partitions.Verdict)
    assert not verdict
    assert [reason.rule for reason in verdict.reasons] == ["float"]
    assert verdict.reasons[0].message.startswith(
        "[claimant] 'sin' computes with floats, and TOSA-1.0+INT has integers only: expected quantized "
    )
    assert "test_claimants.py:" in verdict.reasons[0].problem.source


def test_a_target_of_floats_refuses_quantized_nodes(net: tosaic.Program) -> None:
    verdict = Claimant.named("TOSA-1.0+FP").supports(net, "conv2d")
    assert isinstance(verdict, tosaic.partitions.Verdict)
    assert [reason.rule for reason in verdict.reasons] == ["integer"]
    assert Claimant.named("TOSA-1.0+FP").supports(net, "sin")


def test_a_target_without_16_bits_takes_a_resize_of_them() -> None:
    """RESIZE has i16 only with EXT-INT16. The lowering looks up the elements."""
    program = tosaic.from_exported(exported(_BY_NAME["nearest to half int16"]))
    (verdict,) = (v for v in Claimant.named("TOSA-1.0+INT").supports(program) if v.op == "resize")
    assert not verdict.reasons


def test_a_lowered_program_is_refused(net: tosaic.Program) -> None:
    lowered = tosaic.lower(net, target="TOSA-1.0+INT+FP")
    text = refusal(InvalidGraph, Claimant.named("host").supports, lowered)
    assert text == (
        "[claimant] claimants judge programs before they are lowered: expected a graph at stage exported or "
        "quantized, got a graph at stage tosa"
    )


# ---- limits of devices ----


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("conv2d stride 3x3 int8", set()),
        ("conv2d stride 4x1 int8", set()),
        ("conv2d kernel 64x64 int8", set()),
        ("conv2d kernel 64x65 int8", {"kernel-product"}),
        ("conv2d kernel 65x1 int8", {"kernel-height"}),
        ("avg_pool2d kernel 8, padded int8", set()),
        ("avg_pool2d kernel 9, padded, not counted int8", {"kernel-height", "kernel-width"}),
        ("matmul rank 3 int8", set()),
        ("matmul rank 3 int16", {"dtype"}),
        ("where int8", {"operator"}),
        ("argmax of 128 int8", {"axis-extent"}),
        ("bilinear 2 int8", {"bilinear"}),
        ("permute with 65537 int8", {"permuted-product"}),
    ],
)
def test_limits_of_ethos_u55(name: str, rules: set[str]) -> None:
    assert rules_of("ethos-u55-128", name) == rules


def test_all_reasons_are_given_not_only_the_first() -> None:
    both = case(lambda x, w: F.conv2d(x, w, stride=4, dilation=(1, 2)), (1, 2, 70, 70), weight=(2, 2, 65, 2))
    assert rules_of("ethos-u55-128", both) == {"stride", "kernel-height"}


def test_the_text_of_a_limit_names_node_and_source(net: tosaic.Program) -> None:
    verdict = Claimant.named("ethos-u55-128").supports(net, "conv2d_1")
    assert isinstance(verdict, tosaic.partitions.Verdict)
    (reason,) = verdict.reasons
    assert reason.message.startswith(
        "[claimant] the stride of 'tosa.conv2d' is not what ethos-u55-128 takes: expected 1 to 3, got 4 "
        "(node 'conv2d_1', test_claimants.py:"
    )


@pytest.mark.parametrize(
    ("each", "rules"),
    [
        (case(F.linear, (4, 8), weight=(5, 8)), set()),
        (case(F.linear, (4, 8), (5, 8)), {"constant-weight"}),
        (case(torch.exp, (4, 8)), {"operator"}),
        (case(torch.tanh, (4, 8)), set()),
        (case(torch.tanh, (4, 8), dtype=torch.int16), {"dtype"}),
        (case(torch.maximum, (4, 8), (4, 8)), {"shared-qparams"}),
        (case(torch.add, (1, 3, 4, 4), (3, 1, 1)), set()),
        (case(torch.add, (1, 3, 4, 4), (4, 1)), {"broadcast"}),
        (case(lambda x: F.max_pool2d(x, 2), (1, 2, 4, 4)), set()),
        (case(lambda x: F.max_pool2d(x, 2, dilation=2), (1, 2, 8, 8)), {"dilation"}),
        (case(lambda x: torch.softmax(x, -1), (4, 8)), {"output-scale"}),
        (
            case(lambda x, w: F.conv_transpose2d(x, w, groups=2), (1, 4, 5, 5), weight=(4, 2, 3, 3)),
            {"groups"},
        ),
        (
            case(lambda x, w: F.conv2d(x, w, groups=2), (1, 4, 5, 5), weight=(4, 2, 3, 3), dtype=torch.int16),
            {"groups"},
        ),
        (
            case(lambda x, w: F.conv2d(x, w, groups=4), (1, 4, 5, 5), weight=(8, 1, 3, 3), dtype=torch.int16),
            set(),
        ),
        (
            case(F.conv_transpose2d, (1, 4, 5, 5), weight=(4, 2, 3, 3), dtype=torch.int16),
            {"transposed"},
        ),
    ],
)
def test_limits_of_cortex_m(each: DeviceCase, rules: set[str]) -> None:
    assert rules_of("cortex-m55", each) == rules


@pytest.mark.parametrize(
    ("each", "rules"),
    [
        (case(F.conv2d, (1, 8, 3, 3), weight=(4, 8, 3, 3)), set()),
        (case(F.conv2d, (1, 1, 90, 92), weight=(4, 1, 90, 92)), {"kernel-volume"}),
        (case(F.conv2d, (1, 1, 4097, 1), weight=(4, 1, 4097, 1)), {"kernel-height"}),
        (
            case(lambda x, w: F.conv_transpose2d(x, w, stride=3), (1, 4, 5, 5), weight=(4, 4, 3, 3)),
            {"stride"},
        ),
        (case(lambda x: torch.softmax(x, -1), (4096, 8)), set()),
        (case(lambda x: torch.softmax(x, -1), (4097, 8)), {"row-count"}),
        (case(lambda x: torch.softmax(x, -1), (2, 2041)), {"axis-extent"}),
        (case(lambda x: torch.softmax(x, -1), (300, 2000)), {"elements"}),
        (case(lambda x: F.interpolate(x, scale_factor=2.0), (1, 2, 5, 5)), set()),
        (case(lambda x: F.interpolate(x, scale_factor=3.0), (1, 2, 5, 5)), {"upscale"}),
        (case(torch.maximum, (4, 8), (4, 8)), {"shared-qparams"}),
        (case(torch.sin, (4, 8)), {"operator"}),
        (case(torch.add, (4, 1), (1, 8)), {"full-operand"}),
    ],
)
def test_limits_of_neutron(each: DeviceCase, rules: set[str]) -> None:
    assert rules_of("neutron", each) == rules


def test_composites_of_a_claimant_are_preserved() -> None:
    assert {"softmax", "hardswish", "gelu"} <= set(Claimant.named("cortex-m4").preserved)
    assert Claimant.named("vgf").preserved == ()


# ---- rules of the user ----


def supported(claimant: Claimant, program: Any) -> set[str]:
    verdicts = claimant.supports(program)
    assert isinstance(verdicts, tuple)
    return {verdict.node for verdict in verdicts if verdict}


@pytest.mark.parametrize(
    "matching",
    [{"op": "relu"}, {"name": "relu"}, {"where": lambda node: node.op == "relu"}],
)
def test_a_denied_node_is_not_taken(matching: dict[str, Any], net: tosaic.Program) -> None:
    claimant = Claimant.named("TOSA-1.0+INT")
    denied = claimant.deny(**matching, why="the host is faster")
    assert supported(claimant, net) - supported(denied, net) == {"relu"}
    verdict = denied.supports(net, "relu")
    assert isinstance(verdict, tosaic.partitions.Verdict)
    assert verdict.reasons[0].rule == "deny"
    assert "denies it: the host is faster (node 'relu', test_claimants.py:" in verdict.reasons[0].message


def test_a_module_is_denied_with_what_is_inside() -> None:
    module = nn.Sequential(nn.Sequential(nn.ReLU(), nn.Sigmoid()), nn.Tanh()).eval()
    program = tosaic.from_exported(torch.export.export(module, (torch.ones(2),)))
    claimant = Claimant.named("TOSA-1.0+FP")
    assert supported(claimant.deny(module="0"), program) == {"tanh"}
    assert supported(claimant.deny(module="0.1"), program) == {"relu", "tanh"}


@pytest.mark.parametrize("matching", [{"module": "2"}, {"name": "conv2d_1"}])
def test_a_program_that_was_quantized_here_is_denied_by_the_calls_of_its_own_nodes(
    matching: dict[str, Any],
) -> None:
    """Quantize and dequantize nodes that were inserted after a node do not name the nodes that read them."""
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Sigmoid(), nn.Conv2d(8, 8, 3)
    )
    x = torch.ones(1, 3, 16, 16)
    exported = torch.export.export(module.eval(), (x,))
    program = tosaic.quantize(exported, [(x,)], progress=False)
    claimant = Claimant.named("TOSA-1.0+INT")
    denied = claimant.deny(**matching, why="the host is faster")
    assert supported(claimant, program) - supported(denied, program) == {"conv2d_1"}
    (verdict,) = [each for each in denied.supports(program) if each.node == "conv2d_1"]
    assert "(node 'conv2d_1', module '2'" in verdict.reasons[0].message


class ResidualNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(n, 8, 3, padding=1) for n in (3, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        return torch.relu(self.b(torch.relu(self.a(y))) + y)


def test_a_denied_module_leaves_a_residual_that_reads_its_result() -> None:
    """The dequantize node in front of a sum belongs to the sum, not to the module that made its operand."""
    samples = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)]
    exported = torch.export.export(ResidualNet().eval(), samples[0])
    program = tosaic.quantize(exported, samples, progress=False)
    denied = Claimant.named("TOSA-1.0+INT").deny(module="stem")
    plan = tosaic.partition(program, [denied])
    outside = {node.op for node, group in zip(plan.graph.nodes, plan.group_of, strict=True) if group is None}
    assert outside == {"quantize", "conv", "dequantize"}
    assert len(plan.groups) == 1


def test_an_allowed_node_is_taken_in_spite_of_the_limits_of_a_device(net: tosaic.Program) -> None:
    claimant = Claimant.named("ethos-u55-128")
    assert "conv2d_1" not in supported(claimant, net)
    assert "conv2d_1" in supported(claimant.allow(name="conv2d_1"), net)


def test_a_rule_cannot_allow_floats(net: tosaic.Program) -> None:
    verdict = Claimant.named("ethos-u55-128").allow(op="sin").supports(net, "sin")
    assert isinstance(verdict, tosaic.partitions.Verdict)
    assert [reason.rule for reason in verdict.reasons] == ["float"]


@pytest.mark.parametrize("name", ["cortex-m55", "neutron"])
def test_a_rule_cannot_allow_floats_to_kernels_of_integers(name: str, net: tosaic.Program) -> None:
    verdict = Claimant.named(name).allow(op="sin").supports(net, "sin")
    assert isinstance(verdict, tosaic.partitions.Verdict)
    assert [reason.rule for reason in verdict.reasons] == ["float"]


def test_a_rule_by_name_decides_before_one_by_operator(net: tosaic.Program) -> None:
    claimant = Claimant.named("TOSA-1.0+INT").deny(op="conv").allow(name="conv2d")
    taken = supported(claimant, net)
    assert "conv2d" in taken
    assert "conv2d_1" not in taken


def test_contradictory_rules_are_named_with_the_node(net: tosaic.Program) -> None:
    claimant = Claimant.named("vgf").deny(name="relu").allow(name="relu")
    text = refusal(InvalidGraph, claimant.supports, net)
    assert text.startswith(
        "[claimant] rules deny(name='relu') and allow(name='relu') contradict each other: expected rules of "
        "one kind that agree on a node, got one that allows it and one that denies it (node 'relu', test_"
    )


def test_a_rule_that_matches_nothing_is_an_error(net: tosaic.Program) -> None:
    claimant = Claimant.named("vgf")
    assert "rule deny(op='softmax') matches no node: expected a rule that matches a node" in refusal(
        InvalidGraph, claimant.deny(op="softmax").supports, net
    )
    assert "rule allow(name='relv') matches no node" in refusal(
        InvalidGraph, claimant.allow(name="relv").supports, net
    )
    assert "Did you mean 'relu'." in refusal(InvalidGraph, claimant.allow(name="relv").supports, net)
    assert "rule deny(module='tail') matches no node" in refusal(
        InvalidGraph, claimant.deny(module="tail").supports, net
    )
    assert "rule deny(where=<lambda>) matches no node" in refusal(
        InvalidGraph, claimant.deny(where=lambda _: False).supports, net
    )


def test_a_list_denies_each_entry_and_each_has_to_match(net: tosaic.Program) -> None:
    claimant = Claimant.named("TOSA-1.0+INT")
    ops = sorted({verdict.op for verdict in claimant.supports(net) if verdict})  # type: ignore[union-attr]
    assert len(ops) > 1
    denied = claimant.deny(op=ops[:2], why="both")
    assert {rule.value for rule in denied.rules} == set(ops[:2])
    assert not any(v for v in denied.supports(net) if v.op in ops[:2])  # type: ignore[union-attr]
    assert "'softmx'" in refusal(InvalidGraph, claimant.deny(op=[ops[0], "softmx"]).supports, net)
    for wrong in ([], [3], [""]):
        text = refusal(InvalidGraph, lambda each=wrong: claimant.deny(op=each))
        assert "expected a list of strings that are not empty" in text


def test_only_a_module_is_taken_with_what_is_inside() -> None:
    inner = nn.Sequential(nn.Sigmoid(), nn.Conv2d(4, 4, 1))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), inner).eval()
    program = tosaic.from_exported(torch.export.export(model, (torch.randn(1, 3, 8, 8),)))
    chosen = Claimant.named("TOSA-1.0+FP").only(module="1")
    assert supported(chosen, program) == {"sigmoid", "conv2d_1"}
    assert supported(chosen.only(op=["conv"]), program) == {"conv2d_1"}


@pytest.mark.parametrize("kind", ["op", "name", "where"])
def test_only_takes_what_matches_and_nothing_else(kind: str, net: tosaic.Program) -> None:
    claimant = Claimant.named("TOSA-1.0+INT")
    verdicts = claimant.supports(net)
    taken = {each.node for each in verdicts if each}  # type: ignore[union-attr]
    graph = _core.with_own_dequantize(_core.before_integers(net.graph))
    node = next(each for each in graph.nodes if each.name in taken)
    values: dict[str, Any] = {
        "op": [node.op],
        "name": node.name,
        "where": lambda each: each.name == node.name,
    }
    chosen = claimant.only(**{kind: values[kind]}, why="a test")
    found = chosen.supports(net)
    assert any(found)  # type: ignore[arg-type]
    refused = [each for each in found if not each and each.node not in {v.node for v in verdicts if not v}]  # type: ignore[union-attr]
    assert refused
    assert all("only(" in each.reasons[0].message and "a test" in each.reasons[0].message for each in refused)
    everything = claimant.only(where=lambda _: True)
    assert [bool(each) for each in everything.supports(net)] == [bool(each) for each in verdicts]  # type: ignore[union-attr]
    wrong: Any = (lambda _: False) if kind == "where" else "softmx"
    assert "matches no node" in refusal(InvalidGraph, claimant.only(**{kind: wrong}).supports, net)


def test_a_plan_without_groups_says_so(net: tosaic.Program, caplog: pytest.LogCaptureFixture) -> None:
    """Before, a condition with a typo, true for each node, left all nodes on the host without a message."""
    claimant = Claimant.named("TOSA-1.0+INT")
    with caplog.at_level("WARNING"):
        plan = tosaic.partition(net, claimants=[claimant.deny(where=lambda node: node.op != "convv")])
    assert plan.groups == ()
    assert plan.note.startswith("no node goes to TOSA-1.0+INT: all ")
    assert "x rule deny(where=<lambda>) denies it" in plan.note
    assert [record.message for record in caplog.records] == [plan.note]
    assert "no node goes to TOSA-1.0+INT" in " ".join(str(plan).split())
    assert tosaic.partition(net, claimants=[claimant]).note == ""


def test_an_operator_that_nobody_has_is_an_error_with_near_names(net: tosaic.Program) -> None:
    text = refusal(InvalidGraph, Claimant.named("vgf").deny(op="softmx").supports, net)
    assert text.startswith("[claimant] no operator has the name of rule deny(op='softmx')")
    assert text.endswith("Did you mean 'softmax'.")


def test_a_predicate_that_raises_or_answers_otherwise_stops_the_verdicts(net: tosaic.Program) -> None:
    def broken(_: tosaic.program.Node) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        Claimant.named("vgf").deny(where=broken).supports(net)
    (note,) = caught.value.__notes__
    assert note.startswith("in rule deny(where=broken), asked about node '")
    answers = Claimant.named("vgf").deny(where=lambda _: 3)  # type: ignore[arg-type, return-value]
    assert "expected True or False from '<lambda>', got 3" in refusal(InvalidGraph, answers.supports, net)


@pytest.mark.parametrize(
    ("matching", "text"),
    [
        ({}, "expected one of op, name, module and where, got none of them"),
        ({"op": "conv", "name": "x"}, "got op, name"),
        ({"op": ""}, "unknown value of 'op': expected a string that is not empty, got ''"),
        ({"module": 3}, "unknown value of 'module'"),
        ({"where": "conv"}, "unknown value of 'where': expected a function of a node"),
        ({"op": "conv", "why": 3}, "unknown value of 'why'"),
    ],
)
def test_malformed_rules_are_refused(matching: dict[str, Any], text: str) -> None:
    assert text in refusal(InvalidGraph, Claimant.named("vgf").deny, **matching)


def test_a_node_that_does_not_exist_is_an_error_with_near_names(net: tosaic.Program) -> None:
    text = refusal(InvalidGraph, Claimant.named("vgf").supports, net, "relo")
    assert text == (
        "[supports] the program has no such node: expected the name of a node, got 'relo'. "
        "Did you mean 'relu'."
    )


def test_rules_leave_the_claimant_unchanged() -> None:
    claimant = Claimant.named("vgf")
    claimant.deny(op="conv")
    assert claimant.rules == ()
