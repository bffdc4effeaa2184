"""Observers for torchao's PT2E quantization that compute in the core.

They are observers of torchao: a `QuantizationSpec` names one, or one with options by `with_args`, and
`prepare_pt2e`, fake quantization and `convert_pt2e` use it like torchao's own::

    QuantizationSpec(torch.int8, TosaicHistogramObserver, qscheme=torch.per_tensor_affine)
    QuantizationSpec(torch.int8, TosaicPerChannelMinMaxObserver.with_args(eps=2**-12),
                     qscheme=torch.per_channel_symmetric, ch_axis=0)

Infinities and NaN take no part in scales: an observer counts them, and its scale follows from the finite
samples. Scales are float32. `convert_pt2e` writes a scale per tensor as a Python float, which represents it
exactly, and scales per channel as a float32 buffer.

Dense float32 tensors on the CPU are read without a copy, in any order of dimensions. Other tensors are
converted first.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torchao.quantization.granularity import PerBlock
from torchao.quantization.pt2e.observer import (
    AffineQuantizedObserverBase,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    PerChannelMinMaxObserver,
    UniformQuantizationObserverBase,
)
from torchao.quantization.quant_primitives import MappingType

from tosaic import _core
from tosaic.annotation.observers import MaskRange, WholeNumbers, meets_scores
from tosaic.base.options import invalid, layout_mismatch, unsupported
from tosaic.fx.quantizer.functions import Function

_LOG = logging.getLogger(__name__)
_EPS = torch.finfo(torch.float32).eps
_HIDES_ANY = -128.0  # exp(-104) is 0 in float32: such a mask element hides any score
_PER_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)
_PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_symmetric)
_SCALES = 21  # scales among which the search for the least error of a group chooses
_SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)


def has_samples(tensor: torch.Tensor) -> bool:
    """True if the tensor has elements, and memory that holds them."""
    return bool(tensor.numel()) and not tensor.is_meta and not isinstance(tensor, FakeTensor)


def _in_memory_order(tensor: torch.Tensor) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Returns the elements as a dense array, and for each axis of the array the dimension of the tensor.

    The array shares the tensor's memory if this is dense in float32 on the CPU.
    """
    if tensor.dtype is torch.float32 and tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():
        return tensor.detach().numpy(), list(range(tensor.dim()))
    if tensor.is_complex():
        raise unsupported(
            "observe", "complex samples cannot be observed", expected="floats", got=str(tensor.dtype)
        )
    plain = tensor.detach().to(device="cpu", dtype=torch.float32).resolve_neg()
    dims = list(range(plain.dim()))
    if not plain.is_contiguous():
        strides = plain.stride()
        order = sorted(dims, key=lambda dim: -strides[dim])
        if plain.permute(order).is_contiguous():
            dims = order
    return plain.permute(dims).contiguous().numpy(), dims


def _symmetric_zero_point(observer: Any) -> int | None:
    """Returns the zero point of a symmetric scheme, as torchao chooses it; None for an affine scheme."""
    if observer.qscheme not in _SYMMETRIC:
        return None
    if observer.dtype in (torch.quint8, torch.uint8):
        return (observer.quant_min + observer.quant_max) // 2 if observer.has_customized_qrange else 128
    return 2**15 if observer.dtype == torch.uint16 else 0


def _range_options(observer: Any) -> dict[str, Any]:
    return {
        "qmin": observer.quant_min,
        "qmax": observer.quant_max,
        "symmetric_zero_point": _symmetric_zero_point(observer),
        "least_scale": float(observer.eps),
    }


def _qparams_tensors(observer: Any, chosen: Sequence[tuple[float, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns float32 scales and zero points in the integer dtype that torchao's observers use."""
    device = observer.eps.device
    integer = torch.int64 if observer.qscheme in _SYMMETRIC else torch.int32
    scales = torch.tensor([scale for scale, _ in chosen], dtype=torch.float32, device=device)
    for bias, data in getattr(observer, "biases", ()):  # of weights only
        scales = bias.raised(scales, data, observer.largest())
    return scales, torch.tensor([zero for _, zero in chosen], dtype=integer, device=device)


def _note_ignored(observer: Any, infinities: int, nans: int, least: float = -math.inf) -> None:
    """Warns of samples that were ignored.

    Minus infinity in an input of the program is an error unless a sample of at most -128 also hides scores
    (`least` is the least finite sample): in integers, the mask would have no effect.
    """
    if getattr(observer, "has_minus_infinity", False) and not least <= _HIDES_ANY:
        ends = (
            "an input without other numbers" if least == math.inf else f"its least other number, {least:.4g}"
        )
        raise invalid(
            "Quantizer",
            f"the input {observer.name} has minus infinity among its samples, which becomes {ends}",
            expected="finite numbers, from which a scale follows",
            got=f"{infinities} infinities",
            hint="If it hides scores, pass a mask of bools, or hide with a number such as -1e4",
        )
    if infinities or nans:
        node = getattr(observer, "name", "")
        of_node = f" of {node}" if node else ""
        if infinities and node:
            of_node += (
                ": in integers they are the ends of the range of its other numbers. A mask that hides with "
                "minus infinity loses its effect: pass one of bools, or a number such as -1e4"
            )
        text = "%s ignored %d infinities and %d NaN among its samples%s"
        _LOG.warning(text, type(observer).__name__, infinities, nans, of_node)


def _require_scheme(observer: str, qscheme: Any, known: Sequence[Any], is_dynamic: bool) -> None:
    if is_dynamic:
        raise unsupported(
            "observe",
            f"{observer} chooses parameters before the program runs",
            expected="is_dynamic=False",
            got="is_dynamic=True",
        )
    if qscheme not in known:
        raise unsupported(
            "observe",
            f"{observer} has no such scheme",
            expected=" or ".join(map(str, known)),
            got=str(qscheme),
        )


def _bounds(observer: Any) -> list[_core.ObservedRange]:
    """Returns the ranges in the buffers of a min/max observer: one, or one for each channel."""
    least, greatest = observer.min_val.tolist(), observer.max_val.tolist()
    pairs = [(least, greatest)] if observer.min_val.dim() == 0 else zip(least, greatest, strict=True)
    return [_core.ObservedRange(low, high, int(low <= high)) for low, high in pairs]


class _Joinable:
    """An observer that may take the scale of another observer of the same join."""

    joins: Any = None  # JoinedScales, if the tensor is an operand or the result of a join
    notes: tuple[Any, ...] = ()  # objects that warn of a scale with few integers for some numbers
    is_of_input = False
    has_minus_infinity = False  # among the samples of an input of the program

    def _look_for_minus_infinity(self, tensor: torch.Tensor, infinities: int) -> None:
        if self.is_of_input and infinities and not self.has_minus_infinity:
            self.has_minus_infinity = bool((tensor == -torch.inf).any())

    def own_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the scales and zero points that follow from the samples of this observer alone."""
        raise NotImplementedError

    def calculate_qparams(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns float32 scales and integer zero points, one of each or one for each channel.

        Without finite samples the scale is 1 and the zero point 0.

        Raises
        ------
        QuantMismatch
            The range of integers does not include the zero point of a symmetric scheme.
        """
        found: tuple[torch.Tensor, torch.Tensor]
        found = self.own_qparams() if self.joins is None else self.joins.qparams(self)
        for each in self.notes:
            each.note(self, *found)
        return found


class _Biased:
    """The part of a weight's observer that knows the biases which are added to the weight's products."""

    biases: tuple[tuple[Any, Any], ...] = ()

    def add_bias(self, bias: Any, data: Any) -> None:
        """Lets later scales be raised until a bias fits in its integers.

        Parameters
        ----------
        bias : tosaic.fx.quantizer.biases.BiasScale
        data : module
            The observer or fake-quant module of the data that the weight is multiplied with.
        """
        # A tuple: as an attribute itself, `data` would become a submodule.
        self.biases = (*self.biases, (bias, data))

    def largest(self) -> float:
        """Returns the largest magnitude of all finite samples, or 0."""
        raise NotImplementedError


def _largest(ranges: Sequence[_core.ObservedRange]) -> float:
    return max((max(abs(each.least), abs(each.greatest)) for each in ranges if each.finite), default=0.0)


def _least(ranges: Sequence[_core.ObservedRange]) -> float:
    return min((each.least for each in ranges if each.finite), default=math.inf)


class _RangeMixin(_Joinable, _Biased):
    """The common part of min/max observers: buffers ``min_val`` and ``max_val``, and counts."""

    min_val: torch.Tensor
    max_val: torch.Tensor
    infinities = 0
    nans = 0

    def largest(self) -> float:
        """Returns the largest magnitude of all finite samples, or 0."""
        return _largest(_bounds(self))

    def _batch(self, tensor: torch.Tensor) -> _core.ObservedRange:
        batch = _core.ObservedRange()
        batch.observe(_in_memory_order(tensor)[0])
        self._count([batch])
        return batch

    def _ranges(self) -> list[_core.ObservedRange]:
        return _bounds(self)

    def _store(self, bounds: _core.ObservedRange) -> None:
        self.min_val.fill_(bounds.least)
        self.max_val.fill_(bounds.greatest)

    def _count(self, batches: Sequence[_core.ObservedRange]) -> None:
        self.infinities += sum(batch.infinities for batch in batches)
        self.nans += sum(batch.nans for batch in batches)

    def own_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the scales and zero points of the range, or of the range of each channel."""
        ranges = self._ranges() or [_core.ObservedRange()]
        _note_ignored(self, self.infinities, self.nans, _least(ranges))
        options = _range_options(self)
        return _qparams_tensors(self, [_core.range_qparams(each, **options) for each in ranges])


class TosaicMinMaxObserver(_RangeMixin, MinMaxObserver):  # type: ignore[misc]
    """Scale and zero point for which the least and the greatest finite sample just fit.

    Parameters and buffers are as in torchao's `MinMaxObserver`. The scales are equal, too, if all samples are
    finite.

    Attributes
    ----------
    infinities, nans : int
        Samples that were ignored.
    """

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observes a tensor and returns it."""
        if has_samples(x_orig):
            after = _bounds(self)[0]
            after.merge(self._batch(x_orig))
            self._store(after)
            self._look_for_minus_infinity(x_orig, self.infinities)
        return x_orig


class TosaicMaskObserver(UniformQuantizationObserverBase):  # type: ignore[misc]
    """Scale of a mask that is added to scores before a softmax: elements that hide a score still hide it.

    `tosaic.annotation.MaskRange` has the rule. Minus infinity hides, too.

    Attributes
    ----------
    visible, hidden : torch.Tensor
        Buffers: the least and greatest finite sample among those that do not hide a score, and that do.
    infinities, nans : int
        Samples that were ignored: plus infinity and NaN.
    name : str
        The node that is observed, for messages.
    meets_scores : bool
        The readers of the node add it to scores.

    Raises
    ------
    UnsupportedOp
        The scheme is not ``per_tensor_symmetric``, or the quantization is dynamic.

    Examples
    --------
    >>> import torch
    >>> from tosaic.fx.quantizer.observers import TosaicMaskObserver
    >>> observer = TosaicMaskObserver(dtype=torch.int16)
    >>> _ = observer(torch.tensor([0.0, -2.0, -1e4, -torch.inf]))
    >>> round(float(observer.calculate_qparams()[0]) * 2**15)
    1026
    """

    visible: torch.Tensor
    hidden: torch.Tensor
    infinities = 0
    nans = 0
    name = ""
    meets_scores = False

    def __init__(
        self,
        dtype: torch.dtype = torch.int16,
        qscheme: torch.qscheme = torch.per_tensor_symmetric,
        *,
        eps: float = _EPS,
        is_dynamic: bool = False,
        **options: Any,
    ) -> None:
        _require_scheme(type(self).__name__, qscheme, (torch.per_tensor_symmetric,), is_dynamic)
        super().__init__(dtype=dtype, qscheme=qscheme, eps=eps, **options)
        none = torch.tensor([torch.inf, -torch.inf])
        self.register_buffer("visible", none.clone())
        self.register_buffer("hidden", none.clone())
        self.register_buffer("hides_infinitely", torch.tensor(False))

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observes a tensor and returns it."""
        if has_samples(x_orig):
            mask = self._mask()
            ignored = mask.observe(_in_memory_order(x_orig)[0])
            self.infinities += ignored.infinities
            self.nans += ignored.nans
            for buffer, found in ((self.visible, mask.visible), (self.hidden, mask.hidden)):
                buffer.copy_(torch.tensor([found.least, found.greatest]))
            self.hides_infinitely.fill_(mask.hidden.infinities > 0)
        return x_orig

    def _mask(self) -> _core.ObservedMask:
        visible, hidden = (
            _core.ObservedRange(least, greatest, int(least <= greatest), infinities)
            for (least, greatest), infinities in (
                (self.visible.tolist(), 0),
                (self.hidden.tolist(), int(self.hides_infinitely)),
            )
        )
        return _core.ObservedMask(visible, hidden)

    def calculate_qparams(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the float32 scale and the integer zero point.

        Raises
        ------
        QuantMismatch
            The range of integers does not include the zero point of a symmetric scheme.
        """
        _note_ignored(self, self.infinities, self.nans)
        mask = self._mask()
        restored = self.meets_scores
        for what in filter(None, (MaskRange.coarse(mask), MaskRange.infinite(mask, restored=restored))):
            _LOG.warning("the mask %s %s", self.name or "that is added to scores", what)
        return _qparams_tensors(self, [_core.mask_qparams(mask, **_range_options(self))])

    def convert(self, model: GraphModule, node: Node) -> None:
        """Replaces the call of the observer by quantize and dequantize, as torchao does for other observers.

        If minus infinity was the only hiding sample, hiding integers are dequantized to minus infinity.
        """
        scale, zero_point = (each.item() for each in self.calculate_qparams())
        integers, ops = torch.ops.quantized_decomposed, torch.ops.aten
        options = (scale, int(zero_point), self.quant_min, self.quant_max, self.dtype)
        least = scale * (self.quant_min - int(zero_point))
        below = MaskRange.infinite_below(self._mask(), least) if self.meets_scores else None
        with model.graph.inserting_before(node):
            call = model.graph.call_function
            made = call(integers.quantize_per_tensor.default, (node.args[0], *options))
            x = made = call(integers.dequantize_per_tensor.default, (made, *options))
            if below is not None:
                hidden = call(ops.le.Scalar, (x, below))
                made = call(ops.add.Tensor, (x, call(ops.where.Scalar, (hidden, -torch.inf, 0.0))))
        node.replace_all_uses_with(made)
        model.graph.erase_node(node)


def name_masks(observers: Mapping[Any, Any]) -> None:
    """Tells observers the names of their nodes, and observers of masks whether scores are added to the mask.

    Parameters
    ----------
    observers : mapping
        By node, or by edge (node, reader): the observer, or the fake-quantize module that has it.
    """
    for place, module in observers.items():
        observer = getattr(module, "activation_post_process", module)
        node = place if isinstance(place, torch.fx.Node) else place[0]
        is_input = node.op == "placeholder"
        # An input may share an observer with other nodes. The observer has the name of the input.
        if hasattr(observer, "infinities") and (is_input or not getattr(observer, "is_of_input", False)):
            observer.name = f"'{node.name}'"
            observer.is_of_input = is_input
        if isinstance(observer, TosaicMaskObserver):
            readers = list(node.users) if node is place else [place[1]]
            if observer is module:  # fake-quantize modules restore no minus infinity
                observer.meets_scores = all(
                    meets_scores(str(each.target), [str(user.target) for user in each.users])
                    for each in readers
                )


class TosaicMovingAverageMinMaxObserver(_RangeMixin, MovingAverageMinMaxObserver):  # type: ignore[misc]
    """Scale and zero point for moving averages of the least and the greatest finite sample of each tensor.

    Parameters and buffers are as in torchao's `MovingAverageMinMaxObserver`. The scales are equal, too, if
    all samples are finite.

    Attributes
    ----------
    infinities, nans : int
        Samples that were ignored.
    peers : tuple of TosaicMovingAverageMinMaxObserver
        Observers of other tensors with the same scale, which follows from the union of all averages. A single
        average of several tensors would tend to the mean of their ranges, and clip the widest range.
    """

    peers: tuple[TosaicMovingAverageMinMaxObserver, ...] = ()

    def _ranges(self) -> list[_core.ObservedRange]:
        (union,) = _bounds(self)
        for peer in self.peers:
            union.merge(_bounds(peer)[0])
        return [union]

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observes a tensor and returns it."""
        if has_samples(x_orig):
            before = _bounds(self)[0]
            self._store(before.averaged(self._batch(x_orig), self.averaging_constant))
            self._look_for_minus_infinity(x_orig, self.infinities)
        return x_orig


class TosaicPerChannelMinMaxObserver(_RangeMixin, PerChannelMinMaxObserver):  # type: ignore[misc]
    """Scales and zero points for which the finite samples of each channel just fit.

    Parameters and buffers are as in torchao's `PerChannelMinMaxObserver`. The scales are equal, too, if all
    samples are finite.

    Attributes
    ----------
    infinities, nans : int
        Samples that were ignored.
    """

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observes a tensor and returns it.

        Raises
        ------
        LayoutMismatch
            The tensor lacks the axis of the channels, or has another number of them than tensors before.
        """
        if has_samples(x_orig):
            after = _bounds(self) or [_core.ObservedRange() for _ in range(_channels(x_orig, self.ch_axis))]
            batch = [_core.ObservedRange() for _ in after]
            _observe_channels(batch, x_orig, self.ch_axis)
            self._count(batch)
            for mine, others in zip(after, batch, strict=True):
                mine.merge(others)
            for buffer, name in ((self.min_val, "least"), (self.max_val, "greatest")):
                values = torch.tensor([getattr(each, name) for each in after])
                buffer.resize_(values.shape).copy_(values)
        return x_orig


def _channels(tensor: torch.Tensor, axis: int) -> int:
    if not -tensor.dim() <= axis < tensor.dim():
        raise layout_mismatch(
            "observe",
            "the axis of the channels",
            expected=f"an axis of a tensor of rank {tensor.dim()}",
            got=str(axis),
        )
    return tensor.shape[axis]


def _observe_channels(
    observers: Sequence[_core.ObservedRange] | Sequence[_core.Histogram], tensor: torch.Tensor, axis: int
) -> None:
    _channels(tensor, axis)
    samples, dims = _in_memory_order(tensor)
    _core.observe_channels(observers, samples, dims.index(axis % tensor.dim()))


class _HistogramBase(_Joinable, _Biased, UniformQuantizationObserverBase):  # type: ignore[misc]
    """The common part of histogram observers: histograms, and the qparams that follow from them."""

    _histograms: list[_core.Histogram]

    def __init__(
        self,
        dtype: torch.dtype,
        qscheme: torch.qscheme,
        known: Sequence[torch.qscheme],
        *,
        is_dynamic: bool,
        **options: Any,
    ) -> None:
        _require_scheme(type(self).__name__, qscheme, known, is_dynamic)
        super().__init__(dtype=dtype, qscheme=qscheme, **options)
        self._histograms = []
        self._chosen: list[tuple[float, int, float]] | None = None

    @property
    def histograms(self) -> tuple[_core.Histogram, ...]:
        """The histograms: one, or one for each channel; none before the first samples."""
        return tuple(self._histograms)

    @property
    def infinities(self) -> int:
        """The number of infinite samples, which were ignored."""
        return sum(each.range.infinities for each in self._histograms)

    @property
    def nans(self) -> int:
        """The number of samples that are NaN, which were ignored."""
        return sum(each.range.nans for each in self._histograms)

    def largest(self) -> float:
        """Returns the largest magnitude of all finite samples, or 0."""
        return _largest([each.range for each in self._histograms])

    def _search(self) -> list[tuple[float, int, float]]:
        if self._chosen is None:
            self._chosen = [self._best(each) for each in self._histograms or [_core.Histogram()]]
        return self._chosen

    def _best(self, histogram: _core.Histogram) -> tuple[float, int, float]:
        return _core.least_error_qparams(histogram, **_range_options(self))

    def own_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the scales and zero points that the search chooses."""
        _note_ignored(self, self.infinities, self.nans, _least([each.range for each in self._histograms]))
        if all(each.range.finite == 0 for each in self._histograms):
            _LOG.warning(
                "%s has no finite samples, so its scale is 1. Run the prepared graph on samples before "
                "convert_pt2e",
                type(self).__name__,
            )
        return _qparams_tensors(self, [(scale, zero_point) for scale, zero_point, _ in self._search()])

    def expected_error(self) -> list[float]:
        """Returns the expected squared error of a sample, for each scale."""
        return [error for _, _, error in self._search()]

    def merge(self, other: _HistogramBase) -> None:
        """Adds the samples of another observer, as if this one had observed them.

        Raises
        ------
        LayoutMismatch
            The observers have different numbers of channels.
        """
        if not self._histograms:
            self._histograms = [_core.Histogram() for _ in other._histograms]
        if other._histograms and len(other._histograms) != len(self._histograms):
            raise layout_mismatch(
                "observe",
                "observers with different numbers of channels cannot be merged",
                expected=str(len(self._histograms)),
                got=str(len(other._histograms)),
            )
        for mine, others in zip(self._histograms, other._histograms, strict=False):
            mine.merge(others)
        self._chosen = None

    def reset_min_max_vals(self) -> None:
        """Forgets all samples."""
        self._histograms = []
        self._chosen = None

    def get_extra_state(self) -> torch.Tensor:
        """Returns the histograms as a tensor of bytes, for ``state_dict``."""
        states = [each.to_bytes() for each in self._histograms]
        head = np.array([len(states), *map(len, states)], dtype="<i8").tobytes()
        return torch.frombuffer(bytearray(head + b"".join(states)), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Restores the histograms from ``state_dict``.

        Raises
        ------
        InvalidGraph
            The bytes do not belong to histograms.
        """
        data = state.cpu().numpy().tobytes()
        count = int.from_bytes(data[:8], "little")
        at = 8 + 8 * count
        sizes = np.frombuffer(data[8:at], dtype="<i8").tolist() if at <= len(data) else []
        histograms = []
        for size in sizes:
            histograms.append(_core.Histogram.from_bytes(data[at : at + size]))
            at += size
        if len(sizes) != count or at != len(data):
            raise invalid(
                "observe",
                "the state of an observer is damaged",
                expected=f"{at} bytes",
                got=f"{len(data)} bytes",
            )
        self._histograms = histograms
        self._chosen = None

    def extra_repr(self) -> str:
        """Returns the scheme and the number of samples, for the repr of the module."""
        samples = sum(each.range.finite for each in self._histograms)
        return (
            f"dtype={self.dtype}, qscheme={self.qscheme}, quant_min={self.quant_min}, "
            f"quant_max={self.quant_max}, samples={samples}"
        )


class _TensorHistogram(_HistogramBase):
    """The common part of observers with one histogram."""

    def __init__(
        self,
        dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_tensor_affine,
        *,
        eps: float = _EPS,
        is_dynamic: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dtype, qscheme, _PER_TENSOR, is_dynamic=is_dynamic, eps=eps, **options)

    @property
    def min_val(self) -> torch.Tensor:
        """The least finite sample, as a scalar; infinity before the first."""
        return self._bound("least", float("inf"))

    @property
    def max_val(self) -> torch.Tensor:
        """The greatest finite sample, as a scalar; -infinity before the first."""
        return self._bound("greatest", float("-inf"))

    def _bound(self, name: str, absent: float) -> torch.Tensor:
        value = getattr(self._histograms[0].range, name) if self._histograms else absent
        return torch.tensor(value, dtype=torch.float32, device=self.eps.device)

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observes a tensor and returns it."""
        if has_samples(x_orig):
            self._chosen = None
            if not self._histograms:
                self._histograms = [_core.Histogram()]
            samples = _in_memory_order(x_orig)[0]
            for each in self.notes:
                each.watch(self, samples)
            self._histograms[0].observe(samples)
            self._look_for_minus_infinity(x_orig, self.infinities)
        return x_orig


class TosaicHistogramObserver(_TensorHistogram):
    """Scale and zero point of least expected squared error over a histogram of all samples.

    The histogram is exact: it does not depend on the order of samples, or on how they are split into tensors.
    Its memory does not grow with their number. The error includes the error of clipping, and zero is always
    representable.

    Parameters
    ----------
    dtype : torch.dtype
        Integer dtype of the quantized tensor.
    qscheme : torch.qscheme
        ``per_tensor_affine`` or ``per_tensor_symmetric``.
    quant_min, quant_max : int, optional
        Range of the integers; by default that of the dtype.
    reduce_range : bool
        As in torchao: a range of one bit less.
    eps : float
        Least scale.
    is_dynamic : bool
        Has to be False.
    behind : Function, optional
        The function that is the only reader of the tensor: the error, also `expected_error`, is measured at
        its result. It has no effect for integers of more than 8 bits, and if its results are not finite.
    **options
        Further options of torchao's `UniformQuantizationObserverBase`.

    Raises
    ------
    UnsupportedOp
        The scheme is none of these, or the quantization is dynamic.

    Examples
    --------
    >>> import torch
    >>> from tosaic.fx.quantizer.observers import TosaicHistogramObserver
    >>> observer = TosaicHistogramObserver(dtype=torch.int8)
    >>> _ = observer(torch.tensor([0.0, 0.5, 1.0]))
    >>> scale, zero_point = observer.calculate_qparams()
    >>> bool(scale * (127 - zero_point) >= 1)
    True
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_tensor_affine,
        *,
        behind: Function | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dtype, qscheme, **options)
        self.behind = behind

    def _best(self, histogram: _core.Histogram) -> tuple[float, int, float]:
        results = None if self.behind is None else self.behind(histogram.means)
        if results is None:
            return super()._best(histogram)
        return _core.least_error_behind(histogram, results, **_range_options(self))


class TosaicPercentileObserver(_TensorHistogram):
    """Scale and zero point for which the range that contains a share of all samples just fits.

    An affine range has the same number of samples below and above it; a symmetric range contains the share of
    the magnitudes. The histogram is the same as in `TosaicHistogramObserver`.

    Parameters
    ----------
    dtype : torch.dtype
        Integer dtype of the quantized tensor.
    qscheme : torch.qscheme
        ``per_tensor_affine`` or ``per_tensor_symmetric``.
    percent : float
        The share of the samples, above 0 and at most 100.
    **options
        Further options of `TosaicHistogramObserver`, other than `behind`.

    Raises
    ------
    UnsupportedOp
        The scheme is none of these, or the quantization is dynamic.

    Examples
    --------
    >>> import torch
    >>> from tosaic.fx.quantizer.observers import TosaicPercentileObserver
    >>> observer = TosaicPercentileObserver(dtype=torch.uint8, percent=99)
    >>> _ = observer(torch.cat([torch.linspace(0, 1, 10_000), torch.tensor([100.0])]))
    >>> bool(observer.calculate_qparams()[0] * 255 < 1)
    True
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_tensor_affine,
        *,
        percent: float = 99.99,
        **options: Any,
    ) -> None:
        super().__init__(dtype, qscheme, **options)
        self.percent = percent

    def _best(self, histogram: _core.Histogram) -> tuple[float, int, float]:
        chosen = _core.percentile_qparams(histogram, self.percent / 100, **_range_options(self))
        return (*chosen, _error_of(histogram, self, *chosen))


class TosaicEntropyObserver(_TensorHistogram):
    """Scale and zero point of least Kullback-Leibler divergence between samples and quantized samples.

    It collects the histogram that `TosaicHistogramObserver` collects, and has its options without `behind`.

    Raises
    ------
    UnsupportedOp
        The scheme is not one per tensor, or the quantization is dynamic.

    Examples
    --------
    >>> import torch
    >>> from tosaic.fx.quantizer.observers import TosaicEntropyObserver
    >>> observer = TosaicEntropyObserver(dtype=torch.int8)
    >>> _ = observer(torch.cat([torch.linspace(-1, 1, 10_000), torch.tensor([100.0])]))
    >>> bool(observer.calculate_qparams()[0] * 255 < 3)
    True
    """

    def _best(self, histogram: _core.Histogram) -> tuple[float, int, float]:
        scale, zero_point, _ = _core.least_entropy_qparams(histogram, **_range_options(self))
        return scale, zero_point, _error_of(histogram, self, scale, zero_point)


class TosaicWholeNumbersObserver(_TensorHistogram):
    """Scale, a power of two, and zero point of samples that are whole numbers.

    `tosaic.annotation.WholeNumbers` has the rule. The observer collects the histogram that
    `TosaicHistogramObserver` collects, and has its options without `behind`.

    Raises
    ------
    UnsupportedOp
        The scheme is not one per tensor, or the quantization is dynamic.

    Examples
    --------
    >>> import torch
    >>> from tosaic.fx.quantizer.observers import TosaicWholeNumbersObserver
    >>> observer = TosaicWholeNumbersObserver(dtype=torch.int8)
    >>> _ = observer(torch.tensor([-3.0, 1.0, 12.0]))
    >>> float(observer.calculate_qparams()[0])
    0.0625
    """

    def _best(self, histogram: _core.Histogram) -> tuple[float, int, float]:
        options = _range_options(self)
        found = WholeNumbers.qparams(histogram.range, **options)
        if found is None and (what := WholeNumbers.coarse(histogram.range, **options)):
            _LOG.warning("%s %s", getattr(self, "name", "a result"), what)
        return super()._best(histogram) if found is None else (*found, _error_of(histogram, self, *found))


def _error_of(histogram: _core.Histogram, observer: Any, scale: float, zero_point: int) -> float:
    limits = {"qmin": observer.quant_min, "qmax": observer.quant_max}
    return _core.expected_error(histogram, scale=scale, zero_point=zero_point, **limits)


class TosaicPerChannelHistogramObserver(_HistogramBase):
    """Scales and zero points of least expected squared error, with a histogram for each channel.

    Parameters
    ----------
    ch_axis : int
        Axis of the channels.
    dtype : torch.dtype
        Integer dtype of the quantized tensor.
    qscheme : torch.qscheme
        ``per_channel_symmetric`` or ``per_channel_affine``.
    quant_min, quant_max : int, optional
        Range of the integers; by default that of the dtype.
    reduce_range : bool
        As in torchao: a range of one bit less.
    eps : float
        Least scale.
    is_dynamic : bool
        Has to be False.
    **options
        Further options of torchao's `UniformQuantizationObserverBase`.

    Raises
    ------
    UnsupportedOp
        The scheme is none of these, or the quantization is dynamic.
    """

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_channel_symmetric,
        *,
        eps: float = _EPS,
        is_dynamic: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dtype, qscheme, _PER_CHANNEL, is_dynamic=is_dynamic, eps=eps, **options)
        self.ch_axis = ch_axis

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observes a tensor and returns it.

        Raises
        ------
        LayoutMismatch
            The tensor lacks the axis of the channels, or has another number of them than tensors before.
        """
        if has_samples(x_orig):
            self._chosen = None
            if not self._histograms:
                count = _channels(x_orig, self.ch_axis)
                self._histograms = [_core.Histogram() for _ in range(count)]
            _observe_channels(self._histograms, x_orig, self.ch_axis)
        return x_orig


class TosaicPerChannelGroupObserver(AffineQuantizedObserverBase):  # type: ignore[misc]
    """Scales of a weight: one for each channel and each group of input channels.

    A weight is one tensor, so the observer reads the last tensor that it observed. ``convert_pt2e`` writes it
    with ``torchao.quantize_affine`` and ``torchao.dequantize_affine``, whose blocks are the groups.

    Parameters
    ----------
    group_size : int
        Input channels in a group. It has to divide their number.
    ch_axis : int
        Axis of the result's channels, 0 or 1. The input channels are on the other one of these two axes.
    dtype : torch.dtype
        Integer dtype of the quantized tensor.
    qscheme : torch.qscheme
        Has to be ``per_channel_symmetric``.
    quant_min, quant_max : int, optional
        Range of the integers; by default -127 to 127.
    eps : float
        Least scale.
    search : bool
        True: choose the scale of least squared error, between 0.6 and 1 times the scale with which the
        largest element just fits. False: choose the scale with which it fits.
    is_dynamic : bool
        Has to be False.

    Raises
    ------
    UnsupportedOp
        The scheme is another one, or the quantization is dynamic.
    """

    def __init__(
        self,
        group_size: int,
        ch_axis: int = 0,
        dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_channel_symmetric,
        *,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = _EPS,
        search: bool = True,
        is_dynamic: bool = False,
    ) -> None:
        _require_scheme(type(self).__name__, qscheme, (torch.per_channel_symmetric,), is_dynamic)
        super().__init__(
            mapping_type=MappingType.SYMMETRIC,
            target_dtype=dtype,
            granularity=PerBlock((group_size,)),
            quant_min=-127 if quant_min is None else quant_min,
            quant_max=127 if quant_max is None else quant_max,
            eps=eps,
        )
        self.dtype = dtype
        self.qscheme = qscheme
        self.group_size = group_size
        self.ch_axis = ch_axis
        self.search = search
        self._last: torch.Tensor | None = None
        self._fitting: torch.Tensor | None = None

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observes a tensor and returns it.

        Raises
        ------
        LayoutMismatch
            The tensor has no axes 0 and 1, or the group size does not divide its input channels.
        """
        along = 1 - self.ch_axis
        if x_orig.dim() < 2 or self.ch_axis not in (0, 1) or x_orig.shape[along] % self.group_size:
            raise layout_mismatch(
                "observe",
                f"groups of {self.group_size} do not divide the input channels",
                expected=f"a multiple of {self.group_size} on axis {along}",
                got=str(tuple(x_orig.shape)),
            )
        block = list(x_orig.shape)
        block[self.ch_axis], block[along] = 1, self.group_size
        self.block_size = tuple(block)
        self.original_dtype = x_orig.dtype
        if has_samples(x_orig):
            # Training changes the tensor that a later search would read.
            self._last = x_orig.detach() if self.search else None
            self._fitting = self._scales_that_fit(self._groups(x_orig.detach()))
        return x_orig

    def calculate_qparams(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns float32 scales and zero points 0, in the order of the blocks.

        Without samples the scale is 1.
        """
        scales = self._fitting
        if scales is None:
            return torch.ones(1), torch.zeros(1, dtype=torch.int32)
        if self._last is not None:
            groups = self._groups(self._last)
            scales = self._least_error(groups, self._scales_that_fit(groups))
        return scales, torch.zeros_like(scales, dtype=torch.int32)

    def _groups(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns the elements of each group as rows, in the order of the blocks."""
        assert self.block_size is not None
        split: list[int] = []
        for extent, block in zip(weight.shape, self.block_size, strict=True):
            split += [extent // block, block]
        axes = range(2 * weight.dim())
        rows = weight.to(torch.float32).reshape(split).permute(*axes[::2], *axes[1::2])
        rows = rows.reshape(-1, math.prod(self.block_size))
        return torch.where(rows.isfinite(), rows, 0)

    def _scales_that_fit(self, groups: torch.Tensor) -> torch.Tensor:
        limit = min(-self.quant_min, self.quant_max)
        fitting: torch.Tensor = groups.abs().amax(1) / limit
        return fitting.clamp(min=float(self.eps))

    def _least_error(self, groups: torch.Tensor, fitting: torch.Tensor) -> torch.Tensor:
        """Returns the scale of least squared error among even steps from 0.6 of `fitting` to `fitting`."""
        best, least = fitting, torch.full_like(fitting, torch.inf)
        for ratio in torch.linspace(1.0, 0.6, _SCALES).tolist():
            scale = (fitting * ratio).clamp(min=float(self.eps))
            rounded = (groups * (1.0 / scale)[:, None]).round_().clamp_(self.quant_min, self.quant_max)
            error = (rounded.mul_(scale[:, None]) - groups).square_().sum(1)
            better = error < least
            best, least = torch.where(better, scale, best), torch.where(better, error, least)
        return best
