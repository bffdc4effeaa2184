"""The time in which the planner of tosaic's quantizer computes a plan."""

from __future__ import annotations

import time
from typing import Any

import torch
import tosaic
from tosaic import _core

from models.zoo import Network

__all__ = ["plan_us"]


def plan_us(network: Network) -> float:
    """Returns the microseconds of the planner for each node of torch.

    Reading the graph of torch and writing annotations are not included.
    The least of five runs: other processes interrupt a run of less than a millisecond.
    """
    model = torch.export.export(network.module.eval(), network.sample()).module(check_guards=False)
    seconds = []

    def timed(*args: Any) -> Any:
        begin = time.perf_counter()
        result = plan_specs(*args)
        seconds.append(time.perf_counter() - begin)
        return result

    plan_specs, _core.plan_specs = _core.plan_specs, timed
    try:
        for _ in range(5):
            quantizer = tosaic.Quantizer()
            quantizer.annotate(quantizer.transform_for_annotation(model))
            for node in model.graph.nodes:
                node.meta.pop("quantization_annotation", None)
    finally:
        _core.plan_specs = plan_specs
    return min(seconds) * 1e6 / len(model.graph.nodes)
