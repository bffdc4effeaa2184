"""Progress bars for long work, if tqdm is installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

_T = TypeVar("_T")


def with_progress(
    items: Iterable[_T], what: str, *, total: int | None = None, shown: bool = True, unit: str = "sample"
) -> Iterator[_T]:
    """Yields the items, with a progress bar on standard error.

    There is no bar if tqdm is not installed, or if standard error is no terminal. In a notebook the bar is a
    widget.

    Parameters
    ----------
    items : iterable
    what : str
        The name of the work, such as ``calibrate``.
    total : int, optional
        The number of items. Default: the length of `items`, if it has one.
    shown : bool
        False: without a bar.
    unit : str
        The name of one item.
    """
    tqdm = _tqdm() if shown else None
    if tqdm is None:
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    yield from tqdm(items, desc=what, total=total, leave=False, disable=None, unit=unit)


def _tqdm() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets, tqdm warns in notebooks
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm
