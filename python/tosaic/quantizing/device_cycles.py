"""Cycles of a device for quantized graphs, by tosaic's own model (``cpp/tosaic/cost``)."""

from __future__ import annotations

from collections import Counter

from tosaic import _core
from tosaic.base.options import refusal
from tosaic.cost.analytic import has_analytic_cost
from tosaic.devices.registry import device_of
from tosaic.lowering.pipeline import Pipeline

__all__ = ["cycles_by_call", "require_cycles"]


def require_cycles(where: str, device: str) -> None:
    """Raises InvalidGraph unless the model has the device."""
    if not has_analytic_cost(device):
        raise refusal(
            where, "costs", f"numbers by level, or one of {', '.join(_core.cost_devices())}", device
        )


def cycles_by_call(graph: _core.Graph, device: str) -> Counter[str]:
    """Returns the cycles that one run takes, by the call of torch's graph.

    An operation of several calls counts for the first one. Operations without a call count for ``""``.

    Parameters
    ----------
    graph : Graph
        At stage ``exported``, with quantize and dequantize nodes.
    device : str
        A device for which `require_cycles` passes.

    Raises
    ------
    UnsupportedOp
        The device cannot compute an operator of the graph.
    """
    found = device_of(device)
    assert found is not None
    passes = Pipeline.default(found.target)
    for step in passes:
        graph = passes[step.id].run(graph, target=found.target)
    nodes = list(graph.nodes)
    cycles: Counter[str] = Counter()
    for row in _core.estimate_cost(graph, device)["rows"]:
        origins = [origin for each in row["nodes"] for origin in nodes[each].origins]
        cycles[origins[0].fx_name if origins else ""] += row["cycles"]
    return cycles
