"""Checks that the sidecar of a ``.pte`` file describes its methods, inputs, outputs and delegates."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

from tosaic import _core
from tosaic.base.dim_order import is_same_order
from tosaic.base.dtypes import type_text
from tosaic.base.options import invalid
from tosaic.ports.ports import Port
from tosaic.pte.scalar_type import scalar_type
from tosaic.pte.sidecar import PteSidecar, SidecarDelegate, SidecarMethod

_WHERE = "load_pte"


def recorded_methods(file: _core.PteFile, sidecar: PteSidecar | None) -> Mapping[str, SidecarMethod]:
    """Returns the sidecar's entry of each method, by name; empty without a sidecar.

    Raises
    ------
    InvalidGraph
        The sidecar does not fit the file; the message has the method and the input, output or delegate.
    """
    if sidecar is None:
        return {}
    found = {method.name: method for method in sidecar.methods}
    names = {method.name for method in file.methods}
    if set(found) != names or len(found) != len(sidecar.methods):
        listed = [method.name for method in sidecar.methods]
        raise _fault("the methods", ", ".join(sorted(names)), ", ".join(listed))
    for method in file.methods:
        recorded, at = found[method.name], f"method '{method.name}', "
        _check_side(f"{at}input", tensors_of(method, method.inputs), recorded.inputs)
        _check_side(f"{at}output", tensors_of(method, method.outputs), recorded.outputs)
        _check_delegates(f"{at}delegates", file, method, recorded.delegates)
    return found


def tensors_of(method: _core.PteMethod, indices: Sequence[int]) -> list[_core.PteTensor]:
    """Returns the values with these indices that are tensors."""
    values = method.values
    return [values[i] for i in indices if isinstance(values[i], _core.PteTensor)]


def _check_side(where: str, tensors: Sequence[_core.PteTensor], ports: Sequence[Port]) -> None:
    if len(tensors) != len(ports):
        raise _fault(f"the number of {where}s", str(len(tensors)), str(len(ports)))
    for i, (tensor, port) in enumerate(zip(tensors, ports, strict=True)):
        name, dtype = scalar_type(tensor)
        dtype = dtype or f"torch.{name}"
        shape, order = tuple(tensor.sizes), tuple(tensor.dim_order)
        sizes = len(shape) == len(port.shape) and all(
            size in (-1, extent) for size, extent in zip(port.shape, shape, strict=True)
        )
        if not sizes or port.dtype != dtype or not is_same_order(shape, port.array_order, order):
            raise _fault(
                f"{where} {i}",
                _type_text(dtype, shape, order),
                _type_text(port.dtype, port.shape, port.array_order),
            )
    paths = Counter(port.path for port in ports)
    if where.endswith("input") and len(paths) != len(ports):
        raise _fault(f"the paths of {where}s", "different ones", paths.most_common(1)[0][0])


def _type_text(dtype: str, shape: Sequence[int], order: Sequence[int]) -> str:
    return f"{type_text(dtype, shape)} order({','.join(map(str, order))})"


def _check_delegates(
    where: str, file: _core.PteFile, method: _core.PteMethod, recorded: Sequence[SidecarDelegate]
) -> None:
    known = Counter((d.backend, _digest(file, d)) for d in method.delegates)
    for each in recorded:
        if (each.runtime, each.sha256) not in known:
            got = f"{each.runtime} with SHA-256 {each.sha256[:16]}"
            raise _fault(where, f"backends and payloads of the file's {len(known)}", got)


def _digest(file: _core.PteFile, delegate: _core.PteDelegate) -> str:
    return hashlib.sha256(file.payload_of(delegate).tobytes()).hexdigest()


def _fault(what: str, expected: str, got: str) -> Exception:
    return invalid(
        _WHERE,
        f"the sidecar does not fit the file: {what}",
        expected=expected,
        got=got,
        hint="Save the lowered program again, or read the file with sidecar=False",
    )
