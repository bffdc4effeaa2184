"""The option `io` of `lower`: which inputs and outputs of the lowered graph are floats or integers.

A dtype for a whole side applies to every quantized port. A port with its own entry may also get the caller's
qparams, or the other sign (uint8 for int8): then the program converts the integers, with one rescale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tosaic import _core
from tosaic.base.dtypes import WITH_INTEGER_FORM
from tosaic.base.options import IO_DTYPES
from tosaic.base.quantization import QParams
from tosaic.ports.io_forms import Answer, Asked, Candidates, answer, by_port, mismatch
from tosaic.ports.ports import first_inputs

_WHERE = "lower"
_STAGES = ("exported", "quantized")  # stages at which ports can be requantized


@dataclass(frozen=True)
class IoForms:
    """The forms of ports that `io` requests for a graph.

    Attributes
    ----------
    graph : Graph
        The graph to lower: requantized ports are integers already.
    forms : mapping
        By side, the forms for the core: a form for all ports, and forms by index of the input or output.
    """

    graph: _core.Graph
    forms: dict[str, tuple[str | None, list[str | None]]]
    _checks: tuple[tuple[str, int, Asked, bool], ...]  # side, caller's position, requested form, is named

    def require(self, lowered: _core.Graph) -> None:
        """Raises QuantMismatch if an input or output of the lowered graph has not the requested form.

        Integers without qparams, such as indices, are checked only if they have their own entry.
        """
        for side, position, asked, is_named in self._checks:
            port = _ports(lowered, side)[position]
            found = {port.dtype, port.value.dtype}
            wanted = asked.dtype if isinstance(asked, QParams) else IO_DTYPES[asked]
            is_quantized = not found.isdisjoint(WITH_INTEGER_FORM) or port.qparams is not None
            counts = is_named or is_quantized
            stays = wanted == "f32" and not is_named and found <= {port.dtype} & WITH_INTEGER_FORM
            fits = port.dtype == wanted and (wanted == "u8" or port.value.dtype == wanted)
            if counts and not (fits or stays):
                once = f"a boundary that is quantized once, to {wanted}"
                expected = once if is_quantized and wanted != "f32" else wanted
                got = port.value.dtype if is_quantized else port.dtype
                raise mismatch(_WHERE, side, port.path, asked, expected, got)


def io_forms(graph: _core.Graph, io: Mapping[str, Any] | None, *, has_floats: bool) -> IoForms:
    """Reads the option `io`, which `options.OPTIONS` has checked.

    Parameters
    ----------
    graph : Graph
    io : mapping or None
    has_floats : bool
        The target has profile FP.

    Raises
    ------
    InvalidGraph
        An entry names no input or output, or one that another entry names.
    QuantMismatch
        An input or output cannot have the requested form.
    """
    forms: dict[str, tuple[str | None, list[str | None]]] = {}
    checks: list[tuple[str, int, Asked, bool]] = []
    requests: dict[str, list[Answer]] = {}
    for side, wanted in (io or {}).items():
        ports = _ports(graph, side)
        indices = _indices(graph, side)
        named: dict[int, Asked] = {}
        whole = None if isinstance(wanted, Mapping) else wanted
        if whole is None:
            named = by_port(_WHERE, side, wanted, [(port.path, port.value.name) for port in ports])
        asked_of = [(i, named.get(i, whole)) for i in range(len(ports))]
        checks += [(side, i, asked, i in named) for i, asked in asked_of if asked is not None]
        for i, asked in asked_of:
            if asked == "float32" and ports[i].value.dtype in WITH_INTEGER_FORM and not has_floats:
                name = ports[i].path or ports[i].value.name
                raise mismatch(_WHERE, side, name, asked, "a target with profile FP", "one without floats")
        by_index: list[str | None] = [None] * len(getattr(graph, side))
        for position, asked in named.items():
            by_index[indices[position]] = "float" if asked == "float32" else "integer"
        default = None if whole is None else "float" if whole == "float32" else "integer"
        forms[side] = default, by_index
        requests[side] = _requantized(graph, side, named, whole)
    if any(isinstance(each, QParams) for side in requests.values() for each in side):
        sides = {
            side: requests.get(side, [False] * len(getattr(graph, side))) for side in ("inputs", "outputs")
        }
        changed = _core.extract_io(graph, inputs=sides["inputs"], outputs=sides["outputs"])
    else:
        changed = graph
    return IoForms(changed, forms, tuple(checks))


def _ports(graph: _core.Graph, side: str) -> list[Any]:
    """Returns the caller's inputs (outputs) without new values of inputs."""
    return [getattr(graph, side)[i] for i in _indices(graph, side)]


def _indices(graph: _core.Graph, side: str) -> list[int]:
    if side == "inputs":
        return first_inputs(graph)
    return [i for i, port in enumerate(graph.outputs) if port.kind == "user"]


def _requantized(
    graph: _core.Graph, side: str, named: Mapping[int, Asked], whole: str | None
) -> list[Answer]:
    """Returns by index the qparams of ports that the program has to convert, or False."""
    out: list[Answer] = [False] * len(getattr(graph, side))
    asked = {i: each for i, each in named.items() if isinstance(each, QParams) or each == "uint8"}
    ports = _ports(graph, side)
    if whole == "uint8":
        asked = {i: whole for i, port in enumerate(ports) if port.value.dtype in WITH_INTEGER_FORM}
    if not asked:
        return out
    is_early = graph.stage in _STAGES
    known = _core.io_quantization(graph)[side == "outputs"] if is_early else []
    indices = _indices(graph, side)
    written = {port.mutated_input for port in graph.outputs}
    for i, each in asked.items():
        port = ports[i]
        if port.value.dtype == "u8" and each == "uint8":
            continue
        candidates = (
            Candidates(*known[indices[i]]) if is_early else Candidates((), f"a graph at stage {graph.stage}")
        )
        name = port.path or port.value.name
        found = answer(_WHERE, side, name, candidates, each)
        # The lowering makes all integers signed, so the program's own u8 qparams need a conversion, too.
        made = candidates.found[0] if found is True and each == "uint8" else found
        if side == "inputs" and isinstance(made, QParams) and indices[i] in written:
            raise mismatch(
                _WHERE, side, name, each, "an input that the program does not write", "a written input"
            )
        out[indices[i]] = made
    return out
