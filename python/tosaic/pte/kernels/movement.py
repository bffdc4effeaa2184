"""Kernels that move elements, and kernels that create elements."""

from __future__ import annotations

from typing import Any

from tosaic import _core
from tosaic.program.node_graph import graph_of_node
from tosaic.pte.host import Held, Host
from tosaic.pte.kernels.table import Operands, Results, add_kernel, result, row

add_kernel("repeat", "aten::repeat.out", "shape")
add_kernel("select", "aten::select_copy.int_out", "axis", "index")
add_kernel("slice", "aten::slice_copy.Tensor_out", "axis", "start", "end", "step")
add_kernel("slice_scatter", "aten::slice_scatter.out", "axis", "start", "end", "step")
add_kernel("flip", "aten::flip.out", "axes")
add_kernel("tril", "aten::tril.out", "diagonal")


@row("reshape")
def _reshape(host: Host, node: _core.Node, operands: Operands) -> Results:
    return host.reshape(operands[0], node.results[0].shape)


@row("clone")
def _clone(_: Host, __: _core.Node, operands: Operands) -> Results:
    """Returns the operand: the memory plan keeps its bytes as long as needed, so no copy is necessary."""
    return [operands[0]]


@row("permute")
def _permute(host: Host, node: _core.Node, operands: Operands) -> Results:
    return host.permute(operands[0], node.attrs["perm"])


@row("expand")
def _expand(host: Host, node: _core.Node, operands: Operands) -> Results:
    return result(host, node, "aten::expand_copy.out", [*operands, list(node.attrs["shape"]), False])


@row("cat", "stack")
def _cat(host: Host, node: _core.Node, operands: Operands) -> Results:
    dtype = node.results[0].dtype
    same = [host.cast(each, dtype) for each in operands]
    return result(host, node, f"aten::{node.op}.out", [same, node.attrs["axis"]])


@row("split", "unbind")
def _split(host: Host, node: _core.Node, operands: Operands) -> Results:
    made = [host.new(value.dtype, value.shape) for value in node.results]
    if node.op == "split":
        kernel, sizes = "aten::split_with_sizes_copy.out", [list(node.attrs["sizes"])]
    else:
        kernel, sizes = "aten::unbind_copy.int_out", []
    host.write(kernel, [*operands, *sizes, node.attrs["axis"]], made, listed=True)
    return made


@row("pad")
def _pad(host: Host, node: _core.Node, operands: Operands) -> Results:
    """Pads; the kernel lists the pads of the last axis first."""
    a, (x,) = node.attrs, operands
    pads = [(before, after) for before, after in zip(a["before"], a["after"], strict=True)]
    if a["mode"] == "constant":
        x = _cropped(host, x, pads)
        pads = [(max(before, 0), max(after, 0)) for before, after in pads]
        flat = [n for pad in reversed(pads) for n in pad]
        return result(host, node, "aten::constant_pad_nd.out", [x, flat, a["value"]])
    if a["mode"] == "circular":
        return _circular(host, x, pads)
    name = {"reflect": "reflection", "replicate": "replication"}[a["mode"]]
    first = next((axis for axis, pad in enumerate(pads) if any(pad)), x.rank - 1)
    spatial = x.rank - first
    if spatial > 3:
        return None
    flat = [n for pad in reversed(pads[first:]) for n in pad]
    rank = spatial + 2  # batch, channels, spatial axes
    wide = host.reshape(x, _with_rank(x.shape, first, rank))
    made = host.call(
        f"aten::{name}_pad{spatial}d.out",
        [wide, flat],
        x.dtype,
        _with_rank(node.results[0].shape, first, rank),
    )
    return host.reshape(made, node.results[0].shape)


def _cropped(host: Host, x: Held, pads: list[tuple[int, int]]) -> Held:
    """Removes the elements that negative pads cut off."""
    for axis, (before, after) in enumerate(pads):
        first, end = max(-before, 0), x.shape[axis] - max(-after, 0)
        if end - first < x.shape[axis]:
            shape = [*x.shape[:axis], end - first, *x.shape[axis + 1 :]]
            x = host.call("aten::slice_copy.Tensor_out", [x, axis, first, end, 1], x.dtype, shape)
    return x


def _circular(host: Host, x: Held, pads: list[tuple[int, int]]) -> Held:
    """Pads each axis circularly: its last elements are repeated before it, and its first after it."""
    for axis, (before, after) in enumerate(pads):
        extent = x.shape[axis]
        ends = [(extent - before, extent), (0, extent), (0, after)]
        parts = []
        for first, end in ends:
            shape = [*x.shape[:axis], end - first, *x.shape[axis + 1 :]]
            numbers = [axis, first, end, 1]
            whole = end - first == extent
            if end > first:
                parts.append(
                    x if whole else host.call("aten::slice_copy.Tensor_out", [x, *numbers], x.dtype, shape)
                )
        if len(parts) > 1:
            shape = [*x.shape[:axis], extent + before + after, *x.shape[axis + 1 :]]
            x = host.call("aten::cat.out", [parts, axis], x.dtype, shape)
    return x


def _with_rank(shape: Any, first: int, rank: int) -> list[int]:
    """Returns a shape of another rank: the axes before `first` become batch and channels."""
    spatial = list(shape[first:])
    outer = 1
    for extent in shape[:first]:
        outer *= extent
    return [1] * (rank - len(spatial) - 1) + [outer, *spatial]


@row("gather")
def _gather(host: Host, node: _core.Node, operands: Operands) -> Results:
    x, index = operands
    return result(host, node, "aten::gather.out", [x, node.attrs["axis"], host.cast(index, "i64"), False])


@row("index_select")
def _index_select(host: Host, node: _core.Node, operands: Operands) -> Results:
    x, index = operands
    return result(host, node, "aten::index_select.out", [x, node.attrs["axis"], index])


@row("embedding")
def _embedding(host: Host, node: _core.Node, operands: Operands) -> Results:
    return result(host, node, "aten::embedding.out", [*operands, -1, False, False])


@row("index")
def _index(host: Host, node: _core.Node, operands: Operands) -> Results:
    x, *indices = operands
    listed = host.optional_tensors(indices)
    return result(host, node, "aten::index.Tensor_out", [x, listed])


@row("index_put")
def _index_put(host: Host, node: _core.Node, operands: Operands) -> Results:
    x, values, *indices = operands
    listed = host.optional_tensors(indices)
    return result(host, node, "aten::index_put.out", [x, listed, values, node.attrs["accumulate"]])


@row("scatter")
def _scatter(host: Host, node: _core.Node, operands: Operands) -> Results:
    x, index, source = operands
    arguments = [x, node.attrs["axis"], host.cast(index, "i64"), source]
    return result(host, node, "aten::scatter.src_out", arguments)


# ---- without operands ----


@row("full")
def _full(host: Host, node: _core.Node, _: Operands) -> Results:
    return result(host, node, "aten::full.out", [list(node.attrs["shape"]), node.attrs["value"]])


@row("arange")
def _arange(host: Host, node: _core.Node, _: Operands) -> Results:
    """Writes the elements as a constant, since the kernel's count differs for bounds that are no integers."""
    (elements,) = _core.Session(graph_of_node(node)).run([])
    return host.constant(elements, node.results[0].dtype)
