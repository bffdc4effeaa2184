"""The constructors of torchao's observers and fake-quant modules for observers that are data.

MinMax()                      TosaicMinMaxObserver, TosaicPerChannelMinMaxObserver
LeastError(), ByUse()         TosaicHistogramObserver, TosaicPerChannelHistogramObserver
Percentile(), Entropy()       TosaicPercentileObserver, TosaicEntropyObserver
WholeNumbers()                TosaicWholeNumbersObserver
MaskRange()                   TosaicMaskObserver
MinMax() with groups          TosaicPerChannelGroupObserver, with a search for LeastError()

In training, a fake-quant module is around the observer, and ranges of activations are moving averages,
except for `MinMax` and `MaskRange`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torchao.quantization.pt2e import FakeQuantize
from torchao.quantization.pt2e.fake_quantize import AffineFakeQuantize

from tosaic.annotation.observers import (
    ByUse,
    Entropy,
    LeastError,
    LeastErrorBehind,
    MaskRange,
    MinMax,
    MovingAverage,
    Observer,
    Percentile,
    WholeNumbers,
)
from tosaic.annotation.specs import Observed
from tosaic.fx.quantizer.observers import (
    TosaicEntropyObserver,
    TosaicHistogramObserver,
    TosaicMaskObserver,
    TosaicMinMaxObserver,
    TosaicMovingAverageMinMaxObserver,
    TosaicPercentileObserver,
    TosaicPerChannelGroupObserver,
    TosaicPerChannelHistogramObserver,
    TosaicPerChannelMinMaxObserver,
    TosaicWholeNumbersObserver,
)

_PER_TENSOR: dict[type[Observer], Any] = {
    MaskRange: TosaicMaskObserver,
    MinMax: TosaicMinMaxObserver,
    MovingAverage: TosaicMovingAverageMinMaxObserver,
    Percentile: TosaicPercentileObserver,
    LeastError: TosaicHistogramObserver,
    LeastErrorBehind: TosaicHistogramObserver,  # whose option `behind` is filled in from its graph
    ByUse: TosaicHistogramObserver,
    Entropy: TosaicEntropyObserver,
    WholeNumbers: TosaicWholeNumbersObserver,
}
_PER_CHANNEL: dict[type[Observer], Any] = {
    MinMax: TosaicPerChannelMinMaxObserver,
    LeastError: TosaicPerChannelHistogramObserver,
}


def constructor_of(observer: Observer, spec: Observed, *, qat: bool) -> Any:
    """Returns what makes the observer, or the fake-quant module, of a spec.

    Equal arguments have the very same constructor, so that specs of torchao are equal, too.

    Parameters
    ----------
    observer : Observer
    spec : Observed
        Its scheme and the size of its groups decide how many scales there are.
    qat : bool
        Make fake-quant modules.
    """
    per_channel = spec.scheme is not None and spec.scheme.startswith("per_channel")
    if spec.group_size is not None:
        return _of_groups(observer, spec.group_size, qat)
    return _in_training(observer, per_channel) if qat else _in_calibration(observer, per_channel)


@cache
def _in_calibration(observer: Observer, per_channel: bool) -> Any:
    made = (_PER_CHANNEL if per_channel else _PER_TENSOR)[type(observer)]
    options = _options(observer)
    return made.with_args(**options) if options else made


@cache
def _in_training(observer: Observer, per_channel: bool) -> Any:
    """Returns the observer for training: searches over histograms take too long for every training step."""
    made: Any = TosaicMovingAverageMinMaxObserver
    if per_channel:
        made = TosaicPerChannelMinMaxObserver
    elif isinstance(observer, MinMax | MaskRange):
        made = _PER_TENSOR[type(observer)]
    options = {name: value for name, value in _options(observer).items() if name != "percent"}
    return FakeQuantize.with_args(observer=made, **options)


@cache
def _of_groups(observer: Observer, size: int, qat: bool) -> Any:
    options = {"group_size": size, **_options(observer)}
    if qat:
        return AffineFakeQuantize.with_args(observer=TosaicPerChannelGroupObserver, search=False, **options)
    if isinstance(observer, MinMax):
        options["search"] = False
    return TosaicPerChannelGroupObserver.with_args(**options)


def _options(observer: Observer) -> dict[str, Any]:
    """Returns the constructor's options that differ from its defaults."""
    options: dict[str, Any] = {}
    if isinstance(observer, MovingAverage):
        options["averaging_constant"] = observer.weight
    if isinstance(observer, Percentile):
        options["percent"] = observer.percent
    default = type(observer).__dataclass_fields__["eps"].default  # type: ignore[attr-defined]
    if observer.eps != default:
        options["eps"] = observer.eps
    return options
