"""The structures of arguments and results, in JSON: ``[1, {"type": "builtins.tuple", ...}]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tosaic import _core
from tosaic.ports.signature import Tree
from tosaic.pt2.checked import WrongJsonError, beyond, listed, mapping, text
from tosaic.torch_operators.call_trees import field_names

_PROTOCOL = 1
_DEEPEST = 100
_SEQUENCES = {
    "builtins.tuple": "tuple",
    "torch.Size": "tuple",
    "builtins.list": "list",
    "collections.deque": "list",
}


def tree_of(spec: Any, namedtuples: Mapping[str, Sequence[str]]) -> Tree:
    """Returns the structure that a text describes.

    Parameters
    ----------
    spec : str
    namedtuples : mapping
        The field names of each namedtuple, by its name in the text.

    Raises
    ------
    UnsupportedOp
        The text has another version, or a class whose fields it does not name.
    """
    version, outermost = listed(_parsed(text(spec)))
    if version != _PROTOCOL:
        raise beyond("a tree spec has another version", expected=str(_PROTOCOL), got=str(version))
    return _tree(mapping(outermost), namedtuples, 0)


def _tree(spec: dict[str, Any], namedtuples: Mapping[str, Sequence[str]], depth: int) -> Tree:
    kind, context, children = spec["type"], spec["context"], listed(spec["children_spec"])
    if depth > _DEEPEST:
        raise WrongJsonError(f"at most {_DEEPEST} nested structures", depth)
    if kind is None:
        return Tree("leaf")
    kind = text(kind)
    parts = tuple(_tree(mapping(child), namedtuples, depth + 1) for child in children)
    if kind in _SEQUENCES:
        return Tree(_SEQUENCES[kind], parts)
    if kind == "collections.namedtuple":
        name = text(context)
        return Tree("namedtuple", parts, tuple(map(text, namedtuples[name])), _python_name(name))
    if kind == "collections.defaultdict":
        return Tree("dict", parts, _keys(mapping(context)["dict_context"]))
    loaded = _parsed(context) if isinstance(context, str) else context
    if kind in ("builtins.dict", "collections.OrderedDict"):
        return Tree("dict", parts, _keys(loaded), "" if kind == "builtins.dict" else _python_name(kind))
    if not isinstance(loaded, list):
        raise beyond(f"an argument or result is of the class {kind}, whose fields the file does not name")
    return Tree("object", parts, field_names(loaded, len(parts)), _python_name(kind))


def _parsed(spec: str) -> Any:
    return _core.Json(spec.encode(), "a tree spec").value()


def _keys(found: Any) -> tuple[Any, ...]:
    if not all(isinstance(key, str | int | float | bool) or key is None for key in listed(found)):
        raise beyond("the keys of a dict are not only strings and numbers")
    return tuple(found)


def _python_name(dotted: str) -> str:
    module, _, name = dotted.rpartition(".")
    return f"{module}:{name}"
