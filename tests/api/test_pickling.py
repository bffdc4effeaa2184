"""Programs, lowered programs and graphs can be pickled and copied, also into processes without torch."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from api.copies import every_copy, through_pickle
from tosaic import _core


@every_copy
def test_a_copied_graph_is_the_same_at_every_stage(case, copied: Callable[[Any], Any]) -> None:
    for graph in case.lowered.stages.values():
        again = copied(graph)
        assert again.text() == graph.text()
        assert [c.kind for c in again.constants.values()] == [c.kind for c in graph.constants.values()]
        for name, constant in graph.constants.items():
            np.testing.assert_array_equal(again.constants[name].array, constant.array)


@every_copy
def test_a_copied_program_has_the_same_results(case, nested, copied: Callable[[Any], Any]) -> None:
    again = copied(case.program)
    np.testing.assert_array_equal(again.run(case.array), case.program.run(case.array))
    assert (again.signature, again.diagnostics) == (case.program.signature, case.program.diagnostics)
    a = np.ones((2, 3), np.float32)
    assert copied(nested).run((a, a), scale=np.float32(3))["sum"][0, 0] == 6


@every_copy
def test_a_copied_lowered_program_has_the_same_file_and_results(case, copied: Callable[[Any], Any]) -> None:
    again = copied(case.lowered)
    assert again.to_bytes() == case.lowered.to_bytes()
    np.testing.assert_array_equal(again.run(case.array), case.lowered.run(case.array))
    assert again.report().json == case.lowered.report().json
    assert again.layout == case.lowered.layout
    assert again.source.text() == case.lowered.source.text()
    for stage in again.stages:
        np.testing.assert_array_equal(again.at(stage).run(case.array), case.lowered.at(stage).run(case.array))


@every_copy
def test_a_copy_starts_from_the_same_state_and_has_its_own(counter, copied: Callable[[Any], Any]) -> None:
    one = np.ones(4, np.float32)
    counter.run(one)
    again = copied(counter)
    assert again.run(one)[0] == 4
    assert again.run(one)[0] == 6
    assert counter.run(one)[0] == 4
    third = copied(copied(counter))
    third.reset_state()
    assert third.run(one)[0] == 2
    lowered = tosaic.lower(counter, target="TOSA-1.0+FP+variable")
    lowered.run(one)
    assert copied(lowered).run(one)[0] == lowered.run(one)[0] == 4


def test_weights_are_copied_by_value() -> None:
    """An unpickled or deeply copied program has no views of torch's memory."""
    model = torch.nn.Linear(8, 64)
    program = tosaic.from_exported(torch.export.export(model, (torch.ones(1, 8),)))
    x = np.ones((1, 8), np.float32)
    expected = program.run(x)
    copies = [through_pickle(program), copy.deepcopy(program)]
    with torch.no_grad():
        model.weight.mul_(2)
    for again in copies:
        np.testing.assert_array_equal(again.run(x), expected)
    np.testing.assert_array_equal(through_pickle(program).run(x), expected)
    changed = tosaic.from_exported(torch.export.export(model, (torch.ones(1, 8),)))
    with torch.no_grad():
        model.weight.mul_(2)
    for copied_by in (pickle.dumps, copy.deepcopy):
        with pytest.raises(tosaic.InvalidGraph, match="'weight' was changed in place after import"):
            copied_by(changed)


def test_weights_that_stages_share_are_written_once() -> None:
    model = torch.nn.Linear(256, 256, bias=False)
    program = tosaic.from_exported(torch.export.export(model, (torch.ones(1, 256),))).snapshot()
    assert len(pickle.dumps([program, program.graph, through_pickle(program.graph)])) < 2.2 * 256 * 256 * 4
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(program, protocol=5, buffer_callback=buffers.append)
    assert len(rest) < 20_000
    again = pickle.loads(rest, buffers=buffers)
    x = np.ones((1, 256), np.float32)
    np.testing.assert_array_equal(again.run(x), program.run(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16])
def test_weights_of_dtypes_that_numpy_lacks_are_pickled(dtype: torch.dtype) -> None:
    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(40, 8).to(dtype))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.to(torch.float32).t()

    program = tosaic.from_exported(torch.export.export(Weighted(), (torch.ones(1, 8),)))
    x = np.ones((1, 8), np.float32)
    np.testing.assert_array_equal(through_pickle(program).run(x), program.run(x))


def test_weights_of_different_regions_are_not_confused() -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x), (x,))

    program = tosaic.from_exported(torch.export.export(Branches(), (torch.ones(1, 8),)))
    again = through_pickle(program)
    for sign in (1, -1):
        x = sign * np.ones((1, 8), np.float32)
        np.testing.assert_array_equal(again.run(x), program.run(x))


def test_a_graph_without_its_weights_stays_without_them(case) -> None:
    bare = _core.Graph.parse(case.program.text())
    again = through_pickle(bare)
    assert again.text() == bare.text()
    with pytest.raises(tosaic.InvalidGraph, match="has no data"):
        tosaic.program.from_graph(again).run(case.array)


def test_a_layout_plan_is_pickled_even_if_its_cost_function_cannot_be(case) -> None:
    lowered = tosaic.lower(case.program, objective=lambda moved: moved.bytes + 1)
    again = through_pickle(lowered)
    assert again.layout == lowered.layout
    assert again.to_bytes() == lowered.to_bytes()


def test_results_and_errors_can_be_pickled(case, unliftable) -> None:
    comparison = tosaic.compare(case.exported, case.lowered, (case.x,))
    assert through_pickle(comparison) == comparison
    result = tosaic.check(unliftable)
    assert through_pickle(result) == result
    assert through_pickle(case.lowered.io) == case.lowered.io
    with pytest.raises(tosaic.UnsupportedOp) as error:
        tosaic.lower(unliftable)
    again = through_pickle(error.value)
    assert (type(again), str(again)) == (tosaic.UnsupportedOp, str(error.value))
    assert again.problems == error.value.problems
    assert again.parts == error.value.parts


ALONE = """
import sys, importlib.abc
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchao", "executorch", "ml_dtypes"}:
            raise ModuleNotFoundError(f"blocked {name}", name=name)
sys.meta_path.insert(0, Block())
import pickle, numpy
program, lowered, graph = pickle.load(open("pickled", "rb"))
x = numpy.load("x.npy")
numpy.savez("y.npz", program.run(x), lowered.run(x), lowered.at("canonical").run(x))
open("bytes", "wb").write(lowered.to_bytes())
print(graph.text() == program.text(), str(lowered).splitlines()[0])
"""


def test_a_process_without_torch_unpickles_and_runs(case, files: Path) -> None:
    Path("pickled").write_bytes(pickle.dumps((case.program, case.lowered, case.program.graph)))
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True forward lowered to TOSA-1.0+FP\n"
    expected = [case.program.run(case.array), case.lowered.run(case.array), case.lowered.run(case.array)]
    for ours, theirs in zip(np.load("y.npz").values(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert Path("bytes").read_bytes() == case.lowered.to_bytes()


def test_a_pool_of_spawned_processes_runs_a_program(case) -> None:
    inputs = [case.array, -case.array]
    with get_context("spawn").Pool(1) as pool:
        found = pool.map(case.lowered.run, inputs)
        with pytest.raises(tosaic.LayoutMismatch, match="input 'x' has the wrong shape"):
            pool.map(case.lowered.run, [case.array[:1]])
    for ours, x in zip(found, inputs, strict=True):
        np.testing.assert_array_equal(ours, case.lowered.run(x))
