"""What runs a delegate: its payload, a TOSA source that the caller has passed, or nothing.

| payload | on tosaic and on the reference model | on an engine of a device, such as Vulkan |
|---|---|---|
| TOSA | the payload | the payload, converted for the engine |
| one that the engine runs | the source | the payload |
| another | the source | the source, converted for the engine |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tosaic import _core
from tosaic.base.dtypes import BITS, ML_DTYPES, NUMPY, is_held_as, type_text
from tosaic.base.options import unsupported
from tosaic.devices.built_in import TOSA_PAYLOAD
from tosaic.devices.engines import engine_named
from tosaic.program.sample_forms import fit_to_ports
from tosaic.pte.payloads import Place, kind_of_payload, payload_format

if TYPE_CHECKING:
    from tosaic.program.prepared import Prepared
    from tosaic.program.program import Program

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorForm:
    """A tensor as the host passes it to a delegate.

    Attributes
    ----------
    dtype : str
    shape : tuple of int
        With torch's axes.
    dim_order : tuple of int
        The order of the axes in memory.
    """

    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]

    @property
    def physical(self) -> tuple[int, ...]:
        """The extents in dim order."""
        return tuple(self.shape[axis] for axis in self.dim_order)

    @property
    def type_text(self) -> str:
        """Dtype and physical shape as text."""
        return type_text(self.dtype, self.physical)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * max(BITS[self.dtype] // 8, 1)

    def to_memory(self, array: _Array) -> _Array:
        """Returns the row-major array of the physical axes."""
        return np.ascontiguousarray(array.transpose(self.dim_order))

    def of_memory(self, array: _Array) -> _Array:
        """Returns the logical array of a result. TOSA has neither 64-bit nor unsigned integers."""
        dtype: np.dtype[Any] = NUMPY.get(self.dtype) or array.dtype
        physical = np.ascontiguousarray(array).reshape(self.physical)
        if physical.dtype != dtype:
            same_size = physical.dtype.itemsize == dtype.itemsize
            physical = physical.view(dtype) if same_size else physical.astype(dtype)
        return physical.transpose(np.argsort(self.dim_order))


class NoRunner:
    """The function of a delegate that cannot be run here. A call raises UnsupportedOp."""

    def __init__(self, place: Place, name: str, payload: bytes) -> None:
        self._place, self._name, self._payload = place, name, payload

    def __call__(self, *_: Any) -> Any:
        """Raises UnsupportedOp."""
        found = payload_format(self._payload)
        format_text = f" {found.shown}" if found is not None else ""
        hint = (
            f"Pass the .tosa file that computes the same: load_pte(path, sources={{'{self._name}': file}}). "
            f"Or a function of its arrays: prepare(models={{'{self._name}': function}}), or for all "
            f"delegates of this backend models={{'{self._place.backend}': function}}"
        )
        if found is not None and found.engine is not None:
            engine = found.engine
            hint += f". prepare(on='{engine.name}') runs {found.shown} payloads on {engine.machine}"
        raise unsupported(
            "run",
            f"nothing here runs the{format_text} payload of {self._place}",
            expected="a TOSA payload, a TOSA source, or a model of the delegate",
            got=(found.contents if found is not None else "") or f"a payload of {self._place.backend}",
            node=self._name,
            hint=hint,
        )


class PayloadCall:
    """The function of a delegate that runs as a program at stage ``tosa``.

    Attributes
    ----------
    part : Program
        The payload, or the source that the caller has given.
    on : str
        The engine that computes it, as in `Program.prepare`.
    """

    def __init__(
        self,
        part: Program,
        inputs: Sequence[TensorForm],
        outputs: Sequence[TensorForm],
        place: Place,
        on: str = "tosaic",
        *,
        is_source: bool = False,
    ) -> None:
        self.part = part
        self.on = on
        self._inputs, self._outputs, self._place = tuple(inputs), tuple(outputs), place
        self._what = "source" if is_source else "payload"
        for side, forms, ports in (("input", inputs, part.inputs), ("output", outputs, part.outputs)):
            if len(forms) != len(ports):
                what = f"the {self._what} has another number of {side}s"
                raise place.fault(what, str(len(forms)), str(len(ports)))
            for i, (form, port) in enumerate(zip(forms, ports, strict=True)):
                self._require(f"{side} {i}", form, port, is_source)

    def _require(self, which: str, form: TensorForm, port: Any, is_source: bool) -> None:
        """Refuses another size or dtype; for a source, which is not the payload, also another shape."""
        what = ""
        if math.prod(form.shape) != math.prod(port.shape):
            what = "size"
        elif not is_held_as(form.dtype, port.dtype):
            what = "dtype"
        elif is_source and _extents(form.physical) != _extents(port.shape):
            what = "shape"
        if what:
            raise self._place.fault(
                f"{which} of the {self._what} has another {what}", form.type_text, port.type_text
            )

    def __call__(self, *arrays: _Array) -> Any:
        """Returns the results for logical arrays: one array, or a list of them."""
        given = [
            form.to_memory(array).reshape(port.shape)
            for array, form, port in zip(arrays, self._inputs, self.part.inputs, strict=True)
        ]
        try:
            made = self._prepared.run_arrays(fit_to_ports(given, self.part.inputs))
        except _core.Error as error:
            raise self._place.located(error) from error
        results = [form.of_memory(array) for array, form in zip(made, self._outputs, strict=True)]
        return results[0] if len(results) == 1 else results

    @cached_property
    def _prepared(self) -> Prepared:
        return self.part.prepare(on=self.on)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_prepared"}


def _extents(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _holds(found: np.dtype[Any], dtype: str) -> bool:
    """True if an array that a tool wrote has the elements of a dtype; numpy lacks some floats."""
    if dtype in ML_DTYPES:
        return found.kind in "iuV" and found.itemsize * 8 == BITS[dtype]
    expected = NUMPY.get(dtype, found)
    same_size = found.itemsize == expected.itemsize
    if found.kind in "iu" and expected.kind in "iub":
        return same_size or (dtype == "i64" and found.itemsize == 4)
    return found == expected


class EngineCall:
    """The function of a delegate whose payload an engine runs, such as a VGF file on Vulkan.

    Parameters
    ----------
    program
        The payload, prepared to run: see `tosaic.devices.Engine`.
    title, machine : str
        The names of the format and of its runtime, for messages.
    inputs, outputs : sequence of TensorForm
    place : Place
    """

    def __init__(
        self,
        program: Any,
        title: str,
        machine: str,
        inputs: Sequence[TensorForm],
        outputs: Sequence[TensorForm],
        place: Place,
    ) -> None:
        self._program, self._title, self._machine = program, title, machine
        self._inputs, self._outputs, self._place = tuple(inputs), tuple(outputs), place
        self._is_checked = False

    def __call__(self, *arrays: _Array) -> Any:
        """Returns the results for logical arrays: one array, or a list of them.

        Raises
        ------
        InvalidGraph
            The file has other inputs or outputs than the delegate, or the tools cannot run it.
        """
        try:
            sides = self._program.sides
            shapes = [each.shape for each in sides[0]]
            self._require(sides)
            made = self._program.run(
                [
                    form.to_memory(array).reshape(shape)
                    for array, form, shape in zip(arrays, self._inputs, shapes, strict=True)
                ]
            )
        except (RuntimeError, LookupError, TypeError, ValueError, OSError) as error:
            if isinstance(error, _core.Error):
                raise
            raise self._place.fault(
                f"the {self._title} payload does not run",
                f"a file that {self._machine} runs",
                f"{type(error).__name__}: {error}",
            ) from error
        for i, (form, array) in enumerate(zip(self._outputs, made, strict=True)):
            if not _holds(array.dtype, form.dtype):  # a file format may not record dtypes
                what = f"output {i} of the {self._title} payload has another dtype"
                raise self._place.fault(what, form.type_text, str(array.dtype))
        results = [form.of_memory(array) for array, form in zip(made, self._outputs, strict=True)]
        return results[0] if len(results) == 1 else results

    def _require(self, sides: Sequence[Sequence[Any]]) -> None:
        if self._is_checked:
            return
        for side, forms, found in zip(("input", "output"), (self._inputs, self._outputs), sides, strict=True):
            if len(forms) != len(found):
                what = f"the {self._title} payload has another number of {side}s"
                raise self._place.fault(what, str(len(forms)), str(len(found)))
            for i, (form, tensor) in enumerate(zip(forms, found, strict=True)):
                size = math.prod(tensor.shape) * (tensor.element_bytes or 0)
                if size != form.nbytes:
                    what = f"{side} {i} of the {self._title} payload has another size"
                elif tensor.dtype is not None and not is_held_as(form.dtype, tensor.dtype):
                    what = f"{side} {i} of the {self._title} payload has another dtype"
                else:
                    continue
                raise self._place.fault(what, form.type_text, f"{tensor.format}{list(tensor.shape)}")
        self._is_checked = True


Runner: TypeAlias = PayloadCall | EngineCall | NoRunner


@dataclass(frozen=True)
class DelegateNode:
    """A delegate call as a node of the graph, with the programs that may run it.

    Attributes
    ----------
    place : Place
    name : str
        The name of the node.
    payload : bytes
    inputs, outputs : tuple of TensorForm
    part : Program or None
        The payload if it is a ``.tosa`` file; else the source that the caller has given.
    """

    place: Place
    name: str
    payload: bytes
    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...]
    part: Program | None

    @property
    def kind(self) -> str:
        """The format of the payload, as `kind_of_payload`."""
        return kind_of_payload(self.payload)

    def runner(self, on: str) -> Runner:
        """Returns the function of the node that runs on ``tosaic``, ``reference`` or an engine of a device.

        Raises
        ------
        InvalidGraph
            The payload or the source has other inputs or outputs than the call.
        ImportError
            The engine is not installed.
        """
        found, engine = payload_format(self.payload), engine_named("prepare", on)
        runs_it = engine is not None and found is not None and found.engine == engine
        if engine is not None and (runs_it or self.part is not None):
            engine.require()
        if engine is not None and found is not None and runs_it:
            program = engine.program(self.payload)
            return EngineCall(program, found.shown, engine.machine, self.inputs, self.outputs, self.place)
        if self.part is None:
            return NoRunner(self.place, self.name, self.payload)
        is_source = found is not TOSA_PAYLOAD
        return PayloadCall(self.part, self.inputs, self.outputs, self.place, on, is_source=is_source)
