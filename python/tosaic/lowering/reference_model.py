"""Runs lowered programs on the TOSA reference model, which the package ``tosa-tools`` contains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.base.dtypes import BITS, ML_DTYPES, is_float, is_float_array
from tosaic.base.options import checked, refusal
from tosaic.base.process import output_captured
from tosaic.program.reference_graph import ONE_AT_A_TIME, dtype_of, refuse_custom, the_model

if TYPE_CHECKING:
    from tosaic.lowering.lowered import Lowered

__all__ = ["ReferenceRun", "from_file", "run_reference_model", "to_file"]


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
    for described operators either (`tosaic.ports.ForeignOp`): a program that has one is refused.

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
    tosa_reference_model = the_model()
    if not callable(getattr(lowered, "to_bytes", None)) or not hasattr(lowered, "signature"):
        raise refusal("run_reference_model", "lowered", "what tosaic.lower returns", lowered)
    refuse_custom(lowered.graph, "run_reference_model")
    given = iter(lowered.graph_arrays(lowered.arrays(*args, **kwargs)))
    inputs = [
        to_file(next(given) if port.initial is None else port.initial.array, port)
        for port in lowered.graph.inputs
    ]
    with ONE_AT_A_TIME, output_captured() as log:
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


def _order(port: _core.Input | _core.Output) -> tuple[int, ...]:
    rank = len(port.value.shape)
    return tuple(range(rank)) if port.physical else tuple(port.dim_order)


def to_file(array: np.ndarray[Any, Any], port: _core.Input) -> np.ndarray[Any, Any]:
    """Converts the caller's array to the shape and dtype of the file's tensor.

    Floats are quantized if the port has qparams. Floats that numpy lacks become integers of their bits.
    """
    name = port.value.dtype
    if port.qparams is not None and is_float_array(array):
        array = port.qparams.quantize(array.astype(np.float32))
    found = np.asarray(array.transpose(_order(port)), dtype=dtype_of(name), order="C")
    return found.view(f"u{BITS[name] // 8}") if name in ML_DTYPES else found


def from_file(data: np.ndarray[Any, Any], port: _core.Output) -> np.ndarray[Any, Any]:
    """Converts a tensor of the file to the caller's axes and dtype, the reverse of `to_file`."""
    array = np.ascontiguousarray(data).view(dtype_of(port.value.dtype)).reshape(port.value.shape)
    if port.qparams is not None and is_float(port.dtype):
        array = port.qparams.dequantize(array)
    return np.asarray(array.transpose(np.argsort(_order(port))), dtype=dtype_of(port.dtype), order="C")
