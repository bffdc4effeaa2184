"""Recurrent layers and cells: one node, equal to torch at every stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from function_module import FunctionModule
from fx.exporting import exported, imported, ops
from torch import nn

pytestmark = [
    pytest.mark.usefixtures("one_thread_without_traces"),
    # Recurrent layers of torch have a list of their weights, about which export warns.
    pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning"),
]

LAYERS: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm of 2 layers, both ways, batch first": lambda: nn.LSTM(
        3, 4, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5
    ),
    "lstm without bias": lambda: nn.LSTM(3, 4, bias=False),
    "lstm with projection": lambda: nn.LSTM(3, 5, num_layers=2, proj_size=2, bidirectional=True),
    "lstm with projection, no bias": lambda: nn.LSTM(3, 5, proj_size=2, bias=False),
    "gru": lambda: nn.GRU(3, 4),
    "gru of 2 layers, both ways": lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True),
    "gru without bias, batch first": lambda: nn.GRU(3, 4, bias=False, batch_first=True),
    "rnn": lambda: nn.RNN(3, 4),
    "rnn with relu, both ways": lambda: nn.RNN(3, 4, nonlinearity="relu", bidirectional=True),
}
CELLS: dict[str, Any] = {
    "lstm": lambda: nn.LSTMCell(3, 4),
    "lstm without bias": lambda: nn.LSTMCell(3, 4, bias=False),
    "gru": lambda: nn.GRUCell(3, 4),
    "rnn": lambda: nn.RNNCell(3, 4),
    "rnn with relu": lambda: nn.RNNCell(3, 4, nonlinearity="relu"),
}


def flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def agree(got: Any, wanted: Any, tolerance: float = 2e-6) -> None:
    for g, w in zip(flat(got), flat(wanted), strict=True):
        assert np.asarray(g).shape == tuple(w.shape)
        np.testing.assert_allclose(
            np.asarray(g).astype(np.float64), w.detach().double().numpy(), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("unbatched", [False, True])
def test_a_layer_is_one_node_and_agrees_with_torch(name: str, unbatched: bool) -> None:
    torch.manual_seed(3)
    module = LAYERS[name]().eval()
    x = torch.randn(6, 3) if unbatched else torch.randn(6, 2, 3)
    program = tosaic.from_exported(exported(module, x))
    assert [node.op for node in program.graph.nodes].count("recurrent") == 1
    with torch.no_grad():
        agree(program.run(x), module(x))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("target", ["TOSA-1.0+FP", "TOSA-1.0+INT+FP"])
def test_a_layer_lowers_and_agrees_with_torch(name: str, target: str) -> None:
    torch.manual_seed(4)
    module = LAYERS[name]().eval()
    x = torch.randn(5, 2, 3)
    lowered = tosaic.lower(exported(module, x), target=target)
    with torch.no_grad():
        agree(lowered.run(x), module(x))


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_agrees_with_torch_at_every_stage(name: str) -> None:
    torch.manual_seed(5)
    cell = CELLS[name]().eval()
    x, h = torch.randn(2, 3), torch.randn(2, 4)
    states = (h, torch.randn(2, 4)) if name.startswith("lstm") else h
    program = exported(cell, x, states)
    with torch.no_grad():
        wanted = cell(x, states)
    given = [x, states]
    agree(tosaic.from_exported(program).run(*given), wanted)
    agree(tosaic.lower(program, target="TOSA-1.0+FP").run(*given), wanted)


def test_a_layer_starts_from_the_given_states() -> None:
    torch.manual_seed(6)
    module = nn.LSTM(3, 4, num_layers=2, bidirectional=True).eval()
    x, h, c = torch.randn(3, 2, 3), torch.randn(4, 2, 4), torch.randn(4, 2, 4)
    program = exported(FunctionModule(lambda x, h, c: module(x, (h, c))), x, h, c)
    with torch.no_grad():
        agree(tosaic.lower(program, target="TOSA-1.0+FP").run(x, h, c), module(x, (h, c)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_floats_are_computed_in_f32(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    module = nn.GRU(3, 4).eval().to(dtype)
    x = torch.randn(4, 2, 3).to(dtype)
    with torch.no_grad():
        exact = nn.GRU(3, 4).eval()
        exact.load_state_dict(module.state_dict())
        agree(tosaic.from_exported(exported(module, x)).run(x), exact(x.float()), tolerance=2e-2)


def test_nodes_of_an_expansion_have_the_layer_as_origin() -> None:
    x = torch.randn(4, 2, 3)
    lowered = tosaic.lower(exported(nn.LSTM(3, 4).eval(), x), target="TOSA-1.0+FP")
    assert "lstm" in {node.origin.fx_name for node in lowered.graph.nodes if node.origin is not None}


def test_dropout_between_layers_in_training_stays_foreign() -> None:
    module = nn.LSTM(3, 4, num_layers=2, dropout=0.5).train()
    assert "opaque" in ops(imported(module, torch.randn(4, 2, 3), eval=False))
