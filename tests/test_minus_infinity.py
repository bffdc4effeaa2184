"""Minus infinity in integers: hidden elements stay hidden, whatever is added to them or moved with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers torch.ops.quantized_decomposed
import tosaic
from masks.measure import decibels
from torch import nn
from torch.nn import functional as F
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

INF = float("-inf")


def rounded(x: torch.Tensor, scale: float, zero_point: int = 0) -> torch.Tensor:
    q, limits = torch.ops.quantized_decomposed, (scale, zero_point, -128, 127, torch.int8)
    return q.dequantize_per_tensor(q.quantize_per_tensor(x, *limits), *limits)


def hide(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(m, INF)


def shares(x: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(torch.softmax(x, -1))


RIGHT: dict[str, Any] = {
    "sum": lambda x, y, m: shares(hide(x, m) + y),
    "sum with larger numbers": lambda x, y, m: shares(hide(x, m) + y * 100),
    "sum with constants": lambda x, y, m: shares(hide(x, m) + torch.linspace(-300, 300, 8)),
    "sum of two": lambda x, y, m: shares(hide(x, m) + hide(y, m.flip(-1))),
    "sum with a factor": lambda x, y, m: shares(torch.add(y, hide(x, m), alpha=0.01)),
    "difference": lambda x, y, m: shares(hide(x, m) - y),
    "product and sum": lambda x, y, m: shares(torch.addcmul(hide(x, m), y, y, value=50.0)),
    "quotient": lambda x, y, m: shares(hide(x, m) / 100),
    "small factor": lambda x, y, m: shares(hide(x, m) * 1e-4),
    "sum, quotient and sum": lambda x, y, m: shares((hide(x, m) + y) / 64 + y),
    "cat": lambda x, y, m: shares(torch.cat([hide(x, m), hide(y * 1000, m)], -1)),
    "stack": lambda x, y, m: shares(torch.stack([hide(x, m), y * 200], 0)),
    "pad with a number": lambda x, y, m: shares(F.pad(hide(x, m), (0, 2), value=-1000.0)),
    "pad with infinity": lambda x, y, m: shares(F.pad(x, (1, 2, 1, 0), value=INF)),
    "pad with infinity again": lambda x, y, m: shares(F.pad(hide(x, m), (0, 2), value=INF)),
    "maximum": lambda x, y, m: shares(torch.maximum(hide(x, m), y * 1000)),
    "minimum": lambda x, y, m: shares(torch.minimum(hide(x, m), y * 1000)),
    "minimum of two": lambda x, y, m: shares(torch.minimum(hide(x, m), hide(y, m.flip(-1)))),
    "clamp": lambda x, y, m: shares(hide(x, m).clamp(min=-1000.0) + y * 300),
    "where": lambda x, y, m: shares(torch.where(m.flip(-1), hide(x, m), y * 100)),
    "gather": lambda x, y, m: shares(hide(x, m)[..., torch.tensor([0, 3, 3, 1])] + y[..., :4]),
    "permute": lambda x, y, m: shares(hide(x, m).mT.contiguous().mT + y),
    "roll": lambda x, y, m: shares(hide(x, m).roll(1, -1) + y),
    "repeat": lambda x, y, m: shares(hide(x, m).repeat(1, 1, 2) + y.repeat(1, 1, 2)),
    "compared with itself": lambda x, y, m: shares(hide(y, x < -1) / 30 + x),
}
REFUSED: dict[str, Any] = {
    "mul": lambda x, y, m: shares(hide(x, m) * (y.abs() + 0.01)),
    "div": lambda x, y, m: shares(hide(x, m) / (y.abs() + 0.5)),
    "neg": lambda x, y, m: torch.sigmoid(-hide(x, m)),
    "sub": lambda x, y, m: torch.sigmoid(y - hide(x, m)),
    "sum": lambda x, y, m: torch.sigmoid(hide(x, m).sum(-1) * 1e-3),
    "avg_pool": lambda x, y, m: torch.sigmoid(F.avg_pool1d(hide(x, m), 2) * 0.01),
    "matmul": lambda x, y, m: torch.sigmoid(hide(x, m) @ y * 0.01),
    "lerp": lambda x, y, m: shares(torch.lerp(hide(x, m), y, 0.25)),
}


class Masked(nn.Module):
    def __init__(self, compute: Any) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return rounded(self.compute(rounded(x, 4 / 127), rounded(y, 4 / 127), m), 1 / 256, -128)


class Selected(nn.Module):
    """Attention that selects minus infinity where its mask is low."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        q, k, v = self.line(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(m <= -5000, INF, m))


def selected(number: float) -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    network, samples = Selected().eval(), []
    for _ in range(3):
        m = torch.where(torch.rand(1, 6, 6) < 0.3, number, 0.0)
        m[:, range(6), range(6)] = 0
        m[:, 2] = number
        samples.append((torch.randn(1, 6, 16), m))
    return network, samples


def sample() -> tuple[torch.Tensor, ...]:
    """Scores, other numbers, and a mask that hides one row as a whole."""
    torch.manual_seed(0)
    x, y, m = torch.randn(1, 8, 8) * 2, torch.randn(1, 8, 8) * 2, torch.rand(1, 8, 8) < 0.4
    m[:, range(8), range(8)] = False
    m[:, 2] = True
    return x, y, m


@pytest.mark.parametrize("how", RIGHT)
def test_hidden_elements_have_no_share(how: str) -> None:
    program = torch.export.export(Masked(RIGHT[how]), sample())
    want = program.module()(*sample()).numpy()
    got = np.asarray(tosaic.lower(program, target="TOSA-1.0+INT+int16").run(*sample()))
    np.testing.assert_allclose(got, want, atol=1.1 / 256)


@pytest.mark.parametrize("how", REFUSED)
def test_an_operator_without_a_number_for_minus_infinity_is_named(how: str) -> None:
    program = torch.export.export(Masked(REFUSED[how]), sample())
    with pytest.raises(tosaic.UnsupportedOp, match=f"'{how}' is left to floats: .*minus infinity"):
        tosaic.lower(program, target="TOSA-1.0+INT+int16")


def test_a_mask_that_becomes_minus_infinity_hides_rows_as_a_whole() -> None:
    network, samples = selected(-1e4)
    program = tosaic.quantize(torch.export.export(network, samples[0]), samples, progress=False)
    found = tosaic.lower(program, target="TOSA-1.0+INT+int16").run(*samples[1])
    with torch.no_grad():
        wanted = network(*samples[1]).numpy()
    np.testing.assert_allclose(found[:, 2], 0)
    assert decibels(found, wanted) > 30


def test_an_input_of_minus_infinity_that_no_sum_reads_is_refused_with_a_way_out() -> None:
    network, samples = selected(INF)
    with pytest.raises(
        tosaic.InvalidGraph, match=r"'m' has numbers that are not finite.*pass a mask of bools"
    ):
        tosaic.quantize(torch.export.export(network, samples[0]), samples, progress=False)


HIDING: dict[str, Callable[..., torch.Tensor]] = {
    "select": lambda s, m: s + torch.where(m <= -5000, INF, m),
    "masked_fill": lambda s, m: s.masked_fill(m < 0, INF),
    "where": lambda s, m: torch.where(m < 0, INF, s),
    "minimum": lambda s, m: torch.minimum(s, m),
    "exp": lambda s, m: s + torch.log(m.exp() + 1e-6),
    "view": lambda s, m: s + m.reshape(s.shape),
    "add": lambda s, m: s + m,
    "scaled": lambda s, m: s + m * 0.5,
}
REFUSING = {
    None: ("select", "masked_fill", "where", "minimum", "exp"),
    "arm": ("masked_fill", "where", "minimum", "view", "add", "scaled"),
}


class Scored(nn.Module):
    """Attention whose scores meet a mask in a way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.hide, self.line = HIDING[how], nn.Linear(16, 48)

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        q, k, v = self.line(x).chunk(3, -1)
        return self.hide(q @ k.transpose(-1, -2) / 4, m).softmax(-1) @ v


def prepared_by_torchao(
    network: nn.Module, samples: list[tuple[torch.Tensor, ...]], quantizer: tosaic.Quantizer
) -> Any:
    prepare = prepare_qat_pt2e if quantizer.qat else prepare_pt2e
    prepared = prepare(torch.export.export(network, samples[0]).module(), quantizer)
    for each in samples:
        prepared(*each)
    return prepared


@pytest.mark.parametrize(("arm", "how"), [(arm, how) for arm in REFUSING for how in REFUSING[arm]])
def test_an_input_mask_that_integers_show_is_refused_by_torchao_too(arm: Any, how: str) -> None:
    """The other samples of the mask are 0, and minus infinity would become 0, too."""
    _, samples = selected(INF)
    torch.manual_seed(0)
    prepared = prepared_by_torchao(Scored(how).eval(), samples, tosaic.Quantizer(compatible_with=arm))
    with pytest.raises(tosaic.InvalidGraph, match=r"input 'm' has minus infinity.*mask of bools, or .*-1e4"):
        convert_pt2e(prepared)


def test_an_input_of_minus_infinity_is_refused_in_training() -> None:
    network, samples = selected(INF)
    with pytest.raises(tosaic.InvalidGraph, match="input 'm' has minus infinity"):
        prepared_by_torchao(network, samples, tosaic.Quantizer(qat=True))


@pytest.mark.parametrize(
    ("arm", "how"), [(None, "masked_fill"), (None, "where"), ("arm", "add"), ("arm", "view")]
)
def test_an_input_mask_with_numbers_that_hide_is_right(arm: Any, how: str) -> None:
    """The way out that the error names: numbers such as -1e4. Minus infinity next to them becomes -1e4."""
    _, samples = selected(-1e4)
    samples = [(x, m.clone()) for x, m in samples]
    for _, m in samples:
        m[:, 2, 1:] = 0
        m[:, 0] = torch.where(m[:, 0] < 0, INF, m[:, 0])
    torch.manual_seed(0)
    network = Scored(how).eval()
    prepared = prepared_by_torchao(network, samples, tosaic.Quantizer(compatible_with=arm))
    with torch.no_grad():
        found, wanted = convert_pt2e(prepared)(*samples[1]), network(*samples[1])
    assert decibels(found, wanted) > 25


@pytest.mark.parametrize("config", [tosaic.QConfig.int8(), tosaic.QConfig.int16x8()], ids=["int8", "int16x8"])
@pytest.mark.parametrize("reduced", [False, True])
def test_minus_infinity_that_is_returned_stays_minus_infinity(config: Any, reduced: bool) -> None:
    class Hidden(torch.nn.Module):
        def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.where(flag, -torch.inf, x * 1.0)
            return hidden.amin(0) if reduced else hidden

    generator = torch.Generator().manual_seed(0)
    samples = [(torch.tensor([[i == 1]]), torch.rand(2, 5, generator=generator) * 4 - 2) for i in range(3)]
    exported = torch.export.export(Hidden(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=config, progress=False)
    extension = "+int16" if config == tosaic.QConfig.int16x8() else ""
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP" + extension)
    for sample in samples:
        expected = Hidden()(*sample).numpy()
        assert (np.isneginf(lowered.run(*sample)) == np.isneginf(expected)).all()
    assert tosaic.compare(quantized, lowered, samples).ok
    with pytest.raises(tosaic.UnsupportedOp, match="may be minus infinity"):  # integers have no infinity
        tosaic.lower(quantized, target="TOSA-1.0+INT" + extension)
