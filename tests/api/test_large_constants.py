"""Constants beyond the range of activations, which a quantized program returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from by_torchao import quantized_by_torchao
from function_module import FunctionModule
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
Calls = list[tuple[torch.Tensor, ...]]


@pytest.mark.parametrize(
    "constant",
    [
        lambda: torch.tensor(16000.0),
        lambda: torch.full((2, 3), -3e5),
        lambda: torch.tensor([0.0, 65536.0, 65536.0, 0.0]),
    ],
    ids=["scalar", "full", "zeros"],
)
@pytest.mark.parametrize("config", [tosaic.QConfig.int8, tosaic.QConfig.int16x8])
def test_a_returned_constant_of_one_magnitude_is_integers(
    constant: Callable[[], torch.Tensor], config: Callable[[], tosaic.QConfig]
) -> None:
    module = FunctionModule(lambda x: (x + 1, constant()))
    samples = [(torch.rand(2, 4),) for _ in range(3)]
    exported = torch.export.export(module, samples[0])
    program = tosaic.quantize(exported, samples, config=config(), progress=False)
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+int16")
    found = lowered.run(*samples[0])[1]
    assert np.allclose(found, constant().numpy(), rtol=1e-2)


CONSTANTS = {
    "small numbers beside one of 2e4": [-2e4, -3.3125, -0.82421875, 1.4375],
    "a half beside a million": [1e6, 0.5],
    "whole numbers beside -1e9": [-1e9, 1.0, -3.0, 0.0],
    "numbers near 1e4": [2e4, 1.5e4, -3e4],
    "powers of ten": [1e4, 1e5, 1e6, 0.0],
}


def quantized(module: nn.Module, calls: Calls, door: str, config: tosaic.QConfig | None = None) -> Any:
    config = config or tosaic.QConfig.int8()
    if door == "torchao":
        return quantized_by_torchao(module.eval(), calls, config)
    exported = torch.export.export(module.eval(), calls[0])
    return tosaic.quantize(exported, calls, config=config, progress=False)


def run_on_integers(program: Any, call: tuple[torch.Tensor, ...]) -> list[Any]:
    """What the lowered program returns, which the reference model computes, too."""
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    model = run_reference_model(lowered, *call)
    assert model.ok, model.log
    found, by_model = map(torch.utils._pytree.tree_leaves, (lowered.run(*call), model.outputs))
    for same, wanted in zip(by_model, found, strict=True):
        np.testing.assert_array_equal(same, wanted)
    return found


@pytest.mark.parametrize("door", ["quantize", "torchao"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONSTANTS)
def test_small_numbers_of_a_returned_constant_have_their_bits(
    name: str, dtype: torch.dtype, door: str
) -> None:
    constant = torch.tensor(CONSTANTS[name], dtype=dtype)
    calls: Calls = [(torch.rand(2, 4),) for _ in range(3)]
    module = FunctionModule(lambda x: (x + 1, constant))
    found = np.asarray(run_on_integers(quantized(module, calls, door), calls[0])[1], np.float32)
    np.testing.assert_allclose(found, constant.float().numpy(), rtol=1 / 64)


def test_a_constant_that_is_computed_has_the_unit_of_its_numbers() -> None:
    numbers, hidden = torch.tensor([[1.0, 2.5], [-0.5, 0.25]]), torch.eye(2).bool()
    module = FunctionModule(lambda x: (x + 1, numbers.exp().masked_fill(hidden, -1e4).abs().amax(0)))
    calls: Calls = [(torch.rand(2, 4),) for _ in range(3)]
    for config in (tosaic.QConfig.int8(), tosaic.QConfig.int16x8()):
        found = run_on_integers(quantized(module, calls, "quantize", config), calls[0])[1]
        np.testing.assert_allclose(found, [1e4, 1e4], rtol=1e-3)


@pytest.mark.parametrize(
    ("constant", "reason"),
    [
        ([1e9, 0.5, 1.0], r"holds 1.0 and 1e\+09: no unit of 32 bits represents both"),
        ([1e30, -0.26], r"holds 0.26 and 1e\+30: no unit of 32 bits represents both"),
        ([float("inf"), 0.5], "holds numbers that are not finite, which no integers represent"),
        ([float("nan"), 0.5], "holds numbers that are not finite, which no integers represent"),
    ],
)
def test_a_returned_constant_that_no_integers_represent_stays_float(
    constant: list[float], reason: str
) -> None:
    module = FunctionModule(lambda x: (x + 1, torch.tensor(constant)))
    calls: Calls = [(torch.rand(2, 4),)]
    program = quantized(module, calls, "quantize")
    with pytest.raises(tosaic.UnsupportedOp, match=reason + r"\. Lower for TOSA-1.0\+INT\+FP, or leave"):
        tosaic.lower(program, target="TOSA-1.0+INT")
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP")
    np.testing.assert_array_equal(lowered.run(*calls[0])[1], np.float32(constant))
    split = tosaic.lower(program, target="TOSA-1.0+INT", unsupported="split")
    np.testing.assert_array_equal(split.run(*calls[0])[1], np.float32(constant))


# ---- halves ----

HALVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "as it is": lambda w: w,
    "its sums": lambda w: w.sum(1),
    "its parts": lambda w: w.split([1, 2], 1),
    "its windows": lambda w: w.unfold(1, 2, 1),
    "moved": lambda w: w.t().reshape(2, 3),
}


@pytest.mark.parametrize("door", ["quantize", "torchao"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", HALVES)
def test_a_returned_constant_of_halves_is_integers(name: str, dtype: torch.dtype, door: str) -> None:
    constant = torch.tensor([[0.5, -1.25, 3.0], [2.0, 0.75, -0.125]], dtype=dtype)
    module = FunctionModule(lambda x: (x + 1, HALVES[name](constant)))
    calls: Calls = [(torch.rand(2, 4),) for _ in range(3)]
    found = run_on_integers(quantized(module, calls, door), calls[0])[1:]
    wanted = torch.utils._pytree.tree_leaves(HALVES[name](constant))
    for got, exact in zip(found, wanted, strict=True):
        assert np.asarray(got).shape == tuple(exact.shape)
        np.testing.assert_allclose(np.asarray(got, np.float32), exact.float().numpy(), atol=0.03)


# ---- tables whose rows are chosen at run time ----

TABLE = torch.tensor([[0.5, -1.25], [2.0, 0.75], [-0.125, 3.0]])
LARGE = torch.tensor([[0.5, -1.25], [1e6, 0.75], [-0.125, 3.0]])
ROWS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index": lambda table, i: table[i],
    "index of the last axis": lambda table, i: table.t()[:, i],
    "index_select": lambda table, i: table.index_select(0, i),
    "gather": lambda table, i: table.gather(0, i[:, None].expand(-1, 2)),
    "a permuted index": lambda table, i: table[i].t(),
    "scatter": lambda table, i: table.scatter(0, i[:, None].expand(-1, 2), torch.full((2, 2), 1.5)),
    "index_put": lambda table, i: table.index_put((i,), torch.tensor(1.5)),
    "a pool of rows": lambda table, i: table[i].amax(1),
}


@pytest.mark.parametrize("door", ["quantize", "torchao"])
@pytest.mark.parametrize("table", ["small", "large"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_table_that_integers_choose_are_integers(name: str, table: str, door: str) -> None:
    numbers = TABLE if table == "small" else LARGE
    module = FunctionModule(lambda x, i: (x + 1, ROWS[name](numbers, i)))
    calls: Calls = [(torch.rand(2, 4), torch.tensor([k % 3, (k + 1) % 3])) for k in range(3)]
    program = quantized(module, calls, door)
    for call in calls:
        found, wanted = run_on_integers(program, call)[1], ROWS[name](numbers, call[1])
        np.testing.assert_allclose(found, wanted.numpy(), rtol=0.02, atol=0.03)


@pytest.mark.parametrize("number", [1e9, float("inf")])
def test_a_table_that_no_integers_represent_is_named(number: float) -> None:
    table = torch.tensor([[0.5, -1.25], [number, 0.75]])
    module = FunctionModule(lambda x, i: (x + 1, table[i].t()))
    calls: Calls = [(torch.rand(2, 4), torch.tensor([k % 2, 1])) for k in range(3)]
    program = quantized(module, calls, "quantize")
    reason = "no unit of 32 bits represents both" if number == 1e9 else "not finite, which no integers"
    with pytest.raises(
        tosaic.UnsupportedOp, match=rf"'index' moves floats: the constant .* holds .*{reason}"
    ):
        tosaic.lower(program, target="TOSA-1.0+INT")
    split = tosaic.lower(program, target="TOSA-1.0+INT", unsupported="split")
    np.testing.assert_array_equal(split.run(*calls[0])[1], table[calls[0][1]].t().numpy())
