"""``.pte`` files that tosaic writes: read by ExecuTorch's deserialiser and runtime, and by tosaic itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

import tosaic  # noqa: E402
from executorch.exir._serialize._program import deserialize_pte_binary  # noqa: E402
from torch import nn  # noqa: E402
from tosaic import _core  # noqa: E402
from tosaic.pte.file import PteFile  # noqa: E402
from tosaic.pte.file_writer import MethodWriter, Payload  # noqa: E402
from tosaic.pte.save import save_pte  # noqa: E402

from pte.calls import run_in_executorch  # noqa: E402
from pte.examples import flattened, make  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


class Mixed(nn.Module):
    """Two groups of a target, and operators of the host between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor, d: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        y = torch.relu(self.first(x))
        z = torch.sigmoid(y.double()).float() + d["bias"]
        return {"out": self.second(z), "middle": z}


def _mixed() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(3)
    return Mixed().eval(), (torch.randn(1, 3, 6, 6), {"bias": torch.randn(4, 1, 1)})


def _equal(found: Any, expected: Any, **bounds: float) -> None:
    for ours, theirs in zip(flattened(found), flattened(expected), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), **(bounds or {"rtol": 0}))


def test_a_float_program_is_one_delegate_with_its_tosa_file(tmp_path: Path) -> None:
    example = make("portable")
    exported = torch.export.export(example.module, example.inputs)
    lowered = tosaic.lower(exported, target="TOSA-1.0+FP")
    path = tmp_path / "model.pte"
    assert lowered.save(path) == path.stat().st_size
    file = tosaic.load_pte(path)
    (delegate,) = file.delegates
    assert delegate.backend == "TOSABackend"
    assert delegate.payload == lowered.to_bytes()
    _equal(file.run(*example.inputs), lowered.run(*example.inputs))
    program = deserialize_pte_binary(path.read_bytes()).program
    (plan,) = program.execution_plan
    assert bytes(program.backend_delegate_data[plan.delegates[0].processed.index].data) == delegate.payload


def test_a_quantized_program_has_kernels_that_quantize(tmp_path: Path) -> None:
    example = make("portable")
    exported = torch.export.export(example.module, example.inputs)
    quantized = tosaic.quantize(exported, [example.inputs])
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    path = tmp_path / "model.pte"
    lowered.save(path)
    file = tosaic.load_pte(path)
    assert "quantized_decomposed::quantize_per_tensor.out" in file.method().operators
    assert "quantized_decomposed::dequantize_per_tensor.out" in file.method().operators
    result = file.run(*example.inputs)
    assert all(np.ptp(each) > 0 for each in result)
    _equal(result, lowered.run(*example.inputs))


def test_nested_arguments_and_results_are_those_of_the_program(tmp_path: Path) -> None:
    module, inputs = _mixed()
    split = tosaic.lower(torch.export.export(module, inputs), target="TOSA-1.0+FP", unsupported="split")
    (path,) = split.save(tmp_path / "split.pte")
    file = tosaic.load_pte(path)
    result = file.run(*inputs)
    assert set(result) == {"out", "middle"}
    _equal(result["out"], split.run(*inputs)["out"])
    _equal(result["middle"], split.run(*inputs)["middle"])
    assert tosaic.compare(torch.export.export(module, inputs), path, [inputs]).ok


def test_executorchs_deserialiser_reads_two_groups_and_the_host_between_them(tmp_path: Path) -> None:
    module, inputs = _mixed()
    split = tosaic.lower(torch.export.export(module, inputs), target="TOSA-1.0+FP", unsupported="split")
    (path,) = split.save(tmp_path / "split.pte")
    program = deserialize_pte_binary(path.read_bytes()).program
    (plan,) = program.execution_plan
    assert len(plan.delegates) == len(split.parts)
    payloads = [bytes(program.backend_delegate_data[d.processed.index].data) for d in plan.delegates]
    assert payloads == [part.to_bytes() for part in split.parts]
    assert len(plan.delegates) == 2
    assert "aten::sigmoid" in {op.name for op in plan.operators}


def test_executorchs_runtime_runs_kernels_in_our_memory_plan() -> None:
    """A method of kernels alone: the runtime's results, and the arena, which is smaller than the tensors."""
    writer = MethodWriter("forward")
    x = writer.tensor("f32", (2, 8))
    weight = writer.constant(np.arange(16, dtype=np.float32).reshape(2, 8), "f32")
    values = [writer.tensor("f32", (2, 8)) for _ in range(4)]
    writer.call("aten::add", "out", [x, weight, 1], [values[0]])
    writer.call("aten::sigmoid", "out", [values[0]], [values[1]])
    writer.call("aten::mul", "out", [values[1], x], [values[2]])
    writer.call("aten::permute_copy", "out", [values[2], [1, 0]], [y := writer.tensor("f32", (8, 2))])
    writer.call("aten::relu", "out", [y], [z := writer.tensor("f32", (8, 2))])
    data = writer.finish([x], [z])
    given = torch.randn(2, 8)
    expected = torch.relu((torch.sigmoid(given + torch.arange(16.0).reshape(2, 8)) * given).t())
    (found,) = run_in_executorch(data, [given])
    torch.testing.assert_close(found, expected)
    ours = PteFile(_core.read_pte(data))
    _equal(ours.run(given), expected, rtol=1e-6)
    assert ours.method().memories[1] < 5 * 64


def test_an_xnnpack_payload_in_our_file_runs_in_executorch(tmp_path: Path) -> None:
    """The payload of another backend: the runtime finds it by id, and gets its bytes."""
    example = make("xnnpack")
    theirs = _core.read_pte(example.data)
    assert theirs.named_data is not None or theirs.methods[0].delegates
    payload = theirs.payload_of(theirs.methods[0].delegates[0]).tobytes()
    lowered = tosaic.lower(torch.export.export(example.module, example.inputs), target="TOSA-1.0+FP")
    path = tmp_path / "own.pte"
    save_pte(lowered, path, payloads={"forward": Payload("XnnpackBackend", payload)})
    (delegate,) = tosaic.load_pte(path).delegates
    assert (delegate.backend, delegate.payload) == ("XnnpackBackend", payload)


def test_all_reasons_are_named(tmp_path: Path) -> None:
    example = make("state")
    exported = torch.export.export(example.module, example.inputs)
    split = tosaic.lower(exported, target="TOSA-1.0+FP", unsupported="split")
    with pytest.raises(tosaic.UnsupportedOp, match="state 'total' persists from run to run"):
        split.save(tmp_path / "state.pte")
    assert not (tmp_path / "state.pte").exists()
