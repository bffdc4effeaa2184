"""Checks the options of the public functions: a table of options by name, and a decorator that applies it.

An option has the same meaning in every function, so the values of `target` or `path` are listed only once. An
accepted value is converted to one type (a numpy number to a float), so that a decorated function gets only
this type. Options with a structure of their own (`bind`, `orders`, `objective`, samples and programs) are
checked by the code that reads them.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tosaic import _core
from tosaic.base.extras import missing_extra
from tosaic.base.option_values import NodesValue, SignatureValue
from tosaic.base.target import Target
from tosaic.base.threads import MOST_THREADS
from tosaic.base.visible import one_line

_P = ParamSpec("_P")
_R = TypeVar("_R")
_LONGEST = 120


@dataclass(frozen=True)
class Option:
    """The values that an option may have.

    Attributes
    ----------
    expected : str
        The accepted values in words, for the error message.
    accept : callable
        Returns the value, converted to the type that functions expect. Raises TypeError, ValueError or
        OverflowError for a value that is not accepted.
    """

    expected: str
    accept: Callable[[Any], Any]


def invalid(where: str, what: str, **parts: str) -> _core.InvalidGraph:
    """Returns the error for a fault of the caller; `parts` are those of ``_core.make_error``."""
    return _core.make_error(_core.InvalidGraph, where=where, what=what, **parts)


def unsupported(where: str, what: str, **parts: str) -> _core.UnsupportedOp:
    """Returns the error for something that tosaic cannot do; `parts` are those of ``_core.make_error``."""
    return _core.make_error(_core.UnsupportedOp, where=where, what=what, **parts)


def layout_mismatch(where: str, what: str, **parts: str) -> _core.LayoutMismatch:
    """Returns the error for an array of another form; `parts` are those of ``_core.make_error``."""
    return _core.make_error(_core.LayoutMismatch, where=where, what=what, **parts)


def quant_mismatch(where: str, what: str, **parts: str) -> _core.QuantMismatch:
    """Returns the error for a quantization that does not fit; `parts` are those of ``_core.make_error``."""
    return _core.make_error(_core.QuantMismatch, where=where, what=what, **parts)


def refusal(where: str, option: str, expected: str, value: Any, *, hint: str = "") -> Exception:
    """Returns the InvalidGraph error for a value that an option does not accept; the caller raises it."""
    what = f"unknown value of '{option}'"
    return invalid(where, what, expected=expected, got=shown(value), hint=hint)


def shown(value: Any) -> str:
    """Returns the `repr` of a value for a message: one line, cut after 120 characters.

    If `repr` raises, the text names the type instead.
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return cut(text)


def cut(text: str) -> str:
    """Returns a text for a message, cut after 120 characters."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def is_flag(value: Any) -> bool:
    """True for a truth value of Python or numpy."""
    return isinstance(value, (bool, _numpy("bool_")))


def is_array(value: Any) -> bool:
    """True for an array of numpy."""
    return isinstance(value, _numpy("ndarray"))


def _numpy(name: str) -> Any:
    """Returns a class of numpy, or an empty tuple if numpy is not loaded, since then it has no objects."""
    return getattr(sys.modules.get("numpy"), name, ())


def whole_number(value: Any) -> int:
    """Converts an integer of Python or numpy to int.

    Raises
    ------
    TypeError
        The value is something else, such as a bool, a float or an array.
    """
    if is_flag(value) or is_array(value):
        raise TypeError("not a whole number")
    return operator.index(value)


def is_one_of(value: Any, choices: Sequence[str]) -> bool:
    """True if a value, which may be of any type, is one of the strings `choices`."""
    return isinstance(value, str) and value in choices


def file_path(where: str, path: Any) -> Path:
    """Returns the path of a file to read.

    Raises
    ------
    InvalidGraph
        `path` is not a path, or it is the path of a folder.
    """
    option = OPTIONS["path"]
    try:
        file = Path(option.accept(path))
    except (TypeError, ValueError) as error:
        raise refusal(where, "path", option.expected, path) from error
    if os.path.isdir(file):  # noqa: PTH112 - Path.is_dir raises where a name is too long
        raise invalid(where, f"'{file_name(file)}' is a folder", expected="the path of a file")
    return file


def file_name(path: str | os.PathLike[str]) -> str:
    """Returns the name of a file for messages; escapes bytes that are not UTF-8 or control terminals."""
    return one_line(Path(path).name or os.fspath(path))


def is_mapping(value: Any) -> bool:
    """True if a value is a mapping, such as a dict."""
    return isinstance(value, Mapping)


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates a public function: arguments that `OPTIONS` lists are checked and converted before the call.

    Raises
    ------
    InvalidGraph
        From a call: an option does not accept its value.
    MissingExtraError
        From a call: it needs an optional package that is not installed.
    """
    parameters = inspect.signature(function).parameters.values()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in by_position]
    # Arguments in `*args` and `**kwargs` are inputs of a program, even if they are named like an option.
    options = {
        *names,
        *(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY),
    } & OPTIONS.keys()
    _, _, of_class = function.__qualname__.rpartition("<locals>.")
    where = function.__name__ if function.__name__ != "__init__" else of_class.partition(".")[0]

    def accepted(name: str, value: Any) -> Any:
        if name not in options:
            return value
        option = OPTIONS[name]
        try:
            return option.accept(value)
        except (TypeError, ValueError) as error:
            raise refusal(where, name, option.expected, value) from error
        except OverflowError as error:
            raise refusal(where, name, f"{option.expected} that a float can hold", value) from error

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        positional: Any = [accepted(name, value) for name, value in zip(names, args, strict=False)]
        named: Any = {name: accepted(name, value) for name, value in kwargs.items()}
        rest: Any = args[len(names) :]
        try:
            return function(*positional, *rest, **named)
        except ModuleNotFoundError as error:
            if (hint := missing_extra(where, error)) is not None:
                raise hint from error
            raise

    return call


# ---- what options may be ----


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value.encode().decode()  # raises for a lone surrogate, which has no UTF-8


def _name_or_other(value: Any) -> Any:
    return _text(value) if isinstance(value, str) else value


def _target(value: Any) -> str:
    return str(value) if isinstance(value, Target) else _text(value)


def _path(value: Any) -> str:
    path = os.fspath(value)
    if not isinstance(path, str) or not path or b"\0" in os.fsencode(path):
        raise TypeError("not a path")
    return path


def _flag(value: Any) -> bool:
    if not is_flag(value):
        raise TypeError("not a truth value")
    return bool(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise TypeError("not a number")
    return float(value)


def _count(value: Any) -> int:
    count = whole_number(value)
    if count < 0:
        raise ValueError("less than none")
    return count


def _positive(value: Any) -> int:
    count = whole_number(value)
    if count < 1:
        raise ValueError("none, or less")
    return count


def _one_of(*choices: str) -> Option:
    def accept(value: Any) -> str:
        if not is_one_of(value, choices):
            raise ValueError("no such choice")
        return str(value)

    return Option(_listed(choices), accept)


def _listed(choices: tuple[str, ...]) -> str:
    return " or ".join([", ".join(map(repr, choices[:-1])), repr(choices[-1])])


def _or_none(option: Option) -> Option:
    return Option(
        f"{option.expected}, or None", lambda value: None if value is None else option.accept(value)
    )


def _io(value: Any) -> dict[str, Any]:
    if not is_mapping(value):
        raise TypeError("no mapping")
    entries: dict[Any, Any] = dict(value)
    for side, wanted in entries.items():
        if not is_one_of(side, ("inputs", "outputs")):
            raise ValueError("no such entry")
        if not is_mapping(wanted) and not is_one_of(wanted, tuple(IO_DTYPES)):
            raise ValueError("no such entry")
    return entries


def _graph(value: Any) -> _core.Graph:
    if not isinstance(value, _core.Graph):
        raise TypeError("not a graph")
    return value


def _signature(value: Any) -> Any:
    if value is not None and not isinstance(value, SignatureValue):
        raise TypeError("not a signature")
    return value


def _diagnostics(value: Any) -> Any:
    from tosaic.base.diagnostics import Diagnostic

    if not isinstance(value, tuple | list) or not all(isinstance(item, Diagnostic) for item in value):
        raise TypeError("no diagnostics")
    return tuple(value)


def _flags(value: Any) -> list[bool]:
    if not isinstance(value, tuple | list):
        raise TypeError("no sequence")
    return [_flag(item) for item in value]


def _functions(value: Any) -> dict[str, Any]:
    if not is_mapping(value):
        raise TypeError("no mapping by name")
    for name in value:
        _text(name)
    if not all(callable(function) for function in value.values()):
        raise TypeError("no functions")
    return dict(value)


def _models(value: Any) -> Any:
    if value is None or callable(value):
        return value
    if not is_mapping(value):
        raise TypeError("neither a mapping nor a function")
    for key, model in value.items():
        if not isinstance(key, NodesValue):
            _text(key)
        if not callable(model):
            raise TypeError("not a function")
    return dict(value)


def _alignment(value: Any) -> int:
    size = whole_number(value)
    if not 1 <= size <= MOST_ALIGNMENT or size & (size - 1):
        raise ValueError("no power of two, or too large")
    return size


def _threads(value: Any) -> int:
    count = whole_number(value)
    if not 1 <= count <= MOST_THREADS:
        raise ValueError("not a number of threads")
    return count


IO_DTYPES = {"float32": "f32", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32"}
"""Dtypes of inputs and outputs that the option `io` accepts -> their names in the graph."""

MOST_ALIGNMENT = 1 << 20
"""The greatest alignment of planned memory in bytes."""

_FLAG = Option("True or False", _flag)
_PATH = Option("a path", _path)
_NUMBER = Option("a number", _number)

OPTIONS: dict[str, Option] = {
    "alignment": Option(f"a power of two up to {MOST_ALIGNMENT}", _alignment),
    "author": Option("a name", _text),
    "budget": _or_none(_NUMBER),
    "check_nodes": _FLAG,
    "check_samples": Option("a whole number, 0 or more", _count),
    "conflict": _one_of("first", "last", "error"),
    "count": Option("a whole number, 0 or more", _count),
    "device": Option("the name of a device", _name_or_other),  # device_of() checks it
    "diagnostics": Option("a sequence of tosaic.base.diagnostics.Diagnostic", _diagnostics),
    "dtypes": _FLAG,
    "dump": _or_none(Option("the path of a folder", _path)),
    "folder": _or_none(_PATH),
    "functions": Option("functions by the name of a node or operator", _functions),
    "graph": Option("a tosaic.program.Graph", _graph),
    "grids": Option("a sequence of True and False", _flags),
    "in_place": _FLAG,
    "io": _or_none(
        Option(
            "entries 'inputs' and 'outputs', each one of " + _listed(tuple(IO_DTYPES)) + ", as in "
            "{'inputs': 'int8'}, or a mapping by path, name or index, as in {'inputs': {'x': 'int8'}}",
            _io,
        )
    ),
    "least_db": _or_none(_NUMBER),
    "level": _one_of("EIGHTK", "NONE"),
    "local": _FLAG,
    "locations": _FLAG,
    "max_abs": _or_none(_NUMBER),
    "measured_on": Option("a whole number, 1 or more", _positive),
    "max_ulp": _or_none(_NUMBER),
    "memory_mode": _or_none(Option("a string such as 'Sram_Only'", _text)),
    "method": Option("a name", _text),
    "most_cost": _or_none(_NUMBER),
    "most_cycles": _or_none(_NUMBER),
    "models": Option(
        "functions by tosaic.Nodes or by the name of an operator, node or module; one function; or None",
        _models,
    ),
    "nodes": _FLAG,
    "on": Option("the name of what runs programs", lambda value: value),  # engine_named() judges it
    "on_failed_check": _one_of("error", "report"),
    "out": _PATH,
    "path": _PATH,
    "plan_inputs": _FLAG,
    "plan_outputs": _FLAG,
    "points": Option("a whole number, 0 or more", _count),
    "progress": _FLAG,
    "quantize": _FLAG,
    "runs": Option("a whole number, 1 or more", _positive),
    "scratch": _FLAG,
    "sidecar": _FLAG,
    "symbolic": _FLAG,
    "signature": Option("a tosaic.ports.Signature, or None", _signature),
    "sqnr_db": _or_none(_NUMBER),
    "strict": _FLAG,
    "stage": Option("the name of a stage", _text),
    "system_config": _or_none(Option("the name of a system configuration", _text)),
    "target": _or_none(Option("a string such as 'TOSA-1.0+INT'", _target)),
    "threshold_db": _NUMBER,
    "threads": Option(f"a whole number from 1 to {MOST_THREADS}", _threads),
    "trust": _FLAG,
    "unsupported": _one_of("error", "split"),
    "verbose": Option("a whole number, 0 or more", _count),
    "verify": _FLAG,
    "connected": _FLAG,
    "warmup": Option("a whole number, 0 or more", _count),
    "weights": _FLAG,
    "write_back": _FLAG,
}
"""The options of the public functions by name."""
