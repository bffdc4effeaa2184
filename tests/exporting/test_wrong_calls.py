"""Wrong calls of `export_model`: each has an error of its own, and nothing is written."""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic import Recipe
from tosaic.annotation import Outputs, q_format
from tosaic.recipes import Stage

from exporting.networks import TwoInputs, Warp, images, seeded

IMAGE = next(images())[0]


class Classes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).argmax(1)


class Depth(nn.Module):
    """Drops whole pictures in training, as torchvision's StochasticDepth does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.empty(x.shape[0], 1, 1, 1).bernoulli_(0.5).div_(0.5) if self.training else x


def fails(value: Any, context: Any) -> None:
    raise KeyError("no such thing")


def returns_text(value: Any, context: Any) -> str:
    return "text"


TOO_FEW = {"input_specs": [q_format("Q0.7")]}
CASES: dict[str, tuple[type[Exception], str, Callable[[], tuple[Any, Any]], dict[str, Any]]] = {
    "too few specs": (
        tosaic.InvalidGraph,
        "too few specs in 'input_specs': expected 2, one for each input (image, gain), got 1",
        lambda: (seeded(TwoInputs), (IMAGE, torch.ones(1))),
        TOO_FEW,
    ),
    "specs of floats": (
        tosaic.InvalidGraph,
        "'input_specs' has specs, and nothing is quantized",
        lambda: (seeded(Warp), (IMAGE,)),
        {**TOO_FEW, "quantize": False},
    ),
    "unknown name in io": (
        tosaic.InvalidGraph,
        "'io' names no input of the model: expected one of 'image', or an index below 1, got 'imgae'. "
        "Did you mean 'image'",
        lambda: (seeded(Warp), (IMAGE,)),
        {"io": {"inputs": {"imgae": "int8"}}},
    ),
    "unknown index in orders": (
        tosaic.InvalidGraph,
        "'orders' names no output of the model",
        lambda: (seeded(Warp), (IMAGE,)),
        {"orders": {"outputs": {1: "nhwc"}}},
    ),
    "unknown name in rgba": (
        tosaic.InvalidGraph,
        "'rgba' names no input of the model",
        lambda: (seeded(Warp), (IMAGE,)),
        {"rgba": {"inputs": ["picture"]}},
    ),
    "no input": (
        tosaic.InvalidGraph,
        "there are no example inputs: expected inputs=(x,)",
        lambda: (seeded(Warp), None),
        {},
    ),
    "empty samples": (
        tosaic.InvalidGraph,
        "there is nothing to run on",
        lambda: (seeded(Warp), (IMAGE,)),
        {"samples": []},
    ),
    "sample of a wrong dtype": (
        tosaic.LayoutMismatch,
        "sample 0: input 'image' has the wrong dtype: expected f32, got f64",
        lambda: (seeded(Warp), (IMAGE,)),
        {"samples": [(IMAGE.double(),)]},
    ),
    "sample of a wrong shape": (
        tosaic.LayoutMismatch,
        "[1,3,24,32]",
        lambda: (seeded(Warp), (IMAGE,)),
        {"samples": [(IMAGE[:, :2],)]},
    ),
    "an output that cannot be int8": (
        tosaic.QuantMismatch,
        "'out'",
        lambda: (Classes(), (IMAGE,)),
        {"io": {"outputs": {0: "int8"}}, "recipe": "tosa-int8"},
    ),
    "unknown recipe": (
        tosaic.InvalidGraph,
        "there is no recipe of this name: expected tosa-int8",
        lambda: (seeded(Warp), (IMAGE,)),
        {"recipe": "vgf-snrom"},
    ),
    "recipes that contradict each other": (
        tosaic.InvalidGraph,
        "in recipe 'tosa-int8' and",
        lambda: (seeded(Warp), (IMAGE,)),
        {"recipe": ["tosa-int8", "tosa-int16x8"]},
    ),
    "integers of floats": (
        tosaic.InvalidGraph,
        "'io' asks for integers, and nothing is quantized",
        lambda: (seeded(Warp), (IMAGE,)),
        {"quantize": False, "io": {"inputs": "int8"}},
    ),
    "no claimant takes floats": (
        tosaic.InvalidGraph,
        "no claimant takes floats",
        lambda: (seeded(Warp), (IMAGE,)),
        {"quantize": False, "recipe": "tosa-int8"},
    ),
    "a module in training mode": (
        tosaic.InvalidGraph,
        "the model is in training mode: expected a module in evaluation mode. Call model.eval()",
        lambda: (nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).train(), (IMAGE,)),
        {},
    ),
    "a function in training mode": (
        tosaic.InvalidGraph,
        "expected a module in evaluation mode, got 'rrelu' in training mode. Call model.eval()",
        lambda: (nn.Sequential(nn.Conv2d(3, 4, 1), nn.RReLU()).train(), (IMAGE,)),
        {},
    ),
    "a layer with dropout in training mode": (
        tosaic.InvalidGraph,
        "expected a module in evaluation mode, got 'lstm' in training mode. Call model.eval()",
        lambda: (nn.LSTM(16, 4, num_layers=2, dropout=0.1).train(), (torch.ones(2, 1, 16),)),
        {},
    ),
    "a stochastic depth in training mode": (
        tosaic.InvalidGraph,
        "expected a module in evaluation mode, got 'mul' in training mode. Call model.eval()",
        lambda: (Depth().train(), (IMAGE,)),
        {},
    ),
    "no module": (
        tosaic.InvalidGraph,
        "a torch.nn.Module",
        lambda: (42, (IMAGE,)),
        {},
    ),
    "a stage that fails": (
        tosaic.InvalidGraph,
        "stage 'mine' at 'exported' raised an error: got KeyError: 'no such thing'",
        lambda: (seeded(Warp), (IMAGE,)),
        {"recipe": Recipe(name="r", claimants=["TOSA-1.0+FP"], stages=[Stage("mine", "exported", fails)])},
    ),
    "a stage that returns something else": (
        tosaic.InvalidGraph,
        "stage 'mine' at 'quantized' returned something else: expected a Program",
        lambda: (seeded(Warp), (IMAGE,)),
        {
            "recipe": tosaic.recipes.named("tosa-int8").replace(
                stages=[Stage("mine", "quantized", returns_text)]
            )
        },
    ),
    "a rule that matches nothing": (
        tosaic.InvalidGraph,
        "3",
        lambda: (seeded(Warp), (IMAGE,)),
        {"recipe": tosaic.recipes.named("tosa-int8").replace(rules=[Outputs({3: q_format("Q0.7")})])},
    ),
    "no claimants": (
        tosaic.InvalidGraph,
        "has no claimants",
        lambda: (seeded(Warp), (IMAGE,)),
        {"recipe": Recipe(name="none")},
    ),
    "too low an accuracy": (
        tosaic.CheckError,
        "a numerical check failed: got accuracy",
        lambda: (seeded(Warp), (IMAGE,)),
        {"least_db": 99.0},
    ),
}


@pytest.mark.filterwarnings("ignore:The tensor attribute")
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_call_has_its_own_error_and_writes_nothing(name: str, tmp_path: Path) -> None:
    kind, text, make, options = CASES[name]
    model, inputs = make()
    folder = tmp_path / "new" / "out"
    options = {"recipe": "vgf-snorm", "samples": None, **options}
    with pytest.raises(kind) as caught:
        tosaic.export_model(model, inputs, folder=folder, verbose=0, **options)
    assert text in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_messages_of_wrong_calls_differ() -> None:
    texts = [text for _, text, _, _ in CASES.values()]
    assert len(set(texts)) == len(texts)


def test_a_folder_with_files_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    def never(*_: Any) -> None:
        raise AssertionError

    recipe = tosaic.recipes.named("vgf-snorm").replace(stages=[Stage("never", "model", never)])
    with pytest.raises(tosaic.WriteError, match="is not empty: expected a folder that does not exist"):
        tosaic.export_model(seeded(Warp), (IMAGE,), recipe=recipe, folder=tmp_path, verbose=0)
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((torch.ones(1, 3, 8, 8),), "missing 1 required positional argument: 'right'"),
        ({"left": torch.ones(1, 3, 8, 8), "rigth": torch.ones(1, 3, 8, 8)}, "keyword argument 'rigth'"),
        ((torch.ones(1, 3, 8, 8).double(),) * 2, "double"),
        ((torch.ones(1, 1, 8, 8),) * 2, "channels"),
    ],
)
def test_example_inputs_that_the_model_does_not_take(inputs: Any, text: str) -> None:
    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.conv(left - right)

    with pytest.raises(tosaic.InvalidGraph, match="cannot be called with the example inputs") as caught:
        tosaic.export_model(Difference().eval(), inputs, recipe="tosa-int8", verbose=0)
    assert text in str(caught.value)


def test_a_bound_without_samples_is_refused() -> None:
    with pytest.raises(tosaic.InvalidGraph, match="'check_samples': expected 1 or more, for 'least_db'"):
        tosaic.export_model(
            seeded(Warp), (IMAGE,), recipe="vgf-snorm", check_samples=0, least_db=200, verbose=0
        )


@pytest.mark.parametrize("flags", ["--optimise=Size", [1], 3])
def test_flags_are_sequences_of_strings(flags: Any) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=r"flags\['vgf'\].*a sequence of strings"):
        Recipe(name="r", claimants=["vgf"], flags={"vgf": flags})


def test_a_stage_that_changes_the_model_in_place_leaves_the_callers_model() -> None:
    def zero(model: Any, _: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    before = [parameter.clone() for parameter in model.parameters()]
    recipe = Recipe(name="r", claimants=["TOSA-1.0+FP"], stages=[Stage("zero", "model", zero)])
    sample = (torch.ones(1, 3, 8, 8),)
    result = tosaic.export_model(model, sample, recipe=recipe, samples=[sample], verbose=0)
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
    (check,) = [each for each in result.checks if each.name == "model"]
    assert check.db < 1


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(tosaic.WriteError, match="a file in its place"):
        tosaic.export_model(seeded(Warp), (IMAGE,), recipe="vgf-snorm", folder=tmp_path / "out", verbose=0)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_full_disk_leaves_nothing_of_the_folder(tmp_path: Path) -> None:
    script = f"""
import resource, signal
import numpy as np
import tosaic
from tosaic.program import Graph
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
text = '''{SMALL}'''
program = tosaic.program.from_graph(Graph.parse(text))
result = tosaic.export_model(
    program, recipe=tosaic.Recipe(name="r", claimants=["TOSA-1.0+FP"]), verbose=0,
    samples=[(np.ones((1, 4096), np.float32),)],
)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
try:
    result.save({str(tmp_path / "out")!r})
except tosaic.WriteError as error:
    print("refused:", error)
"""
    # -B writes no bytecode. CPython 3.11 would keep a .pyc file that the limit truncates, and each later
    # import of that module would fail.
    run = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("refused: [write] '")
    assert "could not be written" in run.stdout
    assert list(tmp_path.iterdir()) == []


SMALL = """tosaic 1
graph @forward stage=exported {
  input %x: f32[1,4096] path="x"
  %y: f32[1,4096] = relu(%x)
  return %y path="out"
}
"""


ODD: list[Any] = [
    *(None, True, 3, -1, 2.5, float("nan"), "", "no such name", b"bytes", 1j, "a\0b"),
    *(
        [],
        [1],
        (),
        {},
        {"a": 1},
        {"inputs": 3},
        {1: 2},
        range(3),
        object(),
        print,
        np.zeros(2),
        torch.ones(2),
    ),
]
OPTIONS = [name for name in inspect.signature(tosaic.export_model).parameters if name != "folder"]


@pytest.mark.parametrize("option", OPTIONS)
def test_values_of_any_type_are_accepted_or_refused_by_our_errors(option: str) -> None:
    program = tosaic.program.from_graph(tosaic.program.Graph.parse(SMALL))
    plain = {
        "model": program,
        "recipe": Recipe(name="r", claimants=["TOSA-1.0+FP"]),
        "samples": [(np.ones((1, 4096), np.float32),)],
        "verbose": 0,
    }
    for value in ODD:
        with contextlib.suppress(tosaic.Error):
            tosaic.export_model(**{**plain, option: value})


def test_a_stage_may_add_files_in_the_folder_only(tmp_path: Path) -> None:
    def adds(_: Any, context: Any) -> None:
        context.add_file("notes/mine.txt", "mine")
        for name in ("../out.txt", "/out.txt", ""):
            with pytest.raises(tosaic.InvalidGraph):
                context.add_file(name, "text")
        with pytest.raises(tosaic.InvalidGraph, match="already"):
            context.add_file("notes/mine.txt", "again")

    recipe = tosaic.recipes.named("tosa-int8").replace(stages=[Stage("adds", "lowered", adds)])
    result = tosaic.export_model(seeded(Warp), (IMAGE,), recipe=recipe, folder=tmp_path / "out", verbose=0)
    assert (tmp_path / "out" / "notes" / "mine.txt").read_text() == "mine"
    assert tmp_path / "out" / "notes" / "mine.txt" in result.files
    assert np.isfinite(result.accuracy_db)
