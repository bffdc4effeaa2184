"""Finds calls that compute something else in training than in evaluation, and their form in evaluation.

::

    feature_dropout(x, 0.3, True)                        feature_dropout(x, 0.3, False)
    batch_norm(x, .., mean, var, True, 0.1, 1e-05)       batch_norm(x, .., mean, var, False, 0.1, 1e-05)
    scaled_dot_product_attention(q, k, v, None, 0.2)     scaled_dot_product_attention(q, k, v, None, 0.0)
    noise = div_(bernoulli_(empty([8, 1, 1]), 0.7), 0.7)
    mul(x, noise)                                        x

The first three calls have an argument for the mode. The last is stochastic depth, which no call of an
exported evaluation shows: a product with random numbers, drawn by one call, that are 0 or one other number.
A choice between a tensor and 0 by a random mask counts as such a product::

    where(lt(rand([8, 1]), 0.3), 0, x)       masked_fill(x, mask, 0)       index_put_(x, [mask], 0)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_arg

_ATEN = torch.ops.aten
_SWITCHES = ("train", "training", "use_input_stats")
_PROBABILITY = "dropout_p"
_STATISTICS = "running_mean"

_PRODUCTS = (_ATEN.mul.Tensor, _ATEN.mul_.Tensor)
_QUOTIENTS = (_ATEN.div.Tensor, _ATEN.div_.Tensor, _ATEN.div.Scalar, _ATEN.div_.Scalar)
_BERNOULLI = (_ATEN.bernoulli.default, _ATEN.bernoulli.p, _ATEN.bernoulli_.float)
_UNIFORM = ("rand", "rand_like")
_MADE = {
    **dict.fromkeys(("empty", "new_empty", "empty_like", "zeros", "new_zeros", "zeros_like"), 0.0),
    **dict.fromkeys(("ones", "new_ones", "ones_like"), 1.0),
}
_FILLED = ("full", "full_like", "new_full")
_SAME_ELEMENTS = (
    *(
        "view",
        "reshape",
        "expand",
        "expand_as",
        "unsqueeze",
        "squeeze",
        "contiguous",
        "clone",
        "detach",
        "detach_",
    ),
    *("alias", "to", "_to_copy", "type_as", "flatten", "unflatten", "_unsafe_view", "lift_fresh_copy"),
)
_LIKE_SECOND = (
    "type_as",
    "expand_as",
    "view_as",
    "reshape_as",
)  # of the second operand, these calls read only the shape
_POINTWISE = ("div_", "mul_", "floor_", "where", "masked_fill", "__and__", "__or__", "__xor__")
_DRAWN = 4096
_NEAR = 1e-3


def _parameters(node: Node) -> Iterator[tuple[str, int, Any]]:
    """Yields the name, the place and the value of each parameter of a call."""
    schema = getattr(node.target, "_schema", None)
    for at, parameter in enumerate(schema.arguments if schema is not None else ()):
        default = parameter.default_value if parameter.has_default_value() else None
        given = node.args[at] if at < len(node.args) else node.kwargs.get(parameter.name, default)
        yield parameter.name, at, given


def _values(node: Node) -> Iterator[tuple[str, Any]]:
    for name, _, value in _parameters(node):
        yield name, value


def arguments_in(node: Node, *, training: bool) -> dict[str, Any]:
    """Returns the arguments that put a call into a mode, by name; empty if the call has no modes.

    A norm without running statistics computes the same in both modes. A dropout of probability 0 is left out:
    its probability in training is unknown.
    """
    if node.op != "call_function":
        return {}
    values = dict(_values(node))
    if _STATISTICS in values and values[_STATISTICS] is None:
        return {}
    found: dict[str, Any] = {name: training for name in _SWITCHES if values.get(name) is not None}
    if values.get(_PROBABILITY):
        found[_PROBABILITY] = values[_PROBABILITY] if training else 0.0
    return found


def depends_on_mode(node: Node) -> bool:
    """True if an argument puts the call into a mode."""
    return bool(arguments_in(node, training=False))


def is_in_training(node: Node) -> bool:
    """True if an argument puts the call into training mode."""
    if node.op != "call_function":
        return False
    asked = arguments_in(node, training=False)
    return any(name in asked and value != asked[name] for name, value in _values(node))


def calls_in_training(graph: Graph) -> list[str]:
    """Returns the names of the calls that compute something else in evaluation."""
    kept = Products(graph).kept
    return [node.name for node in graph.nodes if node in kept or is_in_training(node)]


def with_arguments(node: Node, changed: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the positional and keyword arguments of a call, with the values of `changed`."""
    args, kwargs = list(node.args), dict(node.kwargs)
    for name, at, _ in _parameters(node):
        if name in changed and at < len(args):
            args[at] = changed[name]
        elif name in changed:
            kwargs[name] = changed[name]
    return tuple(args), kwargs


def _draws(node: Node) -> bool:
    """True if a call draws random numbers, and has no argument that depends on the mode."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload) or depends_on_mode(node):
        return False
    is_random: bool = torch.Tag.nondeterministic_seeded in target.tags
    return is_random and not any(name in (*_SWITCHES, _PROBABILITY) for name, _ in _values(node))


@dataclass(frozen=True)
class _Noise:
    """Random elements that are `value` with a probability, and else 0."""

    value: float
    probability: float


class Products:
    """The products of a tensor and random noise in a graph. In evaluation, the tensor replaces the product.

    Attributes
    ----------
    kept : dict of Node to Node
        For each product, the operand that replaces it in evaluation.
    noise : set of Node
        The calls that compute the other operands, and checks of them.
    unexplained : list of Node
        Other calls that draw random numbers: their form in evaluation is unknown.
    """

    def __init__(self, graph: Graph) -> None:
        self.kept: dict[Node, Node] = {}
        self.noise: set[Node] = set()
        nodes = list(graph.nodes)
        self._drawn = {node for node in nodes if _draws(node)}
        self._made = _made_without_inputs(nodes, self._drawn) if self._drawn else {}
        for node in nodes if self._drawn else ():
            self._add(node)
        self.noise |= {node for node in nodes if self._only_checks(node)}
        self.unexplained = [node for node in nodes if node in self._drawn - self.noise]

    def _only_checks(self, node: Node) -> bool:
        """True for a call without results, such as an assertion, that reads nothing but noise."""
        schema = getattr(node.target, "_schema", None)
        has_results = schema is None or schema.returns or schema.is_mutable
        return not has_results and bool(node.all_input_nodes) and self.noise.issuperset(node.all_input_nodes)

    def _add(self, node: Node) -> None:
        if node in self._made:
            return
        factors = self._factors(node)
        if factors is None:
            return
        x, drawn, is_kept_by_0 = factors
        if _shape(x) != _shape(node):
            return
        behind = _behind(drawn, self._made)
        is_one = sum(each in self._drawn for each in behind) == 1
        noise = _noise(self._elements(drawn)) if is_one else None
        if noise is not None and is_kept_by_0:
            noise = _Noise(1.0, 1 - noise.probability)
        found = None if noise is None else _in_evaluation(node, x, noise)
        if found is None:
            return
        self.noise |= behind
        if found[0] is not node and _writes(node, x):  # nor may evaluation write x
            self.kept |= {node: x, found[0]: node}
        else:
            self.kept[found[0]] = found[1]
            self.noise |= {node} - {found[0]}

    def _factors(self, node: Node) -> tuple[Node, Node, bool] | None:
        """Returns the operand x, the random tensor, and whether this is a mask that keeps x where it is 0."""
        if node.target in _PRODUCTS:
            operands = [each for each in node.args[:2] if isinstance(each, Node)]
            drawn = [each for each in operands if self._made.get(each)]
            if len(operands) != 2 or len(drawn) != 1:
                return None
            return operands[1 - operands.index(drawn[0])], drawn[0], False
        mask, chosen, other = _choice(node)
        if not isinstance(mask, Node) or not self._made.get(mask):
            return None
        for x, zero, is_kept_by_0 in ((chosen, other, False), (other, chosen, True)):
            if isinstance(x, Node) and x not in self._made and self._is_zero(zero):
                return x, mask, is_kept_by_0
        return None

    def _is_zero(self, value: Any) -> bool:
        if not isinstance(value, Node):
            return isinstance(value, int | float) and value == 0
        elements = self._elements(value) if self._made.get(value) is False else None
        return elements is not None and not elements.any()

    def _elements(self, factor: Node) -> torch.Tensor | None:
        """Returns the elements of a tensor that reads no inputs, for equally spaced quantiles of its draw."""
        behind = _behind(factor, self._made)
        quantiles = (torch.arange(_DRAWN, dtype=torch.float64) + 0.5) / _DRAWN
        env: dict[Node, Any] = {}
        for node in self._made:
            if node in behind:
                value = _drawn(node, env, quantiles)
                if value is None:
                    return None
                env[node] = value.to(_computed_dtype(node))
        return env[factor].to(torch.float64)  # type: ignore[no-any-return]


def _choice(node: Node) -> tuple[Any, Any, Any]:
    """Returns a mask, the value where it is 1, and the value where it is 0; three times None if no choice."""
    if not isinstance(node.target, OpOverload) or len(node.args) != 3 or node.kwargs:
        return None, None, None
    name = _name(node)
    if name == "where":
        mask, chosen, other = node.args
        return mask, chosen, other
    if name in ("masked_fill", "masked_fill_"):
        x, mask, value = node.args
        return mask, value, x
    if name in ("index_put", "index_put_"):
        x, indices, value = node.args
        is_one = isinstance(indices, list | tuple) and len(indices) == 1
        mask = indices[0] if is_one else None  # type: ignore[index]
        is_mask = isinstance(mask, Node) and getattr(mask.meta.get("val"), "dtype", None) == torch.bool
        return (mask, value, x) if is_mask else (None, None, None)
    return None, None, None


def _in_evaluation(product: Node, x: Node, noise: _Noise) -> tuple[Node, Node] | None:
    """Returns the call that evaluation replaces, and its replacement; None if the mean would differ."""
    if abs(noise.value * noise.probability - 1) < _NEAR:
        return product, x
    if abs(noise.value - 1) >= _NEAR:
        return None
    scaled = _divided(x, noise.probability)
    if scaled is not None:
        return product, scaled
    user = next(iter(product.users)) if len(product.users) == 1 else None
    if user is not None and _divided(user, noise.probability) is product:
        return user, x
    return product, x  # stochastic depth without scaling


def _divided(node: Node, divisor: float) -> Node | None:
    """Returns the operand that a call divides by `divisor`; None for other calls."""
    if node.target in _QUOTIENTS and isinstance(node.args[1], int | float):
        by, x = float(node.args[1]), node.args[0]
    elif node.target in _PRODUCTS and isinstance(node.args[1], int | float) and node.args[1]:
        by, x = 1 / float(node.args[1]), node.args[0]
    else:
        return None
    return x if isinstance(x, Node) and abs(by - divisor) < _NEAR else None


def _made_without_inputs(nodes: list[Node], drawn: set[Node]) -> dict[Node, bool]:
    """Returns calls computed from one-element constants and random draws only; True: it depends on a draw."""
    found: dict[Node, bool] = {}
    for node in nodes:
        if node.op == "get_attr" and _element(node) is not None:
            found[node] = False
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        read = [] if _reads_sizes_only(node) else [each for each in node.all_input_nodes if _is_tensor(each)]
        read = read[:1] if _name(node) in _LIKE_SECOND else read
        if all(each in found for each in read):
            found[node] = node in drawn or any(found[each] for each in read)
    return {node: is_drawn for node, is_drawn in found.items() if _is_tensor(node)}


def _element(node: Node) -> float | None:
    """Returns the number of a constant with one element; None for other nodes."""
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    is_constant = isinstance(found, torch.Tensor) and not isinstance(found, torch.nn.Parameter)
    return float(found) if is_constant and found.numel() == 1 and not found.is_complex() else None


def _shape(node: Node) -> tuple[Any, ...]:
    return tuple(getattr(node.meta.get("val"), "shape", ()))


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) or node.op == "get_attr"


def _reads_sizes_only(node: Node) -> bool:
    name = _name(node)
    return name.endswith("_like") or name.startswith("new_") or node.target is _ATEN.bernoulli.p


def _name(node: Node) -> str:
    name: str = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
    return name


def _behind(factor: Node, made: dict[Node, bool]) -> set[Node]:
    """Returns the calls that compute a factor, including calls that write to its operands."""
    waiting, seen = [factor], {factor}
    while waiting:
        current = waiting.pop()
        near = [] if current.op == "get_attr" or _reads_sizes_only(current) else [*current.all_input_nodes]
        near += [each for each in current.users if _writes(each, current)]
        for each in near:
            if each in made and each not in seen:
                seen.add(each)
                waiting.append(each)
    return seen


def _writes(node: Node, first: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable and node.args[0] is first


def _noise(elements: torch.Tensor | None) -> _Noise | None:
    """Returns the noise of a factor's elements if they are 0 or one other number; else None."""
    if elements is None:
        return None
    others = elements[elements != 0]
    if not others.numel() or float(others.max() - others.min()) > _NEAR * abs(float(others.max())):
        return None
    return _Noise(float(others[0]), others.numel() / _DRAWN)


def _computed_dtype(node: Node) -> torch.dtype:
    """Returns the dtype of a result, with float64 in place of all floats."""
    dtype: torch.dtype = node.meta["val"].dtype
    return torch.float64 if dtype.is_floating_point else dtype


def _drawn(node: Node, env: dict[Node, Any], quantiles: torch.Tensor) -> Any:
    """Returns the elements of a call if its random draw has these quantiles; None if they are unknown."""
    if node.op == "get_attr":
        return torch.full_like(quantiles, _element(node) or 0.0)
    target: Any = node.target
    name = _name(node)
    first: Any = node.args[0] if node.args else None
    if target in _BERNOULLI:
        probability = env[first] if target is _ATEN.bernoulli.default else dict(_values(node))["p"]
        drawn = (quantiles >= 1 - probability).to(quantiles.dtype)
        return env[first].copy_(drawn) if target is _ATEN.bernoulli_.float else drawn
    if name in _UNIFORM:
        return quantiles.clone()
    if name in _MADE:
        return torch.full_like(quantiles, _MADE[name])
    if name in _FILLED and isinstance(node.args[1], int | float):
        return torch.full_like(quantiles, float(node.args[1]))
    if name in _SAME_ELEMENTS and first in env:
        return env[first]
    is_pointwise = torch.Tag.pointwise in target.tags or name in _POINTWISE
    if not is_pointwise or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if not env.keys() >= set(node.all_input_nodes):
        return None
    args: Any = map_arg(node.args, env.__getitem__)
    kwargs: Any = map_arg(node.kwargs, env.__getitem__)
    return target(*args, **kwargs)
