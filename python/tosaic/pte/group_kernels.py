"""Writes a group of a claimant whose kernels compute integers as calls of these kernels.

::

    %y = conv(%x, ..)   -> library::quantized_conv2d(x, .., bounds)
    %z = relu(%y)       -> the bounds of the call, if nothing else reads %y
    %t = gelu(%z)       -> library::quantized_activation(z, table)
    %r = reshape(%t)    -> a view; other moves are portable kernels of the integers

The calls compute the integers of the lowered group: tables have its results. A node for which there is no
kernel is named, and the file is not written: a float kernel would not be what the plan says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.base.operator_facts import elementwise_operators
from tosaic.base.quantization import QParams
from tosaic.devices.registry import core_claimant, device_of
from tosaic.lowering.lowered import Lowered
from tosaic.partitions.claimant import Claimant
from tosaic.pte.host import Held, Host
from tosaic.pte.kernels.libraries import LIBRARIES
from tosaic.pte.kernels.library import KernelCall, Library
from tosaic.pte.nodes import write_node

_MOVES = frozenset(("reshape", "clone", "permute", "cat", "slice", "split", "select", "expand"))
"""Operators for which portable kernels move integers."""
_CLAMPS = frozenset(("relu", "clamp"))
_BYTES = np.arange(-128, 128).astype(np.int8)


def library_of(claimant: Claimant) -> Library | None:
    """Returns the library whose kernels compute a claimant's groups; None if there is none."""
    device = device_of(claimant.kind)
    return None if device is None else LIBRARIES.get(device.kernel_library)


class GroupKernels:
    """The calls of a group.

    Parameters
    ----------
    host : Host
    part : Lowered
        The group; its source is the quantized graph.
    claimant : Claimant
        A claimant with a library of kernels.

    Attributes
    ----------
    refused : list of Node
        The nodes for which there is no kernel.
    """

    def __init__(self, host: Host, part: Lowered, claimant: Claimant) -> None:
        library, device = library_of(claimant), device_of(claimant.kind)
        assert library is not None
        assert device is not None
        self._host, self._library, self._claimant = host, library, claimant
        self._form = device.kernels.get(claimant.kind, "")
        self._core = core_claimant(claimant.kind)
        self._graph = part.source.graph
        self._scratch = _core.scratch_bytes(self._graph, self._core)
        self._merged = self._clamps_in_kernels()
        self.refused: list[_core.Node] = []

    def write(self, value: Callable[[_core.Value], Held], values: dict[int, Held]) -> None:
        """Writes the nodes of the group.

        Parameters
        ----------
        value : callable
            Returns the tensor of a value that is known, or a constant.
        values : dict of int to Held
            The tensors by id of a value. It has the inputs, and gets the results of the nodes.
        """
        for node in self._graph.nodes:
            operands = [None if each is None else value(each) for each in node.operands]
            made = self._written(node, operands)
            if made is None:
                self.refused.append(node)
                made = [self._host.new(each.dtype, each.shape) for each in node.results]
            values |= {result.id: each for result, each in zip(node.results, made, strict=True)}

    def _written(self, node: _core.Node, operands: Sequence[Held | None]) -> list[Held] | None:
        if node.id in self._merged.values() and operands[0] is not None:
            return [operands[0]]
        call = KernelCall(
            self._host,
            node,
            operands,
            self._form,
            self._scratch[node.id] if self._scratch else 0,
            self._bounds(node),
            self._scratch_of_image,
        )
        row = self._library.rows.get(node.op)
        made = None if row is None else row(call)
        if made is None and self._library.table_row is not None and _is_of_one(node):
            made = self._library.table_row(call, lambda: self._results(node))
        if made is not None:
            return [made]
        return write_node(self._host, node, operands) if node.op in _MOVES else None

    # ---- clamps ----

    def _clamps_in_kernels(self) -> dict[int, int]:
        """Returns the clamps that kernels before them compute: by node, the only reader of its result."""
        returned = {port.value.id for port in self._graph.outputs}
        found = {}
        for node in self._graph.nodes:
            source = node.operands[0] if node.op in _CLAMPS else None
            before = None if source is None else source.producer
            if source is None or before is None or before.op not in self._library.bounded:
                continue
            is_only = len(source.users) == 1 and source.id not in returned
            if is_only and _is_of_one(node) and source.qparams == node.results[0].qparams:
                found[before.id] = node.id
        return found

    def _bounds(self, node: _core.Node) -> tuple[int, int]:
        qparams = node.results[0].qparams
        if qparams is None:
            return -128, 127
        clamp = self._merged.get(node.id)
        if clamp is None:
            return qparams.qmin, qparams.qmax
        results = self._results(self._graph.nodes[clamp])
        return max(int(results.min()), qparams.qmin), min(int(results.max()), qparams.qmax)

    # ---- tables ----

    def _results(self, node: _core.Node) -> np.ndarray[Any, Any]:
        """Returns the result of the lowered node for each of the 256 integers."""
        part = _core.group_part(self._graph, [node.id])
        lowered = _core.lower(
            part, pipeline=self._claimant.arithmetic, semantics=self._claimant.semantics
        ).tosa
        session = _core.Session(lowered)
        (port,) = part.inputs
        size = math.prod(port.shape)
        padded = np.resize(_BYTES, -(-_BYTES.size // size) * size).reshape(-1, *port.shape)
        results = [np.asarray(session.run([each])[0]).reshape(-1) for each in padded]
        found: np.ndarray[Any, Any] = np.concatenate(results)[: _BYTES.size]
        return found

    # ---- buffers ----

    def _scratch_of_image(self, image: Sequence[int], weight: Sequence[int], result: Sequence[int]) -> int:
        """Returns the bytes of the buffer of a convolution of 1x1."""
        types = {"x": image, "w": weight}
        one = "q(i8 -128..127 scale 1.0 zp 0)"
        lines = [f"input %{name}: i8{list(shape)} {one}" for name, shape in types.items()]
        settings = "stride=[1,1], pad_before=[0,0], pad_after=[0,0], dilation=[1,1], output_padding=[0,0]"
        lines += [f"%y: i8{list(result)} {one} = conv(%x, %w) {{{settings}, groups=1, transposed=false}}"]
        text = "\n".join(["tosaic 1", "graph @image stage=quantized {", *lines, "return %y", "}"])
        (found,) = _core.scratch_bytes(_core.Graph.parse(text), self._core)
        return found


def _is_of_one(node: _core.Node) -> bool:
    """True if each element of a node's only result depends on one element of its first operand."""
    if node.op not in elementwise_operators() or len(node.results) != 1:
        return False
    given = [each for each in node.operands if each is not None]
    others = [each for each in given if each.constant is None]
    numbers = [each for each in given if each.constant is not None]
    result = node.results[0]
    return (
        len(others) == 1
        and others[0] is given[0]
        and tuple(others[0].shape) == tuple(result.shape)
        and all(math.prod(each.shape) == 1 for each in numbers)
        and all(_is_plain(each.qparams) for each in (others[0], result))
    )


def _is_plain(qparams: QParams | None) -> bool:
    return qparams is not None and qparams.axis is None and qparams.groups is None
