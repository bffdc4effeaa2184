"""Passes that reshape or join tensors do so only with dtypes for which the target has the operator."""

from __future__ import annotations

import pytest
import torch
from models.zoo import quiet
from random_modules.checking import check
from random_modules.generate import generate
from random_modules.need import forced_by


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(189, id="48 bits and int8 of FP"),
        pytest.param(337, id="48 bits"),
        pytest.param(1272, id="16 bits of an attention"),
    ],
)
def test_no_target_refuses_what_a_pass_has_made(seed: int) -> None:
    with torch.no_grad(), quiet():
        found = check(generate(seed), lambda step: None)
    assert not found.failures
    refused = [each.message for each in found.refusals if not forced_by(each.rules)]
    assert not refused, refused
