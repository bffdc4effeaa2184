"""``.pte`` files that ExecuTorch's flows made.

The structure of the files is compared with ExecuTorch's deserialiser, and their numbers with its runtime,
torch and the reference model.
"""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

import tosaic  # noqa: E402
from executorch.exir import ExecutorchBackendConfig, to_edge  # noqa: E402
from executorch.exir._serialize._program import deserialize_pte_binary  # noqa: E402
from executorch.exir.passes import MemoryPlanningPass  # noqa: E402
from tosaic import _core  # noqa: E402
from tosaic.pte.file import PteFile  # noqa: E402

from pte.calls import portable_file, run_in_executorch  # noqa: E402
from pte.examples import EXAMPLES, flattened, make  # noqa: E402
from pte.mutating import damaged, drive  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

_RUNTIME_RUNS = ("portable", "state", "branch", "loop", "channels-last", "movement", "xnnpack")


def _file(name: str) -> PteFile:
    return PteFile(_core.read_pte(make(name).data), f"{name}.pte")


def _saved(name: str, folder: Path) -> Path:
    path = folder / f"{name}.pte"
    path.write_bytes(make(name).data)
    return path


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


# ---- what a file says ----


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_structure_equals_what_executorchs_deserialiser_reads(name: str) -> None:
    data = make(name).data
    program = deserialize_pte_binary(data).program
    file = _file(name)
    assert list(file.methods) == [plan.name for plan in program.execution_plan]
    for plan, method in zip(program.execution_plan, file.methods.values(), strict=True):
        tensors = {i: v.val for i, v in enumerate(plan.values) if type(v.val).__name__ == "Tensor"}
        assert [t.index for t in method.tensors] == list(tensors)
        for ours in method.tensors:
            theirs = tensors[ours.index]
            assert ours.shape == tuple(theirs.sizes)
            assert ours.dim_order == tuple(theirs.dim_order)
            at = theirs.allocation_info
            assert ours.memory == (None if at is None else at.memory_id)
            assert ours.offset == (None if at is None else at.memory_offset)
        assert [t.index for t in method.inputs] == plan.inputs
        assert [t.index for t in method.outputs] == plan.outputs
        assert list(method.memories) == plan.non_const_buffer_sizes
        names = [op.name + (f".{op.overload}" if op.overload else "") for op in plan.operators]
        assert list(method.operators) == names
        assert len(method.instructions) == len(plan.chains[0].instructions)
        assert [d.backend for d in method.delegates] == [d.id for d in plan.delegates]
        for ours_d, theirs_d in zip(method.delegates, plan.delegates, strict=True):
            assert ours_d.payload == bytes(program.backend_delegate_data[theirs_d.processed.index].data)
            assert [(key, bytes(value)) for key, value in ours_d.compile_specs] == [
                (spec.key, bytes(spec.value)) for spec in theirs_d.compile_specs
            ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_file_written_anew_is_the_same_program_to_executorch(name: str) -> None:
    data = make(name).data
    written = _core.write_pte(_core.read_pte(data))
    assert deserialize_pte_binary(written) == deserialize_pte_binary(data)
    assert _core.write_pte(_core.read_pte(written)) == written


@pytest.mark.parametrize("name", ["portable", "xnnpack", "state"])
def test_executorchs_runtime_runs_a_file_written_anew(name: str) -> None:
    example = make(name)
    written = _core.write_pte(_core.read_pte(example.data))
    for ours, theirs in zip(
        run_in_executorch(written, example.leaves()),
        run_in_executorch(example.data, example.leaves()),
        strict=True,
    ):
        assert torch.equal(ours, theirs)


def test_a_report_has_methods_delegates_and_memory(tmp_path: Path) -> None:
    file = tosaic.load_pte(_saved("tosa-fp", tmp_path))
    text = str(file)
    assert "1 of TOSABackend" in text
    assert "float32[1,3,8,8]" in text
    assert "tosa_spec=TOSA-1.0+FP" in text
    assert file.delegates[0].payload_kind == "TOSA"
    assert "TOSABackend" in repr(file.delegates[0])
    assert "(float32[1,3,8,8]) -> float32[1,4], float32[1,8]" in repr(file)
    plain = file.as_dict()
    assert plain["methods"][0]["delegates"][0]["backend"] == "TOSABackend"
    assert file.method().report().data["memories"] == list(file.method().memories)


# ---- numbers ----


@pytest.mark.parametrize("name", [name for name in _RUNTIME_RUNS if name != "xnnpack"])
def test_results_equal_executorchs_runtime_and_torch(name: str) -> None:
    example, program = make(name), _file(name).program
    for _ in range(2):  # the second run has the states that the first one left
        expected = run_in_executorch(example.data, example.leaves()) if name != "state" else None
        found = flattened(program.run(*example.inputs))
        eager = flattened(example.module(*example.inputs))
        assert len(found) == len(eager)
        for i, (ours, theirs) in enumerate(zip(found, eager, strict=True)):
            torch.testing.assert_close(_tensor(ours), theirs.contiguous(), rtol=1e-5, atol=1e-6)
            if expected is not None:
                torch.testing.assert_close(_tensor(ours), expected[i].contiguous(), rtol=1e-5, atol=1e-6)


def test_a_state_persists_and_is_reset() -> None:
    example, program = make("state"), _file("state").program
    assert [port.path for port in program.states] == ["state_0"]
    first = program.run(*example.inputs)["y"]
    second = program.run(*example.inputs)["y"]
    np.testing.assert_allclose(second - first, example.inputs[0].numpy(), rtol=1e-6)
    program.reset_state()
    np.testing.assert_array_equal(program.run(*example.inputs)["y"], first)


class Sharing(torch.nn.Module):
    """Adds to a state, as two methods of a file do."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.exp() * self.factor)
        return self.total + x.sin()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_shared", [False, True])
def test_states_that_methods_share_in_the_runtime_are_named(is_shared: bool, tmp_path: Path) -> None:
    """Here each method has a state of its own, so its results differ from ExecuTorch's."""
    x = torch.ones(4)
    modules = {"one": Sharing(1.0), "two": Sharing(2.0)}
    exported = {name: torch.export.export(each, (x,)) for name, each in modules.items()}
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=is_shared),
        emit_mutable_buffer_names=True,
    )
    path = tmp_path / "shared.pte"
    path.write_bytes(to_edge(exported).to_executorch(config).buffer)
    file = tosaic.load_pte(path)
    notes = [note for note in file.method("one").program.diagnostics if note.rule == "shared-state"]
    assert len(notes) == is_shared
    assert all("where method 'two' has tensors ('total')" in note.message for note in notes)
    tosaic.save_pte({name: tosaic.from_exported(each) for name, each in exported.items()}, path)
    own = tosaic.load_pte(path).method("two").program
    assert not [note for note in own.diagnostics if note.rule == "shared-state"]


class Recurring(torch.nn.Module):
    """A state that is read through a view first, as ``nn.LSTM`` reads its own, and written at the end."""

    def __init__(self, initial: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("h", torch.full((1, 2, 3), initial))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.h.view(2, 3) * 0.5 + x
        self.h.copy_(y.unsqueeze(0))
        return y


class Cell(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(3, 4)
        self.register_buffer("h", torch.zeros(1, 2, 4))
        self.register_buffer("c", torch.zeros(1, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.cell(x, (self.h.squeeze(0), self.c.squeeze(0)))
        self.h.copy_(h.unsqueeze(0))
        self.c.copy_(c.unsqueeze(0))
        return h


def _portable_with_names(module: torch.nn.Module, x: torch.Tensor) -> bytes:
    return portable_file(module, (x,), emit_mutable_buffer_names=True)


def _written_by_tosaic(module: torch.nn.Module, x: torch.Tensor) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pte"
        tosaic.save_pte(tosaic.from_exported(torch.export.export(module, (x,))), path)
        return path.read_bytes()


_RECURRENT = {
    "executorch": (Recurring, lambda module, x: portable_file(module, (x,))),
    "executorch with names": (Recurring, _portable_with_names),
    "a cell of executorch": (Cell, lambda module, x: portable_file(module, (x,))),
    "tosaic": (Recurring, _written_by_tosaic),
    "a cell of tosaic": (Cell, _written_by_tosaic),
    "with initial elements": (lambda: Recurring(2.0), _written_by_tosaic),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", _RECURRENT)
def test_a_state_that_is_read_through_a_view_first_gets_its_new_value(case: str) -> None:
    """Before, the view was read as a state of its own, and a write to the viewed state had no effect."""
    make_module, write = _RECURRENT[case]
    torch.manual_seed(0)
    module = make_module().eval().requires_grad_(False)
    calls = [torch.randn(2, 3) for _ in range(3)]
    data = write(module, calls[0])
    file = PteFile(_core.read_pte(data))
    program = file.method().program
    assert len(program.states) == (2 if isinstance(module, Cell) else 1)
    assert {tuple(port.shape) for port in program.states} == {tuple(module.h.shape)}
    for x in calls:
        np.testing.assert_allclose(program.run(x), module(x).numpy(), rtol=1e-5, atol=1e-6)
    plan = file.method().memory_plan
    assert plan.fault == ""
    assert sum(each.kind == "state" for each in plan.buffers) == len(program.states)


def test_a_branch_takes_each_side() -> None:
    example, program = make("branch"), _file("branch").program
    assert any(node.op == "cond" for node in program.graph.nodes)
    for p in (True, False):
        for q in (True, False):
            given = torch.tensor(p), torch.tensor(q), example.inputs[2]
            expected = example.module(*given)
            torch.testing.assert_close(_tensor(program.run(*given)), expected, rtol=1e-5, atol=1e-6)


def test_channels_last_is_the_order_of_the_callers_arrays() -> None:
    example, program = make("channels-last"), _file("channels-last").program
    assert program.inputs[0].dim_order == (0, 2, 3, 1)
    assert program.outputs[0].dim_order == (0, 2, 3, 1)
    result = program.run(*example.inputs)
    assert result.strides == tuple(4 * s for s in example.module(*example.inputs).stride())


@pytest.mark.parametrize("name", ["tosa-fp", "tosa-int"])
def test_a_tosa_payload_runs_as_on_the_reference_model(name: str) -> None:
    example, file = make(name), _file(name)
    ours = flattened(file.run(*example.inputs))
    theirs = flattened(file.prepare(on="reference").run(*example.inputs))
    eager = flattened(example.module(*example.inputs))
    for a, b, c in zip(ours, theirs, eager, strict=True):
        assert np.ptp(a) > 0
        if name == "tosa-int":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert np.abs(a - c.detach().numpy()).max() < (0.05 if name == "tosa-int" else 1e-5)


def test_a_model_computes_a_delegate() -> None:
    example, file = make("xnnpack"), _file("xnnpack")
    expected = run_in_executorch(example.data, example.leaves())

    def compute(call: Any) -> list[np.ndarray[Any, Any]]:
        assert call.node.name == "delegate0"
        with torch.no_grad():
            softmax, _ = example.module(_tensor(call.operands[0]))
            y = torch.relu(example.module.norm(example.module.conv(_tensor(call.operands[0]))))
        by_shape = {tuple(each.shape): each.numpy() for each in (softmax, y)}
        return [by_shape[spec.shape] for spec in call.result_types]

    for key in ("delegate0", "XnnpackBackend"):
        found = file.prepare(models={key: compute}).run(*example.inputs)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(_tensor(ours), theirs, rtol=1e-4, atol=1e-5)


def test_compare_takes_a_file_on_either_side(tmp_path: Path) -> None:
    example = make("portable")
    exported = torch.export.export(example.module, example.inputs)
    tosa, portable = _saved("tosa-fp", tmp_path), _saved("portable", tmp_path)
    assert tosaic.compare(exported, tosa, example.inputs).ok
    assert tosaic.compare(exported, tosaic.load_pte(portable), example.inputs).ok
    assert tosaic.compare(tosaic.load_pte(portable).method("forward"), tosa, example.inputs).ok
    other = torch.export.export(type(example.module)().eval(), example.inputs)
    assert not tosaic.compare(other, tosa, example.inputs).ok


def test_a_prepared_file_is_pickled() -> None:
    example, file = make("tosa-fp"), _file("tosa-fp")
    prepared = pickle.loads(pickle.dumps(file.prepare()))
    for a, b in zip(prepared.run(*example.inputs), file.run(*example.inputs), strict=True):
        np.testing.assert_array_equal(a, b)


# ---- errors ----


def test_a_delegate_that_nothing_runs_is_named() -> None:
    example, file = make("xnnpack"), _file("xnnpack")
    with pytest.raises(tosaic.UnsupportedOp) as caught:
        file.run(*example.inputs)
    text = str(caught.value)
    assert "delegate 0 ('XnnpackBackend') of method 'forward'" in text
    assert "prepare(models={'delegate0': function})" in text


def test_a_method_that_does_not_exist_is_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="the file has no such method: expected 'forward'"):
        _file("portable").method("backward")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is truncated: expected at least 8 bytes"),
        (b"\0\0\0\0TOSA\0\0\0\0", "not a .pte file: expected the identifier 'ET12' at byte 4, got 'TOSA'"),
        (b"\0\0\0\0ET99\0\0\0\0", "unknown version of the format"),
    ],
)
def test_other_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.pte"
    path.write_bytes(data)
    with pytest.raises(_core.Error) as caught:
        tosaic.load_pte(path)
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(tosaic.MissingFileError, match=r"none\.pte"):
        tosaic.load_pte(tmp_path / "none.pte")


def test_a_damaged_payload_is_named() -> None:
    data = bytearray(make("tosa-fp").data)
    at = data.index(b"TOSA\0" if b"TOSA\0" in data else b"TOSA", 100)
    del at
    file = _core.read_pte(bytes(data))
    segments = file.segments
    method = file.methods[0]
    index = method.delegates[0].index
    payload = bytearray(segments[index].bytes.tobytes())
    payload[40:80] = bytes(40)
    segments[index] = _core.PteSegment(bytes=np.frombuffer(bytes(payload), np.uint8))
    file.segments = segments
    damaged = PteFile(_core.read_pte(_core.write_pte(file)))
    with pytest.raises(_core.Error, match=r"delegate 0 \('TOSABackend'\) of method 'forward': the payload"):
        damaged.run(*make("tosa-fp").inputs)


def test_an_endless_loop_is_refused() -> None:
    """The reader follows the loop for a limited number of instructions."""
    file = _core.read_pte(make("portable").data)
    method, *others = file.methods
    method.values = [*method.values, False]
    jump = _core.PteJumpFalse(condition=len(method.values) - 1, destination=0)
    method.chains = [_core.PteChain(inputs=method.inputs, outputs=method.outputs, instructions=[jump])]
    file.methods = [method, *others]
    read = PteFile(_core.read_pte(_core.write_pte(file)))
    with pytest.raises(tosaic.UnsupportedOp, match="a run takes too many instructions"):
        _ = read.program


def test_damaged_files_are_refused_or_read() -> None:
    """A damaged file is read and used, or the error is one of tosaic's; `tests/full` has many more."""
    read = [drive(damaged(10_000_000 + seed), seed) for seed in range(600)]
    assert read.count(True) > 20
    assert read.count(False) > 100
