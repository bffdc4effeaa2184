"""Programs of `.pt2` files: our reader makes the same graph of them as torch and the import."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic import _core, fx
from tosaic.opening.sources import load_exported
from tosaic.pt2.archive import Archive
from tosaic.pt2.nodes import nodes_of
from tosaic.pt2.program import read_pt2

from pt2.modules import MODULES, Case, Pair, saved

torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="pt2.modules.Pair")
torch.serialization.add_safe_globals([Pair])  # torch.export.load reads the example inputs too


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(3)


def assert_same(path: Path) -> Any:
    """Compares the graphs that our reader and torch make of a file; returns ours."""
    ours, theirs = read_pt2(path), fx.from_exported(load_exported(path))
    assert ours.graph.text() == theirs.graph.text()
    assert ours.signature == theirs.signature
    assert ours.module_types() == theirs.module_types()
    assert ours.diagnostics == theirs.diagnostics
    for name, constant in theirs.graph.constants.items():
        own = ours.graph.constants[name]
        assert own.name == constant.name
        assert own.array.tobytes() == constant.array.tobytes(), name
    return ours


@pytest.mark.parametrize("name", MODULES)
def test_a_file_has_the_same_graph_as_through_torch(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    saved(MODULES[name](), path)
    assert_same(path)


@pytest.mark.parametrize("name", MODULES)
def test_nodes_have_the_inputs_and_the_users_that_torch_has(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    saved(MODULES[name](), path)
    model = _core.Json(Archive(path).bytes_of("models/model.json"), "the model")
    nodes, _ = nodes_of(model.part("the graph", "graph_module", "graph"), ())

    def links(nodes: Any) -> list[tuple[list[int], list[int]]]:
        at = {node: i for i, node in enumerate(nodes)}
        return [
            ([at[each] for each in node.all_input_nodes], [at[each] for each in node.users]) for node in nodes
        ]

    assert links(nodes) == links(load_exported(path).graph.nodes)


@pytest.mark.parametrize("quantizer", ["xnnpack", "arm"])
def test_a_quantized_program_has_the_same_graph_as_through_torch(quantizer: str, tmp_path: Path) -> None:
    from models.quantize import converted

    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval(), torch.rand(1, 3, 8, 8)
    torch.export.save(converted(model, [(x,)], quantizer), tmp_path / "q.pt2")
    ours = assert_same(tmp_path / "q.pt2")
    assert {"quantize", "dequantize"} <= {node.op for node in ours.graph.nodes}


def test_a_program_of_our_quantizer_has_the_same_graph_as_through_torch(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.rand(1, 3, 8, 8)
    quantized = tosaic.quantize(torch.export.export(model, (x,)), [x])
    torch.export.save(quantized.to_exported(), tmp_path / "q.pt2")
    assert_same(tmp_path / "q.pt2")


def test_a_decomposed_program_has_the_same_graph_as_through_torch(tmp_path: Path) -> None:
    exported = torch.export.export(nn.TransformerEncoderLayer(8, 2, 16).eval(), (torch.randn(1, 5, 8),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own decompositions
        torch.export.save(exported.run_decompositions(), tmp_path / "d.pt2")
    assert_same(tmp_path / "d.pt2")


def test_results_equal_torchs(tmp_path: Path) -> None:
    case = MODULES["channels last"]()
    saved(case, tmp_path / "m.pt2")
    with torch.no_grad():
        expected = case.module(*case.args)
    found = tosaic.open_program(tmp_path / "m.pt2").run(*case.args)
    np.testing.assert_allclose(np.asarray(found), expected.numpy(), atol=1e-5)


def test_weights_are_views_of_the_file_and_tied_weights_are_one_constant(tmp_path: Path) -> None:
    saved(MODULES["states"](), tmp_path / "m.pt2")
    graph = read_pt2(tmp_path / "m.pt2").graph
    (weight,) = (each for each in graph.constants.values() if each.name.endswith(".weight"))
    assert weight.is_view


def test_a_file_that_is_written_again_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    saved(MODULES["linear"](), path)
    program = tosaic.open_program(path)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\0")
    with pytest.raises(tosaic.InvalidGraph, match="the file was written after it was opened"):
        program.run(torch.randn(2, 4))


# ---- without torch ----

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import tosaic
try:
    lowered = tosaic.lower({file!r})
except Exception as error:
    print(type(error).__name__, error)
else:
    print(len(lowered.graph.nodes), "nodes", lowered.source.run({args}) is not None)
print([name for name in sys.modules if name.startswith("torch") and sys.modules[name]])
"""


def without_torch(path: Path, args: str) -> list[str]:
    code = WITHOUT_TORCH.format(file=str(path), args=args)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_file_is_lowered_and_run_without_torch(tmp_path: Path) -> None:
    saved(MODULES["linear"](), tmp_path / "m.pt2")
    args = "__import__('numpy').zeros((2, 4), 'float32')"
    result, modules = without_torch(tmp_path / "m.pt2", args)
    assert result.endswith("nodes True")
    assert modules == "[]"


def _needs_torch() -> Case:
    return Case(_WithoutRow(), (torch.randn(2, 4),))


class _WithoutRow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logaddexp2(x, x * 2)


def test_a_call_without_a_row_is_named_without_torch(tmp_path: Path) -> None:
    saved(_needs_torch(), tmp_path / "m.pt2")
    result, _ = without_torch(tmp_path / "m.pt2", "")
    assert result.startswith("UnsupportedOp [pt2] 'm.pt2': aten.logaddexp2.default has no row of its own")
    assert "node 'logaddexp2'" in result
    assert "test_programs.py:" in result
    assert "torch.export.load(path)" in result


def test_torch_reads_a_file_that_needs_it_and_a_remark_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(_needs_torch(), tmp_path / "m.pt2")
    with caplog.at_level(logging.INFO, "tosaic"):
        program = tosaic.open_program(tmp_path / "m.pt2")
    assert "opaque" not in {node.op for node in program.graph.nodes}
    note = program.diagnostics[0]
    assert note.rule == "torch-loader"
    assert note.message.startswith("torch's loader read the file: 'm.pt2': aten.logaddexp2.default")
    assert note.message in caplog.text


class _Selected(nn.Module):
    """The size of its result depends on elements of a constant, which only the import through torch reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t()[self.mask] + 1


class _ZeroTimesF8(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0 * x


@pytest.mark.parametrize(
    ("module", "arg", "why"),
    [
        (_Selected(), torch.randn(2, 4), "the size u0 is an expression of symbols (node 'index'"),
        (_ZeroTimesF8(), torch.zeros(2).to(torch.float8_e4m3fn), "a number in f8e4m3 is needed (node 'mul'"),
    ],
)
def test_torch_reads_a_file_in_which_a_value_of_a_call_needs_it(
    module: nn.Module, arg: torch.Tensor, why: str, tmp_path: Path
) -> None:
    saved(Case(module, (arg,)), tmp_path / "m.pt2")
    with pytest.raises(tosaic.UnsupportedOp, match=re.escape(why)) as failed:
        read_pt2(tmp_path / "m.pt2")
    assert "torch.export.load(path)" in str(failed.value)
    program = tosaic.open_program(tmp_path / "m.pt2")
    assert program.diagnostics[0].rule == "torch-loader"
    assert why in program.diagnostics[0].message


def test_operators_of_an_absent_library_become_opaque_nodes(tmp_path: Path) -> None:
    code = f"""
import torch
torch.library.define("elsewhere::twice", "(Tensor x, float by=2.0) -> Tensor")
torch.library.register_fake("elsewhere::twice")(lambda x, by=2.0: torch.empty_like(x))
class M(torch.nn.Module):
    def forward(self, x):
        return torch.ops.elsewhere.twice(x.relu()) + 1
torch.export.save(torch.export.export(M(), (torch.ones(3),)), {str(tmp_path / "m.pt2")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    program = tosaic.open_program(tmp_path / "m.pt2")
    (node,) = (node for node in program.graph.nodes if node.op == "opaque")
    assert node.attrs["target"] == "elsewhere.twice.default"
    described = tosaic.ports.ForeignOp("elsewhere::twice", lambda x, by=2.0: x * by)
    described_program = tosaic.open_program(tmp_path / "m.pt2", operators=[described])
    np.testing.assert_array_equal(described_program.run(np.ones(3, np.float32)), np.full(3, 3, np.float32))


def test_unbound_symbolic_sizes_are_named_as_through_torch(tmp_path: Path) -> None:
    options = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    saved(Case(nn.Linear(4, 4), (torch.randn(2, 4),), options=options), tmp_path / "m.pt2")
    messages = []
    for read in (read_pt2, lambda path: fx.from_exported(load_exported(path))):
        with pytest.raises(tosaic.UnsupportedOp, match="symbolic dimensions are not bound") as failed:
            read(tmp_path / "m.pt2")
        messages.append(str(failed.value))
    assert messages[0] == messages[1]
    bound = tosaic.open_program(tmp_path / "m.pt2", bind={"input": {0: 3}})
    assert bound.inputs[0].shape == (3, 4)
