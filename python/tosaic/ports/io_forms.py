"""Reads the requested forms of single inputs and outputs, for `lower` and `extract_io_quant`.

A port is named by path, name or index (`tosaic.ports.port_names`). The requested form is a dtype of numpy,
such as ``"int8"``, or integers with given qparams, a `tosaic.ports.QParams`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tosaic.base.dtypes import NUMPY_INTEGERS
from tosaic.base.options import IO_DTYPES, invalid, is_mapping, quant_mismatch, shown
from tosaic.base.quantization import QParams
from tosaic.ports.port_names import Named, known_names, near_names, position_of

Asked: TypeAlias = str | QParams
"""A requested form: a dtype, qparams, `AUTO` or `OWN`."""
Answer: TypeAlias = bool | QParams
"""The form of a port. False: unchanged. True: the program's own integers. QParams: integers with these."""

AUTO = "auto"  # the program's own integers if that is possible
OWN = "own integers"  # the program's own integers
_OTHER_SIGN = {"i8": ("u8", 128), "u8": ("i8", -128), "i16": ("u16", 1 << 15), "u16": ("i16", -(1 << 15))}


@dataclass(frozen=True)
class Candidates:
    """The qparams of a float input or output.

    Attributes
    ----------
    found : tuple of QParams
        The qparams with which the program quantizes the input, possibly several, or dequantizes the output.
    obstacle : str
        The reason why there are none, as a part of a sentence.
    """

    found: tuple[QParams, ...] = ()
    obstacle: str = ""


def by_port(where: str, side: str, wanted: Mapping[Any, Any], named: Sequence[Named]) -> dict[int, Asked]:
    """Returns the requested forms of single ports, by position.

    Raises
    ------
    InvalidGraph
        A key names no port, two keys name the same one, or a value is neither a dtype nor qparams.
    """
    out: dict[int, Asked] = {}
    keys: dict[int, Any] = {}
    for key, value in wanted.items():
        position = position_of(key, named)
        if position is None:
            raise _refusal(
                where, f"no such entry of {side}", known_names(named), shown(key), near_names(key, named)
            )
        if position in out:
            raise _refusal(
                where,
                f"one entry of {side} is named twice",
                "each input or output once",
                f"{keys[position]!r} and {key!r}",
            )
        keys[position] = key
        out[position] = _asked(where, f"{side[:-1]} {key!r}", value)
    return out


def _asked(where: str, who: str, value: Any) -> Asked:
    if isinstance(value, QParams):
        _require_usable(where, who, value)
        return value
    if isinstance(value, str) and (value in IO_DTYPES or value == OWN):
        return value
    expected = f"one of {', '.join(map(repr, IO_DTYPES))}, or a tosaic.ports.QParams"
    raise _refusal(where, f"{who} cannot be this", expected, shown(value))


def _require_usable(where: str, who: str, qparams: QParams) -> None:
    """Raises InvalidGraph unless qparams can belong to a whole input or output."""
    fault = ""
    if qparams.dtype not in ("i8", "u8", "i16", "i32"):
        fault = f"the dtype {shown(qparams.dtype)}"
    elif len(qparams.scales) != 1 or len(qparams.zero_points) != 1 or qparams.axis is not None:
        fault = f"{len(qparams.scales)} scales of axis {qparams.axis}"
    elif not (math.isfinite(qparams.scale) and qparams.scale > 0):
        fault = f"the scale {qparams.scale}"
    else:
        limits = np.iinfo(NUMPY_INTEGERS[qparams.dtype])
        inside = limits.min <= qparams.qmin < qparams.qmax <= limits.max
        if not inside:
            fault = f"the range {qparams.qmin} to {qparams.qmax} in {qparams.dtype}"
        elif not limits.min <= qparams.zero_point <= limits.max:
            fault = f"the zero point {qparams.zero_point} in {qparams.dtype}"
    if fault:
        raise _refusal(
            where,
            f"{who} cannot have these qparams",
            "i8, u8, i16 or i32 with one scale above 0, and a range and a zero point in the dtype",
            fault,
        )


def answer(where: str, side: str, name: str, candidates: Candidates, asked: Asked) -> Answer:
    """Returns the form that an input or output gets.

    Parameters
    ----------
    where : str
        Name of the public function.
    side : str
        ``inputs`` or ``outputs``.
    name : str
        Path of the port.

    Raises
    ------
    QuantMismatch
        The port cannot have the requested form.
    """
    found = candidates.found
    if asked == "float32":
        return False
    if asked == AUTO:
        return len(found) == 1
    if not found:
        raise mismatch(where, side, name, asked, f"a float32 {_QUANTIZED[side]}", candidates.obstacle)
    if isinstance(asked, QParams):
        return True if found == (asked,) else asked
    if len(found) > 1:
        hint = (
            "Give a tosaic.ports.QParams: the program then converts integers with these qparams "
            "to each of them"
        )
        raise mismatch(where, side, name, asked, "one quantization", _several(found), hint)
    if asked in (OWN, str(NUMPY_INTEGERS[found[0].dtype])):
        return True
    other = with_other_sign(found[0])
    if other is not None and asked == str(NUMPY_INTEGERS[other.dtype]):
        return other
    hint = "Give a tosaic.ports.QParams, which says what the integers are to represent"
    raise mismatch(where, side, name, asked, f"quantized to {asked}", f"{found[0].dtype}", hint)


_QUANTIZED = {
    "inputs": "that only quantize nodes read, also through reshapes and permutes",
    "outputs": "that a dequantize node makes, also in front of reshapes and permutes",
}


def with_other_sign(qparams: QParams) -> QParams | None:
    """Returns the qparams of the same numbers as unsigned integers instead of signed ones, or the reverse.

    None if there is no such dtype.

    Examples
    --------
    >>> with_other_sign(QParams("i8", (0.5,), (3,), -127, 127)).zero_points
    (131,)
    """
    if qparams.dtype not in _OTHER_SIGN:
        return None
    dtype, shift = _OTHER_SIGN[qparams.dtype]
    return replace(
        qparams,
        dtype=dtype,
        zero_points=tuple(zero + shift for zero in qparams.zero_points),
        qmin=qparams.qmin + shift,
        qmax=qparams.qmax + shift,
    )


def _several(found: Sequence[QParams]) -> str:
    each = (
        f"{q.dtype} {q.qmin}..{q.qmax} scale {q.scales[0]:.6g} zero point {q.zero_points[0]}"
        if q.axis is None
        else f"{q.dtype} with {len(q.scales)} scales of axis {q.axis}"
        for q in found
    )
    return f"{len(found)}: " + ", and ".join(each)


def mismatch(
    where: str, side: str, name: str, asked: Asked, expected: str, got: str, hint: str = ""
) -> Exception:
    """Returns the error for an input or output that cannot have the requested form."""
    wanted = "integers" if asked in (AUTO, OWN) else asked if isinstance(asked, str) else f"{asked.dtype}"
    return quant_mismatch(
        where, f"'{name}' of the {side} cannot be {wanted}", expected=expected, got=got, hint=hint
    )


def port_map(value: Any) -> Mapping[Any, Any] | None:
    """Returns a mapping unchanged, and for a sequence of keys a mapping to `OWN`; None for anything else."""
    if is_mapping(value):
        found: Mapping[Any, Any] = value
        return found
    if isinstance(value, tuple | list | set | frozenset):
        try:
            return dict.fromkeys(value, OWN)
        except TypeError:
            return None
    return None


def _refusal(where: str, what: str, expected: str, got: str, hint: str = "") -> Exception:
    return invalid(where, what, expected=expected, got=got, hint=hint)
