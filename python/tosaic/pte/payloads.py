"""What runs the payload of a delegate: a `PayloadCall` on tosaic, or a `NoRunner`, which only raises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.dtypes import NUMPY, type_text
from tosaic.sample_forms import fit_to_ports

if TYPE_CHECKING:
    from tosaic.prepared import Prepared
    from tosaic.program import Program

__all__ = ["NoRunner", "PayloadCall", "TensorForm", "is_tosa", "kind_of_payload"]

_Array = np.ndarray[Any, Any]

_KINDS = ((4, b"TOSA", "TOSA"), (0, b"VGF1", "VGF"), (0, b"vela_bin_stream\0", "Vela"))
"""Kinds of payloads by the bytes at a place."""


def kind_of_payload(payload: bytes) -> str:
    """Returns the format of a payload, ``TOSA``, ``VGF`` or ``Vela``; empty for other formats."""
    for at, magic, kind in _KINDS:
        if payload[at : at + len(magic)] == magic:
            return kind
    return ""


def is_tosa(payload: bytes) -> bool:
    """True for the bytes of a ``.tosa`` file."""
    return kind_of_payload(payload) == "TOSA"


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


@dataclass(frozen=True)
class Place:
    """Where a delegate is, for errors."""

    method: str
    index: int
    backend: str

    def __str__(self) -> str:
        return f"delegate {self.index} ('{self.backend}') of method '{self.method}'"


class NoRunner:
    """The function of a delegate whose payload nothing here runs. A call raises UnsupportedOp."""

    def __init__(self, place: Place, name: str, kind: str) -> None:
        self._place, self._name, self._kind = place, name, kind

    def __call__(self, *_: Any) -> Any:
        """Raises UnsupportedOp."""
        format_text = f" {self._kind}" if self._kind else ""
        raise _core.make_error(
            _core.UnsupportedOp,
            where="run",
            what=f"nothing here runs the{format_text} payload of {self._place}",
            expected="a TOSA payload, or a model of the delegate",
            got=f"a payload of {self._place.backend}",
            node=self._name,
            hint=f"Pass a function of its arrays: prepare(models={{'{self._name}': function}}), or for all "
            f"delegates of this backend models={{'{self._place.backend}': function}}",
        )


class PayloadCall:
    """The function of a delegate whose payload is a program of tosaic.

    Attributes
    ----------
    part : Program
        The payload.
    on : str
        What computes it, as in `Program.prepare`.
    """

    def __init__(
        self,
        part: Program,
        inputs: Sequence[TensorForm],
        outputs: Sequence[TensorForm],
        place: Place,
        on: str = "tosaic",
    ) -> None:
        self.part = part
        self.on = on
        self._inputs, self._outputs, self._place = tuple(inputs), tuple(outputs), place
        self._require(len(part.inputs), len(self._inputs), "inputs")
        self._require(len(part.outputs), len(self._outputs), "outputs")
        for what, forms, ports in (("input", inputs, part.inputs), ("output", outputs, part.outputs)):
            for i, (form, port) in enumerate(zip(forms, ports, strict=True)):
                if math.prod(form.shape) != math.prod(port.shape):
                    expected = type_text(form.dtype, form.physical)
                    raise self._fault(f"{what} {i} of the payload has another size", expected, port.type_text)

    def running_on(self, on: str) -> PayloadCall:
        """Returns the same call, computed by something else."""
        return PayloadCall(self.part, self._inputs, self._outputs, self._place, on)

    def __call__(self, *arrays: _Array) -> Any:
        """Returns the results for logical arrays: one array, or a list of them."""
        given = [
            np.ascontiguousarray(array.transpose(form.dim_order)).reshape(port.shape)
            for array, form, port in zip(arrays, self._inputs, self.part.inputs, strict=True)
        ]
        made = self._prepared.run_arrays(fit_to_ports(given, self.part.inputs))
        results = [self._result(array, form) for array, form in zip(made, self._outputs, strict=True)]
        return results[0] if len(results) == 1 else results

    @cached_property
    def _prepared(self) -> Prepared:
        return self.part.prepare(on=self.on)

    def _result(self, array: _Array, form: TensorForm) -> _Array:
        """Returns the logical array of an output. TOSA has neither 64-bit nor unsigned integers."""
        dtype: np.dtype[Any] = NUMPY.get(form.dtype) or array.dtype
        physical = np.ascontiguousarray(array).reshape(form.physical)
        if physical.dtype != dtype:
            same_size = physical.dtype.itemsize == dtype.itemsize
            physical = physical.view(dtype) if same_size else physical.astype(dtype)
        return physical.transpose(np.argsort(form.dim_order))

    def _require(self, found: int, expected: int, what: str) -> None:
        if found != expected:
            raise self._fault(f"the payload has another number of {what}", str(expected), str(found))

    def _fault(self, what: str, expected: str, got: str) -> Exception:
        return _core.make_error(
            _core.InvalidGraph, where="pte", what=f"{self._place}: {what}", expected=expected, got=got
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_prepared"}
