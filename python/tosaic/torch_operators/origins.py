"""Where an FX node came from: module path and source line, as recorded by torch.export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

from tosaic import _core

Origin: TypeAlias = tuple[str, str, str, str, int]
"""FX name, target, module path, file and line of a node: the form that `GraphBuilder` expects."""

_NO_SOURCE = ("", 0)
_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]|[/\\]torch[/\\]nn[/\\]")
_STRICT_ROOT = re.compile(r"^L\['?self'?\]\.?|^L__self___?")
_INDEX = re.compile(r"\[['\"]?([^'\"\]]+)['\"]?\]")


@lru_cache(maxsize=1 << 16)
def source_of(stack_trace: str) -> tuple[str, int]:
    r"""Returns file and line of the deepest frame outside torch or, if there is none, of the deepest frame.

    Examples
    --------
    >>> source_of('  File "/a/model.py", line 7, in forward\\n    return x')
    ('/a/model.py', 7)
    """
    deepest = _NO_SOURCE
    end = len(stack_trace)
    while (start := stack_trace.rfind('File "', 0, end)) >= 0:
        path, _, rest = stack_trace[start + 6 : end].partition('", line ')
        number = rest.split(",", 1)[0].split("\n", 1)[0].strip()
        if number.isdigit():
            frame = (path, int(number))
            if not _TORCH.search(path):
                return frame
            if deepest is _NO_SOURCE:
                deepest = frame
        end = start
    return deepest


@lru_cache(maxsize=1 << 14)
def module_path(recorded: str) -> str:
    """Returns ``layers.0.conv``, for every spelling of this path that torch.export has used."""
    path = _STRICT_ROOT.sub("", recorded)
    return _INDEX.sub(r".\1", path).replace("slice(None, None, None)", "").strip(".")


def origin_of(name: str, target: str, meta: dict[str, Any]) -> Origin:
    """Returns the origin of a node."""
    stack = meta.get("nn_module_stack")
    trace = meta.get("stack_trace")
    path = module_path(next(reversed(stack.values()))[0]) if stack else ""
    return (name, target, path, *(source_of(trace) if trace else _NO_SOURCE))


def module_types(nodes: Iterable[Any]) -> Callable[[], dict[str, str]]:
    """Returns a function that returns the types of the modules that contain the nodes, by path.

    A type is text: ``torch.nn.modules.conv.Conv2d``. The function keeps only what torch recorded about the
    nodes alive, and not the nodes.
    """
    stacks = {id(stack): stack for node in nodes if (stack := node.meta.get("nn_module_stack"))}
    return partial(types_in, list(stacks.values()))


def types_in(stacks: Iterable[Mapping[str, tuple[str, Any]]]) -> dict[str, str]:
    """Returns the types of the modules in these stacks, by path."""
    found: dict[str, str] = {}
    known: set[tuple[str, ...]] = set()
    for stack in stacks:
        keys = tuple(stack)  # each key identifies one module
        if keys not in known:
            known.add(keys)
            for recorded, kind in stack.values():
                found.setdefault(module_path(recorded), type_name(kind))
    return found


def type_name(kind: Any) -> str:
    """Returns the type of a module as text; torch records either the type or its name."""
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)


def sources_of(node: Any) -> Iterator[Any]:
    """Yields the entries of ``meta["from_node"]``: nodes from which torch's transformations made a node."""
    pending = list(node.meta.get("from_node") or ())
    while pending:
        source = pending.pop(0)
        yield source
        pending[:0] = source.from_node


def source_targets(node: Any) -> Iterator[str]:
    """Yields the targets of these nodes, such as ``aten.max_pool2d.default``."""
    return (str(source.target) for source in sources_of(node))


def place_of(node: Any) -> str:
    """Returns the node and its source line: ``node 'item', model.py:12``."""
    file, line = source_of(node.meta.get("stack_trace") or "")
    return f"node '{node.name}'" + (f", {file_name(file)}:{line}" if file else "")


def file_name(path: str) -> str:
    """Returns the last part of a path of any system."""
    return path.replace("\\", "/").rpartition("/")[2]


@dataclass(frozen=True)
class Where:
    """The place of an error.

    Attributes
    ----------
    reader : str
        Who found the error, such as ``import`` or ``pt2``: the mark in brackets before the message.
    node, module_path : str
        The name of a node, and the path of its module as torch recorded it; empty if no node is to blame.
    source : str
        The source line of the node, ``model.py:12``.
    inside : str
        The part of the file that is read, for readers without nodes: ``method 'forward', instruction 3``.
    """

    reader: str
    node: str = ""
    module_path: str = ""
    source: str = ""
    inside: str = ""

    @classmethod
    def of(cls, node: Any, reader: str) -> Where:
        """Returns the place of an FX node. None is not a node."""
        if node is None:
            return cls(reader)
        meta = node.meta
        file, line = source_of(meta.get("stack_trace") or "")
        stack = meta.get("nn_module_stack")
        return cls(
            reader,
            node.name,
            next(reversed(stack.values()))[0] if stack else "",
            f"{file_name(file)}:{line}" if file else "",
        )

    def error(
        self, kind: type[Exception], what: str, *, expected: str = "", got: str = "", hint: str = ""
    ) -> Exception:
        """Returns an error at this place."""
        return _core.make_error(
            kind,
            where=self.reader,
            what=f"{self.inside}: {what}" if self.inside else what,
            expected=expected,
            got=got,
            node=self.node,
            module_path=self.module_path,
            source=self.source,
            hint=hint,
        )
