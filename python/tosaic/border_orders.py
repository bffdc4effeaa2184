"""How arrays lie at the border of a program, as a caller declares it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tosaic import _core
from tosaic.dim_order import channels_last, is_same_order, orders_of_formats
from tosaic.options import is_mapping, shown, whole_number
from tosaic.port_names import known_names, position_of

__all__ = ["FORMS", "Form", "border_orders", "index_of", "require_sides"]

FORMS = ("traced", "contiguous", "channels_last", "nhwc")
Form: TypeAlias = str | Sequence[int]
_Order: TypeAlias = tuple[tuple[int, ...], bool]


def border_orders(
    graph: _core.Graph,
    orders: Mapping[str, Form | Mapping[str | int, Form]] | None,
    *,
    views_as_traced: bool = True,
) -> dict[str, list[_Order | None] | None]:
    """By side and index, the order of the axes and whether arrays carry the physical shape; None: as traced.

    Parameters
    ----------
    views_as_traced : bool
        Whether outputs that `orders` does not name are as traced although their order is that of no memory
        format. Such an order tells what torch made a view of, not how somebody wants it; else they are
        row-major.

    Raises
    ------
    InvalidGraph
        An unknown entry, form, name or index, an entry that is named twice, or an order that does not fit the
        rank.
    LayoutMismatch
        The coordinates of a grid sampler, named by themselves, would not lie innermost. An order for all
        inputs leaves them out.
    """
    sides: dict[str, Sequence[Any]] = {"inputs": graph.inputs, "outputs": graph.outputs}
    require_sides(orders)
    out: dict[str, list[_Order | None] | None] = {}
    for side, ports in sides.items():
        wanted = (orders or {}).get(side)
        if wanted is None:
            out[side] = None
            continue
        is_grid = _core.carries_grid(graph) if side == "inputs" else [False] * len(ports)
        out[side] = _by_index(side, ports, wanted, is_grid)
    if not views_as_traced:
        out["outputs"] = _with_views_row_major(graph.outputs, (orders or {}).get("outputs"), out["outputs"])
    out["outputs"] = _with_new_values_as_inputs(graph, out["inputs"], out["outputs"])
    return out


def _with_new_values_as_inputs(
    graph: _core.Graph, inputs: list[_Order | None] | None, outputs: list[_Order | None] | None
) -> list[_Order | None] | None:
    """The new value of an input that the program writes lies as the input does, whatever outputs are to."""
    sources = [port.mutated_input for port in graph.outputs]
    if all(source is None for source in sources) or (inputs is None and outputs is None):
        return outputs
    out = list(outputs or [None] * len(sources))
    for i, source in enumerate(sources):
        if source is not None:
            out[i] = None if inputs is None else inputs[source]
    return out


def require_sides(orders: Any) -> None:
    """Refuses what is no mapping of ``inputs`` and ``outputs``, or None."""
    if orders is None:
        return
    if not is_mapping(orders):
        raise _refusal("'orders' is no mapping", "entries 'inputs' and 'outputs'", shown(orders))
    for key in orders:
        if key not in ("inputs", "outputs"):
            raise _refusal(f"unknown entry of 'orders': {key!r}", "'inputs' and 'outputs'", shown(orders))


def _with_views_row_major(
    ports: Sequence[Any], wanted: Form | Mapping[str | int, Form] | None, orders: list[_Order | None] | None
) -> list[_Order | None]:
    if isinstance(wanted, Mapping):
        named = {index_of("outputs", ports, key) for key in wanted}
    else:
        named = {i for i, port in enumerate(ports) if wanted is not None and _is_meant(port.shape)}
    out = list(orders or [None] * len(ports))
    for i, port in enumerate(ports):
        has_format = any(
            is_same_order(port.shape, order, port.dim_order) for order in orders_of_formats(len(port.shape))
        )
        if port.kind == "user" and i not in named and not has_format:
            out[i] = tuple(range(len(port.shape))), False
    return out


def _is_meant(shape: Sequence[int]) -> bool:
    """Whether a form for all tensors means one of this shape."""
    return 3 <= len(shape) <= 5


def _by_index(
    side: str, ports: Sequence[Any], wanted: Form | Mapping[str | int, Form], is_grid: Sequence[bool]
) -> list[_Order | None]:
    shapes = [tuple(port.shape) for port in ports]
    if not isinstance(wanted, Mapping):
        _require_form(side, wanted)
        return [
            _order(wanted, shape, f"all {side}") if _is_meant(shape) and not grid else None
            for shape, grid in zip(shapes, is_grid, strict=True)
        ]
    out: list[_Order | None] = [None] * len(shapes)
    named: dict[int, str | int] = {}
    for key, form in wanted.items():
        index = index_of(side, ports, key)
        if index in named:
            raise _refusal(
                f"one entry of {side} is named twice", "one order each", f"{named[index]!r} and {key!r}"
            )
        named[index] = key
        order = out[index] = _order(form, shapes[index], f"{side[:-1]} {key!r}")
        if is_grid[index] and order is not None and order[0][-1] != len(shapes[index]) - 1:
            raise _core.make_error(
                _core.LayoutMismatch,
                where="orders",
                what=f"{side[:-1]} {key!r} is the grid of a grid sampler",
                expected="its coordinates, the last axis, innermost",
                got=repr(form),
            )
    return out


def _require_form(side: str, wanted: Any) -> None:
    """Refuses what is no order of anything, though no tensor may be meant."""
    if not isinstance(wanted, str) and hasattr(wanted, "__len__"):
        _order(wanted, (1,) * len(wanted), f"all {side}")
        if not 3 <= len(wanted) <= 5:
            raise _refusal(
                f"the order of all {side} is none of their axes",
                "3 to 5 axes, which tensors have that are meant by no name",
                shown(wanted),
            )
    else:
        _order(wanted, (1, 1, 1), f"all {side}")


def index_of(side: str, ports: Sequence[Any], key: str | int) -> int:
    """The position of a user input or output among all of its side, by index, path or name."""
    user = [i for i, port in enumerate(ports) if port.kind == "user"]
    named = [(ports[i].path, ports[i].value.name) for i in user]
    position = position_of(key, named)
    if position is None:
        raise _refusal(f"no such entry of {side}", known_names(named), shown(key))
    return user[position]


def _order(form: Form, shape: tuple[int, ...], who: str) -> _Order | None:
    rank = len(shape)
    if isinstance(form, str):
        if form not in FORMS:
            raise _unknown(form, who)
        if form == "traced":
            return None
        if form == "contiguous" or rank < 3:
            return tuple(range(rank)), False
        return channels_last(rank), form == "nhwc"
    try:
        axes = tuple(map(whole_number, form))
    except TypeError:
        raise _unknown(form, who) from None
    if sorted(axes) != list(range(rank)):
        raise _refusal(
            f"the order of {who} is none of its axes", f"a permutation of 0 to {rank - 1}", repr(form)
        )
    return axes, False


def _unknown(form: Any, who: str) -> Exception:
    return _refusal(f"unknown order of {who}", f"one of {', '.join(FORMS)}, or a dim order", shown(form))


def _refusal(what: str, expected: str, got: str) -> Exception:
    return _core.make_error(_core.InvalidGraph, where="lower", what=what, expected=expected, got=got)
