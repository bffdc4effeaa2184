"""Reads the option `orders`: the memory orders that a caller declares for graph inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tosaic import _core
from tosaic.base.dim_order import channels_last, is_of_format
from tosaic.base.options import invalid, is_mapping, layout_mismatch, shown, whole_number
from tosaic.ports.port_names import known_names, near_names, position_of

FORMS = ("traced", "contiguous", "channels_last", "nhwc")
Form: TypeAlias = str | Sequence[int]
_Order: TypeAlias = tuple[tuple[int, ...], bool]


def boundary_orders(
    graph: _core.Graph,
    orders: Mapping[str, Form | Mapping[str | int, Form]] | None,
    *,
    views_as_traced: bool = True,
) -> dict[str, list[_Order | None] | None]:
    """Reads the option `orders` of a public function for the inputs and outputs of a graph.

    Parameters
    ----------
    graph : Graph
    orders : mapping or None
        See `tosaic.lower`.
    views_as_traced : bool
        What happens to a user output that `orders` does not name and whose traced order belongs to no memory
        format. Such an order shows which view torch made, not which order a caller wants. If True, the output
        is as traced. If False, it is row-major.

    Returns
    -------
    dict
        For ``inputs`` and for ``outputs`` a list by index, or None if all are as traced. An entry of the list
        is None (as traced) or a pair: the logical axes, outermost first, and whether arrays have the physical
        shape.

    Raises
    ------
    InvalidGraph
        An unknown side, order, name or index, an input or output that is named twice, or an order that does
        not fit the rank.
    LayoutMismatch
        An input that `orders` names is the grid of a grid sampler, and its coordinates, the last axis, would
        not be innermost. An order for all inputs does not apply to grids and states.
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
    """Returns the orders of outputs, where the new value of an input has the order of that input."""
    sources = [port.mutated_input for port in graph.outputs]
    if all(source is None for source in sources) or (inputs is None and outputs is None):
        return outputs
    out = list(outputs or [None] * len(sources))
    for i, source in enumerate(sources):
        if source is not None:
            out[i] = None if inputs is None else inputs[source]
    return out


def require_sides(orders: Any) -> None:
    """Raises InvalidGraph unless `orders` is None or a mapping with keys ``inputs`` and ``outputs`` only."""
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
        if port.kind == "user" and i not in named and not is_of_format(port.shape, port.dim_order):
            out[i] = tuple(range(len(port.shape))), False
    return out


def _is_meant(shape: Sequence[int]) -> bool:
    """True if an order for all tensors of a side applies to a tensor of this shape."""
    return 3 <= len(shape) <= 5


def _by_index(
    side: str, ports: Sequence[Any], wanted: Form | Mapping[str | int, Form], is_grid: Sequence[bool]
) -> list[_Order | None]:
    shapes = [tuple(port.shape) for port in ports]
    if not isinstance(wanted, Mapping):
        _require_form(side, wanted)
        return [
            _order(wanted, shape, f"all {side}")
            if port.kind != "state" and _is_meant(shape) and not grid
            else None
            for port, shape, grid in zip(ports, shapes, is_grid, strict=True)
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
            raise layout_mismatch(
                "orders",
                f"{side[:-1]} {key!r} is the grid of a grid sampler",
                expected="its coordinates, the last axis, innermost",
                got=repr(form),
            )
    return out


def _require_form(side: str, wanted: Any) -> None:
    """Raises InvalidGraph for a malformed order for all tensors, even if it applies to no tensor."""
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
    """Returns the index of a user input (output) among all inputs (outputs) of the graph.

    Parameters
    ----------
    key : str or int
        A path, the name of a value, or an index among the user's inputs (outputs) alone.

    Raises
    ------
    InvalidGraph
        `key` names no user input (output).
    """
    user = [i for i, port in enumerate(ports) if port.kind == "user"]
    named = [(ports[i].path, ports[i].value.name) for i in user]
    position = position_of(key, named)
    if position is None:
        raise _refusal(f"no such entry of {side}", known_names(named), shown(key), near_names(key, named))
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


def _refusal(what: str, expected: str, got: str, hint: str = "") -> Exception:
    return invalid("lower", what, expected=expected, got=got, hint=hint)
