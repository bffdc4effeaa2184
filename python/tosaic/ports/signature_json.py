"""Signatures as JSON: `signature_to_json` and `signature_from_json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic.base.options import shown, unsupported

if TYPE_CHECKING:
    from tosaic.ports.signature import Signature, Tree


def _tree_to_json(tree: Tree) -> Any:
    if tree.kind == "leaf":
        return "leaf"
    return {
        "kind": tree.kind,
        "children": [_tree_to_json(child) for child in tree.children],
        "keys": [_plain_value(key, "a key") for key in tree.keys],
        "type": tree.type_name,
    }


def _tree_from_json(data: Any) -> Tree:
    from tosaic.ports.signature import Tree

    if data == "leaf":
        return Tree("leaf")
    children = tuple(_tree_from_json(child) for child in _listed(data["children"]))
    return Tree(data["kind"], children, tuple(_listed(data["keys"])), data["type"])


def _listed(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(f"not a list: {shown(data)}")
    return data


def _plain_value(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise unsupported(
        "save",
        f"{what} of the signature cannot be written",
        expected="None, a bool, a number or a string",
        got=repr(value),
    )


def _leaves_to_json(leaves: Any) -> list[Any]:
    return [
        {
            "path": leaf.path,
            "index": leaf.index,
            "value": _plain_value(leaf.value, f"the constant '{leaf.path}'"),
        }
        for leaf in leaves
    ]


def signature_to_json(signature: Signature) -> dict[str, Any]:
    """Returns a signature as dicts, lists, strings and numbers."""
    return {
        "inputs": _tree_to_json(signature.inputs),
        "outputs": _tree_to_json(signature.outputs),
        "input_leaves": _leaves_to_json(signature.input_leaves),
        "output_leaves": _leaves_to_json(signature.output_leaves),
        "arg_names": list(signature.arg_names),
    }


def signature_from_json(data: Any) -> Signature:
    """Reads what `signature_to_json` returned. Damaged data may raise any exception."""
    from tosaic.ports.signature import InputLeaf, OutputLeaf, Signature

    return Signature(
        inputs=_tree_from_json(data["inputs"]),
        outputs=_tree_from_json(data["outputs"]),
        input_leaves=tuple(InputLeaf(**leaf) for leaf in _listed(data["input_leaves"])),
        output_leaves=tuple(OutputLeaf(**leaf) for leaf in _listed(data["output_leaves"])),
        arg_names=tuple(_listed(data["arg_names"])),
    )
