"""Applies a layout plan to an exported program of torch, or to an edge program of ExecuTorch.

::

    annotate   x ──▶ conv ──▶ relu ──▶ out       meta["val"] of conv and relu: strides of (0, 2, 3, 1)

    convert    x ─▶ clone(channels_last) ─▶ conv ─▶ relu ─▶ clone(contiguous) ─▶ out

The core makes the plan (`plan_calls`): a dim order for every value and, for every call, the order in which it
reads each of its operands. This module walks once over a copy of the graph, front to back::

    planned_orders.py    the plan                  boundary_layout.py   inputs, weights and outputs
    program_copy.py      the copy and its strides  calls.py             calls
    conversions.py       adds conversions, each only once, for calls and outputs

There are two modes:

* *annotate* writes strides. A node whose fake tensor has another order than the plan's gets a fake tensor
  that is dense in the planned order. Nothing is inserted: the compiler that reads the program has to insert
  the transposes of the plan.
* *convert* changes the computation. If a call reads an operand in another order than the operand has, the
  operand is converted, once for all calls that read that order. The fake results of all later nodes whose
  operands changed their strides are computed again. If fake tensors may record other strides than torch
  computes, the call is computed on zeros (`eager_strides`). ``meta["val"]`` then records the strides that
  torch computes.

In both:

* an input or output has the order that its entry in `orders` says: as traced, declared, or converted inside
  the program (`Convert`);
* a conversion of a quantized value converts its integers: it comes after the quantize call and before the
  dequantize call, so that a pattern dequantize, operator, quantize stays intact;
* a call that names the order of its result (``clone``, ``_to_copy``, ``_clone_dim_order`` ... with a memory
  format) never contradicts that name: *annotate* does not change its order, *convert* makes the call name the
  planned order;
* weights, and values computed from weights alone, are not changed unless `weights` is true;
* a call that addresses memory by strides (``as_strided``) gets its operand as traced;
* nested graphs are not entered: they get their operands as traced.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch.export.graph_signature import ExportGraphSignature

from tosaic import _core
from tosaic.base.options import invalid, is_one_of, shown
from tosaic.fx.layouts.applied import AppliedLayout
from tosaic.fx.layouts.boundaries import Boundaries
from tosaic.fx.layouts.boundary_layout import BoundaryLayout
from tosaic.fx.layouts.calls import CallLayout
from tosaic.fx.layouts.conversions import Conversions
from tosaic.fx.layouts.planned_orders import PlannedOrders
from tosaic.fx.layouts.program_copy import WHERE, ProgramCopy, writes
from tosaic.fx.reading.exported_program import functional_hint, read_program
from tosaic.lowering.layout import Objective
from tosaic.torch_operators.origins import Where


def apply_program_layout(
    program: Any,
    *,
    mode: Literal["annotate", "convert"],
    orders: Mapping[str, Any] | None,
    weights: bool,
    objective: Objective,
    bind: Any,
) -> AppliedLayout:
    """See `tosaic.fx.apply_layout`."""
    if not is_one_of(mode, ("annotate", "convert")):
        raise invalid(WHERE, "unknown mode", expected="annotate or convert", got=shown(mode))
    read = read_program(program, bind=bind)
    boundaries = Boundaries(read.imported.graph, orders)
    made = ProgramCopy(program, read)
    plan = PlannedOrders(made, boundaries, objective)
    converts = mode == "convert"
    if converts or boundaries.any_converted:
        _refuse_mutation(made)
    conversions = Conversions(made)
    borders = BoundaryLayout(made, boundaries, plan, conversions, converts=converts, weights=weights)
    calls = CallLayout(made, plan, conversions, converts=converts, weights=weights)
    *nodes, output = made.graph.nodes
    for node in nodes:
        if node.op == "placeholder":
            borders.lay_input(node)
        elif node.op == "get_attr":
            made.constant.add(node)
    for node in nodes:
        if node.op == "placeholder":
            borders.convert_input(node)
        elif node.op == "call_function":
            calls.lay(node)
    signature = borders.lay_outputs(output)
    for node in (each for each in conversions.replaced if not each.users):
        made.graph.erase_node(node)
        nodes.remove(node)
    return AppliedLayout(
        _finished(made, borders, signature),
        plan.layout,
        dict(_planned(made, plan, weights)),
        tuple(node.name for node in nodes if made.has_changed(node)),
        tuple(conversions.report()),
        tuple(calls.unmet),
    )


def _refuse_mutation(made: ProgramCopy) -> None:
    for node in filter(writes, made.graph.nodes):
        raise Where.of(node, WHERE).error(
            _core.UnsupportedOp,
            f"{node.target} writes to its operand, of which a conversion would be a copy",
            hint=functional_hint(made.program),
        )


def _planned(made: ProgramCopy, plan: PlannedOrders, weights: bool) -> Iterator[tuple[str, Any]]:
    """Yields the planned orders of the nodes that are in the given program, too."""
    for node in made.graph.nodes:
        orders = plan.of(node) if node in made.old else None
        if orders is not None and (weights or node not in made.constant):
            yield node.name, orders


def _finished(
    made: ProgramCopy, borders: BoundaryLayout, signature: ExportGraphSignature
) -> torch.export.ExportedProgram:
    program = made.program
    made.graph.lint()
    return torch.export.ExportedProgram(
        root=program.graph_module,
        graph=made.graph,
        graph_signature=signature,
        state_dict=borders.state,
        range_constraints=copy.deepcopy(program.range_constraints),
        module_call_graph=copy.deepcopy(program.module_call_graph),
        example_inputs=borders.examples(),
        constants=borders.lifted,
        verifiers=program.verifiers,
    )
