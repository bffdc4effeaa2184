"""Training with a batch norm after a convolution: the weight is quantized in the folded form of conversion.

::

    y = conv(x, w, b)                s = gamma / sqrt(var + eps)
    z = batch_norm(y, ..)            y = conv(x, w * s, 0) / s + b         w * s gets the spec of w
                                     z = batch_norm(y, ..)

    conversion                       z = conv(x, w * s, (b - mean) * s + beta)

This is the form of torchao's `_fuse_conv_bn_qat`. But it uses one epsilon for all norms, needs a gamma,
replaces the module's parameters by folded ones, and cannot tell several reads of a parameter apart. Here each
norm has its own product, and the parameters stay unchanged. A channel whose s is 0 is not scaled in
training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import DerivedQuantizationSpec, SharedQuantizationSpec

from tosaic.fx.quantizer.held_annotations import KEY
from tosaic.fx.quantizer.state_writes import value_of

_ATEN = torch.ops.aten
PLAIN_CONVOLUTIONS = frozenset(
    overload
    for packet in (_ATEN.conv1d, _ATEN.conv2d, _ATEN.conv3d)
    for overload in (packet.default, packet.padding)
)
TRANSPOSED_CONVOLUTIONS = frozenset(
    (_ATEN.conv_transpose1d.default, _ATEN.conv_transpose2d.input, _ATEN.conv_transpose3d.input)
)
_GROUPS_OF_TRANSPOSED = 6  # position of the argument `groups`
_EPS = 7
_Edge = tuple[Node, Node]


@dataclasses.dataclass(frozen=True)
class FusedNorm:
    """How conversion folds a batch norm into the convolution in front of it.

    Attributes
    ----------
    weight : str
        The path of the weight of the convolution.
    bias : str or None
    gamma, beta : str or None
    mean, variance : str
    eps : float
    groups : int or None
        The groups of a transposed convolution, whose weight has the output channels of one group in axis 1.
        None: another convolution, whose weight has all output channels in axis 0.
    """

    weight: str
    bias: str | None
    gamma: str | None
    beta: str | None
    mean: str
    variance: str
    eps: float
    groups: int | None

    @property
    def product(self) -> tuple[Any, ...]:
        """A key that is equal for norms with equal scaled weights."""
        return self.weight, self.gamma, self.variance, self.eps, self.groups

    def fold(self, model: GraphModule, norm: Node, first: Node, folded: dict[Any, Node]) -> None:
        """Replaces a norm by its convolution, with parameters of its own.

        Parameters
        ----------
        first : Node
            The operand of the norm.
        folded : dict
            The parameters that were added for earlier norms, by their keys.
        """
        conv = first
        while not is_contraction(conv):
            conv = conv.all_input_nodes[0]
        for at, key, name in ((1, self.product, "weight"), (2, self, "bias")):
            if key not in folded:
                value = self._weight(model) if at == 1 else self._bias(model)
                folded[key] = _parameter(model, f"_folded_{name}", value, conv.meta.get("val"))
            _read(model, conv, at, folded[key])
        norm.replace_all_uses_with(conv)
        _erase_unread(model, norm)

    def _scale(self, model: GraphModule) -> torch.Tensor:
        root = torch.sqrt(_tensor(model, self.variance) + self.eps)
        return 1 / root if self.gamma is None else _tensor(model, self.gamma) / root

    def _weight(self, model: GraphModule) -> torch.Tensor:
        weight, scale = _tensor(model, self.weight), self._scale(model)
        if self.groups is None:
            return weight * scale.reshape(_along(0, weight.dim()))
        rows = weight.shape[0]
        by_row = scale.reshape(self.groups, 1, -1).expand(-1, rows // self.groups, -1).reshape(rows, -1)
        return weight * by_row.reshape(*by_row.shape, *([1] * (weight.dim() - 2)))

    def _bias(self, model: GraphModule) -> torch.Tensor:
        mean = _tensor(model, self.mean)
        shift = -mean if self.bias is None else _tensor(model, self.bias) - mean
        made = shift * self._scale(model)
        return made if self.beta is None else made + _tensor(model, self.beta)


def unused_name(model: GraphModule, name: str) -> str:
    """Returns a name that no attribute of a model has."""
    found, count = name, 0
    while hasattr(model, found):
        count += 1
        found = f"{name}_{count}"
    return found


def _tensor(model: GraphModule, path: str) -> torch.Tensor:
    found = attrgetter(path)(model)
    assert isinstance(found, torch.Tensor)
    return found.detach()


def _along(axis: int, rank: int) -> list[int]:
    return [-1 if at == axis else 1 for at in range(rank)]


def _parameter(model: GraphModule, name: str, value: torch.Tensor, result: Any) -> Node:
    """Adds a parameter to a model and to its graph. `result` is a traced value with the graph's fake mode."""
    path = unused_name(model, name)
    model.register_parameter(path, torch.nn.Parameter(value, requires_grad=False))
    with model.graph.inserting_before(next(iter(model.graph.nodes))):
        made = model.graph.get_attr(path)
    mode = getattr(result, "fake_mode", None)
    made.meta["val"] = value if mode is None else mode.from_tensor(value, static_shapes=True)
    return made


def _read(model: GraphModule, conv: Node, at: int, parameter: Node) -> None:
    """Makes a convolution, or the observer of its operand, read a parameter."""
    args = [*conv.args, *([None] * (at + 1 - len(conv.args)))]
    reader, operand = conv, args[at]
    while isinstance(operand, Node) and operand.op == "call_module":
        reader, operand = operand, operand.all_input_nodes[0]
    if reader is conv:
        args[at] = parameter
        conv.args = tuple(args)
    elif operand is not parameter:
        assert isinstance(operand, Node)
        reader.replace_input_with(operand, parameter)
    if isinstance(operand, Node) and operand is not parameter:
        _erase_unread(model, operand)


def _erase_unread(model: GraphModule, node: Node) -> None:
    """Removes a call that nothing reads, and all calls that only it reads."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if not (current._erased or current.users or current.op == "placeholder"):
            waiting += current.all_input_nodes
            model.graph.erase_node(current)


# ---- the form of training ----


def fuse_norms(model: GraphModule) -> dict[Node, FusedNorm]:
    """Rewrites the graph into the form of training; returns how conversion folds each batch norm.

    Annotations follow the operands. A norm is not changed if other calls also read its convolution, or if
    its operand is rounded.
    """
    made = _Fusion(model)
    found = {node: fused for node in model.graph.nodes if (fused := _fused(node)) is not None}
    for norm, fused in found.items():
        made.add(norm, fused)
    if found:
        _move_specs(model, made.edges)
    return found


def _fused(norm: Node) -> FusedNorm | None:
    """Returns how a norm is folded into the convolution in front of it; None without a form of training."""
    fused = fold_of(norm)
    if fused is None:
        return None
    conv = norm.args[0]
    if not isinstance(conv, Node) or conv.target == _ATEN.linear.default:
        return None
    if list(conv.users) != [norm] or _is_rounded_between(conv, norm):
        return None
    return fused if fused.groups in (None, 1) else None


def is_contraction(node: Node) -> bool:
    """True for the calls into which a batch norm can be folded."""
    target = node.target
    return target in PLAIN_CONVOLUTIONS or target in TRANSPOSED_CONVOLUTIONS or target == _ATEN.linear.default


def fold_of(norm: Node) -> FusedNorm | None:
    """Returns how a batch norm is folded into the call in front of it, if both have constant parameters."""
    if norm.target != _ATEN.batch_norm.default or not isinstance(norm.args[0], Node):
        return None
    call = norm.args[0]
    if not is_contraction(call):
        return None
    result = call.meta.get("val")
    if call.target == _ATEN.linear.default and (result is None or result.dim() != 2):
        return None  # its last axis is not the norm's channel axis
    tensors = (*call.args[1:3], *([None] * (3 - len(call.args))), *norm.args[1:5])
    paths = [_path(each) for each in tensors]
    weight, bias, gamma, beta, mean, variance = paths
    is_known = all(each is None or path is not None for each, path in zip(tensors, paths, strict=True))
    if not is_known or weight is None or mean is None or variance is None:
        return None
    groups: int | None = None
    if call.target in TRANSPOSED_CONVOLUTIONS:
        at = _GROUPS_OF_TRANSPOSED
        groups = call.args[at] if len(call.args) > at else 1  # type: ignore[assignment]
    eps = norm.args[_EPS] if len(norm.args) > _EPS else 1e-5
    return FusedNorm(weight, bias, gamma, beta, mean, variance, float(eps), groups)  # type: ignore[arg-type]


def _is_rounded_between(conv: Node, norm: Node) -> bool:
    of_conv, of_norm = conv.meta.get(KEY), norm.meta.get(KEY)
    is_result = of_conv is not None and of_conv.output_qspec is not None
    return is_result or (of_norm is not None and conv in of_norm.input_qspec_map)


def _path(node: Any) -> str | None:
    return str(node.target) if isinstance(node, Node) and node.op == "get_attr" else None


class _Fusion:
    """Rewrites a graph into the form of training.

    Attributes
    ----------
    edges : dict of edge to edge
        For each annotated edge that was replaced, the new edge.
    """

    def __init__(self, model: GraphModule) -> None:
        self.edges: dict[_Edge, _Edge] = {}
        self._graph = model.graph
        self._products: dict[Any, tuple[Node, Node]] = {}  # by `FusedNorm.product`: the product and its scale

    def add(self, norm: Node, fused: FusedNorm) -> None:
        """Rewrites one norm."""
        conv = norm.args[0]
        assert isinstance(conv, Node)
        weight, bias = conv.args[1], conv.args[2] if len(conv.args) > 2 else None
        assert isinstance(weight, Node)
        for each in (
            weight,
            norm.args[1],
            norm.args[4],
        ):  # torch may place them after the convolution
            first = next(iter(self._graph.nodes))
            if isinstance(each, Node) and each is not first:
                first.prepend(each)
        with self._graph.inserting_before(conv):
            if fused.product not in self._products:
                self._products[fused.product] = self._product(conv, norm, weight, fused)
            product, scale = self._products[fused.product]
            args = [conv.args[0], product, *conv.args[2:]]
            self.edges[weight, conv] = product, conv
            if isinstance(bias, Node):
                zeros = args[2] = self._call(conv, _ATEN.zeros_like.default, bias, like=bias)
                self.edges[bias, conv] = zeros, conv
            conv.args = tuple(args)
        along = _along(1, _rank(weight))
        with self._graph.inserting_before(norm):
            divisor = self._call(conv, _ATEN.reshape.default, scale, along, like=scale)
            result = self._call(conv, _ATEN.div.Tensor, conv, divisor, like=conv)
            if isinstance(bias, Node):
                addend = self._call(conv, _ATEN.reshape.default, bias, along, like=bias)
                result = self._call(conv, _ATEN.add.Tensor, result, addend, like=conv)
        norm.update_arg(0, result)

    def _product(self, conv: Node, norm: Node, weight: Node, fused: FusedNorm) -> tuple[Node, Node]:
        gamma, variance = norm.args[1], norm.args[4]
        shifted = self._call(conv, _ATEN.add.Tensor, variance, fused.eps, like=variance)
        root = self._call(conv, _ATEN.sqrt.default, shifted, like=variance)
        scale = self._call(conv, _ATEN.reciprocal.default, root, like=variance)
        if gamma is not None:
            scale = self._call(conv, _ATEN.mul.Tensor, gamma, scale, like=variance)
        is_zero = self._call(conv, _ATEN.eq.Scalar, scale, 0, like=variance)
        scale = self._call(conv, _ATEN.where.ScalarSelf, is_zero, 1.0, scale, like=variance)
        along = self._call(
            conv,
            _ATEN.reshape.default,
            scale,
            _along(0 if fused.groups is None else 1, _rank(weight)),
            like=variance,
        )
        return self._call(conv, _ATEN.mul.Tensor, weight, along, like=weight), scale

    def _call(self, conv: Node, target: Any, *args: Any, like: Any) -> Node:
        """Adds a call with the metadata of the convolution."""
        made = self._graph.call_function(target, args)
        made.meta = {name: each for name, each in conv.meta.items() if name not in (KEY, "val")}
        made.meta["val"] = value_of(like)
        return made


def _rank(weight: Node) -> int:
    value = value_of(weight)
    assert value is not None
    return value.dim()


def _move_specs(model: GraphModule, edges: dict[_Edge, _Edge]) -> None:
    """Moves the specs of replaced edges, and references to these edges, to the new edges."""
    annotated = [node for node in model.graph.nodes if node.meta.get(KEY) is not None]
    specs = {
        (operand, node): spec
        for node in annotated
        for operand, spec in node.meta[KEY].input_qspec_map.items()
    }
    own = {edge: _own_spec(edge, spec, specs, edges) for edge, spec in specs.items()}
    for node in annotated:
        annotation = node.meta[KEY]
        annotation.input_qspec_map = {
            edges.get((operand, node), (operand, node))[0]: _moved(own[operand, node], edges)
            for operand in annotation.input_qspec_map
        }
        annotation.output_qspec = _moved(annotation.output_qspec, edges)


def _own_spec(edge: _Edge, spec: Any, specs: dict[_Edge, Any], edges: dict[_Edge, _Edge]) -> Any:
    """Returns an edge's spec. Different products of one weight get their own specs instead of shared ones."""
    seen = {edge}
    while isinstance(spec, SharedQuantizationSpec) and edge in edges:
        other = spec.edge_or_node
        is_parameter = isinstance(other, tuple) and other[0] is edge[0] and other in specs
        if not is_parameter or other in seen or edges.get(other, other)[0] is edges[edge][0]:
            break
        seen.add(other)
        spec = specs[other]
    return spec


def _moved(spec: Any, edges: dict[_Edge, _Edge]) -> Any:
    def moved(references: Sequence[Any]) -> list[Any]:
        return [edges.get(each, each) if isinstance(each, tuple) else each for each in references]

    if isinstance(spec, SharedQuantizationSpec):
        return SharedQuantizationSpec(*moved([spec.edge_or_node]))
    if isinstance(spec, DerivedQuantizationSpec):
        return dataclasses.replace(spec, derived_from=moved(spec.derived_from))
    return spec
