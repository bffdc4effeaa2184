"""Small outputs are judged by the distribution of their errors: rounding passes, and wrong results fail."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tosaic  # noqa: E402
from torch import nn  # noqa: E402
from tosaic import recipes  # noqa: E402
from tosaic.exporting.agreement import agrees, units_of_outputs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

UNIT = 0.02
Runs = list[list[np.ndarray]]


def _heads(seed: int, elements: int, samples: int) -> tuple[Runs, Runs, Runs]:
    """Returns outputs of floats, of the quantized program, and of the lowered one, which rounds elsewhere."""
    random = np.random.default_rng(seed)
    floats = [random.normal(0, 40, (1, elements)) for _ in range(samples)]
    inner = [random.normal(0, 0.6, (1, elements)) for _ in range(samples)]
    quantized = [np.rint(x + y) for x, y in zip(floats, inner, strict=True)]
    lowered = [np.rint(x + y + random.normal(0, 0.6, y.shape)) for x, y in zip(floats, inner, strict=True)]
    return tuple([[x * UNIT] for x in each] for each in (floats, quantized, lowered))  # type: ignore[return-value]


def _sizes() -> list[tuple[int, int]]:
    return [(1, 32), (2, 32), (4, 16), (8, 8), (8, 2), (10, 7), (64, 2), (1000, 2)]


@pytest.mark.parametrize(("elements", "samples"), _sizes())
def test_rounding_passes_however_few_the_elements_are(elements: int, samples: int) -> None:
    failed = [seed for seed in range(300) if not agrees(*_heads(seed, elements, samples), [UNIT])]
    assert not failed


@pytest.mark.parametrize("tamper", ["zero point", "permuted", "negated", "scale", "zeros", "NaN", "shape"])
@pytest.mark.parametrize(("elements", "samples"), _sizes())
def test_wrong_results_fail_however_few_the_elements_are(tamper: str, elements: int, samples: int) -> None:
    """A shift of one unit needs many elements: a few of a correct program may be a unit off."""
    if tamper == "permuted" and elements == 1:
        return
    changes: dict[str, Any] = {
        "zero point": lambda x: x + UNIT * (4 if samples == 2 else 1 if elements * samples >= 64 else 2),
        "permuted": lambda x: np.roll(x, 1, 1),
        "negated": lambda x: -x,
        "scale": lambda x: x * 1.25,
        "zeros": lambda x: 0 * x,
        "NaN": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 0, np.nan, x),
        "shape": lambda x: x[:, 1:],
    }
    passed = []
    for seed in range(50):
        floats, quantized, lowered = _heads(seed, elements, samples)
        wrong = [[changes[tamper](array) for array in outputs] for outputs in lowered]
        if agrees(floats, quantized, wrong, [UNIT]):
            passed.append(seed)
    assert not passed


def test_an_output_that_is_not_rounded_has_the_noise_of_the_quantized_program_only() -> None:
    random = np.random.default_rng(0)
    floats = [[random.normal(size=(1, 8))] for _ in range(8)]
    quantized = [[each + random.normal(0, 1e-3, each.shape)] for (each,) in floats]
    lowered = [[each + random.normal(0, 1e-3, each.shape)] for (each,) in quantized]
    assert agrees(floats, quantized, lowered, [None])
    assert not agrees(floats, quantized, [[each + 0.01] for (each,) in lowered], [None])


# ---- exports ----


def _network(seed: int, wide: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    channels, act = 3, [nn.ReLU, nn.GELU, nn.Hardswish, nn.SiLU][seed % 4]
    for i in range(3 + seed % 3):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), act()]
        layers += [nn.AvgPool2d(2)] if i % 2 else []
        channels = 8
    head = nn.Linear(8, wide, bias=False)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


def _export(network: nn.Module, recipe: str, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    samples = [(torch.randn(1, 3, 16, 16, generator=generator),) for _ in range(8)]
    chosen = recipes.named(recipe).replace(stages=options.pop("stages", []))
    return tosaic.export_model(network, samples[0], recipe=chosen, samples=samples, verbose=0, **options)


@pytest.mark.parametrize("recipe", ["cortex-m", "neutron"])
@pytest.mark.parametrize("seed", [48, 57, 90, 3, 8, 11])
def test_exports_of_small_outputs_pass(recipe: str, seed: int) -> None:
    """Before, network 57 failed with 29.8 dB, since the quantized program had 34.6 dB by chance."""
    torch.manual_seed(seed)
    network = _network(seed, [2, 4, 8][seed % 3])
    assert _export(network, recipe).ok


def _tampered(network: nn.Module, change: Any) -> Any:
    """Returns a stage that lowers another network in the place of the one that was quantized."""

    def lowered(*_: Any) -> Any:
        other = copy.deepcopy(network)
        with torch.no_grad():
            change(other)
        recipe = recipes.named("cortex-m")
        generator = torch.Generator().manual_seed(1)
        samples = [(torch.randn(1, 3, 16, 16, generator=generator),) for _ in range(8)]
        quantized = tosaic.quantize(
            torch.export.export(other, samples[0]),
            samples,
            config=recipe.config,
            rules=recipe.rules,
            progress=False,
        )
        return tosaic.lower(quantized, unsupported="split", claimants=recipe.takers)

    return recipes.Stage("tampered", "lowered", lowered)


def _permute(network: Any) -> None:
    network[-1].weight.copy_(network[-1].weight.roll(1, 0))


def _negate(network: Any) -> None:
    network[-1].weight.neg_()


def _other_layer(network: Any) -> None:
    network[0].weight.copy_(network[0].weight.flip(0))


@pytest.mark.parametrize("change", [_permute, _negate, _other_layer])
def test_exports_of_small_outputs_fail_if_the_lowered_program_is_wrong(change: Any) -> None:
    network = _network(57, 2)
    with pytest.raises(tosaic.CheckError, match="lower"):
        _export(network, "cortex-m", stages=[_tampered(network, change)])


def test_units_of_outputs_are_their_scales() -> None:
    x = torch.randn(1, 8)
    model = nn.Sequential(nn.Linear(8, 6), nn.Unflatten(1, (2, 3))).eval()
    quantized = tosaic.quantize(torch.export.export(model, (x,)), [(x,)], progress=False)
    (unit,) = units_of_outputs(quantized)
    with torch.no_grad():
        integers = quantized.run(x) / unit
    np.testing.assert_allclose(integers, np.rint(integers), atol=1e-4)
    floats = tosaic.from_exported(torch.export.export(model, (x,)))
    assert units_of_outputs(floats) == [None]
