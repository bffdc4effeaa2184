"""What `tosaic.quantize` takes and returns, as users see it: samples, groups of weights, reports, copies."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

ROWS = np.random.default_rng(3).standard_normal((24, 3, 8, 8), np.float32)
GROUPED = tosaic.QConfig.int8(weight_bits=4, group_size=4)


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(1)
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 6, 3),
        nn.Flatten(2),
        nn.Linear(64, 5),
    )
    return torch.export.export(nn.Sequential(*layers).eval(), (torch.zeros(1, 3, 8, 8),))


@pytest.fixture(scope="module")
def quantized(exported):
    return tosaic.quantize(exported, ROWS)


# ---- samples ----


@pytest.mark.parametrize(
    "samples",
    [
        DataLoader(TensorDataset(torch.from_numpy(ROWS)), batch_size=8),
        DataLoader(torch.from_numpy(ROWS), batch_size=8),
        [{"input": ROWS[:4]}, (ROWS[4:],)],
        (row[None] for row in ROWS),
        ROWS[:, None],
    ],
    ids=["tensors of a dataset", "tensors", "stacks", "generator", "one more axis"],
)
def test_samples_of_any_form_give_the_same_qparams(exported, quantized, samples) -> None:
    found = tosaic.quantize(exported, samples)
    assert found.samples == quantized.samples == 24
    assert found.qparams == quantized.qparams


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (ROWS[:0], r"\[samples\] there is nothing to run on: expected a stack with at least one sample"),
        ([], r"\[samples\] there is nothing to run on: expected a tuple, dict, array or file"),
        (
            [ROWS, ROWS[:, :2]],
            r"\[samples\] sample 24: input 'input' has the wrong shape: expected \[1,3,8,8\], or a stack of "
            r"such arrays, got \[24,2,8,8\]",
        ),
        ([ROWS, ROWS[0]], r"sample 24: input 'input' has the wrong shape: .* got \[3,8,8\]"),
        ([ROWS, ROWS.astype(np.float64)], r"sample 24: input 'input' has the wrong dtype"),
    ],
    ids=["empty stack", "empty list", "channels", "no batch", "float64"],
)
def test_samples_that_do_not_fit_are_refused_by_index(exported, samples, message) -> None:
    with pytest.raises(tosaic.Error, match=message):
        tosaic.quantize(exported, samples)


# ---- weights ----


def test_weights_with_groups_equal_the_weights_of_torchaos_quantizer(exported) -> None:
    prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(GROUPED))
    for row in ROWS:
        prepared(torch.from_numpy(row[None]))
    converted = torch.export.export(convert_pt2e(prepared), (torch.zeros(1, 3, 8, 8),))
    theirs = tosaic.lower(converted, target="TOSA-1.0+INT")
    ours = tosaic.lower(tosaic.quantize(exported, ROWS, config=GROUPED), target="TOSA-1.0+INT")
    difference = np.abs(ours.run(ROWS[:1]) - theirs.run(ROWS[:1])).max()
    assert difference <= 1.001 * ours.outputs[0].qparams.scales[0]


@pytest.mark.parametrize("config", [tosaic.QConfig.int8(), GROUPED, tosaic.QConfig.int16x8()])
def test_torch_computes_the_same_from_the_exported_program(exported, config) -> None:
    quantized = tosaic.quantize(exported, ROWS, config=config)
    with torch.no_grad():
        found = quantized.to_exported().module()(torch.from_numpy(ROWS[:1])).numpy()
    ours = quantized.run(ROWS[:1])
    assert np.abs(found - ours).max() <= 1.001 * quantized.outputs[0].qparams.scales[0]
    assert np.mean(found == ours) > 0.99


def test_clipping_that_the_least_error_chooses_is_not_logged(exported, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        tosaic.quantize(exported, ROWS, config=tosaic.QConfig.int8(weight_bits=4))
        tosaic.quantize(exported, ROWS, config=GROUPED)
    assert caplog.messages == []


# ---- results ----


def test_the_report_says_what_became_integers(exported) -> None:
    config = GROUPED.set(tosaic.QConfig.int16x8(), op="conv_transpose2d").set(None, type="Linear")
    quantized = tosaic.quantize(exported, ROWS, config=config)
    text = str(quantized)
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 40
    for expected in (
        "samples      24",
        "int16",
        "it is not selected",
        "1 int8 in -7..7 per channel",
        "linear",
    ):
        assert expected in text
    data = quantized.report().data
    assert data["operators"]["linear"] == {"not rounded": 1}
    assert data["activations"]["int16"] == 2


def test_the_report_lists_operators_that_compute_with_floats() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.fft.rfft(torch.tanh(x)).abs())

    exported = torch.export.export(Spectrum(), (torch.zeros(1, 3, 8, 8),))
    report = tosaic.quantize(exported, ROWS).report()
    assert "in floats, with TOSA-1.0+INT" in report.text
    assert "operators that compute with floats" in report.text
    assert any("rfft2" in each["op"] for each in report.data["floats"])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_and_pickles_compute_the_same(quantized, copied) -> None:
    made = copied(quantized)
    assert type(made) is tosaic.Program
    assert made.stage == "quantized"
    assert np.array_equal(made.run(ROWS[:1]), quantized.run(ROWS[:1]))
    assert tosaic.lower(made, target="TOSA-1.0+INT").to_bytes() == (
        tosaic.lower(quantized, target="TOSA-1.0+INT").to_bytes()
    )


class _OfCounts(nn.Module):
    """A function of whole numbers in a dtype whose range is much larger than that of the numbers."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.function, self.dtype = function, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x.to(self.dtype).to(torch.float32))


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        torch.cos,
        lambda x: nn.functional.leaky_relu(x, 0.01),
        lambda x: nn.functional.elu(x - 3),
    ],
    ids=["cos", "leaky_relu", "elu"],
)
@pytest.mark.parametrize("every", [False, True], ids=["by unit", "by operator"])
def test_a_function_of_counts_is_exact_at_each_of_them(function, dtype, every) -> None:
    """A table over the range of the dtype would be read between the whole numbers."""
    random = torch.Generator().manual_seed(0)
    samples = [(torch.randint(0, 100 * 64, (4, 60), generator=random) / 64,) for _ in range(3)]
    module = _OfCounts(function, dtype)
    exported = torch.export.export(module, samples[0])
    config = tosaic.QConfig.int16x8(every_operator=every)
    quantized = tosaic.quantize(exported, samples, config=config, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP+int16")
    for (x,) in samples:
        expected = module(x).numpy()
        unit = np.abs(expected).max() / 32767
        assert np.abs(lowered.run(x) - expected).max() <= 1.5 * unit


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_a_scaled_bias_does_not_make_the_unit_of_the_sum_coarse(name: str) -> None:
    """Before, the unit of the sum was chosen for a bias whose integers use all 32 bits."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            random = torch.Generator().manual_seed(0)
            self.weight = nn.Parameter(torch.rand(3, 5, 4, generator=random) * 2 - 1)
            self.bias = nn.Parameter(torch.rand(4, generator=random) * 2 - 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if name == "addmm":
                return torch.addmm(self.bias, x[0], self.weight[0], beta=-0.446, alpha=0.073)
            return torch.baddbmm(self.bias, x, self.weight, beta=-0.446, alpha=0.073)

    random = torch.Generator().manual_seed(0)
    samples = [(torch.rand(3, 400, 5, generator=random) * 4 - 2,) for _ in range(3)]
    exported = torch.export.export(Scaled(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=tosaic.QConfig.int8(), progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    differ = [np.mean(lowered.run(x) != quantized.run(x)) for (x,) in samples]
    assert max(differ) < 0.002, differ


def _softmax_exp(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, -1).exp()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.log(x.sigmoid().clamp_min(1.2)),
        lambda x: torch.exp(x.sigmoid().clamp_max(-0.3)),
        lambda x: torch.exp(x.sigmoid().clamp(2.5, 1.7)),
        lambda x: torch.sqrt(torch.reciprocal(x.sigmoid() + 0.25)),
        lambda x: nn.functional.hardswish(torch.reciprocal(x.sigmoid() + 0.25)),
        lambda x: nn.functional.hardswish(_softmax_exp(x * 30)),
        lambda x: torch.var_mean(x.round().clamp(-3, 3).to(torch.int16).to(torch.float32), 1)[0],
        lambda x: torch.var_mean(x.round().clamp(-3, 3).to(torch.int16).neg().to(torch.float32), 1)[1],
    ],
    ids=[
        "a lower bound above all numbers",
        "an upper bound below all numbers",
        "a lower bound above the upper one",
        "sqrt of a function with a pole",
        "hardswish of a function with a pole",
        "an exp that reaches far beyond its reader",
        "a variance of counts",
        "a mean of counts",
    ],
)
@pytest.mark.parametrize(("config", "more"), [("int8", ""), ("int16x8", "+int16")])
def test_a_part_of_a_chain_loses_no_bits_of_the_result(function, config: str, more: str) -> None:
    """Before, the unit or the bound of a part was chosen from all integers, not from those that occur."""

    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    random = torch.Generator().manual_seed(0)
    samples = [(torch.rand(8, 40, generator=random) * 6 - 3,) for _ in range(3)]
    exported = torch.export.export(Chain(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=getattr(tosaic.QConfig, config)(), progress=False)
    lowered = tosaic.lower(quantized, target=f"TOSA-1.0+INT+FP{more}")
    assert tosaic.compare(quantized, lowered, samples).ok
    for (x,) in samples:
        exact = function(x).numpy()
        unit = np.abs(exact).max() / (127 if config == "int8" else 32767)
        before = np.abs(quantized.run(x) - exact).max()
        assert np.abs(lowered.run(x) - exact).max() <= 2 * (before + unit)


class _Joined(nn.Module):
    def __init__(self, join) -> None:
        super().__init__()
        self.join = join

    def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.join(flag, x * 0.125)


def _joined(join) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    random = torch.Generator().manual_seed(0)
    samples = [(torch.tensor([[i == 1]]), torch.rand(2, 44, generator=random) * 8 - 4) for i in range(3)]
    exported = torch.export.export(_Joined(join), samples[0])
    return tosaic.quantize(exported, samples, config=tosaic.QConfig.int16x8(), progress=False), samples


@pytest.mark.parametrize(
    "join",
    [
        lambda flag, x: torch.where(flag, -3e4, x),
        lambda flag, x: torch.where(flag, x, 3e4).reshape(4, 22),
        lambda flag, x: nn.functional.pad(x, (1, 1), value=-3e4),
        lambda flag, x: torch.cat((x, torch.full((2, 1), 2e4)), 1),
        lambda flag, x: torch.cat((x, x.abs() * 0.3, torch.full((2, 1), -5e3)), 1),
    ],
    ids=["where", "where and reshape", "pad", "cat", "cat of two scales"],
)
def test_numbers_that_an_output_returns_beside_a_huge_constant_keep_their_bits(join) -> None:
    """With 29 bits for the huge number, one unit would be 4 steps of the other numbers."""
    quantized, samples = _joined(join)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+int16")
    assert tosaic.compare(quantized, lowered, samples).ok
    step = 0.125 * 4 / 32767
    for sample in samples:
        expected, found = quantized.run(*sample), lowered.run(*sample)
        small = np.abs(expected) < 1
        # The bound is one step of the product.
        assert np.abs(found - expected)[small].max(initial=0) <= 1.01 * step
        np.testing.assert_allclose(found[~small], expected[~small], rtol=2e-7)


def test_a_unit_for_a_huge_constant_that_loses_bits_of_a_returned_number_is_refused() -> None:
    quantized, samples = _joined(lambda flag, x: torch.where(flag, -1e6, x))
    with pytest.raises(tosaic.UnsupportedOp, match=r"one unit for all operands leaves .* steps"):
        tosaic.lower(quantized, target="TOSA-1.0+INT+int16")
    over_floats = tosaic.lower(quantized, target="TOSA-1.0+INT+FP+int16")
    for sample in samples:
        np.testing.assert_allclose(over_floats.run(*sample), quantized.run(*sample), rtol=2e-7, atol=2e-5)


def test_a_reader_of_a_returned_sum_notices_what_the_output_hides() -> None:
    """The output needs a unit for -1e9, in which all numbers are equal that tanh distinguishes."""

    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scores = torch.cat((x * 0.5, torch.full((2, 1), 1e4)), 1) + flag.to(torch.float32) * -1e9
            return scores, torch.tanh(scores)

    random = torch.Generator().manual_seed(0)
    samples = [
        (torch.rand(2, 7, generator=random) * 4 - 2, torch.rand(2, 8, generator=random) < 0.3)
        for _ in range(4)
    ]
    exported = torch.export.export(Masked(), samples[0])
    quantized = tosaic.quantize(exported, samples, config=tosaic.QConfig.int16x8(), progress=False)
    with pytest.raises(tosaic.UnsupportedOp, match=r"'add'.*one unit for all operands leaves"):
        tosaic.lower(quantized, target="TOSA-1.0+INT+int16")
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP+int16")
    for sample in samples:
        for found, expected in zip(lowered.run(*sample), quantized.run(*sample), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        nn.functional.elu,
        nn.functional.softplus,
        lambda x: torch.sigmoid(x / 100),
        lambda x: x.clamp(min=-7.5),
    ],
    ids=["elu", "softplus", "sigmoid", "clamp"],
)
def test_a_returned_function_of_counts_is_exact_where_it_is_small(function) -> None:
    """Before, the table lacked results that are small next to the largest one: elu(-9) was elu(-4)."""

    class Counts(nn.Module):
        def forward(self, counts: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return function(counts.to(torch.float32)), x * 2

    counts = torch.tensor([-3000, -9, -5, -4, -3, -2, -1, 0, 1, 2, 3, 200, 3000], dtype=torch.int16)
    samples = [(counts, torch.rand(3)) for _ in range(3)]
    exported = torch.export.export(Counts(), samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    assert tosaic.compare(quantized, lowered, samples).ok
    found, expected = lowered.run(*samples[0])[0], quantized.run(*samples[0])[0]
    unit = 2**-28 * function(torch.tensor([-32768.0, 32767.0])).abs().max()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=float(unit))


def _quantized(module: nn.Module, samples: list[tuple[torch.Tensor, ...]], config: str = "int8") -> Any:
    exported = torch.export.export(module.eval(), samples[0])
    return tosaic.quantize(exported, samples, config=getattr(tosaic.QConfig, config)(), progress=False)


class _Of(nn.Module):
    def __init__(self, function, *buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for i, buffer in enumerate(buffers):
            self.register_buffer(f"b{i}", buffer)

    def forward(self, *inputs: torch.Tensor):
        return self.function(*self.buffers(), *inputs)


@pytest.mark.parametrize("size", [1e6, 1e9, 1e14])
@pytest.mark.parametrize("config", ["int8", "int16x8"])
def test_the_logarithm_of_a_softmax_is_kept_beside_huge_scores(size: float, config: str) -> None:
    """Before, the unit was chosen for the scores: log(2) was 0 or 1.02."""
    random = torch.Generator().manual_seed(0)
    scores = torch.rand(3, 4, 2, generator=random) * 2 * size - size
    samples = [(scores,), (torch.full_like(scores, size),), (scores.sign() * size,)]
    module = _Of(lambda x: torch.log_softmax(x.clamp(-size, size), 1).clamp(min=-9))
    quantized = _quantized(module, samples, config)
    extension = "+int16" if config == "int16x8" else ""
    lowered = tosaic.lower(quantized, target=f"TOSA-1.0+INT{extension}")
    assert tosaic.compare(quantized, lowered, samples).ok
    step = 9 / (127 if config == "int8" else 32767)
    for sample in samples:
        np.testing.assert_allclose(lowered.run(*sample), quantized.run(*sample), atol=1.01 * step)


@pytest.mark.parametrize("condition", [[[True]], [[False]], [[[True]]]])
@pytest.mark.parametrize("shape", [(), (4,)])
def test_a_constant_of_one_element_adds_its_axes_to_a_table(condition, shape: tuple[int, ...]) -> None:
    module = _Of(lambda c, x, y: torch.where(c, x * 2, nn.functional.gelu(y)), torch.tensor(condition))
    samples = [(torch.rand(4) * 50, torch.rand(shape)) for _ in range(3)]
    quantized = _quantized(module, samples)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    np.testing.assert_array_equal(lowered.run(*samples[0]), quantized.run(*samples[0]))


@pytest.mark.parametrize("function", [torch.sin, torch.tan, torch.nn.functional.gelu])
def test_a_function_of_counts_has_an_entry_for_each_that_a_cast_makes(function) -> None:
    """-175 * 0.04 is -6.9999998, which counts as -7 and was cast to -6 where the range was computed."""

    def counted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 1.0009765625
        return function(y.to(torch.int16).to(torch.float32)), y * 2

    samples = [(torch.tensor([-7.0, -6.0, 3.0, 3.2, 0.64]) / 1.0009765625,) for _ in range(3)]
    quantized = _quantized(_Of(counted), samples)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP")
    comparison = tosaic.compare(quantized, lowered, samples)
    assert comparison.ok, str(comparison)


def test_a_variance_that_squares_of_a_huge_constant_would_hide_is_refused() -> None:
    """All or no numbers of a row are the constant, so its variance is small, but its unit would be 1."""
    module = _Of(lambda x, flag: torch.where(flag, -3e4, x * 0.5).var(-1, correction=0))
    samples = [(torch.rand(2, 6) - 0.5, torch.tensor([[i % 2 == 0], [False]])) for i in range(4)]
    quantized = _quantized(module, samples, "int16x8")
    with pytest.raises(tosaic.UnsupportedOp, match=r"'where' is left to floats: one unit for all operands"):
        tosaic.lower(quantized, target="TOSA-1.0+INT+int16")


@pytest.mark.parametrize(
    ("function", "decibels"),
    [
        (lambda x, w: nn.functional.pad(x.to(torch.float32) * 0.01, (1, 1), value=1e4).amin(0), 110),
        (lambda x, w: torch.where(x > 3, 5e4, x.to(torch.float32)) * w, 80),
    ],
    ids=["the least of a padded value", "a product"],
)
def test_a_returned_float_of_integers_is_right_within_16_bits(function, decibels: float) -> None:
    samples = [(torch.tensor([-97, -3, 0, 2, 120], dtype=torch.int8), torch.rand(5)) for _ in range(3)]
    module = _Of(lambda x, w: (function(x, torch.tensor([1.0, 0.3, 0.7, 0.9, 0.2])), w * 2))
    quantized = _quantized(module, samples)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    comparison = tosaic.compare(quantized, lowered, samples)
    assert comparison.ok, str(comparison)
    assert comparison.outputs[0].metrics.sqnr_db > decibels


def test_numbers_that_only_floats_read_do_not_get_a_unit_beside_huge_ones() -> None:
    """The variance is left to floats; before, `where` made its numbers in twice their own unit, for -3e4."""
    module = _Of(lambda x, flag: torch.where(flag, -3e4, x * 0.125).var(-1, correction=0))
    samples = [(torch.rand(2, 6) - 0.5, torch.tensor([[i % 2 == 0], [False]])) for i in range(4)]
    samples = [(x * 8, flag) for x, flag in samples]
    quantized = _quantized(module, samples, "int16x8")
    visible = [(samples[0][0] * (0.1 + i), torch.zeros(2, 1, dtype=torch.bool)) for i in range(3)]
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP+int16")
    comparison = tosaic.compare(quantized, lowered, visible)
    assert comparison.ok, str(comparison)
    assert comparison.output.sqnr_db > 90


def test_a_product_of_counts_is_right_within_its_unit() -> None:
    """The largest product, 255^5, has 40 bits: with 32 bits for it, the unit of all products is 2,048."""
    module = _Of(lambda x, w: (x.to(torch.float32).prod(0, keepdim=True), w * 2))
    random = torch.Generator().manual_seed(0)
    samples = [
        (torch.randint(9, 30, (5,), dtype=torch.uint8, generator=random), torch.rand(5)) for _ in range(9)
    ]
    quantized = _quantized(module, samples)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    comparison = tosaic.compare(quantized, lowered, samples)
    assert comparison.ok, str(comparison)
    for sample in samples:
        product = float(sample[0].double().prod())
        assert abs(float(lowered.run(*sample)[0][0]) - product) < 2e7 / 100


def test_a_whole_number_that_a_scale_misses_is_cast_to_either_integer() -> None:
    """4722 * 0.0025413 is 11.999999: floats make 11 of it, integers 12."""

    def whole(x: torch.Tensor) -> torch.Tensor:
        y = torch.clamp(torch.round(x * 4.0), -100, 100).to(torch.int16).to(torch.float32)
        return torch.clamp(torch.round(y * 4.0), -100, 100).to(torch.int32)

    random = torch.Generator().manual_seed(0)
    found = 0
    for i in range(6):
        reach = 5 - i * 0.15
        samples = [(torch.rand(64, generator=random) * 2 * reach - reach,) for _ in range(3)]
        exported = torch.export.export(_Of(lambda x: (whole(x), x * 2)), samples[0])
        config = tosaic.QConfig.int16x8(observer="mse")
        quantized = tosaic.quantize(exported, samples, config=config, progress=False)
        lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP+int16")
        comparison = tosaic.compare(quantized, lowered, samples)
        assert comparison.ok, str(comparison)
        found += comparison.outputs[0].metrics.mismatches
    assert found > 0


@pytest.mark.parametrize("door", ["quantize", "Quantizer"])
def test_whole_numbers_beyond_the_integers_are_named(door: str, caplog: pytest.LogCaptureFixture) -> None:
    """181 in a scale of 1.42 is 180.3, which a cast cuts to 180."""
    samples = [(torch.linspace(-90, 90, 64),) for _ in range(2)]
    for factor, named in ((2.0, True), (1.0, False)):
        module = _Of(lambda x, factor=factor: (torch.round(x) * factor).to(torch.int32))
        exported = torch.export.export(module, samples[0])
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tosaic"):
            if door == "quantize":
                tosaic.quantize(exported, samples, progress=False)
            else:
                prepared = prepare_pt2e(exported.module(), tosaic.Quantizer())
                prepared(*samples[0])
                convert_pt2e(prepared)
        found = [each for each in caplog.messages if "'mul'" in each]
        assert bool(found) == named, caplog.messages
        assert all("whole numbers from -180 to 180, which 256 integers do not" in each for each in found)


def _whole_functions() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    return {
        "round": lambda x: torch.round(x).to(torch.int32),
        "clamp": lambda x: torch.round(x).clamp(-3, 100).reshape(2, -1).to(torch.int64),
        "arithmetic": lambda x: (torch.floor(x) * 2 + 1).to(torch.int32),
        "mask": lambda x: (torch.ceil(x) * (x > 1).to(torch.float32)).to(torch.int16),
        "parts": lambda x: torch.cat((torch.trunc(x), -torch.round(x))).to(torch.int32),
        "padded": lambda x: nn.functional.pad(torch.round(x), (1, 1), value=3.0).abs().to(torch.int32),
        "sum": lambda x: torch.round(x).reshape(64, 4).sum(1).to(torch.int32),
    }


@pytest.mark.parametrize("door", ["quantize", "Quantizer"])
@pytest.mark.parametrize("config", ["int8", "int16x8"])
@pytest.mark.parametrize("name", _whole_functions())
def test_whole_numbers_become_the_same_integers(name: str, config: str, door: str) -> None:
    """A scale of 0.0238 made 2.97 of 3, which a cast cut to 2: 209 of 256 integers were off by one."""
    random = torch.Generator().manual_seed(0)
    # An eighth above whole numbers: rounding to 8 bits moves none of them across a half or a whole number.
    samples = [((torch.randint(-12, 12, (256,), generator=random) + 0.125),) for _ in range(4)]
    module, made = _Of(_whole_functions()[name]), getattr(tosaic.QConfig, config)()
    exported = torch.export.export(module, samples[0])
    quantized: Any
    if door == "quantize":
        quantized = tosaic.quantize(exported, samples, config=made, progress=False)
        found = quantized.run(*samples[0])
    else:
        prepared = prepare_pt2e(exported.module(), tosaic.Quantizer(made))
        for sample in samples:
            prepared(*sample)
        quantized = torch.export.export(convert_pt2e(prepared), samples[0])
        found = tosaic.from_exported(quantized).run(*samples[0])
    expected = module(*samples[0]).numpy()
    np.testing.assert_array_equal(found, expected)
    extension = "+int16" if config == "int16x8" else ""
    lowered = tosaic.lower(quantized, target=f"TOSA-1.0+INT+FP{extension}")
    np.testing.assert_array_equal(lowered.run(*samples[0]), expected)


class _Scaled(nn.Module):
    """A product with a constant that has the integers of its operand at another scale."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.clamp(torch.round(x * 1.0), -100, 100)
        z = y * 0.283
        results = (z.reshape(-1), nn.functional.avg_pool1d(y[None, None], 2))
        if not self.counts:
            return (*results, z[1:] * 0.5, torch.cat((z, y)), torch.exp(z))
        count = self.n + 1
        self.n.copy_(count)
        return (*results, y.to(torch.int16), z * count * 1.5 + 0.5)


@pytest.mark.parametrize("config", ["int8", "int16x8"])
@pytest.mark.parametrize("counts", [False, True])
def test_the_integers_of_another_value_are_read_at_the_scale_of_their_own(counts: bool, config: str) -> None:
    """Before, floats read the product at the scale of its operand: 3.5 times as large, without a warning."""
    random = torch.Generator().manual_seed(0)
    samples = [(torch.rand(4, generator=random) * 17 - 10,) for _ in range(6)]
    exported = torch.export.export(_Scaled(counts), samples[0])
    quantized = tosaic.quantize(exported, samples, config=getattr(tosaic.QConfig, config)(), progress=False)
    extension = "+int16" if config == "int16x8" else ""
    for target in ("TOSA-1.0+INT+FP", "TOSA-1.0+INT"):
        if counts and target == "TOSA-1.0+INT":
            continue  # has no product with a count of any size
        lowered = tosaic.lower(quantized, target=target + extension)
        assert tosaic.compare(quantized, lowered, samples[:2]).ok
        quantized.reset_state(), lowered.reset_state()
        for sample in samples:
            for found, expected in zip(lowered.run(*sample), quantized.run(*sample), strict=True):
                steps = 64 if config == "int8" else 8000
                np.testing.assert_allclose(found, expected, atol=np.abs(expected).max() / steps)
