"""Lets torch's loader read a ``.pt2`` file of a stranger: `cleared`, a copy in which nothing can run code.

torch's loader trusts a file. These parts of it run code, when the program is loaded or later::

    data/sample_inputs, data/weights, data/constants     pickles, custom and opaque objects
    data/aotinductor                                      native libraries, which are loaded
    expr_str of a size                                    Python, which sympy evaluates
    guards_code                                           Python, which ExportedProgram.module() executes
    names of values, of arguments and of keys             parts of Python code that torch.fx generates
    targets of calls, operators as arguments              any attribute of torch, math or operator, called
    trees of arguments and results                        modules that are imported, for enums, defaultdicts

The copy has only the program, weights and constants. Pickled tensors are read by `tensor_pickles`, which
executes no pickle, and written anew. The program may have only plain names, arithmetic expressions and
registered operators, by the lists of this file. A file with anything else needs the caller's trust.

Entries of the copy are views of the mapped file, so that weights are not copied.
"""

from __future__ import annotations

import ast
import bisect
import io
import json
import math
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from tosaic import _core
from tosaic.base.options import file_name, invalid, shown
from tosaic.fx.files.tensor_pickles import read_tensors
from tosaic.pt2.archive import Archive

_HINT = "If you trust whoever made the file, pass trust=True, or --trust to a command"
_MODEL = "models/model.json"
_WEIGHTS, _CONSTANTS = "data/weights/", "data/constants/"
_CONFIGS = {
    _WEIGHTS: f"{_WEIGHTS}model_weights_config.json",
    _CONSTANTS: f"{_CONSTANTS}model_constants_config.json",
}
_SAMPLES = "data/sample_inputs/model.pt"
_CONSTANT_PREFIX = "tensor_"
_SMALL = 1 << 16
_LARGEST_ELEMENT = 16  # bytes, of complex128

# torch.fx writes strings with none of these characters into code only between quotes, or not at all.
_UNSAFE = re.compile(r"[\"'\\\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SYMBOL = re.compile(r"[A-Za-z_]{1,16}[0-9]{0,7}")
_NUMBER = re.compile(r"-?[0-9.]+(e[+-]?[0-9]{1,4})?")
_LONGEST_EXPRESSION = 20_000
_MOST_BITS = 1 << 17
_MOST_COMPARED = 64
_POWERS = {"Pow", "PowByNatural", "FloatPow"}
_COMPARING = {"Max", "Min", "And", "Or", "Piecewise"}
_TEXTS = {
    "stack_trace",
    "nn_module_stack",
    "source_fn_stack",
    "torch_fn",
    "custom",
    "from_node",
    "as_string",
    "as_strings",
}
"""Keys of the JSON whose strings torch never writes into code: remarks on nodes, and string arguments."""

_ARITHMETIC = "eq ne le ge lt gt neg pos mul add sub floordiv mod pow truediv and_ or_ lshift rshift"
_SYMBOLIC = "sym_not sym_int sym_float sym_ite sym_max sym_min sym_sqrt"
# Functions over sizes and numbers, as `torch.export.save` names them.
_SYMBOLIC_CALLS = frozenset(
    [
        *(f"_operator.{name}" for name in _ARITHMETIC.split()),
        *(f"torch.{name}" for name in _SYMBOLIC.split()),
        "math.trunc",
    ]
)
_FACTORIES = {"list", "dict", "set", "tuple", "int", "float", "str", "bool"}
_HIGHER_ORDER = {
    "associative_scan",
    "auto_functionalized",
    "auto_functionalized_v2",
    "autograd_function_apply",
    "cond",
    "flex_attention",
    "foreach_map",
    "hints_wrapper",
    "invoke_quant",
    "invoke_quant_packed",
    "invoke_subgraph",
    "map_impl",
    "out_dtype",
    "scan",
    "strict_mode",
    "tag_activation_checkpoint",
    "while_loop",
    "while_loop_stack_output",
    "wrap",
    "wrap_activation_checkpoint",
    "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
}
"""Operators over graphs that call nothing but the graphs and operators that the file gives them."""

_ACTING = {"aten::_print", "aten::warn", "aten::save", "aten::from_file"}
_ACTING_NAMESPACES = {"prim", "profiler", "debugprims", "rpc", "c10d", "symm_mem", "onnx_symbolic"}
_UNCHECKED_NAMESPACES = {
    *("inductor", "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "static_runtime"),
    *("debug_mode_ops", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_test"),
}
_UNCHECKED = re.compile(
    "aten::(_reshape_alias|segment_reduce|_?ctc_loss|_cum(max|min)_helper|_sparse_.*|_convert_indices_.*"
    "|_validate_.*indices|_fused_(ada|sgd).*|.*_backward.*)"
)
"""Operators that torch calls itself, in training and in code that it generates, with operands that it has
checked. Called with others, they read and write memory outside of their operands."""

_ACTING_ARGUMENT = re.compile(r"file|path|url|uri|folder|directory|command", re.IGNORECASE)
_EXPRESSION_NAMES = {"true", "false", "oo", "int_oo", "nan", "zoo", "pi", "E"}
_CALLS_IN_EXPRESSIONS = """
    Symbol Integer Float Rational Add Mul Pow Mod Max Min Abs floor ceiling sqrt Equality Eq Unequality Ne
    StrictLessThan Lt LessThan Le StrictGreaterThan Gt GreaterThan Ge And Or Not Piecewise ExprCondPair
    FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift
    PowByNatural FloatPow FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt
    RoundToInt RoundDecimal ToFloat Identity
"""
_EXPRESSION_NODES = (
    ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.UnaryOp, ast.USub,
    ast.UAdd, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Compare,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Tuple,
)  # fmt: skip
_EXPRESSION_CALLS = frozenset(_CALLS_IN_EXPRESSIONS.split())


class _RefusedError(Exception):
    """The file has something that could run code; the message says what and where."""


@dataclass(frozen=True)
class Cleared:
    """A ``.pt2`` file of a stranger, made ready for torch's loader.

    Attributes
    ----------
    file : file object
        For `torch.export.load`. Reads from memory and from the mapped file.
    example_inputs : tuple, optional
        The example inputs of the file. None if they hold anything but tensors, numbers and containers.
    """

    file: io.BufferedIOBase
    example_inputs: Any


def cleared(path: Path, prepare: Callable[[Any], Any]) -> Cleared:
    """Returns a copy of a file that runs no code in torch's loader.

    Parameters
    ----------
    path : Path
    prepare : callable
        Gets the program, as JSON whose strings are checked, and returns the program for the copy and the
        names of the functions that it calls. It imports the libraries that register them.

    Raises
    ------
    MissingFileError, ReadError
        The file cannot be read.
    InvalidGraph
        The file is damaged, or it has something that could run code. The message says what and where.
    """
    archive = Archive(path)
    if _MODEL not in archive:
        raise _refusal(path, "it was written by an older version of torch, with pickled weights")
    try:
        document = _document(archive, _MODEL)
        _require_plain(document)
        document, targets = prepare(document)
        _require_operators(targets)
        _drop_guards(document)
        entries: list[tuple[str, Any]] = [(_MODEL, _bytes(document))]
        for folder, config in _CONFIGS.items():
            entries += _tensors(archive, folder, config)
    except _RefusedError as refused:
        raise _refusal(path, str(refused)) from None
    entries += [(_SAMPLES, b""), ("archive_format", b"pt2"), ("archive_version", b"0")]
    entries += [("byteorder", sys.byteorder.encode()), (".data/version", b"6\n")]
    return Cleared(_Archive(entries), _example_inputs(archive))


def _refusal(path: Path, what: str) -> Exception:
    return invalid("open", f"torch's loader could run code of '{file_name(path)}': {what}", hint=_HINT)


def _document(archive: Archive, entry: str) -> Any:
    return _core.Json(archive.bytes_of(entry), entry).value()


def _bytes(document: Any) -> bytes:
    return json.dumps(document).encode()


# ---- strings of the program ----


def _require_plain(document: Any) -> None:
    """Refuses a string that torch may write into code or evaluate, unless it has the form allowed there."""
    pending: list[tuple[str, str, Any]] = [("", "", document)]
    while pending:
        above, key, item = pending.pop()
        if isinstance(item, dict):
            for name, each in item.items():
                _require_label("a key", name)
                pending.append((key, name, each))
            if key == "range_constraints":
                for name in item:
                    if not _SYMBOL.fullmatch(name):
                        raise _RefusedError(f"the size {shown(name)} is no symbol")
        elif isinstance(item, list):
            pending.extend((above, key, each) for each in item)
        elif isinstance(item, str):
            _require_string(above, key, item)


def _require_string(above: str, key: str, item: str) -> None:
    if key in ("name", "as_name", "forward_arg_names", "field_names"):
        if item and not item.isidentifier():
            raise _RefusedError(f"the name {shown(item)} is no identifier")
    elif key in _TEXTS and not (key == "as_string" and above in ("inputs", "value")):
        return
    elif key == "expr_str":
        _require_expression(item)
    elif key in ("in_spec", "out_spec"):
        _require_tree(item)
    elif key == "guards_code":
        return  # `_drop_guards` leaves them out
    else:
        _require_label(key, item)


def _require_label(what: str, item: str) -> None:
    if _UNSAFE.search(item):
        raise _RefusedError(f"{what} {shown(item)} has quotes or control characters")


def _require_expression(text: str) -> None:
    """Refuses a size that is more than arithmetic over symbols: sympy evaluates it as Python."""
    wrong = _RefusedError(f"the size {shown(text)} is no arithmetic expression")
    if len(text) > _LONGEST_EXPRESSION:
        raise wrong
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise wrong from None
    texts = set()
    for node in ast.walk(tree):
        if not isinstance(node, _EXPRESSION_NODES):
            raise wrong
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in _EXPRESSION_CALLS:
                raise wrong
            if node.func.id in ("Symbol", "Float") and node.args:
                texts.add(node.args[0])
        elif isinstance(node, ast.Name):
            known = node.id in _EXPRESSION_CALLS or node.id in _EXPRESSION_NAMES
            if not known and not _SYMBOL.fullmatch(node.id):
                raise wrong
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | None):
            is_number = isinstance(node.value, str) and _NUMBER.fullmatch(node.value)
            is_symbol = isinstance(node.value, str) and _SYMBOL.fullmatch(node.value)
            if node not in texts or not (is_number or is_symbol):
                raise wrong
    if _is_expensive(tree):
        raise _RefusedError(f"the size {shown(text)} takes too long or too much memory to compute")


def _is_expensive(tree: ast.Expression) -> bool:
    """True if sympy might make huge numbers of a size, or compare very many sizes with each other.

    sympy computes numbers exactly: ``9**9**9**9`` has more digits than any memory holds.
    """
    try:
        bits = _bits(tree.body)
    except (_TooLargeError, RecursionError):
        return True
    compared = [
        len(node.args)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _COMPARING
    ]
    return bits > _MOST_BITS or sum(compared) > _MOST_COMPARED


class _TooLargeError(Exception):
    """A number may have more than `_MOST_BITS` bits, or its exponent is no plain number."""


def _bits(node: ast.expr) -> int:
    """Returns an upper bound of the bits of a size's numerator and denominator, if symbols have 64 each."""
    if isinstance(node, ast.Constant):
        found = _bits_of_constant(node.value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        found = _bits(node.left) * _exponent(node.right)
    elif isinstance(node, ast.Call):
        function = node.func.id if isinstance(node.func, ast.Name) else ""
        rest = [*node.args[1:], *(each.value for each in node.keywords)]
        if function in _POWERS and rest:
            found = _bits(node.args[0]) * max(map(_exponent, rest))
        elif function in ("LShift", "RShift", "RoundDecimal", "Float") and rest:
            found = _bits(node.args[0]) + sum(map(_exponent, rest))
        else:
            found = sum(map(_bits, [*node.args, *rest[len(node.args[1:]) :]]))
    else:
        found = sum(_bits(each) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
        found = 64 if isinstance(node, ast.Name) else found
    if found > _MOST_BITS:
        raise _TooLargeError
    return found + 1


def _bits_of_constant(value: Any) -> int:
    if isinstance(value, str):
        exponent = value.lower().partition("e")[2]
        return 64 if _SYMBOL.fullmatch(value) else 4 * len(value) + 4 * abs(int(exponent or 0))
    if isinstance(value, float):
        return 2100 if math.isfinite(value) else _MOST_BITS + 1
    return int(value or 0).bit_length()


def _exponent(node: ast.expr) -> int:
    """Returns the absolute value of an exponent, rounded up, which has to be a number of at most 3 digits."""
    if isinstance(node, ast.UnaryOp):
        return _exponent(node.operand)
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    if is_call and node.func.id in ("Integer", "Float", "Rational") and node.args:  # type: ignore[attr-defined]
        return max(map(_exponent, node.args))  # type: ignore[attr-defined]
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if not isinstance(value, int | float) or not abs(value) < 1000:
        raise _TooLargeError
    return math.ceil(abs(value))


def _require_tree(text: str) -> None:
    """Refuses a tree of arguments or results whose reading imports a module or writes keys into code."""
    try:
        protocol, root = json.loads(text)
        if protocol != 1:
            raise _RefusedError(f"a tree of arguments has the protocol {shown(protocol)}")
        pending = [root]
        while pending:
            node = pending.pop()
            pending.extend(node["children_spec"])
            kind, context = node["type"], node["context"]
            if kind is not None:
                _require_label("the type of an argument", kind)
            _require_context(_parsed(context))
        _require_keywords(root)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _RefusedError(f"a tree of arguments is damaged: {type(error).__name__}") from None


def _require_keywords(root: Any) -> None:
    """Refuses names of keyword arguments that are not identifiers: torch.fx writes them into a signature."""
    children = root["children_spec"]
    if len(children) != 2 or children[1]["type"] != "builtins.dict":
        return
    for name in _parsed(children[1]["context"]):
        if not isinstance(name, str) or not name.isidentifier():
            raise _RefusedError(f"the name {shown(name)} of an argument is no identifier")


def _parsed(context: Any) -> Any:
    """Returns the context of a tree as JSON. Contexts that classes write themselves may be any string."""
    try:
        return json.loads(context) if isinstance(context, str) else context
    except ValueError:
        return context


def _require_context(context: Any) -> None:
    pending = [context]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if "__enum__" in item and not _is_loaded_enum(item.get("fqn")):
                raise _RefusedError(f"the enum {shown(item.get('fqn'))} is not loaded")
            if "default_factory_module" in item or "default_factory_name" in item:
                module, name = item.get("default_factory_module"), item.get("default_factory_name")
                if module != "builtins" or name not in _FACTORIES:
                    raise _RefusedError(f"a defaultdict has the factory {shown(f'{module}.{name}')}")
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, str):
            _require_label("a key of an argument", item)


def _is_loaded_enum(name: Any) -> bool:
    """True for an enum, ``module:Class``, whose module is loaded already: reading it imports nothing."""
    module, _, path = name.partition(":") if isinstance(name, str) else ("", "", "")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, type) or found is sys.modules.get(module) else None
        if found is None:
            return False
    return isinstance(found, type) and issubclass(found, Enum)


def _drop_guards(document: Any) -> None:
    """Leaves out the checks of inputs that are Python code. Checks of sizes follow from the program."""
    if document.get("guards_code"):
        document["guards_code"] = []


# ---- operators ----


def _require_operators(targets: Iterable[str]) -> None:
    """Refuses calls of anything but operators that are registered and only compute."""
    for target in sorted(set(targets)):
        fault = _fault_of_target(target)
        if fault:
            raise _RefusedError(f"it calls {shown(target)}, {fault}")


def _fault_of_target(target: str) -> str:
    """Returns why a call of `target` is refused, or nothing."""
    if target in _SYMBOLIC_CALLS:
        return ""
    if not target.startswith("torch.ops."):
        return "which is no operator"
    namespace, _, name = target.removeprefix("torch.ops.").partition(".")
    if namespace == "higher_order":
        return "" if name in _HIGHER_ORDER else "which may call something that is not in the file"
    found: Any = torch.ops
    for part in (namespace, *name.split(".")):
        found = getattr(found, part, None)
    if not isinstance(found, torch._ops.OpOverload):
        return "which is no operator that is registered"
    declared = found._schema.name  # the schema's name; the file may use an alias
    acts = declared in _ACTING or declared.partition("::")[0] in _ACTING_NAMESPACES
    strings = [each.name for each in found._schema.arguments if "str" in str(each.type)]
    if acts or any(_ACTING_ARGUMENT.search(each) for each in strings):
        return "which does more than to compute"
    if declared.partition("::")[0] in _UNCHECKED_NAMESPACES or _UNCHECKED.fullmatch(declared):
        return "which may read and write memory outside of its operands"
    return ""


# ---- tensors ----


def _tensors(archive: Archive, folder: str, config: str) -> Iterator[tuple[str, Any]]:
    """Yields the entries of the copy that hold weights or constants; pickled ones are written anew."""
    if config not in archive or f"{folder}model.pt" in archive:
        raise _RefusedError("it was written by an older version of torch, with pickled weights")
    document = _document(archive, config)
    _require_plain(document)
    rows = document.get("config") if isinstance(document, dict) else None
    if not isinstance(rows, dict):
        raise _RefusedError(f"the entry '{config}' is damaged")
    written: set[str] = set()
    for number, (name, row) in enumerate(rows.items()):
        if not isinstance(row, dict) or not isinstance(row.get("path_name"), str):
            raise _RefusedError(f"the entry of '{name}' in '{config}' is damaged")
        entry = row["path_name"]
        if folder == _CONSTANTS and not entry.startswith(_CONSTANT_PREFIX):
            raise _RefusedError(f"'{name}' is a custom object")
        if row.get("use_pickle"):
            made = _unpickled(archive, f"{folder}{entry}", name)
            row["path_name"] = f"{_CONSTANT_PREFIX}pickled_{number}"
            buffer = io.BytesIO()
            torch.save(made, buffer)
            yield f"{folder}{row['path_name']}", buffer.getvalue()
            continue
        _require_memory(archive, f"{folder}{entry}", name, row.get("tensor_meta"))
        if entry not in written:
            written.add(entry)
            yield f"{folder}{entry}", archive.bytes_of(f"{folder}{entry}").data
    yield config, _bytes(document)


def _require_memory(archive: Archive, entry: str, name: str, meta: Any) -> None:
    """Reserves memory for a tensor with more elements than its entry has in the file.

    torch makes zeros for an entry without bytes, and a stride of 0 repeats an element. torch itself refuses a
    tensor that reads outside of its entry.
    """
    try:
        count = math.prod(int(size["as_int"]) for size in meta["sizes"])
    except (TypeError, LookupError, ValueError):
        raise _RefusedError(f"the sizes of '{name}' are damaged") from None
    size = count * _LARGEST_ELEMENT
    if size > len(archive.bytes_of(entry)) * _LARGEST_ELEMENT:
        archive.reserve(size, f"'{name}'")


def _unpickled(archive: Archive, entry: str, name: str) -> Any:
    """Returns a pickled tensor."""
    try:
        made = _load_tensors(archive, entry)
    except (_core.Error, MemoryError):
        raise
    except Exception as error:  # a damaged pickle or archive may raise anything
        text = str(error).strip().partition("\n")[0]
        raise _RefusedError(f"'{name}' is pickled, and is more than a tensor ({shown(text)})") from None
    if not isinstance(made, torch.Tensor):
        raise _RefusedError(f"'{name}' is pickled, and is no tensor")
    return made


def _load_tensors(archive: Archive, entry: str) -> Any:
    return read_tensors(
        bytes(archive.bytes_of(entry)), lambda size: archive.reserve(size, f"the entry '{entry}'")
    )


def _example_inputs(archive: Archive) -> Any:
    """Returns the example inputs as (args, kwargs), or None if there are none that are plain data."""
    try:
        args, kwargs = _load_tensors(archive, _SAMPLES)
    except MemoryError:
        raise
    except Exception:  # no entry, or a pickle of more than tensors
        return None
    return (tuple(args), kwargs) if isinstance(args, list | tuple) and isinstance(kwargs, dict) else None


# ---- the copy ----


class _Segments(io.RawIOBase):
    """Pieces of memory, one after the other, written once and read as a file."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[memoryview] = []
        self._size = self._at = 0
        self.is_written = False

    def write(self, data: Any) -> int:
        piece = memoryview(data).cast("B")
        if len(piece) < _SMALL:
            piece = memoryview(bytes(piece))  # zipfile reuses its small buffers, so they are copied
        if len(piece):
            self._starts.append(self._size)
            self._pieces.append(piece)
        self._size += len(piece)
        self._at = self._size
        return len(piece)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return not self.is_written

    def seekable(self) -> bool:
        return self.is_written

    def tell(self) -> int:
        if not self.is_written:
            raise io.UnsupportedOperation("tell")  # zipfile then writes sizes after the entries
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if not self.is_written:
            raise io.UnsupportedOperation("seek")
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        wanted = memoryview(buffer).cast("B")
        count = 0
        at = bisect.bisect_right(self._starts, self._at) - 1
        while count < len(wanted) and 0 <= at < len(self._pieces):
            offset = self._at - self._starts[at]
            part = self._pieces[at][offset : offset + len(wanted) - count]
            wanted[count : count + len(part)] = part
            count += len(part)
            self._at += len(part)
            at += 1
        return count


class _Archive(io.BufferedReader):
    """An archive as `torch.export.save` writes it, of entries in memory."""

    def __init__(self, entries: list[tuple[str, Any]]) -> None:
        segments = _Segments()
        with zipfile.ZipFile(segments, "w", zipfile.ZIP_STORED) as made:
            for name, data in entries:
                made.writestr(f"model/{name}", data)
        segments.is_written = True
        segments.seek(0)
        super().__init__(segments)
