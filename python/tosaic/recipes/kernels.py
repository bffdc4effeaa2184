"""Stages about the kernels of a runtime: `register_kernels`, and `cortex_m_kernels` for Cortex-M."""

from __future__ import annotations

from typing import Any

from tosaic import _core
from tosaic.base.options import shown
from tosaic.partitions.payload_kinds import has_kernels


def register_kernels(lowered: Any, context: Any) -> None:
    """Adds ``kernels.yaml``: the kernels that a runtime needs for the operators on the host.

    It is ExecuTorch's selective build for the ``.pte`` file (`tosaic.registration.kernel_list`). If the
    program cannot be such a file, because a claimant has no public payload, the report says so instead.
    """
    from tosaic.registration.listing import kernel_list

    try:
        found = kernel_list(lowered, names=[context.name])
    except _core.UnsupportedOp as error:
        context.note(f"no list of kernels: {error}")
        return
    if len(found):
        context.add_file("kernels.yaml", found.to_yaml())


def cortex_m_kernels(lowered: Any, context: Any) -> None:
    """Adds ExecuTorch's program for Cortex-M: ``model.cortex_m.pte``, and ``kernels.cortex_m.yaml``.

    ExecuTorch's passes make operators of ``cortex_m`` from the nodes that the plan assigns to Cortex-M
    (`tosaic.executorch.cortex_m_program`). Nodes that they refuse compute with floats; the report names them.
    The file is left out if the model is a `tosaic.Program`, which cannot become a program of torch, and if
    another claimant takes nodes: ``model.pte`` then has its delegates and the kernels of Cortex-M.
    """
    from tosaic.executorch.cortex_m.program import cortex_m_program, half_conversion
    from tosaic.fx.io.extract_io import extract_io_quant
    from tosaic.fx.io.partition_boundary import io_entries
    from tosaic.quantizing.quantized_program import QuantizedProgram
    from tosaic.registration.listing import kernel_list

    quantized, recipe = context.quantized_for_torch(), context.recipe
    if context.quantized is None:
        context.note("no program of Cortex-M kernels: nothing is quantized")
        return
    others = _others(lowered)
    if others:
        if any(not each.target for each in others):
            names = ", ".join(each.name for each in others)
            context.note(
                f"no program of Cortex-M kernels: it would compute the nodes of {names} with floats. The "
                "folder has their groups"
            )
        return
    if quantized is None:
        context.note("no program of Cortex-M kernels: a stage changed the quantized program")
        return
    is_ours = isinstance(quantized, QuantizedProgram)
    if is_ours and not quantized.is_of_exported:
        context.note(
            "no program of Cortex-M kernels: ExecuTorch lowers programs of torch, and the model is a "
            "tosaic.Program. Pass the module, the ExportedProgram or the .pt2 file that it was made from"
        )
        return
    program = quantized.to_exported(symbolic=False) if is_ours else quantized
    if half_conversion(program) is not None:
        context.note(
            "no program of Cortex-M kernels: ExecuTorch's kernels quantize and dequantize f32 alone, and the "
            "model computes with floats of 16 bits. Export it as f32: model.float()"
        )
        return
    if recipe.io:
        entries = {
            side: io_entries(each, getattr(context.quantized, side)) for side, each in recipe.io.items()
        }
        program, _ = extract_io_quant(program, inputs=entries.get("inputs"), outputs=entries.get("outputs"))
    made = cortex_m_program(program, claimants=recipe.takers)
    for each in made.refused:
        context.note(f"ExecuTorch has no Cortex-M kernel for '{each.node}': {shown(each.reason)}")
    checked = _with_effects(made.edge.exported_program())
    if checked:
        context.note(
            "no program of Cortex-M kernels: ExecuTorch writes no calls with effects, such as "
            f"{', '.join(checked)}. torch.linalg.solve_ex and inv_ex have none"
        )
        return
    if "aten::complex" in _called(made.edge.exported_program()):
        context.note(
            "the program of Cortex-M kernels joins parts of complex values by aten::complex, for which "
            "ExecuTorch has no kernel: an inverse transform reads what was computed from them. Register a "
            "kernel of your own, or compute the transform as a product with a matrix"
        )
    data = bytes(made.edge.to_executorch().buffer)
    context.add_file(f"{context.name}.cortex_m.pte", data)
    context.add_file("kernels.cortex_m.yaml", kernel_list(data, names=[context.name]).to_yaml())


def _others(lowered: Any) -> list[Any]:
    """Returns the claimants with groups that have no kernels: their nodes would be computed with floats."""
    takers = {group.claimant: lowered.claimants[group.claimant] for group in lowered.partitions.groups}
    return [each for each in takers.values() if not has_kernels(each)]


def _with_effects(program: Any) -> list[str]:
    """Returns the names of operators that are called for side effects, such as checks of decompositions."""
    calls = (node for node in program.graph.nodes if node.op == "call_function")
    return sorted({str(node.args[1]) for node in calls if str(node.target) == "with_effects"})


def _called(program: Any) -> set[str]:
    """Returns the names of the operators that a program calls."""
    return {getattr(getattr(node.target, "_schema", None), "name", "") for node in program.graph.nodes}
