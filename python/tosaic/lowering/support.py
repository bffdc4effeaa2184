"""Finds out which dtypes each operator supports, by trying graphs of one operator.

    canonical   for each dtype: inference accepts it; the executor has a kernel for it or runs the operator's
                expansion; the graph lowers to TOSA-1.0 with profile FP, with INT, or only with both
    tosa        for each combination of dtypes in the specification's tables: inference accepts it, a kernel
                runs it, the writer writes it, the reader reads it back, and the checker accepts it for a
                target with its profile or extension and refuses it for a target without

`SAMPLES` has a small graph of each operator. No table in this file lists supported dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.base.dtypes import BITS
from tosaic.base.target import Target

DTYPES = ("bool", "i8", "u8", "i16", "i32", "i64", "f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64")
_EXTENSIONS = {"bf16": ("bf16",), "f8e4m3": ("fp8e4m3",), "f8e5m2": ("fp8e5m2",)}
_ORIGIN = ("", "", "", "", 0)
_CONTROL = ("cf",)
_PROFILES = {"FP": ("FP",), "INT": ("INT",), "FP+INT": ("FP", "INT")}
_PROFILE_OF = {"bf16": "FP", "fp8e4m3": "FP", "fp8e5m2": "FP", "fft": "FP", "int16": "INT"}


@dataclass(frozen=True)
class Sample:
    """A small graph of one operator.

    Attributes
    ----------
    operands : tuple
        One entry per operand: a shape, for an input of the tested dtype; ``(shape, dtype)``, for an input of
        that dtype; None for an absent operand; `Zeros` for a constant.
    attributes : mapping
        Values of the attributes whose defaults have no meaning. ``"?"`` is replaced by the tested dtype.
    extensions : tuple of str
        Extensions that a target needs in addition to a profile, such as ``fft``.
    regions : callable, optional
        Makes the regions for a dtype.
    results : tuple of int
        For operators whose result types are not inferred (control flow, custom operators): for each result,
        the index of the input that has its type.
    before : str
        An operator without operands that must precede this one.
    by_dtype : mapping
        Samples that replace this one, by the first dtype.
    stage : str
        The first stage at which a canonical operator may occur.
    """

    operands: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    extensions: tuple[str, ...] = ()
    regions: Callable[[str], Sequence[_core.Graph]] | None = None
    results: tuple[int, ...] = ()
    before: str = ""
    by_dtype: Mapping[str, Sample] = field(default_factory=dict)
    stage: str = "exported"


@dataclass(frozen=True)
class Zeros:
    """A constant operand of zeros."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """The result of the trials of a canonical operator with a dtype.

    Attributes
    ----------
    op, dtype : str
    inferred, runs : bool
        Whether inference accepts the dtype, and whether the executor runs the operator.
    targets : tuple of str
        Profiles that the operator lowers to: ``FP``, ``INT``, or ``FP+INT`` if it needs both.
    reason : str
        Why the operator does not run or lower: the text of the first error.
    """

    op: str
    dtype: str
    inferred: bool = False
    runs: bool = False
    targets: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Mode:
    """The result of the trials of a TOSA operator with a combination of dtypes.

    Attributes
    ----------
    op : str
    dtypes : tuple of str
        Dtypes of the operands, the results and, if there is one, the accumulator.
    need : str
        Profile or extension of the combination in the specification's tables: ``PRO-FP``, ``EXT-INT16``.
    inferred, runs, written, read, checked : bool
        Whether inference, executor, writer, reader and checker do what the module's docstring says.
    reason : str
        Text of the first error.
    """

    op: str
    dtypes: tuple[str, ...]
    need: str
    inferred: bool = False
    runs: bool = False
    written: bool = False
    read: bool = False
    checked: bool = False
    reason: str = ""

    @property
    def works(self) -> bool:
        """True if all five steps work."""
        return self.inferred and self.runs and self.written and self.read and self.checked


# ---- samples ----


def _region(
    stage: str, *kinds: Any, op: str, operands: Sequence[int], more: Sequence[int] = ()
) -> _core.Graph:
    """Returns a graph of one operator as the body of a branch or loop.

    `kinds` are the shapes and dtypes of the inputs, `operands` the indices of the operator's inputs, and
    `more` the indices of inputs that are returned after the operator's result.
    """
    builder = _core.GraphBuilder("body", stage)
    ids = [builder.add_input(f"x{i}", dtype, shape, f"x{i}") for i, (shape, dtype) in enumerate(kinds)]
    made = builder.add(_ID[op], {}, [ids[i] for i in operands], "made", _ORIGIN, None, None)
    for i, value in enumerate([made, *(ids[j] for j in more)]):
        builder.add_output(value, f"out[{i}]")
    return builder.finish()


def _branches(stage: str, op: str) -> Callable[[str], list[_core.Graph]]:
    return lambda dtype: [_region(stage, ((4,), dtype), op=op, operands=(0, 0)) for _ in range(2)]


def _loop(stage: str, compare: str, change: str) -> Callable[[str], list[_core.Graph]]:
    """Returns regions of the loop ``while compare(x, limit): x = change(x, limit)``."""

    def regions(dtype: str) -> list[_core.Graph]:
        kinds = (((), dtype), ((), dtype))
        condition = _region(stage, *kinds, op=compare, operands=(0, 1))
        return [condition, _region(stage, *kinds, op=change, operands=(0, 1), more=(1,))]

    return regions


_ID = {op.name: op.id for op in _core.ops()}
X, ROW, IMAGE = (2, 4), (4,), (1, 4, 6, 6)
_POOL = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
_VARIABLE = {"name": "state", "shape": ROW}
_TOSA_CONV = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1)}
_CONV = {
    "stride": (1, 1),
    "pad_before": (0, 0),
    "pad_after": (0, 0),
    "dilation": (1, 1),
    "output_padding": (0, 0),
}
_INTEGER_CONV = Sample((IMAGE, ((3, 4, 2, 2), "i8"), None), _CONV, stage="integer")
_RESCALE = Sample((X,), {"dtype": "i8", "multiplier": (1 << 30,), "shift": (33,)}, stage="integer")
_INTEGER_GRID = Sample(
    (IMAGE, ((1, 2, 3, 2), "i8")),
    {
        "grid_low": -128,
        "grid_high": 127,
        "multiplier": (1 << 30, 1 << 30),
        "shift": (20, 20),
        "fraction": (16, 16),
    },
    stage="integer",
)

SAMPLES: dict[str, Sample] = {
    "conv": Sample((IMAGE, (3, 4, 2, 2), None), _CONV),
    "integer_conv": replace(_INTEGER_CONV, by_dtype={"i16": replace(_INTEGER_CONV, extensions=("int16",))}),
    "rescale": replace(_RESCALE, by_dtype={"i16": replace(_RESCALE, extensions=("int16",))}),
    "linear": Sample((X, (3, 4), None)),
    "matmul": Sample((X, (4, 3))),
    "addmm": Sample(((2, 3), X, (4, 3))),
    "baddbmm": Sample(((2, 2, 3), (2, 2, 4), (2, 4, 3))),
    "sdpa": Sample(((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), None)),
    "einsum": Sample((X, (4, 3)), {"equation": "ij,jk->ik"}),
    "clamp": Sample((X,), {"min": 0, "max": 1}),
    "cast": Sample((X,), {"dtype": "f32"}),
    "where": Sample(((X, "bool"), X, X)),
    "lerp": Sample((X, X, X)),
    "addcmul": Sample((X, X, X)),
    "addcdiv": Sample((X, X, X)),
    "prelu": Sample((X, ROW)),
    "glu": Sample((X,), {"axis": 1}),
    "argmax": Sample((X,), {"axis": 1}),
    "argmin": Sample((X,), {"axis": 1}),
    "diff": Sample((X, None, None)),
    "batch_norm": Sample((IMAGE, None, None, ROW, ROW)),
    "layer_norm": Sample((X, ROW, ROW), {"eps": 1e-5}),
    "rms_norm": Sample((X, ROW)),
    "group_norm": Sample((IMAGE, None, None), {"groups": 2}),
    "avg_pool": Sample((IMAGE,), _POOL),
    "max_pool": Sample((IMAGE,), _POOL),
    "adaptive_avg_pool": Sample((IMAGE,), {"shape": (3, 3)}),
    "adaptive_max_pool": Sample((IMAGE,), {"shape": (3, 3)}),
    "resize": Sample((IMAGE,), {"size": (12, 12)}),
    "grid_sample": Sample((IMAGE, (1, 2, 3, 2))),
    "integer_grid_sample": replace(
        _INTEGER_GRID, by_dtype={"i16": replace(_INTEGER_GRID, extensions=("int16",))}
    ),
    "affine_grid": Sample(((1, 2, 3),), {"size": (1, 3, 4, 5)}),
    "reshape": Sample((X,), {"shape": (8,)}),
    "permute": Sample((X,), {"perm": (1, 0)}),
    "expand": Sample((X,), {"shape": (3, 2, 4)}),
    "repeat": Sample((X,), {"shape": (2, 1)}),
    "cat": Sample((X, X)),
    "stack": Sample((X, X)),
    "split": Sample((X,), {"axis": 1, "sizes": (1, 3)}),
    "slice": Sample((X,), {"axis": 1, "start": 1, "end": 3}),
    "flip": Sample((X,), {"axes": (1,)}),
    "pad": Sample((X,), {"before": (1, 0), "after": (0, 1), "value": 0}),
    "gather": Sample((X, ((1, 4), "i64"))),
    "index_select": Sample((X, ((3,), "i64"))),
    "index": Sample((X, ((3,), "i64"))),
    "embedding": Sample((X, ((3,), "i64"))),
    "scatter": Sample((X, ((1, 4), "i64"), (1, 4))),
    "scatter_reduce": Sample((X, ((1, 4), "i64"), (1, 4))),
    "index_put": Sample((X, ROW, ((), "i64"))),
    "slice_scatter": Sample((X, (1, 4)), {"axis": 0, "start": 0, "end": 1}),
    "fft2": Sample(((1, 4, 4), (1, 4, 4)), extensions=("fft",)),
    "rfft2": Sample(((1, 4, 4),), extensions=("fft",)),
    "recurrent": Sample(
        ((3, 1, 2), (1, 1, 2), (1, 1, 2), (8, 2), (8, 2), (8,), (8,)), {"cell": "lstm", "layers": 1}
    ),
    "quantize": Sample((X,), {"scales": (0.5,), "zero_points": (0,)}),
    "dequantize": Sample((X,), {"scales": (0.5,), "zero_points": (0,)}),
    "arange": Sample((), {"end": 4, "dtype": "?"}),
    "full": Sample((), {"shape": X, "value": 1, "dtype": "?"}),
    "cond": Sample(
        (((), "bool"), ROW), extensions=_CONTROL, regions=_branches("exported", "mul"), results=(1,)
    ),
    "while_loop": Sample(
        ((), ()), extensions=_CONTROL, regions=_loop("exported", "gt", "sub"), results=(0, 1)
    ),
    "tosa.avg_pool2d": Sample(((1, 4, 4, 3),), {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0, 0, 0)}),
    "tosa.max_pool2d": Sample(((1, 4, 4, 3),), {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0, 0, 0)}),
    "tosa.conv2d": Sample(((1, 4, 4, 3), (2, 2, 2, 3), (2,)), _TOSA_CONV),
    "tosa.conv3d": Sample(
        ((1, 4, 4, 4, 3), (2, 2, 2, 2, 3), (2,)),
        {"pad": (0, 0, 0, 0, 0, 0), "stride": (1, 1, 1), "dilation": (1, 1, 1)},
    ),
    "tosa.depthwise_conv2d": Sample(((1, 4, 4, 3), (2, 2, 3, 1), (3,)), _TOSA_CONV),
    "tosa.transpose_conv2d": Sample(
        ((1, 4, 4, 3), (2, 2, 2, 3), (2,)), {"out_pad": (0, 0, 0, 0), "stride": (1, 1)}
    ),
    "tosa.fft2d": Sample(((1, 4, 4), (1, 4, 4))),
    "tosa.rfft2d": Sample(((1, 4, 4),)),
    "tosa.matmul": Sample(((1, 2, 4), (1, 4, 3))),
    "tosa.clamp": Sample((X,), {"min_val": 0, "max_val": 1}),
    "tosa.select": Sample((X, X, X)),
    "tosa.pad": Sample((X,), {"before": (1, 0), "after": (0, 1), "value": 0}),
    "tosa.concat": Sample((X, X)),
    "tosa.reshape": Sample((X,), {"shape": (8,)}),
    "tosa.slice": Sample((X,), {"start": (0, 1), "size": (2, 2)}),
    "tosa.tile": Sample((X,), {"shape": (2, 1)}),
    "tosa.transpose": Sample((X,), {"perm": (1, 0)}),
    "tosa.gather": Sample(((1, 4, 3), (1, 2))),
    "tosa.scatter": Sample(((1, 4, 3), (1, 2), (1, 2, 3))),
    "tosa.resize": Sample(((1, 4, 4, 3),), {"scale": (2, 1, 2, 1), "offset": (0, 0), "border": (1, 1)}),
    "tosa.table": Sample((X, Zeros((256,))), by_dtype={"i16": Sample((X, Zeros((513,))))}),
    "tosa.rescale": Sample(
        (X,),
        {"multiplier": (1 << 30,), "shift": (30,)},
        by_dtype={"i48": Sample((X,), {"multiplier": (1 << 14,), "shift": (14,), "scale32": False})},
    ),
    "tosa.custom": Sample((X,), {"operator_name": "any", "domain_name": "any"}, results=(0,)),
    "tosa.cond_if": Sample((((), "bool"), ROW), regions=_branches("tosa", "tosa.add"), results=(1,)),
    "tosa.while_loop": Sample(((), ()), regions=_loop("tosa", "tosa.greater", "tosa.sub"), results=(0, 1)),
    "tosa.variable": Sample((), _VARIABLE),
    "tosa.variable_read": Sample((), _VARIABLE, before="tosa.variable"),
    "tosa.variable_write": Sample((ROW,), _VARIABLE, before="tosa.variable"),
}


def sample_of(op: _core.OpInfo) -> Sample:
    """Returns the sample of an operator.

    By default all operands are matrices, and attributes have their defaults.
    """
    if op.name in SAMPLES:
        return SAMPLES[op.name]
    axes = {"axes": (1,)} if "axes" in op.attributes else {}
    return Sample((X,) * len(op.operands.split()), axes)


def one_op_graph(
    op: _core.OpInfo,
    dtype: str,
    sample: Sample,
    *,
    dtypes: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> _core.Graph:
    """Returns a graph with one node of the operator.

    Operands of the sample without a dtype get `dtypes` one by one, and `dtype` if `dtypes` is exhausted or
    empty. `more` has attributes to be added to the attributes of the sample.

    Raises
    ------
    Error
        Inference refuses the dtypes.
    """
    builder = _core.GraphBuilder("one", "tosa" if op.is_tosa else sample.stage)
    given = iter(dtypes)
    ids = []
    types = []
    for i, operand in enumerate(sample.operands):
        if operand is None:
            ids.append(-1)
            continue
        if isinstance(operand, Zeros):
            ids.append(builder.add_constant(_zeros(operand.shape, next(given, dtype))))
            continue
        shape, own = operand if operand and isinstance(operand[-1], str) else (operand, next(given, dtype))
        ids.append(builder.add_input(f"x{i}", own, shape, f"x{i}"))
        types.append((_core.DTYPES.index(own), shape))
    attributes = {k: dtype if v == "?" else v for k, v in sample.attributes.items()} | dict(more or {})
    if sample.before:
        builder.add(_ID[sample.before], attributes, [], "before", _ORIGIN, None, None)
    if sample.results:
        results = [types[i] for i in sample.results]
        regions = () if sample.regions is None else sample.regions(dtype)
        first = builder.add_many(op.id, attributes, ids, "one", _ORIGIN, results, regions)
    else:
        first = builder.add(op.id, attributes, ids, "one", _ORIGIN, None, None)
    for i in range(_results(builder, first)):
        builder.add_output(first + i, f"out[{i}]")
    return builder.finish()


def _zeros(shape: tuple[int, ...], dtype: str) -> _core.Constant:
    data = np.zeros(8 * math.prod(shape), np.uint8)
    nbytes = math.prod(shape) * BITS[dtype] // 8
    return _core.Constant("zeros", "lifted", dtype, shape, data.ctypes.data, nbytes, data)


def _results(builder: _core.GraphBuilder, first: int) -> int:
    """Returns the number of results of the last node, whose first result is `first`."""
    count = 0
    while True:
        try:
            builder.type(first + count)
        except _core.InternalError:
            return count
        count += 1


# ---- canonical ----


def canonical_cells(op: _core.OpInfo) -> Iterator[Cell]:
    """Yields one cell for each of `DTYPES`."""
    sample = sample_of(op)
    for dtype in DTYPES:
        yield _cell(op, dtype, sample.by_dtype.get(dtype, sample))


def _cell(op: _core.OpInfo, dtype: str, sample: Sample) -> Cell:
    try:
        graph = one_op_graph(op, dtype, sample)
        graph.verify()
    except _core.Error as error:
        return Cell(op.name, dtype, reason=_why(error))
    reason = ""
    runs = True
    try:
        _core.Session(graph)
    except _core.Error as error:
        runs, reason = False, _why(error)
    targets: list[str] = []
    extensions = (*_EXTENSIONS.get(dtype, ()), *sample.extensions)
    of_profile = {_PROFILE_OF[name] for name in extensions if name in _PROFILE_OF}
    for profile, profiles in _PROFILES.items():
        if profile == "FP+INT" and targets:
            break
        if not of_profile <= set(profiles):
            continue  # the extensions exist only with the other profile
        try:
            _core.lower(graph, pipeline=str(Target(profiles, extensions)))
            targets.append(profile)
        except (_core.UnsupportedOp, _core.SpecViolation) as error:
            reason = reason or _why(error)
    return Cell(op.name, dtype, True, runs, tuple(targets), reason)


def _why(error: _core.Error) -> str:
    return error.parts.get("what") or str(error)


# ---- TOSA ----


def tosa_modes(op: _core.OpInfo) -> Iterator[Mode]:
    """Yields one mode for each combination of dtypes; only f32 for operators that accept any tensors."""
    sample = sample_of(op)
    modes = _core.type_modes(op.name, len(sample.operands))
    for dtypes, need in modes or [(("f32",), "")]:
        yield _mode(op, sample.by_dtype.get(dtypes[0], sample), dtypes, need)


def _mode(op: _core.OpInfo, sample: Sample, dtypes: tuple[str, ...], need: str) -> Mode:
    done: dict[str, Any] = {}
    try:
        operands = dtypes[: len(sample.operands)]
        graph = one_op_graph(op, dtypes[0], sample, dtypes=operands, more=_typed(op, dtypes, len(operands)))
        graph.verify()
        done["inferred"] = True
        # A custom operator runs only as a function of the caller.
        functions = {"any.any": lambda x: x} if op.name == "tosa.custom" else {}
        _core.Session(graph, override_ops=functions)
        done["runs"] = True
        data = _core.serialize(graph)
        done["written"] = True
        back = _core.deserialize(data)
        done["read"] = back.nodes[-1].op == op.name
        lacking = _target_without(need)
        done["checked"] = not _core.problems(graph, pipeline=_target_with(need)) and bool(
            not lacking or _core.problems(graph, pipeline=lacking)
        )
    except _core.Error as error:
        return replace(Mode(op.name, dtypes, need, reason=_why(error)), **done)
    return replace(Mode(op.name, dtypes, need), **done)


def _typed(op: _core.OpInfo, dtypes: tuple[str, ...], operands: int) -> dict[str, Any]:
    """Returns the attributes that are dtypes, with the values that the combination needs."""
    more: dict[str, Any] = {}
    if "acc_type" in op.attributes and len(dtypes) > operands + 1:
        more["acc_type"] = dtypes[-1]
    if "dtype" in op.attributes:
        more["dtype"] = dtypes[operands] if len(dtypes) > operands else dtypes[0]
    return more


def _target_with(need: str) -> str:
    """Returns the least target that supports a combination; without `need`, a target that has ``cf``."""
    if not need:
        return "TOSA-1.0+FP+INT+cf"
    wanted = need.replace(" or ", " and ").split(" and ")
    profiles = {name.removeprefix("PRO-") for name in wanted if name.startswith("PRO-")}
    extensions = [_TEXT_OF[name] for name in wanted if name.startswith("EXT-")]
    profiles |= {"FP"} if {"bf16", "fp8e4m3", "fp8e5m2", "fft"} & set(extensions) else set()
    profiles |= {"INT"} if {"int16", "int4", "doubleround", "inexactround"} & set(extensions) else set()
    return str(Target(tuple(sorted(profiles or {"FP"})), tuple(extensions)))


_TEXT_OF = {
    "EXT-INT16": "int16",
    "EXT-INT4": "int4",
    "EXT-BF16": "bf16",
    "EXT-FP8E4M3": "fp8e4m3",
    "EXT-FP8E5M2": "fp8e5m2",
    "EXT-FFT": "fft",
    "EXT-VARIABLE": "variable",
    "EXT-CONTROLFLOW": "cf",
}


def _target_without(need: str) -> str:
    """Returns a target without `need`: the other profile, or both profiles only; empty if there is none."""
    if "EXT-" in need:
        return "TOSA-1.0+FP+INT"
    return "TOSA-1.0+INT" if need == "PRO-FP" else "TOSA-1.0+FP" if need == "PRO-INT" else ""


# ---- together ----

COLUMNS = ("runs", "FP", "INT", "FP+INT")
"""Keys of `support_of`: runs on the executor, lowers to profile FP, lowers to INT, lowers only with both."""


def cells_of(op: _core.OpInfo) -> list[Cell] | list[Mode]:
    """Returns a cell for each dtype of a canonical operator, or a mode for each combination of TOSA's."""
    return list(tosa_modes(op)) if op.is_tosa else list(canonical_cells(op))


def support_of(op: _core.OpInfo) -> dict[str, tuple[str, ...]]:
    """Returns the dtypes that work for each of `COLUMNS`; of the first operand for TOSA operators."""
    found: dict[str, list[str]] = {column: [] for column in COLUMNS}
    for cell in cells_of(op):
        if isinstance(cell, Cell):
            dtype, runs, targets = cell.dtype, cell.runs, cell.targets
        else:
            dtype, runs = cell.dtypes[0] if cell.dtypes else "any", cell.works
            profiles = cell.need if "PRO-" in cell.need else _target_with(cell.need)
            targets = tuple(profile for profile in ("FP", "INT") if profile in profiles)
        for column in (*(("runs",) if runs else ()), *(targets if runs or isinstance(cell, Cell) else ())):
            if dtype not in found[column]:
                found[column].append(dtype)
    return {column: tuple(dtypes) for column, dtypes in found.items()}
