"""The structure of arguments and results of a method, from the text that torch's pytree writes.

::

    [1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, ...}, ...]}]
"""

from __future__ import annotations

import json
from typing import Any

from tosaic.base.json_text import parsed_json
from tosaic.ports.signature import Tree

_PROTOCOL = 1
_LISTS = {"builtins.tuple": "tuple", "builtins.list": "list", "collections.deque": "list"}


def tree_of(text: str) -> Tree | None:
    """Returns the structure; None if the text is not one that torch's pytree writes."""
    try:
        protocol, root = parsed_json(text)
        tree = _tree(root) if protocol == _PROTOCOL else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return None if tree is None or tree.fault("containers") else tree


def _tree(node: Any) -> Tree:
    kind, children = node["type"], tuple(map(_tree, node["children_spec"]))
    if kind is None:
        return Tree("leaf")
    if kind == "builtins.NoneType":
        return Tree("none")
    if kind in _LISTS:
        return Tree(_LISTS[kind], children)
    context = parsed_json(node["context"]) if isinstance(node["context"], str) else node["context"]
    name = ":".join(kind.rsplit(".", 1))
    if kind == "builtins.dict":
        return Tree("dict", children, tuple(context))
    if kind == "collections.OrderedDict":
        return Tree("dict", children, tuple(context), name)
    if kind == "collections.defaultdict":
        return Tree("dict", children, tuple(context["dict_context"]))
    return Tree("object", children, _keys(context, len(children)), name)


def _keys(context: Any, count: int) -> tuple[Any, ...]:
    """Returns the field names of a registered class: its context is the list of names, or begins with it."""
    if isinstance(context, list):
        if len(context) == count and all(isinstance(each, str) for each in context):
            return tuple(context)
        for item in context:
            if isinstance(item, list):
                return _keys(item, count)
    return tuple(range(count))


def text_of(tree: Tree) -> str:
    """Returns the text that torch's pytree writes for a structure. Classes are named as in the tree."""
    return json.dumps([_PROTOCOL, _node(tree)])


def _node(tree: Tree) -> dict[str, Any]:
    children = [_node(child) for child in tree.children]
    if tree.kind in ("leaf", "none"):
        return {"type": None, "context": None, "children_spec": []}
    if tree.kind in ("tuple", "list"):
        return {"type": f"builtins.{tree.kind}", "context": "null", "children_spec": children}
    context = json.dumps(list(tree.keys))
    name = tree.type_name.replace(":", ".") if tree.kind != "dict" or tree.type_name else "builtins.dict"
    return {"type": name, "context": context, "children_spec": children}
