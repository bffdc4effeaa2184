"""Memory plans of ``.pte`` files that ExecuTorch's flows made: as they are, and next to tosaic's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

import tosaic  # noqa: E402
from executorch.exir import ExecutorchBackendConfig, to_edge  # noqa: E402
from executorch.exir._serialize._program import deserialize_pte_binary  # noqa: E402
from executorch.exir.passes import MemoryPlanningPass  # noqa: E402
from tosaic import _core  # noqa: E402
from tosaic.pte.file import PteFile, PteMethod  # noqa: E402

from pte.examples import EXAMPLES, make  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


def _method(name: str) -> PteMethod:
    return PteFile(_core.read_pte(make(name).data), f"{name}.pte").method()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plan_in_the_file_equals_the_plan_that_executorch_reads(name: str) -> None:
    plan, method = _method(name).memory_plan, _method(name)
    (theirs,) = deserialize_pte_binary(make(name).data).program.execution_plan
    assert plan.peak == sum(theirs.non_const_buffer_sizes)
    tensors = {i: v.val for i, v in enumerate(theirs.values) if type(v.val).__name__ == "Tensor"}
    for each in plan.buffers:
        at = tensors[int(each.name[1:])].allocation_info
        if at is not None:
            offset = at.memory_offset_low | at.memory_offset_high << 32
            assert (each.arena, each.offset) == (f"memory{at.memory_id}", offset)
    assert plan.fault == ""
    assert plan.lower_bound <= plan.peak
    assert [each.path for each in plan.buffers if each.kind == "input"] == [
        f"x{i}" for i in range(len(method.inputs))
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_tosaics_plan_of_the_same_instructions_needs_no_more(name: str) -> None:
    method = _method(name)
    comparison = method.plan_memory().compare(method.memory_plan)
    assert comparison.ok
    assert comparison.plan.gap == 0
    assert {each.name: each.nbytes for each in comparison.plan.buffers} == {
        each.name: each.nbytes for each in method.memory_plan.buffers
    }
    assert "proven bound" in str(comparison)


class Views(torch.nn.Module):
    """A reshape of a value that is read before and after it."""

    def forward(self, x: Any) -> Any:
        y = torch.sigmoid(x)
        z = y.reshape(2, 8)
        return torch.exp(z) + 1, torch.cos(y)


def _planned(module: torch.nn.Module, *args: Any, **options: Any) -> PteMethod:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manager = to_edge(torch.export.export(module.eval(), args))
        planning = MemoryPlanningPass(**options)
        config = ExecutorchBackendConfig(memory_planning_pass=planning)
        return PteFile(_core.read_pte(manager.to_executorch(config).buffer)).method()


def test_a_view_is_at_the_place_of_its_base_and_keeps_it_alive() -> None:
    plan = _planned(Views(), torch.randn(4, 4)).memory_plan
    (view,) = [each for each in plan.buffers if each.alias == "view"]
    base = plan.buffer(view.alias_of)
    assert (view.offset, view.shape, base.shape) == (base.offset, (2, 8), (4, 4))
    assert base.last >= view.last
    assert plan.fault == ""


def test_inputs_and_outputs_that_executorch_does_not_plan_are_the_callers() -> None:
    method = _planned(Views(), torch.randn(4, 4), alloc_graph_input=False, alloc_graph_output=False)
    plan = method.memory_plan
    assert {each.arena for each in plan.buffers if each.kind in ("input", "output")} == {"caller"}
    ours = method.plan_memory(plan_inputs=False, plan_outputs=False)
    assert ours.peak <= plan.peak
    assert ours.buffer(plan.buffers[0].name).arena == "caller"


def test_a_damaged_plan_has_a_fault() -> None:
    file = _core.read_pte(make("portable").data)
    (method,) = file.methods
    values = method.values
    plan = PteFile(file).method().memory_plan
    first = next(each for each in plan.buffers if each.kind == "input")
    other = next(each for each in plan.buffers if each.kind == "activation" and each.first == 0)
    values[int(other.name[1:])].allocation = _core.PteAllocation(memory=1, offset=first.offset)
    method.values = values
    file.methods = [method]
    assert "over" in PteFile(file).method().memory_plan.fault
    text = str(PteFile(file).method().memory_plan)
    assert text.startswith("FAILED: memory of forward")


def test_a_loop_needs_its_values_until_it_ends() -> None:
    plan = _method("loop").plan_memory()
    jumps = [i for i, step in enumerate(plan.steps) if step == "jumpfalse"]
    assert jumps
    inside = [each for each in plan.buffers if each.kind == "activation" and each.first < jumps[-1]]
    assert inside
    assert all(each.last >= jumps[-1] for each in inside)


def test_methods_take_the_memory_options_of_programs() -> None:
    method = _method("portable")
    plan = method.plan_memory(arenas={"input": "dma"}, alignment=64)
    assert {each.arena for each in plan.buffers if each.kind == "input"} == {"dma"}
    with pytest.raises(tosaic.InvalidGraph, match="'alignment'"):
        method.plan_memory(alignment=3)
