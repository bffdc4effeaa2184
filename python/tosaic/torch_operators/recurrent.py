"""Rows of the operator table for recurrent layers and cells.

A layer becomes one node over all its steps. A cell becomes a layer with one step, between reshapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tosaic.torch_operators.arguments import OP, ids
from tosaic.torch_operators.call import Call, Emit, Rows
from tosaic.torch_operators.value import Ref

ROWS = Rows()
on = ROWS.on


def _layer(cell: str) -> Emit:
    def emit(
        c: Call,
        x: Ref,
        hx: Any,
        weights: Sequence[Ref],
        bias: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[Ref] | None:
        if train and dropout and layers > 1:
            return None
        states = list(hx) if isinstance(hx, list | tuple) else [hx, None]
        each = len(weights) // (layers * (2 if bidirectional else 1))
        attrs = {
            "cell": cell,
            "layers": layers,
            "bias": bias,
            "bidirectional": bidirectional,
            "batch_first": batch_first,
            "projection": each == (5 if bias else 3),
        }
        return c.emit_all(OP["recurrent"], attrs, ids(x, *states, *weights))

    return emit


def _cell(cell: str) -> Emit:
    def emit(c: Call, x: Ref, hx: Any, w_ih: Ref, w_hh: Ref, b_ih: Ref | None, b_hh: Ref | None) -> Any:
        if (b_ih is None) != (b_hh is None):
            return None
        states = list(hx) if isinstance(hx, list | tuple) else [hx]
        attrs = {"cell": cell, "bias": b_ih is not None}
        steps = [_as_step(c, value) for value in (x, *states)]
        shape = tuple(steps[1].shape)
        biases = [] if b_ih is None or b_hh is None else [b_ih, b_hh]
        operands = ids(*steps, *([] if len(states) == 2 else [None]), w_ih, w_hh, *biases)
        types: list[tuple[int, Sequence[int]]] = [(x.dtype, shape)] * (1 + len(states))
        results = c.emit_many(OP["recurrent"], attrs, operands, types)
        if len(states) == 1:
            return c.emit(OP["reshape"], {"shape": list(c.shape)}, (results[1].id,))
        return [
            c.emit_result(i, OP["reshape"], {"shape": list(c.types[i][1])}, (result.id,))
            for i, result in enumerate(results[1:])
        ]

    return emit


def _as_step(c: Call, x: Ref) -> Ref:
    """Returns the value with a new first axis for one step."""
    return c.emit_inferred(OP["reshape"], {"shape": [1, *x.shape]}, (x.id,))


for _kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    ROWS[f"{_kind}.input"] = _layer(_kind)
    ROWS[f"{_kind}_cell"] = _cell(_kind)
