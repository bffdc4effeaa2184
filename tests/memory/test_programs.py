"""Plans of programs: on the host, lowered, split between claimants, with state and with branches."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import tosaic
from refusals import refusal
from torch import nn
from tosaic import _core

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


class Alternating(nn.Module):
    """Two groups of a target with nodes of the host between them, and a value from before the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.first(x)).exp()
        return self.second(y) + x


class Flipped(nn.Module):
    """Rows in reverse order, between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).flip(2))


class Gated(nn.Module):
    """Matrices, which have one dim order."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.sigmoid(self.up(x)).exp()) + x


class Returned(nn.Module):
    """An input, a view of it, and what is computed from it, all returned."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x.reshape(-1), x.relu().neg()


class Counter(nn.Module):
    """A buffer that each run adds to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Branching(nn.Module):
    """A branch with values of its own."""

    def forward(self, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(p, lambda x: (x * 2).relu() + x.exp(), lambda x: x.sin(), (x,)) + x


class Sliced(nn.Module):
    """Views of views, tensors without elements, and a number."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.relu()
        return y.reshape(-1)[4:12].exp(), torch.cat([y[:0], y]), y[:0].relu(), y.sum()


def _exported(module: nn.Module, *args: torch.Tensor) -> Any:
    torch.manual_seed(1)
    return torch.export.export(module.eval(), args)


def _program(module: nn.Module, *args: torch.Tensor) -> tosaic.Program:
    return tosaic.from_exported(_exported(module, *args))


X = torch.linspace(-1, 1, 16).reshape(4, 4)
IMAGE = torch.linspace(-1, 1, 3 * 64).reshape(1, 3, 8, 8)


@cache
def _split() -> Any:
    claimant = tosaic.Claimant.named("TOSA-1.0+FP").deny(op="sigmoid").deny(op="exp")
    return tosaic.lower(_exported(Alternating(), IMAGE), unsupported="split", claimants=[claimant])


def test_one_plan_is_over_host_and_groups() -> None:
    plan = _split().plan_memory()
    assert [step for step in plan.steps if step.startswith("group")] == ["group0", "group1"]
    assert plan.buffer("sigmoid").part == "host"
    assert plan.buffer("exp").alias_of == "sigmoid", "the host computes over what nobody reads afterwards"
    assert plan.buffer("x").last > plan.steps.index("group0"), "the second group reads the input, too"
    made = [each for each in plan.buffers if each.part == "group0"]
    assert {each.kind for each in made} >= {"activation", "scratch", "internal"}
    assert plan.gap == 0
    assert plan.fault == ""


def test_scratch_of_groups_is_in_memory_that_is_free_then() -> None:
    split = _split()
    plan, outside = split.plan_memory(), split.plan_memory(scratch=False)
    scratch = [each for each in plan.buffers if each.kind == "scratch"]
    assert scratch
    assert outside.peak <= plan.peak < outside.peak + sum(each.nbytes for each in scratch)
    for each in scratch:
        inner = [b for b in plan.buffers if b.kind == "internal" and b.part == each.part]
        assert inner
        for buffer in inner:
            assert each.offset <= buffer.offset
            assert buffer.offset + buffer.nbytes <= each.offset + each.nbytes
    apart = split.plan_memory(arenas={"scratch": "sram"})
    assert apart.peak == outside.peak + max(each.nbytes for each in scratch)


def test_conversions_of_dim_orders_between_host_and_groups_have_memory() -> None:
    split = _split()
    plan = split.plan_memory(scratch=False)
    orders = [port.dim_order for part in split.parts for port in (*part.inputs, *part.outputs)]
    assert orders.count((0, 2, 3, 1)) > 1
    assert not [step for step in plan.steps if step.startswith("order for")], "sigmoid and exp are free"
    claimant = tosaic.Claimant.named("TOSA-1.0+FP").deny(op="flip")
    flipped = _exported(Flipped(), IMAGE)
    split = tosaic.lower(flipped, unsupported="split", claimants=[claimant])
    plan = split.plan_memory(scratch=False)
    copies = [step for step in plan.steps if step.startswith("order for")]
    read = [port.dim_order for port in split.parts[1].inputs]
    assert copies == ["order for flip"] + ["order for group1"] * (read == [(0, 2, 3, 1)])
    assert plan.buffer("group0.conv2d.flip").nbytes == plan.buffer("flip").nbytes == 2048


def test_the_pte_file_of_a_split_program_has_the_same_buffers(tmp_path: Path) -> None:
    claimant = tosaic.Claimant.named("TOSA-1.0+FP").deny(op="sigmoid").deny(op="exp")
    split = tosaic.lower(_exported(Gated(), X), unsupported="split", claimants=[claimant])
    split.save(tmp_path / "m.pte")
    theirs = tosaic.load_pte(tmp_path / "m.pte").method().memory_plan
    ours = split.plan_memory(scratch=False, in_place=False)
    assert (ours.peak, ours.lower_bound) == (theirs.peak, theirs.lower_bound)
    sizes = sorted(each.nbytes for each in ours.buffers if each.alias == "none")
    assert sizes == sorted(each.nbytes for each in theirs.buffers if each.alias == "none")
    assert split.plan_memory(scratch=False).peak < theirs.peak


@pytest.mark.parametrize("target", ["TOSA-1.0+FP", "TOSA-1.0+INT"])
def test_a_lowered_program_is_one_group_between_conversions(target: str) -> None:
    exported: Any = _exported(Alternating(), IMAGE)
    if target.endswith("INT"):
        exported = tosaic.quantize(exported, [(IMAGE,)], progress=False)
    plan = tosaic.lower(exported, target=target).plan_memory()
    assert plan.steps.count("forward") == 1
    converts = [step for step in plan.steps if step.startswith("convert")]
    assert converts == (["convert for forward", "convert for caller"] if target.endswith("INT") else [])
    assert plan.buffer("x").type_text == "f32[1,3,8,8]"
    assert [each.type_text for each in plan.buffers if each.kind == "output"] == ["f32[1,3,8,8]"]
    assert plan.gap == 0


def test_returned_inputs_and_their_views_need_no_memory_of_their_own() -> None:
    plan = _program(Returned(), X).plan_memory()
    assert plan.buffer("x").path == "x, out[0]"
    assert (plan.buffer("reshape").alias, plan.buffer("reshape").path) == ("view", "out[1]")
    assert plan.buffer("relu").alias == "none", "the input is returned and cannot be overwritten"
    assert plan.buffer("neg").alias_of == "relu"
    assert (plan.peak, plan.gap) == (128, 0)
    mine = _program(Returned(), X).plan_memory(plan_inputs=False, plan_outputs=False)
    assert mine.peak == 0
    assert {each.arena for each in mine.buffers} == {"caller"}


def test_a_state_lives_in_an_arena_of_its_own_and_is_updated_in_place() -> None:
    program = _program(Counter(), X)
    plan = program.plan_memory()
    assert {arena.name: arena.nbytes for arena in plan.arenas} == {"states": 64, "activations": 64}
    new = next(each for each in plan.buffers if each.alias_of == "b_total")
    assert (new.alias, new.arena) == ("in_place", "states")
    assert program.plan_memory(in_place=False).peak == 192
    one = program.plan_memory(arenas={"state": "activations"})
    assert (len(one.arenas), one.peak) == (1, 128)
    lowered = tosaic.lower(_exported(Counter(), X)).plan_memory()
    assert [each.kind for each in lowered.buffers if each.arena == "states"] == ["state"]


def test_branches_share_scratch() -> None:
    program = _program(Branching(), torch.tensor(True), X)
    plan = program.plan_memory()
    scratch = plan.buffer("cond.scratch")
    inner = [each for each in plan.buffers if each.kind == "internal"]
    assert (scratch.nbytes, [each.name for each in inner]) == (64, ["cond/0/exp"])
    assert plan.peak == plan.lower_bound
    split = tosaic.lower(
        _exported(Branching(), torch.tensor(True), X), unsupported="split", claimants=["TOSA-1.0+FP"]
    )
    names = [each.name for each in split.plan_memory().buffers if each.kind == "internal"]
    assert any(name.startswith("cond/0/group") for name in names)


def test_empty_tensors_views_of_views_and_numbers() -> None:
    plan = _program(Sliced(), X).plan_memory()
    base = plan.buffer("relu")
    part = next(each for each in plan.buffers if each.nbytes == 32 and each.alias == "view")
    assert (part.offset, part.arena) == (base.offset + 16, base.arena)
    assert {each.nbytes for each in plan.buffers if each.shape == (0, 4)} == {0}
    assert next(each for each in plan.buffers if each.shape == ()).nbytes == 4
    assert plan.gap == 0


def test_programs_without_groups_and_without_nodes() -> None:
    split = tosaic.lower(_exported(Returned(), X), unsupported="split", claimants=["TOSA-1.0+INT"])
    assert not split.parts
    assert split.plan_memory().peak == _program(Returned(), X).plan_memory().peak
    nothing = _program(nn.Identity(), X).plan_memory()
    assert (nothing.peak, nothing.steps, len(nothing.live_bytes)) == (64, (), 1)


def test_nodes_say_what_they_may_overwrite_and_what_is_a_view() -> None:
    nodes = {node.op: node for node in _program(Sliced(), X).graph.nodes}
    assert _core.in_place_operands(nodes["relu"]) == 1
    assert _core.in_place_operands(nodes["sum"]) == 0
    assert _core.view_offsets(nodes["reshape"], alignment=16) == [0]
    assert _core.view_offsets(nodes["exp"], alignment=16) is None
    slices = [n for n in _program(Sliced(), X).graph.nodes if n.op == "slice" and n.attrs["start"] == 4]
    assert _core.view_offsets(slices[0], alignment=16) == [16]
    assert _core.view_offsets(slices[0], alignment=64) is None


@pytest.mark.parametrize("alignment", [1, 4, 16, 64, 256])
def test_buffers_are_aligned(alignment: int) -> None:
    plan = _split().plan_memory(alignment=alignment)
    own = [each for each in plan.buffers if each.alias == "none" and each.kind != "internal"]
    assert all(each.offset % alignment == 0 for each in own)
    assert all(each.offset % 64 == 0 for each in own if each.kind == "scratch")


@pytest.mark.parametrize("value", [0, 3, -16, 2.0, "16", True, 1 << 80])
def test_wrong_alignments_are_refused(value: Any) -> None:
    program = _program(Returned(), X)
    text = refusal(tosaic.InvalidGraph, program.plan_memory, alignment=value)
    assert (
        text
        == f"[plan_memory] unknown value of 'alignment': expected a power of two up to 1048576, got {value!r}"
    )


# ---- as data ----


def test_a_plan_is_written_as_csv_and_json(tmp_path: Path) -> None:
    plan = _split().plan_memory()
    plan.to_csv(tmp_path / "plan.csv")
    with (tmp_path / "plan.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [each.name for each in plan.buffers]
    (row,) = [row for row in rows if row["name"] == "x"]
    assert (row["shape"], row["nbytes"], row["arena"], row["kind"]) == (
        "1x3x8x8",
        "768",
        "activations",
        "input",
    )
    plan.to_json(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data == json.loads(json.dumps(plan.as_dict()))
    assert (data["peak"], data["lower_bound"], data["gap"]) == (plan.peak, plan.lower_bound, 0)
    assert len(data["live_bytes"]) == len(data["steps"]) + 1
    with pytest.raises(tosaic.WriteError):
        plan.to_csv(tmp_path / "nowhere" / "plan.csv")


def test_a_plan_reads_well_in_a_terminal_and_has_a_picture() -> None:
    plan = _split().plan_memory()
    lines = str(plan).splitlines()
    assert lines[0] == "memory of forward"
    assert max(map(len, lines)) <= 80
    assert "the least possible" in str(plan)
    html = plan.report().html
    assert "<svg" in html
    assert html.count("<title>") > 5, "each rectangle says what it is"
    assert repr(plan).startswith("<tosaic.memory.MemoryPlan 'forward': ")


def test_two_plans_are_compared_side_by_side() -> None:
    split = _split()
    comparison = split.plan_memory(scratch=False).compare(split.plan_memory(scratch=False, in_place=False))
    assert comparison.ok
    assert comparison.saved == comparison.other.peak - comparison.plan.peak
    assert "proven bound" in str(comparison)
    turned = comparison.other.compare(comparison.plan)
    assert (turned.ok, turned.saved) == (comparison.saved == 0, -comparison.saved)


def test_an_unknown_buffer_is_an_error() -> None:
    text = refusal(tosaic.InvalidGraph, _split().plan_memory().buffer, "nothing")
    assert text == "[memory] the plan has no such buffer: got 'nothing'"
