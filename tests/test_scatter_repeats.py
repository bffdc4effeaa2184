"""Writes at indices which repeat: the last value stays on the CPU in torch, and in the lowered program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tosaic
from torch import nn
from tosaic.lowering.reference_model import run_reference_model

Write = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def put(
    x: torch.Tensor, places: tuple[torch.Tensor | slice, ...], value: float | torch.Tensor
) -> torch.Tensor:
    y = x.clone()
    y[places] = value
    return y


WRITES: dict[str, Write] = {
    "scatter": lambda x, i: x.scatter(1, i, -7.0),
    "scatter on axis 0": lambda x, i: x.scatter(0, i[:, :2] % 5, 2.5),
    "scatter on a part of rank 3": lambda x, i: x.reshape(1, 5, 6).scatter(2, i[None], 9.0),
    "scatter of -inf": lambda x, i: x.scatter(1, i, float("-inf")),
    "scatter of NaN": lambda x, i: x.scatter(1, i, float("nan")),
    "scatter of a tensor of one number": lambda x, i: x.scatter(1, i, torch.full(i.shape, 2.0)),
    "scatter of integers": lambda x, i: (x * 10).to(torch.int32).scatter(1, i, 3),
    "scatter of bools": lambda x, i: (x > 0).scatter(1, i, True),
    "index_fill": lambda x, i: x.index_fill(1, i[0], 3.0),
    "index_put of rows": lambda x, i: put(x, (i[0] % 5,), 4.0),
    "index_put from the end": lambda x, i: put(x, (i[0] % 5 - 5,), 4.0),
    "index_put with i32": lambda x, i: put(x, ((i[0] % 5).int(),), 4.0),
    "index_put of elements": lambda x, i: put(x, (i[0] % 5, i[0]), 4.0),
    "index_put of one row": lambda x, i: put(x, (i[0] % 5,), x[0]),
    "index_put of one column": lambda x, i: put(x, (slice(None), i[0]), x[:, :1]),
    "index_put of a computed row": lambda x, i: put(x, (i[0] % 5,), (x[:1] * 3).expand(5, 6)),
    "index_copy of a computed row": lambda x, i: x.index_copy(0, i[0] % 5, (x[:1] * 3).expand(5, 6)),
    "index_fill of a computed number": lambda x, i: x.index_fill(1, i[0], x[0, 0] * 2),
}


class Written(nn.Module):
    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return self.write(x, index)


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 6, (3, 5), generator=generator)
    index[:, 1] = index[:, 4] = index[:, 0]
    return torch.randn(5, 6, generator=generator), index


def require_numbers_of_torch(model: nn.Module) -> tosaic.Lowered:
    """Lowers the model. Our runner and the reference model have to compute torch's numbers."""
    args = arguments()
    lowered = tosaic.lower(torch.export.export(model, args), target="TOSA-1.0+INT+FP")
    wanted = model(*args).numpy()
    np.testing.assert_array_equal(lowered.run(*args), wanted)
    reference = run_reference_model(lowered, *args)
    assert reference.status == "VALID"
    np.testing.assert_array_equal(reference.outputs, wanted)
    return lowered


@pytest.mark.parametrize("how", WRITES)
def test_one_value_at_repeated_indices_is_defined(how: str) -> None:
    lowered = require_numbers_of_torch(Written(WRITES[how]))
    assert "tosa.scatter" not in lowered.graph.text()


def test_integers_are_written_as_floats_are() -> None:
    x, index = arguments()

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return self.linear(self.linear(x).scatter(1, index, 0.0))

    torch.manual_seed(0)
    exported = torch.export.export(Quantized().eval(), (x, index))
    quantized = tosaic.quantize(exported, [(x, index)], progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    reference = run_reference_model(lowered, x, index)
    assert reference.status == "VALID"
    np.testing.assert_array_equal(reference.outputs, lowered.run(x, index))
    assert tosaic.compare(quantized, lowered, [(x, index)]).ok


@pytest.mark.parametrize("how", [how for how in WRITES if "index_" in how])
def test_a_value_is_converted_before_it_is_repeated(how: str) -> None:
    """The write and the value have ranges of their own, so that a RESCALE is between both."""
    args = arguments()
    exported = torch.export.export(Written(WRITES[how]), args)
    quantized = tosaic.quantize(exported, [args], progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT+FP")
    reference = run_reference_model(lowered, *args)
    assert reference.status == "VALID"
    np.testing.assert_array_equal(reference.outputs, lowered.run(*args))
    np.testing.assert_allclose(lowered.run(*args), quantized.run(*args), atol=1e-5)
    assert "tosa.scatter" not in lowered.graph.text()


def test_many_places_of_a_long_axis_are_refused_by_node() -> None:
    x, index = torch.zeros(1, 70_000), torch.zeros(1, 70, dtype=torch.int64)
    model = Written(lambda x, index: x.scatter(1, index, 1.0))
    exported = torch.export.export(model, (x, index))
    report = tosaic.check(exported, target="TOSA-1.0+FP")
    assert not report.ok
    assert any("one value is written at 70 places" in problem.message for problem in report.problems)
    few = index[:, :3].clone()
    lowered = tosaic.lower(torch.export.export(model, (x, few)), target="TOSA-1.0+FP")
    np.testing.assert_array_equal(lowered.run(x, few), model(x, few).numpy())


def computed(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return (torch.arange(float(np.prod(shape))).reshape(shape) + x[0, 0]).contiguous()


VALUES: dict[str, Write] = {
    "along axis 1": lambda x, i: x.scatter(1, i, computed(x, 3, 5)),
    "along axis 0": lambda x, i: x.scatter(0, i[:, :2] % 5, computed(x, 3, 2)),
    "a part of rank 3": lambda x, i: x.reshape(1, 5, 6).scatter(2, i[None], computed(x, 1, 3, 5)),
    "of rank 1": lambda x, i: x[0].scatter(0, i[0], computed(x, 5)),
    "integers": lambda x, i: (x * 10).to(torch.int32).scatter(1, i, computed(x, 3, 5).int()),
    "bools": lambda x, i: (x > 0).scatter(1, i, computed(x, 3, 5) % 2 < 1),
    "kept symbols": lambda x, i: torch.full((3, 7), -1).scatter(
        1, torch.where(i != 0, torch.cumsum((i != 0).long(), 1) - 1, 6), i
    )[:, :6],
    "a long axis": lambda x, i: x.repeat(1, 3000).scatter(1, i * 2999, computed(x, 3, 5)),
}


@pytest.mark.parametrize("how", VALUES)
def test_the_last_of_several_values_at_an_index_stays(how: str) -> None:
    """Before, the write became a SCATTER, whose result is unpredictable if an index occurs twice."""
    require_numbers_of_torch(Written(VALUES[how]))


def test_integers_are_scattered_as_floats_are() -> None:
    x, index = arguments()

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            return self.linear(y.scatter(1, index, y[:3, :5] * 2))

    torch.manual_seed(0)
    exported = torch.export.export(Quantized().eval(), (x, index))
    quantized = tosaic.quantize(exported, [(x, index)], progress=False)
    lowered = tosaic.lower(quantized, target="TOSA-1.0+INT")
    reference = run_reference_model(lowered, x, index)
    assert reference.status == "VALID"
    np.testing.assert_array_equal(reference.outputs, lowered.run(x, index))
    assert tosaic.compare(quantized, lowered, [(x, index)]).ok


DIFFERENT: dict[str, Write] = {
    "the order of a sort": lambda x, i: x.scatter(1, x.argsort(1), x * 2),
    "the largest": lambda x, i: torch.zeros_like(x).scatter(1, x.topk(2, 1)[1], x.topk(2, 1)[0]),
    "positions after a number": lambda x, i: x.scatter(
        1, (torch.arange(3) + i[0, 0] % 2).expand(5, 3), x[:, :3] * 2
    ),
}


@pytest.mark.parametrize("how", DIFFERENT)
def test_indices_that_are_known_to_differ_are_written_by_scatter(how: str) -> None:
    model, args = Written(DIFFERENT[how]), arguments()
    lowered = tosaic.lower(torch.export.export(model, args), target="TOSA-1.0+INT+FP")
    np.testing.assert_array_equal(lowered.run(*args), model(*args).numpy())
    nodes = [node for node in lowered.graph.nodes if node.op == "tosa.scatter"]
    assert any(node.origin.target.split(".")[1] == "scatter" for node in nodes if node.origin)


def notes_of(model: nn.Module, *args: torch.Tensor) -> list[str]:
    lowered = tosaic.lower(torch.export.export(model, args), target="TOSA-1.0+FP")
    np.testing.assert_array_equal(lowered.run(*args), model(*args).numpy())
    return [note.message for note in lowered.diagnostics if note.rule == "assumed-places"]


def test_a_note_names_the_scatter_whose_indices_are_too_many_to_compare() -> None:
    model = Written(lambda x, index: x.scatter(1, index, x[:, : index.shape[1]] * 2))
    x = torch.randn(1, 9000)
    index = torch.randperm(9000)[None]
    (note,) = notes_of(model, x, index[:, :100])
    assert "'scatter' writes at 100 places of an axis of 9000" in note
    assert "Scatter fewer elements in each call" in note
    assert notes_of(model, x, index[:, :60]) == []  # the way out
    of_constants = Written(lambda x, _: x.scatter(1, torch.arange(100)[None] * 3, x[:, :100] * 2))
    assert notes_of(of_constants, x, index) == []
    one_value = Written(lambda x, index: x.scatter(1, index, x[:, :1].expand(1, 100)))
    assert notes_of(one_value, x, index[:, :100]) == []
