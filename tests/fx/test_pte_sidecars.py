"""`save_pte`: a `.pte` file of ExecuTorch and its sidecar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tosaic

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.exir")

from fx.test_tosaic_partitioner import INT, Counting, inputs, quantized  # noqa: E402
from models.tosaic_delegates import delegates_in_file, lower, modules_of  # noqa: E402
from models.zoo import quiet  # noqa: E402
from tosaic.executorch import TosaicPartitioner, pte_sidecar, save_pte  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]


def saved(program: Any, claimant: str, path: Path) -> Any:
    manager = lower(program, [TosaicPartitioner(claimant)])
    with quiet():
        size = save_pte(manager, path)
    assert size == path.stat().st_size
    return manager


@pytest.mark.parametrize("claimant", [INT, "TOSA-1.0+INT+FP"])
def test_ports_have_the_qparams_of_the_program(claimant: str, tmp_path: Path) -> None:
    """With INT, quantize nodes are outside of the delegate; with FP, they are inside."""
    path = tmp_path / "m.pte"
    program = quantized("channels last")
    made = [
        (each.backend_id, bytes(each.processed_bytes)) for each in modules_of(saved(program, claimant, path))
    ]
    method = pte_sidecar(path).method()
    known = tosaic.from_exported(program)
    assert [port.qparams for port in method.inputs] == [port.qparams for port in known.inputs]
    assert [port.qparams for port in method.outputs] == [port.qparams for port in known.outputs]
    assert [port.path for port in method.outputs] == ["out[0]", "out[1]"]
    assert method.inputs[0].dim_order == (0, 2, 3, 1)
    assert delegates_in_file(path.read_bytes()) == made
    assert [(each.runtime, each.bytes) for each in method.delegates] == [(i, len(data)) for i, data in made]
    assert {each.target for each in method.delegates} == {claimant}
    assert len(method.signature.flatten(inputs("channels last"))) == 1


def test_states_and_integer_inputs_are_recorded(tmp_path: Path) -> None:
    program = torch.export.export(Counting().eval().requires_grad_(False), (torch.randn(1, 4),))
    saved(program, "TOSA-1.0+FP", tmp_path / "m.pte")
    assert pte_sidecar(tmp_path / "m.pte").method().states == ("calls", "total")
    with quiet():
        integers, io = tosaic.extract_io_quant(quantized("residual"))
    saved(integers, INT, tmp_path / "i.pte")
    method = pte_sidecar(tmp_path / "i.pte").method()
    assert method.inputs[0].dtype == method.outputs[0].dtype == "i8"
    assert method.inputs[0].qparams == io.inputs[0].qparams
    assert method.outputs[0].qparams == io.outputs[0].qparams


def test_both_files_or_none_are_written(tmp_path: Path) -> None:
    path = tmp_path / "m.pte"
    manager = lower(quantized("residual"), [TosaicPartitioner(INT)])
    (tmp_path / "m.pte.json").mkdir()
    path.write_bytes(b"old")
    with pytest.raises(tosaic.WriteError, match="is a folder"):
        save_pte(manager, path)
    assert path.read_bytes() == b"old"
    with pytest.raises(tosaic.InvalidGraph, match="no EdgeProgramManager"):
        save_pte(3, path)


def test_a_damaged_sidecar_is_refused(tmp_path: Path) -> None:
    path, beside = tmp_path / "m.pte", tmp_path / "m.pte.json"
    saved(quantized("residual"), INT, path)
    text = beside.read_text()
    with pytest.raises(tosaic.InvalidGraph, match="no such method"):
        pte_sidecar(path).method("other")
    damages = {
        "kind": ("'pte'", "tosa"),
        "version": ("another version", 9),
        "methods": ("a list", {}),
        "file": ("an object", 1),
    }
    for key, (message, value) in damages.items():
        beside.write_text(json.dumps({**json.loads(text), key: value}))
        with pytest.raises(tosaic.InvalidGraph, match=message):
            pte_sidecar(path)
    for key, value in (("order", [0, 0, 0, 0]), ("dtype", "x8"), ("shape", [1]), ("quantized", [1])):
        entry = json.loads(text)
        entry["methods"][0]["inputs"][0][key] = value
        beside.write_text(json.dumps(entry))
        with pytest.raises(tosaic.InvalidGraph, match=r"methods\[0\].inputs\[0\]"):
            pte_sidecar(path)
    entry = json.loads(text)
    entry["methods"][0]["signature"]["input_leaves"] = []
    beside.write_text(json.dumps(entry))
    with pytest.raises(tosaic.InvalidGraph, match=r"methods\[0\].signature is damaged"):
        pte_sidecar(path)
    beside.write_text(text)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(tosaic.InvalidGraph, match="the sidecar of another file"):
        pte_sidecar(path)
    beside.unlink()
    with pytest.raises(tosaic.InvalidGraph, match="has no sidecar"):
        pte_sidecar(path)
