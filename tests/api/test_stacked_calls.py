"""Runs of stacks of samples: in Python and on the command line, as quantize and compare take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tosaic  # noqa: E402
from torch import nn  # noqa: E402
from tosaic.cli import main  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Two(nn.Module):
    """Two inputs, and outputs of several ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.conv(image) + bias.reshape(1, 4, 1, 1)
        return {"features": found, "mean": found.mean((2, 3))}


class Total(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum()


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return self.seen * 2


class Writes(nn.Module):
    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return cache * 2


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def _two() -> tuple[Any, Any]:
    torch.manual_seed(0)
    exported = torch.export.export(Two().eval(), (torch.zeros(1, 3, 6, 6), torch.zeros(4)))
    return exported, tosaic.from_exported(exported)


@pytest.mark.parametrize("lower", [False, True])
def test_each_entry_of_a_stack_runs_alone(lower: bool) -> None:
    """Before, an array that had not the shape of the input was refused."""
    exported, program = _two()
    runnable: Any = tosaic.lower(exported, target="TOSA-1.0+FP") if lower else program
    images, biases = _random(5, 3, 6, 6), _random(5, 4)
    single = [runnable.run(image[None], bias) for image, bias in zip(images, biases, strict=True)]
    for name in ("features", "mean"):
        alone = [each[name] for each in single]
        in_front = runnable.run(images[:, None], biases)[name]
        assert in_front.shape == (5, *alone[0].shape)
        np.testing.assert_array_equal(in_front, np.stack(alone))
        shared = runnable.run(images, biases[0])[name]
        np.testing.assert_array_equal(
            shared, np.concatenate([runnable.run(image[None], biases[0])[name] for image in images])
        )
    by_name, _ = runnable.run_functional(image=images[:, None], bias=biases)
    np.testing.assert_array_equal(by_name["mean"], runnable.run(images[:, None], biases)["mean"])
    of_torch = runnable.run(torch.from_numpy(images[:, None]), torch.from_numpy(biases))["mean"]
    np.testing.assert_array_equal(of_torch, by_name["mean"])


def test_stacks_have_the_physical_form_of_a_lowered_program() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).eval()
    images = _random(4, 3, 6, 6)
    samples = [(torch.from_numpy(image[None]),) for image in images]
    exported = torch.export.export(model, samples[0])
    quantized = tosaic.quantize(exported, samples, progress=False)
    lowered = tosaic.lower(
        quantized,
        target="TOSA-1.0+INT",
        io={"inputs": "int8", "outputs": "int8"},
        orders={"inputs": "nhwc", "outputs": "nhwc"},
    )
    nhwc = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    integers = lowered.io.inputs[0].qparams.quantize(nhwc)
    expected = np.concatenate([lowered.run(each[None]) for each in integers])
    np.testing.assert_array_equal(lowered.run(integers), expected)
    np.testing.assert_array_equal(lowered.run(integers[:, None]), expected[:, None])
    split = tosaic.lower(quantized, unsupported="split", claimants=["TOSA-1.0+INT"])
    np.testing.assert_array_equal(split.run(images), quantized.run(images))


def test_entries_of_a_stack_follow_each_other_in_a_program_with_states() -> None:
    program = tosaic.from_exported(torch.export.export(Cached(), (torch.zeros(1, 4),)))
    inputs = _random(3, 4)
    np.testing.assert_allclose(program.run(inputs), 2 * inputs.cumsum(0), rtol=1e-6)
    np.testing.assert_allclose(program.run(inputs[:1]), 2 * (inputs.sum(0) + inputs[:1]), rtol=1e-5)


def test_a_written_input_is_written_entry_by_entry() -> None:
    program = tosaic.from_exported(torch.export.export(Writes(), (torch.zeros(1, 4), torch.zeros(1, 4))))
    x, cache = _random(3, 4), np.ones((3, 4), np.float32)
    result, mutations = program.run_functional(x, cache)
    np.testing.assert_array_equal(mutations["cache"], x + 1)
    assert (cache == 1).all()
    np.testing.assert_array_equal(program.run(x, cache), result)
    np.testing.assert_array_equal(cache, x + 1)
    with pytest.raises(tosaic.InvalidGraph, match="writes input 'cache', which belongs to all entries"):
        program.run(x, cache[:1])


def test_stacks_without_one_meaning_are_refused() -> None:
    _, program = _two()
    images, biases = _random(5, 3, 6, 6), _random(4, 4)
    with pytest.raises(tosaic.InvalidGraph, match=r"different lengths.*5 of 'image', 4 of 'bias'"):
        program.run(images[:, None], biases)
    with pytest.raises(
        tosaic.InvalidGraph, match=r"different forms.*'image' has a multiple.*'bias' has one more"
    ):
        program.run(images, _random(5, 4))
    with pytest.raises(tosaic.InvalidGraph, match="a stack is empty"):
        program.run(images[:0], biases[0])
    with pytest.raises(tosaic.LayoutMismatch, match="image"):
        program.run(_random(5, 3, 6, 7), biases[0])
    total = tosaic.from_exported(torch.export.export(Total(), (torch.zeros(1, 4),)))
    with pytest.raises(tosaic.InvalidGraph, match=r"no axis for them.*'x' of \[3,1,4\]"):
        total.run(_random(3, 4))
    x = _random(3, 1, 4)
    np.testing.assert_allclose(total.run(x), (x * x).sum((1, 2)), rtol=1e-5)


@pytest.mark.parametrize("last", [False, True])
def test_the_command_runs_the_stacks_of_a_file(tmp_path: Path, last: bool, capsys: Any) -> None:
    """The example of the export may be in channels-last order, which a file of arrays does not have."""
    torch.manual_seed(0)
    example = torch.zeros(1, 3, 6, 6)
    if last:
        example = example.contiguous(memory_format=torch.channels_last)
    exported = torch.export.export(nn.Conv2d(3, 4, 3).eval(), (example,))
    torch.export.save(exported, tmp_path / "model.pt2")
    images = _random(5, 3, 6, 6)
    with torch.no_grad():
        expected = exported.module()(torch.from_numpy(images[:1])).numpy()
    for name, given in (("one", images[:1]), ("stack", images), ("axis", images[:, None])):
        np.savez(tmp_path / f"{name}.npz", input=given)
        argv = ["run", str(tmp_path / "model.pt2"), "--input", str(tmp_path / f"{name}.npz")]
        assert main([*argv, "-o", str(tmp_path / "out.npz")]) == 0
        (found,) = np.load(tmp_path / "out.npz").values()
        assert found.shape == (*given.shape[:-3], 4, 4, 4)
        np.testing.assert_allclose(found.reshape(-1, 4, 4, 4)[:1], expected, rtol=1e-4, atol=1e-6)
    capsys.readouterr()
