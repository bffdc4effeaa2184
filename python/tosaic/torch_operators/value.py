"""The values of FX nodes while their graph is being read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class Ref:
    """A tensor value of the graph being built. The core also makes such objects, through their slots.

    Attributes
    ----------
    id : int
        The builder's number of the value.
    dtype : int
        Position in DTYPES.
    shape : sequence of int
    held : object
        For a constant, the object from which the reader reads its elements; None for other values.
    """

    __slots__ = ("dtype", "held", "id", "shape")

    def __init__(self, value_id: int, dtype: int, shape: Sequence[int], held: Any = None) -> None:
        self.id = value_id
        self.dtype = dtype
        self.shape = shape
        self.held = held


@dataclass(frozen=True)
class Complex:
    """A complex tensor: its real and its imaginary part, of one dtype and shape."""

    real: Ref
    imag: Ref


@dataclass(frozen=True)
class NoValue:
    """The result of a call that has no value in the graph: an assertion, or a number that depends on data.

    Attributes
    ----------
    target : str
        The operator.
    place : str
        The place where a number is read from data, such as ``node 'item', model.py:12``; empty for others.
    tensor : Ref or None
        For a number that is the only element of a tensor: the tensor, of rank 0. Rows that `reads_data` marks
        compute with it.
    """

    target: str
    place: str = ""
    tensor: Ref | None = None


@dataclass(frozen=True)
class Wrapper:
    """A weight of a tensor subclass, such as a quantized weight of torchao, which consists of other tensors.

    Attributes
    ----------
    inner : callable
        Returns the `Ref` of an inner tensor by the name of its attribute, or another `Wrapper`.
    """

    inner: Callable[[str], Any]


def tensors_of(value: Any) -> list[Ref | Complex]:
    """Returns every tensor in nested arguments, in order."""
    if isinstance(value, Ref | Complex):
        return [value]
    return [ref for item in value for ref in tensors_of(item)] if isinstance(value, list | tuple) else []
