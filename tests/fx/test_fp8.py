"""Casts to and from fp8: results equal torch's at every stage; they lower if the target has the fp8 dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from fx.exporting import exported
from tosaic.lowering.reference_model import run_reference_model

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")

EDGES = [0.0, -0.0, 448.0, 449.0, 464.0, 465.0, 1e4, -1e4, 57344.0, 60000.0, 61440.0, 61441.0, 1e9]
TINY = [2**-9, 2**-10, 2**-10 * 1.01, 2**-16, 2**-17, 1e-9]
VALUES = torch.cat(
    [
        torch.randn(24, generator=torch.Generator().manual_seed(1)) * 10,
        torch.tensor([*EDGES, *TINY, float("inf"), float("-inf"), float("nan")]),
    ]
)
DTYPES = {"fp8e4m3": torch.float8_e4m3fn, "fp8e5m2": torch.float8_e5m2}


def same(got: Any, wanted: torch.Tensor) -> None:
    np.testing.assert_array_equal(np.asarray(got).astype(np.float64), wanted.double().numpy())


def through(dtype: torch.dtype, back: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(dtype).to(back)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, torch.bfloat16])
def test_casts_through_fp8_equal_torchs(name: str, wide: torch.dtype) -> None:
    call, x = through(DTYPES[name], wide), VALUES.to(wide)
    program = tosaic.from_exported(exported(call, x))
    same(program.run(x), call(x))
    lowered = tosaic.lower(program, target=f"TOSA-1.0+FP+bf16+{name}")
    same(lowered.run(x), call(x))
    run = run_reference_model(lowered, x)
    assert run.ok, run.log
    same(run.outputs, call(x))


@pytest.mark.parametrize("name", DTYPES)
def test_inputs_and_outputs_may_be_fp8(name: str) -> None:
    dtype = DTYPES[name]

    def call(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.to(torch.float32) + 1, (y * 2).to(dtype).reshape(2, -1).t()

    x, y = VALUES[:24].to(dtype), VALUES
    lowered = tosaic.lower(exported(call, x, y), target=f"TOSA-1.0+FP+{name}")
    for got, wanted in zip(lowered.run(x, y), call(x, y), strict=True):
        same(got, wanted.to(torch.float32))


def test_fp8_weights_lower() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", VALUES[:24].reshape(4, 6).to(torch.float8_e5m2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.to(torch.float32).t()

    x = VALUES[:12].reshape(2, 6)
    lowered = tosaic.lower(exported(Scaled(), x), target="TOSA-1.0+FP+fp8e5m2")
    np.testing.assert_allclose(lowered.run(x), Scaled()(x).numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", DTYPES)
def test_the_refusal_of_a_target_without_fp8_names_the_extension(name: str) -> None:
    with pytest.raises(tosaic.SpecViolation, match=f"expected EXT-{name.upper()}"):
        tosaic.lower(exported(through(DTYPES[name], torch.float32), VALUES), target="TOSA-1.0+FP")
