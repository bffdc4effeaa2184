"""Saves programs as ``.pte`` files: groups become delegates, and the host's nodes kernel calls.

::

    %x -> quantize -> group0 -> dequantize -> softmax -> out
          kernel      delegate  kernel        kernel

The caller's arrays are as for `Lowered.run`: if a float input is an integer tensor in the lowered graph, a
kernel quantizes it, and an array in another dim order than a group needs is copied. An array of the
physical shape is a row-major tensor of the file, whose bytes the method reads as logical axes in dim order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.options import checked, invalid, refusal, shown, unsupported
from tosaic.base.writing import check_place
from tosaic.lowering.lowered import Lowered
from tosaic.program.program import Program

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.program.prepared import Preparable
    from tosaic.pte.file_writer import FileWriter
    from tosaic.pte.group_payloads import GroupPayloads
    from tosaic.pte.method_saver import MethodSaver
    from tosaic.pte.method_writer import PtePayload

_WHERE = "save"
_WAY_OUT = "ExecuTorch's own flow, to_executorch(), writes programs with kernels of any operator"


@checked
def save_pte(
    programs: Preparable | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    payloads: Mapping[str, PtePayload] | None = None,
    flags: Mapping[str, Sequence[str]] | None = None,
    sidecar: bool = False,
) -> int:
    """Writes a ``.pte`` file, which ExecuTorch's runtime loads; returns its size in bytes.

    Groups become delegates. Their payloads are in the formats of their claimants: a ``.tosa`` file, a VGF
    file, or Vela's stream. All other nodes become calls of ExecuTorch's portable and quantized kernels. Each
    method has one memory plan. ExecuTorch is not needed.

    Parameters
    ----------
    programs : Program, Lowered, SplitLowered or mapping of str to these
        What to write: the method ``forward``, or a method for each entry. A `Program` becomes kernel calls
        only, which compute with floats between quantize and dequantize calls.
    path : path
    payloads : mapping of str to PtePayload, optional
        Payloads that replace those of groups, by name of the group: ``group0``, or ``encode/group0`` for a
        file of several methods. A `Lowered` is one group, with the name of its method.
    flags : mapping of str to sequence of str, optional
        By name of a claimant, flags for the tool that compiles its payloads: ``{"ethos-u55-128":
        ["--optimise=Size"]}``.
    sidecar : bool
        Write a second file next to it, ``m.pte.json`` for ``m.pte``: the nested signature, paths, dim orders
        and qparams of each method, and the digests of the file and of its payloads. `load_pte` reads both.
        Without it, an older sidecar is removed, because it would not describe the new file.

    Raises
    ------
    UnsupportedOp
        Something has no counterpart in the file, or a tool refuses a group; the message has all reasons.
    InvalidGraph
        A program has another type, or an option names a group or claimant that is not in the file.
    ImportError
        A group is for a device whose compiler is not installed.
    WriteError
        The file cannot be written. An older file is then unchanged.

    Notes
    -----
    A state is a tensor of the method that keeps its elements from run to run; the file has its initial
    elements. In the runtime, an input that the program writes is a copy of the caller's tensor.

    Examples
    --------
    >>> tosaic.save_pte({"encode": encoder, "decode": decoder}, "model.pte")  # doctest: +SKIP
    """
    from tosaic.lowering.sidecar import save_without_sidecar, sidecar_path, write_both
    from tosaic.pte.group_payloads import GroupPayloads
    from tosaic.pte.held_plan import require_plan
    from tosaic.pte.sidecar import pte_sidecar_text

    methods = methods_of(programs, _WHERE)
    check_place(path)
    if sidecar:
        check_place(sidecar_path(path))
    file, savers = _written(methods, GroupPayloads(methods, payloads or {}, flags or {}))
    hosts = _float_calls_of_hosts(methods)

    def checked_file(data: Buffer) -> None:
        read = _core.read_pte(data)  # checks every index and place
        for name, (split, host) in hosts.items():
            require_plan(name, split, read, host, savers[name].delegates)

    if not sidecar:
        return save_without_sidecar(path, file.pieces(), checked_file)

    def text_of(data: Buffer) -> str:
        checked_file(data)
        return pte_sidecar_text([saver.recorded() for saver in savers.values()], data)

    return write_both(path, file.pieces(), text_of)


def methods_of(programs: Any, where: str) -> Mapping[str, Program | Lowered | SplitLowered]:
    """Returns the methods of a file by name: the methods of a mapping, or ``forward`` for a program.

    Raises
    ------
    InvalidGraph
        There is no program, or a value is not a program that a file can have.
    """
    methods = programs if isinstance(programs, Mapping) else {"forward": programs}
    for name, program in methods.items():
        _require_program(name, program, where)
    if not methods:
        raise refusal(where, "programs", "at least one program", programs)
    return methods


def pte_without_payloads(methods: Mapping[str, Program | Lowered | SplitLowered]) -> bytes:
    """Returns the file that `save_pte` would write, but with empty payloads.

    Raises
    ------
    UnsupportedOp
        Something has no counterpart in the file; the message has all reasons.
    """
    from tosaic.pte.group_payloads import GroupPayloads, empty_payloads

    return _written(methods, GroupPayloads(methods, empty_payloads(methods), {}))[0].finish()


def _written(
    methods: Mapping[str, Program | Lowered | SplitLowered], compiled: GroupPayloads
) -> tuple[FileWriter, dict[str, MethodSaver]]:
    from tosaic.pte.file_writer import FileWriter
    from tosaic.pte.method_saver import MethodSaver
    from tosaic.pte.method_writer import MethodWriter

    file = FileWriter()
    savers = {
        name: MethodSaver(MethodWriter(file, name), program, compiled.of_method(name))
        for name, program in methods.items()
    }
    reasons: list[str] = []
    for name, saver in savers.items():
        found = saver.write()
        reasons += [f"method '{name}': {reason}" for reason in found] if len(methods) > 1 else found
    if reasons:
        raise _refusal(reasons)
    return file, savers


def _float_calls_of_hosts(
    methods: Mapping[str, Any],
) -> dict[str, tuple[SplitLowered, list[tuple[str, int]]]]:
    """Returns each split program, with its float kernels without the groups: those of the host's nodes."""
    from tosaic.pte.file_writer import FileWriter
    from tosaic.pte.group_payloads import GroupPayloads
    from tosaic.pte.held_plan import float_calls
    from tosaic.pte.method_saver import MethodSaver
    from tosaic.pte.method_writer import MethodWriter

    found: dict[str, tuple[SplitLowered, list[tuple[str, int]]]] = {}
    for name, program in methods.items():
        if getattr(program, "partitions", None) is None:
            continue
        file = FileWriter()
        payloads = GroupPayloads({name: program}, {}, {}).of_method(name)
        MethodSaver(MethodWriter(file, name), program, payloads, only_host=True).write()
        (method,) = _core.read_pte(file.finish()).methods
        found[name] = program, list(float_calls(method).items())
    return found


def _require_program(name: Any, program: Any, where: str) -> None:
    from tosaic.partitions.split_lowered import SplitLowered

    if not isinstance(name, str) or not name:
        raise refusal(where, "programs", "names of methods as keys", name)
    if not isinstance(program, Program | Lowered | SplitLowered):
        raise refusal(where, "programs", "a Program, a Lowered or a SplitLowered", shown(program))
    if isinstance(program, Program) and program.graph.stage not in ("exported", "quantized"):
        raise invalid(
            where,
            f"the program of method '{name}' is at stage {program.graph.stage}",
            expected="a program at stage exported or quantized, or a lowered program",
            got=program.graph.stage,
            hint="tosaic.lower(program, unsupported='split', claimants=[...]) makes delegates of it",
        )


def _refusal(reasons: Sequence[str]) -> Exception:
    many = len(reasons) > 1
    return unsupported(
        _WHERE,
        f"{len(reasons)} reasons keep this program from a .pte file" if many else reasons[0],
        got="; ".join(reasons) if many else "",
        hint=_WAY_OUT,
    )
