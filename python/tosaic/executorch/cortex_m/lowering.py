"""Lowers a plan for Cortex-M inside of ExecuTorch, to kernels of its Cortex-M backend.

::

    quantized program ─▶ real parts      of complex values                  real_parts
                      ─▶ plan            which claimant takes which node    tosaic.partition
                      ─▶ marks           on the calls of Cortex-M           call_marks
                      ─▶ constants       quantized by the graph: folded     folded_constants
                      ─▶ channels last   exported anew                      channels_last
                      ─▶ edge dialect    to_edge with the backend's config
                      ─▶ conversions     around parts that move or clamp    own_conversions
                         and rewriting   of calls that the passes lack      claimed_forms
                      ─▶ kernels         the passes of the backend          passes

The backend has no delegates: its passes replace operators by operators of the library ``cortex_m``. If a pass
refuses a call that the plan assigns to Cortex-M, all passes run again without this call.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - registers operators that are left as they are
from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.passes.decompose_mean_pass import DecomposeMeanPass
from executorch.backends.cortex_m.target_config import CortexMTargetConfig
from executorch.backends.transforms.utils import create_constant_placeholder
from executorch.exir import to_edge
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import PassResult
from executorch.exir.program._program import _transform

from tosaic import _core
from tosaic.api.calls import from_exported, partition
from tosaic.executorch.cortex_m.call_marks import mark_calls, remark, unmark
from tosaic.executorch.cortex_m.channels_last import exported_in_channels_last
from tosaic.executorch.cortex_m.claimed_forms import with_slices, with_small_permutations, without_factors
from tosaic.executorch.cortex_m.folded_constants import fold_quantized_constants
from tosaic.executorch.cortex_m.own_conversions import with_own_conversions
from tosaic.executorch.cortex_m.passes import PassRun
from tosaic.executorch.cortex_m.planned_calls import PlannedCalls
from tosaic.executorch.cortex_m.real_parts import with_real_parts
from tosaic.executorch.edge_dialect import EdgeDialect
from tosaic.fx.reading.treespec import return_plain_tuples
from tosaic.partitions.claimant import Claimant
from tosaic.partitions.kernel_plan import KernelProgram

_WHERE = "cortex_m_program"


def lower_to_cortex_m(program: Any, claimants: Sequence[Claimant], cortex_m: Claimant) -> KernelProgram:
    """See `tosaic.executorch.cortex_m_program`.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        With quantize and dequantize calls.
    claimants : sequence of Claimant
        In the order in which they are asked.
    cortex_m : Claimant
        The claimant among them that is a Cortex-M.
    """
    program = with_real_parts(program)
    plan = partition(from_exported(program), list(claimants))
    wanted = PlannedCalls(program, plan, cortex_m.name)
    edge, channels_last = _edge_program(program)
    target = CortexMTargetConfig.from_target_string(cortex_m.kind)
    quantized = EdgeDialect().quantized
    operators = quantized("quantize_per_tensor"), quantized("dequantize_per_tensor")
    refused: dict[str, str] = {}
    while True:
        run = PassRun()
        trial = copy.deepcopy(edge.exported_program())
        remark(trial.graph, wanted.computed(refused), wanted.conversions)
        results = wanted.results(refused)

        def own_conversions(
            module: Any, results: Any = results, program: Any = trial, merged: Any = run.merged
        ) -> PassResult:
            with_slices(module.graph, ops.edge.aten)
            with_small_permutations(module.graph, ops.edge.aten)
            with_own_conversions(module.graph, results, operators)
            gone = without_factors(
                program,
                module.graph,
                wanted.factors,
                ops.edge.aten.mul.Tensor,
                operators[1],
                create_constant_placeholder,
            )
            merged.update(dict.fromkeys(gone, "it only changes the scale"))
            module.recompile()
            return PassResult(module, True)

        run.run(_transform(trial, own_conversions), target)
        new = {call: reason for call, reason in run.refused.items() if call not in refused}
        if run.program is not None and not new:
            break
        if not new:
            raise _core.make_error(
                _core.InternalError, where=_WHERE, what="the passes refuse the same calls once more"
            )
        refused |= new
    nodes = wanted.outcome(run.program.graph, run.merged, refused)
    unmark(run.program.graph)
    edge._edge_programs["forward"] = run.program
    return KernelProgram(edge, cortex_m.name, plan, nodes, channels_last)


def _edge_program(program: Any) -> tuple[Any, tuple[str, ...]]:
    """Returns the program in the edge dialect, in channels-last order, with marks on its calls."""
    module = program.module(check_guards=False)
    mark_calls(module.graph)
    fold_quantized_constants(module)
    module = DecomposeMeanPass().call(module).graph_module
    exported, channels_last = exported_in_channels_last(_WHERE, program, module)
    return_plain_tuples(exported)
    return to_edge(exported, compile_config=cortex_m_edge_compile_config()), channels_last
