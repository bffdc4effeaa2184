"""`cortex_m_program`: a quantized program as kernels of ExecuTorch's Cortex-M backend, by our plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tosaic.base.exported import is_exported_program
from tosaic.base.options import checked, invalid, refusal, shown, unsupported
from tosaic.devices.registry import device_of
from tosaic.partitions.claimant import Claimant
from tosaic.partitions.kernel_plan import KernelProgram
from tosaic.partitions.propose import require_claimants
from tosaic.quantizing.quantized_program import QuantizedProgram

_WHERE = "cortex_m_program"
_LIBRARY = "cortex_m"


@checked
def cortex_m_program(
    quantized: Any, *, claimants: str | Claimant | Sequence[str | Claimant] = "cortex-m55"
) -> KernelProgram:
    """Returns a quantized program with operators of ExecuTorch's Cortex-M backend in the edge dialect.

    The plan comes from `tosaic.partition`. ExecuTorch's passes make operators of ``cortex_m`` only from the
    nodes that the plan assigns to Cortex-M. Everything else stays as it is, between quantize and dequantize
    calls: nodes of the host, nodes of other claimants, and nodes that ExecuTorch's passes refuse.

    Parameters
    ----------
    quantized : QuantizedProgram or torch.export.ExportedProgram
        What `tosaic.quantize` returns, or a program with quantize and dequantize calls. It is not changed.
    claimants : str, Claimant or sequence of these
        A Cortex-M, such as ``cortex-m55``, possibly with your own rules; or several claimants in order of
        priority, one of which is a Cortex-M: ``["neutron", "cortex-m55"]``.

    Returns
    -------
    KernelProgram
        ``edge`` is the EdgeProgramManager, whose ``to_executorch()`` makes the ``.pte`` file. ``nodes`` says
        what became of each node of the plan, ``refused`` lists the nodes that ExecuTorch refuses, with
        reasons, and ``left`` the nodes of others.

    Raises
    ------
    InvalidGraph
        `quantized` is not a quantized program, or not exactly one claimant is a Cortex-M.
    UnsupportedOp
        The program cannot be exported in channels-last order, or a pass fails as a whole.
    ImportError
        ExecuTorch is not installed.

    Notes
    -----
    Kernels of Cortex-M read images in channels-last order. As in ExecuTorch's own flow, the program is
    exported with its inputs and weights of rank 4 in this order, and callers have to pass such inputs in it:
    ``channels_last`` lists them.

    Examples
    --------
    >>> made = tosaic.executorch.cortex_m_program(quantized)  # doctest: +SKIP
    >>> print(made)  # doctest: +SKIP
    >>> open("model.pte", "wb").write(made.edge.to_executorch().buffer)  # doctest: +SKIP
    """
    given = [claimants] if isinstance(claimants, str | Claimant) else claimants
    asked = require_claimants(_WHERE, given)
    found = [each for each in asked if _is_of_library(each)]
    if len(found) != 1:
        names = ", ".join(each.name for each in asked)
        raise refusal(_WHERE, "claimants", "one Cortex-M, such as 'cortex-m55', among the claimants", names)
    is_ours = isinstance(quantized, QuantizedProgram)
    program = quantized.to_exported(symbolic=False) if is_ours else quantized
    if not is_exported_program(program):
        raise refusal(
            _WHERE, "quantized", "a QuantizedProgram or a torch.export.ExportedProgram", shown(quantized)
        )
    if not any("quantize_per" in str(node.target) for node in program.graph.nodes):
        raise invalid(
            _WHERE,
            "the program is not quantized",
            expected="quantize and dequantize calls, as convert_pt2e makes them",
            hint="tosaic.quantize(program, samples) makes a QuantizedProgram",
        )
    halves = half_conversion(program)
    if halves is not None:
        raise unsupported(
            _WHERE,
            "ExecuTorch's Cortex-M kernels quantize and dequantize f32 alone",
            node=halves,
            expected="a program of f32",
            got="quantized floats of 16 bits",
            hint="Export the module as f32: module.float()",
        )
    from tosaic.executorch.cortex_m.lowering import lower_to_cortex_m

    return lower_to_cortex_m(program, asked, found[0])


def _is_of_library(claimant: Claimant) -> bool:
    device = device_of(claimant.kind)
    return device is not None and device.kernel_library == _LIBRARY


def half_conversion(program: Any) -> str | None:
    """Returns the name of a call that quantizes or dequantizes floats of 16 bits; None if there is none.

    Parameters
    ----------
    program : torch.export.ExportedProgram
    """
    for node in program.graph.nodes:
        if "quantize_per" in str(node.target):
            ends = (node, *node.all_input_nodes[:1])
            if any(str(end.meta["val"].dtype) in ("torch.float16", "torch.bfloat16") for end in ends):
                return str(node.name)
    return None
