"""Partitions inside the branches of cond and the bodies of loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn

from partitions.test_plans import denying, exported

FP = "TOSA-1.0+FP"
NO_EXP = denying("exp", target=FP)


class Branches(nn.Module):
    """Each branch has an operator that nobody takes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.a(x))

        def larger(y: torch.Tensor) -> torch.Tensor:
            return self.b(torch.exp(torch.sin(y)))

        def smaller(y: torch.Tensor) -> torch.Tensor:
            return torch.exp(torch.tanh(y)) * 2 + 1

        return self.a(torch.cond(y.sum() > 0, larger, smaller, (y,)))


class Loop(nn.Module):
    """A loop around a branch: a region in a region."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def goes_on(i: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return i < 3

        def body(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            def larger(x: torch.Tensor) -> torch.Tensor:
                return torch.exp(torch.sigmoid(x))

            def smaller(x: torch.Tensor) -> torch.Tensor:
                return torch.cos(x)

            y = torch.cond(x.sum() > 0, larger, smaller, (self.step(x),))
            return i + 1, y - 0.5

        loop = torch._higher_order_ops.while_loop
        return loop(goes_on, body, (torch.tensor(0), x))[1]


def split_of(program: Any, *claimants: Any) -> Any:
    return tosaic.lower(program, unsupported="split", claimants=claimants or [NO_EXP])


def ops_of(split: Any) -> list[list[str]]:
    return [[node.op for node in part.source.graph.nodes] for part in split.parts]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_branches_are_split_and_compute_the_same(sign: float) -> None:
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))
    module = Branches()
    program = exported(module, x)
    split = split_of(program)
    assert ops_of(split) == [
        ["linear", "relu", "sum", "gt"],
        ["linear"],
        ["sin"],
        ["linear"],
        ["tanh"],
        ["mul", "add"],
    ]
    for scale in (sign, 3 * sign):
        given = x * scale
        expected = program.module()(given).detach().numpy()
        np.testing.assert_allclose(split.run(given), expected, rtol=1e-5, atol=1e-6)
    assert tosaic.compare(program, split, [(x,), (-x,)]).ok


def test_groups_in_branches_get_the_weights_as_constants() -> None:
    split = split_of(exported(Branches(), torch.randn(2, 4)))
    linear = split.parts[3]
    assert [port.path for port in linear.inputs] == ["exp"]
    constants = [value for value in linear.source.graph.values if value.kind == "constant"]
    assert sorted(tuple(value.shape) for value in constants) == [(4,), (4, 4)]


def test_plans_of_regions_have_names_borders_and_reasons() -> None:
    program = exported(Branches(), torch.randn(2, 4))
    plan = tosaic.partition(program, [NO_EXP])
    assert list(plan.regions) == ["cond.0", "cond.1"]
    assert [group.index for group in plan.groups] == list(range(6))
    first = plan.regions["cond.0"]
    assert [group.index for group in first.groups] == [2, 3]
    assert first.group_of == (2, None, 3)
    crossing = [(border.value, border.made_by, border.read_by) for border in first.borders]
    assert crossing == [
        ("relu", None, (2,)),
        ("sin", 2, (None,)),
        ("exp", None, (3,)),
        ("linear", 3, (None,)),
    ]
    assert plan.is_minimal
    place = plan.why("exp")
    assert (place.claimant, place.op) == ("host", "exp")
    assert plan.why("tanh").group == 4
    assert plan.why(first.graph.nodes[0]).group == 2
    assert len(plan.nodes_of(None)) == 3
    text = str(plan)
    assert "13 nodes, 77% claimed" in text
    assert "cond.0: sin" in text
    assert max(map(len, text.splitlines())) <= 80
    assert set(plan.report().data["regions"]) == {"cond.0", "cond.1"}


def test_a_branch_in_a_loop_is_split_and_computes_the_same(tmp_path: Path) -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(5))
    program = exported(Loop(), x)
    split = split_of(program)
    regions = [name for name, _ in split.partitions.all_plans()]
    assert len(regions) == 5
    expected = program.module()(x).detach().numpy()
    np.testing.assert_allclose(split.run(x), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(split.prepare(on="reference").run(x), expected, rtol=1e-5, atol=1e-6)
    split.save(tmp_path / "out")
    np.testing.assert_array_equal(tosaic.partitions.load_split(tmp_path / "out").run(x), split.run(x))
    found = split.compare_groups([(x,)])
    assert len(found) == len(split.parts) - 1  # one branch is not taken
    assert all(each.ok for each in found.values())


def test_a_claimant_with_control_flow_takes_a_branch_whole() -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    program = exported(Plain(), torch.randn(2, 3))
    split = split_of(program, "TOSA-1.0+FP+controlflow")
    assert ops_of(split) == [["sum", "gt", "cond"]]
    assert split.partitions.regions == {}
    split = split_of(program, FP)
    assert ops_of(split) == [["sum", "gt"], ["sin"], ["cos"]]


def test_rules_reach_nodes_of_regions() -> None:
    program = exported(Branches(), torch.randn(2, 4))
    plan = tosaic.partition(program, [denying("tanh", target=FP)])
    assert plan.why("tanh").claimant == "host"
    assert [each.rule for each in plan.why("tanh").refusals] == ["deny"]
    with pytest.raises(tosaic.InvalidGraph, match="matches no node"):
        tosaic.partition(program, [denying("conv", target=FP)])


def test_a_quantized_program_around_a_branch_computes_the_same() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.last = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            return self.last(torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)))

    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    quantized = tosaic.quantize(exported(Around(), x), [(x,), (-x,)], progress=False)
    split = split_of(quantized, "TOSA-1.0+INT", FP)
    assert {group.claimant for group in split.partitions.groups} == {"TOSA-1.0+INT", FP}
    for given in (x, -x):
        np.testing.assert_array_equal(split.run(given), quantized.run(given))
