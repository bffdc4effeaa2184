"""Names of inputs and outputs: every function accepts the names that reports show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.cli import main


class Batched(nn.Module):
    """A dict, a list and a plain tensor; the placeholder of ``batch['x']`` is named ``batch_x`` too."""

    def forward(self, batch: dict[str, Any], batch_x: torch.Tensor, *, more: Any) -> dict[str, Any]:
        a, b = batch["x"], batch["deep"][0]
        return {"sum": a + 2 * b + 4 * batch_x, "parts": (a * more["scale"], b)}


SIZE = (3, 4, 5, 6)
PATHS = ["batch['x']", "batch['deep'][0]", "batch_x", "more['scale']"]
NAMES = ["batch_x", "batch_deep_0", "batch_x_1", "more_scale"]


@pytest.fixture(scope="module")
def exported() -> Any:
    def image() -> torch.Tensor:
        return torch.ones(SIZE)

    size = torch.export.Dim("size", min=2, max=9)
    shapes = ({"x": {0: size}, "deep": [{0: size}]}, {0: size}, {"scale": {0: size}})
    return torch.export.export(
        Batched(),
        ({"x": image(), "deep": [image()]}, image()),
        {"more": {"scale": image()}},
        dynamic_shapes={"batch": shapes[0], "batch_x": shapes[1], "more": shapes[2]},
        strict=False,
    )


@pytest.fixture(scope="module")
def lowered(exported: Any) -> tosaic.Lowered:
    return tosaic.lower(exported, bind={0: {0: 3}})


@pytest.fixture(scope="module")
def arrays() -> list[np.ndarray]:
    return [np.random.default_rng(i).standard_normal(SIZE).astype(np.float32) for i in range(4)]


def nested(arrays: list[np.ndarray]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x, deep, own, scale = arrays
    return ({"x": x, "deep": [deep]}, own), {"more": {"scale": scale}}


def test_ports_show_the_path_that_a_caller_would_write(lowered: tosaic.Lowered) -> None:
    assert [port.path for port in lowered.inputs] == PATHS
    assert [port.name for port in lowered.inputs] == NAMES
    shown = str(lowered.io)
    for path in PATHS:
        assert path in shown
    assert repr(lowered).count("batch['deep'][0]: f32[3,4,5,6]") == 1


@pytest.mark.parametrize("key", [*PATHS, *NAMES[1:], 0, 1, 2, 3])
def test_bind_and_orders_accept_every_name(exported: Any, key: str | int) -> None:
    program = tosaic.from_exported(exported, bind={key: {0: 3}})
    at = key if isinstance(key, int) else PATHS.index(key) if key in PATHS else NAMES.index(key)
    assert program.inputs[at].shape == SIZE
    low = tosaic.lower(program, orders={"inputs": {key: "nhwc"}})
    assert [port.shape == (3, 5, 6, 4) for port in low.inputs] == [i == at for i in range(4)]


def test_orders_of_outputs_accept_every_name(lowered: tosaic.Lowered) -> None:
    for at, port in enumerate(lowered.source.outputs):
        for key in (port.path, port.name, at):
            low = tosaic.lower(lowered.source, orders={"outputs": {key: "nhwc"}})
            assert low.outputs[at].shape == (3, 5, 6, 4), key


@pytest.mark.parametrize("names", [PATHS, ["batch['x']", *NAMES[1:]]])
def test_calls_and_samples_accept_every_name(lowered: tosaic.Lowered, arrays, tmp_path: Path, names) -> None:
    args, kwargs = nested(arrays)
    expected = lowered.run(*args, **kwargs)["sum"]
    by_name = dict(zip(names, arrays, strict=True))
    np.testing.assert_array_equal(lowered.run(**by_name)["sum"], expected)
    np.testing.assert_array_equal(lowered.source.run(**by_name)["sum"], expected)
    np.savez(tmp_path / "x.npz", **by_name)
    for samples in (by_name, tmp_path / "x.npz", str(tmp_path / "x.npz"), [by_name]):
        comparison = tosaic.compare(lowered.source, lowered, samples)
        assert comparison.ok
        assert [row.path for row in comparison.outputs] == [port.path for port in lowered.outputs]


def test_a_path_outranks_the_name_of_another_value(lowered: tosaic.Lowered) -> None:
    """`batch_x` is the path of one input, and the name of another one's value, that of ``batch['x']``."""
    low = tosaic.lower(lowered.source, orders={"inputs": {"batch_x": "nhwc"}})
    assert [port.path for port in low.inputs if port.shape != SIZE] == ["batch_x"]


def test_a_call_by_names_that_omits_an_input_is_refused(lowered, arrays) -> None:
    with pytest.raises(tosaic.InvalidGraph, match="the arguments are not those of the exported call"):
        lowered.run(**dict(zip(PATHS[:3], arrays, strict=False)))


def test_refusals_show_the_accepted_names(exported: Any, lowered: tosaic.Lowered, arrays) -> None:
    with pytest.raises(tosaic.InvalidGraph) as bind:
        tosaic.from_exported(exported, bind={"nothing": {0: 3}})
    with pytest.raises(tosaic.InvalidGraph) as orders:
        tosaic.lower(lowered.source, orders={"inputs": {"nothing": "nhwc"}})
    with pytest.raises(tosaic.InvalidGraph) as samples:
        tosaic.compare(lowered.source, lowered, {"nothing": arrays[0]})
    for error in (bind, orders, samples):
        for path in PATHS:
            assert path in str(error.value)
    with pytest.raises(
        tosaic.LayoutMismatch, match=re.escape("input 'batch['deep'][0]' has the wrong shape")
    ):
        lowered.run(**dict(zip(PATHS, [arrays[0], arrays[1][:2], *arrays[2:]], strict=True)))


def test_the_command_accepts_the_names_that_inspect_shows(
    exported: Any, arrays, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.export.save(exported, "model.pt2")
    bind = ("--bind", "batch['x']:0=3")
    assert main(["inspect", "model.pt2", *bind]) == 0
    shown = capsys.readouterr().out
    names = [line.split()[1] for line in shown.splitlines() if line.strip().startswith("input")]
    assert names == PATHS
    np.savez("x.npz", **dict(zip(names, arrays, strict=True)))
    assert main(["run", "model.pt2", "--input", "x.npz", "-o", "y.npz", *bind]) == 0
    orders = [word for name in names for word in ("--orders", f"inputs.{name}=nhwc")]
    assert main(["lower", "model.pt2", *bind, *orders, "--json"]) == 0
    assert np.load("y.npz").files == ["out['sum']", "out['parts'][0]", "out['parts'][1]"]


class Optional(nn.Module):
    def forward(self, x: Any, scale: Any = None, *, flag: bool = True, y: Any = None) -> Any:
        x = x * 2 if scale is None else x * scale
        return x - y if flag else x + y


@pytest.mark.parametrize("scale", [None, 3, 0.5])
def test_a_call_by_inputs_may_omit_arguments_that_were_constant_at_export(scale: Any) -> None:
    x, y = torch.ones(3), torch.full((3,), 5.0)
    program = tosaic.from_exported(torch.export.export(Optional(), (x, scale), {"flag": False, "y": y}))
    expected = Optional()(x, scale, flag=False, y=y).numpy()
    for runnable in (program, tosaic.lower(program)):
        np.testing.assert_array_equal(runnable.run(x=x, y=y), expected)
        np.testing.assert_array_equal(runnable.run(y=y, x=x), expected)
        np.testing.assert_array_equal(runnable.run(x=x, scale=scale, flag=False, y=y), expected)
        np.testing.assert_array_equal(runnable.run(x, scale, flag=False, y=y), expected)
        assert tosaic.compare(program, runnable, {"x": x, "y": y}).ok
    with pytest.raises(
        tosaic.InvalidGraph, match="'flag' was specialised by export: expected False, got True"
    ):
        program.run(x=x, scale=scale, flag=True, y=y)
    with pytest.raises(tosaic.InvalidGraph, match="the arguments are not those of the exported call"):
        program.run(x=x)
    with pytest.raises(tosaic.InvalidGraph, match="the arguments are not those of the exported call"):
        program.run(x=x, flag=False, y=y)


def test_a_wrong_number_of_arrays_is_refused() -> None:
    class Two(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a - b

    program = tosaic.from_exported(torch.export.export(Two(), (torch.ones(3), torch.ones(3))))
    a = np.ones(3, np.float32)
    for runnable in (program, tosaic.lower(program)):
        for call in (runnable.run_arrays, runnable.graph_arrays):
            assert len(call((a, a))) == (1 if call == runnable.run_arrays else 2)
            for given, got in (
                ([], "0"),
                ([a], "1"),
                ([a, a, a], "3"),
                ({"a": a, "b": a}, "a dict"),
                (7, "a int"),
            ):
                with pytest.raises(tosaic.InvalidGraph) as error:
                    call(given)
                text = "[inputs] the program has another number of inputs: expected a list of 2 arrays"
                assert str(error.value) == f"{text} ('a', 'b'), got {got}"


@pytest.mark.parametrize("samples", [b"x.npz", bytearray(b"x.npz"), 3, None, [], set()], ids=repr)
def test_a_value_that_is_not_a_sample_is_refused(lowered: tosaic.Lowered, samples: Any) -> None:
    with pytest.raises(
        tosaic.InvalidGraph, match=r"^\[samples\] there is nothing to run on: expected a tuple"
    ):
        tosaic.compare(lowered, lowered, samples)
