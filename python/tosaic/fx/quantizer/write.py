"""Writes a plan into the annotations of a graph, and changes only what the plan changed.

- A node whose entries and flags did not change since they were read is not touched: it keeps its objects.
- Where entries changed, the annotation object stays, because quantizers remember it by identity. It gets a
  new map, in which unchanged entries are the objects that were read. An annotation that several nodes share
  is copied.
- An entry that a plan removed becomes an explicit None if later entries remain: the fusion of convolutions
  and batch norms in training finds specs by their positions (input, weight, bias).
- Arm's quantizers also record on each call whether it is quantized (``node.meta["custom"]``), and Arm's
  lowering relies on the record. If a rule makes a call float, or quantizes it, the record changes too. Other
  metadata stays.
- Entries and annotations of quantizers that ran before stay as they are. If the plan has other entries for
  their slots, these are returned as refused.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torchao.quantization.pt2e import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
)
from torchao.quantization.pt2e.fake_quantize import AffineFakeQuantize, FakeQuantizeBase
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)

from tosaic import _core
from tosaic.annotation.observers import Observer
from tosaic.annotation.plan import Plan
from tosaic.annotation.specs import Derived, Edge, Fixed, Float, Foreign, Observed, Output, Shared, Slot, Spec
from tosaic.fx.quantizer.constructors import constructor_of
from tosaic.fx.quantizer.held_annotations import KEY, annotation_of
from tosaic.fx.quantizer.observers import TosaicPerChannelGroupObserver
from tosaic.torch_operators.origins import Where

if TYPE_CHECKING:
    from tosaic.fx.quantizer.read import Annotations

_FAKE_QUANTIZE = (FakeQuantize, AffineFakeQuantize)

_INT4 = (-8, 7)
_ARM_NOTE = "_arm_annotation_info"


@dataclass(frozen=True)
class Refused:
    """A difference between a plan and the graph that was not written.

    Attributes
    ----------
    slot : Slot
    spec : Spec, optional
        The spec of the plan. None: the plan has none.
    reason : str
    """

    slot: Slot
    spec: Spec | None
    reason: str


def write(reading: Annotations, *, qat: bool | None = None) -> list[Refused]:
    """Writes a plan into the annotations of the graph that it was read from.

    Parameters
    ----------
    reading : Annotations
        The annotations that were read, with a plan that may have changed since.
    qat : bool, optional
        Specs without an observer get fake-quant modules. None: if the specs that were read make such modules.

    Returns
    -------
    list of Refused
        Changes of entries that belong to a quantizer that ran before.
    """
    nodes = list(reading.model.graph.nodes)
    writer = SpecWriter(reading.nodes, makes_fake_quants(reading) if qat is None else qat, reading.specs)
    holders = Counter(id(found) for node in nodes if (found := annotation_of(node)) is not None)
    has_notes = any(_ARM_NOTE in (node.meta.get("custom") or {}) for node in nodes)
    refused: list[Refused] = []
    for node in nodes:
        changed = _write_node(node, reading, writer, holders, refused)
        if changed and has_notes and node.op == "call_function":
            note_for_arm(node)
    return refused


def rebuild(reading: Annotations) -> None:
    """See `Annotations.rebuild`."""
    plan = reading.plan
    writer = SpecWriter(reading.nodes, makes_fake_quants(reading))
    for name, node in reading.nodes.items():
        found = reading.found.get(name)
        if found is not None:
            del node.meta[KEY]
        if not plan.has_annotation(name):
            continue
        annotation = copy.copy(found.annotation) if found is not None else QuantizationAnnotation()
        specs = {slot: writer.spec(slot, spec) for slot, spec in plan.entries(name).items()}
        annotation.output_qspec = specs.pop(Output(name), None)
        annotation.input_qspec_map = {
            reading.nodes[slot.producer]: spec for slot, spec in specs.items() if isinstance(slot, Edge)
        }
        _set_flags(annotation, plan, name)
        node.meta[KEY] = annotation


def makes_fake_quants(reading: Annotations) -> bool:
    """True if a constructor that was read makes fake-quant modules: the graph is prepared for training."""
    return any(
        isinstance(made := _made_class(spec.observer), type) and issubclass(made, FakeQuantizeBase)
        for spec, _ in reading.specs.values()
        if isinstance(spec, Observed)
    )


def _made_class(constructor: Any) -> Any:
    """Returns the class that a constructor makes, also for constructors of ``with_args``."""
    return getattr(getattr(constructor, "p", None), "func", constructor)


# ---- nodes ----


def _write_node(
    node: Node,
    reading: Annotations,
    writer: SpecWriter,
    holders: Mapping[int, int],
    refused: list[Refused],
) -> bool:
    """Writes the plan's entries of a node. Returns False if nothing changed."""
    name, plan = node.name, reading.plan
    found = reading.found.get(name)
    wanted = plan.entries(name)
    before = {slot: reading.specs[slot][0] for slot in found.own} if found is not None else {}
    flags = (plan.annotated(name), plan.allow_implicit_sharing(name))
    flags_differ = (
        found is not None
        and found.complete
        and plan.has_annotation(name)
        and flags
        != (
            bool(found.annotation._annotated),
            bool(found.annotation.allow_implicit_sharing),
        )
    )
    if wanted == before and not flags_differ and plan.has_annotation(name) == (found is not None):
        return False
    if name in reading.taken:
        own = found.own if found is not None else frozenset()
        refused += [
            Refused(slot, wanted.get(slot), "the annotation is that of a quantizer that ran before")
            for slot in {**before, **wanted}
            if slot not in own and wanted.get(slot) != before.get(slot)
        ]
        wanted = {slot: spec for slot, spec in wanted.items() if slot in own}
        if wanted == before:
            return False
    elif not plan.has_annotation(name):
        node.meta.pop(KEY, None)
        return True
    annotation = found.annotation if found is not None else QuantizationAnnotation()
    if holders.get(id(annotation), 0) > 1:
        annotation = copy.copy(annotation)
    specs = {slot: writer.spec(slot, spec) for slot, spec in wanted.items()}
    own_slots = found.own if found is not None else frozenset()
    edges = {reading.nodes[slot.producer]: spec for slot, spec in specs.items() if isinstance(slot, Edge)}
    ours = {reading.nodes[slot.producer] for slot in own_slots if isinstance(slot, Edge)}
    annotation.input_qspec_map = _edges(node, annotation.input_qspec_map or {}, edges, ours)
    if Output(name) in specs or Output(name) in own_slots:
        annotation.output_qspec = specs.get(Output(name))
    if name not in reading.taken:
        _set_flags(annotation, plan, name)
    node.meta[KEY] = annotation
    return True


def note_for_arm(node: Node, quantized: bool | None = None) -> None:
    """Records for Arm's lowering whether a call is quantized; by default, whether it has a spec."""
    if quantized is None:
        annotation = annotation_of(node)
        specs = () if annotation is None else (*annotation.input_qspec_map.values(), annotation.output_qspec)
        quantized = any(spec is not None for spec in specs)
    node.meta["custom"] = {**(node.meta.get("custom") or {}), _ARM_NOTE: {"quantized": quantized}}


def _set_flags(annotation: QuantizationAnnotation, plan: Plan, name: str) -> None:
    annotation._annotated = plan.annotated(name)
    annotation.allow_implicit_sharing = plan.allow_implicit_sharing(name)


def _edges(node: Node, old: Mapping[Any, Any], wanted: Mapping[Node, Any], ours: Set[Node]) -> dict[Any, Any]:
    """Returns the new spec map of a node: old entries in their order, then new ones by argument position.

    Arguments without a spec get an explicit None if a later argument has a spec.
    """
    order = {producer: i for i, producer in enumerate(node.all_input_nodes)}
    last = max((order.get(producer, -1) for producer in wanted), default=-1)
    out: dict[Any, Any] = {}
    for key, spec in old.items():
        if key in wanted:
            out[key] = wanted[key]
        elif key not in ours:
            out[key] = spec
        elif order.get(key, -1) < last:
            out[key] = None
    if all(producer in out for producer in wanted):
        return out
    for producer, i in order.items():
        if producer in wanted or i < last:
            out.setdefault(producer, wanted.get(producer))
    out.update({producer: spec for producer, spec in wanted.items() if producer not in out})
    ranked = sorted(out, key=lambda producer: order.get(producer, len(order)))
    return {producer: out[producer] for producer in ranked}


# ---- specs ----


class SpecWriter:
    """Converts the specs of plans to torchao's.

    Parameters
    ----------
    nodes : mapping of str to Node
    qat : bool
        Specs without an observer get fake-quant modules.
    read : mapping of Slot to (Spec, QuantizationSpecBase), optional
        The specs that were read. A spec that was read becomes the object that was read.
    observer : Observer or constructor, optional
        For specs without an observer. Default: exact ranges for weights, else histograms.
    """

    def __init__(
        self,
        nodes: Mapping[str, Node],
        qat: bool,
        read: Mapping[Slot, tuple[Spec, Any]] | None = None,
        *,
        observer: Any = None,
    ) -> None:
        self._nodes = nodes
        self._qat = qat
        self._read = {} if read is None else read
        self._observer = observer
        self._made: dict[Spec, QuantizationSpecBase] = {}

    def spec(self, slot: Slot, spec: Spec) -> QuantizationSpecBase | None:
        """Returns the spec of torchao for a slot.

        Raises
        ------
        InvalidGraph
            Torch has no such dtype or scheme, or the spec names a node that is not in the graph.
        """
        if isinstance(spec, Float):
            return None
        if isinstance(spec, Foreign):
            return spec.object
        if self._read:
            read = self._read.get(slot)
            if read is not None and read[0] == spec:
                return read[1]
            for ours, theirs in self._read.values():
                if ours == spec:
                    return theirs
        if not self._is_same_everywhere(spec):
            return self._new(slot, spec)
        try:
            return self._made[spec]
        except KeyError:
            return self._made.setdefault(spec, self._new(slot, spec))
        except TypeError:  # an observer without a hash
            return self._new(slot, spec)

    def _is_same_everywhere(self, spec: Spec) -> bool:
        if isinstance(spec, Observed):
            return spec.observer is not None or self._observer is not None
        return isinstance(spec, Fixed)

    def _new(self, slot: Slot, spec: Spec) -> QuantizationSpecBase:
        if isinstance(spec, Shared):
            return SharedQuantizationSpec(self._place(spec.slot))
        if isinstance(spec, Observed):
            numbers = self._numbers(slot, spec)
            numbers["ch_axis"] = spec.axis
            ctr = spec.observer or self._observer or self._default_observer(slot, spec)
            if isinstance(ctr, Observer):
                ctr = constructor_of(ctr, spec, qat=self._qat)
            return QuantizationSpec(observer_or_fake_quant_ctr=_with_axis(ctr, spec.axis), **numbers)
        if isinstance(spec, Fixed):
            return FixedQParamsQuantizationSpec(
                scale=spec.scale, zero_point=spec.zero_point, **self._numbers(slot, spec)
            )
        assert isinstance(spec, Derived)
        return DerivedQuantizationSpec(
            derived_from=[self._place(each) for each in spec.slots],
            derive_qparams_fn=spec.function,
            ch_axis=spec.axis,
            **self._numbers(slot, spec),
        )

    def _place(self, slot: Slot) -> Any:
        nodes = self._nodes
        return nodes[slot.node] if isinstance(slot, Output) else (nodes[slot.producer], nodes[slot.user])

    def _numbers(self, slot: Slot, spec: Observed | Fixed | Derived) -> dict[str, Any]:
        qmin, qmax, dtype = spec.qmin, spec.qmax, spec.dtype
        if dtype == "int4":
            dtype, qmin, qmax = "int8", _INT4[0] if qmin is None else qmin, _INT4[1] if qmax is None else qmax
        return {
            "dtype": self._of_torch(slot, dtype, torch.dtype, "dtype"),
            "quant_min": qmin,
            "quant_max": qmax,
            "qscheme": None
            if spec.scheme is None
            else self._of_torch(slot, spec.scheme, torch.qscheme, "scheme"),
            "is_dynamic": spec.dynamic,
        }

    def _of_torch(self, slot: Slot, name: str, kind: type, what: str) -> Any:
        found = getattr(torch, name, None)
        if isinstance(found, kind):
            return found
        node = self._nodes[slot.node if isinstance(slot, Output) else slot.user]
        raise Where.of(node, "annotate").error(
            _core.InvalidGraph,
            f"torch has no such {what} for {slot!r}",
            expected="a name such as 'int8'" if what == "dtype" else "a name such as 'per_tensor_affine'",
            got=repr(name),
        )

    def _default_observer(self, slot: Slot, spec: Observed) -> Any:
        """Returns the constructor for a spec without one: exact ranges for weights, else histograms."""
        name = slot.node if isinstance(slot, Output) else slot.producer
        per_channel = spec.axis is not None
        if spec.dynamic:
            return PlaceholderObserver
        if spec.group_size is not None:
            groups = {"group_size": spec.group_size}
            if not self._qat:
                return TosaicPerChannelGroupObserver.with_args(**groups)
            return AffineFakeQuantize.with_args(
                observer=TosaicPerChannelGroupObserver, search=False, **groups
            )
        if per_channel or self._nodes[name].op == "get_attr":
            observer = PerChannelMinMaxObserver if per_channel else MinMaxObserver
            return FakeQuantize.with_args(observer=observer) if self._qat else observer
        return FusedMovingAvgObsFakeQuantize if self._qat else HistogramObserver


def _with_axis(constructor: Any, axis: int | None) -> Any:
    """Adds the channel axis to a fake-quant constructor; torchao passes it only to observers."""
    made = getattr(constructor, "p", None)
    if axis is None or made is None or made.func not in _FAKE_QUANTIZE or "ch_axis" in made.keywords:
        return constructor
    return made.func.with_args(**made.keywords, ch_axis=axis)
