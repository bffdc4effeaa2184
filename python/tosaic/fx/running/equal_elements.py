"""Calls of torch whose result is unspecified for equal elements, replaced by tosaic's choice.

    topk(x, k)      ->   the first k of a stable sort
    median(x, dim)  ->   the value of torch, and the position that a stable sort has in the middle

Torch does not specify which of several equal elements comes first; its choice depends on the size and the
CPU. Here the element with the lowest position comes first. The results have the strides of torch's results,
because later views depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten
_Call = Callable[..., Any]


def first_of_equal(target: Any) -> Any:
    """Returns a function for an overload that takes equal elements in order of their positions, or None."""
    return _FORMS.get(target, target)


def _order(x: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    order: torch.Tensor = torch.sort(x, dim=dim, descending=descending, stable=True)[1]
    return order


def _part(x: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    return x.narrow(dim, start, length).contiguous() if x.dim() else x


def _topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    values, order = torch.sort(x, dim=dim, descending=largest, stable=True)
    return _part(values, dim, 0, k), _part(order, dim, 0, k)


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    values, order = torch.sort(x, dim=dim, descending=descending, stable=True)
    return values, order


def _at(x: torch.Tensor, dim: int, order: torch.Tensor) -> torch.Tensor:
    return x.gather(dim, order) if x.dim() else x.clone()


def _without(order: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
    return order if keepdim or not order.dim() else order.squeeze(dim)


def _kthvalue(
    x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    at = _part(_order(x, dim), dim, k - 1, 1)
    values = _at(x, dim, at)
    return _without(values, dim, keepdim), _without(at, dim, keepdim)


def _median(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    last = (x.shape[dim] if x.dim() else 1) - 1
    at = _part(_order(x, dim), dim, last // 2, 1)
    if x.is_floating_point() and x.dim():
        nan = x.isnan()
        at = torch.where(nan.any(dim, keepdim=True), nan.int().argmax(dim, keepdim=True), at)
    values = _at(x, dim, at)
    return _without(values, dim, keepdim), _without(at, dim, keepdim)


def _nanmedian(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    if not x.is_floating_point() or not x.dim():
        return _median(x, dim, keepdim)
    rest = (x.shape[dim] - 1 - x.isnan().sum(dim, keepdim=True)).clamp(min=0)
    at = _order(x, dim).gather(dim, rest // 2)
    return _without(x.gather(dim, at), dim, keepdim), _without(at, dim, keepdim)


_FORMS: dict[Any, _Call] = {
    _aten.topk.default: _topk,
    _aten.sort.default: _sort,
    _aten.argsort.default: _order,
    _aten.kthvalue.default: _kthvalue,
    _aten.median.dim: _median,
    _aten.nanmedian.dim: _nanmedian,
}
