"""Moves all calls of a prepared module out of training mode together, also those that torchao does not know.

::

    prepare     mode = dropout(ones([]), 0.5, True)          feature_dropout = ByMode(mode, x)
                mode = Conversion(mode)                      batch_norm = ByMode(mode, conv, ..)
    train       mode is 0 or 2                               both compute what they do in training
    evaluate    mode is 1                                    both compute what they do in evaluation
    convert     Conversion.convert                           feature_dropout(x, 0.3, False)

torchao moves an exported module between the modes by rewriting calls of ``dropout`` and ``batch_norm``, and
replaces their epsilon, momentum and probability by defaults. Here it rewrites only a dropout of the number 1,
whose result tells all other calls the mode. torchao lets observers convert themselves, so an observer of the
mode restores the calls for inference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torchao.quantization.pt2e import ObserverBase

from tosaic.fx.quantizer.held_annotations import KEY
from tosaic.fx.quantizer.read import read
from tosaic.fx.quantizer.trained_norms import FusedNorm, fuse_norms, unused_name
from tosaic.fx.quantizer.write import makes_fake_quants
from tosaic.fx.training_calls import (
    Products,
    arguments_in,
    depends_on_mode,
    is_in_training,
    with_arguments,
)

_LOG = logging.getLogger(__name__)
_ATEN = torch.ops.aten
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class _Operand:
    """A placeholder for an operand of a call, by position."""

    at: int


@dataclass(frozen=True)
class _Call:
    """A call whose operands are placeholders. Without a target, the result is the first operand."""

    target: Any
    args: Any = ()
    kwargs: Any = None

    def filled(self, operands: Any) -> tuple[Any, Any]:
        """Returns the arguments with these operands."""

        def operand(value: Any) -> Any:
            if isinstance(value, _Operand):
                return operands[value.at]
            if isinstance(value, list | tuple):
                return type(value)(operand(each) for each in value)
            return value

        return operand(tuple(self.args)), {key: operand(each) for key, each in (self.kwargs or {}).items()}

    def __call__(self, operands: Any) -> Any:
        """Makes the call."""
        if self.target is None:
            return operands[0]
        args, kwargs = self.filled(operands)
        return self.target(*args, **kwargs)


class ByMode(nn.Module):
    """Runs one call in training mode, and another one in evaluation mode."""

    def __init__(self, in_training: _Call, in_evaluation: _Call, fused: FusedNorm | None) -> None:
        super().__init__()
        self.in_training = in_training
        self.in_evaluation = in_evaluation
        self.fused = fused

    def forward(self, mode: torch.Tensor, *operands: Any) -> Any:
        """Runs the call of the mode; the number 1 means evaluation."""
        return (self.in_evaluation if float(mode) == 1 else self.in_training)(operands)


class Conversion(ObserverBase):  # type: ignore[misc]
    """Observes the mode, and restores the calls of a graph when torchao converts it.

    Parameters
    ----------
    noise : tuple of str
        Names of the calls that only compute the random factors of products.
    """

    def __init__(self, noise: tuple[str, ...]) -> None:
        super().__init__(torch.float32)
        self.noise = noise

    def forward(self, mode: torch.Tensor) -> torch.Tensor:
        """Returns the mode."""
        return mode

    def calculate_qparams(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns scale 1 and zero point 0: the observed mode (0, 1 or 2) is not quantized."""
        return torch.ones(1), torch.zeros(1, dtype=torch.int64)

    def convert(self, model: GraphModule, node: Node) -> None:
        """Puts all calls into evaluation mode, and folds batch norms into convolutions."""
        folded: dict[Any, Node] = {}
        for user in list(node.users):
            module: Any = model.get_submodule(str(user.target))
            operands = user.args[1:]
            call = module.in_evaluation
            if module.fused is not None:
                module.fused.fold(model, user, operands[0], folded)
            elif call.target is None:
                user.replace_all_uses_with(operands[0])  # type: ignore[arg-type]
                model.graph.erase_node(user)
            else:
                user.op, user.target = "call_function", call.target
                user.args, user.kwargs = call.filled(operands)
        mode = node
        while not mode.users:
            before = mode.all_input_nodes
            model.graph.erase_node(mode)
            if not before:
                break
            mode = before[0]
        _erase(model, lambda each: each.name in self.noise or _is_counted(each))


def _erase(model: GraphModule, chosen: Callable[[Node], bool]) -> None:
    """Removes chosen calls that nothing reads."""
    for node in reversed(list(model.graph.nodes)):
        if not node.users and chosen(node):
            model.graph.erase_node(node)


def _is_counted(node: Node) -> bool:
    """True for a call with which a norm counts its batches; norms count in training only."""
    first = node.args[0] if node.args else None
    is_counter = isinstance(first, Node) and first.op == "get_attr" and str(first.target).endswith(_COUNTER)
    return node.target == _ATEN.add_.Tensor and is_counter


def switch_modes_in_training(model: GraphModule) -> None:
    """Calls `switch_modes` if the graph's annotations make fake-quant modules."""
    if not _is_switched(model) and makes_fake_quants(read(model, author="")):
        switch_modes(model)


def switch_modes(model: GraphModule) -> None:
    """Replaces calls that depend on the mode by `ByMode` modules. Annotations stay with their calls.

    In a graph in training mode, calls that are in evaluation mode stay in it.
    """
    if _is_switched(model):
        return
    nodes = list(model.graph.nodes)
    for node in filter(_is_counted, nodes):  # some quantizers annotate this addition
        node.meta.pop(KEY, None)
    products = Products(model.graph)
    for node in products.unexplained:
        _LOG.warning(
            "'%s' draws random numbers, and it is not known what it computes in evaluation: it will do so in "
            "the converted program, which has no counterpart in TOSA. Call eval() on the module that draws "
            "them before the export, or draw them outside of the model",
            node.name,
        )
    fused = fuse_norms(model)
    switched = [node for node in nodes if _has_modes(node)]
    if not switched and not products.kept:
        return
    training = any(is_in_training(node) for node in switched) or bool(products.kept)
    mode = _mode(model, training, tuple(sorted(each.name for each in products.noise)))
    for node in switched:
        stays = training and not is_in_training(node)
        _switch(model, node, mode, fused.get(node), stays=stays)
    _forget_specs(products)
    for node, operand in products.kept.items():
        _keep(model, node, operand, mode)
    model.recompile()


def _forget_specs(products: Products) -> None:
    """Removes the specs of random factors, which evaluation does not read."""
    for node in products.noise:
        node.meta.pop(KEY, None)
    for product, operand in products.kept.items():
        annotation = product.meta.get(KEY)
        if annotation is not None:
            annotation.input_qspec_map = {
                each: spec for each, spec in annotation.input_qspec_map.items() if each is operand
            }


def _has_modes(node: Node) -> bool:
    """True for calls that depend on the mode, and for all batch norms, which torchao would rewrite."""
    return depends_on_mode(node) or node.target == _ATEN.batch_norm.default


def _is_switched(model: GraphModule) -> bool:
    modules = (node.target for node in model.graph.nodes if node.op == "call_module")
    return any(isinstance(model.get_submodule(str(each)), Conversion) for each in modules)


def _mode(model: GraphModule, training: bool, noise: tuple[str, ...]) -> Node:
    first = next(node for node in model.graph.nodes if node.op != "placeholder")
    name = unused_name(model, "tosaic_mode")
    model.add_submodule(name, Conversion(noise))
    with model.graph.inserting_before(first):
        one = model.graph.call_function(_ATEN.ones.default, ([],))
        drawn = model.graph.call_function(_ATEN.dropout.default, (one, 0.5, training))
        mode = model.graph.call_module(name, (drawn,))
    for node in (one, drawn, mode):
        node.meta["val"] = torch.ones((), device="meta")
    return mode


def _switch(model: GraphModule, node: Node, mode: Node, fused: FusedNorm | None, *, stays: bool) -> None:
    def call(training: bool) -> _Call:
        changed = {} if stays else arguments_in(node, training=training)
        return _call(node.target, *with_arguments(node, changed), node.all_input_nodes)

    module = ByMode(call(training=True), call(training=False), fused)
    _become(model, node, module, (mode, *node.all_input_nodes))


def _keep(model: GraphModule, node: Node, operand: Node, mode: Node) -> None:
    operands = [operand, *(each for each in node.all_input_nodes if each is not operand)]
    module = ByMode(_call(node.target, node.args, node.kwargs, operands), _Call(None), None)
    _become(model, node, module, (mode, *operands))


def _call(target: Any, args: Any, kwargs: Any, operands: list[Node]) -> _Call:
    def place(value: Node) -> Any:
        return _Operand(operands.index(value))

    return _Call(target, map_arg(args, place), map_arg(kwargs, place))


def _become(model: GraphModule, node: Node, module: ByMode, args: tuple[Node, ...]) -> None:
    name = unused_name(model, f"{node.name}_by_mode")
    model.add_submodule(name, module)
    node.op, node.target, node.args, node.kwargs = "call_module", name, args, {}
