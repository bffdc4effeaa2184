"""Constants beyond the range of activations, which a quantized program returns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tosaic
from function_module import FunctionModule

pytestmark = pytest.mark.filterwarnings("ignore")


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


def test_a_returned_constant_with_small_numbers_beside_large_ones_stays_float() -> None:
    module = FunctionModule(lambda x: (x + 1, torch.tensor([1e6, 0.5])))
    samples = [(torch.rand(2, 4),)]
    exported = torch.export.export(module, samples[0])
    program = tosaic.quantize(exported, samples, progress=False)
    with pytest.raises(tosaic.UnsupportedOp, match=r"Quantize what is returned, e.g. with a rule"):
        tosaic.lower(program, target="TOSA-1.0+INT")
    lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP")
    assert np.array_equal(lowered.run(*samples[0])[1], np.float32([1e6, 0.5]))
