"""In-place calls around one call of an overload: what we import has to equal eager, or is refused.

    x = source              a copy made in the graph, an input, or a buffer
    x = layout(x)           as drawn, transposed in memory, every second element, or expanded
    r = overload(x, ...)
    write to r, or to x     as a whole, a part of it, through its transpose, or through five views
    return everything       all operands and all results, and the sources

The oracle is ``ep.module()``. It runs twice on fresh arguments, since buffers keep what was written. A
program is *equal* if all outputs, and the inputs after the call, are eager's, in the second call too.
Otherwise our import has to raise UnsupportedOp. If the error says that decomposition helps, the decomposed
program has to be equal too, in torch and imported.

The reader of files has to make the same graph as the import, or hand the file over to torch. It may refuse a
program that the import reads only in this way.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import torch
import tosaic
from tosaic import _core
from tosaic.pt2.program import read_pt2

from operators.checking import Row
from operators.names import overload
from operators.running import first_examples
from operators.table import ROWS
from operators.values import Case, T, call, tensors_of

__all__ = [
    "RELATIVES",
    "Program",
    "Verdicts",
    "programs_of",
    "resized",
    "running",
    "try_programs",
    "verdict",
]

SOURCES = ("copy", "input", "buffer")
LAYOUTS = ("plain", "transposed", "stepped", "offset", "expanded")
WRITTEN = ("result", "operand", "source")
WRITES = ("whole", "whole", "part", "transposed", "reshaped", "chain")
_DECOMPOSE = "run_decompositions"
_SORTED = {"searchsorted.Tensor": 0, "searchsorted.Scalar": 0, "bucketize.Tensor": 1, "bucketize.Scalar": 0}
"""The position of the tensor that has to be sorted; torch's result is undefined if it is not."""
_X, _Y = T((2, 3, 4)), T((3, 4))

RELATIVES: dict[str, list[Case]] = {
    each[0].name: each
    for each in (
        [Case("unsafe_chunk", (_X, 2)), Case("unsafe_chunk", (_X, 2, 2)), Case("unsafe_chunk", (_X, 1))],
        [Case("unsafe_split.Tensor", (_X, 1)), Case("unsafe_split.Tensor", (_X, 2, -1))],
        [Case("unsafe_split_with_sizes", (_X, [1, 2], 1)), Case("unsafe_split_with_sizes", (_X, [4, 0], 2))],
        [Case("tensor_split.sections", (_X, 2)), Case("tensor_split.sections", (_X, 3, 1))],
        [Case("type_as", (_X, T(()))), Case("type_as", (_X, T((2,), "f16")))],
        [Case("to.dtype", (_X, torch.float32, False, copied)) for copied in (False, True)]
        + [Case("to.dtype", (T((2, 3, 2, 2)), torch.float32), {"memory_format": torch.channels_last})]
        + [Case("to.dtype", (T((2, 1, 2, 2)), torch.float32), {"memory_format": torch.channels_last})],
        [Case("ravel", (_X,)), Case("ravel", (T((5,)),)), Case("ravel", (T(()),))],
        [Case("reshape_as", (_X, T((6, 4)))), Case("reshape_as", (_X, _X))],
        [Case("view_as", (_X, T((6, 4)))), Case("view_as", (_X, _X))],
        [Case("expand_as", (_Y, _X)), Case("expand_as", (_X, _X))],
        [Case("broadcast_to", (_Y, [2, 3, 4])), Case("broadcast_to", (_Y, [3, 4]))],
        [Case("swapaxes", (_X, 0, 1)), Case("swapaxes", (_X, 1, 1))],
        [Case("mT", (_X,)), Case("mT", (T((2, 1, 1)),))],
        [Case("adjoint", (_X,))],
        [Case("numpy_T", (_X,))],
        [Case("positive", (_X,))],
        [Case("conj", (_X,))],
        [Case("conj_physical", (_X,))],
        [Case("resolve_conj", (_X,))],
        [Case("resolve_neg", (_X,))],
        [Case("real", (_X,))],
        [Case("lift_fresh", (_X,))],
        [Case("lift", (_X,))],
        [Case("lift_fresh_copy", (_X,))],
        [Case("feature_dropout", (_X, 0.5, False)), Case("feature_dropout", (_X, 0.0, True))],
        [Case("alpha_dropout", (_X, 0.5, False)), Case("alpha_dropout", (_X, 0.0, True))],
        [Case("feature_alpha_dropout", (_X, 0.5, False))],
        [Case("dropout", (_X, 0.5, False)), Case("dropout", (_X, 0.0, True))],
        [Case("native_dropout", (_X, 0.5, False), keep=(0,))],
        [
            Case("native_channel_shuffle", (T((2, 4, 2, 2)), 2)),
            Case("native_channel_shuffle", (T((0, 4, 2, 2)), 2)),
        ],
        [Case("channel_shuffle", (T((2, 4, 2, 2)), 2)), Case("channel_shuffle", (T((2, 4, 2, 2)), 1))],
        [
            Case("sum_to_size", (_X, [2, 3, 4])),
            Case("sum_to_size", (_X, [2, 1, 4])),
            Case("sum_to_size", (_X, [3, 4])),
        ],
        [Case("atleast_1d", (_X,)), Case("atleast_1d", (T(()),))],
        [Case("atleast_2d", (_X,)), Case("atleast_2d", (T((3,)),))],
        [Case("atleast_3d", (_X,)), Case("atleast_3d", (_Y,))],
        [Case("atleast_1d.Sequence", ([_X, T(())],))],
        [Case("meshgrid.indexing", ([T((2,)), T((3,))],), {"indexing": "ij"})],
        [Case("meshgrid", ([T((2,)), T((3,))],))],
        [Case("broadcast_tensors", ([_X, _Y],)), Case("broadcast_tensors", ([_X, _X],))],
        [Case("chain_matmul", ([_Y],)), Case("chain_matmul", ([_Y, T((4, 2))],))],
        [Case("block_diag", ([_Y],))],
        [Case("cartesian_prod", ([T((3,))],)), Case("cartesian_prod", ([T((3,)), T((2,))],))],
        [Case("column_stack", ([_Y],)), Case("column_stack", ([_Y, _Y],))],
        [Case("hstack", ([_Y],))],
        [Case("vstack", ([_Y],))],
        [
            Case("einsum", ("ij->ij", [_Y])),
            Case("einsum", ("ij->ji", [_Y])),
            Case("einsum", ("ii->i", [T((3, 3))])),
            Case("einsum", ("ij,jk->ik", [_Y, T((4, 2))])),
            Case("einsum", ("ij->i", [_Y])),
        ],
        [Case("hsplit.int", (_X, 3)), Case("hsplit.int", (_X, 1))],
        [Case("vsplit.int", (_X, 2))],
        [Case("dsplit.int", (_X, 2))],
        [Case("squeeze", (T((1, 3, 1)),)), Case("squeeze", (_Y,))],
        [Case("view.dtype", (_X, torch.float32)), Case("view.dtype", (_X, torch.int32))],
        [Case("narrow_copy", (_X, 0, 0, 1))],
        [Case("rot90", (_Y, 0)), Case("rot90", (_Y, 1))],
        [Case("roll", (_Y, [0], [0]))],
        [Case("tile", (_Y, [1, 1]))],
        [Case("take_along_dim", (_Y, T((3, 4), "i64", "range", low=0, high=3), 0))],
        [Case("unfold", (_Y, 1, 2, 1)), Case("unfold", (_Y, 1, 2, 2)), Case("unfold", (_Y, 0, 3, 1))],
        [
            Case("as_strided", (_Y, [2, 3], [1, 2])),
            Case("as_strided", (_Y, [3, 4], [4, 1], 0)),
            Case("as_strided", (_Y, [2, 2], [4, 1], 5)),
        ],
        [Case("diagonal", (T((3, 3)),)), Case("diagonal", (T((1, 1)),))],
        [Case("max.other", (_Y, _Y))],
        [Case("square", (_Y,)), Case("square", (T((3,), "i32"),))],
        [Case("round", (T((3,), "i32"),))],
        [Case("floor", (T((3,), "i32"),))],
        [Case("ceil", (T((3,), "i32"),))],
        [
            Case("index.Tensor", (_Y, [T((2,), "i64", [0, 2])])),
            Case("index.Tensor", (_Y, [None, T((2,), "i64", [0, 2])])),
        ],
        [Case("_reshape_alias", (_Y, [4, 3], [3, 1]))],
        [Case("_reshape_copy", (_Y, [4, 3]))],
        [Case("resize", (_Y, [2, 3]))],
        [Case("where.ScalarOther", (T((3,), "bool"), T((3,)), 1.0))],
        [Case("diff", (_Y, 0)), Case("diff", (_Y, 1))],
    )
}
"""Calls of overloads that are not in the list of coverage, but that share memory or come close to it."""


@dataclass(frozen=True)
class Program:
    """One call between in-place calls.

    Attributes
    ----------
    case : Case
    source, layout : str
        The source and the layout of the operand at `at`.
    written : str
        What is written after the call: a ``result``, the ``operand``, or the ``source`` of the operand.
    write : str
        How it is written.
    at, of : int
        The positions of the operand and of the result.
    """

    case: Case
    source: str
    layout: str
    written: str
    write: str
    at: int = 0
    of: int = 0

    @property
    def row(self) -> Row | None:
        """The row of samples, if the overload has one."""
        return ROWS.get(self.case.name)

    def function(self) -> Callable[..., Any]:
        """Returns what is called."""
        row = self.row
        return overload(self.case.name) if row is None else row.function(self.case.name)


class Module(torch.nn.Module):
    """Several programs as one module. Its inputs are in `given`."""

    def __init__(self, programs: Sequence[Program]) -> None:
        super().__init__()
        self._programs = [(each, each.function()) for each in programs]
        self.given: list[torch.Tensor] = []
        self._places: list[list[int | str]] = []
        for number, program in enumerate(programs):
            places: list[int | str] = []
            for index, each in enumerate(tensors_of(program.case)):
                tensor = each.tensor()
                if index == program.at:
                    tensor = _base(tensor, program.layout)
                if program.source == "buffer" if index == program.at else each.const:
                    self.register_buffer(f"held_{number}_{index}", tensor)
                    places.append(f"held_{number}_{index}")
                else:
                    places.append(len(self.given))
                    self.given.append(tensor)
            self._places.append(places)

    def forward(self, *given: torch.Tensor) -> Any:
        """Returns the results, the operands and the sources of the operands."""
        returned = []
        for (program, function), places in zip(self._programs, self._places, strict=True):
            values = [given[each] if isinstance(each, int) else getattr(self, each) for each in places]
            source = values[program.at]
            if program.source == "copy":
                source = source.clone()
            operand = _laid_out(source, program.layout)
            values[program.at] = operand
            results = call(program.case, function, values)
            if program.written == "result":
                _write(results[program.of], program.write)
            else:
                _write(operand if program.written == "operand" else source, program.write)
            returned += [*results, operand, source]
        return returned


def _base(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns a tensor of which `_laid_out` makes one with these elements."""
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous()
    if layout == "stepped" and tensor.dim():
        return tensor.repeat_interleave(2, -1)
    if layout == "offset" and tensor.dim():
        return torch.cat([tensor[:1], tensor]) if tensor.shape[0] else tensor
    if layout == "expanded" and tensor.dim():
        return tensor[:1].clone()
    return tensor


def _laid_out(source: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed" and source.dim() > 1:
        return source.transpose(0, -1)
    if layout == "stepped" and source.dim():
        return source[..., ::2]
    if layout == "offset" and source.dim():
        return source[1:] if source.shape[0] else source
    if layout == "expanded" and source.dim() and source.shape[0]:
        return source.expand(3, *source.shape[1:])
    return source


def _write(tensor: torch.Tensor, how: str) -> None:
    if how == "part" and tensor.dim() and tensor.shape[0]:
        tensor = tensor[0]
    elif how == "transposed" and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    elif how == "reshaped":
        tensor = tensor.reshape(-1)
    elif how == "chain":
        tensor = _far_view(tensor)
    if tensor.dtype is torch.bool:
        tensor.logical_not_()
    else:
        tensor.mul_(-2).add_(5)


def _far_view(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a view, five times: every second element of a diagonal, for example."""
    if not tensor.dim() or 0 in tensor.shape:
        return tensor
    view = tensor.unsqueeze(0).transpose(0, -1)[: (tensor.shape[-1] + 1) // 2]
    view = view.diagonal(0, 0, 1) if view.dim() > 2 else view.squeeze(-1)
    return view[..., ::2]


# ---- drawing ----


def programs_of(name: str, count: int, seed: int = 0) -> list[list[Program]]:
    """Returns programs around calls of an overload, in groups that are checked as one module.

    There are `count` groups of one program if results may share memory. Otherwise there is one group of
    `count` programs, which are expected to be equal, and one program that may be refused.
    """
    random = Random(f"{seed} {name}")
    cases = list(RELATIVES.get(name, ()))
    if name in ROWS:
        cases += first_examples(name, 4, seed)
    cases = running(cases)
    cases = running([*cases, *(each for case in cases for each in resized(case, random))])
    cases = [case for case in cases if tensors_of(case)]
    if not cases:
        return []
    random.shuffle(cases)
    shares = any(_shares(case) for case in cases)

    def drawn(index: int, is_plain: bool) -> Program:
        case = cases[index % len(cases)]
        return Program(
            case,
            random.choice(SOURCES),
            "plain" if is_plain else random.choice(LAYOUTS),
            random.choice(WRITTEN),
            "whole" if is_plain else random.choice(WRITES),
            random.randrange(len(tensors_of(case))),
            random.randrange(len(_results(case))),
        )

    if shares:
        return [[drawn(index, False)] for index in range(count)]
    return [[drawn(index, True) for index in range(count)], [drawn(0, False)]]


def _results(case: Case) -> list[torch.Tensor]:
    function = Program(case, "", "", "", "").function()
    return call(case, function, [each.tensor() for each in tensors_of(case)])


def running(cases: Sequence[Case]) -> list[Case]:
    """Returns the calls that torch runs. A child tries them, since a kernel of torch may end the process."""
    found: list[Case] = []
    rest = list(cases)
    while rest:
        results = _tried_in_child(rest)
        found += [case for case, runs in zip(rest, results, strict=False) if runs]
        rest = rest[len(results) + 1 :]  # without the one that ended the child
    return found


def _tried_in_child(cases: Sequence[Case]) -> list[bool]:
    """Returns for each call whether torch runs it, up to one that ends the process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        faulthandler.disable()
        with contextlib.suppress(BaseException), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            for case in cases:
                os.write(writing, b"1" if _runs(case) else b"0")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as results:
        found = results.read()
    os.waitpid(child, 0)
    return [each == ord("1") for each in found]


def _runs(case: Case) -> bool:
    try:
        return bool(_results(case))
    except Exception:  # torch raises errors of any type
        return False


def resized(case: Case, random: Random) -> list[Case]:
    """Returns the call with an axis of size 0 or 1, in two ways that torch may take."""
    found = []
    for _ in range(2):
        size = random.choice([0, 1])
        at = random.randrange(max((len(each.shape) for each in tensors_of(case)), default=0) or 1)

        def changed(each: T, at: int = at, size: int = size) -> T:
            shape = each.shape
            return replace(each, shape=(*shape[:at], size, *shape[at + 1 :])) if at < len(shape) else each

        found.append(case.map(changed))
    return [other for other in found if other != case]


def _shares(case: Case) -> bool:
    tensors = [each.tensor() for each in tensors_of(case)]
    held = {each.untyped_storage()._cdata for each in tensors}
    function = Program(case, "", "", "", "").function()
    return any(each.untyped_storage()._cdata in held for each in call(case, function, tensors))


# ---- checking ----


@dataclass
class Verdicts:
    """What became of the programs around one overload.

    Attributes
    ----------
    name : str
    seed, programs : int
    by_torch : int
        Programs that torch does not run or export, such as a write to an expanded tensor.
    equal : int
    refused : dict of str to int
        By reason.
    decomposed : int
        Programs that are refused with the hint to decompose, and equal when decomposed.
    handed_over : int
        Programs that the reader of files hands over to torch because of their memory.
    failures : list of str
    """

    name: str
    seed: int
    programs: int = 0
    by_torch: int = 0
    equal: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    decomposed: int = 0
    handed_over: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, program: Program, kind: str, text: str) -> None:
        """Adds the verdict of a program."""
        self.programs += 1
        self.by_torch += kind == "by torch"
        self.equal += kind in ("equal", "handed over")
        self.handed_over += kind == "handed over"
        self.decomposed += kind == "decomposed"
        if kind == "failure":
            self.failures.append(f"{program!r}: {text}")
        if kind in ("refused", "decomposed"):
            self.refused[text] = self.refused.get(text, 0) + 1


def try_programs(
    name: str, *, count: int, seed: int = 0, note: Callable[[str], None] | None = None
) -> Verdicts:
    """Draws and checks programs around an overload."""
    found = Verdicts(name, seed)
    for group in programs_of(name, count, seed):
        if note is not None:
            note(repr(group))
        verdicts = [(program, *verdict([program])) for program in group] if len(group) == 1 else []
        if not verdicts:
            kind, text = verdict(group)
            if kind == "equal":
                verdicts = [(program, kind, text) for program in group]
            else:
                verdicts = [(program, *verdict([program])) for program in group]
        for program, kind, text in verdicts:
            found.count(program, kind, text)
    return found


def verdict(programs: Sequence[Program]) -> tuple[str, str]:
    """Returns what becomes of the module of some programs, and the reason.

    One of ``by torch``, ``equal``, ``handed over``, ``refused``, ``decomposed`` and ``failure``.
    """
    if any(_is_uninitialised(program) for program in programs):
        return "by torch", "torch leaves memory uninitialised"
    if any(_searches_unsorted(program) for program in programs):
        return "by torch", "torch does not define a search among numbers that are not sorted"
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            module = Module(programs)
            given = tuple(module.given)
            exported = torch.export.export(module.eval(), given, strict=False)
            expected = _eager(exported, given)
        except Exception as error:  # an error of any type
            return "by torch", str(error).partition("\n")[0]
        if not _is_as_recorded(exported, expected):
            return "by torch", "torch computes another shape than it recorded"
        try:
            imported = tosaic.from_exported(exported)
        except tosaic.UnsupportedOp as error:
            return _after_refusal(exported, given, expected, error)
        except tosaic.InvalidGraph as error:  # torch's record of a call without elements may be odd
            return "refused", f"InvalidGraph: {_reason(error)}"
        except Exception as error:
            return "failure", f"import: {type(error).__name__}: {error}"
        if any(node.op == "opaque" for node in imported.graph.nodes):
            return "refused", "opaque"
        try:
            found = _run_twice(imported.run, given)
        except Exception as error:
            return "failure", f"run: {type(error).__name__}: {error}"
        wrong = _difference(found, expected)
        if wrong:
            return "failure", wrong
        return _of_file(exported, given, expected)


def _is_uninitialised(program: Program) -> bool:
    """True if the call resizes a tensor to more elements than it has: the others have no number."""
    if program.case.name != "resize":
        return False
    operand = tensors_of(program.case)[0]
    return math.prod(program.case.args[1]) > math.prod(operand.shape)


def _searches_unsorted(program: Program) -> bool:
    """True if the second run searches a buffer that the first run has written: 5 - 2 * x is not sorted."""
    is_written = program.source == "buffer" and program.written != "result"
    return is_written and _SORTED.get(program.case.name) == program.at


def _is_as_recorded(exported: Any, expected: Sequence[Any]) -> bool:
    """True if the outputs have the shapes that torch recorded; sizes that depend on data are not compared."""
    output = next(iter(reversed(exported.graph.nodes)))
    recorded = [each.meta["val"] for each in output.args[0] if isinstance(each, torch.fx.Node)]
    return all(
        len(each.shape) == computed.ndim
        and all(
            size == known
            for size, known in zip(computed.shape, each.shape, strict=True)
            if isinstance(known, int)
        )
        for each, computed in zip(recorded, expected, strict=False)
        if isinstance(each, torch.Tensor)
    )


def _after_refusal(exported: Any, given: Any, expected: Any, error: Any) -> tuple[str, str]:
    reason = _reason(error)
    if _DECOMPOSE not in str(error):
        return "refused", reason
    try:
        decomposed = exported.run_decompositions()
    except Exception as again:  # an error of any type
        return "failure", f"the hint is to decompose, and torch cannot: {again}; {error}"
    wrong = _difference(_eager(decomposed, given), expected)
    if wrong:
        return "failure", f"decomposition changes numbers, and the hint says otherwise: {wrong}; {error}"
    try:
        found = _run_twice(tosaic.from_exported(decomposed).run, given)
    except tosaic.UnsupportedOp as again:
        return "refused", f"{reason}; decomposed: {_reason(again)}"
    wrong = _difference(found, expected)
    return ("failure", f"decomposed: {wrong}") if wrong else ("decomposed", reason)


def _of_file(exported: Any, given: Sequence[torch.Tensor], expected: Any) -> tuple[str, str]:
    """Compares with the graph that the reader of files makes of the program, without torch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.pt2"
        try:
            torch.export.save(exported, path)
        except Exception:  # torch cannot save all arguments
            return "equal", ""
        try:
            read = read_pt2(path)
        except _core.UnsupportedOp as error:
            if error.parts["where"] != "pt2":
                return "failure", f"the reader of files refuses what the import reads: {error}"
            return ("handed over" if "writes to" in str(error) else "equal"), ""
        except Exception as error:
            return "failure", f"reader of files: {type(error).__name__}: {error}"
        theirs = tosaic.from_exported(torch.export.load(path))
        if read.graph.text() != theirs.graph.text():  # equal for tensors without elements, at most
            wrong = _difference(_run_twice(tosaic.open_program(path).run, given), expected)
            if wrong:
                return "failure", f"the file has another graph: {wrong}\n{read.graph.text()}"
    return "equal", ""


def _eager(exported: Any, given: Sequence[torch.Tensor]) -> list[Any]:
    """Runs a program in torch and restores its buffers, which the run writes."""
    held = [*exported.state_dict.values(), *exported.constants.values()]
    before = [each.clone() for each in held]
    try:
        return _run_twice(exported.module(), given)
    finally:
        for each, value in zip(held, before, strict=True):
            each.copy_(value)


def _run_twice(function: Callable[..., Any], given: Sequence[torch.Tensor]) -> list[Any]:
    """Returns the outputs and the arguments after two calls on equal arguments."""
    found: list[Any] = []
    for _ in range(2):
        arguments = [_copied(each) for each in given]
        outputs = function(*arguments)
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        found += [_array(each) for each in [*outputs, *arguments]]
    return found


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype)
    return made.copy_(tensor)


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.dtype is torch.bfloat16:
            return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
        value = value.numpy()
    return np.array(value)


# Relative and absolute. Errors of rounding in one or two written values are below both. A write changes x to
# 5 - 2 * x, so that a missed one is seen unless each element is close to 5/3.
_TOLERANCE = {2: (2e-2, 0.1), 4: (1e-3, 1e-4), 8: (1e-3, 1e-4), 16: (1e-3, 1e-4)}


def _difference(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """Returns what is wrong. A missed or a needless write is far beyond the tolerance."""
    if len(found) != len(expected):
        return f"{len(found)} values, expected {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours.shape != theirs.shape:
            return f"value {index} has the shape {ours.shape}, expected {theirs.shape}"
        if theirs.dtype != ml_dtypes.bfloat16 and theirs.dtype.kind not in "fc":
            if not np.array_equal(ours, theirs):
                return f"value {index} is wrong"
            continue
        relative, absolute = _TOLERANCE[theirs.dtype.itemsize]
        if theirs.dtype.kind != "c":
            ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.abs(theirs[np.isfinite(theirs)])
        absolute += relative * float(np.median(finite) if finite.size else 0)
        with np.errstate(all="ignore"):
            near = np.isclose(ours, theirs, relative, absolute, equal_nan=True)
        if not near.all():
            return f"value {index} is wrong"
    return ""


def _reason(error: Any) -> str:
    what = str(error.parts["what"]) if hasattr(error, "parts") else str(error)
    words = [("'…'" if word.startswith("'") else word) for word in what.split()]
    return " ".join(words)[:120]
