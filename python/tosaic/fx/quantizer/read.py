"""Reads the annotations that quantizers write on the nodes of a graph (torchao's PT2E) into a plan.

    node.meta["quantization_annotation"]                      AnnotationPlan
      input_qspec_map[x] = QuantizationSpec(int8, ...)        Edge("x", "conv2d"): Observed("int8", ...)
      input_qspec_map[b] = DerivedQuantizationSpec([...])     Edge("b", "conv2d"): Derived((...), function)
      output_qspec = SharedQuantizationSpec((x, conv2d))      Output("conv2d"): Shared(Edge("x", "conv2d"))

The objects that were read are recorded next to the plan, so that `tosaic.fx.quantizer.write` can write the
same objects again wherever a plan did not change. Specs of other classes, and references to nodes that are
not in the graph, become foreign specs, which plans move unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
)

from tosaic import _core
from tosaic.annotation.plan import Plan
from tosaic.annotation.specs import FLOAT, Derived, Edge, Fixed, Foreign, Observed, Output, Shared, Slot, Spec
from tosaic.fx.quantizer.graph import call_graph
from tosaic.fx.quantizer.held_annotations import Snapshot, annotation_of, restored_on_error
from tosaic.fx.quantizer.observers import TosaicPerChannelGroupObserver
from tosaic.fx.quantizer.write import rebuild, write


@dataclass(frozen=True)
class Found:
    """The annotation of one node.

    Attributes
    ----------
    annotation : QuantizationAnnotation
        Possibly of a subclass.
    own : frozenset of Slot
        The slots that were read into the plan. Other entries belong to a quantizer that ran before.
    complete : bool
        True if all of the annotation is our own.
    """

    annotation: QuantizationAnnotation
    own: frozenset[Slot]
    complete: bool


@dataclass
class Annotations:
    """The annotations of a graph as a plan, and the objects of torch that the plan was read from.

    Attributes
    ----------
    plan : Plan
        The annotations as a plan, which may be changed, and written by `write`.
    model : torch.fx.GraphModule
        The graph that was read.
    nodes : dict of str to torch.fx.Node
        All nodes of the graph by name.
    found : dict of str to Found
        The annotations that were read, by node.
    specs : dict of Edge or Output to (spec, object)
        The spec that was read at each slot, and the spec of torchao from which it was read.
    taken : set of str
        Nodes with annotations that were excluded from the reading.
    """

    plan: Plan
    model: GraphModule
    nodes: dict[str, Node]
    found: dict[str, Found] = field(default_factory=dict)
    specs: dict[Slot, tuple[Spec, Any]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def write(self) -> None:
        """Writes the plan into the graph. Annotations that the plan did not change keep their objects."""
        with restored_on_error(self.model):
            write(self)

    def rebuild(self) -> None:
        """Removes the annotations that were read, and makes new ones from the plan alone.

        New specs have the fields of the plan's specs. A new annotation has the class of the one that was
        read, and its values of the fields that this class adds.
        """
        with restored_on_error(self.model):
            rebuild(self)


def read(model: GraphModule, *, author: str = "quantizer", before: Snapshot | None = None) -> Annotations:
    """Reads the annotations of a graph.

    Parameters
    ----------
    model : torch.fx.GraphModule
    author : str
        Who made the annotations, for reports.
    before : Snapshot, optional
        The annotations that a previous quantizer made. They are not read.

    Returns
    -------
    Annotations
    """
    plan = Plan(call_graph(model), author=author)
    reading = Annotations(plan, model, {node.name: node for node in model.graph.nodes})
    reader = SpecReader(reading.nodes)
    old = before.annotations if before is not None else {}
    for node in model.graph.nodes:
        annotation = annotation_of(node)
        if annotation is None:
            continue
        previous = old.get(node)
        if previous is not None and previous[0] is not annotation:
            previous = None  # a quantizer replaced the annotation, so all of it is new
        entries = dict(reader.entries(node, annotation))
        if previous is not None:
            reading.taken.add(node.name)
            entries = {slot: spec for slot, spec in entries.items() if _is_new(slot, spec, previous, reading)}
            if not entries:
                continue
        reading.found[node.name] = Found(annotation, frozenset(entries), previous is None)
        for slot, spec in entries.items():
            ours = reader.spec(spec)
            reading.specs[slot] = (ours, spec)
            plan.set(slot, ours, stale=True)
        plan.set_flags(
            node.name,
            annotated=bool(annotation._annotated),
            allow_implicit_sharing=bool(annotation.allow_implicit_sharing),
        )
    return reading


def _is_new(slot: Slot, spec: Any, previous: tuple[Any, dict[Any, Any], Any], reading: Annotations) -> bool:
    if isinstance(slot, Output):
        return spec is not previous[2]
    producer = reading.nodes[slot.producer]
    return producer not in previous[1] or previous[1][producer] is not spec


class SpecReader:
    """Converts torchao's specs to specs of plans.

    Parameters
    ----------
    nodes : mapping of str to torch.fx.Node
        The nodes that references may name.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    def entries(self, node: Node, annotation: QuantizationAnnotation) -> list[tuple[Slot, Any]]:
        """Returns slot and spec of each entry, without entries for producers that are not in the graph."""
        entries: list[tuple[Slot, Any]] = []
        for producer, spec in (annotation.input_qspec_map or {}).items():
            if self.is_known(producer):
                entries.append((Edge(producer.name, node.name), spec))
        if annotation.output_qspec is not None:
            entries.append((Output(node.name), annotation.output_qspec))
        return entries

    def is_known(self, node: Any) -> bool:
        """True for a node of the graph."""
        return isinstance(node, Node) and self._nodes.get(node.name) is node

    def spec(self, spec: Any) -> Spec:
        """Returns the spec of a plan. Specs of classes that torchao does not define become foreign."""
        if spec is None:
            return FLOAT
        kind = type(spec)
        try:
            if kind is QuantizationSpec:
                made = spec.observer_or_fake_quant_ctr
                return Observed(
                    axis=spec.ch_axis, observer=made, group_size=_group_size(made), **_numbers(spec)
                )
            if kind is FixedQParamsQuantizationSpec:
                return Fixed(scale=float(spec.scale), zero_point=int(spec.zero_point), **_numbers(spec))
            if isinstance(spec, SharedQuantizationSpec):
                return Shared(self._slot(spec.edge_or_node))
            if kind is DerivedQuantizationSpec:
                slots = tuple(self._slot(each) for each in spec.derived_from)
                return Derived(slots, spec.derive_qparams_fn, axis=spec.ch_axis, **_numbers(spec))
        except (_UnknownError, _core.Error, TypeError, ValueError):
            pass
        return Foreign(spec, _compared(spec))

    def _slot(self, place: Any) -> Slot:
        if self.is_known(place):
            return Output(place.name)
        if isinstance(place, tuple) and len(place) == 2 and all(map(self.is_known, place)):
            return Edge(place[0].name, place[1].name)
        raise _UnknownError


class _UnknownError(Exception):
    """A reference to a node that is not in the graph, or a dtype that plans represent in another form."""


_PACKED = "torch.int4"
"""Plans represent int4 as int8 with a range of 4 bits, which is what the observers of torchao support."""


def _numbers(spec: Any) -> dict[str, Any]:
    if str(spec.dtype) == _PACKED:
        raise _UnknownError
    return {
        "dtype": _dtype_name(spec.dtype),
        "qmin": spec.quant_min,
        "qmax": spec.quant_max,
        "scheme": _scheme_name(spec.qscheme),
        "dynamic": spec.is_dynamic,
    }


def _group_size(made: Any) -> int | None:
    """Returns the group size of a constructor of our group observers, or of fake-quant modules with them."""
    partial = getattr(made, "p", None)
    if partial is None:
        return None
    if TosaicPerChannelGroupObserver not in (partial.func, partial.keywords.get("observer")):
        return None
    size: int | None = partial.keywords.get("group_size")
    return size


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _scheme_name(scheme: Any) -> str | None:
    return None if scheme is None else str(scheme).removeprefix("torch.")


_COMPARED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "dtype": ("dtype", _dtype_name),
    "is_dynamic": ("dynamic", bool),
    "quant_min": ("qmin", lambda value: value),
    "quant_max": ("qmax", lambda value: value),
    "qscheme": ("scheme", _scheme_name),
    "ch_axis": ("axis", lambda value: value),
    "scale": ("scale", lambda value: value),
    "zero_point": ("zero_point", lambda value: value),
}
"""Attributes of a spec that implicit sharing compares -> their names and values in plans."""


def _compared(spec: Any) -> dict[str, Any]:
    return {
        name: convert(getattr(spec, attribute))
        for attribute, (name, convert) in _COMPARED.items()
        if hasattr(spec, attribute)
    }
