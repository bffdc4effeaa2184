"""The structure of the arguments and results of an exported program, and the paths of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tosaic.ports.signature import Tree


def arguments_tree(recorded: Tree | None, leaves: int) -> Tree:
    """Returns the structure of (args, kwargs), or a flat structure if the program does not record it."""
    if recorded is not None and recorded.leaf_count == leaves and len(recorded.children) == 2:
        return recorded
    return Tree("tuple", (Tree("tuple", (Tree("leaf"),) * leaves), Tree("dict")))


def results_tree(recorded: Tree | None, leaves: int) -> Tree:
    """Returns the structure of the result, or a flat structure if the program does not record it."""
    if recorded is not None and recorded.leaf_count == leaves:
        return recorded
    return Tree("tuple", (Tree("leaf"),) * leaves)


def input_paths(tree: Tree, arg_names: Sequence[str], placeholders: Sequence[str]) -> list[str]:
    """Returns paths as callers write them: the parameter's name, then the place in a nested argument."""
    paths: list[str] = []
    args, kwargs = tree.children
    for i, child in enumerate(args.children):
        if child.kind == "leaf":
            paths.append(arg_names[i] if i < len(arg_names) else placeholders[len(paths)])
        else:
            paths += child.paths(arg_names[i] if i < len(arg_names) else f"args[{i}]")
    for key, child in zip(kwargs.keys, kwargs.children, strict=True):
        paths += child.paths(str(key))
    return paths


def field_names(context: Any, count: int) -> tuple[Any, ...]:
    """Returns the children's names in a registered class's context: a list, or the first of several lists."""
    if isinstance(context, list | tuple):
        if len(context) == count and all(isinstance(name, str) for name in context):
            return tuple(context)
        for item in context:
            if isinstance(item, list | tuple):
                return field_names(item, count)
    return tuple(range(count))
