"""Recurrent layers (one call for all layers), and control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from operators.checking import Row
from operators.draw import shape, tensor
from operators.values import T

Draw = Callable[[Any], Any]
ROWS: dict[str, Row] = {}
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
FLOAT = ("f32", "f32", "f32", "f64", "bf16", "f16")


@st.composite
def recurrent(draw: Draw, name: str, *, packed: bool) -> Any:
    """Draws one or two recurrent layers and directions, with or without biases and batch_first.

    With `packed`, the input is a packed sequence in which all sequences have the same length.
    """
    dtype = draw(st.sampled_from(("f32",) if packed else FLOAT))
    steps, batch, width, hidden = (draw(st.integers(1, 4)) for _ in range(4))
    layers, directions = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    biases, batch_first = draw(st.booleans()), draw(st.booleans()) and not packed
    seed = draw(st.integers(0, 3))

    def of(*sides: int, const: bool = False) -> T:
        return T(sides, dtype, "unit", seed, const=const)

    states = of(layers * directions, batch, hidden)
    gates = GATES[name] * hidden
    parameters = []
    for layer in range(layers):
        for _ in range(directions):
            inputs = width if layer == 0 else hidden * directions
            parameters += [of(gates, inputs, const=True), of(gates, hidden, const=True)]
            parameters += [of(gates, const=True)] * (2 if biases else 0)
    start: Any = [states, states] if name == "lstm" else states
    rest = (start, parameters, biases, layers, 0.0, False, directions == 2)
    if packed:
        return (of(steps * batch, width), T((steps,), "i64", [batch], const=True), *rest), {}
    x = of(batch, steps, width) if batch_first else of(steps, batch, width)
    return (x, *rest, batch_first), {}


for _name in GATES:
    ROWS[f"{_name}.input"] = Row(recurrent(_name, packed=False), scale="conditioned")
    ROWS[f"{_name}.data"] = Row(recurrent(_name, packed=True), scale="conditioned")


def _branch(predicate: torch.Tensor, x: torch.Tensor) -> Any:
    def double(v: torch.Tensor) -> torch.Tensor:
        return v + v

    def negate(v: torch.Tensor) -> torch.Tensor:
        return -v

    return torch.cond(predicate, double, negate, (x,))


def _loop(x: torch.Tensor, count: torch.Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    def goes_on(i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return i > 0

    def body(i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return i - 1, v * 0.5

    return while_loop(goes_on, body, (count, x))[1]


@st.composite
def branch(draw: Draw) -> Any:
    x = draw(tensor(shape(empty=False), ("f32", "f16")))
    return (T((), "bool", [draw(st.booleans())]), x), {}


@st.composite
def loop(draw: Draw) -> Any:
    x = draw(tensor(shape(empty=False), ("f32", "f16")))
    return (x, T((), "i32", [draw(st.integers(0, 4))])), {}


ROWS["higher_order::cond"] = Row(branch(), call=_branch, extensions="+cf")
ROWS["higher_order::while_loop"] = Row(loop(), call=_loop, extensions="+cf")
