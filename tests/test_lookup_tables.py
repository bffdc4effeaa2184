"""Lookups in constant float tables, with quantized results: the table is quantized instead of the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F
import tosaic
from tosaic.lowering.reference_model import run_reference_model

INT = "TOSA-1.0+INT"
Q = torch.ops.quantized_decomposed


def _through_integers(x: torch.Tensor, scale: float = 0.05, zero_point: int = 3) -> torch.Tensor:
    integers = Q.quantize_per_tensor(x, scale, zero_point, -128, 127, torch.int8)
    return Q.dequantize_per_tensor(integers, scale, zero_point, -128, 127, torch.int8)


class _Table(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        rows = torch.randn(10, 6, generator=torch.Generator().manual_seed(7)) * 4
        rows[0, 0], rows[9, 5] = torch.inf, -torch.inf
        self.register_buffer("rows", rows)
        self.function = function

    def forward(self, places: torch.Tensor) -> Any:
        return self.function(self.rows, places)


PLACES = torch.tensor([[1, 3], [9, 0]])
LOOKUPS: dict[str, Callable[..., torch.Tensor]] = {
    "embedding": lambda rows, i: F.embedding(i, rows),
    "index": lambda rows, i: rows[i],
    "index_select": lambda rows, i: rows.index_select(0, i[0]),
    "gather": lambda rows, i: rows.gather(0, i),
    "take": lambda rows, i: rows.take(i),
    "views and relu behind": lambda rows, i: F.embedding(i, rows).reshape(4, 6).t().relu(),
    "two tables": lambda rows, i: torch.cat([rows[i], (rows * 0.5)[i]], -1),
    "choice": lambda _, i: torch.where(i > 2, 1.5, -0.25),
    "scatter": lambda rows, i: rows.scatter(0, i, torch.ones(2, 2)),
}


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("target", [INT, "TOSA-1.0+INT+FP"])
def test_a_quantized_lookup_in_a_constant_table_looks_up_integers(name: str, target: str) -> None:
    module = _Table(lambda rows, i: _through_integers(LOOKUPS[name](rows, i)))
    lowered = tosaic.lower(torch.export.export(module, (PLACES,)), target=target)
    expected = module(PLACES).numpy()
    np.testing.assert_array_equal(lowered.run(PLACES), expected)
    reference = run_reference_model(lowered, PLACES)
    assert reference.ok, reference.log
    np.testing.assert_array_equal(reference.outputs, expected)


def test_a_lookup_quantized_with_two_sets_of_parameters_reads_two_tables() -> None:
    def both(rows: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = rows[i]
        return _through_integers(found), _through_integers(found, 0.5, -7)

    module = _Table(both)
    lowered = tosaic.lower(torch.export.export(module, (PLACES,)), target=INT)
    for got, expected in zip(lowered.run(PLACES), module(PLACES), strict=True):
        np.testing.assert_array_equal(got, expected.numpy())


def test_a_quantized_network_adds_an_embedding_to_its_input() -> None:
    class Network(_Table):
        def forward(self, x: torch.Tensor, places: torch.Tensor) -> Any:
            rows = _through_integers(F.embedding(places, self.rows.clamp(-4, 4)))
            return _through_integers(_through_integers(x) + rows, 0.1, 0)

    module, x = Network(lambda: None), torch.linspace(-3, 3, 24).reshape(2, 2, 6)
    lowered = tosaic.lower(torch.export.export(module, (x, PLACES)), target=INT)
    assert np.abs(lowered.run(x, PLACES) - module(x, PLACES).numpy()).max() <= 0.1001


def test_a_lookup_that_is_not_quantized_is_refused_by_name() -> None:
    module = _Table(lambda rows, i: _through_integers(rows[i] * 2.5))
    with pytest.raises(tosaic.UnsupportedOp, match="'mul' computes with floats: it was not quantized"):
        tosaic.lower(torch.export.export(module, (PLACES,)), target=INT)


def test_a_difference_of_16_bits_is_zero_at_the_largest_integer() -> None:
    """An error of `1 - mask` at mask = 1 would be multiplied by -1e4."""

    class Masked(torch.nn.Module):
        def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            hidden = _of_16_bits(1 - _of_16_bits(mask, 1 / 32767), 1 / 32767) * -1e4
            return _of_16_bits(_of_16_bits(x, 1e-4) + hidden, 1e-4)

    mask, x = torch.tensor([1.0, 0, 1, 1]), torch.tensor([1.0, 2, -0.5, 3])
    program = torch.export.export(Masked(), (mask, x))
    found = tosaic.lower(program, target="TOSA-1.0+INT+int16").run(mask, x)
    np.testing.assert_allclose(found, Masked()(mask, x).numpy(), atol=2e-4)


def _of_16_bits(x: torch.Tensor, scale: float) -> torch.Tensor:
    integers = Q.quantize_per_tensor(x, scale, 0, -32767, 32767, torch.int16)
    return Q.dequantize_per_tensor(integers, scale, 0, -32767, 32767, torch.int16)
