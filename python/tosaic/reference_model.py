"""Runs lowered programs on the TOSA reference model, which the package ``tosa-tools`` contains."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.dtypes import BITS, ML_DTYPES, NUMPY
from tosaic.options import checked, refusal
from tosaic.overrides import all_nodes
from tosaic.process import output_captured

if TYPE_CHECKING:
    from tosaic.lowered import Lowered
    from tosaic.models import GraphCall
    from tosaic.runnable import Runnable

__all__ = ["ReferenceRun", "from_file", "run_reference_model", "to_file"]

_ONE_AT_A_TIME = threading.Lock()  # the model prints to the streams of the process, which are captured


@dataclass(frozen=True)
class ReferenceRun:
    """The result of running a file on the reference model.

    Attributes
    ----------
    status : str
        ``VALID``, ``UNPREDICTABLE`` or ``ERROR``.
    outputs : object
        The nested result, as `tosaic.Lowered.run` returns it; None if the model returned no outputs.
    log : str
        Text that the model printed.
    mutations : dict of str to numpy.ndarray
        New values of inputs that the program writes, as `tosaic.Lowered.run_functional` returns them.
    """

    status: str
    outputs: Any
    log: str = ""
    mutations: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if the status is VALID."""
        return self.status == "VALID"


@checked
def run_reference_model(lowered: Lowered, *args: Any, level: str = "EIGHTK", **kwargs: Any) -> ReferenceRun:
    """Runs the bytes of a lowered program on the TOSA reference model.

    The model has no variables. States are therefore written as inputs, for every target. It has no kernels
    for described operators either (`tosaic.ForeignOp`): a program that has one is refused.

    Parameters
    ----------
    lowered : Lowered
    *args, **kwargs
        The arguments of the program, as in `tosaic.Lowered.run`. States start from their initial values.
    level : str
        The TOSA level that the model checks: ``EIGHTK`` or ``NONE``.

    Returns
    -------
    ReferenceRun

    Raises
    ------
    ImportError
        ``tosa-tools`` is not installed.
    InvalidGraph
        `lowered` is not a `tosaic.Lowered`, or the arguments do not fit the program.
    UnsupportedOp
        The program has a ``tosa.custom``, a described operator, which the model does not compute.
    """
    tosa_reference_model = _reference_model()
    if not callable(getattr(lowered, "to_bytes", None)) or not hasattr(lowered, "signature"):
        raise refusal("run_reference_model", "lowered", "what tosaic.lower returns", lowered)
    _refuse_custom(lowered.graph, "run_reference_model")
    given = iter(lowered.graph_arrays(lowered.arrays(*args, **kwargs)))
    inputs = [
        to_file(next(given) if port.initial is None else port.initial.array, port)
        for port in lowered.graph.inputs
    ]
    with _ONE_AT_A_TIME, output_captured() as log:
        raw, status = tosa_reference_model.run(_core.serialize(lowered.graph), inputs, tosa_level=level)
    name = status.name.removeprefix("TOSA_")
    if len(raw) != len(lowered.graph.outputs):
        return ReferenceRun(name, None, log[0])
    outputs = [from_file(data, port) for data, port in zip(raw, lowered.graph.outputs, strict=True)]
    ports = lowered.graph.inputs
    mutations = {
        port.path: array
        for port, array in zip(lowered.graph.outputs, outputs, strict=True)
        if port.mutated_input is not None and ports[port.mutated_input].kind == "user"
    }
    return ReferenceRun(name, lowered.signature.unflatten(outputs), log[0], mutations)


def model_of_graph(program: Runnable, models: Any = None) -> Callable[[GraphCall], list[Any]]:
    """Returns the TOSA reference model as a model of a whole graph, for ``prepare(on="reference")``.

    Raises
    ------
    InvalidGraph
        The program is not at stage ``tosa``, or there are models of operators, too.
    UnsupportedOp
        The program has a ``tosa.custom``.
    ImportError
        ``tosa-tools`` is not installed.
    """
    if program.stage != "tosa":
        raise _core.make_error(
            _core.InvalidGraph,
            where="prepare",
            what="the reference model runs programs at stage tosa only",
            expected="stage tosa",
            got=f"stage {program.stage}",
            hint="tosaic.lower(program, target='TOSA-1.0+FP').prepare(on='reference')",
        )
    if models:
        raise _core.make_error(
            _core.InvalidGraph,
            where="prepare",
            what="the reference model takes no models of operators",
            expected="models=None",
            got="models, with on='reference'",
            hint="on='tosaic' takes models, and its integers equal those of the reference model",
        )
    _refuse_custom(program.graph, "prepare")
    _reference_model()
    return _run_graph


def _run_graph(call: GraphCall) -> list[Any]:
    """Runs the graph of a call on the reference model."""
    tosa_reference_model = _reference_model()
    inputs = [_for_model(array, port) for array, port in zip(call.inputs, call.graph.inputs, strict=True)]
    data = _core.serialize(call.graph)
    with _ONE_AT_A_TIME, output_captured() as log:
        raw, status = tosa_reference_model.run(data, inputs, tosa_level="EIGHTK")
    if status.name != "TOSA_VALID" or len(raw) != len(call.graph.outputs):
        raise RuntimeError(f"the reference model reports {status.name}: {log[0].strip()}")
    return [
        np.ascontiguousarray(array).view(_dtype(port.value.dtype)).reshape(port.value.shape)
        for array, port in zip(raw, call.graph.outputs, strict=True)
    ]


def _for_model(array: np.ndarray[Any, Any], port: _core.Input) -> np.ndarray[Any, Any]:
    name = port.value.dtype
    return array.view(f"u{BITS[name] // 8}") if name in ML_DTYPES else array


def _reference_model() -> Any:
    try:
        import tosa_reference_model
    except ImportError as error:
        raise ImportError("the TOSA reference model is not installed: pip install 'tosaic[tosa]'") from error
    return tosa_reference_model


def _refuse_custom(graph: _core.Graph, where: str) -> None:
    for node in all_nodes(graph):
        if node.op == "tosa.custom":
            raise _core.make_error(
                _core.UnsupportedOp,
                where=where,
                what="the reference model has no kernels for CUSTOM operators",
                expected="operators of the TOSA specification",
                got=f"'{node.attrs['domain_name']}.{node.attrs['operator_name']}'",
                node=node.name,
                hint="tosaic.compare(program, lowered, samples) compares them with their kernels",
            )


def _order(port: _core.Input | _core.Output) -> tuple[int, ...]:
    rank = len(port.value.shape)
    return tuple(range(rank)) if port.physical else tuple(port.dim_order)


def _dtype(name: str) -> np.dtype[Any]:
    if name not in ML_DTYPES:
        return NUMPY[name]
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, ML_DTYPES[name]))


def to_file(array: np.ndarray[Any, Any], port: _core.Input) -> np.ndarray[Any, Any]:
    """Converts the caller's array to the shape and dtype of the file's tensor.

    f32 arrays are quantized if the port has qparams. Floats that numpy lacks become integers of their bits.
    """
    name = port.value.dtype
    if port.qparams is not None and array.dtype == np.float32:
        array = port.qparams.quantize(array)
    found = np.asarray(array.transpose(_order(port)), dtype=_dtype(name), order="C")
    return found.view(f"u{BITS[name] // 8}") if name in ML_DTYPES else found


def from_file(data: np.ndarray[Any, Any], port: _core.Output) -> np.ndarray[Any, Any]:
    """Converts a tensor of the file to the caller's axes and dtype, the reverse of `to_file`."""
    array = np.ascontiguousarray(data).view(_dtype(port.value.dtype)).reshape(port.value.shape)
    if port.qparams is not None and port.dtype == "f32":
        array = port.qparams.dequantize(array)
    return np.asarray(array.transpose(np.argsort(_order(port))), dtype=_dtype(port.dtype), order="C")
