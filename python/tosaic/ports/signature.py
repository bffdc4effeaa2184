"""Flattens a caller's nested arguments into a graph's inputs, and nests the graph's outputs again.

The module works without torch: the import converts torch's tree specs into `Tree`.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, is_dataclass
from functools import cached_property, lru_cache
from keyword import iskeyword
from typing import Any

from tosaic import _core
from tosaic.base.option_values import SignatureValue
from tosaic.base.options import invalid, shown

_KINDS = ("leaf", "none", "tuple", "list", "dict", "namedtuple", "object")
_DEEPEST = 200


@dataclass(frozen=True)
class Tree:
    """The structure of a nested argument or result.

    Attributes
    ----------
    kind : str
        ``leaf``, ``none``, ``tuple``, ``list``, ``dict``, ``namedtuple`` or ``object`` (a registered class: a
        dataclass or the like).
    children : tuple of Tree
        In order; for a dict, in the order of `keys`.
    keys : tuple
        Keys of a dict; field names of a namedtuple or object, or positions if torch does not record an
        object's names.
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

    def fault(self, root: str) -> str:
        """Returns the first contradiction in this structure, with its path; empty if there is none."""
        pending = [(root, 0, self)]
        while pending:
            path, depth, tree = pending.pop()
            found = f"it is nested more than {_DEEPEST} deep" if depth > _DEEPEST else tree._own_fault()
            if found:
                return f"{path}: {found}"
            pending += [(path + step, depth + 1, child) for step, child in tree._steps()]
        return ""

    def _own_fault(self) -> str:
        keys = self.keys
        if self.kind not in _KINDS or not isinstance(self.type_name, str):
            return f"there is no kind {self.kind!r} of type {self.type_name!r}"
        if self.kind in ("leaf", "none", "tuple", "list"):
            if keys or (self.children and self.kind in ("leaf", "none")):
                return f"a {self.kind} has no keys, and leaves have nothing in them"
            return ""
        if not _are_distinct(keys):
            return f"a {self.kind} has distinct keys"
        if len(keys) != len(self.children):
            return f"a {self.kind} of {len(self.children)} has {len(keys)} keys"
        if self.kind == "namedtuple":
            names = [*keys, _short_name(self.type_name)]
            if not all(
                isinstance(name, str) and name.isidentifier() and not iskeyword(name) for name in names
            ):
                return "a namedtuple and its fields have names"
            if any(key.startswith("_") for key in keys):
                return "a field of a namedtuple starts with no underscore"
        return ""

    def paths(self, root: str) -> list[str]:
        """Returns the path of each leaf in order, such as ``batch['mask']``."""
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
        """Returns the leaves of `value`, which must have this structure.

        Raises
        ------
        InvalidGraph
            The structure differs; the message names the place.
        """
        out: list[Any] = []
        self._flatten(value, root, out)
        return out

    def _flatten(self, value: Any, path: str, out: list[Any]) -> None:
        if self.kind == "leaf":
            out.append(value)
            return
        items = self._items(value, path)
        if self.is_flat:
            out += items
            return
        for (step, child), item in zip(self._steps(), items, strict=True):
            child._flatten(item, path + step, out)

    @cached_property
    def is_flat(self) -> bool:
        """True if no child has children."""
        return all(child.kind == "leaf" for child in self.children)

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
        """Returns the nested value with these leaves."""
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
        if known is not None and _takes(known, by_key):
            return known(**by_key)
        if self.kind == "namedtuple":
            return namedtuple(_short_name(self.type_name), self.keys)(*items)
        return by_key


def _are_distinct(keys: Sequence[Any]) -> bool:
    try:
        return len(set(keys)) == len(keys)
    except TypeError:  # a key is not hashable
        return False


def _short_name(type_name: str) -> str:
    return type_name.rpartition(":")[2].rpartition(".")[2]


def _loaded_class(type_name: str) -> Any:
    """Returns the class, if its module is already loaded: a process without torch must not import it.

    Only classes that hold values (dataclasses, namedtuples, classes registered with torch's
    pytree) are returned, because a file may name any object of any module.
    """
    module, _, qualname = type_name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        return None
    registry = getattr(sys.modules.get("torch.utils._pytree"), "SUPPORTED_NODES", {})
    is_named_tuple = issubclass(found, tuple) and hasattr(found, "_fields")
    return found if is_dataclass(found) or is_named_tuple or found in registry else None


@lru_cache(maxsize=256)
def _parameters(known: type) -> inspect.Signature | None:
    try:
        return inspect.signature(known)
    except (TypeError, ValueError):
        return None


def _takes(known: type, by_key: Mapping[Any, Any]) -> bool:
    """True if the class, which may differ from the one at export, can be made from fields of these names."""
    parameters = _parameters(known)
    if parameters is None or not all(isinstance(key, str) for key in by_key):
        return False
    try:
        parameters.bind(**by_key)
    except TypeError:
        return False
    return True


def _mismatch(path: str, expected: str, got: Any) -> Exception:
    return invalid(
        "inputs",
        f"the structure of '{path}' is another one than was exported",
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
        The value of a constant.
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
class Signature(SignatureValue):
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
        Parameter names of the method in order, including keyword-only ones; empty if torch did not record
        them.
    """

    inputs: Tree
    outputs: Tree
    input_leaves: tuple[InputLeaf, ...]
    output_leaves: tuple[OutputLeaf, ...]
    arg_names: tuple[str, ...] = ()

    def fault(self, inputs: Sequence[int], outputs: Set[int]) -> str:
        """Returns the first contradiction in the signature or between it and a graph; empty if there is none.

        Parameters
        ----------
        inputs : sequence of int
            The graph inputs that the caller passes.
        outputs : set of int
            The graph outputs that the caller gets.
        """
        found = self.inputs.fault("inputs") or self.outputs.fault("outputs")
        if found:
            return found
        call = self.inputs.children
        if self.inputs.kind != "tuple" or [tree.kind for tree in call] != ["tuple", "dict"]:
            return "inputs: the arguments are no tuple of a tuple and a dict"
        if not all(isinstance(name, str) for name in (*call[1].keys, *self.arg_names)):
            return "inputs: the names of parameters are strings"
        for side, tree, leaves in (
            ("inputs", self.inputs, self.input_leaves),
            ("outputs", self.outputs, self.output_leaves),
        ):
            if tree.leaf_count != len(leaves):
                return f"{side}: {tree.leaf_count} leaves in the structure, and {len(leaves)} are described"
            for leaf in leaves:
                is_index = type(leaf.index) is int or leaf.index is None
                if not is_index or not isinstance(leaf.path, str):
                    return f"{side}: {shown(leaf)} is no leaf"
        own = sorted(leaf.index for leaf in self.input_leaves if leaf.index is not None)
        if own != sorted(inputs):
            return f"inputs: the graph takes those at {sorted(inputs)}, and the signature gives {own}"
        results = {leaf.index for leaf in self.output_leaves if leaf.index is not None}
        if not results <= outputs:
            return f"outputs: the graph gives those at {sorted(outputs)}, and the signature wants {results}"
        return ""

    def flatten(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """Returns the tensor inputs of a call, in the order of ``graph.inputs`` (without states).

        Arguments may be passed by position or by name, independent of how they were passed to export.

        Raises
        ------
        InvalidGraph
            As `leaves`.
        """
        leaves = self.leaves(args, kwargs)
        return [leaves[at] for at in self._tensor_places]

    def leaves(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """Returns all leaves of a call in the order of `input_leaves`, constants included.

        Raises
        ------
        InvalidGraph
            The structure differs, or an input on whose value export specialized has another value.
        """
        leaves = self.inputs.flatten(self._arrange(tuple(args), dict(kwargs or {})), "")
        for at in self._constant_places:
            leaf, value = self.input_leaves[at], leaves[at]
            if not _same_constant(leaf.value, value):
                raise invalid(
                    "inputs",
                    f"input '{leaf.path}' was specialised by export",
                    expected=repr(leaf.value),
                    got=_describe(value),
                    hint="Export again with this value",
                )
        return leaves

    @cached_property
    def _constant_places(self) -> tuple[int, ...]:
        """The positions of constants in `input_leaves`."""
        return tuple(at for at, leaf in enumerate(self.input_leaves) if leaf.index is None)

    @cached_property
    def _tensor_places(self) -> tuple[int, ...]:
        """The positions of the graph's inputs in `input_leaves`, in the order of the graph's inputs."""
        pairs = [(leaf.index, at) for at, leaf in enumerate(self.input_leaves) if leaf.index is not None]
        return tuple(at for _, at in sorted(pairs))

    @cached_property
    def flat_places(self) -> tuple[int, ...] | None:
        """The position of each graph input among the arguments, without states.

        None unless all arguments are positional arrays.
        """
        positional, by_name = self.inputs.children
        is_flat = positional.is_flat and not by_name.children and not self._constant_places
        return self._tensor_places if is_flat else None

    def is_called_by(self, names: Set[str]) -> bool:
        """True if a call with exactly these keywords provides every parameter of the exported call."""
        positional = len(self.inputs.children[0].children)
        wanted = {*self.arg_names[:positional], *self.inputs.children[1].keys}
        return len(self.arg_names) >= positional and names == wanted

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Returns the nested result; `outputs` has one entry per output of the graph, including mutations."""
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
            raise invalid(
                "inputs",
                "the arguments are not those of the exported call",
                expected=_call_text(positional, wanted, self.arg_names),
                got=_call_text(len(args), tuple(kwargs), ()),
            )
        return args, kwargs


def _call_text(positional: int, keywords: Sequence[Any], names: Sequence[str]) -> str:
    named = f" ({', '.join(names[:positional])})" if names and positional else ""
    return f"{positional} positional{named} and the keywords {list(keywords)}"


def _same_constant(expected: Any, got: Any) -> bool:
    return type(expected) is type(got) and (expected == got or (expected != expected and got != got))
