"""How one tensor is quantized (specs), and to which tensors of a graph this applies (slots).

A slot is the output of a node or the edge from a producer to a user, by the names of the nodes::

    conv -> relu        Output("conv"), Edge("conv", "relu"), Output("relu")

Specs and slots are values: they compare by their fields, and their `repr` is valid code.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from tosaic.annotation.observers import Observer, Short
from tosaic.base.dtypes import BITS, TORCH
from tosaic.base.options import invalid, shown, whole_number

__all__ = [
    "FLOAT",
    "UNSET",
    "Derived",
    "Edge",
    "Fixed",
    "Float",
    "Foreign",
    "Observed",
    "Output",
    "Shared",
    "Slot",
    "Spec",
    "Unset",
    "q_format",
]

TORCH_NAMES: dict[str, str] = {**TORCH, "i4": "int4"}
"""Name of a dtype in graphs -> its name in torch."""

GRAPH_NAMES: dict[str, str] = {torch: name for name, torch in TORCH_NAMES.items()}
"""Name of a dtype in torch -> its name in graphs."""

_LEAST_SCALE, _MOST_SCALE = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # of float32, with all bits


@dataclass(frozen=True, slots=True)
class Edge:
    """The tensor that `user` reads from `producer`.

    A user that reads a producer twice has one edge.

    Attributes
    ----------
    producer, user : str
        Names of nodes.
    """

    producer: str
    user: str

    def __repr__(self) -> str:
        return f"Edge({self.producer!r}, {self.user!r})"


@dataclass(frozen=True, slots=True)
class Output:
    """The tensor that a node computes.

    Attributes
    ----------
    node : str
        Name of the node.
    """

    node: str

    def __repr__(self) -> str:
        return f"Output({self.node!r})"


Slot: TypeAlias = Edge | Output
"""A place in a graph that has at most one spec."""


@dataclass(frozen=True, repr=False)
class Observed(Short):
    """Scale and zero point are computed from the numbers that an observer sees.

    Attributes
    ----------
    dtype : str
        Torch's name (``"int8"``), or the name in graphs (``"i8"``), which becomes torch's name.
        ``torch.int8`` and torch's schemes become their names.
    qmin, qmax : int, optional
        The range of the integers. None: the range of the dtype.
    scheme : str, optional
        Torch's name: ``"per_tensor_affine"``, ``"per_tensor_symmetric"``, ``"per_channel_affine"`` or
        ``"per_channel_symmetric"``, or any other name.
    axis : int, optional
        The axis of the channels, for a scheme per channel.
    dynamic : bool
        The qparams are computed in each run.
    observer : Observer or callable, optional
        An observer as data, such as ``MinMax()``, or a constructor of torchao's observers or fake-quant
        modules. None: the default of the code that writes the plan. Observers that are data and can compute a
        scale per channel are `MinMax` and `LeastError`.
    group_size : int, optional
        The number of positions in a group: each group of each channel has a scale. The `axis` is 0 or 1, and
        the groups are along the other one of these two axes: groups of a weight's input channels.
    """

    dtype: str = "int8"
    qmin: int | None = None
    qmax: int | None = None
    scheme: str | None = "per_tensor_affine"
    axis: int | None = None
    dynamic: bool = False
    observer: Any = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        _check(self)
        per_channel = self.scheme is not None and self.scheme.startswith("per_channel")
        self._check_observer(per_channel)
        if self.group_size is None:
            return
        _set_whole(self, "group_size", "the group size", None)
        if self.group_size < 1 or not per_channel:
            raise invalid(
                type(self).__name__,
                "groups need a positive size and a scheme per channel",
                expected="group_size=32 and scheme='per_channel_symmetric'",
                got=f"group_size={self.group_size!r} and scheme={self.scheme!r}",
            )

    def _check_observer(self, per_channel: bool) -> None:
        observer = self.observer
        if observer is None:
            return
        if isinstance(observer, Observer):
            if per_channel and not observer.per_channel:
                raise _refusal(
                    self, "the observer", "MinMax() or LeastError() for a scheme per channel", observer
                )
            if self.dynamic:
                raise _refusal(self, "the observer", "dynamic=False for an observer as data", observer)
        elif not callable(observer) or (isinstance(observer, type) and issubclass(observer, Observer)):
            expected = "what makes an observer of torchao, such as its class, or data such as MinMax()"
            raise _refusal(self, "the observer", expected, observer)


@dataclass(frozen=True, repr=False)
class Fixed(Short):
    """Scale and zero point are known: ``real = (integer - zero_point) * scale``.

    Attributes
    ----------
    dtype, scheme, dynamic
        As in `Observed`.
    qmin, qmax : int, optional
        The range of the integers. None becomes the bound of the dtype, if that is an integer dtype.
    scale : float
        Positive.
    zero_point : int
    """

    dtype: str
    scale: float
    zero_point: int = 0
    qmin: int | None = None
    qmax: int | None = None
    scheme: str | None = "per_tensor_affine"
    dynamic: bool = False

    def __post_init__(self) -> None:
        _check(self)
        scale = self.scale
        if isinstance(scale, bool) or not isinstance(scale, numbers.Real) or not 0 < scale < math.inf:
            raise _refusal(self, "the scale", "a positive, finite number", scale)
        if not _LEAST_SCALE <= scale <= _MOST_SCALE:
            raise _refusal(self, "the scale", f"{_LEAST_SCALE:.3g} to {_MOST_SCALE:.3g}, as a float32", scale)
        object.__setattr__(self, "scale", float(scale))
        limits = range_of(self.dtype)
        _set_whole(self, "zero_point", "the zero point", limits)
        if limits is not None:
            object.__setattr__(self, "qmin", limits[0] if self.qmin is None else self.qmin)
            object.__setattr__(self, "qmax", limits[1] if self.qmax is None else self.qmax)
            if self.qmin >= self.qmax:
                raise _refusal(self, "the range", "qmin below qmax", (self.qmin, self.qmax))
        if self.scheme is not None and self.scheme.startswith("per_channel"):
            raise _refusal(self, "the scheme", "one per tensor, such as 'per_tensor_affine'", self.scheme)


@dataclass(frozen=True)
class Shared:
    """The same qparams as another slot.

    Attributes
    ----------
    slot : Edge or Output
    """

    slot: Slot

    def __post_init__(self) -> None:
        if not isinstance(self.slot, Edge | Output):
            raise _refusal(self, "the slot", "Edge(producer, user) or Output(node)", self.slot)

    def __repr__(self) -> str:
        return f"Shared({self.slot!r})"


@dataclass(frozen=True, repr=False)
class Derived(Short):
    """A function computes the qparams from the qparams of other slots.

    Attributes
    ----------
    slots : tuple of Edge or Output
    function : callable
        Takes the observers of the slots; returns scale and zero point.
    dtype, qmin, qmax, scheme, axis, dynamic
        As in `Observed`.
    """

    slots: tuple[Slot, ...]
    function: Any
    dtype: str = "int32"
    qmin: int | None = None
    qmax: int | None = None
    scheme: str | None = "per_tensor_symmetric"
    axis: int | None = None
    dynamic: bool = False

    def __post_init__(self) -> None:
        found: Any = self.slots
        slots = tuple(found) if isinstance(found, list | tuple) else ()
        if not slots or not all(isinstance(slot, Edge | Output) for slot in slots):
            raise _refusal(self, "what it is derived from", "a tuple of Edge or Output", self.slots)
        if not callable(self.function):
            raise _refusal(self, "the function", "a function of the observers of the slots", self.function)
        object.__setattr__(self, "slots", slots)
        _check(self)


@dataclass(frozen=True)
class Float:
    """The tensor stays float, because a rule or quantizer said so. `FLOAT` is the only value.

    A slot without a spec stays float, too, but no rule or quantizer said so.
    """

    def __repr__(self) -> str:
        return "FLOAT"


FLOAT = Float()
"""The tensor stays float."""


class Unset(Enum):
    """The type of `UNSET`, which represents a spec that a rule does not change."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return self.name


UNSET = Unset.UNSET
"""A rule does not change the spec: the spec of the quantizer that made the plan stays."""


@dataclass(frozen=True)
class Foreign:
    """A spec of a kind that tosaic does not know; it is written back as it was read.

    Attributes
    ----------
    object : object
        The spec itself.
    fields : mapping of str to object
        The fields of the spec that implicit sharing compares, as far as it has them: ``dtype``, ``qmin``,
        ``qmax``, ``scheme``, ``axis``, ``dynamic``, ``scale``, ``zero_point``. Two values are equal if their
        string forms are.
    """

    object: Any
    fields: Mapping[str, Any] = field(default_factory=dict)


Spec: TypeAlias = Observed | Fixed | Shared | Derived | Float | Foreign
"""The spec of a slot."""


def q_format(name: str, *, dtype: str | None = None) -> Fixed:
    """Returns the fixed-point format of a name.

    Parameters
    ----------
    name : str
        ``"Qm.n"``: a sign, m bits before the point and n after it, so that the scale is 2^-n. ``"Qn"`` means
        ``"Q0.n"``: ``"Q7"`` is int8 with scale 1/128, ``"Q15"`` int16 with scale 1/32768.
    dtype : str, optional
        A dtype with more bits than 1 + m + n. The range stays the range of the format.

    Returns
    -------
    Fixed
        With zero point 0, and the narrowest of int8, int16 and int32 that has 1 + m + n bits.

    Raises
    ------
    InvalidGraph
        `name` is not such a name, or the dtype has too few bits.

    Examples
    --------
    >>> q_format("Q0.7")
    Fixed(dtype='int8', scale=0.0078125, qmin=-128, qmax=127, scheme='per_tensor_symmetric')
    >>> q_format("Q3.4") == q_format("Q3.4", dtype="i8")
    True
    """
    match = re.fullmatch(r"Q(?:([0-9]{1,2})\.)?([0-9]{1,2})", str(name))
    bits = 0 if match is None else 1 + int(match[1] or 0) + int(match[2])
    if match is None or not 2 <= bits <= 32:
        raise invalid(
            "q_format",
            "unknown fixed-point format",
            expected="'Qm.n' or 'Qn' with at most 31 bits, such as 'Q0.7', 'Q15' or 'Q3.12'",
            got=repr(name),
        )
    if dtype is None:
        dtype = next(name for name, size in (("int8", 8), ("int16", 16), ("int32", 32)) if bits <= size)
    half = 1 << (bits - 1)
    scale = 2.0 ** -int(match[2])
    made = Fixed(dtype, scale)  # converts the dtype
    size = BITS.get(GRAPH_NAMES.get(made.dtype, made.dtype), 0)
    if not made.dtype.startswith("int") or size < bits:
        raise invalid(
            "q_format",
            f"the dtype cannot hold {name}",
            expected=f"a signed integer dtype of at least {bits} bits",
            got=repr(dtype),
        )
    return Fixed(dtype, scale, 0, -half, half - 1, "per_tensor_symmetric")


def range_of(dtype: str) -> tuple[int, int] | None:
    """Returns the least and the largest integer of a dtype of torch; None if it is not an integer dtype."""
    name = GRAPH_NAMES.get(dtype, "")
    bits = BITS.get(name, 0)
    if name.startswith("u"):
        return 0, 2**bits - 1
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if name.startswith("i") else None


def integers_of(spec: Observed | Fixed | Derived) -> tuple[int, int]:
    """Returns the least and the largest integer of a spec: its own bounds, else the bounds of its dtype."""
    least, greatest = range_of(spec.dtype) or (0, 0)
    return (
        least if spec.qmin is None else spec.qmin,
        greatest if spec.qmax is None else spec.qmax,
    )


def is_symmetric(spec: Any) -> bool:
    """True if the scheme of a spec determines its zero point."""
    return str(spec.scheme).endswith("symmetric")


def _refusal(spec: Any, what: str, expected: str, got: Any) -> Exception:
    return invalid(type(spec).__name__, f"{what} is wrong", expected=expected, got=shown(got))


def _check(spec: Any) -> None:
    """Converts names and numbers of a spec, and refuses those that no tensor can have.

    Dtypes and schemes of torch become their names.
    """
    for field_name, what, example in (
        ("dtype", "the dtype", "int8"),
        ("scheme", "the scheme", "per_tensor_affine"),
    ):
        value = getattr(spec, field_name)
        if value is None and field_name == "scheme":
            continue
        name = value if isinstance(value, str) else str(value)
        if not name or not (isinstance(value, str) or name.startswith("torch.")):
            raise _refusal(spec, what, f"a name such as {example!r}", value)
        name = name.removeprefix("torch.")
        if field_name == "dtype":
            name = TORCH_NAMES.get(name, name)
        if name is not value:
            object.__setattr__(spec, field_name, name)
    if not isinstance(spec.dynamic, bool):
        raise _refusal(spec, "the flag 'dynamic'", "True or False", spec.dynamic)
    limits = range_of(spec.dtype)
    for bound in ("qmin", "qmax"):
        _set_whole(spec, bound, "the range", limits, optional=True)
    if spec.qmin is not None and spec.qmax is not None and spec.qmin >= spec.qmax:
        raise _refusal(spec, "the range", "qmin below qmax", (spec.qmin, spec.qmax))
    if hasattr(spec, "axis"):
        _set_whole(spec, "axis", "the axis", None, optional=True)


def _set_whole(
    spec: Any, name: str, what: str, limits: tuple[int, int] | None, *, optional: bool = False
) -> None:
    """Converts a field to int, and refuses a number that is not whole or is beyond the dtype's limits."""
    value = getattr(spec, name)
    if value is None and optional:
        return
    try:
        whole = whole_number(value)
    except TypeError:
        raise _refusal(spec, what, f"a whole number as {name}", value) from None
    if limits is not None and not limits[0] <= whole <= limits[1]:
        expected = f"{name} of {spec.dtype} in {limits[0]}..{limits[1]}"
        raise _refusal(spec, what, expected, value)
    if whole is not value:
        object.__setattr__(spec, name, whole)
