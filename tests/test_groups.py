"""Weights with a scale for each group of input channels: import, arithmetic and the quantizer."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")

import tosaic  # noqa: E402
from torch import nn  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from tosaic.lowering.reference_model import run_reference_model  # noqa: E402

INT = "TOSA-1.0+INT"
INT16 = "TOSA-1.0+INT+int16"


def _export(module: nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module.eval(), inputs)


class _Blocks(nn.Module):
    """A float tensor, through `quantize_affine` and `dequantize_affine`."""

    def __init__(self, shape: tuple[int, ...], block: tuple[int, ...], zero: bool = True) -> None:
        super().__init__()
        self.block = block
        grid = [extent // size for extent, size in zip(shape, block, strict=True)]
        self.register_buffer("scale", torch.rand(grid) * 0.1 + 0.01)
        zeros = torch.randint(-3, 4, grid, dtype=torch.int32)
        self.register_buffer("zero", zeros if zero else torch.zeros_like(zeros))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ops = torch.ops.torchao
        q = ops.quantize_affine(x, self.block, self.scale, self.zero, torch.int8, -8, 7)
        return q, ops.dequantize_affine(q, self.block, self.scale, self.zero, torch.int8, -8, 7)


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((4, 6), (4, 6)),
        ((4, 6), (1, 6)),
        ((4, 6), (4, 1)),
        ((4, 6), (1, 3)),
        ((4, 6), (2, 1)),
        ((4, 6), (2, 3)),
        ((4, 6), (1, 1)),
        ((4, 6), (4, 2)),
        ((2, 6, 3, 3), (1, 2, 3, 3)),
        ((6, 2, 3, 3), (3, 1, 3, 3)),
        ((1, 6), (1, 2)),
        ((2, 4, 5), (2, 2, 1)),
    ],
)
def test_blocks_that_divide_at_most_two_axes_compute_as_in_torch(
    shape: tuple[int, ...], block: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    module = _Blocks(shape, block)
    program = tosaic.from_exported(_export(module, x))
    for ours, theirs in zip(program.run(x), module(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_a_program_over_groups_lowers_to_floats_as_torch_computes_them() -> None:
    torch.manual_seed(1)
    x = torch.randn(4, 6)
    module = _Blocks((4, 6), (2, 3))
    lowered = tosaic.lower(_export(module, x), target="TOSA-1.0+INT+FP")
    for ours, theirs in zip(lowered.run(x), module(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_blocks_that_divide_three_axes_are_refused_with_their_place() -> None:
    x = torch.randn(4, 6, 2)
    with pytest.raises(tosaic.UnsupportedOp, match=r"divide more than two axes.*got \(2, 3, 1\).*node 'q"):
        tosaic.from_exported(_export(_Blocks((4, 6, 2), (2, 3, 1)), x))


def test_qparams_with_groups_are_text_python_values_and_can_be_pickled() -> None:
    x = torch.randn(4, 6)
    graph = tosaic.from_exported(_export(_Blocks((4, 6), (1, 3)), x)).graph
    node = next(node for node in graph.nodes if node.op == "dequantize")
    assert node.attrs["groups"] == (1, 3)
    assert "groups=[1,3]" in graph.text()
    again = pickle.loads(pickle.dumps(graph))
    assert again.text() == graph.text()
    qparams = tosaic.ports.QParams.of({**node.attrs, "storage": "i8"})
    module = _Blocks((4, 6), (1, 3))
    q, back = module(x)
    mine = tosaic.ports.QParams(
        "i8",
        tuple(module.scale.reshape(-1).tolist()),
        tuple(module.zero.reshape(-1).tolist()),
        -8,
        7,
        0,
        (1, 3),
    )
    assert qparams.groups == mine.groups == (1, 3)
    np.testing.assert_array_equal(mine.quantize(x.numpy()), q.numpy())
    np.testing.assert_array_equal(mine.dequantize(q.numpy()), back.numpy())
    with pytest.raises(tosaic.QuantMismatch, match="each group of 3 indices of axis 1"):
        _ = mine.scale


class _DecomposedGroups(nn.Module):
    def __init__(self, zero: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 16))
        self.register_buffer("scale", torch.rand(6, 4) * 0.3 + 0.1)
        zeros = (
            torch.randint(-5, 6, (6, 4), dtype=torch.int32) if zero else torch.zeros(6, 4, dtype=torch.int32)
        )
        self.register_buffer("zero", zeros)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        bounds = (-8, 7, torch.int8, 4)
        q = ops.quantize_per_channel_group(self.weight, self.scale, self.zero, *bounds)
        w = ops.dequantize_per_channel_group(q, self.scale, self.zero, *bounds, torch.float32)
        return nn.functional.linear(x, w)


@pytest.mark.parametrize("zero", [False, True])
def test_quantize_per_channel_group_computes_as_in_torch(zero: bool) -> None:
    import torch.ao.quantization.fx._decomposed

    torch.manual_seed(2)
    module, x = _DecomposedGroups(zero), torch.randn(3, 16)
    exported = _export(module, x)
    comparison = tosaic.compare(exported, tosaic.from_exported(exported), (x,))
    assert comparison.ok
    np.testing.assert_allclose(
        tosaic.from_exported(exported).run(x), module(x).detach().numpy(), rtol=1e-5, atol=1e-6
    )


# ---- contractions ----


def _converted(
    module: nn.Module, config: tosaic.QConfig, *inputs: torch.Tensor
) -> tuple[torch.export.ExportedProgram, tosaic.Quantizer]:
    quantizer = tosaic.Quantizer(config)
    prepared = prepare_pt2e(_export(module, *inputs).module(), quantizer)
    prepared(*inputs)
    return torch.export.export(convert_pt2e(prepared), inputs), quantizer


class _Matmul(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class _Conv1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(16, 5, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


_CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(32, 10), (3, 32)),
    "linear of rank 3 without bias": (lambda: nn.Linear(16, 7, bias=False), (2, 5, 16)),
    "one row and one channel": (lambda: nn.Linear(16, 1), (1, 16)),
    "matmul": (lambda: _Matmul(24, 6), (2, 4, 24)),
    "conv of 1x1": (lambda: nn.Conv2d(16, 6, 1), (2, 16, 4, 5)),
    "conv": (lambda: nn.Conv2d(16, 6, 3, padding=1, stride=2), (1, 16, 7, 7)),
    "grouped conv": (lambda: nn.Conv2d(32, 6, 3, groups=2), (1, 32, 5, 5)),
    "transposed conv": (lambda: nn.ConvTranspose2d(16, 6, 3, stride=2), (1, 16, 4, 4)),
    "conv1d": (_Conv1d, (2, 16, 9)),
    "conv3d": (lambda: nn.Conv3d(16, 4, 2), (1, 16, 3, 3, 3)),
}


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize(
    ("config", "target"),
    [
        (tosaic.QConfig.int8(weight_bits=4, group_size=8), INT),
        (tosaic.QConfig.uint8(weight_bits=8, group_size=8), INT),
        (tosaic.QConfig.int16x8(weight_bits=4, group_size=8), INT16),
    ],
    ids=["int8x4", "uint8x8", "int16x4"],
)
def test_sums_of_groups_equal_torch_and_the_reference_model(
    case: str, config: tosaic.QConfig, target: str
) -> None:
    torch.manual_seed(3)
    make, shape = _CASES[case]
    x = torch.randn(shape)
    converted, quantizer = _converted(make(), config, x)
    assert (
        "torchao.quantize_affine" in converted.graph_module.code
        or "dequantize_affine" in converted.graph_module.code
    )
    assert quantizer.not_grouped == {}
    assert tosaic.check(converted, target=target).ok
    lowered = tosaic.lower(converted, target=target)
    assert tosaic.compare(converted, lowered, (x,)).ok
    reference = run_reference_model(lowered, x)
    assert reference.status == "VALID"
    np.testing.assert_array_equal(reference.outputs, lowered.run(x))
    expected = converted.module()(x).detach().numpy()
    step = lowered.outputs[0].qparams.scale
    units = np.abs(lowered.run(x) - expected) / step
    assert units.max() <= (2.01 if target == INT16 else 1.01)


def test_a_linear_layer_with_groups_is_one_product_and_one_sum() -> None:
    torch.manual_seed(4)
    x = torch.randn(4, 64)
    converted, _ = _converted(nn.Linear(64, 8), tosaic.QConfig.int8(weight_bits=4, group_size=16), x)
    operators = [node.op for node in tosaic.lower(converted, target=INT).graph.nodes]
    assert operators.count("tosa.matmul") == operators.count("tosa.mul") == 1
    assert operators.count("tosa.reduce_sum") == 1
    assert len(operators) <= 11


def test_asymmetric_groups_of_zero_points_lower_exactly() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-8, 8, (6, 16), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(6, 4) + 0.1)
            self.register_buffer("zero", torch.randint(-8, 8, (6, 4), dtype=torch.int32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ops = torch.ops.quantized_decomposed
            w = torch.ops.torchao.dequantize_affine(
                self.weight, (1, 4), self.scale, self.zero, torch.int8, -8, 7
            )
            x = ops.dequantize_per_tensor(
                ops.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8), 0.05, 3, -128, 127, torch.int8
            )
            y = nn.functional.linear(x, w)
            return ops.dequantize_per_tensor(
                ops.quantize_per_tensor(y, 0.5, -4, -128, 127, torch.int8), 0.5, -4, -128, 127, torch.int8
            )

    torch.manual_seed(5)
    x = torch.randn(5, 16)
    exported = _export(Linear(), x)
    lowered = tosaic.lower(exported, target=INT)
    assert tosaic.compare(exported, lowered, (x,)).ok
    np.testing.assert_array_equal(run_reference_model(lowered, x).outputs, lowered.run(x))


@pytest.mark.parametrize("seed", range(12))
def test_random_linears_convolutions_and_products_with_groups_agree_with_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    size = int(rng.choice([2, 3, 4, 8]))
    channels, out = size * int(rng.integers(2, 6)), int(rng.integers(1, 9))
    rows = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(1, 3))))
    kind = seed % 3
    if kind == 0:
        module, shape = nn.Linear(channels, out, bias=bool(rng.integers(2))), (*rows, channels)
    elif kind == 1:
        module, shape = _Matmul(channels, out), (*rows, channels)
    else:
        kernel = int(rng.integers(1, 4))
        module, shape = nn.Conv2d(channels, out, kernel, padding=1), (1, channels, 6, 5)
    with torch.no_grad():  # channels and groups of very different sizes
        for weight in module.parameters():
            weight *= torch.exp(2 * torch.randn_like(weight))
    x = torch.randn(shape) * 3
    config = tosaic.QConfig.int8(weight_bits=int(rng.integers(2, 9)), group_size=size)
    converted, _ = _converted(module, config, x)
    lowered = tosaic.lower(converted, target=INT)
    assert tosaic.compare(converted, lowered, (x,)).ok, f"seed {seed}"
    np.testing.assert_array_equal(run_reference_model(lowered, x).outputs, lowered.run(x))


def test_an_operator_other_than_a_contraction_reads_numbers_with_groups() -> None:
    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randint(-8, 8, (10, 16), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(10, 4) * 0.1 + 0.01)

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            table = torch.ops.torchao.dequantize_affine(
                self.table, (1, 4), self.scale, None, torch.int8, -8, 7
            )
            y = nn.functional.embedding(i, table)
            ops = torch.ops.quantized_decomposed
            q = ops.quantize_per_tensor(y, 0.01, 0, -128, 127, torch.int8)
            return ops.dequantize_per_tensor(q, 0.01, 0, -128, 127, torch.int8)

    torch.manual_seed(6)
    i = torch.randint(0, 10, (3, 4))
    exported = _export(Embedding(), i)
    lowered = tosaic.lower(exported, target=INT)
    assert tosaic.compare(exported, lowered, (i,)).ok


# ---- the quantizer ----


def test_a_weight_whose_input_channels_the_group_size_does_not_divide_is_per_channel_and_reported() -> None:
    module = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
    x = torch.randn(2, 20)
    converted, quantizer = _converted(module, tosaic.QConfig.int8(weight_bits=4, group_size=16), x)
    assert list(quantizer.not_grouped) == ["linear"]
    assert "group size does not divide" in quantizer.not_grouped["linear"]
    names = [str(node.target) for node in converted.graph.nodes]
    assert sum("dequantize_per_channel" in name for name in names) == 2  # the first weight, and its bias
    assert sum("dequantize_affine" in name for name in names) == 1
    lowered = tosaic.lower(converted, target=INT)
    assert tosaic.compare(converted, lowered, (x,)).ok


def test_groups_of_four_bits_are_closer_to_the_float_network_than_channels() -> None:
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 16))
    with torch.no_grad():  # most channels have a few large weights
        for weight in module.parameters():
            weight *= torch.exp(torch.randn_like(weight))
    x = torch.randn(32, 128)
    exported = _export(module, x)

    def db(group_size: int | None) -> float:
        converted, _ = _converted(module, tosaic.QConfig.int8(weight_bits=4, group_size=group_size), x)
        return tosaic.compare(exported, tosaic.lower(converted, target=INT), (x,)).output.sqnr_db

    assert db(32) > db(None) + 1


def test_group_sizes_without_scales_per_channel_are_refused() -> None:
    with pytest.raises(
        tosaic.InvalidGraph, match="groups without a scale per channel: expected per_channel=True"
    ):
        tosaic.QConfig.int8(group_size=32, per_channel=False)
    for size, wrong in ((0, "need a positive size"), (-1, "need a positive size"), (2.5, "size is wrong")):
        with pytest.raises(tosaic.InvalidGraph, match=f"group.* {wrong}"):
            tosaic.QConfig.int8(group_size=size)  # type: ignore[arg-type]


def test_specs_with_a_group_size_are_read_and_written_without_loss() -> None:
    from tosaic.annotation import Edge, Observed

    spec = Observed("int8", -7, 7, "per_channel_symmetric", axis=0, group_size=16)
    assert eval(repr(spec)) == spec

    def halve(plan: Any) -> None:
        for slot in plan.slots():
            if isinstance(plan[slot], Observed) and plan[slot].group_size is not None:
                assert isinstance(slot, Edge)
                plan[slot] = dataclasses.replace(plan[slot], group_size=8, observer=None)

    x = torch.randn(2, 32)
    inner = tosaic.Quantizer(tosaic.QConfig.int8(weight_bits=4, group_size=16))
    for rules, size in (([], 16), ([halve], 8)):
        quantizer = tosaic.wrap_quantizer(inner, rules=rules)
        prepared = prepare_pt2e(_export(nn.Linear(32, 4), x).module(), quantizer)
        prepared(x)
        assert f"(1, {size})" in convert_pt2e(prepared).code


def test_training_with_groups_reaches_weights_and_converts_to_blocks() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

    torch.manual_seed(8)
    x = torch.randn(8, 32)
    config = tosaic.QConfig.int8(weight_bits=4, group_size=16)
    prepared = prepare_qat_pt2e(_export(nn.Linear(32, 4), x).module(), tosaic.Quantizer(config, qat=True))
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
    before = [p.clone() for p in prepared.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        (prepared(x) - 1).square().mean().backward()
        optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, prepared.parameters(), strict=True))
    converted = torch.export.export(convert_pt2e(prepared), (x,))
    lowered = tosaic.lower(converted, target=INT)
    assert tosaic.compare(converted, lowered, (x,)).ok
