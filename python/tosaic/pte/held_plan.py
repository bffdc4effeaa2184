"""Checks that a ``.pte`` file holds what a plan says, before it is written.

The bytes of the file are read back, and compared with the plan of each method:

===================================== ============================================================
in the plan                           in the file
===================================== ============================================================
group of a claimant with a payload    a delegate with this payload, for the runtime of the claimant
node of a claimant with kernels       a kernel of its library; or a kernel that moves integers
node of the host                      kernels; the same ones as without the groups
===================================== ============================================================

So a claimed node is never a float kernel. The rule does not depend on which claimants a program has.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.pte.group_kernels import library_of
from tosaic.pte.kernel_calls import kernel_calls
from tosaic.pte.kernels.libraries import is_of_library

if TYPE_CHECKING:
    from tosaic.partitions.plan import Group
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.pte.method_writer import PtePayload

_CONVERSIONS = ("quantized_decomposed::quantize_per_", "quantized_decomposed::dequantize_per_")
_COPIES = ("dim_order_ops::", "aten::copy_", "aten::permute_copy", "aten::view_copy")
"""Kernels around delegates: they convert and copy what enters and leaves."""


def require_plan(
    method: str,
    split: SplitLowered,
    file: _core.PteFile,
    host: Sequence[tuple[str, int]],
    delegates: Sequence[tuple[PtePayload, str, str]],
) -> None:
    """Refuses a file that does not hold the plan of a method.

    Parameters
    ----------
    method : str
        The name of the method.
    split : SplitLowered
        The program of the method, with its plan.
    file : PteFile
        What was read back.
    host : sequence of (str, int)
        The kernels of the host alone: operators, and how often each is called with floats.
    delegates : sequence of (PtePayload, str, str)
        The payloads that were made for the groups, with claimant and target.

    Raises
    ------
    InternalError
        The message names the groups and operators that differ.
    """
    written = next(each for each in file.methods if each.name == method)
    faults = [*_delegate_faults(split, file, written, delegates), *_kernel_faults(split, written, host)]
    if faults:
        raise _core.make_error(
            _core.InternalError,
            where="save",
            what=f"the file of method '{method}' would not hold what the plan says",
            got="; ".join(faults),
        )


def float_calls(method: _core.PteMethod) -> Counter[str]:
    """Returns how often a method calls each kernel with floats."""
    found: Counter[str] = Counter()
    for each in kernel_calls(method):
        if any(dtype in ("float32", "float16", "bfloat16", "float64") for dtype in each.variant.dtypes):
            found[each.operator] += each.calls
    return found


def _groups(split: SplitLowered) -> list[tuple[Group, Any]]:
    return [(group, split.claimants[group.claimant]) for group in split.partitions.groups]


def _delegate_faults(
    split: SplitLowered,
    file: _core.PteFile,
    written: _core.PteMethod,
    delegates: Sequence[tuple[PtePayload, str, str]],
) -> list[str]:
    planned = Counter(group.claimant for group, taker in _groups(split) if taker.target)
    made = Counter(claimant for _, claimant, _ in delegates)
    wanted = Counter((each.backend, _digest(each.data)) for each, _, _ in delegates)
    found = Counter((each.backend, _digest(file.payload_of(each).tobytes())) for each in written.delegates)
    faults = [
        f"{count} groups of '{name}' are {made[name]} delegates"
        for name, count in planned.items()
        if made[name] != count
    ]
    return faults + [
        f"{wanted[key]} payloads for {key[0]} are {found[key]} delegates"
        for key in dict.fromkeys([*wanted, *found])
        if wanted[key] != found[key]
    ]


def _kernel_faults(
    split: SplitLowered, written: _core.PteMethod, host: Sequence[tuple[str, int]]
) -> list[str]:
    allowed = dict(host)
    faults = [
        f"'{name}' computes with floats {count} times, and {allowed.get(name, 0)} times on the host"
        for name, count in float_calls(written).items()
        if count > allowed.get(name, 0)
        and not is_of_library(name)
        and not name.startswith((*_CONVERSIONS, *_COPIES))
    ]
    calls: Counter[str] = Counter()
    for each in kernel_calls(written):
        calls[each.operator.rpartition(".")[0]] += each.calls
    nodes: Counter[tuple[str, ...]] = Counter()
    for group, taker in _groups(split):
        library = library_of(taker)
        for node in split.partitions.nodes_of(group.index) if library is not None else ():
            kernels = library.kernels_of(node.op) if library is not None else ()
            if kernels and not taker.target:
                nodes[kernels] += 1
    for kernels, count in nodes.items():
        made = sum(calls[name] for name in kernels)
        if made < count:
            faults.append(f"{count} claimed nodes are {made} calls of {' or '.join(kernels)}")
    return faults


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
