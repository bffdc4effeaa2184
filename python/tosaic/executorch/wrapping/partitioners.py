"""Wraps partitioners of ExecuTorch, to choose boundaries and memory orders of delegates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from tosaic.base.options import checked, refusal, whole_number

if TYPE_CHECKING:
    from tosaic.executorch.wrapping.declared_orders import BorderOrders, Declared
    from tosaic.executorch.wrapping.delegate_orders import OrderConversions
    from tosaic.executorch.wrapping.edge_layouts import LayoutPass
    from tosaic.executorch.wrapping.outside import Outside
    from tosaic.executorch.wrapping.wrapped_partitioner import CombinedPartitioner, WrappedPartitioner

_WHERE = "wrap_partitioner"
Ports = Literal["all"] | Sequence[str | int] | None


@checked
def wrap_partitioner(
    inner: Any,
    *,
    quantized_inputs: Ports = None,
    quantized_outputs: Ports = None,
    host_ops: Sequence[Any] = (),
    integer_only: bool | None = None,
    orders: Any = None,
) -> WrappedPartitioner:
    """Returns a partitioner that runs `inner`, and then removes the tags of nodes that stay on the host.

    These are the quantize and dequantize nodes of chosen inputs and outputs, and chosen operators. A node
    that `inner` does not tag gets no tag.

    Parameters
    ----------
    inner : executorch.exir.backend.partitioner.Partitioner
        Any partitioner of ExecuTorch, also one that this function returned.
    quantized_inputs, quantized_outputs : None, "all" or sequence of str or int
        User inputs whose quantize nodes stay outside of delegates, and user outputs whose dequantize nodes
        do: by path, by name, or by index among the user's tensors. Layout operators between them stay
        outside, too. ``"all"``: all that are quantized. `tosaic.extract_io_quant` makes them integers
        afterwards.
    host_ops : sequence
        Operators that stay outside of delegates, each with the dequantize nodes before it and the quantize
        nodes after it: operators of torch, edge operators, or names. ``"grid_sampler_2d"`` means
        all overloads of ``aten.grid_sampler_2d``. They are not decomposed.
    integer_only : bool, optional
        Whether the backend has no floats. Then no float tensor enters or leaves a delegate. Default: as the
        TOSA specification in the compile specs says, and False for backends without one.
    orders : None, str, tuple of int or mapping
        The memory order of the tensors that enter and leave delegates. ``"contiguous"``; ``"channels_last"``,
        for tensors of rank 4 other than grids of samplers; a dim order, for all tensors of its rank; or
        ``"any"``, for a backend that computes in any order, so that nothing is converted. ExecuTorch can
        convert to contiguous and channels last only. ``{"inputs": ..., "outputs": ...}`` has for each side an
        order, None, or a mapping by tensor: by path or index of the user's input (output), or by name of the
        node that makes the tensor, with ``"*"`` for all others. None: the order that the program has.
        `order_conversions` makes the conversions.

    Returns
    -------
    WrappedPartitioner
        For ``to_edge_transform_and_lower``, which also copies dequantize nodes for outputs and host ops.
        With ``to_edge`` and ``to_backend``, a dequantize node that other nodes also read stays outside of
        delegates for all its readers.

    Raises
    ------
    InvalidGraph
        `inner` is no partitioner, an option has another form, or there is no such operator. While a program
        is lowered: an input or output does not exist, or the program does not call an operator of
        `host_ops`.
    QuantMismatch
        While a program is lowered: an input or output that is named is not quantized.
    LayoutMismatch
        While a program is lowered: a tensor enters or leaves a delegate in another order than `orders` says.

    Notes
    -----
    The remaining nodes of a tag become as few groups as possible such that the delegates of all tags can run
    one after another. Groups that no longer compute anything run on the host.

    Examples
    --------
    >>> partitioner = tosaic.executorch.wrap_partitioner(  # doctest: +SKIP
    ...     VgfPartitioner(VgfCompileSpec("TOSA-1.0+FP+INT")),
    ...     quantized_inputs=["image"],
    ...     quantized_outputs="all",
    ...     host_ops=["grid_sampler_2d"],
    ... )
    >>> edge = to_edge_transform_and_lower(exported, partitioner=[partitioner])  # doctest: +SKIP
    """
    from tosaic.executorch.wrapping.wrapped_partitioner import WrappedPartitioner, require_partitioner

    require_partitioner(_WHERE, "inner", inner)
    if integer_only not in (None, True, False):
        raise refusal(_WHERE, "integer_only", "None, True or False", integer_only)
    outside = read_outside(_WHERE, quantized_inputs, quantized_outputs, host_ops)
    return WrappedPartitioner(inner, outside, integer_only, _read_orders(orders))


def read_outside(where: str, quantized_inputs: Any, quantized_outputs: Any, host_ops: Any) -> Outside:
    """Reads the options that name nodes outside of delegates: see `wrap_partitioner`.

    Raises
    ------
    InvalidGraph
        An option has another form, or there is no such operator.
    """
    from tosaic.executorch.wrapping.host_operators import host_operators
    from tosaic.executorch.wrapping.outside import Outside

    if isinstance(host_ops, str) or not isinstance(host_ops, Sequence | set | frozenset):
        raise refusal(where, "host_ops", "a sequence of operators or of their names", host_ops)
    return Outside(
        where,
        _ports(where, "quantized_inputs", quantized_inputs),
        _ports(where, "quantized_outputs", quantized_outputs),
        host_operators(where, host_ops),
    )


@checked
def order_conversions(partitioners: Sequence[Any]) -> list[OrderConversions]:
    """Returns the passes that convert tensors to the orders that wrapped partitioners declare.

    A conversion is inserted outside of a delegate if a tensor enters it, or leaves it for the host, in an
    order that its reader does not need. It is ``dim_order_ops._to_dim_order_copy``, which copies at run time.
    Tensors outside of delegates keep their orders.

    Parameters
    ----------
    partitioners : sequence of executorch.exir.backend.partitioner.Partitioner
        The partitioners of the lowering, in the same order.

    Returns
    -------
    list of OrderConversions
        For ``transform_passes`` of ``to_edge_transform_and_lower``. Other passes that change the program
        belong before these.

    Raises
    ------
    InvalidGraph
        An entry is not a partitioner, the list is empty, or no partitioner has `orders`.

    Notes
    -----
    The passes run the partitioners to find the borders, so partitioners run twice. Delegates in the bodies of
    control flow get tensors as the program gives them.

    Examples
    --------
    >>> wrapped = tosaic.executorch.wrap_partitioner(inner, orders="channels_last")  # doctest: +SKIP
    >>> edge = to_edge_transform_and_lower(  # doctest: +SKIP
    ...     exported,
    ...     transform_passes=tosaic.executorch.order_conversions([wrapped]),
    ...     partitioner=[wrapped],
    ... )
    """
    from tosaic.executorch.wrapping.delegate_orders import OrderConversions

    where = "order_conversions"
    members = _members(where, partitioners)
    if all(getattr(each, "orders", None) is None for each in members):
        raise refusal(where, "partitioners", "a partitioner that was wrapped with 'orders'", partitioners)
    return [OrderConversions(members)]


@checked
def combine_partitioners(partitioners: Sequence[Any]) -> list[CombinedPartitioner]:
    """Returns partitioners of several backends for one call of ``to_edge_transform_and_lower``.

    ExecuTorch decomposes the program for one partitioner after another, so an operator that only the second
    partitioner wants whole is already decomposed for the first. Each returned partitioner keeps every
    operator whole that any of them wants whole. Nodes belong to the first partitioner that takes them.

    Parameters
    ----------
    partitioners : sequence of executorch.exir.backend.partitioner.Partitioner
        In the order in which they take nodes. Some, or all, may be wrapped.

    Returns
    -------
    list of CombinedPartitioner
        As many, in the same order.

    Raises
    ------
    InvalidGraph
        An entry is not a partitioner, the list is empty, or a partitioner is listed twice.

    Examples
    --------
    >>> members = [wrapped, XnnpackPartitioner()]  # doctest: +SKIP
    >>> members = tosaic.executorch.combine_partitioners(members)  # doctest: +SKIP
    >>> edge = to_edge_transform_and_lower(exported, partitioner=members)  # doctest: +SKIP
    """
    from tosaic.executorch.wrapping.wrapped_partitioner import CombinedPartitioner

    members = _members("combine_partitioners", partitioners)
    return [CombinedPartitioner(each, members) for each in members]


@checked
def layout_pass(
    *, orders: Any = None, weights: bool = False, objective: Any = "bytes", bind: Any = None
) -> LayoutPass:
    """Returns a pass that plans the dim orders of edge programs and inserts the conversions.

    ExecuTorch's own passes recompute all strides, and get the planned ones: the planned order of a call
    follows from the orders of its operands, also through quantize and dequantize nodes.

    Parameters
    ----------
    orders, weights, objective, bind : optional
        As in `tosaic.fx.apply_layout`.

    Returns
    -------
    LayoutPass
        For ``transform_passes`` of ``to_edge_transform_and_lower``. Its attribute ``applied`` lists the
        `tosaic.fx.AppliedLayout` of each program.

    Examples
    --------
    >>> edge = to_edge_transform_and_lower(  # doctest: +SKIP
    ...     exported,
    ...     transform_passes=[tosaic.executorch.layout_pass(orders={"inputs": "channels_last"})],
    ...     partitioner=[tosaic.executorch.TosaicPartitioner("TOSA-1.0+INT")],
    ... )
    """
    from tosaic.executorch.wrapping.edge_layouts import LayoutPass

    return LayoutPass(orders=orders, weights=weights, objective=objective, bind=bind)


def _members(where: str, partitioners: Any) -> list[Any]:
    from tosaic.executorch.wrapping.wrapped_partitioner import require_partitioner

    if not isinstance(partitioners, list | tuple) or not partitioners:
        raise refusal(where, "partitioners", "a sequence of partitioners, at least one", partitioners)
    for i, each in enumerate(partitioners):
        require_partitioner(where, f"partitioners[{i}]", each)
    if len({id(each) for each in partitioners}) != len(partitioners):
        raise refusal(where, "partitioners", "each partitioner once", partitioners)
    return list(partitioners)


def _read_orders(value: Any) -> BorderOrders | None:
    """Reads the option `orders`."""
    from tosaic.executorch.wrapping.declared_orders import BorderOrders, Declared

    if value is None:
        return None
    if not isinstance(value, Mapping):
        both = _read_order(value)
        return BorderOrders(both, both)
    if not value or not set(value) <= {"inputs", "outputs"}:
        raise refusal(_WHERE, "orders", "'inputs' or 'outputs' as keys", value)
    return BorderOrders(
        **{side: Declared() if each is None else _read_side(each) for side, each in value.items()}
    )


def _read_side(value: Any) -> Declared:
    """Reads the orders of one side: for all tensors, or by tensor."""
    from tosaic.executorch.wrapping.declared_orders import OTHERS, Declared

    if not isinstance(value, Mapping):
        return _read_order(value)
    if not value or not all(map(_is_key, value)):
        raise refusal(_WHERE, "orders", "names or indices of tensors as keys", value)
    read = {key: Declared() if each is None else _read_order(each) for key, each in value.items()}
    others = read.pop(OTHERS, Declared())
    return replace(others, tensors=tuple(read.items()))


def _read_order(value: Any) -> Declared:
    from tosaic.executorch.wrapping.declared_orders import ANY, CHANNELS_LAST, Declared

    if isinstance(value, str) and value == "contiguous":
        return Declared(None)
    if isinstance(value, str) and value == "channels_last":
        return Declared((CHANNELS_LAST,), images=True)
    if isinstance(value, str) and value == ANY:
        return Declared(is_any=True)
    if isinstance(value, tuple | list) and value and all(type(axis) is int for axis in value):
        order = tuple(value)
        if order in (tuple(range(len(order))), CHANNELS_LAST):
            return Declared((order,))
    expected = f"'contiguous', 'channels_last', 'any', (0, 1, ...) or {CHANNELS_LAST}"
    raise refusal(_WHERE, "orders", expected, value)


def _ports(where: str, option: str, wanted: Any) -> Any:
    if wanted is None or (isinstance(wanted, str) and wanted == "all"):
        return wanted
    if isinstance(wanted, tuple | list | set | frozenset) and all(map(_is_key, wanted)):
        return tuple(wanted)
    raise refusal(where, option, "None, 'all', or a sequence of paths, names or indices", wanted)


def _is_key(value: Any) -> bool:
    if isinstance(value, str):
        return True
    try:
        whole_number(value)
    except TypeError:
        return False
    return True
