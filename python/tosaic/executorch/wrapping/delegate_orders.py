"""`order_conversions`: declares the memory orders of delegates before ExecuTorch makes them.

ExecuTorch refuses a partitioner that changes the program. Passes may change it, and they run before:

    to_edge ─▶ transform_passes ─▶ partitioners ─▶ backends

So this pass runs the partitioners once to learn where the borders will be. It lets ExecuTorch lower the
program with a backend that compiles nothing, so that each partitioner sees the delegates of earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

from executorch.exir.backend.backend_api import to_backend
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult

from tosaic.base.options import layout_mismatch
from tosaic.executorch.conversions import order_operator
from tosaic.executorch.wrapping.border_orders import (
    CONVERSION,
    WrongBorder,
    converted_at_borders,
    wrong_borders,
)
from tosaic.executorch.wrapping.declared_orders import CHANNELS_LAST, BorderOrders, Order
from tosaic.executorch.wrapping.regroup import TAG
from tosaic.fx.io.graph_copy import copied_graph, with_names_of_results
from tosaic.fx.io.io_quantization import program_with
from tosaic.torch_operators.origins import place_of

__all__ = ["OrderConversions", "is_trial", "require_orders"]

_TRIAL: ContextVar[bool] = ContextVar("tosaic_order_trial", default=False)


def is_trial() -> bool:
    """True while the pass runs the partitioners to find the borders, before it inserts conversions."""
    return _TRIAL.get()


class OrderConversions(ExportedProgramPassBase):  # type: ignore[misc]
    """The pass that `tosaic.executorch.order_conversions` returns."""

    def __init__(self, partitioners: Sequence[Partitioner]) -> None:
        self._partitioners = tuple(partitioners)

    def call(self, exported_program: Any) -> ExportedProgramPassResult:
        """Returns a program with conversions at the borders of its future delegates.

        The program itself is returned if no border needs one.

        Raises
        ------
        LayoutMismatch
            ExecuTorch has no conversion to an order.
        InvalidGraph
            An entry of `orders` names no tensor that enters (or leaves) a delegate of its partitioner.
        """
        orders = {i: each.orders for i, each in enumerate(self._partitioners) if hasattr(each, "orders")}
        declared = {i: each.in_program(exported_program) for i, each in orders.items() if each is not None}
        if not declared:
            return ExportedProgramPassResult(exported_program, False)
        names = self._delegates(exported_program)
        graph, _ = copied_graph(exported_program.graph)
        group = {node: names[node.name] for node in graph.nodes if node.name in names}
        changed = converted_at_borders(
            graph,
            {node: each for node, each in group.items() if node.op != "placeholder"},
            {each: declared[each[0]] for each in group.values() if each[0] in declared},
            [node for node in group if node.op == "placeholder"],
            lambda node, order: _operator(exported_program, node, order),
        )
        for borders in declared.values():
            borders.require_used("order_conversions")
        if not changed:
            return ExportedProgramPassResult(exported_program, False)
        signature = with_names_of_results(exported_program.graph_signature, graph)
        made = program_with(exported_program, graph, signature, exported_program.example_inputs)
        return ExportedProgramPassResult(made, True)

    def _delegates(self, program: Any) -> dict[str, tuple[int, str]]:
        """Returns the partitioner and the tag of each node that goes into a delegate, by name."""
        found: dict[str, tuple[int, str]] = {}
        with _trial():
            for i, partitioner in enumerate(self._partitioners):
                trial = _Trial(partitioner)
                program = to_backend(program, trial)
                for name, tag in trial.tags.items():
                    found.setdefault(name, (i, tag))
        return found


def _operator(program: Any, node: Any, order: Order) -> tuple[Any, dict[str, Any]]:
    rank = len(order)
    if order in (tuple(range(rank)), CHANNELS_LAST):
        return order_operator(program, order)
    raise layout_mismatch(
        "order_conversions",
        f"ExecuTorch has no conversion to the order that the program gives to {place_of(node)}",
        expected=f"{tuple(range(rank))}, or {CHANNELS_LAST} at rank 4",
        got=str(order),
    )


@contextmanager
def _trial() -> Iterator[None]:
    token = _TRIAL.set(True)
    try:
        yield
    finally:
        _TRIAL.reset(token)


@final
class TosaicTrialBackend(BackendDetails):  # type: ignore[misc]
    """A backend that compiles nothing. ExecuTorch finds it by its name."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:  # noqa: ARG004
        return PreprocessResult(processed_bytes=b"")


class _Trial(Partitioner):  # type: ignore[misc]
    """Tags nodes like another partitioner, but for the backend that compiles nothing."""

    def __init__(self, inner: Partitioner) -> None:
        super().__init__()
        self._inner = inner
        self.tags: dict[str, str] = {}

    def partition(self, exported_program: Any) -> PartitionResult:
        result = self._inner.partition(exported_program)
        program = result.tagged_exported_program
        self.tags = {node.name: node.meta[TAG] for node in program.graph.nodes if node.meta.get(TAG)}
        specs = {tag: DelegationSpec(TosaicTrialBackend.__name__, []) for tag in result.partition_tags}
        return PartitionResult(tagged_exported_program=program, partition_tags=specs)


# ---- after the partitioner ----


def require_orders(inner: Partitioner, program: Any, orders: BorderOrders | None) -> None:
    """Checks the borders of a program that a partitioner has tagged.

    Raises
    ------
    LayoutMismatch
        A tensor enters or leaves a delegate in another order than declared.
    """
    if orders is None or is_trial():
        return
    nodes = program.graph.nodes
    group = {node: node.meta[TAG] for node in nodes if node.op != "placeholder" and node.meta.get(TAG)}
    held = [node for node in nodes if node.op == "placeholder" and node.meta.get(TAG)]
    borders = dict.fromkeys(group.values(), orders.in_program(program))
    wrong = next(wrong_borders(program.graph, group, borders, held), None)
    if wrong is not None:
        raise _refusal(inner, program, wrong)


def _refusal(inner: Partitioner, program: Any, wrong: WrongBorder) -> Exception:
    if any(node.meta.get(CONVERSION) for node in program.graph.nodes):
        hint = f"{type(inner).__name__} does not take a conversion that belongs into its delegate"
    else:
        hint = (
            "Pass transform_passes=tosaic.executorch.order_conversions(partitioners) to "
            "to_edge_transform_and_lower: a partitioner itself must not change the program"
        )
    return layout_mismatch(
        "wrap_partitioner",
        f"an {wrong.side} of a delegate does not have the order of 'orders': {place_of(wrong.node)}",
        expected=str(wrong.declared),
        got=str(tuple(wrong.node.meta["val"].dim_order())),
        hint=hint,
    )
