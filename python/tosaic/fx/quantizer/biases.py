"""Biases that a quantizer of torchao derives, and the scales of weights with which they fit in int32.

    annotate     the spec of a bias has a BiasScale as its function
    prepare      link_biases: the observer of the weight gets to know the bias, and the observer of the data
    convert      the weight's observer raises its scales (tosaic/annotation/bias.py) until the bias fits with
                 the product of the scales

torchao calls `Quantizer.prepare_obs_or_fq_callback`, where observers are linked. Its ComposableQuantizer does
not: a bias that does not fit then gets its own scale, with which torch and tosaic's lowering are right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torchao.quantization.pt2e import DerivedObserverOrFakeQuantize

from tosaic.annotation.bias import fitting_bias_scales, fitting_weight_scales, lost_bits
from tosaic.fx.quantizer.observers import has_samples

_LOG = logging.getLogger(__name__)
_Constant = Callable[[], torch.Tensor | None]
_NOTED_BITS = 2
_CALLS = 16  # the largest number of calls that compute a bias from parameters
_NORMS: dict[
    Any, tuple[int, ...]
] = {  # positions of the weight, the bias, the mean, the variance and the norm's epsilon
    torch.ops.aten.batch_norm.default: (1, 2, 3, 4, 7),
    torch.ops.aten._native_batch_norm_legit.default: (1, 2, 3, 4, 7),
    torch.ops.aten._native_batch_norm_legit_no_training.default: (1, 2, 3, 4, 6),
}


class BiasScale:
    """Derives the qparams of a bias from the observers of data and weight.

    Parameters
    ----------
    call : str
        The name of the call that adds the bias.
    bias : callable, optional
        Returns the bias as it is when the qparams are computed: training changes it. None: it is not known.
    norm : tuple, optional
        Weight, bias, mean and variance of the batch norm that conversion folds into the bias after training,
        and the addend of the variance.
    unit_of_sums : bool
        The target supports no other scale of a bias than the product of the scales of data and weight.
    """

    def __init__(
        self, call: str, bias: _Constant | None, norm: tuple[Any, ...] | None, *, unit_of_sums: bool
    ) -> None:
        self.call = call
        self._bias = bias
        self._norm = norm
        self._unit_of_sums = unit_of_sums
        self._warned = False
        self.observer: Any = None
        """The derived observer that asks for the qparams; None if `link_biases` was not called."""

    def __call__(self, sources: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the product of the scales, or larger scales with which the bias fits."""
        data, weight = (each.calculate_qparams()[0] for each in sources)
        scale = data.to(torch.float32) * weight.to(torch.float32)
        bias = self._elements()
        if bias is not None:
            product = scale.detach().cpu().numpy().reshape(-1)
            fitting = fitting_bias_scales(product, bias)
            if not np.array_equal(product, fitting):
                if self._unit_of_sums:
                    self._warn(
                        "the bias of '%s' does not fit in int32 with the scales of data and weight. It has "
                        "a scale of its own, which lowerings other than tosaic's do not read",
                        self.call,
                    )
                scale = torch.from_numpy(self._as_asked(fitting, scale)).to(scale.device)
        return scale, torch.zeros_like(scale, dtype=torch.int32)

    def _as_asked(self, fitting: Any, product: torch.Tensor) -> Any:
        """Returns scales in the product's shape, or one for each element if the observer can take those."""
        if fitting.size == product.numel():
            return fitting.reshape(product.shape)
        if self.observer is None:
            return fitting.max(keepdims=True).reshape(product.shape)
        # torchao reads the scheme after it has asked for the scales.
        self.observer.qscheme, self.observer.ch_axis = torch.per_channel_symmetric, 0
        return fitting

    def raised(self, scales: torch.Tensor, data: Any, weights: float) -> torch.Tensor:
        """Returns scales of the weight that are large enough for the bias to fit its integers.

        Parameters
        ----------
        scales : Tensor
        data : module
            The observer or fake-quant module of the data.
        weights : float
            The largest magnitude among the elements of the weight.
        """
        bias = self._elements()
        if bias is None:
            return scales
        before = scales.detach().cpu().numpy()
        has_elements = weights > before.max(initial=0.0) / 2
        after = fitting_weight_scales(
            before.reshape(-1),
            float(data.calculate_qparams()[0].max()),
            bias,
            has_elements=has_elements,
            unit_of_sums=self._unit_of_sums,
        ).reshape(before.shape)
        if has_elements and before.size != bias.size and lost_bits(before, after) > _NOTED_BITS:
            channel = int(np.abs(bias).argmax())
            self._warn(
                "the weight of '%s' loses %.0f bits: it has one scale for all channels, and the bias of "
                "channel %d is %.3g. Scales per channel keep them",
                self.call,
                lost_bits(before, after),
                channel,
                bias[channel],
            )
        return torch.from_numpy(after).to(scales.device)

    def _elements(self) -> Any:
        """Returns the bias that the converted graph will have; None if it is not known."""
        found = None if self._bias is None else self._bias()
        if found is None or not has_samples(found):
            return None
        bias = found.detach().to("cpu", torch.float64)
        if self._norm is not None:
            *tensors, eps = self._norm
            weight, shift, mean, variance = map(_as_double, tensors)
            bias = (bias - mean) / torch.sqrt(variance + eps) * (1.0 if weight is None else weight)
            bias = bias if shift is None else bias + shift
        return bias.numpy()

    def _warn(self, text: str, *values: Any) -> None:
        if not self._warned:
            _LOG.warning(text, *values)
        self._warned = True


def _as_double(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().to("cpu", torch.float64)


def bias_scale_of(model: GraphModule, bias: Node, call: Node, *, unit_of_sums: bool) -> BiasScale:
    """Returns the function that derives the qparams of the bias of a call."""
    return BiasScale(call.name, _constant(model, bias), _norm_of(model, call), unit_of_sums=unit_of_sums)


def _tensor(model: GraphModule, node: Any) -> Any:
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    found: Any = model
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, torch.Tensor) else None


def _constant(model: GraphModule, node: Any, calls: int = _CALLS) -> _Constant | None:
    """Returns a function that computes a parameter, a buffer or a result of few calls on them, else None."""
    tensor = _tensor(model, node)
    if tensor is not None:
        return lambda: tensor
    if not calls or not isinstance(node, Node) or not isinstance(node.target, OpOverload):
        return None
    target, args, kwargs = node.target, node.args, node.kwargs  # quantizing inserts calls between them
    is_random = torch.Tag.nondeterministic_seeded in target.tags
    if target._schema.is_mutable or is_random or not node.all_input_nodes:
        return None
    operands: dict[Node, _Constant] = {}
    for each in node.all_input_nodes:
        operand = _constant(model, each, calls - 1)
        if operand is None:
            return None
        operands[each] = operand

    def computed() -> torch.Tensor | None:
        found = {each: operand() for each, operand in operands.items()}
        if not all(each is not None and has_samples(each) for each in found.values()):
            return None
        with torch.no_grad():
            made = target(*map_arg(args, found.__getitem__), **map_arg(kwargs, found.__getitem__))
        return made if isinstance(made, torch.Tensor) else None

    return computed


def elements_of(model: GraphModule, node: Node) -> Any:
    """Returns the elements of a constant; None for other nodes, and without data."""
    constant = _constant(model, node)
    found = None if constant is None else constant()
    if found is None or not found.is_floating_point() or not has_samples(found):
        return None
    return found.detach().to("cpu", torch.float64).numpy()


def _norm_of(model: GraphModule, call: Node) -> tuple[Any, ...] | None:
    """Returns the tensors of the batch norm that alone reads a call, and its epsilon."""
    user = next(iter(call.users)) if len(call.users) == 1 else None
    places = None if user is None else _NORMS.get(user.target)
    if user is None or places is None or user.args[0] is not call:
        return None
    *tensors, eps = (user.args[at] if at < len(user.args) else None for at in places)
    found = [_tensor(model, each) for each in tensors]
    if found[2] is None or found[3] is None:
        return None
    return (*found, 1e-5 if eps is None else eps)


def link_biases(observers: Mapping[Any, Any]) -> None:
    """Links the observers of weights to the biases that are added to their products.

    Parameters
    ----------
    observers : mapping
        What torchao passes to `prepare_obs_or_fq_callback`.
    """
    for derived in {id(each): each for each in observers.values()}.values():
        if not isinstance(derived, DerivedObserverOrFakeQuantize):
            continue
        scale: Any = derived.derive_qparams_fn
        if not isinstance(scale, BiasScale) or len(derived.obs_or_fqs) != 2:
            continue
        scale.observer = derived
        data, weight = derived.obs_or_fqs
        observer = getattr(weight, "activation_post_process", weight)
        if hasattr(observer, "add_bias"):
            observer.add_bias(scale, data)
