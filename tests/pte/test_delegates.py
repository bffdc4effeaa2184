"""Delegates whose payloads tosaic cannot run: VGF files and Vela's commands, with their TOSA sources.

`tests/full/test_vgf.py` runs VGF payloads on Vulkan.
"""

from __future__ import annotations

import copy
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

import tosaic  # noqa: E402
from tosaic import _core  # noqa: E402
from tosaic.cli import main  # noqa: E402
from tosaic.devices import vgf_graph  # noqa: E402
from tosaic.devices.vela_stream import unpack_vela  # noqa: E402
from tosaic.pte.delegate_calls import EngineCall, TensorForm  # noqa: E402
from tosaic.pte.file import PteFile  # noqa: E402
from tosaic.pte.payloads import Place  # noqa: E402

from pte.examples import flattened, made_by_tosaic, make  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

VELA, VGF, INT = "ethos-u55-128", "vgf", "TOSA-1.0+INT"


def _file(claimant: str, sources: Any = None) -> PteFile:
    return PteFile(_core.read_pte(made_by_tosaic(claimant).data), sources=sources)


def _sources(claimant: str) -> dict[str, bytes]:
    return {f"delegate{i}": file for i, file in enumerate(made_by_tosaic(claimant).sources)}


def _with_payload(data: bytes, change: Any) -> PteFile:
    """Returns the file with another payload of delegate 0."""
    file = _core.read_pte(data)
    payload = change(bytes(file.payload_of(file.methods[0].delegates[0])))
    segments, delegate = file.segments, file.methods[0].delegates[0]
    segments[delegate.index] = _core.PteSegment(bytes=np.frombuffer(payload, np.uint8))
    file.segments = segments
    return PteFile(_core.read_pte(_core.write_pte(file)))


@pytest.mark.parametrize("claimant", [VELA, VGF])
def test_a_delegate_runs_by_its_source(claimant: str) -> None:
    example = made_by_tosaic(claimant)
    file = _file(claimant, _sources(claimant))
    assert [each.has_source for each in file.delegates] == [True] * len(file.delegates)
    found = flattened(file.run(*example.inputs))
    expected = flattened(example.module(*example.inputs))
    for ours, theirs in zip(found, expected, strict=True):
        assert np.ptp(ours) > 0
        assert np.abs(ours - theirs.detach().numpy()).max() < 0.05
    on_reference = flattened(file.prepare(on="reference").run(*example.inputs))
    for ours, theirs in zip(found, on_reference, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_source_is_a_path_bytes_a_lowered_program_or_a_program(tmp_path: Path) -> None:
    example = made_by_tosaic(VELA)
    (file,) = example.sources
    path = tmp_path / "group0.tosa"
    path.write_bytes(file)
    (tmp_path / "m.pte").write_bytes(example.data)
    expected = flattened(_file(VELA, {"delegate0": file}).run(*example.inputs))
    loaded = tosaic.load_tosa(path)
    for key, source in (
        ("delegate0", path),
        ("EthosUBackend", str(path)),
        ("forward.delegate0", bytearray(file)),
        ("delegate0", loaded),
    ):
        read = tosaic.load_pte(tmp_path / "m.pte", sources={key: source})
        for a, b in zip(flattened(read.run(*example.inputs)), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_copies_and_pickles_have_the_sources() -> None:
    example, file = made_by_tosaic(VELA), _file(VELA, _sources(VELA))
    expected = flattened(file.run(*example.inputs))
    program = file.program
    pickled = pickle.loads(pickle.dumps(program.prepare(on="reference")))
    for each in (
        program,
        copy.deepcopy(program),
        pickled,
        program.with_overrides({}).prepare(on="reference"),
    ):
        for a, b in zip(flattened(each.run(*example.inputs)), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_function_of_the_caller_remains_with_every_engine() -> None:
    example, file = made_by_tosaic(INT), _file(INT)
    seen: list[str] = []
    part = _core.deserialize(example.sources[0])
    shapes = [(tuple(port.shape), port.dtype) for port in part.outputs]

    def own(*arrays: Any) -> Any:
        seen.append("called")
        made = [np.zeros(shape, np.dtype(dtype.replace("i", "int"))) for shape, dtype in shapes]
        return made if len(made) > 1 else made[0]

    program = file.program.with_overrides({"delegate0": own})
    program.run(*example.inputs)
    program.prepare(on="reference").run(*example.inputs)
    assert seen == ["called"] * 2


def test_the_error_of_a_delegate_says_what_would_run_it() -> None:
    example = made_by_tosaic(VELA)
    with pytest.raises(tosaic.UnsupportedOp) as caught:
        _file(VELA).run(*example.inputs)
    text = str(caught.value)
    assert "the Vela payload of delegate 0 ('EthosUBackend') of method 'forward'" in text
    assert "commands for Ethos-U, which only the device runs" in text
    assert "load_pte(path, sources={'delegate0': file})" in text
    with pytest.raises(tosaic.UnsupportedOp, match=r"prepare\(on='vgf'\) runs VGF payloads"):
        _file(VGF).run(*example.inputs)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("delegate1", "selects no delegate: expected 'delegate0' or 'forward.delegate0' or 'EthosUBackend'"),
        ("forward", "selects no delegate"),
        (0, "selects no delegate"),
    ],
)
def test_a_key_that_selects_nothing_is_refused(key: Any, message: str) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        _file(VELA, {key: made_by_tosaic(VELA).sources[0]})


def test_keys_and_sources_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (file,) = made_by_tosaic(VELA).sources
    with pytest.raises(tosaic.InvalidGraph, match="two keys select one delegate"):
        _file(VELA, {"delegate0": file, "EthosUBackend": file})
    with pytest.raises(tosaic.InvalidGraph, match="unknown value of 'sources': expected a mapping"):
        _file(VELA, [file])
    with pytest.raises(tosaic.InvalidGraph, match="the source of 'delegate0' is of another type"):
        _file(VELA, {"delegate0": 3})
    with pytest.raises(tosaic.InvalidGraph, match="the source of 'delegate0': "):
        _file(VELA, {"delegate0": b"no file"})
    with pytest.raises(tosaic.InvalidGraph, match="is no TOSA program: expected stage tosa"):
        _file(VELA, {"delegate0": PteFile(_core.read_pte(make("portable").data)).program})
    with pytest.raises(tosaic.MissingFileError, match=r"none\.tosa"):
        _file(VELA, {"delegate0": tmp_path / "none.tosa"})
    with pytest.raises(tosaic.InvalidGraph, match="the delegate 'delegate0' runs by its payload"):
        _file(INT, {"delegate0": file})


class Outputs(torch.nn.Module):
    """One input and `count` outputs."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.relu(x) + i for i in range(self._count))


def _source(count: int, shape: tuple[int, ...] = (1, 3, 8, 8), *, integers: bool = True) -> bytes:
    x = torch.randn(shape)
    program: Any = torch.export.export(Outputs(count), (x,))
    if integers:
        program = tosaic.quantize(program, [(x,)], progress=False)
    return tosaic.lower(program, target=INT if integers else "TOSA-1.0+FP").to_bytes()


def test_a_source_with_other_inputs_or_outputs_is_refused() -> None:
    place = r"delegate 0 \('{}'\) of method 'forward'"
    count = len(_core.deserialize(made_by_tosaic(VELA).sources[0]).outputs)
    for claimant, backend, message in (
        (VGF, "VgfBackend", " is called with another number of tensors"),
        (VELA, "EthosUBackend", ": the source has another number of outputs"),
    ):
        with pytest.raises(tosaic.InvalidGraph, match=place.format(backend) + message):
            _ = _file(claimant, {"delegate0": _source(count + 3)}).program
    wrong = {
        "dtype": _source(count, integers=False),
        "size": _source(count, (1, 3, 8, 16)),
        "shape": _source(count, (1, 8, 8, 3)),
    }
    for what, source in wrong.items():
        message = f"{place.format('EthosUBackend')}: input 0 of the source has another {what}"
        with pytest.raises(tosaic.InvalidGraph, match=message):
            _ = _file(VELA, {"delegate0": source}).program


# ---- damaged payloads ----


@pytest.mark.parametrize("claimant", [VELA, VGF, INT])
@pytest.mark.parametrize("size", [5, 40, 200])
def test_a_truncated_payload_is_refused_with_its_delegate(claimant: str, size: int) -> None:
    data = made_by_tosaic(claimant).data
    magic = {VELA: 16, VGF: 4, INT: 8}[claimant]
    file = _with_payload(data, lambda payload: payload[: max(size, magic)])
    with pytest.raises(_core.Error, match=r"delegate 0 \('.*'\) of method 'forward'"):
        _ = file.program


def test_a_vgf_payload_of_another_version_is_refused() -> None:
    file = _with_payload(made_by_tosaic(VGF).data, lambda payload: payload[:8] + b"\x07" + payload[9:])
    with pytest.raises(tosaic.UnsupportedOp, match="unknown version: expected major version 0, got 7"):
        _ = file.program


def test_vela_commands_of_another_delegate_are_refused() -> None:
    stream = unpack_vela(PteFile(_core.read_pte(made_by_tosaic(VELA).data)).delegates[0].payload)

    def other(payload: bytes) -> bytes:
        at = payload.index(b"inputs\0") + 32 + 4
        return payload[:at] + struct.pack("<6i", 1, 1, 1, 8, 8, 4) + payload[at + 24 :]

    assert len(stream.inputs) == 1
    file = _with_payload(made_by_tosaic(VELA).data, other)
    with pytest.raises(
        tosaic.InvalidGraph, match=r"'EthosUBackend'.* input 0 of the payload has another size"
    ):
        _ = file.program


def test_an_error_inside_of_a_payload_names_the_delegate(monkeypatch: Any) -> None:
    example = made_by_tosaic(INT)
    file = _file(INT)

    def refuse(*_: Any) -> Any:
        raise _core.make_error(tosaic.UnsupportedOp, where="prepare", what="no kernels for CUSTOM operators")

    monkeypatch.setattr("tosaic.program.reference_graph.model_of_graph", refuse)
    message = r"delegate 0 \('TOSABackend'\) of method 'forward': no kernels for CUSTOM"
    with pytest.raises(tosaic.UnsupportedOp, match=message):
        file.prepare(on="reference").run(*example.inputs)


def test_what_runs_nothing_is_refused() -> None:
    message = "'on': expected 'tosaic', 'reference' or 'vgf', got 'vela'"
    for file in (_file(INT), PteFile(_core.read_pte(make("portable").data))):
        with pytest.raises(tosaic.InvalidGraph, match=message):
            file.prepare(on="vela")


def test_what_runs_vgf_files_is_required_only_for_delegates(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(vgf_graph.sys, "executable", f"{tmp_path}/python")
    with pytest.raises(ImportError, match="vgf_dump is not installed"):
        _file(VGF).prepare(on="vgf")
    with pytest.raises(ImportError, match="vgf_dump is not installed"):
        _file(INT).prepare(on="vgf")
    example = make("portable")
    prepared = PteFile(_core.read_pte(example.data)).prepare(on="vgf")
    assert prepared.on == "vgf"
    assert len(flattened(prepared.run(*example.inputs))) == 2


# ---- command line ----


def test_the_command_line_takes_sources(tmp_path: Path, capsys: Any) -> None:
    example = made_by_tosaic(VELA)
    pte, source = str(tmp_path / "m.pte"), str(tmp_path / "s.tosa")
    Path(pte).write_bytes(example.data)
    Path(source).write_bytes(example.sources[0])
    np.save(tmp_path / "x.npy", example.inputs[0].numpy())
    given, arrays = ["--source", f"delegate0={source}"], ["--input", str(tmp_path / "x.npy")]
    assert main(["inspect", pte]) == 0
    assert "a model" in capsys.readouterr().out
    assert main(["inspect", pte, *given]) == 0
    assert "its TOSA source" in capsys.readouterr().out
    assert main(["inspect", pte, "--memory", *given]) == 0
    assert main(["run", pte, *arrays, "-o", str(tmp_path / "y.npz"), *given]) == 0
    assert main(["run", pte, *arrays, "-o", str(tmp_path / "z.npz")]) == 3
    with np.load(tmp_path / "y.npz") as found:
        results = [found[name] for name in found.files]
    for ours, theirs in zip(
        results, flattened(_file(VELA, _sources(VELA)).run(*example.inputs)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    int_file = str(tmp_path / "i.pte")
    Path(int_file).write_bytes(made_by_tosaic(INT).data)
    capsys.readouterr()
    assert main(["compare", pte, int_file, *arrays, *given]) == 2
    assert "2 of the files are .pte files" in capsys.readouterr().err
    assert main(["run", source, *arrays, "-o", str(tmp_path / "y.npz"), *given]) == 2
    assert "none of the files is a .pte file" in capsys.readouterr().err
    assert main(["inspect", pte, "--source", "delegate0"]) == 2
    assert "'delegate0' is not DELEGATE=FILE" in capsys.readouterr().err
    assert main(["inspect", pte, *given, *given]) == 2
    assert "'delegate0' is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("declared", "written", "is_read"),
    [
        ("f32", np.float32, True),
        ("f32", np.int32, False),
        ("i32", np.float32, False),
        ("f16", np.int16, False),
        ("i8", np.uint8, True),
        ("bool", np.int8, True),
        ("bool", np.bool_, True),
        ("i64", np.int32, True),
        ("i64", np.float64, False),
        ("i32", np.int16, False),
        ("bf16", np.uint16, True),
        ("bf16", np.float16, False),
    ],
)
def test_the_bits_of_a_vgf_payload_are_not_taken_for_another_dtype(
    declared: str, written: Any, is_read: bool
) -> None:
    """A format of several components says nothing of a dtype, so the array that Vulkan writes is checked."""
    form = TensorForm(declared, (2, 2), (0, 1))
    written_file = _Written(np.ones((2, 2), written))
    call = EngineCall(written_file, "VGF", "Vulkan", (), (form,), Place("forward", 0, "VgfBackend"))
    call._is_checked = True
    if is_read:
        assert call().shape == (2, 2)
    else:
        with pytest.raises(tosaic.InvalidGraph, match="output 0 of the VGF payload has another dtype"):
            call()


class _Written:
    """Stands for a VGF file that runs on Vulkan."""

    sides = ((), ())

    def __init__(self, array: Any) -> None:
        self._array = array

    def run(self, _: Any) -> list[Any]:
        return [self._array]
