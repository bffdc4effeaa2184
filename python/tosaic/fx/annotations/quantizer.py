"""A quantizer for torchao's PT2E flow: quant/planner computes what it writes as annotations."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import FakeQuantize, MovingAverageMinMaxObserver
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer import Quantizer as TorchQuantizer

from tosaic import _core
from tosaic.annotation import Derived, Edge, Fixed, Float, Observed, Output, Plan, Shared
from tosaic.annotation.config import Precision, QConfig
from tosaic.dtypes import TORCH
from tosaic.fx.annotations.graph import bodies_of, call_graph, check_model
from tosaic.fx.annotations.module_graph import import_module
from tosaic.fx.annotations.observers import (
    TosaicHistogramObserver,
    TosaicMinMaxObserver,
    TosaicPerChannelHistogramObserver,
    TosaicPerChannelMinMaxObserver,
)

__all__ = ["Quantizer"]

_KEY = "quantization_annotation"
# By (has a scale per channel, has few integers). The search for the least error takes long for many channels,
# and pays where there are few integers.
_OF_WEIGHTS = {
    (True, False): TosaicPerChannelMinMaxObserver,
    (True, True): TosaicPerChannelHistogramObserver,
    (False, False): TosaicMinMaxObserver,
    (False, True): TosaicHistogramObserver,
}
_IN_TRAINING = {
    TosaicHistogramObserver: MovingAverageMinMaxObserver,
    TosaicPerChannelHistogramObserver: TosaicPerChannelMinMaxObserver,
    TosaicPerChannelMinMaxObserver: TosaicPerChannelMinMaxObserver,
    TosaicMinMaxObserver: TosaicMinMaxObserver,
}
_IN_BODY = "integer lowering computes bodies of control flow with floats"
_GRAPH_NAMES = {torch_name: name for name, torch_name in TORCH.items()}


class Quantizer(TorchQuantizer):  # type: ignore[misc]
    """Annotates a graph for torchao's ``prepare_pt2e``, ``prepare_qat_pt2e`` and ``convert_pt2e``.

    A tensor is rounded once, where it is computed. Operators that only move or select elements, and the parts
    of norms, attentions and activations, get no specs: integer lowering computes them exactly. Calls that
    another quantizer annotated before, as in a ``ComposableQuantizer``, are not changed.

    Parameters
    ----------
    config : QConfig, optional
        Default: `QConfig.int8`.
    qat : bool
        Insert fake-quant modules, for ``prepare_qat_pt2e``.

    Attributes
    ----------
    left_float : dict of str to str
        After ``annotate``: the calls whose float results get no scale of their own, and why. Calls in a body
        of control flow have the path of the body before their names, as in ``true_graph_0.relu``. They get
        no annotations: integer lowering computes such a body with floats.

    Raises
    ------
    InvalidGraph
        In ``annotate``: a selection of the configuration selects nothing, or the model is no graph.

    Examples
    --------
    >>> import torch, tosaic
    >>> from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    >>> x = torch.randn(1, 4)
    >>> model = torch.export.export(torch.nn.Linear(4, 2).eval(), (x,)).module()
    >>> prepared = prepare_pt2e(model, tosaic.Quantizer())
    >>> _ = prepared(x)
    >>> converted = torch.export.export(convert_pt2e(prepared), (x,))
    >>> tosaic.check(converted, target="TOSA-1.0+INT").ok
    True
    """

    def __init__(self, config: QConfig | None = None, *, qat: bool = False) -> None:
        super().__init__()
        self.config = QConfig.int8() if config is None else config
        self.qat = qat
        self.left_float: dict[str, str] = {}
        self._bodies: weakref.WeakSet[GraphModule] = weakref.WeakSet()
        self._makers: dict[Any, Any] = {}

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Passes tensors by position that calls take by keyword: torch refuses to annotate such calls."""
        for node in model.graph.nodes:
            if any(isinstance(value, Node) for value in node.kwargs.values()):
                _pass_by_position(node)
        model.recompile()
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Writes ``node.meta["quantization_annotation"]`` of the calls that get specs."""
        check_model(model, "Quantizer")
        if model in self._bodies:  # torchao prepares bodies of loops, too, after the graph that calls them
            return model
        plan = Plan(call_graph(model))
        chosen, precisions = self.config.resolve(plan)
        graph, values = import_module(model)
        nodes = {node.name: node for node in model.graph.nodes}
        taken = _taken(plan._core, nodes)
        fields = [self._fields(each) for each in precisions]
        self.left_float = dict(_core.plan_specs(plan._core, graph, values, chosen, fields))
        _write(plan._core, nodes, taken, self._maker(TosaicMinMaxObserver))
        for path, body in bodies_of(model).items():
            self._bodies.add(body)
            self.left_float |= {f"{path}.{name}": _IN_BODY for name in _float_calls(body)}
        return model

    def validate(self, model: GraphModule) -> None:
        """Accepts every graph."""

    def _fields(self, precision: Precision) -> tuple[Any, ...]:
        """Returns what the planner reads, with the constructors of observers."""
        activation, weight = precision.activation, precision.weight
        per_channel = bool(weight.scheme and weight.scheme.startswith("per_channel"))
        is_coarse = weight.qmin is not None and weight.qmax is not None and weight.qmax - weight.qmin < 64
        of_weight = _OF_WEIGHTS[per_channel, is_coarse]
        return (
            _spec_fields(activation, activation.observer or self._maker(TosaicHistogramObserver)),
            _spec_fields(weight, weight.observer or self._maker(of_weight)),
            _bias_qparams if precision.bias == "derived" else None,
            precision.fixed_ranges,
            precision.wide_sums,
        )

    def _maker(self, observer: Any) -> Any:
        """Returns what makes observers, or fake-quant modules around cheap ones for training.

        Equal precisions have the same maker, so that their specs are equal.
        """
        if not self.qat:
            return observer
        inside = _IN_TRAINING[observer]
        return self._makers.setdefault(inside, FakeQuantize.with_args(observer=inside))


def _spec_fields(spec: Observed, observer: Any) -> tuple[Any, ...]:
    dtype = _GRAPH_NAMES.get(spec.dtype, spec.dtype)
    return dtype, spec.qmin, spec.qmax, spec.scheme, observer


def _bias_qparams(sources: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the qparams of a bias: the product of the scales of data and weight."""
    data, weight = (each.calculate_qparams()[0] for each in sources)
    scale = data.to(torch.float32) * weight.to(torch.float32)
    return scale, torch.zeros_like(scale, dtype=torch.int32)


def _float_calls(body: GraphModule) -> Iterator[str]:
    for node in body.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor) and value.is_floating_point():
            yield node.name


def _pass_by_position(node: Node) -> None:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    wanted = [i for i, a in enumerate(positional) if isinstance(node.kwargs.get(a.name), Node)]
    if not wanted:
        return
    args, kwargs = list(node.args), dict(node.kwargs)
    for argument in positional[len(args) : wanted[-1] + 1]:
        args.append(kwargs.pop(argument.name) if argument.name in kwargs else argument.default_value)
    node.args, node.kwargs = tuple(args), kwargs


# ---- annotations ----


def _taken(plan: Any, nodes: Mapping[str, Node]) -> set[str]:
    """Tells the plan which nodes another quantizer has annotated, and returns their names."""
    taken = set()
    for name, node in nodes.items():
        annotation = node.meta.get(_KEY)
        if annotation is None or not annotation._annotated:
            continue
        taken.add(name)
        if annotation.output_qspec is not None:
            plan.set(Output(name), Observed(), plan.add_rule("another quantizer"), False, "")
        plan.set_flags(name, True, None)
    return taken


def _write(plan: Any, nodes: Mapping[str, Node], taken: set[str], default_observer: Any) -> None:
    made: dict[Any, Any] = {}
    for name, node in nodes.items():
        if name in taken or not plan.has_annotation(name):
            continue
        edges, output = {}, None
        for slot, spec, _ in plan.entries(name):
            try:
                found = made[spec]
            except (KeyError, TypeError):
                found = _torch_spec(spec, nodes, default_observer)
                if isinstance(spec, Observed | Fixed):
                    made[spec] = found
            if isinstance(slot, Edge):
                edges[nodes[slot.producer]] = found
            else:
                output = found
        node.meta[_KEY] = QuantizationAnnotation(input_qspec_map=edges, output_qspec=output, _annotated=True)


def _torch_spec(spec: Any, nodes: Mapping[str, Node], default_observer: Any) -> Any:
    def place(slot: Any) -> Any:
        return nodes[slot.node] if isinstance(slot, Output) else (nodes[slot.producer], nodes[slot.user])

    if isinstance(spec, Float):
        return None
    if isinstance(spec, Shared):
        return SharedQuantizationSpec(place(spec.slot))
    numbers = {
        "dtype": getattr(torch, spec.dtype),
        "quant_min": spec.qmin,
        "quant_max": spec.qmax,
        "qscheme": getattr(torch, spec.scheme),
        "is_dynamic": False,
    }
    if isinstance(spec, Fixed):
        return FixedQParamsQuantizationSpec(scale=spec.scale, zero_point=spec.zero_point, **numbers)
    if isinstance(spec, Derived):
        sources = [place(slot) for slot in spec.slots]
        return DerivedQuantizationSpec(
            derived_from=sources, derive_qparams_fn=spec.function, ch_axis=spec.axis, **numbers
        )
    observer = default_observer if spec.observer is None else spec.observer
    made = getattr(observer, "p", None)
    if made is not None and made.func is FakeQuantize and spec.axis is not None:
        # Torch passes the axis to observers, but not to the modules around them.
        observer = FakeQuantize.with_args(**made.keywords, ch_axis=spec.axis)
    return QuantizationSpec(observer_or_fake_quant_ctr=observer, ch_axis=spec.axis, **numbers)
