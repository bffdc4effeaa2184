"""A sample of torch.nn's layers and functions agrees with torch at every stage; the table has all of them.

tests/full/nn_layers.py tests all layers and functions.
"""

from __future__ import annotations

import pytest
import torch
from layers.measuring import classes, functions, measure
from layers.table import FUNCTIONS, MODULES, NO_LAYERS, OUT_OF_REACH, Layer
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread_without_traces")


@pytest.mark.parametrize("name", [name for name in classes() if name not in OUT_OF_REACH][::6])
def test_a_layer_agrees_with_torch_at_every_stage(name: str) -> None:
    measured = measure(name, functional=False)
    assert (measured.reached, measured.reason) == ("agreed", "")


@pytest.mark.parametrize("name", [name for name in functions() if name not in OUT_OF_REACH][::6])
def test_a_function_agrees_with_torch_at_every_stage(name: str) -> None:
    measured = measure(name, functional=True)
    assert (measured.reached, measured.reason) == ("agreed", "")


@pytest.mark.parametrize("name", OUT_OF_REACH)
def test_a_layer_that_is_out_of_reach_is_refused_before_it_runs(name: str) -> None:
    measured = measure(name, functional=name in functions())
    assert measured.reached in ("nothing", "exported")
    assert measured.reason != ""


def test_at_least_95_percent_of_layers_and_functions_are_in_reach() -> None:
    every = {*classes(), *functions()}
    assert set(OUT_OF_REACH) <= every
    assert len(OUT_OF_REACH) <= 0.05 * len(every)


def test_the_table_has_every_layer_class_and_every_function() -> None:
    assert {layer.name for layer in MODULES} == set(classes())
    assert {layer.name for layer in FUNCTIONS} == set(functions())
    assert not set(NO_LAYERS) & {layer.name for layer in (*MODULES, *FUNCTIONS)}


def test_a_layer_with_wrong_results_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if torch.compiler.is_exporting() else x * 2.0001

    layer = next(layer for layer in MODULES if layer.name == "ReLU")
    monkeypatch.setattr("layers.measuring.MODULES", [Layer("Wrong", Wrong, layer.inputs)])
    measured = measure("Wrong", functional=False)
    assert measured.reached == "lowered"
    assert measured.reason.startswith("AssertionError: exported: output 0 is ")
