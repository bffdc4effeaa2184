"""`extract_io_quant`: makes quantized inputs and outputs of a program integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from tosaic import _core
from tosaic.base.dtypes import WITH_INTEGER_FORM
from tosaic.base.exported import is_exported_program
from tosaic.base.options import checked, invalid, refusal
from tosaic.base.quantization import QParams
from tosaic.fx.io.answers import Ports, answers
from tosaic.ports.io_forms import (
    AUTO,
    Answer,
    Asked,
    Candidates,
    mismatch,
)
from tosaic.ports.io_quant import IoQuant, PortQuant
from tosaic.ports.ports import first_inputs
from tosaic.program.program import Program

P = TypeVar("P")
_WHERE = "extract_io_quant"


@checked
def extract_io_quant(
    program: P,
    *,
    method: str = "forward",
    inputs: Ports = "auto",
    outputs: Ports = "auto",
    in_place: bool = False,
) -> tuple[P, IoQuant]:
    """Makes quantized inputs and outputs of a program integers, and returns what the integers represent.

    A float input that the program quantizes first becomes an input of these integers, and the quantize node
    is removed. A float output that the program dequantizes last becomes an output of the integers. Layout
    operators (permute, reshape, slice, padding with 0 ...) may be between the input and its quantize node,
    and between the dequantize node and the output: they then move integers.

    Parameters
    ----------
    program : Program, torch.export.ExportedProgram or executorch.exir.EdgeProgramManager
        A quantized program. A `Program` is at stage ``exported`` or ``quantized``. An exported program is
        what PT2E's ``convert_pt2e`` and ``torch.export.export`` make.
    method : str
        The method, for a program of several methods.
    inputs, outputs : "auto", None, sequence or mapping
        Which inputs (outputs) become integers. ``"auto"``: all that can. None: none. A sequence of paths,
        names or indices: these. Indices count the user's inputs (outputs) only. A mapping says what they
        become: ``"int8"``, ``"uint8"``, ``"int16"`` or ``"int32"``, ``"float32"`` (unchanged), or a
        `QParams`: integers with these qparams, which the program converts. ``"uint8"`` for int8 means the
        same scale and a zero point that is greater by 128.
    in_place : bool
        Change `program` and return it, instead of a changed copy.

    Returns
    -------
    program
        A program of the type of `program`. Its other inputs and outputs, its states and its weights are the
        same. A changed copy of a `QuantizedProgram` is a `Program`, as all its copies are.
    IoQuant
        The qparams of all inputs and outputs that became integers.

    Raises
    ------
    InvalidGraph
        `program` has another type or stage, there is no such method, or `inputs` or `outputs` name an input
        or output that does not exist.
    QuantMismatch
        A named input or output cannot have the requested form: it is also read as floats, it is quantized in
        several ways, its integers have another dtype, or the program writes the input and does not quantize
        its new value with the same qparams. The message has its name and the reason. The program is
        unchanged, also with `in_place`. ``"auto"`` leaves such inputs and outputs float instead of raising.

    Notes
    -----
    An input that is quantized in several ways can have qparams of the caller's: the program then converts the
    integers to each of the qparams. Integer lowering makes one rescale of each conversion.

    Examples
    --------
    >>> integers, io = tosaic.extract_io_quant(program)  # doctest: +SKIP
    >>> y = integers.run(io.input("x").quantize(x))  # doctest: +SKIP
    >>> io.output(0).dequantize(y)  # doctest: +SKIP
    """
    source: Any = program
    if isinstance(source, Program):
        _require_method(method, source.graph.name)
        return _of_program(source, method, inputs, outputs, in_place)  # type: ignore[return-value]
    if is_exported_program(source):
        from tosaic.fx.io.io_quantization import extract_from_exported

        _require_method(method, "forward")
        return extract_from_exported(source, method, inputs, outputs, in_place)
    if callable(getattr(source, "exported_program", None)):
        from tosaic.fx.io.edge_manager import extract_from_edge

        return extract_from_edge(source, method, inputs, outputs, in_place)
    raise refusal(
        _WHERE,
        "program",
        "a tosaic.Program, a torch.export.ExportedProgram or an EdgeProgramManager of ExecuTorch",
        program,
    )


def _require_method(method: str, own: str) -> None:
    if method not in ("forward", own):
        raise invalid(_WHERE, f"the program has no method '{method}'", expected=f"'{own}', its only method")


def _of_program(
    program: Program, method: str, inputs: Ports, outputs: Ports, in_place: bool
) -> tuple[Program, IoQuant]:
    graph = program.graph
    if graph.stage not in ("exported", "quantized"):
        raise invalid(
            _WHERE,
            "the program is lowered already",
            expected="a program at stage exported or quantized",
            got=f"stage {graph.stage}",
            hint="Lower with io=, or extract before lowering",
        )
    known = dict(zip(("inputs", "outputs"), _core.io_quantization(graph), strict=True))
    indices = {
        "inputs": first_inputs(graph),
        "outputs": [i for i, port in enumerate(graph.outputs) if port.kind == "user"],
    }
    found: dict[str, list[tuple[Asked, Answer]]] = {}
    requests: dict[str, list[Answer]] = {}
    for side, wanted in (("inputs", inputs), ("outputs", outputs)):
        ports: Sequence[Any] = getattr(graph, side)
        named = [(ports[i].path, ports[i].value.name) for i in indices[side]]
        candidates = [Candidates(*known[side][i]) for i in indices[side]]
        found[side] = answers(side, wanted, named, candidates)
        requests[side] = [False] * len(ports)
        for i, (asked, each) in zip(indices[side], found[side], strict=True):
            requests[side][i] = each
            if side == "inputs" and isinstance(each, QParams):
                _require_unwritten(graph, i, asked)
    changed = _core.extract_io(graph, inputs=requests["inputs"], outputs=requests["outputs"])
    quants: dict[str, list[PortQuant]] = {"inputs": [], "outputs": []}
    for side, each_found in found.items():
        ports = getattr(changed, side)
        for position, (i, (asked, each)) in enumerate(zip(indices[side], each_found, strict=True)):
            if each is False:
                continue
            port = ports[i]
            if port.value.dtype in WITH_INTEGER_FORM:  # the program writes the input
                if asked != AUTO:
                    raise mismatch(_WHERE, side, port.path, asked, _SAME, "another new value")
                continue
            qparams = each if isinstance(each, QParams) else known[side][i][0][0]
            quants[side].append(PortQuant(position, port.path, port.value.name, qparams))
    io = IoQuant(tuple(quants["inputs"]), tuple(quants["outputs"]), method)
    if in_place:
        program.set_graph(changed)
        return program, io
    return program.with_graph(changed), io


_SAME = "a new value that is quantized with the same qparams, since the program writes this input"


def _require_unwritten(graph: _core.Graph, index: int, asked: Asked) -> None:
    if any(port.mutated_input == index for port in graph.outputs):
        path = graph.inputs[index].path
        raise mismatch(
            _WHERE, "inputs", path, asked, "an input that the program does not write", "a new value"
        )
