"""Models that write into parts of tensors, inputs and states, by each flow up to its final programs."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tosaic

torch = pytest.importorskip("torch")

from tosaic.lowering.reference_model import run_reference_model  # noqa: E402
from tosaic.pt2.program import read_pt2  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
nn = torch.nn


class Framed(nn.Module):
    """A convolution that is written into the middle of a frame."""

    shape = (1, 3, 4, 4)

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 36, 5)

    def forward(self, x: Any) -> Any:
        frame = torch.zeros(x.shape[0], 8, 6, 6)
        frame[..., 1:5, 1:5] = torch.relu(self.conv(x))
        frame[:, 0] = 1
        frame[:, 1:].add_(0.5)
        return self.out(frame.flatten(1))


class Streamed(nn.Module):
    """A window of the newest samples. A state has the older samples of the window."""

    shape = (1, 4, 2)

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3)
        self.register_buffer("window", torch.zeros(1, 4, 6))

    def forward(self, x: Any) -> Any:
        self.window[..., :-2] = self.window[..., 2:].clone()
        self.window[..., -2:] = x
        return self.conv(self.window)


class Interleaved(nn.Module):
    """Every second column takes the numbers of the column after it."""

    shape = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x = x * 1.0
        x[:, 0].mul_(2)
        x[:, 1:].sub_(1)
        h = self.linear(x)
        h[:, ::2] = h[:, 1::2]
        return h


MODELS = [Framed, Streamed, Interleaved]


def model_and_samples(kind: Any) -> tuple[Any, list[Any]]:
    torch.manual_seed(5)
    model = kind().eval()
    return model, [torch.randn(kind.shape) for _ in range(6)]


def snr(found: Any, wanted: Any) -> float:
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(10 * np.log10((wanted**2).sum() / max(((wanted - found) ** 2).sum(), 1e-30)))


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_integers_follow_the_model_in_each_call_of_a_stream(kind: Any) -> None:
    model, samples = model_and_samples(kind)
    quantized = tosaic.quantize(torch.export.export(model, (samples[0].clone(),)), samples, progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    reference = run_reference_model(lowered, samples[0].numpy())
    assert reference.ok
    np.testing.assert_array_equal(reference.outputs, np.asarray(lowered.run(samples[0].numpy())))
    quantized.reset_state()
    lowered.reset_state()
    for x in samples:
        wanted = model(x.clone())
        assert snr(quantized.run(x.clone()), wanted) > 25
        assert snr(lowered.run(x.clone()), wanted) > 25


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_the_program_of_torch_has_the_same_qparams(kind: Any) -> None:
    model, samples = model_and_samples(kind)
    exported = torch.export.export(model, (samples[0].clone(),))
    quantized = tosaic.quantize(deepcopy(exported), samples, progress=False)
    ours = tosaic.lower(quantized, target="TOSA-1.0+INT")
    theirs = tosaic.lower(quantized.to_exported(), target="TOSA-1.0+INT")
    for x in samples:
        np.testing.assert_array_equal(np.asarray(ours.run(x.clone())), np.asarray(theirs.run(x.clone())))


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_a_file_is_read_without_torch_as_the_program_is(kind: Any, tmp_path: Path) -> None:
    model, samples = model_and_samples(kind)
    torch.export.save(torch.export.export(model, (samples[0].clone(),)), tmp_path / "m.pt2")
    program = tosaic.from_exported(torch.export.load(tmp_path / "m.pt2"))
    assert read_pt2(tmp_path / "m.pt2").graph.text() == program.graph.text()


@pytest.mark.parametrize("recipe", ["tosa-int8", "cortex-m"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_recipe_writes_the_files(kind: Any, recipe: str, tmp_path: Path) -> None:
    model, samples = model_and_samples(kind)
    given = [(x.clone(),) for x in samples]
    result = tosaic.export_model(
        model, given[0], recipe=recipe, samples=given, folder=tmp_path / "out", verbose=0
    )
    assert result.ok
    assert any((tmp_path / "out").iterdir())
