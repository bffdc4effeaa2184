"""Masks of attention that are inputs, rows without a visible key, and a sample of `tests/full/masks.py`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from masks.measure import DOORS, FLOOR_DB, accuracy, decibels, of_bools, quantized
from masks.measure import of_spelling as measured
from masks.networks import LEAST, TOKENS, VALUES, images, masks, network, samples_of, without_padding
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

SAMPLE = [
    ("scores + m", "-1e4"),
    ("scores + m", "finfo.min"),
    ("scores + bias + m", "-1e9"),
    ("scores + (bias + m)", "-inf"),
    ("(scores + m) / 2", "-1e4"),
    ("max(scores + m, min)", "-1e4"),
    ("scores + zeros.masked_fill(bool, value)", "-1e4"),
    ("scores + m[:, None, None]", "-inf"),
    ("scores + (1 - m.float()) * value", "-1e4"),
    ("scores + (1 - m.float()) * value", "finfo.min"),
    ("sdpa(attn_mask=m)", "-1e9"),
    ("sdpa(attn_mask=bias + m)", "-inf"),
    ("sdpa(attn_mask=(1 - m.float()) * value)", "-1e9"),
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("spelling", "value"), SAMPLE)
def test_a_mask_that_is_an_input_costs_no_accuracy(spelling: str, value: str, door: str) -> None:
    found, wanted = measured(spelling, value, True, door), of_bools(door)
    assert found.quantized > wanted.quantized - FLOOR_DB
    assert found.lowered > found.quantized - 1


@pytest.mark.parametrize("value", ["-1e9", "finfo.min"])
def test_a_large_constant_mask_of_sdpa_leaves_its_bits_to_the_scores(value: str) -> None:
    found = measured("sdpa(attn_mask=m)", value, False, "quantize")
    assert found.lowered > found.quantized - 1


QUERIES: dict[str, Any] = {
    "as it is": lambda x: x,
    "amax": lambda x: x.amax(2, keepdim=True),
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(-1, 1),
    "max_pool": lambda x: nn.functional.max_pool2d(x, (2, 1)),
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "cat": lambda x: torch.cat([x, x.flip(2)], 2),
    "sigmoid": torch.sigmoid,
    "constant": lambda x: torch.linspace(-1, 1, 16).reshape(1, 1, 4, 4),
}


class Attended(nn.Module):
    """Attention with a constant mask, computed from one of bools, and a query that was selected or moved."""

    def __init__(self, query: str, value: float) -> None:
        super().__init__()
        self.query, self.value = QUERIES[query], value
        torch.manual_seed(0)
        self.keys, self.values = nn.Linear(4, 4), nn.Linear(4, 8)
        self.register_buffer("seen", torch.tensor([[True, False, True, True, False, True]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(1, 6).masked_fill(~self.seen, self.value)
        keys, values = self.keys(x), self.values(x)
        return nn.functional.scaled_dot_product_attention(self.query(x), keys, values, attn_mask=mask)


@pytest.mark.parametrize("value", [-1e9, LEAST])
@pytest.mark.parametrize("query", QUERIES)
def test_a_constant_mask_leaves_its_bits_to_the_scores_wherever_the_query_is_from(
    query: str, value: float
) -> None:
    random = torch.Generator().manual_seed(0)
    samples = [(torch.randn(2, 1, 6, 4, generator=random),) for _ in range(5)]
    module = Attended(query, value).eval()
    program = tosaic.quantize(torch.export.export(module, samples[0]), samples[:4], progress=False)
    exact = module(*samples[4]).detach().numpy()
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    of_quantized = decibels(program.run(*samples[4]), exact)
    assert of_quantized > 25
    assert decibels(lowered.run(*samples[4]), exact) > of_quantized - 1


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("value", VALUES)
def test_a_mask_hides_though_no_sample_hid_anything(value: str, door: str) -> None:
    spelling = "scores + m"
    hiding = masks(spelling, VALUES[value], 2)
    calls = samples_of(images(5), [without_padding(spelling)] * 3 + hiding)
    found = accuracy(network(spelling, VALUES[value]), calls[:3], calls[3:], door)
    assert found.lowered > 20


@pytest.mark.parametrize("door", DOORS)
def test_a_mask_may_hide_with_another_number_than_in_the_samples(door: str) -> None:
    spelling = "scores + m"
    calls = samples_of(images(3), masks(spelling, -1e4, 3))
    others = [(images(1, seed=9)[0], masks(spelling, value, 1, seed=7)[0]) for value in VALUES.values()]
    assert accuracy(network(spelling, -1e4), calls, others, door).lowered > 20


def test_a_row_that_the_least_float_hides_as_a_whole_has_equal_shares() -> None:
    calls = samples_of(images(4), masks("scores + m", LEAST, 4))
    for _, mask in calls:
        mask[0, :, 2] = LEAST
    found = accuracy(network("scores + m", LEAST), calls[:3], calls[3:], "quantize")
    assert min(found.quantized, found.lowered) > of_bools("quantize").lowered - FLOOR_DB


def test_the_details_of_a_bias_that_comes_with_the_mask_are_kept() -> None:
    """An input that holds a bias and a mask at once, such as that of ALiBi."""
    slopes = -torch.arange(TOKENS).float() * 0.3
    calls = samples_of(images(4), [each + slopes for each in masks("scores + m", -1e9, 4)])
    found = accuracy(network("scores + m", -1e9), calls[:3], calls[3:], "quantize")
    assert found.lowered > of_bools("quantize").lowered - FLOOR_DB


def test_an_input_mask_is_16_bits_in_the_report_and_at_the_boundary() -> None:
    calls = samples_of(images(3), masks("scores + m", -1e4, 3))
    program = quantized(network("scores + m", -1e4), calls, "quantize", None)
    row = next(row for row in program.quantization.slots if row.set_by == "mask")
    assert row.slot == tosaic.annotation.Edge("mask", "add")
    reasons = {row.node: row.reason for row in program.quantization.not_rounded}
    assert "leave no precision" in reasons["add"]
    lowered = tosaic.lower(program, target="TOSA-1.0+INT")
    assert [port.qparams.dtype for port in lowered.inputs] == ["i8", "i16"]


def test_export_model_takes_a_mask_as_an_input() -> None:
    calls = samples_of(images(3), masks("scores + m", -1e9, 3))
    result = tosaic.export_model(
        network("scores + m", -1e9), calls[0], samples=calls, recipe="tosa-int8", verbose=0
    )
    assert result.ok
    assert result.check("quantize").db > 20
    assert not result.notes


@pytest.mark.parametrize("spelling", ["scores + m", "sdpa(attn_mask=m)"])
def test_the_partitioner_of_executorch_takes_a_mask_as_an_input(spelling: str) -> None:
    """The payload, read from the lowered program, is as accurate as the quantized one."""
    pytest.importorskip("executorch.exir")
    from executorch.exir import to_edge_transform_and_lower

    model = network(spelling, -1e4)
    calls = samples_of(images(4), masks(spelling, -1e4, 4))
    program = quantized(model, calls[:3], "Quantizer", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        partitioner = tosaic.executorch.TosaicPartitioner("TOSA-1.0+INT")
        edge = to_edge_transform_and_lower(program, partitioner=[partitioner])
    (found,) = tosaic.executorch.run_payloads(edge, calls[3])
    with torch.no_grad():
        exact, wanted = model(*calls[3]), program.module()(*calls[3])
    assert decibels(found, exact) > max(15, decibels(wanted, exact) - 1)


def test_what_hides_saturates_without_a_note() -> None:
    calls = samples_of(images(3), masks("scores + m", -1e4, 3))
    result = tosaic.export_model(
        network("scores + m", -1e4), calls[0], samples=calls, recipe="tosa-int8", verbose=0
    )
    assert result.ok
    assert not result.notes


@pytest.mark.parametrize("door", DOORS)
def test_a_mask_whose_visible_numbers_are_large_is_reported(door: str, caplog: Any) -> None:
    calls = samples_of(images(3), [each + 1e5 for each in masks("scores + m", -1e4, 3)])
    quantized(network("scores + m", -1e4), calls, door, None)
    assert "1e+05 that hide no score" in caplog.text
    if door == "quantize":
        assert "Edge('mask', 'add')" in caplog.text


# ---- rows without any visible key ----


class FloatMask(nn.Module):
    """Attention whose mask of floats may hide rows as a whole, which become 0."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv, self.after = how, nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.how == "sdpa with a view":
            mask = mask.reshape(4, 5, 5)
        if mask.dtype == torch.bool and self.how == "sdpa of floats":
            mask = torch.zeros(4, 5, 5).masked_fill(~mask, float("-inf"))
        if self.how.startswith("sdpa"):
            return self.after(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        shares = (q @ k.transpose(-1, -2) / 8**0.5 + mask).softmax(-1)
        return self.after(torch.nan_to_num(shares) @ v)


def float_mask_and_samples(how: str) -> tuple[nn.Module, list[tuple[Any, ...]], torch.Tensor]:
    torch.manual_seed(0)
    network = FloatMask(how).eval()
    seen = torch.rand(4, 5, 5) > 0.4
    seen[0, 1] = seen[2] = False
    mask = torch.zeros(4, 5, 5).masked_fill(~seen, float("-inf"))
    if how == "sdpa with a view":
        mask = mask.reshape(4, 25)
    return network, [(torch.randn(4, 5, 8) * 2, mask) for _ in range(3)], seen


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("how", ["sdpa", "nan_to_num"])
def test_rows_that_an_input_mask_of_minus_infinity_hides_as_a_whole_are_right(
    how: str, door: str, caplog: Any
) -> None:
    """Integers have no minus infinity: the least integer becomes it again."""
    network, samples, _ = float_mask_and_samples(how)
    found = accuracy(network, samples, samples[:1], door)
    assert min(found.quantized, found.lowered) > 25
    assert "minus infinity" not in caplog.text


def with_numbers(samples: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Samples whose masks hide with -1e4 in one row, and with minus infinity in others."""
    found = []
    for x, mask in samples:
        finite = mask.clone()
        finite[1] = finite[1].clamp(min=-1e4)
        found.append((x, finite))
    return found


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("how", ["sdpa", "sdpa with a view", "nan_to_num"])
def test_an_input_mask_of_minus_infinity_and_numbers_is_named_with_what_it_loses(
    how: str, door: str, caplog: Any
) -> None:
    """One integer stands for both, so that rows which minus infinity hides as a whole are wrong.

    These rows are wrong after a view, too, where lowering has no form for minus infinity.
    """
    network, samples, _ = float_mask_and_samples(how)
    if how != "sdpa with a view":
        samples = with_numbers(samples)
    quantized(network, samples, door, None)
    (text,) = (each.getMessage() for each in caplog.records if "minus infinity" in each.getMessage())
    assert "mask'" in text or "reshape'" in text
    assert "pass a mask of bools" in text


@pytest.mark.parametrize("how", ["sdpa", "sdpa with a view", "nan_to_num"])
def test_export_model_notes_an_input_mask_of_minus_infinity_and_numbers(how: str) -> None:
    network, samples, _ = float_mask_and_samples(how)
    result = tosaic.export_model(network, samples[0], samples=samples, recipe="tosa-int8", verbose=0)
    assert any("minus infinity" in note for note in result.notes) == (how == "sdpa with a view")
    samples = with_numbers(samples)
    result = tosaic.export_model(network, samples[0], samples=samples, recipe="tosa-int8", verbose=0)
    assert any("'mask' hides scores with minus infinity" in note for note in result.notes)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("how", ["sdpa", "sdpa of floats"])
def test_rows_that_a_mask_of_bools_hides_as_a_whole_are_right(how: str, door: str, caplog: Any) -> None:
    """The way out that the note above names."""
    network, samples, seen = float_mask_and_samples(how)
    samples = [(x, seen) for x, _ in samples]
    found = accuracy(network, samples, samples[:1], door)
    assert min(found.quantized, found.lowered) > 25
    assert "minus infinity" not in caplog.text


class Rows(nn.Module):
    """Attention that replaces the NaN of rows without a visible key, in several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv, self.after = how, nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(hidden, float("-inf"))
        shares = scores.softmax(-1)
        if self.how == "nan_to_num":
            shares = torch.nan_to_num(shares)
        elif self.how == "nan_to_num of a view":
            shares = torch.nan_to_num(shares.reshape(-1, 5)).reshape(shares.shape)
        elif self.how == "nan_to_num of a product":
            shares = torch.nan_to_num(shares * 0.5)
        elif self.how == "where":
            shares = torch.where(torch.isnan(shares), 0.0, shares)
        elif self.how == "masked_fill":
            shares = shares.masked_fill(torch.isnan(shares), 0.0)
        elif self.how == "unequal":
            shares = torch.where(shares == shares, shares, torch.zeros_like(shares))
        elif self.how == "behind the product":
            return self.after(torch.nan_to_num(shares @ v))
        return self.after(shares @ v)


def rows_and_samples(how: str) -> tuple[nn.Module, list[tuple[Any, ...]]]:
    torch.manual_seed(0)
    network = Rows(how).eval()
    hidden = torch.rand(4, 5, 5) < 0.4
    hidden[0, 1] = hidden[2] = True
    hidden[1] = False
    return network, [(torch.randn(4, 5, 8) * 2, hidden) for _ in range(3)]


REPLACED = (
    "nan_to_num",
    "nan_to_num of a view",
    "nan_to_num of a product",
    "where",
    "masked_fill",
    "unequal",
)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("how", REPLACED)
def test_rows_without_a_visible_key_become_what_replaces_their_nan(how: str, door: str) -> None:
    network, samples = rows_and_samples(how)
    found = accuracy(network, samples, samples[:1], door)
    assert min(found.quantized, found.lowered) > 25


def test_nan_that_is_replaced_behind_a_contraction_leaves_both_float() -> None:
    network, samples = rows_and_samples("behind the product")
    for door in DOORS:
        program = quantized(network, samples, door, None)
        run = program.run if door == "quantize" else program.module()
        with torch.no_grad():
            assert decibels(run(*samples[0]), network(*samples[0])) > 25
        lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP")
        with torch.no_grad():
            assert decibels(lowered.run(*samples[0]), network(*samples[0])) > 25
        problems = tosaic.check(program, target="TOSA-1.0+INT").problems
        assert any("matmul" in problem.message for problem in problems)


def test_a_program_whose_softmax_is_not_rounded_before_nan_to_num_lowers_as_torch_computes_it() -> None:
    """Quantize and dequantize nodes of another quantizer: around the whole, and not between."""

    class Program(nn.Module):
        def forward(self, codes: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            q, dq = torch.ops.quantized_decomposed.quantize_per_tensor, torch.ops.quantized_decomposed
            scores = dq.dequantize_per_tensor(codes, 0.05, 0, -128, 127, torch.int8)
            shares = torch.nan_to_num(scores.masked_fill(hidden, float("-inf")).softmax(-1))
            stored = q(shares, 1 / 256, -128, -128, 127, torch.int8)
            return dq.dequantize_per_tensor(stored, 1 / 256, -128, -128, 127, torch.int8)

    codes = torch.randint(-128, 128, (4, 5), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    hidden = torch.tensor([[True] * 5, [False] * 5, [True, False] * 2 + [True], [True] * 5])
    lowered = tosaic.lower(torch.export.export(Program(), (codes, hidden)), target="TOSA-1.0+INT")
    found, wanted = lowered.run(codes, hidden), Program()(codes, hidden).numpy()
    np.testing.assert_allclose(found, wanted, atol=1.01 / 256)
    np.testing.assert_array_equal(found[[0, 3]], 0)


class Weighted(nn.Module):
    """Attention whose mask is an input, with layers of its own for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.queries(x) @ self.keys(x).transpose(-1, -2) / 8**0.5
        return (scores + mask).softmax(-1) @ self.values(x)


@pytest.mark.parametrize("value", [-1e4, -1e9, float("-inf")])
def test_an_input_mask_is_right_or_refused_where_arm_lowers(value: float) -> None:
    torch.manual_seed(0)
    network = Weighted().eval()
    seen = (torch.rand(4, 5, 5) > 0.4) | torch.eye(5, dtype=torch.bool)
    samples = [(torch.randn(4, 5, 8), torch.zeros(4, 5, 5).masked_fill(~seen, value)) for _ in range(3)]
    prepared = prepare_pt2e(
        torch.export.export(network, samples[0]).module(), tosaic.Quantizer(compatible_with="arm")
    )
    for sample in samples:
        prepared(*sample)
    if value == float("-inf"):
        with pytest.raises(tosaic.InvalidGraph, match=r"input 'mask' has minus infinity.*mask of bools, or"):
            convert_pt2e(prepared)
        return
    with torch.no_grad():
        program = torch.export.export(convert_pt2e(prepared), samples[0])
        expected = network(*samples[0]).numpy()
    assert decibels(tosaic.lower(program, target="TOSA-1.0+INT").run(*samples[0]), expected) > 25
