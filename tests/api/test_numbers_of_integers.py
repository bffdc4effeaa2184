"""`tosaic.quantize` and `tosaic.Quantizer` with floats that follow from integers or truth values only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tosaic
from by_torchao import quantized_by_torchao
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

TARGETS = {"int8": "TOSA-1.0+INT", "int16x8": "TOSA-1.0+INT+int16"}
LEAST_DB = {"int8": 25.0, "int16x8": 40.0}
Function = Callable[["Beside", torch.Tensor, torch.Tensor, torch.Tensor], Any]


class Beside(nn.Module):
    """A layer, and a function of integers, truth values and constants next to it."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function
        self.register_buffer("row", torch.tensor([0.3, -1.2, 0.05, 2.1]))
        self.register_buffer("heads", torch.randn(2, 3, 5, 4))
        self.register_buffer("table", torch.randn(9, 4))

    def forward(self, x: torch.Tensor, n: torch.Tensor, m: torch.Tensor) -> Any:
        return self.layer(x), self.function(self, x, n, m)


def attention(self: Beside, x: torch.Tensor, n: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    rows = self.heads  # a mask of rows that see at least one element
    return F.scaled_dot_product_attention(rows, rows * 0.7, rows + 0.2, m[0] | torch.eye(5, dtype=torch.bool))


def hidden_shares(self: Beside, x: torch.Tensor, n: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    seen = torch.tensor([True, False, False, False])
    return self.row.expand(3, 4).masked_fill(~(m[:3, :4] | seen), -torch.inf).softmax(-1)


CASES: dict[str, Function] = {
    "half of a count": lambda s, x, n, m: n.float() * 0.5,
    "a small part of a count": lambda s, x, n, m: n.float() * 0.00033,
    "a sum of counts and of parts": lambda s, x, n, m: n.float() * 0.25 + n.flip(0).float() * 0.3,
    "parts of counts, each its own": lambda s, x, n, m: (n.float() * s.row + s.row.flip(0)).sigmoid(),
    "shares of counts": lambda s, x, n, m: (n.float() * 0.5).softmax(-1),
    "shares of whole counts": lambda s, x, n, m: n.float().softmax(-1),
    "a pool of counts": lambda s, x, n, m: F.max_pool2d(n.float()[None, None] * 0.1, 2),
    "the largest part, and where": lambda s, x, n, m: tuple((n.float() * s.row).max(1)),
    "a mean of counts": lambda s, x, n, m: n.float().mean(1),
    "constants that a mask chooses": lambda s, x, n, m: torch.where(m[0, :4], s.row, s.row * 0.5),
    "a mask of large numbers": lambda s, x, n, m: torch.zeros(5, 5).masked_fill(m, -1e4),
    "shares of constants under a mask": hidden_shares,
    "attention of constants under a mask": attention,
    "rows of a constant": lambda s, x, n, m: s.table[n[:, 0]],
    "a function of rows of a constant": lambda s, x, n, m: F.gelu(s.table[n[:, 0]]),
    "rows of a constant that data chooses": lambda s, x, n, m: s.table[x.argmax(-1)],
    "where a hidden count is": lambda s, x, n, m: torch.where(m[:, :4], n.float(), -1e4) > 3,
    "the best of constants under a mask": lambda s, x, n, m: (
        s.heads[0, 0].masked_fill(m[:, :4], -1e9).argmax(-1)
    ),
    "an input as integers": lambda s, x, n, m: (x.to(torch.int32), x.reshape(4, -1).to(torch.int64)),
    "chosen counts": lambda s, x, n, m: n.float().index_select(0, n[:, 0] % 5),
    "a row for each pair of positions": lambda s, x, n, m: s.table[(n[:, 0].float() / 2).floor().long()],
}


def samples() -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return [(torch.randn(5, 4), torch.randint(0, 9, (5, 4)), torch.rand(5, 5) < 0.5) for _ in range(4)]


def made(case: str) -> Beside:
    torch.manual_seed(1)
    return Beside(CASES[case]).eval()


def leaves(results: Any) -> list[Any]:
    return [np.asarray(each) for each in torch.utils._pytree.tree_leaves(results)]


def require_near(lowered: Any, rounded: Any, model: nn.Module, least_db: float) -> None:
    """The lowered program computes what the quantized one does, nearly what torch does."""
    for call in samples():
        with torch.no_grad():
            in_torch = leaves(torch.utils._pytree.tree_map(lambda each: each.detach(), model(*call)))
        found, same = leaves(lowered.run(*call)), leaves(rounded.run(*call))
        for got, quantized, wanted in zip(found, same, in_torch, strict=True):
            assert got.dtype == wanted.dtype
            if wanted.dtype.kind != "f":
                np.testing.assert_array_equal(got, quantized)
                continue
            noise = np.square(wanted - got).sum()
            assert noise <= np.square(wanted).sum() * 10 ** (-least_db / 10)
            np.testing.assert_allclose(got, quantized, rtol=0, atol=np.abs(quantized).max() / 100)


@pytest.mark.parametrize("bits", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_numbers_of_integers_are_quantized(case: str, bits: str) -> None:
    model, calls = made(case), samples()
    config = getattr(tosaic.QConfig, bits)()
    quantized = tosaic.quantize(torch.export.export(model, calls[0]), calls, config=config, progress=False)
    lowered = tosaic.lower(quantized, target=TARGETS[bits])
    require_near(lowered, quantized, model, LEAST_DB[bits])
    assert tosaic.compare(quantized, lowered, calls[:2]).ok
    for found, wanted in zip(
        leaves(run_reference_model(lowered, *calls[0]).outputs), leaves(lowered.run(*calls[0])), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("case", CASES)
def test_numbers_of_integers_are_quantized_by_torchao(case: str) -> None:
    model, calls = made(case), samples()
    converted = quantized_by_torchao(model, calls)
    lowered = tosaic.lower(converted, target=TARGETS["int8"])
    require_near(lowered, tosaic.from_exported(converted), model, LEAST_DB["int8"])


def test_halves_of_positions_are_the_same_rows_for_all_integers_of_16_bits() -> None:
    model, calls = made("a row for each pair of positions"), samples()
    quantized = tosaic.quantize(torch.export.export(model, calls[0]), calls, progress=False)
    lowered = tosaic.lower(quantized, target=TARGETS["int8"])
    for position in range(9):
        call = (calls[0][0], torch.full((5, 4), position), calls[0][2])
        rows = leaves(lowered.run(*call))[1]
        expected = model.table[position // 2].numpy()
        np.testing.assert_allclose(rows, np.broadcast_to(expected, rows.shape), atol=0.02)


def test_exponentials_that_all_vanish_are_zeros() -> None:
    class Vanishing(nn.Module):
        def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            return torch.exp(x + (1 - m.float()) * -1e4)

    calls = [(torch.rand(2, 6), torch.zeros(2, 6, dtype=torch.bool)) for _ in range(4)]
    quantized = tosaic.quantize(torch.export.export(Vanishing(), calls[0]), calls, progress=False)
    lowered = tosaic.lower(quantized, target=TARGETS["int8"])
    assert not np.any(lowered.run(*calls[0]))
