"""Quantization parameters (qparams), and how to find them for the inputs and outputs of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tosaic import _core
from tosaic.base.dtypes import NUMPY_INTEGERS, is_float
from tosaic.base.options import quant_mismatch

_Array = np.ndarray[Any, Any]


class Groups(NamedTuple):
    """Groups of `size` consecutive positions of `axis`, each with its own scale and zero point."""

    axis: int
    size: int


@dataclass(frozen=True)
class QParams:
    """Quantization parameters: the integer q represents ``(q - zero_point) * scale``.

    Attributes
    ----------
    dtype : str
        Dtype of the integers: ``i8``, ``u8``, ``i16`` ...
    scales : tuple of float
        One scale, or one for each index of `axis`. With `groups`, one for each index of `axis` and each
        group, in the order ``[axis, groups]``.
    zero_points : tuple of int
        One zero point for each scale.
    qmin, qmax : int
        The least and the greatest integer in use. The dtype may have more integers.
    axis : int or None
        The axis of per-channel qparams. None: one scale and zero point for the whole tensor.
    groups : Groups or None
        The axis that is divided into groups, and the size of a group. A tuple ``(axis, size)`` is accepted.
    """

    dtype: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    qmin: int
    qmax: int
    axis: int | None = None
    groups: Groups | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and type(self.groups) is not Groups:
            object.__setattr__(self, "groups", Groups(*self.groups))

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> QParams:
        """Converts the attributes of a Q/DQ node with the key ``storage`` added."""
        return cls(
            str(source["storage"]),
            tuple(map(float, source["scales"])),
            tuple(map(int, source["zero_points"])),
            int(source["qmin"]),
            int(source["qmax"]),
            source["axis"],
            source.get("groups"),
        )

    @property
    def scale(self) -> float:
        """The only scale.

        Raises
        ------
        QuantMismatch
            There are several scales: see `scales`.
        """
        return float(self._only(self.scales, "scale"))

    @property
    def zero_point(self) -> int:
        """The only zero point.

        Raises
        ------
        QuantMismatch
            There are several zero points: see `zero_points`.
        """
        return int(self._only(self.zero_points, "zero_point"))

    def quantize(self, array: Any) -> _Array:
        """Quantizes floats, rounding and clamping as torch's `quantize_per_tensor`; NaN becomes integer 0.

        The result has the shape of `array`, and the numpy dtype of `self.dtype` (int8 for ``i4``).

        Examples
        --------
        >>> QParams("i8", (0.5,), (3,), -128, 127).quantize([0.0, 1.0, 100.0]).tolist()
        [3, 5, 127]
        """
        floats = np.asarray(array, np.float32)
        inverse = self._spread(np.asarray(1.0 / np.asarray(self.scales), np.float32), floats.shape)
        zero_point = self._spread(np.asarray(self.zero_points, np.float32), floats.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = np.rint(floats * inverse) + zero_point
        bounded = np.clip(rounded.astype(np.float64), self.qmin, self.qmax)
        return np.asarray(np.where(np.isnan(bounded), 0, bounded).astype(NUMPY_INTEGERS[self.dtype]))

    def dequantize(self, array: Any) -> _Array:
        """Returns the float32 numbers that integers represent, in the shape of `array`.

        Examples
        --------
        >>> QParams("i8", (0.5,), (3,), -128, 127).dequantize([3, 5, 127]).tolist()
        [0.0, 1.0, 62.0]
        """
        numbers = np.asarray(np.asarray(array), np.float32)
        zero_point = self._spread(np.asarray(self.zero_points, np.float32), numbers.shape)
        return np.asarray(
            (numbers - zero_point) * self._spread(np.asarray(self.scales, np.float32), numbers.shape),
            np.float32,
        )

    def _spread(self, numbers: _Array, extents: Sequence[int]) -> Any:
        """Returns one number for each scale in a shape that broadcasts to a tensor with these extents."""
        if self.axis is None:
            return numbers[0]
        shape = [1] * len(extents)
        shape[self.axis] = extents[self.axis]
        if self.groups is None:
            return numbers.reshape(shape)
        along, size = self.groups
        each = np.repeat(numbers.reshape(extents[self.axis], -1), size, axis=1)
        shape[along] = extents[along]
        return (each if self.axis < along else each.T).reshape(shape)

    def _only(self, numbers: Sequence[Any], what: str) -> Any:
        if len(numbers) != 1:
            raise quant_mismatch(
                "qparams",
                f"there is no single {what}",
                expected=f"one {what} for the whole tensor",
                got=f"{len(numbers)}, one for each index of axis {self.axis}"
                + (
                    ""
                    if self.groups is None
                    else f" and each group of {self.groups.size} indices of axis {self.groups.axis}"
                ),
            )
        return numbers[0]


def quantizations_of_input(port: _core.Input) -> tuple[QParams, ...]:
    """Returns the qparams with which a float input is quantized, or an integer input is dequantized.

    The result has the qparams of the input itself or, if it has none, the qparams of the quantize or
    dequantize nodes that read the input. If a node reads the input through views or other data movement, only
    per-tensor qparams count. The result is empty if the graph has no qparams for the input.
    """
    known = port.qparams or port.value.qparams
    if known is not None:
        return (known,)
    op = "quantize" if is_float(port.dtype) else "dequantize"
    found = (_of_node(node, value, port.value) for node, value in _readers(port.value, op))
    return tuple(dict.fromkeys(q for q in found if q is not None))


def quantizations_of_output(port: _core.Output) -> tuple[QParams, ...]:
    """Returns the qparams, at most one, with which a float output is dequantized or integers are quantized.

    They are found as in `quantizations_of_input`, at the node that produces the output.
    """
    known = port.qparams or port.value.qparams
    if known is not None:
        return (known,)
    op = "dequantize" if is_float(port.dtype) else "quantize"
    value = port.value
    while (node := value.producer) is not None:
        if node.op == op:
            found = _of_node(node, node.results[0], port.value)
            return () if found is None else (found,)
        if not _moves(node) or node.operands[0] is None:
            break
        value = node.operands[0]
    return ()


def _readers(value: _core.Value, op: str) -> Iterator[tuple[_core.Node, _core.Value]]:
    """Yields each node of operator `op` that reads the value or a moved form of it, with that operand."""
    waiting = [value]
    while waiting:
        current = waiting.pop(0)
        for node in current.users:
            if node.op == op:
                yield node, current
            elif _moves(node) and node.operands[0] == current:
                waiting += node.results


def _of_node(node: _core.Node, read: _core.Value, port: _core.Value) -> QParams | None:
    """Returns the qparams of a quantize or dequantize node.

    None if they are per-channel and data movement, which may change the axis, is between the node and `port`.
    """
    attrs = dict(node.attrs)
    if attrs["axis"] is not None and read != port:
        return None
    if node.op == "quantize":
        storage = attrs["dtype"]
    else:
        operand = node.operands[0]
        storage = None if operand is None else operand.dtype
    return None if storage not in NUMPY_INTEGERS else QParams.of({**attrs, "storage": storage})


def _moves(node: _core.Node) -> bool:
    """Returns whether the node rearranges its operand, or converts it between f32 and a float of 16 bits."""
    if node.op != "cast" or node.operands[0] is None:
        return node.op in _movement()
    dtypes = {node.operands[0].dtype, node.results[0].dtype}
    return "f32" in dtypes and not dtypes.isdisjoint(("f16", "bf16"))


@lru_cache(maxsize=1)
def _movement() -> frozenset[str]:
    """Returns operators whose result is a rearrangement of the elements of the first operand."""
    return frozenset(
        op.name
        for op in _core.ops()
        if not op.is_tosa
        and {"view", "movement"} & set(op.traits)
        and op.operands.startswith("input")
        and "source" not in op.operands
    )
