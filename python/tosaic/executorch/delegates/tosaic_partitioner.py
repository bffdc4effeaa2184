"""`TosaicPartitioner`: delegates of ExecuTorch that tosaic lowers.

::

    transform_for_pre_decomposition   each reader of a dequantize node gets its own          own_dequantize
    ops_to_not_decompose              calls that will be in delegates stay whole             groups
    partition                         tags                                                   groups
    preprocess                        payloads, by classes that ExecuTorch finds by name     backends
    ops_to_not_decompose, again       ids of the runtimes                                    runtime_ids

ExecuTorch asks ``ops_to_not_decompose`` before it decomposes the program, and again when all delegates are
made.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - registers operators that are left outside of delegates
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

from tosaic.base.options import invalid, refusal, shown, unsupported
from tosaic.executorch.delegates.backends import require_backends
from tosaic.executorch.delegates.claimant_rules import ClaimantRules
from tosaic.executorch.delegates.groups import DelegateGroups, delegate_groups
from tosaic.executorch.delegates.lowering import problems_of_delegate
from tosaic.executorch.delegates.own_dequantize import with_own_dequantize
from tosaic.executorch.delegates.program import constant_placeholders
from tosaic.executorch.delegates.runtime_ids import set_runtime_ids
from tosaic.executorch.delegates.specs import DelegateSpec, compile_specs_of
from tosaic.executorch.delegates.weight_sources import WeightSources
from tosaic.executorch.delegates.whole_operators import decomposed_operators, kept_whole
from tosaic.executorch.wrapping.delegate_orders import is_trial
from tosaic.executorch.wrapping.partitioners import read_outside
from tosaic.executorch.wrapping.regroup import TAG
from tosaic.fx.io.quantize_calls import torch_operator
from tosaic.partitions.claimant import Claimant
from tosaic.partitions.edge_plan import EdgePlan
from tosaic.partitions.payload_kinds import flags_of, kind_of, require_tool
from tosaic.partitions.plan import NodePlace

_WHERE = "TosaicPartitioner"
Kept = tuple[list[Any], Any]
"""What ``ops_to_not_decompose`` returns."""


class TosaicPartitioner(Partitioner):  # type: ignore[misc]
    """A partitioner of ExecuTorch whose delegates tosaic lowers, for runtimes that exist.

    The claimant's verdicts say which calls it takes (`tosaic.partition`). Each delegate is lowered on trial
    before ExecuTorch makes it: calls that do not lower stay outside.

    Parameters
    ----------
    claimant : str or Claimant
        A TOSA target such as ``"TOSA-1.0+INT"`` (payloads are ``.tosa`` files), ``"vgf"`` (VGF files, by
        Arm's model converter), or an Ethos-U such as ``"ethos-u55-128"`` (streams of commands, by Vela).
    quantized_inputs, quantized_outputs : None, "all" or sequence of str or int
        User inputs whose quantize nodes stay outside of delegates, and user outputs whose dequantize nodes
        do, as in `wrap_partitioner`.
    host_ops : sequence
        Operators that stay outside of delegates, as in `wrap_partitioner`.
    flags : sequence of str
        Flags of Vela, such as ``"--optimise=Size"``, or of the model converter.
    compile_specs : sequence of executorch.exir.backend.compile_spec_schema.CompileSpec
        Further compile specs of the delegates, for the runtime.
    runtime : str, optional
        The id of the runtime that reads the payloads. Default: ``TOSABackend``, ``VgfBackend`` or
        ``EthosUBackend``.

    Raises
    ------
    InvalidGraph
        An option has a value that is not accepted, or the claimant does not read TOSA.
    ImportError
        Vela or the model converter is not installed.

    Notes
    -----
    ExecuTorch made partitioners for ``to_edge_transform_and_lower(exported, partitioner=[partitioner])``.
    With ``to_edge`` and ``to_backend``, composite calls are decomposed, `remember` has to be called before,
    and `set_runtime_ids` afterwards.

    Buffers that the program writes stay outside of delegates: a delegate gets their values, and returns the
    new ones. Bodies of control flow are not entered.

    Examples
    --------
    >>> partitioner = tosaic.executorch.TosaicPartitioner("TOSA-1.0+INT")  # doctest: +SKIP
    >>> edge = to_edge_transform_and_lower(exported, partitioner=[partitioner])  # doctest: +SKIP
    >>> open("model.pte", "wb").write(edge.to_executorch().buffer)  # doctest: +SKIP
    """

    def __init__(
        self,
        claimant: str | Claimant,
        *,
        quantized_inputs: Any = None,
        quantized_outputs: Any = None,
        host_ops: Sequence[Any] = (),
        flags: Sequence[str] = (),
        compile_specs: Sequence[Any] = (),
        runtime: str | None = None,
    ) -> None:
        super().__init__()
        self.claimant = claimant if isinstance(claimant, Claimant) else Claimant.named(claimant)
        payload = kind_of(self.claimant, _WHERE)
        if not _is_strings(flags):
            raise refusal(_WHERE, "flags", "a sequence of strings", flags)
        if runtime is not None and not (_is_strings([runtime]) and runtime):
            raise refusal(_WHERE, "runtime", "the id of a runtime, or None", runtime)
        spec = DelegateSpec(
            payload,
            self.claimant.name,
            self.claimant.target,
            payload.runtime if runtime is None else runtime,
            flags_of(payload, self.claimant, flags, _WHERE),
        )
        specs = compile_specs_of(spec, self.claimant, compile_specs)
        require_tool(payload)
        require_backends()
        self.delegation_spec = DelegationSpec(payload.backend, specs)
        self._outside = read_outside(_WHERE, quantized_inputs, quantized_outputs, host_ops)
        self._weights = WeightSources()
        self._found: weakref.WeakKeyDictionary[Any, DelegateGroups] = weakref.WeakKeyDictionary()
        self._whole: dict[Any, None] = {}
        self._plans: list[EdgePlan] = []
        self._rules = ClaimantRules(self.claimant)

    # ---- results ----

    @property
    def plans(self) -> tuple[EdgePlan, ...]:
        """The plans of the programs that were partitioned: one for each method, in ExecuTorch's order."""
        return tuple(self._plans)

    @property
    def plan(self) -> EdgePlan:
        """The plan of the program that was partitioned last.

        Raises
        ------
        InvalidGraph
            No program was partitioned.
        """
        if not self._plans:
            raise invalid(
                _WHERE, "there is no plan yet", expected="a program that was lowered with this partitioner"
            )
        return self._plans[-1]

    def why(self, node: str) -> NodePlace:
        """Returns where a call of the edge program of `plan` goes, with all reasons against it.

        Raises
        ------
        InvalidGraph
            The program has no such call, or there is no plan.
        """
        return self.plan.why(node)

    def remember(self, program: Any) -> None:
        """Records the weights of an edge program, before ``to_backend`` shows the partitioner fake ones.

        Parameters
        ----------
        program : torch.export.ExportedProgram
        """
        if not hasattr(program, "state_dict") or not hasattr(program, "graph_signature"):
            raise refusal(_WHERE, "program", "a torch.export.ExportedProgram", shown(program))
        self._weights.remember(program)

    # ---- what ExecuTorch calls ----

    def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
        """Returns the program in which each reader of a dequantize node has its own."""
        if self._plans:  # of an earlier lowering
            self._plans.clear()
            self._whole.clear()
            self._rules.forget()
        changed = with_own_dequantize(self._outside.with_own_dequantize(exported_program))
        self._weights.remember(changed)
        self._rules.remember(exported_program, changed)
        return changed

    def ops_to_not_decompose(self, ep: Any) -> Kept:
        """Returns the operators whose calls will be in delegates; others are decomposed.

        For an edge program, which ExecuTorch passes when everything is lowered, the delegates also get the
        ids of their runtimes.
        """
        if str(ep.dialect) == "EDGE":
            set_runtime_ids(ep)
            return list(self._whole), None
        self._weights.remember(ep)
        kept = kept_whole(ep, self._groups(ep))
        self._whole.update(dict.fromkeys(kept.operators))
        return list(kept.operators), kept.accept

    def partition(self, exported_program: Any) -> PartitionResult:
        """Tags the calls of delegates, and the constants that they read.

        Raises
        ------
        UnsupportedOp
            The program has a symbolic dimension, or a call that was kept whole for a delegate is in none.
        """
        found = self._groups(exported_program)
        if not is_trial():
            self._plans.append(found.plan)
        self._require_taken(exported_program, found)
        for tag, nodes in found.groups.items():
            for node in nodes:
                node.meta[TAG] = tag
        constants = constant_placeholders(exported_program)
        for node in exported_program.graph.nodes:
            if node.op == "placeholder" and node.name in constants:
                tags = [user.meta[TAG] for user in node.users if TAG in user.meta]
                if tags:
                    node.meta[TAG] = tags[0]
        specs = dict.fromkeys(found.groups, self.delegation_spec)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=specs)

    def _groups(self, program: Any) -> DelegateGroups:
        found = self._found.get(program)
        if found is None:
            real = self._weights.real(_WHERE, program)
            found = self._found[program] = delegate_groups(
                real,
                self._rules,
                problems_of_delegate,
                outside=self._outside.nodes(real),
            )
        return found

    def _require_taken(self, program: Any, found: DelegateGroups) -> None:
        """Refuses a program in which a call that was kept whole for a delegate is in no delegate."""
        inside = {node for nodes in found.groups.values() for node in nodes}
        whole = {*self._whole} & decomposed_operators()
        for node in program.graph.nodes:
            operator = torch_operator(node.target)
            if node.op != "call_function" or node in inside or operator not in whole:
                continue
            place = found.plan.why(node.name)
            reasons = "; ".join(each.problem.message for each in place.refusals)
            raise unsupported(
                _WHERE,
                f"a call of {operator} was kept whole for a delegate, and is in none",
                expected="the same verdict before and after the conversion to the edge dialect",
                got=reasons,
                node=place.node,
                module_path=place.module_path,
                source=place.source,
                hint="Deny the call, so that it is decomposed: Claimant.named(...).deny(name=...)",
            )


def _is_strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
