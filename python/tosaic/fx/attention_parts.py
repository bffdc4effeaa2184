"""Replaces calls of attention by the operators that they compute, for targets without such an operator.

::

    out = scaled_dot_product_attention(q, k, v, mask)      scores = bmm(q, k.transpose(-2, -1))
                                                           scores = scores * scale + mask
                                                           out = bmm(softmax(scores), v)

Targets such as Cortex-M compute one operator at a time, with integers between the operators. A quantizer can
choose scales only for tensors that are results of calls in the graph. The products are `bmm`, and heads that
a group shares are repeated by concatenations, since such targets have no other operators for these.

A mask must be constant. In the sum with the scores, a hidden position gets -8192 in place of -inf, so that 8
bits are left for the scores. A call of attention is not replaced if its mask is computed, or hides a whole
row: torch returns zeros for such a row, and a softmax does not.

Masks that the module applies itself in front of a softmax are also replaced by a sum with a constant of the
shape of the scores::

    softmax(scores + m)                          softmax(scores + constant)
    softmax(scores.masked_fill(c, -inf))
    softmax(where(c, scores, -1e9))
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node

_ATEN = torch.ops.aten
_HIDDEN = -8192.0  # replaces -inf in a mask: the softmax of a hidden score is 0 next to any other score
_HIDES = -4096.0  # a mask element of at most this number hides its score
_LARGEST = 1e4  # a mask with a larger element is not replaced
_MOST_ELEMENTS = 1 << 24  # a constant with more elements is not computed


def with_attention_parts(exported: ExportedProgram) -> ExportedProgram:
    """Returns the program with its attentions and masks replaced; the program itself if it has none."""
    program = _Lifted(exported)
    constants = _Constants(program.constant_of)
    if not any(_attentions(program.graph, constants.of)) and not any(_masks(program.graph, constants.of)):
        return exported
    program = _Lifted(_copied(exported))
    constants = _Constants(program.constant_of)
    _add_masks(program.graph, constants.of, program.add_constant)
    _decompose(program.graph, constants.of, program.add_constant)
    program.graph.eliminate_dead_code()
    program.exported.graph_module.recompile()
    return program.exported


def with_attention_parts_in(model: GraphModule) -> None:
    """Replaces attention calls of a module whose constants are attributes, unless their mask hides scores."""
    added = 0

    def constant_of(node: Node) -> torch.Tensor | None:
        if node.op != "get_attr":
            return None
        found = attrgetter(str(node.target))(model)
        return found if isinstance(found, torch.Tensor) else None

    def add_constant(at: Node, tensor: torch.Tensor) -> Node:
        nonlocal added
        while hasattr(model, name := f"_attention_mask_{added}"):
            added += 1
        model.register_buffer(name, tensor, persistent=False)
        with model.graph.inserting_before(at):
            made: Node = model.graph.get_attr(name)
        return made

    # A mask that hides scores adds -8192 to them. A scale for that range would be too coarse for the scores.
    def visible(node: Node) -> bool:
        found = _attention(node, constant_of)
        return found is not None and (found.mask is None or bool((found.mask > _HIDES).all()))

    written = {node.args[0] for node in model.graph.nodes if node.target == _ATEN.copy_.default}
    known = {node: None if node in written else constant_of(node) for node in model.graph.nodes}
    hiding = {node for node in model.graph.nodes if not visible(node)}
    _decompose(model.graph, known.get, add_constant, left=hiding)
    model.recompile()


# ---- exported programs ----


class _Lifted:
    """An exported program, whose constants are inputs of its graph."""

    def __init__(self, exported: ExportedProgram) -> None:
        self.exported = exported
        self.graph = exported.graph_module.graph
        signature = exported.graph_signature
        self._targets = {
            spec.arg.name: spec.target
            for spec in signature.input_specs
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
            and spec.target not in signature.buffers_to_mutate.values()
        }

    def constant_of(self, node: Node) -> torch.Tensor | None:
        target = self._targets.get(node.name) if node.op == "placeholder" else None
        if target is None:
            return None
        if target in self.exported.state_dict:
            found = self.exported.state_dict[target]
        else:
            found = self.exported.constants.get(target)
        return found if isinstance(found, torch.Tensor) else None

    def add_constant(self, at: Node, tensor: torch.Tensor) -> Node:
        del at
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        specs = list(self.exported.graph_signature.input_specs)
        place = next((i for i, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT), len(specs))
        names = {node.name for node in self.graph.nodes} | self.exported.constants.keys()
        number = next(i for i in range(len(names) + 1) if f"c_attention_mask_{i}" not in names)
        name = f"c_attention_mask_{number}"
        before = placeholders[place] if place < len(placeholders) else next(iter(self.graph.nodes))
        with self.graph.inserting_before(before):
            node: Node = self.graph.placeholder(name)
        spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name, None)
        signature = self.exported.graph_signature
        self.exported._graph_signature = ExportGraphSignature(
            [*specs[:place], spec, *specs[place:]], signature.output_specs
        )
        self.exported._constants[name] = tensor
        self._targets[node.name] = name
        return node


def _copied(exported: ExportedProgram) -> ExportedProgram:
    """Returns the program with a graph of its own and the same tensors."""
    graph = copy.deepcopy(exported.graph_module.graph)
    module = GraphModule(exported.graph_module, graph)
    module.meta = dict(exported.graph_module.meta)
    return ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=copy.deepcopy(exported.graph_signature),
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=dict(exported.constants),
        verifiers=[exported.verifier],
    )


# ---- graphs ----

_ConstantOf = Callable[[Node], torch.Tensor | None]


class _Constants:
    """The tensors of nodes that depend on constants only.

    Parameters
    ----------
    given : callable
        Returns the tensor of a constant; None for other nodes.
    """

    def __init__(self, given: _ConstantOf) -> None:
        self._given = given
        self._known: dict[Node, torch.Tensor | None] = {}

    def of(self, node: Node) -> torch.Tensor | None:
        if node not in self._known:
            self._known[node] = self._given(node) if node.op != "call_function" else self._computed(node)
        return self._known[node]

    def _computed(self, node: Node) -> torch.Tensor | None:
        target: Any = node.target
        schema, value = getattr(target, "_schema", None), node.meta.get("val")
        if schema is None or not isinstance(value, torch.Tensor) or value.numel() > _MOST_ELEMENTS:
            return None
        if not schema.name.startswith("aten::") or torch.Tag.nondeterministic_seeded in target.tags:
            return None
        if schema.is_mutable and schema.name != "aten::detach_":
            return None
        operands = {each: self.of(each) for each in node.all_input_nodes}
        if any(each is None for each in operands.values()):
            return None
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: operands[each])
        with torch.no_grad():
            found = target(*args, **kwargs)
        return found if isinstance(found, torch.Tensor) else None


# ---- masks ----


def _masks(graph: Graph, constant_of: _ConstantOf) -> Iterator[tuple[Node, Node, torch.Tensor]]:
    """Yields each masking call in front of a softmax, its scores, and the constant to add to them instead."""
    for node in list(graph.nodes):
        found = _mask(node, constant_of)
        if found is not None:
            yield node, *found


def _mask(node: Node, constant_of: _ConstantOf) -> tuple[Node, torch.Tensor] | None:
    if node.op != "call_function" or not node.users or not all(map(_is_softmax, node.users)):
        return None
    parts = _scores_and_addend(node, constant_of)
    if parts is None:
        return None
    scores, addend = parts
    if not _is_static_float(scores) or scores.meta["val"].shape != node.meta["val"].shape:
        return None
    shape = tuple(scores.meta["val"].shape)
    is_plain = (
        node.target == _ATEN.add.Tensor and tuple(addend.shape) == shape and bool((addend >= _HIDDEN).all())
    )
    if is_plain or 0 in shape:
        return None
    added = addend.expand(shape)
    if added.isnan().any() or (added > _LARGEST).any() or (added.amax(-1) <= _HIDES).any():
        return None
    return scores, added.clamp(min=_HIDDEN)


def _is_softmax(node: Node) -> bool:
    if node.target not in (_ATEN.softmax.int, _ATEN._softmax.default):
        return False
    value, dim = node.meta.get("val"), node.args[1]
    return isinstance(value, torch.Tensor) and dim in (-1, value.dim() - 1)


def _scores_and_addend(node: Node, constant_of: _ConstantOf) -> tuple[Node, torch.Tensor] | None:
    def known(each: Any) -> torch.Tensor | None:
        if isinstance(each, int | float):
            return torch.tensor(float(each))
        return constant_of(each) if isinstance(each, Node) else None

    args = node.args
    if node.target == _ATEN.add.Tensor and len(args) == 2 and node.kwargs.get("alpha", 1) == 1:
        for scores, other in (args, args[::-1]):
            addend = constant_of(other) if isinstance(other, Node) else None
            if (
                isinstance(scores, Node)
                and addend is not None
                and addend.dtype == torch.float32
                and addend.dim()
            ):
                return None if constant_of(scores) is not None else (scores, addend)
        return None
    if node.target in (_ATEN.masked_fill.Scalar, _ATEN.masked_fill.Tensor):
        scores, hidden, number = args[0], known(args[1]), known(args[2])
        shown = None if hidden is None else ~hidden.bool()
    elif node.target in (_ATEN.where.self, _ATEN.where.ScalarOther) and len(args) == 3:
        scores, shown, number = args[1], known(args[0]), known(args[2])
    else:
        return None
    if not isinstance(scores, Node) or shown is None or number is None or bool((number > _HIDES).any()):
        return None
    return None if constant_of(scores) is not None else (scores, torch.where(shown, 0.0, -math.inf))


def _add_masks(
    graph: Graph, constant_of: _ConstantOf, add_constant: Callable[[Node, torch.Tensor], Node]
) -> None:
    for node, scores, addend in _masks(graph, constant_of):
        constant = add_constant(node, addend.contiguous())
        mode = detect_fake_mode([node.meta["val"]])
        constant.meta["val"] = (
            addend if mode is None else mode.from_tensor(addend.contiguous(), static_shapes=True)
        )
        with graph.inserting_before(node):
            made = graph.call_function(_ATEN.add.Tensor, (scores, constant))
        made.meta = dict(node.meta)
        name = node.name
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        made.name = name


# ---- attentions ----


class _Attention:
    """A call of attention that can be replaced."""

    def __init__(self, node: Node, mask: torch.Tensor | None, scale: float) -> None:
        self.node, self.mask, self.scale = node, mask, scale


def _attentions(graph: Graph, constant_of: _ConstantOf) -> Iterator[_Attention]:
    for node in list(graph.nodes):
        found = _attention(node, constant_of)
        if found is not None:
            yield found


def _attention(node: Node, constant_of: _ConstantOf) -> _Attention | None:
    if node.op != "call_function" or node.target != _ATEN.scaled_dot_product_attention.default:
        return None
    given = _arguments(node)
    operands = [given[name] for name in ("query", "key", "value")]
    if not all(isinstance(each, Node) and _is_static_float(each) for each in operands):
        return None
    query, key, value = (each.meta["val"].shape for each in operands)
    heads = 1 if not given["enable_gqa"] else query[-3] // max(key[-3], 1)
    are_alike = query[:-2] == (*key[:-3], key[-3] * heads) if heads > 1 else query[:-2] == key[:-2]
    if given["dropout_p"] or not are_alike or key[:-1] != value[:-1] or 0 in (*query, *key, *value):
        return None
    scale = given["scale"]
    if scale is None:
        scale = 1 / math.sqrt(query[-1])
    if isinstance(scale, Node) or not math.isfinite(scale) or scale == 0:
        return None
    shape = (*query[:-1], key[-2])
    mask = given["attn_mask"]
    if mask is None and not given["is_causal"]:
        return _Attention(node, None, float(scale))
    added = torch.zeros(shape)
    if given["is_causal"]:
        added = added.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        known = constant_of(mask)
        if known is None:
            return None
        added = (
            torch.zeros_like(added).masked_fill(~known, -math.inf)
            if known.dtype == torch.bool
            else added + known
        )
    if added.shape != shape or added.isnan().any() or (added > _LARGEST).any():
        return None
    if (added.amax(-1) <= _HIDES).any():
        return None
    return _Attention(node, added.clamp(min=_HIDDEN) if added.any() else None, float(scale))


def _arguments(node: Node) -> dict[str, Any]:
    target: Any = node.target
    found: dict[str, Any] = {}
    for i, argument in enumerate(target._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        found[argument.name] = node.kwargs.get(argument.name, node.args[i] if i < len(node.args) else default)
    return found


def _is_static_float(node: Node) -> bool:
    value = node.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.dtype == torch.float32
        and value.dim() > 2
        and all(isinstance(extent, int) for extent in value.shape)
    )


def _decompose(
    graph: Graph,
    constant_of: _ConstantOf,
    add_constant: Callable[[Node, torch.Tensor], Node],
    *,
    left: Collection[Node] = (),
) -> None:
    for each in _attentions(graph, constant_of):
        if each.node not in left:
            _Parts(graph, each, add_constant).emit()


class _Parts:
    """Emits the operators of one attention call in front of it, and replaces the call by the last of them."""

    def __init__(
        self, graph: Graph, attention: _Attention, add_constant: Callable[[Node, torch.Tensor], Node]
    ) -> None:
        self._graph, self._attention, self._add_constant = graph, attention, add_constant

    def emit(self) -> None:
        node, mask = self._attention.node, self._attention.mask
        given = _arguments(node)
        query, key, value = (given[name] for name in ("query", "key", "value"))
        if given["enable_gqa"]:
            key, value = (self._repeated(each, query) for each in (key, value))
        shape = tuple(query.meta["val"].shape)
        query, key, value = map(self._flat, (query, key, value))
        scores = self._call(_ATEN.bmm.default, query, self._call(_ATEN.transpose.int, key, -2, -1))
        if self._attention.scale != 1:
            scores = self._call(_ATEN.mul.Tensor, scores, self._attention.scale)
        if mask is not None:
            flat = mask.reshape(tuple(scores.meta["val"].shape)).contiguous()
            added = self._add_constant(node, flat)
            added.meta["val"] = self._fake(flat)
            scores = self._call(_ATEN.add.Tensor, scores, added)
        shares = self._call(_ATEN.softmax.int, scores, -1)
        out = self._call(_ATEN.bmm.default, shares, value)
        if len(shape) > 3:
            out = self._call(_ATEN.reshape.default, out, [*shape[:-1], value.meta["val"].shape[-1]])
        out.meta = {**node.meta, "val": out.meta["val"]}
        name = node.name
        node.replace_all_uses_with(out)
        self._graph.erase_node(node)
        out.name = name  # after the erasure, since names in a graph are unique

    def _repeated(self, operand: Node, query: Node) -> Node:
        """Repeats each head of keys or values once for each query head of its group."""
        shape = list(operand.meta["val"].shape)
        times = query.meta["val"].shape[-3] // shape[-3]
        if times == 1:
            return operand
        apart = self._call(_ATEN.unsqueeze.default, operand, -3)
        repeated = self._call(_ATEN.cat.default, [apart] * times, -3)
        return self._call(_ATEN.reshape.default, repeated, [*shape[:-3], shape[-3] * times, *shape[-2:]])

    def _flat(self, operand: Node) -> Node:
        shape = operand.meta["val"].shape
        if len(shape) == 3:
            return operand
        return self._call(_ATEN.reshape.default, operand, [math.prod(shape[:-2]), *shape[-2:]])

    def _call(self, target: Any, *args: Any) -> Node:
        node = self._attention.node
        with self._graph.inserting_before(node):
            made = self._graph.call_function(target, args)
        made.meta = {key: each for key, each in node.meta.items() if key not in ("val", "tensor_meta")}
        values = torch.fx.node.map_arg(args, lambda each: each.meta["val"])
        mode = detect_fake_mode([node.meta["val"]])
        with mode if mode is not None else torch.no_grad():
            made.meta["val"] = target(*values)
        return made

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        mode = detect_fake_mode([self._attention.node.meta["val"]])
        return tensor if mode is None else mode.from_tensor(tensor, static_shapes=True)
