"""Makes the calls inside of ``with torch.no_grad():`` calls of the graph around them.

::

    submod_1 = wrap_with_set_grad_enabled(False, submod_1, x)       linear = linear(x)
    getitem = getitem(submod_1, 0)                                  relu = relu(linear)
    y = linear(getitem)                                             y = linear(relu)

torchao quantizes the calls of a graph, but not of the graphs that these calls run. The setting that such a
wrapper changes, such as whether torch records gradients, does not matter for a program that is not trained.
"""

from __future__ import annotations

import operator
from typing import Any

from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tosaic.torch_operators.wrappers import WRAPPERS, changes_dtypes, wrapper_name


def with_inlined_wrappers(model: GraphModule) -> dict[Node, str]:
    """Makes the changes in the graph of the model.

    Returns
    -------
    dict of Node to str
        The names that calls of the wrapped graphs have in a program that `tosaic.from_exported` returns.
    """
    names: dict[Node, str] = {}
    while (wrapper := next(filter(_is_wrapper, model.graph.nodes), None)) is not None:
        _inline(model, wrapper, names)
    if names:
        model.graph.lint()
        model.recompile()
    return names


def _is_wrapper(node: Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, HigherOrderOperator):
        return False
    name = wrapper_name(node)
    return name in WRAPPERS and not (name == "wrap_with_autocast" and changes_dtypes(node.args))


def _inline(model: GraphModule, wrapper: Node, names: dict[Node, str]) -> None:
    module_at, operands_of = WRAPPERS[wrapper_name(wrapper)]
    attribute: Any = wrapper.args[module_at]
    path = str(attribute.target)
    module: Any = model.get_submodule(path)
    inner: list[Node] = list(module.graph.nodes)
    inputs = [node for node in inner if node.op == "placeholder"]
    values: dict[Node, Any] = dict(zip(inputs, operands_of(list(wrapper.args)), strict=True))
    with model.graph.inserting_before(wrapper):
        for node in inner:
            if node.op in ("placeholder", "output"):
                continue
            made = values[node] = model.graph.node_copy(node, values.__getitem__)
            names[made] = f"{path}.{node.name}"
            if node.op == "get_attr":
                made.target = f"{path}.{node.target}"
    results: Any = map_arg(inner[-1].args[0], values.__getitem__)
    for user in list(wrapper.users):
        if user.target is operator.getitem:
            _replace(user, results[user.args[1]])
    if wrapper.users:
        _replace(wrapper, results)
    else:
        model.graph.erase_node(wrapper)
    if not attribute.users:
        model.graph.erase_node(attribute)


def _replace(node: Node, value: Any) -> None:
    if isinstance(value, Node):
        node.replace_all_uses_with(value)
    else:  # a number or several tensors, which is no node: replaced in the readers' arguments
        for user in list(node.users):
            user.args = map_arg(user.args, lambda each: value if each is node else each)
            user.kwargs = map_arg(user.kwargs, lambda each: value if each is node else each)
    node.graph.erase_node(node)
