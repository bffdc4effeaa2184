"""Operands of which no bit is left are named wherever a program is checked, lowered, compared or exported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tosaic

torch = pytest.importorskip("torch")

from biases.measuring import Warnings  # noqa: E402
from torch import nn  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402

FAR = 1e9
PLACES: dict[str, tuple[str, Callable[..., Any]]] = {
    "where": ("where", lambda y, c: torch.where(y > 0, c, y)),
    "masked_fill": ("masked_fill", lambda y, c: y.masked_fill(y > 0, FAR)),
    "sum": ("add", lambda y, c: y + c),
    "difference": ("sub", lambda y, c: c - y),
    "cat": ("cat", lambda y, c: torch.cat([y, c.expand(2, 8)])),
    "stack": ("stack", lambda y, c: torch.stack([y, c.expand(2, 8)])),
    "index_put": ("index_put", lambda y, c: torch.index_put(y, (torch.tensor([1]),), c)),
    "slice_scatter": ("slice_scatter", lambda y, c: y.slice_scatter(c.expand(1, 8), 0, 1, 2)),
    "scatter": ("scatter", lambda y, c: y.scatter(0, torch.zeros(1, 8, dtype=torch.int64), c.expand(1, 8))),
    "pad": ("pad", lambda y, c: nn.functional.pad(y, (0, 1), value=FAR)),
    "maximum": ("maximum", lambda y, c: torch.maximum(y, torch.cat([c.expand(1, 8), -c.expand(1, 8)]))),
}

FLOATS = ("masked_fill", "pad")  # with a constant, they stay floats or are refused


class Net(nn.Module):
    def __init__(self, place: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.second, self.place = nn.Linear(8, 8), nn.Linear(8, 8), place

    def forward(self, x: Any, c: Any) -> Any:
        z = self.place(self.linear(x), c)
        return z, z * 2


def inputs(far: float = FAR) -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(2, 8), torch.tensor(far)


def quantized(net: nn.Module, args: Any) -> Any:
    return tosaic.quantize(torch.export.export(net.eval(), args), [args], progress=False)


def by_torchao(net: nn.Module, args: Any, quantizer: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(torch.export.export(net.eval(), args).module(), quantizer)
        prepared(*args)
        return torch.export.export(convert_pt2e(prepared), args)


def named(notes: Any, node: str) -> list[str]:
    """The notes on a node, or on the layer that computes its operand in the same unit."""
    starts = (f"'{node}' (", "'linear' (module 'linear', ")
    lost = (
        "makes one integer of all 256 integers of operand 'linear",
        "has results that all become one integer",
    )
    return [
        str(note)
        for note in notes
        if any(each in str(note) for each in starts) and any(each in str(note) for each in lost)
    ]


def test_a_check_of_a_quantized_program_runs_the_passes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the check would lower the program again to find operands that collapse in their rescales."""
    calls: list[str] = []
    for name in ("lower", "problems", "try_to_lower"):
        run = getattr(tosaic._core, name)
        monkeypatch.setattr(
            tosaic._core,
            name,
            lambda *args, name=name, run=run, **options: (calls.append(name), run(*args, **options))[1],
        )
    program = quantized(Net(PLACES["cat"][1]), inputs())
    calls.clear()
    assert tosaic.check(program, target="TOSA-1.0+INT").notes
    assert calls == ["try_to_lower"]


@pytest.mark.parametrize("name", PLACES)
def test_an_operand_without_any_bit_is_named(name: str) -> None:
    node, place = PLACES[name]
    if name in FLOATS:
        found = tosaic.check(quantized(Net(place), inputs()), target="TOSA-1.0+INT")
        assert "leaves 0 of the 255 steps of operand 'linear" in str(found.problems[0])
        assert "test_collapsed_operands.py:" in str(found.problems[0])
        return
    notes = tosaic.check(quantized(Net(place), inputs()), target="TOSA-1.0+INT+FP").notes
    (note,) = named(notes, node)
    assert "test_collapsed_operands.py:" in note
    assert "ten times" in note


@pytest.mark.parametrize("make", [tosaic.Quantizer, lambda: tosaic.Quantizer(compatible_with="arm")])
def test_an_operand_without_any_bit_is_named_after_torchao(make: Callable[[], Any]) -> None:
    program = by_torchao(Net(PLACES["where"][1]), inputs(), make())
    for target in ("TOSA-1.0+INT", "TOSA-1.0+INT+FP"):
        assert named(tosaic.check(program, target=target).notes, "where")


def test_an_operand_without_any_bit_is_named_everywhere(tmp_path: Path) -> None:
    args = inputs()
    program = quantized(Net(PLACES["cat"][1]), args)
    with Warnings() as logged:
        lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP")
    assert len(named(logged.texts, "cat")) == 1
    compared = tosaic.compare(program, lowered, [args])
    assert len(named(compared.notes, "cat")) == 1
    assert named([compared], "cat")
    exported = torch.export.export(Net(PLACES["where"][1]).eval(), args)
    result = tosaic.export_model(
        exported,
        recipe="tosa-int8",
        claimants=["TOSA-1.0+INT", "TOSA-1.0+FP"],
        samples=[args],
        folder=tmp_path,
        verbose=0,
    )
    assert len(named(result.notes, "where")) == 1


@pytest.mark.parametrize("name", PLACES)
def test_nothing_is_named_if_all_operands_have_bits(name: str) -> None:
    ordinary = {
        "masked_fill": lambda y, c: y.masked_fill(y > 0, 3.0),
        "pad": lambda y, c: nn.functional.pad(y, (0, 1)),
    }
    args = inputs(3.0)
    program = quantized(Net(ordinary.get(name, PLACES[name][1])), args)
    assert tosaic.check(program, target="TOSA-1.0+INT+FP").notes == ()
    with Warnings() as logged:
        tosaic.lower(program, target="TOSA-1.0+INT")
    assert logged.texts == []


@pytest.mark.parametrize("config", [tosaic.QConfig.int8(), tosaic.QConfig.int16x8()])
def test_sums_of_products_are_not_said_to_collapse(config: Any) -> None:
    """Sums of 48 bits are rescaled by small factors."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    args = (inputs()[0],)
    exported = torch.export.export(net.eval(), args)
    program = tosaic.quantize(exported, [args], config=config, progress=False)
    with Warnings() as warned:
        tosaic.lower(program, target="TOSA-1.0+INT+int16")
    assert warned.texts == []
    assert tosaic.check(program, target="TOSA-1.0+INT+int16").notes == ()
