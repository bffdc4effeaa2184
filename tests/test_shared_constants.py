"""Equal constants are stored once: in memory while a program is lowered, in files and in archives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from models.zoo import quiet
from torch import nn
from tosaic import _core
from tosaic.lowering.pipeline import Pipeline

INT8 = "TOSA-1.0+INT"


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.lstm(x)[0]


@pytest.fixture(scope="module")
def lstm() -> Any:
    """A quantized LSTM of 12 steps, each of which looks functions up in tables of 4097 entries."""
    torch.manual_seed(0)
    sample = torch.randn(1, 12, 4)
    with quiet():
        program = torch.export.export(Lstm().eval(), (sample,))
    return tosaic.quantize(program, [(sample,)], progress=False)


def sizes(graph: _core.Graph) -> tuple[int, int]:
    """The bytes of constants of a graph in memory, and of those that differ."""
    constants = [value.constant for value in graph.values if value.constant is not None]
    memory = {constant.data_ptr: constant.array.nbytes for constant in constants}
    different = {constant.array.tobytes() for constant in constants}
    return sum(memory.values()), sum(map(len, different))


def test_every_graph_of_a_lowering_shares_the_memory_of_equal_constants(lstm: Any) -> None:
    found: dict[str, tuple[int, int]] = {}
    _core.lower(
        lstm.graph,
        pipeline=Pipeline.default(INT8).core,
        on_change=lambda name, graph: found.update({name: sizes(graph)}),
    )
    assert {"lower-to-integer", "fold-constants"} <= set(found)
    for name, (memory, different) in found.items():
        assert memory <= 1.01 * different, name


def test_a_file_has_equal_constants_once(lstm: Any, tmp_path: Path) -> None:
    tosaic.lower(lstm, target=INT8).save(tmp_path / "lstm.tosa")
    graph = tosaic.load_tosa(tmp_path / "lstm.tosa").graph
    arrays = [(each.dtype, each.shape, each.array.tobytes()) for each in graph.constants.values()]
    assert len(set(arrays)) == len(arrays)


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.b.load_state_dict(self.a.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu())


def test_an_archive_has_equal_weights_once(tmp_path: Path) -> None:
    x = torch.randn(1, 64)
    program = tosaic.from_exported(torch.export.export(Twins().eval(), (x,)))
    program.save(tmp_path / "twins.tosaic")
    one = 4 * (64 * 64 + 64)
    assert one < (tmp_path / "twins.tosaic").stat().st_size < 1.5 * one
    loaded = tosaic.load(tmp_path / "twins.tosaic")
    assert np.array_equal(np.asarray(loaded.run(x)), np.asarray(program.run(x)))
    program.save(tmp_path / "again.tosaic")
    assert (tmp_path / "again.tosaic").read_bytes() == (tmp_path / "twins.tosaic").read_bytes()


def test_a_pte_file_has_equal_weights_once(tmp_path: Path) -> None:
    program = tosaic.from_exported(torch.export.export(Twins().eval(), (torch.randn(1, 64),)))
    tosaic.save_pte(program, tmp_path / "twins.pte")
    assert (tmp_path / "twins.pte").stat().st_size < 1.5 * 4 * (64 * 64 + 64)
