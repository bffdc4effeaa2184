"""Plans over several memories of limited size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import tosaic
from torch import nn
from tosaic.memory.plan_options import PlanOptions
from tosaic.memory.planner import plan_schedule

from memory.random_schedules import random_schedule, run_apart, run_planned

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


class Skipping(nn.Module):
    """A large value that is read at the end only, and small ones that are read at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.cat([x.sin()] * 8, 1)
        y = x.cos()
        for _ in range(3):
            y = y @ y
        return wide @ torch.cat([y] * 8)


@pytest.fixture(scope="module")
def program() -> tosaic.Program:
    return tosaic.from_exported(torch.export.export(Skipping(), (torch.ones(16, 16),)))


def test_buffers_that_are_used_most_are_in_the_fast_memory(program: tosaic.Program) -> None:
    plan = program.plan_memory(memories={"sram": 4096, "dram": (None, 64)})
    sizes = {arena.name: (arena.nbytes, arena.alignment) for arena in plan.arenas}
    assert sizes["sram"][0] <= 4096
    assert (sizes["sram"][1], sizes["dram"][1]) == (16, 64)
    assert plan.fault == ""
    wide = next(each for each in plan.buffers if each.shape == (16, 128))
    assert wide.arena == "dram"
    assert plan.buffer("cos").arena == "sram"
    assert all(each.offset % 64 == 0 for each in plan.buffers if each.arena == "dram")


def test_everything_is_in_the_first_memory_if_it_fits(program: tosaic.Program) -> None:
    whole = program.plan_memory()
    plan = program.plan_memory(memories={"sram": whole.peak, "dram": None})
    assert [(arena.name, arena.nbytes) for arena in plan.arenas] == [("sram", whole.peak)]
    less = program.plan_memory(memories={"sram": whole.peak - 16, "dram": None})
    assert {arena.name for arena in less.arenas} == {"sram", "dram"}


def test_a_memory_that_is_too_small_names_step_and_buffers(program: tosaic.Program) -> None:
    with pytest.raises(tosaic.InvalidGraph) as error:
        program.plan_memory(memories={"sram": 1024, "tcm": 2048})
    text = str(error.value)
    assert text.startswith("[plan_memory] memory 'tcm' is too small at step ")
    assert "got 2,048 bytes" in text
    assert "bytes, of which '" in text
    with pytest.raises(tosaic.InvalidGraph, match="memory 'sram' is too small"):
        program.plan_memory(arenas={"input": "sram"}, memories={"sram": 512, "dram": None})


@pytest.mark.parametrize(
    "memories",
    [5, {"a b": 4}, {"sram": 0}, {"sram": "4k"}, {"sram": (64, 3)}, {"sram": (64, 8)}, {"caller": 64}],
)
def test_wrong_memories_are_refused(program: tosaic.Program, memories: Any) -> None:
    with pytest.raises(tosaic.InvalidGraph, match="unknown value of 'memories'"):
        program.plan_memory(memories=memories)


def test_runs_in_several_memories_return_what_runs_apart_return() -> None:
    spread = 0
    for seed in range(150):
        schedule = random_schedule(seed)
        options = PlanOptions(alignment=8, memories={"sram": (48, 8), "dram": (None, 16)})
        plan = plan_schedule(schedule, options)
        spread += len(plan.arenas) == 2
        for found, expected in zip(run_planned(schedule, plan), run_apart(schedule), strict=True):
            assert (found == expected).all(), f"seed {seed}"
    assert spread > 20
