"""A method of a ``.pte`` file as a program: `PteMethodProgram`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tosaic.base.arrays import as_array
from tosaic.base.dtypes import is_float_array
from tosaic.program.calling import Calling
from tosaic.program.overrides import Overrides
from tosaic.program.program import Program
from tosaic.pte.delegate_calls import DelegateNode, Runner

if TYPE_CHECKING:
    from tosaic.ports.ports import Port
    from tosaic.program.models import Models
    from tosaic.program.runnable import Runnable
    from tosaic.pte.method_graph import MethodGraph
    from tosaic.pte.sidecar import SidecarMethod


class PteMethodProgram(Program):
    """A method as a program. A delegate is a node, which runs the payload if tosaic can.

    The node of delegate 0 is named ``delegate0``. `prepare` takes models of delegates by this name, or by the
    id of the backend. An input of integers takes floats, too, if the sidecar of the file records how to
    quantize them. With ``on="reference"``, the TOSA reference model computes the delegates that have a
    TOSA payload or source; with ``on="vgf"``, Vulkan computes them, and those with VGF payloads. tosaic
    computes the kernel calls.
    """

    _delegates: tuple[DelegateNode, ...] = ()

    @classmethod
    def of(cls, read: MethodGraph, recorded: SidecarMethod | None) -> PteMethodProgram:
        """Returns the program of a method, with the qparams that a sidecar records."""
        program = cls(read.graph, read.signature, diagnostics=read.diagnostics.items)
        program._delegates = tuple(read.delegate_nodes)
        program.overrides = Overrides({each.name: each.runner("tosaic") for each in program._delegates})
        if recorded is not None:
            program.qparams_of_sidecar = {
                port.path: port.quantized for port in (*recorded.inputs, *recorded.outputs)
            }
        return program

    @cached_property
    def calling(self) -> Calling:
        """Calls whose arguments may be floats for inputs that are integers."""
        return _QuantizedCalling(self)

    def _with_models(self, models: Any, on: str) -> tuple[Runnable, Models]:
        from tosaic.program.models import Models

        if on == "tosaic":
            return super()._with_models(models, on)
        own = self.overrides.own
        moved = {
            each.name: each.runner(on)
            for each in self._delegates
            if isinstance(own.get(each.name), Runner)  # not a function of the caller
        }
        return self.with_overrides(moved) if moved else self, Models(models)

    def _copy(self) -> Program:
        made = PteMethodProgram(self._own_graph(), self._signature, diagnostics=self._diagnostics)
        made._delegates = self._delegates
        return made


class _QuantizedCalling(Calling):
    """Quantizes floats for inputs that are integers, if the sidecar records one quantization of them."""

    def arrays_of(self, leaves: Sequence[Any]) -> list[Any]:
        inputs = self._program.inputs
        return super().arrays_of(
            [_as_integers(leaf, port) for leaf, port in zip(leaves, inputs, strict=True)]
        )


def _as_integers(leaf: Any, port: Port) -> Any:
    qparams = port.qparams
    if qparams is None or qparams.dtype != port.dtype:
        return leaf
    array = as_array(leaf, port.path or port.name)
    return qparams.quantize(array) if is_float_array(array) else array
