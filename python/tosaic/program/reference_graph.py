"""The TOSA reference model as a model of a whole graph."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.dtypes import BITS, ML_DTYPES, NUMPY
from tosaic.base.options import invalid, unsupported
from tosaic.base.process import output_captured
from tosaic.program.overrides import all_nodes

if TYPE_CHECKING:
    from tosaic.program.models import GraphCall

ONE_AT_A_TIME = threading.Lock()
"""The lock of the model's runs: the model prints to the streams of the process, which are captured."""


def model_of_graph(graph: _core.Graph, models: Any = None) -> Callable[[GraphCall], list[Any]]:
    """Returns the TOSA reference model as a model of a whole graph, for ``prepare(on="reference")``.

    Raises
    ------
    InvalidGraph
        The graph is not at stage ``tosa``, or there are models of operators, too.
    UnsupportedOp
        The graph has a ``tosa.custom``.
    ImportError
        ``tosa-tools`` is not installed.
    """
    refuse_stage(graph, "the reference model", "reference")
    refuse_models(models, "the reference model", "reference")
    refuse_custom(graph, "prepare")
    the_model()
    return _run_graph


def _run_graph(call: GraphCall) -> list[Any]:
    """Runs the graph of a call on the reference model."""
    tosa_reference_model = the_model()
    inputs = [_for_model(array, port) for array, port in zip(call.inputs, call.graph.inputs, strict=True)]
    data = _core.serialize(call.graph)
    with ONE_AT_A_TIME, output_captured() as log:
        raw, status = tosa_reference_model.run(data, inputs, tosa_level="EIGHTK")
    if status.name != "TOSA_VALID" or len(raw) != len(call.graph.outputs):
        raise RuntimeError(f"the reference model reports {status.name}: {log[0].strip()}")
    return [
        np.ascontiguousarray(array).view(dtype_of(port.value.dtype)).reshape(port.value.shape)
        for array, port in zip(raw, call.graph.outputs, strict=True)
    ]


def _for_model(array: np.ndarray[Any, Any], port: _core.Input) -> np.ndarray[Any, Any]:
    name = port.value.dtype
    return array.view(f"u{BITS[name] // 8}") if name in ML_DTYPES else array


def the_model() -> Any:
    """Imports the reference model.

    Raises
    ------
    ImportError
        ``tosa-tools`` is not installed.
    """
    try:
        import tosa_reference_model
    except ImportError as error:
        raise ImportError("the TOSA reference model is not installed: pip install 'tosaic[tosa]'") from error
    return tosa_reference_model


def refuse_stage(graph: _core.Graph, who: str, on: str) -> None:
    """Raises InvalidGraph if the graph is not at stage ``tosa``."""
    if graph.stage != "tosa":
        raise invalid(
            "prepare",
            f"{who} runs programs at stage tosa only",
            expected="stage tosa",
            got=f"stage {graph.stage}",
            hint=f"tosaic.lower(program, target='TOSA-1.0+FP').prepare(on={on!r})",
        )


def refuse_models(models: Any, who: str, on: str) -> None:
    """Raises InvalidGraph if there are models of operators."""
    if models:
        raise invalid(
            "prepare",
            f"{who} takes no models of operators",
            expected="models=None",
            got=f"models, with on={on!r}",
            hint="on='tosaic' takes models, and its integers equal the reference model's",
        )


def refuse_custom(graph: _core.Graph, where: str, who: str = "the reference model") -> None:
    """Raises UnsupportedOp if the graph has a ``tosa.custom``."""
    for node in all_nodes(graph):
        if node.op == "tosa.custom":
            raise unsupported(
                where,
                f"{who} has no kernels for CUSTOM operators",
                expected="operators of the TOSA specification",
                got=f"'{node.attrs['domain_name']}.{node.attrs['operator_name']}'",
                node=node.name,
                hint="tosaic.compare(program, lowered, samples) compares them with their kernels",
            )


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns the dtype of an array whose elements have this dtype in the graph."""
    if name not in ML_DTYPES:
        return NUMPY[name]
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, ML_DTYPES[name]))
