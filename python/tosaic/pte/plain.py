"""The contents of a ``.pte`` file as plain data: tensors, delegates, and instructions as text."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.dtypes import type_text
from tosaic.base.visible import one_line
from tosaic.pte.scalar_type import scalar_type

if TYPE_CHECKING:
    from tosaic.base.quantization import QParams

_DYNAMISM = ("static", "bounded", "unbounded")


@dataclass(frozen=True)
class PteTensor:
    """A tensor of a method.

    Attributes
    ----------
    index : int
        Index of the value in the method.
    name : str
        Name of a parameter or buffer, if the file records it.
    dtype : str
        Name of the element type in torch: ``float32``.
    shape : tuple of int
        With torch's axes. The greatest extents, unless `dynamism` is ``static``.
    dim_order : tuple of int
        The order of the axes in memory, outermost first.
    kind : str
        ``constant``, ``input``, ``state`` (with initial elements) or ``activation``.
    memory, offset : int or None
        The planned place: index of the memory and first byte. None if no memory is planned.
    nbytes : int
        Bytes of the elements.
    dynamism : str
        ``static``, ``bounded`` or ``unbounded``.
    path : str
        The place of an input or output in the call or in the result, if the file has a sidecar.
    quantized : tuple of QParams
        The qparams that the sidecar records for an input or output, as in `Port`.
    """

    index: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    kind: str
    memory: int | None
    offset: int | None
    nbytes: int
    dynamism: str
    path: str = ""
    quantized: tuple[QParams, ...] = ()

    @property
    def type_text(self) -> str:
        """Dtype and shape as text: ``float32[1,3,8,8]``, with the dim order if it is not row-major."""
        text = type_text(self.dtype, self.shape)
        if self.dim_order != tuple(range(len(self.shape))):
            text += f" order({','.join(map(str, self.dim_order))})"
        return text


@dataclass(frozen=True)
class PteDelegate:
    """A delegate: a part of a method that a backend runs.

    Attributes
    ----------
    method : str
    index : int
        Index among the delegates of the method.
    backend : str
        The id of the backend, such as ``XnnpackBackend``.
    payload : bytes
        The bytes for the backend.
    compile_specs : tuple of (str, bytes)
        The options with which the payload was made.
    has_source : bool
        The caller has given a TOSA program that computes the same; see `tosaic.load_pte`.
    claimant, target : str
        The claimant of the calls, and the TOSA target for which they were lowered, if the sidecar records it.
    """

    method: str
    index: int
    backend: str
    payload: bytes
    compile_specs: tuple[tuple[str, bytes], ...]
    has_source: bool = False
    claimant: str = ""
    target: str = ""

    @property
    def payload_kind(self) -> str:
        """The format of the payload: ``TOSA``, ``VGF`` or ``Vela``; empty for others."""
        from tosaic.pte.payloads import kind_of_payload

        return kind_of_payload(self.payload)

    def __repr__(self) -> str:
        kind = f", {self.payload_kind}" * bool(self.payload_kind)
        return one_line(
            f"<PteDelegate {self.index} of '{self.method}': {self.backend}, {len(self.payload)} bytes{kind}>"
        )


def tensor_of(index: int, value: _core.PteTensor, is_input: bool) -> PteTensor:
    """Returns the description of a value that is a tensor."""
    at, extra = value.allocation, value.extra
    has_data = bool(value.data) or (extra is not None and extra.location == 1)
    kind = "input" if is_input else "activation"
    if has_data:
        kind = "constant" if at is None else "state"
    return PteTensor(
        index,
        extra.name if extra is not None else "",
        scalar_type(value)[0],
        tuple(value.sizes),
        tuple(value.dim_order),
        kind,
        None if at is None else at.memory,
        None if at is None else at.offset,
        value.byte_size,
        _DYNAMISM[value.dynamism],
    )


def operator_text(op: _core.PteOperator) -> str:
    """Returns name and overload: ``aten::add.out``."""
    return op.name + (f".{op.overload}" if op.overload else "")


def instruction_text(instruction: Any, operators: tuple[str, ...]) -> str:
    """Returns an instruction as text; see `PteMethod.instructions`."""
    if isinstance(instruction, _core.PteKernelCall):
        return f"{operators[instruction.op]}({_indices(instruction.args)})"
    if isinstance(instruction, _core.PteDelegateCall):
        return f"delegate{instruction.delegate}({_indices(instruction.args)})"
    if isinstance(instruction, _core.PteMove):
        return f"%{instruction.to} = %{instruction.source}"
    if isinstance(instruction, _core.PteJumpFalse):
        return f"unless %{instruction.condition} jump to {instruction.destination}"
    return f"free %{instruction.value}"


def _indices(indices: list[int]) -> str:
    return ", ".join(f"%{i}" for i in indices)


def plain(value: Any, payloads: bool) -> Any:
    """Returns a structure of the file as plain data. Arrays are the bytes of payloads and segments."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [plain(each, payloads) for each in value]
    if hasattr(value, "nbytes"):
        return base64.b64encode(bytes(value)).decode() if payloads else value.nbytes
    kind = type(value)
    fields = {
        name: plain(getattr(value, name), payloads)
        for name, each in vars(kind).items()
        if isinstance(each, property) and each.fset is not None
    }
    return {"kind": kind.__name__.removeprefix("Pte"), **fields}
