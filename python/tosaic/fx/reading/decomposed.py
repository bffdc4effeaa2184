"""Reads calls that have no row in the table as the calls that torch decomposes them into.

    fmax(x, y)   ->   ne, ne, maximum, where, where

The call is traced once per target and argument types, over tensors without data, with torch's own
decompositions for every operator that has no row. `OWN` has decompositions that torch lacks or gets wrong. If
there is no decomposition, the `Expansion` has no module, but a reason: a call without a row remains, the call
draws random numbers, a shape depends on data, or a result has another type than torch recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from tosaic.fx.reading.targets import Row, row_for
from tosaic.fx.reading.weights import COMPLEX_OF, TORCH_OF
from tosaic.torch_operators.complex_values import is_known
from tosaic.torch_operators.value import Complex, Ref, tensors_of

_Decomposition = Callable[..., Any]
_aten = torch.ops.aten


@dataclass(frozen=True)
class Expansion:
    """The calls of one decomposition: a graph over its tensor arguments, or the reason why there is none."""

    module: GraphModule | None
    reason: str = ""


@dataclass
class Decompositions:
    """The expansions that an import needs; each is traced once."""

    known: dict[Any, Expansion] = field(default_factory=dict)
    mode: FakeTensorMode | None = None

    def find(self, target: Any, values: Sequence[Any], results: Sequence[Any]) -> Expansion:
        """Returns the expansion of a call.

        Parameters
        ----------
        target
            The operator overload.
        values : sequence
            All arguments in the order of the schema, with `Ref` in place of tensors.
        results : sequence
            Per result, its recorded dtype and shape; None if it is not a tensor or is not used.
        """
        overload = functional_overload(
            target if isinstance(target, torch._ops.OpOverload) else getattr(target, "_op", None)
        )
        if not isinstance(overload, torch._ops.OpOverload) or overload.namespace not in ("aten", "prims"):
            return Expansion(None, "it is no operator of torch's aten namespace")
        key = (overload, _key(values), _key(results))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._expand(overload, values, results)
        return found

    def _expand(self, overload: Any, values: Sequence[Any], results: Sequence[Any]) -> Expansion:
        if is_random(overload):
            return Expansion(None, "it draws random numbers")
        if self.mode is None:
            self.mode = FakeTensorMode()
        try:
            module = _trace(overload, values, self.mode)
        except MemoryError:
            raise
        except Exception as error:  # errors of many types; the call becomes opaque
            return Expansion(None, f"torch cannot trace it without data ({type(error).__name__})")
        if any(_writes(node) for node in module.graph.nodes):
            return Expansion(None, "it writes to its operands")
        left_over = _left_over(module, overload)
        if left_over:
            return Expansion(None, f"torch takes it apart into {left_over}, which has no counterpart here")
        types = _result_types(module)
        wanted = [None if used is None else made for made, used in zip(types, results, strict=False)]
        if len(types) != len(results) or wanted != list(results):
            return Expansion(None, "its decomposition gives another type than torch recorded")
        return Expansion(module)


def is_random(overload: Any) -> bool:
    """True if a call draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(overload, "tags", ())


def functional_overload(target: Any) -> Any:
    """Returns the overload without side effect (``xlogy`` for ``xlogy_``), or else the target itself."""
    schema = getattr(target, "_schema", None)
    name = getattr(getattr(target, "overloadpacket", None), "__name__", "")
    if schema is None or not schema.is_mutable or not name.endswith("_"):
        return target
    packet = getattr(_aten, name.removesuffix("_"), None)
    return getattr(packet, target._overloadname, target) if packet is not None else target


def _key(value: Any) -> Any:
    if isinstance(value, Ref | Complex):
        return ("tensor", _dtype_of(value), _shape_of(value))
    if isinstance(value, list | tuple):
        return tuple(_key(item) for item in value)
    return (type(value), repr(value))


def _has_row(overload: Any) -> bool:
    row = row_for(overload)
    return row is not None and _is_known(row)


def _is_known(row: Row) -> bool:
    return row.emit is not None or row.dropped or row.evaluated


@cache
def _rules() -> dict[Any, _Decomposition]:
    """Returns all decompositions, including the decompositions of torch's prims, which lead back to aten."""
    known: dict[Any, _Decomposition] = {}
    for name in torch._prims.__all__:
        aten = getattr(getattr(torch._prims, name, None), "impl_aten", None)
        if aten is not None and hasattr(torch.ops.prims, name):
            known[getattr(torch.ops.prims, name).default] = aten
    known.update(torch._decomp.global_decomposition_table["post_autograd"])
    known.update(OWN)
    return known


@cache
def _table() -> dict[Any, _Decomposition]:
    """Returns the decompositions of the operators that have no row."""
    active = _Active()
    return {
        overload: _guarded(overload, decomposition, active)
        for overload, decomposition in _rules().items()
        if isinstance(overload, torch._ops.OpOverload) and not is_random(overload) and not _has_row(overload)
    }


class _Active(threading.local):
    """The operators that are being decomposed, per thread."""

    def __init__(self) -> None:
        self.overloads: list[Any] = []


def _guarded(overload: Any, decomposition: _Decomposition, active: _Active) -> _Decomposition:
    """Prevents an operator from being decomposed into itself, like a reference that calls its own prim."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if overload in active.overloads:
            return NotImplemented
        active.overloads.append(overload)
        try:
            return decomposition(*args, **kwargs)
        finally:
            active.overloads.pop()

    return guarded


def _trace(overload: Any, values: Sequence[Any], mode: FakeTensorMode) -> GraphModule:
    """Traces the decomposition of one call; placeholders are its tensors, in the order of `tensors_of`."""
    with mode:
        fakes = [torch.empty(_shape_of(v), dtype=_dtype_of(v)) for v in tensors_of(values)]
    by_name = [argument.kwarg_only for argument in overload._schema.arguments]
    names = [argument.name for argument in overload._schema.arguments]

    def call(*tensors: torch.Tensor) -> Any:
        filled = _with_tensors(values, iter(tensors))
        args = [value for value, keyword in zip(filled, by_name, strict=True) if not keyword]
        kwargs = {n: value for n, value, keyword in zip(names, filled, by_name, strict=True) if keyword}
        return overload(*args, **kwargs)

    table = _table()
    if overload not in table and overload in _rules():  # its row does not cover these arguments
        table = {**table, overload: _guarded(overload, _rules()[overload], _Active())}
    with torch.no_grad():
        module = make_fx(call, decomposition_table=table, tracing_mode="fake")(*fakes)
        if any(_writes(node) for node in module.graph.nodes):
            functional = torch.func.functionalize(module, remove="mutations_and_views")
            module = make_fx(functional, decomposition_table=table, tracing_mode="fake")(*fakes)
    module.graph.eliminate_dead_code()
    return module


def _writes(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    return schema is not None and bool(schema.is_mutable)


def _dtype_of(value: Ref | Complex) -> torch.dtype:
    return COMPLEX_OF[TORCH_OF[value.real.dtype]] if isinstance(value, Complex) else TORCH_OF[value.dtype]


def _shape_of(value: Ref | Complex) -> tuple[int, ...]:
    return tuple(value.real.shape if isinstance(value, Complex) else value.shape)


def _with_tensors(value: Any, tensors: Iterator[Any]) -> Any:
    if isinstance(value, Ref | Complex):
        return next(tensors)
    if isinstance(value, list | tuple):
        return [_with_tensors(item, tensors) for item in value]
    return value


def _left_over(module: GraphModule, whole: Any) -> str:
    """Returns the first call that cannot be read, draws random numbers, or calls `whole`; else empty."""
    for node in module.graph.nodes:
        if node.op != "call_function" or getattr(node.target, "__name__", "") == "getitem":
            continue
        if node.target is whole or is_random(node.target) or not _is_read(node):
            return str(node.target)
    return ""


def _is_read(node: Any) -> bool:
    """True if a row can read the call with these operands."""
    row = row_for(node.target)
    recorded = [operand.meta.get("val") for operand in node.all_input_nodes]
    if any(isinstance(value, torch.Tensor) and value.is_complex() for value in recorded):
        return row is not None and is_known(row.name, row.emit)
    return row is not None and _is_known(row)


def _result_types(module: GraphModule) -> list[Any]:
    results = next(node for node in reversed(module.graph.nodes) if node.op == "output").args[0]
    types: list[Any] = []
    for result in results if isinstance(results, list | tuple) else [results]:
        recorded = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
        types.append(None if recorded is None else (recorded.dtype, tuple(recorded.shape)))
    return types


# ---- decompositions that torch lacks or gets wrong ----

OWN: dict[Any, _Decomposition] = {}


def _own(*overloads: Any) -> Callable[[_Decomposition], _Decomposition]:
    def register(decomposition: _Decomposition) -> _Decomposition:
        for overload in overloads:
            OWN[overload] = decomposition
        return decomposition

    return register


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which torch computes: f32 for narrower floats."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@_own(_aten.signbit.default)
def _signbit(x: torch.Tensor) -> torch.Tensor:
    """True also for -0, whose reciprocal is negative."""
    if not x.dtype.is_floating_point:
        return x < 0
    return (x < 0) | ((x == 0) & (torch.reciprocal(x) < 0))


@_own(_aten.fmax.default)
def _fmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """If one operand is NaN, the result is the other one."""
    return torch.where(x != x, y, torch.where(y != y, x, torch.maximum(x, y)))


@_own(_aten.fmin.default)
def _fmin(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(x != x, y, torch.where(y != y, x, torch.minimum(x, y)))


@_own(_aten.round.decimals)
def _round_decimals(x: torch.Tensor, *, decimals: int) -> torch.Tensor:
    """Negative decimals divide before the rounding and multiply after it; other decimals do the opposite."""
    power = 10.0 ** abs(decimals)
    wide = x.to(_wide(x.dtype))
    rounded = torch.round(wide * power) / power if decimals >= 0 else torch.round(wide / power) * power
    return rounded.to(x.dtype)


@_own(_aten.exp2.default)
def _exp2(x: torch.Tensor) -> torch.Tensor:
    return torch.pow(2.0, x)


@_own(_aten.logcumsumexp.default)
def _logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Shifts each prefix by its own maximum: position i of the result reduces row i of a triangle."""
    if x.dim() == 0:
        return x.clone()
    rows = x.to(_wide(x.dtype)).movedim(dim, -1)
    n = rows.shape[-1]
    outside = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
    prefixes = rows.unsqueeze(-2).expand(*rows.shape, n).masked_fill(outside, float("-inf"))
    return torch.logsumexp(prefixes, -1).movedim(-1, dim).to(x.dtype)


@_own(_aten._cdist_forward.default)
def _cdist(x: torch.Tensor, y: torch.Tensor, p: float, _mode: int | None) -> torch.Tensor:
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    norm: torch.Tensor = torch.linalg.vector_norm(difference, p, -1)
    return norm


@_own(_aten._euclidean_dist.default)
def _euclidean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = _cdist(x, y, 2, None)
    return norm


@_own(_aten._trilinear.default)
def _trilinear(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    _unroll: int = 1,
) -> torch.Tensor:
    """Multiplies the operands, broadcast over the axes that they lack, and sums the axes `sumdim`."""
    for axis in expand1:
        a = a.unsqueeze(axis)
    for axis in expand2:
        b = b.unsqueeze(axis)
    for axis in expand3:
        c = c.unsqueeze(axis)
    return (a * b * c).sum(list(sumdim))


@_own(_aten.addbmm.default)
def _addbmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    rows = a.transpose(0, 1).reshape(a.shape[1], -1)
    return torch.addmm(
        x.expand(a.shape[1], b.shape[2]), rows, b.reshape(-1, b.shape[2]), beta=beta, alpha=alpha
    )


@_own(_aten.multilabel_margin_loss_forward.default)
def _multilabel_margin(
    x: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The listed classes of a row are before its first -1; each is compared with every class not listed."""
    rows = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    classes = target.reshape(rows.shape)
    listed = (classes < 0).cumsum(1) == 0
    chosen = torch.where(listed, classes, 0)
    one_hot = chosen.unsqueeze(-1) == torch.arange(rows.shape[1], device=x.device)
    is_target = (one_hot & listed.unsqueeze(-1)).any(1)
    margin = 1 - rows.gather(1, chosen).unsqueeze(-1) + rows.unsqueeze(1)
    counted = listed.unsqueeze(-1) & ~is_target.unsqueeze(1)
    losses = torch.where(counted, margin.clamp_min(0), 0).sum((1, 2)) / rows.shape[1]
    loss = (
        losses.reshape(x.shape[:-1]) if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()
    )
    return loss, is_target.to(x.dtype).reshape(target.shape)


@_own(_aten.conv_tbc.default)
def _conv_tbc(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, pad: int = 0) -> torch.Tensor:
    """Convolves `x` of shape (steps, batch, channels) with a weight of shape (width, in, out)."""
    y: torch.Tensor = _aten.convolution(
        x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, [1], [pad], [1], False, [0], 1
    )
    return y.permute(2, 0, 1)


@_own(_aten._pdist_forward.default)
def _pdist(x: torch.Tensor, p: float = 2) -> torch.Tensor:
    rows, columns = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    norm: torch.Tensor = torch.linalg.vector_norm(x[rows] - x[columns], p, -1)
    return norm


@_own(_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default)
def _embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    _scale: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, ...]:
    """An index is in the last bag that starts at or before it; a membership matrix sums the bags."""
    starts = offsets[:-1] if include_last_offset else offsets
    places = torch.arange(indices.shape[0], device=indices.device)
    bag = (places.unsqueeze(0) >= starts.unsqueeze(1)).sum(0) - 1
    bags = torch.arange(starts.shape[0], device=indices.device)
    member = (bag.unsqueeze(0) == bags.unsqueeze(1)) & (indices != padding_idx).unsqueeze(0)
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    count = member.sum(1, keepdim=True)
    if mode == 2:
        held = torch.where(member.unsqueeze(2), rows.unsqueeze(0), float("-inf")).amax(1)
        out = torch.where(count > 0, held, 0.0)
    else:
        out = member.to(rows.dtype) @ rows
        out = out / count.clamp_min(1).to(rows.dtype) if mode == 1 else out
    return out, bag, count, count  # the last three are read by gradients only


@_own(_aten.fractional_max_pool2d.default, _aten.fractional_max_pool3d.default)
def _fractional_max_pool(
    x: torch.Tensor, kernel: Sequence[int], output: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the maximum of each window and its flat position; `samples` place the starts of the windows.

    The windows are torch's (after Graham, "Fractional Max-Pooling", 2014). With alpha = (side - width)
    / (windows - 1), window i of an axis starts at int((i + u) alpha) - int(u alpha), and the last window at
    side - width. For two axes, the last axis of the samples (batch, channels, axes) is in reverse order.
    """
    axes = len(output)
    sides = x.shape[-axes:]
    batch = x if x.dim() == axes + 2 else x.unsqueeze(0)
    windows = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=x.device)  # batch, channels, windows, taps
    for axis, (side, width, count) in enumerate(zip(sides, kernel, output, strict=True)):
        u = samples[:, :, axes - 1 - axis if axes == 2 else axis, None].clamp(0, 1)
        steps = torch.arange(count, device=x.device)
        alpha = (side - width) / max(count - 1, 1)
        starts = ((steps + u) * alpha).to(torch.int64) - (u * alpha).to(torch.int64)
        starts = torch.where(steps == count - 1, side - width, starts)
        taps = starts.unsqueeze(-1) + torch.arange(width, device=x.device)
        windows = windows[:, :, :, None, :, None] * side + taps[:, :, None, :, None, :]
        windows = windows.flatten(4).flatten(2, 3)
    values = batch.flatten(2).gather(2, windows.flatten(2)).reshape(windows.shape)
    largest, which = values.max(-1)
    where = windows.gather(-1, which.unsqueeze(-1)).squeeze(-1)
    return largest.reshape(*x.shape[:-axes], *output), where.reshape(*x.shape[:-axes], *output)


@_own(_aten._grouped_mm.default)
def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiplies groups of matrices. `offs` cuts the contracted axis, or an axis of one operand.

    Every group is multiplied with all rows, and a mask selects the rows of the group, so that no shape
    depends on the offsets.
    """
    if offs is None:
        product = torch.bmm(a, b)
    else:
        length = a.shape[-1] if a.dim() == b.dim() else a.shape[0] if a.dim() == 2 else b.shape[-1]
        ends = offs.unsqueeze(1)
        starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
        steps = torch.arange(length, device=a.device)
        member = (steps >= starts) & (steps < ends)  # groups, length
        if a.dim() == b.dim():
            product = torch.bmm(
                torch.where(member.unsqueeze(1), a, 0), torch.where(member.unsqueeze(2), b, 0)
            )
        else:
            axis = 2 if a.dim() == 2 else 1
            product = torch.where(member.unsqueeze(axis), torch.matmul(a, b), 0).sum(0)
    if bias is not None:
        product = product + bias
    return product if out_dtype is None else product.to(out_dtype)
