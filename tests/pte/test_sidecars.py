"""`load_pte` with the sidecar that `tosaic.executorch.save_pte` writes next to the file."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch.exir")

import tosaic  # noqa: E402
from models.wrapped import lower  # noqa: E402
from models.zoo import quiet  # noqa: E402
from tosaic.executorch import TosaicPartitioner, pte_sidecar, save_pte  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

INT = "TOSA-1.0+INT"


class Nested(torch.nn.Module):
    """Nested arguments and results, an argument that is not a tensor, and channels-last images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, batch: dict[str, Any], factor: float) -> dict[str, Any]:
        y = torch.relu(self.conv(batch["image"])) * factor
        return {"maps": y, "both": [y + batch["bias"], batch["bias"] * 2]}


def _arguments() -> tuple[dict[str, Any], float]:
    generator = torch.Generator().manual_seed(5)
    image = torch.randn(1, 3, 6, 5, generator=generator).contiguous(memory_format=torch.channels_last)
    return {"image": image, "bias": torch.randn(1, 4, 6, 5, generator=generator)}, 0.5


@cache
def _written(kind: str) -> tuple[bytes, str]:
    """Returns the bytes of a file and the text of its sidecar: ``floats`` or ``integers`` at the boundary."""
    import tempfile

    program = _program(kind)
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "m.pte"
        save_pte(lower(program, [TosaicPartitioner(INT)]), path)
        return path.read_bytes(), path.with_name("m.pte.json").read_text()


@cache
def _program(kind: str) -> Any:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    torch.manual_seed(0)
    with quiet(), torch.no_grad():
        exported = torch.export.export(Nested().eval(), _arguments())
        prepared = prepare_pt2e(exported.module(check_guards=False), tosaic.Quantizer())
        prepared(*_arguments())
        program = torch.export.export(convert_pt2e(prepared), _arguments())
        return tosaic.extract_io_quant(program)[0] if kind == "integers" else program


def _saved(folder: Path, kind: str = "floats", change: Callable[[Any], Any] | None = None) -> Path:
    data, text = _written(kind)
    path = folder / "m.pte"
    path.write_bytes(data)
    entry = json.loads(text)
    if change is not None:
        change(entry)
    (folder / "m.pte.json").write_text(json.dumps(entry))
    return path


def test_the_signature_has_the_names_and_paths_of_the_program(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    file = tosaic.load_pte(path)
    known = tosaic.from_exported(_program("floats"))
    program = file.program
    assert [port.path for port in program.inputs] == [port.path for port in known.inputs]
    assert [port.path for port in program.outputs] == [port.path for port in known.outputs]
    assert [port.dim_order for port in program.inputs] == [(0, 2, 3, 1), (0, 1, 2, 3)]
    assert [port.quantized for port in program.inputs] == [port.quantized for port in known.inputs]
    assert [port.quantized for port in program.outputs] == [port.quantized for port in known.outputs]
    assert [each.path for each in file.method().inputs] == [port.path for port in known.inputs]
    assert file.method().inputs[0].quantized == known.inputs[0].quantized
    assert {each.target for each in file.delegates} == {INT}
    assert file.sidecar == pte_sidecar(path)
    assert "batch['image']" in str(file)


def test_a_run_takes_and_returns_nested_arrays(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    batch, factor = _arguments()
    expected = _program("floats").module(check_guards=False)(batch, factor)
    file = tosaic.load_pte(path)
    for found in (
        file.run(batch, factor),
        file.run(batch=batch, factor=factor),
        file.run(**{"batch['image']": batch["image"], "batch['bias']": batch["bias"]}),
        file.prepare(on="reference").run(batch, factor),
        pickle.loads(pickle.dumps(file.program)).run(batch, factor),
        copy.deepcopy(file.program).run(batch, factor),
        file.program.with_overrides({}).run(batch, factor),
    ):
        assert list(found) == ["maps", "both"]
        assert isinstance(found["both"], list)
        assert np.ptp(found["maps"]) > 0
        step = file.program.outputs[0].quantized[0].scale
        assert np.abs(found["maps"] - expected["maps"].numpy()).max() <= step * 1.01
    with pytest.raises(tosaic.InvalidGraph, match="a dict with the keys"):
        file.run({"picture": batch["image"], "bias": batch["bias"]}, factor)


def test_without_the_sidecar_the_file_is_read_alone(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    batch, factor = _arguments()
    ours = tosaic.load_pte(path).run(batch, factor)
    for read in (tosaic.load_pte(path, sidecar=False), None):
        if read is None:
            path.with_name("m.pte.json").unlink()
            read = tosaic.load_pte(path)
        assert read.sidecar is None
        assert read.method().inputs[0].path == ""
        assert not read.program.inputs[0].quantized or read.program.inputs[0].path != "batch['image']"
        found = read.program.run_arrays([batch["image"].numpy(), batch["bias"].numpy()])
        np.testing.assert_array_equal(found[0], ours["maps"])


def test_states_and_branches_have_their_sidecar(tmp_path: Path) -> None:
    from executorch.exir import EdgeCompileConfig, to_edge

    from pte.examples import Branching, Stateful

    config = EdgeCompileConfig(_check_ir_validity=False)
    d = {"a": torch.randn(3), "b": torch.randn(2, 3)}
    given = {"s": (Stateful(), (torch.randn(2, 3), d))}
    given["b"] = (Branching(), (torch.tensor(True), torch.tensor(False), torch.randn(2, 3)))
    for name, (module, args) in given.items():
        path = tmp_path / f"{name}.pte"
        with quiet():
            exported = torch.export.export(module, args)
            save_pte(to_edge(exported, compile_config=config), path)
        program = tosaic.load_pte(path).program
        ours = [torch.utils._pytree.tree_leaves(program.run(*args)) for _ in range(2)]
        theirs = [torch.utils._pytree.tree_leaves(module(*args)) for _ in range(2)]
        for found, expected in zip(ours, theirs, strict=True):
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-5, atol=1e-6)
        assert [port.path for port in program.inputs] == [
            port.path for port in tosaic.from_exported(exported).inputs
        ]


def test_an_input_of_integers_takes_floats_too(tmp_path: Path) -> None:
    path = _saved(tmp_path, "integers")
    file = tosaic.load_pte(path)
    program = file.program
    image, bias = program.inputs
    assert (image.dtype, bias.dtype) == ("i8", "i8")
    batch, factor = _arguments()
    integers = {
        "image": image.qparams.quantize(batch["image"].numpy()),
        "bias": bias.qparams.quantize(batch["bias"].numpy()),
    }
    expected = file.run(integers, factor)
    assert expected["maps"].dtype == np.int8
    assert np.ptp(expected["maps"].astype(int)) > 8
    for given in (batch, {"image": batch["image"].numpy(), "bias": integers["bias"]}):
        for found in (file.run(given, factor), file.prepare(on="reference").run(given, factor)):
            np.testing.assert_array_equal(found["maps"], expected["maps"])
    with pytest.raises(tosaic.LayoutMismatch):
        tosaic.load_pte(path, sidecar=False).program.run_arrays([batch["image"].numpy(), integers["bias"]])


class _Flat(torch.nn.Module):
    """One argument and one result: such calls may go to the core as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@pytest.mark.parametrize("partitioners", [[], [TosaicPartitioner(INT)]], ids=["kernels", "delegate"])
def test_a_plain_call_quantizes_floats_too(partitioners: list[Any], tmp_path: Path) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    torch.manual_seed(0)
    x = torch.randn(4, 8)
    with quiet(), torch.no_grad():
        exported = torch.export.export(_Flat().eval(), (x,)).module(check_guards=False)
        prepared = prepare_pt2e(exported, tosaic.Quantizer())
        prepared(x)
        program, _ = tosaic.extract_io_quant(torch.export.export(convert_pt2e(prepared), (x,)))
        save_pte(lower(program, partitioners), tmp_path / "m.pte")
    file = tosaic.load_pte(tmp_path / "m.pte")
    for call in (file, file.program, file.program.prepare()):
        expected = call(x=x)
        assert expected.dtype == np.int8
        assert call(x).tobytes() == call(x.numpy()).tobytes() == expected.tobytes()


def test_integers_are_compared_with_floats_by_their_qparams(tmp_path: Path) -> None:
    path = _saved(tmp_path, "integers")
    assert tosaic.compare(_program("floats"), path, _arguments()).ok
    wrong = _saved(
        tmp_path,
        "integers",
        lambda entry: entry["methods"][0]["outputs"][0]["quantized"][0].update(scales=[7.0]),
    )
    assert not tosaic.compare(_program("floats"), wrong, _arguments()).ok


def _set(*place: Any, to: Any) -> Callable[[Any], None]:
    def change(entry: Any) -> None:
        at = entry["methods"][0]
        for step in place[:-1]:
            at = at[step]
        at[place[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("name", to="other"), "the methods: expected forward, got other"),
        (_set("inputs", 0, "dtype", to="i8"), "method 'forward', input 0: expected f32"),
        (_set("inputs", 0, "shape", to=[1, 3, 6, 6]), "method 'forward', input 0"),
        (_set("inputs", 0, "order", to=[0, 1, 2, 3]), "method 'forward', input 0"),
        (_set("inputs", 1, "path", to="batch['image']"), "the paths of method 'forward', inputs"),
        (_set("outputs", 1, "shape", to=[4, 6, 5]), "output 1|outputs"),
        (_set("delegates", 0, "sha256", to="0" * 64), "method 'forward', delegates"),
        (_set("delegates", 0, "runtime", to="VgfBackend"), "method 'forward', delegates"),
        (_set("signature", "input_leaves", to=[]), "signature"),
    ],
)
def test_a_sidecar_that_does_not_fit_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        tosaic.load_pte(_saved(tmp_path, "floats", change))
    assert tosaic.load_pte(tmp_path / "m.pte", sidecar=False).method()


def test_a_sidecar_of_another_file_is_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    path.write_bytes(_written("integers")[0])
    for read in (tosaic.load_pte, tosaic.open_program):
        with pytest.raises(tosaic.InvalidGraph, match=r"'m\.pte\.json' is the sidecar of another file"):
            read(path)
    path.with_name("m.pte.json").write_text("{")
    with pytest.raises(tosaic.InvalidGraph, match="its JSON cannot be read"):
        tosaic.load_pte(path)
