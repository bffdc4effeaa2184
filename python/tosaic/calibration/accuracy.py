"""Tools that make a quantized program more accurate: options of `tosaic.quantize`, and their gains.

>>> import tosaic
>>> tosaic.calibration.Gptq(damping=0.05)
Gptq(damping=0.05)
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tosaic import _core
from tosaic.annotation.observers import Short
from tosaic.base.options import invalid, refusal, shown

__all__ = ["BiasCorrection", "Equalize", "Gain", "Gptq", "SmoothQuant", "Tool", "tools_of"]


class Tool(Short):
    """A tool: `Equalize`, `SmoothQuant`, `Gptq` or `BiasCorrection`."""

    name = ""
    """The tool's name in reports."""


@dataclass(frozen=True, repr=False)
class Equalize(Tool):
    """Cross-layer equalisation: scales move between contractions until their channels have equal ranges.

    It helps if a weight has one scale for all channels, or if the channels of an activation have different
    ranges. The float program still computes the same, up to the rounding of weights.
    """

    name = "equalize"


@dataclass(frozen=True, repr=False)
class SmoothQuant(Tool):
    """Range differences between the channels of an activation move into the weights that read it.

    The scales go into the norm, product or contraction in front of the activation. The float program still
    computes the same, up to the rounding of weights.

    Attributes
    ----------
    alpha : float
        0: the weights get equal ranges; 1: the activations do.
    """

    name = "smooth"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        _check(self, "alpha", self.alpha, 0, 1)


@dataclass(frozen=True, repr=False)
class Gptq(Tool):
    """Weights are rounded so that the errors of a row cancel each other at the result, over the samples.

    It helps weights of few bits most. It needs memory for the products of all pairs of inputs of a
    contraction: 4 bytes times the square of their number.

    Attributes
    ----------
    damping : float
        The share of the mean diagonal of the second moments that is added to their diagonal.
    activation_order : bool
        Columns with large second moments are rounded first.
    fit_groups : bool
        Scales of groups of input channels are computed anew when their first column is rounded.
    """

    name = "gptq"
    damping: float = 0.01
    activation_order: bool = True
    fit_groups: bool = True

    def __post_init__(self) -> None:
        _check(self, "damping", self.damping, 0, math.inf)
        for flag in ("activation_order", "fit_groups"):
            if not isinstance(getattr(self, flag), bool):
                raise refusal("Gptq", flag, "True or False", getattr(self, flag))


@dataclass(frozen=True, repr=False)
class BiasCorrection(Tool):
    """The mean error that quantization makes in each channel of a contraction is subtracted from its bias.

    Contractions without a bias get one.
    """

    name = "bias_correction"


_TOOLS: Mapping[str, type[Tool]] = {each.name: each for each in (Equalize, SmoothQuant, Gptq, BiasCorrection)}


@dataclass(frozen=True)
class Gain:
    """The gain of a tool.

    Attributes
    ----------
    tool : Tool
    before_db, after_db : float
        The SQNR of the outputs against the program of floats before and after, in dB, on the first samples.
    changed : int
        How many contractions, or pairs of them, the tool changed.
    """

    tool: Tool
    before_db: float
    after_db: float
    changed: int

    @property
    def gain_db(self) -> float:
        """How much the SQNR grew."""
        return self.after_db - self.before_db


def tools_of(given: Any) -> tuple[Tool, ...]:
    """Returns the tools that an option names or contains, in the order in which they are applied.

    Raises
    ------
    InvalidGraph
        A name or object is not a tool, or a tool is there twice. The message has near names.

    Examples
    --------
    >>> tools_of(["gptq", SmoothQuant(0.7)])
    (SmoothQuant(alpha=0.7), Gptq())
    """
    listed = [given] if isinstance(given, str | Tool) else given
    if not isinstance(listed, list | tuple):
        raise _no_tool(given)
    found: dict[str, Tool] = {}
    for each in listed:
        tool = _TOOLS[each]() if isinstance(each, str) and each in _TOOLS else each
        if not isinstance(tool, Tool) or tool.name not in _TOOLS:
            raise _no_tool(each)
        if tool.name in found:
            raise refusal("quantize", "tools", f"'{tool.name}' once", given)
        found[tool.name] = tool
    return tuple(found[name] for name in _TOOLS if name in found)


def _no_tool(given: Any) -> Exception:
    return invalid(
        "quantize",
        "unknown value of 'tools'",
        expected=", ".join(map(repr, _TOOLS)) + ", or objects of tosaic.calibration.accuracy",
        got=shown(given),
        hint=_core.did_you_mean(given, list(_TOOLS)) if isinstance(given, str) else "",
    )


def _check(tool: Tool, name: str, value: Any, least: float, most: float) -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or math.isinf(value):
        expected = f"a number, {least} or more" if math.isinf(most) else f"a number from {least} to {most}"
        raise refusal(type(tool).__name__, name, expected, value)
