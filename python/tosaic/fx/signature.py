"""How a caller's nested arguments become the flat inputs of a graph, and its outputs nested results again.

Works without torch: torch's tree specs are converted at import into `Tree`.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tosaic import _core

__all__ = ["InputLeaf", "OutputLeaf", "Signature", "Tree"]


@dataclass(frozen=True)
class Tree:
    """The shape of a nested argument.

    Attributes
    ----------
    kind : str
        ``leaf``, ``none``, ``tuple``, ``list``, ``dict``, ``namedtuple`` or ``object`` (a registered class: a
        dataclass or the like).
    children : tuple of Tree
        In order; of dicts in the order of `keys`.
    keys : tuple
        Keys of a dict; field names of a namedtuple or object.
    type_name : str
        ``module:qualname`` of a namedtuple, object or dict subclass.
    """

    kind: str
    children: tuple[Tree, ...] = ()
    keys: tuple[Any, ...] = ()
    type_name: str = ""

    @property
    def leaf_count(self) -> int:
        """Number of leaves."""
        return 1 if self.kind == "leaf" else sum(child.leaf_count for child in self.children)

    def paths(self, root: str) -> list[str]:
        """The path of each leaf, in order: ``batch['mask']``."""
        if self.kind == "leaf":
            return [root]
        return [path for step, child in self._steps() for path in child.paths(root + step)]

    def _steps(self) -> Iterator[tuple[str, Tree]]:
        for i, child in enumerate(self.children):
            if self.kind == "dict":
                yield f"[{self.keys[i]!r}]", child
            elif self.kind in ("namedtuple", "object") and i < len(self.keys):
                yield f".{self.keys[i]}", child
            else:
                yield f"[{i}]", child

    def flatten(self, value: Any, root: str = "args") -> list[Any]:
        """Leaves of `value`, which must have this structure.

        Raises
        ------
        InvalidGraph
            The structure is another one; the message names the place.
        """
        out: list[Any] = []
        self._flatten(value, root, out)
        return out

    def _flatten(self, value: Any, path: str, out: list[Any]) -> None:
        if self.kind == "leaf":
            out.append(value)
            return
        for (step, child), item in zip(self._steps(), self._items(value, path), strict=True):
            child._flatten(item, path + step, out)

    def _items(self, value: Any, path: str) -> list[Any]:
        if self.kind == "none":
            if value is not None:
                raise _mismatch(path, "None", value)
            return []
        if self.kind == "dict":
            if not isinstance(value, Mapping) or set(value) != set(self.keys):
                raise _mismatch(path, f"a dict with the keys {list(self.keys)}", value)
            return [value[key] for key in self.keys]
        if self.kind in ("namedtuple", "object"):
            if isinstance(value, Mapping) and all(key in value for key in self.keys):
                return [value[key] for key in self.keys]
            if all(isinstance(key, str) and hasattr(value, key) for key in self.keys):
                return [getattr(value, key) for key in self.keys]
            raise _mismatch(path, f"{self.type_name or 'an object'} with the fields {list(self.keys)}", value)
        if not isinstance(value, list | tuple) or len(value) != len(self.children):
            raise _mismatch(path, f"a {self.kind} of {len(self.children)}", value)
        return list(value)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The nested value with these leaves."""
        if len(leaves) != self.leaf_count:
            raise _core.make_error(
                _core.InternalError,
                where="signature",
                what="wrong number of leaves",
                expected=str(self.leaf_count),
                got=str(len(leaves)),
            )
        return self._unflatten(iter(leaves))

    def _unflatten(self, leaves: Iterator[Any]) -> Any:
        if self.kind == "leaf":
            return next(leaves)
        if self.kind == "none":
            return None
        items = [child._unflatten(leaves) for child in self.children]
        if self.kind == "tuple":
            return tuple(items)
        if self.kind == "list":
            return items
        by_key = dict(zip(self.keys, items, strict=True))
        if self.kind == "dict":
            return OrderedDict(by_key) if self.type_name == "collections:OrderedDict" else by_key
        known = _loaded_class(self.type_name)
        if known is not None:
            return known(**by_key)
        if self.kind == "namedtuple":
            return namedtuple(self.type_name.rpartition(":")[2].rpartition(".")[2], self.keys)(*items)
        return by_key


def _loaded_class(type_name: str) -> Any:
    """The class, if its module is loaded: a numpy-only process imports nothing for it."""
    module, _, qualname = type_name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _mismatch(path: str, expected: str, got: Any) -> Exception:
    return _core.make_error(
        _core.InvalidGraph,
        where="inputs",
        what=f"the structure of '{path}' is another one than was exported",
        expected=expected,
        got=_describe(got),
    )


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {list(value)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return (
        repr(value) if value is None or isinstance(value, bool | int | float | str) else type(value).__name__
    )


@dataclass(frozen=True)
class InputLeaf:
    """One leaf of the arguments: a tensor input, or a constant that export specialised on.

    Attributes
    ----------
    path : str
        ``x``, ``batch['mask']``.
    index : int or None
        Position in ``graph.inputs``; None for a constant.
    value : object
        The constant.
    """

    path: str
    index: int | None
    value: Any = None


@dataclass(frozen=True)
class OutputLeaf:
    """One leaf of the results: output `index` of ``graph.outputs``, or the constant `value` (index None)."""

    path: str
    index: int | None
    value: Any = None


@dataclass(frozen=True)
class Signature:
    """The calling convention of an imported method.

    Attributes
    ----------
    inputs : Tree
        Structure of ``(args, kwargs)``.
    outputs : Tree
        Structure of the result.
    input_leaves, output_leaves : tuple
        One per leaf of the trees, in order.
    arg_names : tuple of str
        Parameter names of the method in order, keyword ones included; empty if torch did not record them.
    """

    inputs: Tree
    outputs: Tree
    input_leaves: tuple[InputLeaf, ...]
    output_leaves: tuple[OutputLeaf, ...]
    arg_names: tuple[str, ...] = ()

    def flatten(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """The tensor inputs of a call, in the order of ``graph.inputs`` (states left out).

        Parameters may be given by position or by name, however they were given to export.

        Raises
        ------
        InvalidGraph
            Another structure, or another value of an input that export specialised on.
        """
        leaves = self.inputs.flatten(self._arrange(tuple(args), dict(kwargs or {})), "")
        tensors = []
        for leaf, value in zip(self.input_leaves, leaves, strict=True):
            if leaf.index is not None:
                tensors.append((leaf.index, value))
            elif not _same_constant(leaf.value, value):
                raise _core.make_error(
                    _core.InvalidGraph,
                    where="inputs",
                    what=f"input '{leaf.path}' was specialised by export",
                    expected=repr(leaf.value),
                    got=_describe(value),
                    hint="Export again with this value",
                )
        return [value for _, value in sorted(tensors, key=lambda pair: pair[0])]

    def is_called_by(self, names: Set[str]) -> bool:
        """Whether a call by these keywords alone gives each parameter of the exported call."""
        positional = len(self.inputs.children[0].children)
        wanted = {*self.arg_names[:positional], *self.inputs.children[1].keys}
        return len(self.arg_names) >= positional and names == wanted

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """The nested result; `outputs` has one entry per output of the graph, mutations included."""
        return self.outputs.unflatten(
            [leaf.value if leaf.index is None else outputs[leaf.index] for leaf in self.output_leaves]
        )

    def _arrange(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Moves arguments between positions and names so that they match the exported call."""
        positional = len(self.inputs.children[0].children)
        wanted = self.inputs.children[1].keys
        for name in self.arg_names[len(args) : positional]:
            if name in kwargs and len(args) < positional:
                args = (*args, kwargs.pop(name))
        if len(args) > positional:
            extra = self.arg_names[positional : len(args)]
            if len(extra) == len(args) - positional and all(name in wanted for name in extra):
                kwargs.update(zip(extra, args[positional:], strict=True))
                args = args[:positional]
        if len(args) != positional or set(kwargs) != set(wanted):
            raise _core.make_error(
                _core.InvalidGraph,
                where="inputs",
                what="the arguments are not those of the exported call",
                expected=_call_text(positional, wanted, self.arg_names),
                got=_call_text(len(args), tuple(kwargs), ()),
            )
        return args, kwargs


def _call_text(positional: int, keywords: Sequence[Any], names: Sequence[str]) -> str:
    named = f" ({', '.join(names[:positional])})" if names and positional else ""
    return f"{positional} positional{named} and the keywords {list(keywords)}"


def _same_constant(expected: Any, got: Any) -> bool:
    return type(expected) is type(got) and (expected == got or (expected != expected and got != got))
