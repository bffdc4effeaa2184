"""Quantizes a network of branches by one of tosaic's flows, and says which branches are wrong."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tosaic
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

from biases.networks import Branch, Branches, sample

CONFIGS = {
    "int8": tosaic.QConfig.int8(),
    "int8, one scale": tosaic.QConfig.int8(per_channel=False),
    "int16x8": tosaic.QConfig.int16x8(),
    "every operator": tosaic.QConfig.int8(every_operator=True),
}
WAYS = ("quantize", "Quantizer", "training", "arm")
TOLERANCE = 0.03
"""As a share of the largest result of a branch: eight units of 8 bits, four for each sign."""
_LEAST = 1e-4  # weights below the least scale of an observer, 2^-23, are rounded to 0

_CONTRACTIONS = ("conv", "linear", "addmm", "baddbmm")
_SUMS_OF_ARM = ("aten.add.Tensor",)  # Arm's passes make addmm and baddbmm products and sums


@dataclass(frozen=True)
class Found:
    """What became of one branch.

    Attributes
    ----------
    error : float
        The largest error of the quantized program and of the integer program, as a share of the range of the
        branch.
    saturated : bool
        Elements of the bias are at the end of their integers.
    other_unit : bool
        The bias has another unit than the products.
    warned : bool
        A warning names the call.
    refused : bool
        ``TOSA-1.0+INT+int16`` refuses the call by name.
    """

    branch: Branch
    error: float
    saturated: bool
    other_unit: bool
    warned: bool
    refused: bool

    @property
    def ok(self) -> bool:
        """True if the numbers are right, or if a warning says that they are not."""
        return not self.saturated and (self.error <= TOLERANCE or self.warned)


def measure(
    branches: Sequence[Branch], config: str, way: str, *, zero: bool = False, norm: bool = False
) -> list[Found]:
    """Quantizes the branches, which have one operator, and lowers them."""
    torch.manual_seed(0)
    network = Branches(branches, norm=norm).eval()
    x = sample(branches[0].operator, zero=zero)
    with torch.no_grad():
        exact = [each.numpy() for each in network(x)]
    with Warnings() as warnings:
        program, exported = _quantized(network, x, config, way)
        lowered = tosaic.lower(program, target="TOSA-1.0+INT+FP+int16")
        problems = tosaic.check(program, target="TOSA-1.0+INT+int16").problems
    calls = _calls(program, exported)
    runs = [_run(program, x), list(lowered.run(x))]
    return [
        Found(
            branch,
            max(_error(np.asarray(run[at]), exact[at]) for run in runs),
            *_bias_of(calls[at][1]),
            any(f"'{calls[at][0]}'" in text for text in warnings.texts),
            calls[at][0] in {each.node for each in problems},
        )
        for at, branch in enumerate(branches)
    ]


class Warnings(logging.Handler):
    """Collects the warnings of tosaic, even if logging is disabled."""

    def __enter__(self) -> Warnings:
        self.texts: list[str] = []
        logger = logging.getLogger("tosaic")
        self._level, self._disabled = logger.level, logging.root.manager.disable
        logging.disable(logging.NOTSET)
        logger.setLevel(logging.WARNING)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("tosaic")
        logger.removeHandler(self)
        logger.setLevel(self._level)
        logging.disable(self._disabled)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.texts.append(record.getMessage())


def _quantized(network: Any, x: torch.Tensor, config: str, way: str) -> tuple[Any, Any]:
    """Returns the quantized program, and the exported program with its calls."""
    chosen = CONFIGS[config]
    if way == "quantize":
        exported = torch.export.export(network, (x,))
        return tosaic.quantize(exported, [(x,)], config=chosen, progress=False), exported
    if way == "training":
        module = torch.export.export(network.train(), (x,)).module()
        prepared = prepare_qat_pt2e(module, tosaic.Quantizer(chosen, qat=True))
        move_exported_model_to_eval(prepared)
        for _ in range(3):
            prepared(x)
    else:
        compatible: Any = "arm" if way == "arm" else None
        quantizer = tosaic.Quantizer(chosen, compatible_with=compatible)
        prepared = prepare_pt2e(torch.export.export(network, (x,)).module(), quantizer)
        prepared(x)
    with torch.no_grad():
        exported = torch.export.export(convert_pt2e(prepared), (x,))
    return exported, exported


def _run(program: Any, x: torch.Tensor) -> list[Any]:
    if isinstance(program, torch.export.ExportedProgram):
        with torch.no_grad():
            return list(program.module()(x))
    return list(program.run(x))


def _error(found: Any, exact: Any) -> float:
    largest = float(np.abs(exact).max(initial=0.0))
    error = float(np.abs(found.astype(np.float64) - exact).max(initial=0.0))
    return error / max(largest, _LEAST)


def _graph(program: Any) -> Any:
    if not isinstance(program, torch.export.ExportedProgram):
        return program.graph
    imported = tosaic.from_exported(program)
    graph = imported.graph
    pipeline = tosaic.Pipeline.default("TOSA-1.0+INT+int16")
    for step in pipeline:
        graph = pipeline[step.id].run(graph)
        if step.name == "fold-qdq":
            break
    return graph


def _calls(program: Any, exported: Any) -> list[tuple[str, Any]]:
    """Returns the name of each contraction in the program, and the node that it became."""
    called = [node for node in exported.graph.nodes if node.op == "call_function"]
    names = [each.name for each in called if any(kind in str(each.target) for kind in _CONTRACTIONS)]
    names = names or [each.name for each in called if str(each.target) in _SUMS_OF_ARM]
    nodes = {
        origin.fx_name: node
        for node in _graph(program).nodes
        if node.op in _CONTRACTIONS
        for origin in node.origins
    }
    return [(name, nodes.get(name)) for name in names]


def _bias_of(call: Any) -> tuple[bool, bool]:
    """Returns whether the bias of a call saturates, and whether it has another unit than the products."""
    operands = [] if call is None else [each for each in call.operands if each is not None]
    if len(operands) < 3:
        return False, False
    bias = operands.pop(0 if call.op in ("addmm", "baddbmm") else 2)
    if bias.constant is None or bias.dtype != "i32" or bias.qparams is None:
        return False, False
    elements = np.asarray(bias.constant.array, np.int64)
    data, weight = (np.asarray(each.qparams.scales) for each in operands)
    other_unit = not np.allclose(np.asarray(bias.qparams.scales), data * weight, rtol=1e-5)
    return bool((np.abs(elements) >= 2**31 - 128).any()), other_unit
