"""Weights that torchao quantized alone, or with activations of each run: numbers, and stored bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")

import torchao.quantization as ao  # noqa: E402
import tosaic  # noqa: E402
from torch import nn  # noqa: E402
from torchao.quantization.granularity import PerAxis, PerGroup, PerTensor  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from tosaic.lowering.reference_model import run_reference_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torchao and torch.export warn about their own code
FP, BOTH = "TOSA-1.0+FP", "TOSA-1.0+FP+INT"
BYTES = 64 * 128 + 128 * 32  # the weights of `_Layers`, one byte each
ASYMMETRIC = ao.MappingType.ASYMMETRIC
_Config = Callable[[], Any]

WEIGHT_ONLY: dict[str, _Config] = {
    "int8": lambda: ao.Int8WeightOnlyConfig(),
    "int8 by tensor": lambda: ao.Int8WeightOnlyConfig(granularity=PerTensor()),
    "int8 by group": lambda: ao.Int8WeightOnlyConfig(granularity=PerGroup(32)),
    "int1": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int1, granularity=PerGroup(32)),
    "int4": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "int5 by channel": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int5, granularity=PerAxis(0)),
    "int4 with zero points": lambda: ao.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=PerGroup(32), mapping_type=ASYMMETRIC
    ),
    "int4 with bf16 scales": lambda: ao.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=PerGroup(32), scale_dtype=torch.bfloat16
    ),
}
FLOAT8: dict[str, tuple[_Config, str, str]] = {
    "e4m3": (lambda: ao.Float8WeightOnlyConfig(), "fp8e4m3", "f8e4m3"),
    "e5m2": (lambda: ao.Float8WeightOnlyConfig(weight_dtype=torch.float8_e5m2), "fp8e5m2", "f8e5m2"),
}
DYNAMIC: dict[str, _Config] = {
    "8da4w": lambda: ao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    ),
    "8da8w": lambda: ao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int8, weight_granularity=PerAxis(0)
    ),
    "int8": lambda: ao.Int8DynamicActivationInt8WeightConfig(),
    "int8 by tensor": lambda: ao.Int8DynamicActivationInt8WeightConfig(granularity=PerTensor()),
    "int8 with zero points": lambda: ao.Int8DynamicActivationInt8WeightConfig(act_mapping_type=ASYMMETRIC),
}


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 128), nn.Linear(128, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


class _Words(nn.Module):
    """An embedding and a head, tied or not."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(100, 64), nn.Linear(64, 100, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.words(index)))


def _export(module: nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module.eval(), inputs)


def _quantized(config: _Config, module: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    module = _Layers().eval() if module is None else module.eval()
    ao.quantize_(module, config(), lambda each, _: isinstance(each, nn.Linear | nn.Embedding))
    return module


def _stored(lowered: tosaic.Lowered) -> dict[str, int]:
    """Returns the bytes of constants by dtype."""
    found: Counter[str] = Counter()
    for value in lowered.graph.values:
        if value.constant is not None:
            found[value.dtype] += value.constant.array.nbytes
    return dict(found)


def _rows(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(1)) * 3


def _close(found: np.ndarray, expected: np.ndarray) -> bool:
    """True if the numbers differ by no more than sums in another order do."""
    return bool(np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max())


def _matches_reference(lowered: tosaic.Lowered, *inputs: np.ndarray) -> None:
    reference = run_reference_model(lowered, *inputs)
    assert reference.status == "VALID"
    own = lowered.run(*inputs)
    np.testing.assert_allclose(reference.outputs, own, rtol=1e-5, atol=1e-5 * np.abs(own).max())


@pytest.mark.parametrize("target", [FP, BOTH])
@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_integer_weights_are_stored_as_they_are(name: str, target: str, tmp_path: Path) -> None:
    module, x = _quantized(WEIGHT_ONLY[name]), _rows()
    exported = _export(module, x)
    expected = module(x).detach().numpy()
    for program in (exported, exported.run_decompositions({})):
        assert _close(tosaic.from_exported(program).run(x.numpy()), expected)
    lowered = tosaic.lower(exported, target=target)
    assert _stored(lowered)["i8"] == BYTES
    assert lowered.save(tmp_path / "m.tosa") < 2 * BYTES
    found = lowered.run(x.numpy())
    assert _close(found, expected)
    assert np.array_equal(tosaic.load_tosa(tmp_path / "m.tosa").run(x.numpy()), found)
    assert tosaic.compare(exported, lowered, (x,)).ok
    assert lowered.diagnostics == ()
    _matches_reference(lowered, x.numpy())


@pytest.mark.parametrize("name", FLOAT8)
def test_weights_of_eight_bit_floats_need_their_extension_and_are_named_without_it(name: str) -> None:
    config, extension, dtype = FLOAT8[name]
    module, x = _quantized(config), _rows()
    exported = _export(module, x)
    narrow = tosaic.lower(exported, target=f"{FP}+{extension}")
    assert _stored(narrow)[dtype] == BYTES
    assert narrow.diagnostics == ()
    assert narrow.file_size() < 2 * BYTES
    wide = tosaic.lower(exported, target=FP)
    assert _stored(wide) == {"f32": 4 * (BYTES + 128 + 1)}  # weights, the bias of one layer, a zero
    assert [each.rule for each in wide.diagnostics] == ["grown-weight"] * 2
    first = wide.diagnostics[0]
    assert first.name == "a.weight.qdata"
    assert first.message == (
        f"'a.weight.qdata' is stored as f32, 3.8 times as large as its {dtype}: TOSA-1.0+FP lacks "
        f"EXT-{extension.upper()}"
    )
    assert "noticed at lowering" in [section.title for section in wide.report().sections]
    assert np.array_equal(narrow.run(x.numpy()), wide.run(x.numpy()))
    _matches_reference(narrow, x.numpy())


@pytest.mark.parametrize(
    "moved",
    [
        lambda w: w.flip(0),
        lambda w: torch.cat([w, w * 2]),
        lambda w: nn.functional.pad(w, (0, 0, 1, 1)),
    ],
    ids=["flip", "cat", "pad"],
)
def test_a_weight_that_becomes_floats_before_it_is_read_is_named(moved: Callable[[Any], Any]) -> None:
    class Moved(_Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, moved(self.a.weight.dequantize()))

    torch.manual_seed(0)
    module, x = Moved().eval(), _rows()
    ao.quantize_(module, ao.Int8WeightOnlyConfig())
    lowered = tosaic.lower(_export(module, x), target=FP)
    (note,) = lowered.diagnostics
    assert note.rule == "grown-weight"
    assert "is not stored as i8: floats that were computed from it are constants" in note.message


@pytest.mark.parametrize("target", [FP, BOTH])
@pytest.mark.parametrize("name", DYNAMIC)
def test_activations_that_are_quantized_in_every_run_equal_torchs(name: str, target: str) -> None:
    module, x = _quantized(DYNAMIC[name]), _rows()
    x[0] = 0  # a row whose scale is the least there is
    exported = _export(module, x)
    expected = module(x).detach().numpy()
    program = tosaic.from_exported(exported)
    near = 0.02 * np.abs(expected).max()  # a sum in another order may be rounded to the next integer
    for rows in (x, _rows(5).flip(0), -x):
        np.testing.assert_allclose(program.run(rows.numpy()), module(rows).detach().numpy(), atol=near)
    lowered = tosaic.lower(exported, target=target)
    assert _stored(lowered)["i8"] == BYTES
    assert tosaic.compare(exported, lowered, (x,)).ok
    np.testing.assert_allclose(lowered.run(x.numpy()), expected, atol=near)
    _matches_reference(lowered, x.numpy())


class _Chosen(nn.Module):
    """Qparams of a tensor, and the tensor through quantizers with them."""

    def __init__(self, choose: Callable[..., Any], quantize: str, *more: Any) -> None:
        super().__init__()
        self.choose, self.quantize, self.more = choose, quantize, more

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale, zero = self.choose(x)
        if self.quantize == "affine":
            ops: Any = torch.ops.torchao
            arguments = (self.more[0], scale, zero, torch.int8, -128, 127)
            q = ops.quantize_affine(x, *arguments)
            return scale, zero, q, ops.dequantize_affine(q, *arguments)
        ops = torch.ops.quantized_decomposed
        q = getattr(ops, f"quantize_{self.quantize}")(x, scale, zero, *self.more)
        dequantize = getattr(ops, f"dequantize_{self.quantize}")
        last = (torch.float32,) if "token" in self.quantize else ()
        return scale, zero, q, dequantize(q, scale, zero, *self.more, *last)


def _affine(mapping: str, block: list[int], low: int, high: int, *more: Any) -> nn.Module:
    choose = torch.ops.torchao.choose_qparams_affine
    return _Chosen(lambda x: choose(x, mapping, block, torch.int8, low, high, *more), "affine", block)


_PT2E = (-128, 127, torch.int8)
CHOSEN: dict[str, Callable[[], nn.Module]] = {
    "tensor": lambda: _Chosen(
        lambda x: torch.ops.quantized_decomposed.choose_qparams(x, -128, 127, 1e-6, torch.int8),
        "per_tensor",
        *_PT2E,
    ),
    "symmetric": lambda: _Chosen(
        lambda x: torch.ops.quantized_decomposed.choose_qparams_symmetric(x, -127, 127, 1e-6, torch.int8),
        "per_tensor",
        *_PT2E,
    ),
    "token": lambda: _Chosen(
        lambda x: torch.ops.quantized_decomposed.choose_qparams_per_token_asymmetric(x, torch.int8),
        "per_token",
        *_PT2E,
    ),
    "rows": lambda: _affine("ASYMMETRIC", [1, 64], -128, 127, None, None, torch.int8),
    "columns": lambda: _affine("ASYMMETRIC", [5, 1], -128, 127, 2.0**-20, torch.float32, torch.int32),
    "groups": lambda: _affine("SYMMETRIC", [1, 16], -128, 127, None, torch.float32, torch.int8, True),
    "all": lambda: _affine("SYMMETRIC_NO_CLIPPING_ERR", [5, 64], -8, 7, None, None, torch.int8),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_qparams_and_their_integers_equal_eager_bit_for_bit(name: str) -> None:
    module, x = CHOSEN[name](), _rows()
    program = tosaic.from_exported(torch.export.export(module, (x,)))
    samples = [x, -x, x.abs(), -x.abs(), torch.zeros_like(x), x * 1e-30, x * 1e30]
    for rows in samples:
        for found, expected in zip(program.run(rows.numpy()), module(rows), strict=True):
            assert found.dtype == expected.numpy().dtype
            assert np.array_equal(found, expected.numpy())


def test_a_target_without_floats_refuses_qparams_of_each_run_with_a_way_out() -> None:
    x = _rows()
    exported = _export(_quantized(DYNAMIC["8da4w"]), x)
    with pytest.raises(tosaic.UnsupportedOp, match="computed in every run, from floats") as refused:
        tosaic.lower(exported, target="TOSA-1.0+INT")
    first = refused.value.problems[0]
    assert first.node == "choose_qparams_affine"
    assert "static quantization" in first.message
    quantized = tosaic.quantize(_export(_Layers(), x), [(x,)])
    assert tosaic.lower(quantized, target="TOSA-1.0+INT").run(x.numpy()).shape == (5, 32)


@pytest.mark.parametrize("name", ["int8", "int4", "int4 with zero points"])
@pytest.mark.parametrize("door", ["quantize", "Quantizer"])
def test_programs_with_quantized_weights_can_be_quantized_statically(name: str, door: str) -> None:
    module, x = _quantized(WEIGHT_ONLY[name]), _rows(32)
    exported = _export(module, x)
    expected = module(x).detach().numpy()
    if door == "quantize":
        quantized: Any = tosaic.quantize(exported, [(x,)])
    else:
        prepared = prepare_pt2e(exported.module(), tosaic.Quantizer())
        prepared(x)
        quantized = torch.export.export(convert_pt2e(prepared), (x,))
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    noise = lowered.run(x.numpy()) - expected
    assert 10 * np.log10((expected**2).sum() / (noise**2).sum()) > 30


@pytest.mark.parametrize("name", ["8da8w", "int8", "int8 with zero points"])
def test_programs_that_quantize_in_every_run_are_quantized_where_they_have_floats(name: str) -> None:
    module, x = _quantized(DYNAMIC[name]), _rows()
    exported = _export(module, x)
    quantized = tosaic.quantize(exported, [(x,)], progress=False)
    expected = module(x).detach().numpy()
    noise = quantized.run(x.numpy()) - expected
    assert 10 * np.log10((expected**2).sum() / (noise**2).sum()) > 20
    with pytest.raises(tosaic.UnsupportedOp, match="computed in every run, from floats") as refused:
        tosaic.lower(quantized, target="TOSA-1.0+INT")
    assert "calibrate the model as it was before" in refused.value.problems[0].message
    mixed = tosaic.lower(quantized, target=BOTH)
    assert tosaic.compare(quantized, mixed, (x,)).ok


def test_rows_of_a_narrow_table_are_gathered_before_they_are_scaled() -> None:
    index = torch.tensor([[0, 99, 5], [7, 5, 1]])
    module = _quantized(WEIGHT_ONLY["int4"], _Words(False))
    exported = _export(module, index)
    expected = module(index).detach().numpy()
    for target, table in ((FP, "f32"), (BOTH, "i8")):
        lowered = tosaic.lower(exported, target=target)
        assert _stored(lowered)["i8"] == 2 * 6400
        gathers = [node for node in lowered.graph.nodes if node.op == "tosa.gather"]
        assert gathers[0].operands[0].dtype == table
        assert _close(lowered.run(index.numpy()), expected)
        assert tosaic.compare(exported, lowered, (index,)).ok
        _matches_reference(lowered, index.numpy())


def test_zero_points_of_embeddings_may_be_fractions() -> None:
    from torchao.quantization.pt2e.quantizer.embedding_quantizer import EmbeddingQuantizer

    index = torch.tensor([[0, 99, 5]])
    prepared = prepare_pt2e(_export(_Words(False), index).module(), EmbeddingQuantizer())
    prepared(index)
    converted = convert_pt2e(prepared)
    exported = torch.export.export(converted, (index,))
    expected = converted(index).detach().numpy()
    assert _close(tosaic.from_exported(exported).run(index.numpy()), expected)
    for target in (FP, BOTH):
        lowered = tosaic.lower(exported, target=target)
        assert _stored(lowered)["i8"] == 6400
        assert _close(lowered.run(index.numpy()), expected)


@pytest.mark.parametrize("by_channel", [False, True])
def test_dynamic_quantizers_of_pt2e_are_read(by_channel: bool) -> None:
    xnnpack = pytest.importorskip("executorch.backends.xnnpack.quantizer.xnnpack_quantizer")
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=by_channel, is_dynamic=True)
    x = _rows()
    prepared = prepare_pt2e(_export(_Layers(), x).module(), xnnpack.XNNPACKQuantizer().set_global(config))
    prepared(x)
    converted = convert_pt2e(prepared)
    exported = torch.export.export(converted, (x,))
    program = tosaic.from_exported(exported)
    for rows in (x, -2 * x, torch.zeros_like(x), x.abs()):
        expected = converted(rows).detach().numpy()
        near = 0.02 * np.abs(expected).max()
        np.testing.assert_allclose(program.run(rows.numpy()), expected, atol=near)
    for target in (FP, BOTH):
        lowered = tosaic.lower(exported, target=target)
        assert _stored(lowered)["i8"] == BYTES
        assert tosaic.compare(exported, lowered, (x,)).ok
        _matches_reference(lowered, x.numpy())


def test_weights_of_four_bits_are_stored_in_four_bits_beside_inputs_of_bytes() -> None:
    x = _rows(16)
    config = tosaic.QConfig.int8(weight_bits=4)
    quantized = tosaic.quantize(_export(_Layers(), x), [(x,)], config=config)
    bytes_of, nibbles = (tosaic.lower(quantized, target=f"TOSA-1.0+INT{more}") for more in ("", "+int4"))
    assert _stored(bytes_of)["i8"] >= BYTES
    assert _stored(nibbles)["i4"] == BYTES  # a byte for each in memory, half a byte in the file
    assert bytes_of.file_size() - nibbles.file_size() > 0.45 * BYTES
    assert np.array_equal(nibbles.run(x.numpy()), bytes_of.run(x.numpy()))
    _matches_reference(nibbles, nibbles.inputs[0].qparams.quantize(x.numpy()))


def test_a_file_without_torch_has_the_same_program(tmp_path: Path) -> None:
    module, x = _quantized(DYNAMIC["8da4w"]), _rows()
    exported = _export(module, x).run_decompositions({})
    torch.export.save(exported, tmp_path / "m.pt2")
    program = tosaic.open_program(tmp_path / "m.pt2")
    assert program.diagnostics == ()
    assert program.graph.text() == tosaic.from_exported(exported).graph.text()
    assert _close(program.run(x.numpy()), module(x).detach().numpy())


# ---- weights that are equal ----


class _Twice(nn.Module):
    """Two layers: with one weight, or with two equal ones."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        if tied:
            self.b.weight = self.a.weight
        else:
            self.b.load_state_dict(self.a.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


class _Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.w) @ self.w.t()


@pytest.mark.parametrize("tied", [True, False])
def test_equal_weights_are_stored_once(tied: bool, tmp_path: Path) -> None:
    module, x = _Twice(tied), _rows()
    exported = _export(module, x)
    lowered = tosaic.lower(exported, target=FP)
    assert lowered.save(tmp_path / "m.tosa") < 1.4 * 4 * 64 * 64
    assert lowered.save(tmp_path / "m.pte") < 1.4 * 4 * 64 * 64
    assert tosaic.compare(exported, lowered, (x,)).ok
    integers = tosaic.lower(tosaic.quantize(exported, [(x,)]), target="TOSA-1.0+INT")
    assert sum(_stored(integers)[each] for each in ("i8",)) < 64 * 64 + 100


@pytest.mark.parametrize("quantized", [False, True])
def test_an_embedding_and_a_head_with_one_weight_store_it_once(quantized: bool) -> None:
    module = _Words(True)
    if quantized:
        module = _quantized(lambda: ao.IntxWeightOnlyConfig(granularity=PerAxis(0)), module)
    index = torch.tensor([[0, 99, 5]])
    exported = _export(module, index)
    expected = module(index).detach().numpy()
    for target in (FP, BOTH):
        lowered = tosaic.lower(exported, target=target)
        assert _stored(lowered)["i8" if quantized else "f32"] < 6400 * (1 if quantized else 4) + 500
        np.testing.assert_allclose(lowered.run(index.numpy()), expected, rtol=1e-5, atol=1e-5)
        _matches_reference(lowered, index.numpy())


def test_a_weight_that_is_also_read_transposed_is_stored_in_two_layouts_and_named() -> None:
    module, x = _Transposed(), _rows()
    exported = _export(module, x)
    for target in (FP, BOTH):
        lowered = tosaic.lower(exported, target=target)
        assert tosaic.compare(exported, lowered, (x,)).ok
        assert [each.rule for each in lowered.diagnostics] == ["two-layouts"]
