"""Lowering takes time in proportion to the graph's size; tests count visits of nodes, not seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from counted_work import Work
from function_module import FunctionModule
from fx.exporting import exported
from torch import nn
from tosaic import _core

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning"),
]

# No pass, its verification included, may visit a node more often than this. The largest count seen is 23.
VISITS_PER_NODE = 40


def chain(length: int) -> tuple[nn.Module, torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length // 2):
            x = torch.sin(x) + 1.5
        return x

    return FunctionModule(call), torch.randn(2, 2)


def views(length: int) -> tuple[nn.Module, torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length // 2):
            x = x.reshape(2, 8).t()
        return x

    return FunctionModule(call), torch.randn(8, 2)


def unsqueezed(length: int) -> tuple[nn.Module, torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length // 4):
            x = torch.sin(torch.relu(x.squeeze(0)).unsqueeze(0))
        return x

    return FunctionModule(call), torch.randn(1, 2, 2)


def parts(take: Callable[[torch.Tensor], Any]) -> Callable[[int], tuple[nn.Module, torch.Tensor]]:
    def make(count: int) -> tuple[nn.Module, torch.Tensor]:
        return FunctionModule(lambda x: torch.cat([part + 1 for part in reversed(take(x))])), torch.randn(
            count, 2
        )

    return make


def lstm(steps: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.LSTM(4, 4), torch.randn(steps, 1, 4)


def written_rows(count: int) -> tuple[nn.Module, torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(count, 2)
        for row in range(count):
            made[row] = torch.sin(x) + row
            made[row // 2].mul_(0.5)
        return made

    return FunctionModule(call), torch.randn(2)


# For each model: a function that builds it with a given length, and the length that tests/full uses.
# This file uses one tenth and four tenths of that length.
MODELS: dict[str, tuple[Callable[[int], tuple[nn.Module, torch.Tensor]], int]] = {
    "a chain of elementwise operators": (chain, 10_000),
    "a chain of views": (views, 2000),
    "elementwise operators between reshapes": (unsqueezed, 2000),
    "unbind into parts": (parts(lambda x: x.unbind()), 1000),
    "split into parts": (parts(lambda x: x.split(1)), 1000),
    "the steps of an LSTM": (lstm, 1000),
    "writes to rows": (written_rows, 1000),
}


def lowered_at(name: str, *tenths: int) -> tuple[tosaic.Lowered, tosaic.Lowered]:
    """Lowers the model at two lengths; `tenths` has both lengths, in tenths of the model's full length."""
    make, length = MODELS[name]
    small, large = (make(length * count // 10) for count in tenths)
    first, second = (tosaic.lower(exported(module, x), target="TOSA-1.0+FP") for module, x in (small, large))
    return first, second


@pytest.fixture(scope="module", params=MODELS)
def lowered(request: pytest.FixtureRequest) -> tuple[tosaic.Lowered, tosaic.Lowered]:
    return lowered_at(request.param, 1, 4)


def nodes(timing: Any) -> int:
    return max(timing.nodes_before, timing.nodes_after, 1)


def test_no_pass_visits_a_node_more_than_a_fixed_number_of_times(
    lowered: tuple[tosaic.Lowered, tosaic.Lowered],
) -> None:
    for timing in lowered[1].timings:
        assert timing.visits <= VISITS_PER_NODE * (nodes(timing) + 20), timing


def test_visits_grow_as_the_graph_does(lowered: tuple[tosaic.Lowered, tosaic.Lowered]) -> None:
    small, large = (sum(timing.visits for timing in one.timings) for one in lowered)
    sizes = [len(one.graph.nodes) for one in lowered]
    assert large / small <= 1.1 * sizes[1] / sizes[0]


def test_files_grow_as_the_graph_does(lowered: tuple[tosaic.Lowered, tosaic.Lowered]) -> None:
    texts, files = ([len(one.graph.text()) for one in lowered], [len(one.to_bytes()) for one in lowered])
    sizes = [len(one.graph.nodes) for one in lowered]
    for lengths in (texts, files):
        assert lengths[1] / lengths[0] <= 1.2 * sizes[1] / sizes[0]


def test_the_visits_of_a_node_that_reads_one_value_often_grow_with_the_reads() -> None:
    """Before, each of 400 reads considered the node 400 times: a second for 3 nodes."""
    visits = []
    for count in (50, 400):
        program = tosaic.from_exported(exported(lambda x, n=count: torch.cat([x * 2] * n), torch.ones(1, 8)))
        visits.append(sum(timing.visits for timing in tosaic.lower(program).timings))
    assert visits[1] <= 10 * visits[0]


def pooled_and_flat(count: int) -> tosaic.Program:
    """Pools one image often. Each result is flattened and transposed, and one operator reads all of them."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([nn.functional.max_pool2d(x + i, 2, 1).flatten(1) for i in range(count)], 1)

    return tosaic.from_exported(exported(call, torch.randn(1, 6, 9, 7)))


def test_the_visits_for_explaining_transposes_grow_in_proportion_to_the_transposes() -> None:
    visits, transposes = [], []
    for count in (30, 120):
        plan = _core.plan_layout(pooled_and_flat(count).graph)
        visits.append(plan["visits"])
        transposes.append(len(plan["transposes"]))
    assert transposes[1] >= 3.5 * transposes[0] > 60
    assert visits[1] <= 1.1 * visits[0] * transposes[1] / transposes[0]


def many_outputs(count: int) -> tosaic.Program:
    lines = ["tosaic 1", "graph @forward stage=exported {", '  input %x: f32[4] path="x"']
    lines += [f"  %v{i}: f32[4] = {('sin', 'tanh')[i % 2]}(%x)" for i in range(count)]
    lines += [f'  return %v{i} path="out[{i}]"' for i in range(count)]
    return tosaic.program.from_graph(tosaic.program.Graph.parse("\n".join([*lines, "}", ""])))


def test_programs_of_many_outputs_take_work_in_proportion(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Four times the outputs are at most five times the work; a loop over all for each one is 16 times."""
    x = np.linspace(-1, 1, 4, dtype=np.float32)

    def counts(outputs: int) -> dict[str, int]:
        work = Work(monkeypatch)
        program = many_outputs(outputs)
        found: dict[str, int] = {}

        def step(name: str, call: Callable[[], Any]) -> Any:
            found[name], made = work.of(call)
            return made

        step("run", lambda: program.run(x))
        lowered = step("lower", lambda: tosaic.lower(program))
        step("run lowered", lambda: lowered.run(x))
        step("compare", lambda: tosaic.compare(program, lowered, (x,)))
        quantized = step("quantize", lambda: tosaic.quantize(program, [(x,)], progress=False))
        integer = step("lower to integers", lambda: tosaic.lower(quantized, target="TOSA-1.0+INT"))
        step("compare integers", lambda: tosaic.compare(quantized, integer, (x,)))
        step("save", lambda: integer.save(tmp_path / "m.tosa", sidecar=True))
        step("compare a file", lambda: tosaic.compare(program, tmp_path / "m.tosa", (x,)))
        lowered.save(tmp_path / "bare.tosa")
        step("compare without a sidecar", lambda: tosaic.compare(program, tmp_path / "bare.tosa", (x,)))
        step("save_pte", lambda: tosaic.save_pte(program, tmp_path / "m.pte", sidecar=True))
        method = step("load_pte", lambda: tosaic.load_pte(tmp_path / "m.pte"))["forward"]
        for name, planned in {"program": program, "lowered": lowered, "method": method}.items():
            plan = step(f"plan_memory of {name}", planned.plan_memory)
            step(f"text of the plan of {name}", lambda plan=plan: str(plan.report()))
            step(f"page of the plan of {name}", lambda plan=plan: plan._repr_html_())
            step(f"write the plan of {name}", lambda plan=plan: plan.to_json(tmp_path / "plan.json"))
            step(
                f"read the plan of {name}", lambda: tosaic.memory.MemoryPlan.from_json(tmp_path / "plan.json")
            )
        return found

    counts(4)  # imports modules and fills caches
    small, large = counts(40), counts(160)
    grown = {name: round(large[name] / small[name], 1) for name in small}
    assert {name: times for name, times in grown.items() if times > 5} == {}
