"""The annotations that nodes of a graph hold, and their state at one time: `annotation_of`, `snapshot`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation

KEY = "quantization_annotation"
"""Where annotations are in ``node.meta``."""


@dataclass(frozen=True)
class Snapshot:
    """The annotations of a graph at one time: the object of each node, and what it contained.

    Attributes
    ----------
    annotations : mapping of torch.fx.Node to (annotation, dict, object)
        The annotation, a copy of its ``input_qspec_map``, and its ``output_qspec``.
    """

    annotations: Mapping[Node, tuple[QuantizationAnnotation, dict[Any, Any], Any]] = field(
        default_factory=dict
    )


def annotation_of(node: Node) -> QuantizationAnnotation | None:
    """Returns the annotation of a node, or None."""
    found: QuantizationAnnotation | None = node.meta.get(KEY)
    return found


def snapshot(model: GraphModule) -> Snapshot:
    """Returns the present annotations of a graph."""
    annotated = ((node, annotation_of(node)) for node in model.graph.nodes)
    return Snapshot(
        {
            node: (annotation, dict(annotation.input_qspec_map or {}), annotation.output_qspec)
            for node, annotation in annotated
            if annotation is not None
        }
    )


@contextmanager
def restored_on_error(model: GraphModule) -> Iterator[None]:
    """Restores the metadata and annotations of all nodes if the ``with`` block raises an error.

    Without this, an inner quantizer's annotations would stay on the graph after a rule failed. The next
    attempt would take them for annotations of another quantizer.
    """
    metas = {node: dict(node.meta) for node in model.graph.nodes}
    notes = {node: dict(node.meta["custom"]) for node in metas if isinstance(node.meta.get("custom"), dict)}
    fields = {id(found): (found, dict(vars(found))) for node in metas if (found := annotation_of(node))}
    maps = {id(found): dict(found.input_qspec_map or {}) for found, _ in fields.values()}
    try:
        yield
    except BaseException:
        for node, meta in metas.items():
            node.meta.clear()
            node.meta.update(meta)
        for node, note in notes.items():
            node.meta["custom"].clear()
            node.meta["custom"].update(note)
        for found, values in fields.values():
            vars(found).update(values)
            if found.input_qspec_map is not None:
                found.input_qspec_map.clear()
                found.input_qspec_map.update(maps[id(found)])
        raise
