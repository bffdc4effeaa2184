"""Observers as data: rules by which the scale and zero point of a tensor follow from its samples. No torch.

The code that runs a calibration implements them: `tosaic.Quantizer` by torchao's observers. They are values:
they compare by their fields, and their `repr` is valid code.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tosaic import _core
from tosaic.base.options import invalid, shown, unsupported

__all__ = [
    "ByUse",
    "Entropy",
    "LeastError",
    "LeastErrorBehind",
    "MASK_OF_INFINITY",
    "meets_scores",
    "MaskRange",
    "MinMax",
    "MovingAverage",
    "Observer",
    "Percentile",
    "WholeNumbers",
    "observer_of",
]

_EPS = 2.0**-23
MASK_OF_INFINITY = (
    "hides scores with minus infinity, and the least integer stands for other numbers, too: in a row that it "
    "hides as a whole, shares follow from the scores, where floats give 0 (scaled_dot_product_attention, "
    "nan_to_num) or NaN. If there are such rows, pass a mask of bools, or make that of floats from bools "
    "inside of the model"
)
_MOST_VISIBLE = 2.0**13  # in masks: steps of 1/4
_F32_MOST = 3.4028234663852886e38
_F32_LEAST = 2.0**-149


class Short:
    """A dataclass whose `repr` leaves out fields that have their defaults."""

    def __repr__(self) -> str:
        fields = type(self).__dict__["__dataclass_fields__"].values()
        shown = [(f, getattr(self, f.name)) for f in fields]
        parts = [f"{f.name}={value!r}" for f, value in shown if value != f.default]
        return f"{type(self).__name__}({', '.join(parts)})"


class Observer(Short):
    """The base of all observers that are data. Only this module has subclasses.

    Attributes
    ----------
    eps : float
        The least scale.
    """

    per_channel: ClassVar[bool] = False
    """True if the observer can compute a scale for each channel."""

    eps: float

    def __init_subclass__(cls) -> None:
        """Refuses subclasses in other modules, so that code that implements observers knows all of them."""
        if cls.__module__ != __name__:
            raise unsupported(
                "Observer",
                "no other observers can be defined",
                expected="the observers of tosaic.annotation",
                got=cls.__name__,
                hint="A constructor of torchao's observers is accepted as an observer, too.",
            )

    def __post_init__(self) -> None:
        """Checks the numbers and converts them to float."""
        self._set_number("eps", _F32_LEAST, _F32_MOST, "a positive number that a float32 can hold")

    def _set_number(self, name: str, least: float, most: float, expected: str) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not least <= value <= most:
            raise invalid(type(self).__name__, f"'{name}' is wrong", expected=expected, got=shown(value))
        object.__setattr__(self, name, float(value))


@dataclass(frozen=True, repr=False)
class MinMax(Observer):
    """The range of all samples, with a scale for which the least and the greatest just fit.

    Attributes
    ----------
    eps : float
        The least scale.

    Raises
    ------
    InvalidGraph
        `eps` is not positive, or no number.

    Examples
    --------
    >>> MinMax(eps=2**-12)
    MinMax(eps=0.000244140625)
    """

    per_channel: ClassVar[bool] = True
    eps: float = _EPS


@dataclass(frozen=True, repr=False)
class MovingAverage(Observer):
    """The range between moving averages of the least and the greatest sample of each batch.

    Unlike that of other observers, the result depends on the order of the batches and on how samples are
    split into them.

    Attributes
    ----------
    weight : float
        The weight of a new batch in the averages: they move by this part of the distance to its bounds.
    eps : float
        The least scale.

    Raises
    ------
    InvalidGraph
        `weight` is not above 0 and at most 1, or `eps` is not positive.
    """

    weight: float = 0.01
    eps: float = _EPS

    def __post_init__(self) -> None:
        """Checks the numbers and converts them to float."""
        super().__post_init__()
        self._set_number("weight", _F32_LEAST, 1, "a number above 0, and 1 at most")


@dataclass(frozen=True, repr=False)
class MaskRange(Observer):
    """The range of a mask that is added to scores before a softmax: elements that hide a score still hide it.

    Numbers of -5000 and below, and minus infinity, hide. The range ends 1024 beyond the largest magnitude of
    the other numbers, so all hiding numbers saturate there, whatever their size in the samples. If the other
    numbers are all 0, and the hiding numbers are -1e8 or below, the range ends at the greatest hiding number:
    the scores of a completely hidden row then vanish as they do in floats. Minus infinity becomes the
    least integer. If samples hide by minus infinity only, hiding integers are dequantized to minus infinity.
    If they also hide by other numbers, a completely hidden row has shares where floats have 0 or NaN: a
    warning names the mask.

    Attributes
    ----------
    eps : float
        The least scale.

    Raises
    ------
    InvalidGraph
        `eps` is not positive, or no number.
    """

    eps: float = _EPS

    @staticmethod
    def coarse(mask: Any) -> str:
        """Returns a warning for numbers that hide no score but are too large for one; '' if there are none.

        Parameters
        ----------
        mask : ObservedMask
        """
        visible = mask.visible
        most = max(-visible.least, visible.greatest) if visible.finite else 0.0
        if most <= _MOST_VISIBLE:
            return ""
        return (
            f"holds numbers of magnitude {most:.4g} that hide no score (numbers of {_core.MASK_HIDES:.4g} "
            f"and below do), and 16 bits have steps of {most / 2**15:.2g} for all of them"
        )

    @staticmethod
    def infinite(mask: Any, *, restored: bool) -> str:
        """Returns a warning if integers cannot represent minus infinity in a mask; else ''.

        Parameters
        ----------
        mask : ObservedMask
        restored : bool
            True if integers are dequantized to minus infinity whenever `infinite_below` returns a number.
        """
        lost = mask.hidden.infinities and (mask.hidden.finite or not restored)
        return MASK_OF_INFINITY if lost else ""

    @staticmethod
    def infinite_below(mask: Any, least: float) -> float | None:
        """Returns the number up to which integers mean minus infinity; None if samples also hide otherwise.

        Parameters
        ----------
        mask : ObservedMask
        least : float
            The number that the least integer represents.
        """
        if not mask.hidden.infinities or mask.hidden.finite:
            return None
        return (least + (mask.visible.least if mask.visible.finite else 0.0)) / 2


def meets_scores(reader: str, behind: Sequence[str]) -> bool:
    """True if the call adds its operand to scores, so that dequantized masks may be minus infinity there.

    Parameters
    ----------
    reader : str
        The target of the call, as ``"aten.add.Tensor"``.
    behind : sequence of str
        The targets of the calls that read its result.
    """
    if reader.startswith("aten.scaled_dot_product_attention."):
        return True
    return reader.startswith("aten.add.") and bool(behind) and all("softmax." in each for each in behind)


@dataclass(frozen=True, repr=False)
class Percentile(Observer):
    """The range that contains a certain share of all samples.

    An affine range has the same number of samples below and above it. A symmetric range contains the share of
    the magnitudes. `numpy.quantile` finds the same bounds, up to the width of a bin of the histogram.

    Attributes
    ----------
    percent : float
        The share of the samples, above 0 and at most 100.
    eps : float
        The least scale.

    Raises
    ------
    InvalidGraph
        `percent` is not above 0 and at most 100, or `eps` is not positive.
    """

    percent: float = 99.99
    eps: float = _EPS

    def __post_init__(self) -> None:
        """Checks the numbers and converts them to float."""
        super().__post_init__()
        self._set_number("percent", _F32_LEAST, 100, "a number above 0, and 100 at most")

    @property
    def fraction(self) -> float:
        """The share of the samples as a fraction of 1."""
        return self.percent / 100


@dataclass(frozen=True, repr=False)
class LeastError(Observer):
    """The range with the least expected squared error of a sample, including the error of clipping.

    Attributes
    ----------
    eps : float
        The least scale.

    Raises
    ------
    InvalidGraph
        `eps` is not positive, or no number.
    """

    per_channel: ClassVar[bool] = True
    eps: float = _EPS


@dataclass(frozen=True, repr=False)
class WholeNumbers(Observer):
    """For samples that are whole numbers: quantized whole numbers are exact.

    The scale is the smallest power of two with which the range of all samples fits. It must be exact, because
    a cast to an integer, which drops the fraction, makes 11 of 11.999999. If the range needs a scale above 1,
    the observer works as `LeastError`.

    Attributes
    ----------
    eps : float
        The least scale.

    Raises
    ------
    InvalidGraph
        `eps` is not positive, or no number.
    """

    eps: float = _EPS

    @staticmethod
    def qparams(samples: Any, **options: Any) -> tuple[float, int] | None:
        """Returns the scale and the zero point for a range of samples.

        Parameters
        ----------
        samples : ObservedRange
        **options
            The options of ``_core.range_qparams``.

        Returns
        -------
        (float, int) or None
            None: there are no samples, or the scale would be above 1.
        """
        scale, zero_point = _core.range_qparams(samples, **options)
        if not samples.finite or scale > 1:
            return None
        mantissa, exponent = math.frexp(scale)
        scale = math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)
        if options["symmetric_zero_point"] is None:
            zero_point = options["qmin"] - math.floor(min(samples.least, 0.0) / scale)
        return scale, min(max(zero_point, options["qmin"]), options["qmax"])

    @staticmethod
    def coarse(samples: Any, **options: Any) -> str:
        """Returns a warning for samples for which `qparams` returned None; '' without samples.

        Parameters
        ----------
        samples : ObservedRange
        **options
            The options of ``_core.range_qparams``.
        """
        if not samples.finite:
            return ""
        count = options["qmax"] - options["qmin"] + 1
        return (
            f"holds whole numbers from {samples.least:.6g} to {samples.greatest:.6g}, which {count:,} "
            "integers do not represent: a cast to an integer makes others of them. 16 bits keep them"
        )


@dataclass(frozen=True, repr=False)
class LeastErrorBehind(Observer):
    """The range with the least expected squared error of the result of the only call that reads the tensor.

    `choose_observers` chooses it. It refers to a node of one graph, so configurations cannot have it.

    Attributes
    ----------
    reader : str
        Name of the node that reads the tensor: a call of an elementwise function.
    eps : float
        The least scale.

    Raises
    ------
    InvalidGraph
        `reader` is not a name, or `eps` is not positive.
    """

    reader: str = ""
    eps: float = _EPS

    def __post_init__(self) -> None:
        """Checks the name of the reader, and the least scale."""
        super().__post_init__()
        reader: Any = self.reader
        if not isinstance(reader, str) or not reader:
            raise invalid(
                "LeastErrorBehind", "'reader' is wrong", expected="the name of a node", got=shown(self.reader)
            )


@dataclass(frozen=True, repr=False)
class Entropy(Observer):
    """The range with the least Kullback-Leibler divergence between samples and quantized samples.

    The divergence compares two histograms: of the samples clipped to the range, and of the quantized samples,
    in which each step spreads its samples evenly, and clipped samples are left out.

    Attributes
    ----------
    eps : float
        The least scale.

    Raises
    ------
    InvalidGraph
        `eps` is not positive, or no number.
    """

    eps: float = _EPS


@dataclass(frozen=True, repr=False)
class ByUse(Observer):
    """The observer depends on how the tensor is used: the default for activations.

    Inputs of the program get `MinMax`. Results that only an elementwise function reads get
    `LeastErrorBehind`, whole numbers `WholeNumbers`, and other tensors `LeastError`. `choose_observers`
    chooses among them.

    Attributes
    ----------
    eps : float
        The least scale.

    Raises
    ------
    InvalidGraph
        `eps` is not positive, or no number.
    """

    eps: float = _EPS


ACTIVATION_OBSERVERS: Mapping[str, type[Observer]] = {
    "minmax": MinMax,
    "moving_average": MovingAverage,
    "percentile": Percentile,
    "mse": LeastError,
    "entropy": Entropy,
}
"""The observers of activations by the names that configurations accept."""

WEIGHT_OBSERVERS: Mapping[str, type[Observer]] = {"minmax": MinMax, "mse": LeastError}
"""The observers of weights by the names that configurations accept."""


def observer_of(value: Any, where: str, option: str, known: Mapping[str, type[Observer]]) -> Observer | None:
    """Returns the observer that an option names or is; None for None.

    Parameters
    ----------
    value : str, Observer or None
    where, option : str
        The function and the option, for the message.
    known : mapping of str to type
        The names that the option accepts.

    Raises
    ------
    InvalidGraph
        The value is another name, or something else. The message has near names.

    Examples
    --------
    >>> observer_of("percentile", "an example", "observer", ACTIVATION_OBSERVERS)
    Percentile()
    """
    if value is None or (isinstance(value, Observer) and type(value) in known.values()):
        return value
    if isinstance(value, str) and value in known:
        return known[value]()
    raise invalid(
        where,
        f"unknown value of '{option}'",
        expected=f"{_listed([repr(name) for name in known])}, or an observer such as "
        f"{list(known.values())[-1].__name__}()",
        got=shown(value),
        hint=_core.did_you_mean(value, list(known)) if isinstance(value, str) else "",
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
