"""ExecuTorch's Cortex-M passes over a program of which Cortex-M computes only some calls.

Each pass of ``CortexMPassManager`` runs unchanged, behind a guard. The guard does not let the pass see calls
that are not claimed. If the pass raises an error, the guard records the call for which it raised: the call
that the pass replaces, or the node in the local variables of the function that raised. A node is *refused* if
a pass raises an error for it, or leaves it in a form that does not compute with integers.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from executorch.backends.arm.quantizer.arm_quantizer_utils import SharedQspecQuantizer
from executorch.backends.cortex_m import passes as passes_of_executorch
from executorch.backends.cortex_m.passes.aten_to_cortex_m_pass import AtenToCortexMPass
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
from executorch.exir.pass_base import ExportPass, ProxyValue

from tosaic import _core
from tosaic.base.options import unsupported
from tosaic.base.process import log_captured
from tosaic.executorch.cortex_m.call_marks import call_of, is_claimed, marked_nodes, nodes_by_call
from tosaic.executorch.cortex_m.claimed_forms import MOST_TRANSPOSED
from tosaic.executorch.cortex_m.planned_calls import kernel_of
from tosaic.fx.io.quantize_calls import inserted_by, is_dequantize, is_move, is_quantize, is_tensor, schema_of

_WHERE = "cortex_m_program"
_SAME_QUANTIZATION = {
    op._schema.name for op in SharedQspecQuantizer.SHARED_QSPEC_OPS_DEFAULT if hasattr(op, "_schema")
}


class _StoppedError(Exception):
    """A pass cannot go on, because a call is refused."""


@dataclass
class PassRun:
    """One run of the passes.

    Attributes
    ----------
    refused : dict of str to str
        By name of a claimed call: why it does not become a kernel of Cortex-M.
    merged : dict of str to str
        By name of a claimed call that has no node any more: the pass that merged it into another call.
    program : torch.export.ExportedProgram, optional
        The program after the passes; None if a pass could not go on.
    """

    refused: dict[str, str] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)
    program: Any = None
    _said: dict[str, list[str]] = field(default_factory=dict)

    def run(self, program: Any, target: Any) -> None:
        """Runs the passes over a marked edge program, which they change.

        Parameters
        ----------
        program : torch.export.ExportedProgram
        target : executorch.backends.cortex_m.target_config.CortexMTargetConfig

        Raises
        ------
        UnsupportedOp
            A pass fails for another reason than a claimed call.
        """
        guarded = [_guarded(pass_class, self) for pass_class in CortexMPassManager.pass_list]
        with log_captured(passes_of_executorch.__name__) as messages:
            self._messages = messages
            try:
                manager = CortexMPassManager(program, passes=guarded, target_config=target)
                self.program = manager.transform()
            except Exception as error:
                cause = _cause(error)
                if isinstance(cause, _StoppedError):
                    return
                raise cause from cause.__cause__
        self._check()

    @contextmanager
    def within(self, pass_class: type, graph: Any) -> Iterator[None]:
        """Records the messages of a pass about calls, and refuses the call for which it fails.

        Raises
        ------
        UnsupportedOp
            The pass fails for another reason than a claimed call.
        """
        calls = {node.name: call_of(node.meta) for node in graph.nodes}
        self._messages.clear()
        try:
            yield
        except Exception as error:
            if isinstance(_cause(error), _StoppedError):
                raise
            node = _node_at(error)
            if node is not None and _is_claimed_call(node):
                self.refuse(str(call_of(node.meta)), pass_class, error)
                raise _StoppedError from error
            raise unsupported(
                _WHERE,
                f"ExecuTorch's {pass_class.__name__} fails on this program",
                got=f"{type(error).__name__}: {error}",
                hint=_hint(node),
            ) from error
        for message in self._messages:
            for word in re.findall(r"\w+", message):
                if (call := calls.get(word)) is not None:
                    self._said.setdefault(call, []).append(f"{pass_class.__name__}: {message.rstrip('.')}")

    def refuse(self, call: str, pass_class: type, error: Exception) -> None:
        """Records that a pass raised an error for a call."""
        reason = str(error).partition("\n\n")[0].strip() or type(error).__name__
        self.refused.setdefault(call, f"{pass_class.__name__}: {reason}")

    def refuse_unreplaced(self, graph: Any) -> None:
        """Refuses claimed calls that no kernel computes, after the pass that replaces calls by kernels."""
        for call, nodes in nodes_by_call(graph).items():
            for node in nodes:
                if is_claimed(node.meta) and (reason := _unreplaced(node)):
                    self._refuse_with_messages(call, reason)

    def _check(self) -> None:
        """Refuses claimed calls without a kernel, and calls whose integers are read as floats."""
        for call, nodes in nodes_by_call(self.program.graph).items():
            for node in nodes:
                reason = _fault(node) if is_claimed(node.meta) else ""
                if reason:
                    self._refuse_with_messages(call, reason)

    def _refuse_with_messages(self, call: str, reason: str) -> None:
        """Refuses a call, with what the passes have logged about it."""
        self.refused.setdefault(call, "; ".join([*dict.fromkeys(self._said.get(call, ())), reason]))


def _cause(error: BaseException) -> BaseException:
    """Returns our error among the causes of an error of ExecuTorch; else the error itself."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, _StoppedError | _core.Error):
        found = found.__cause__
    return error if found is None else found


def _node_at(error: BaseException) -> Any:
    """Returns the node for which a pass raised, from local variables; None if none of them is a marked node.

    In the innermost function with marked nodes, it is the first claimed call, or else the first node.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        marked = marked_nodes(frame.f_locals.values())
        for node in (*filter(_is_claimed_call, marked), *marked):
            return node
    return None


def _is_claimed_call(node: Any) -> bool:
    """True for a part of a claimed call that is no quantize or dequantize call."""
    is_part = call_of(node.meta) is not None and is_claimed(node.meta)
    return is_part and not is_quantize(node) and not is_dequantize(node)


def _hint(node: Any) -> str:
    """Returns the remedy for a pass that fails on a call that is not claimed."""
    calls = [] if node is None else _claimed_readers(node)
    if not calls:
        return "Deny operators until it passes: Claimant.named(...).deny(op=...)"
    names = ", ".join(repr(each) for each in calls)
    return f"It fails on '{call_of(node.meta)}'. Deny what reads it: Claimant.named(...).deny(name=[{names}])"


def _claimed_readers(node: Any) -> list[str]:
    """Returns the claimed calls that read what a node computes, through calls that are not claimed."""
    found: dict[str, None] = {}
    pending, seen = list(node.users), set()
    while pending:
        reader = pending.pop(0)
        if reader in seen or reader.op != "call_function":
            continue
        seen.add(reader)
        if _is_claimed_call(reader):
            found[str(call_of(reader.meta))] = None
        else:
            pending += reader.users
    return list(found)


def _fault(node: Any) -> str:
    """Returns the reason why a claimed node does not compute the program's numbers; else empty."""
    if reason := _unreplaced(node):
        return reason
    value = node.meta.get("val")
    was_float = bool(node.meta.get("input_qparams")) and not node.meta.get("output_qparams")
    makes_integers = is_tensor(node) and not value.dtype.is_floating_point
    if was_float and makes_integers and not all(map(_reads_integers, node.users)):
        return "the passes leave its result as integers, which are read as floats"
    return ""


def _unreplaced(node: Any) -> str:
    """Returns the reason why no kernel computes a claimed node; else empty."""
    if kernel_of(node):
        return ""
    if _is_right_on_integers(node):
        floats = [each for each in node.all_input_nodes if _is_of_floats(each)]
        return f"its operand '{call_of(floats[0].meta) or floats[0].name}' stays floats" if floats else ""
    name = getattr(schema_of(node), "name", str(node.target))
    return f"the passes leave it as a call of {name}, without a kernel"


def _is_of_floats(node: Any) -> bool:
    return is_tensor(node) and bool(node.meta["val"].dtype.is_floating_point)


def _reads_integers(node: Any) -> bool:
    """True for a reader that takes integers from a call of Cortex-M."""
    if node.op == "call_function" and (is_dequantize(node) or kernel_of(node) or schema_of(node) is None):
        return True
    return node.op == "call_function" and is_claimed(node.meta)


def _claimed_calls(graph: Any) -> set[str]:
    return {call for call, nodes in nodes_by_call(graph).items() if any(is_claimed(n.meta) for n in nodes)}


def _is_right_on_integers(node: Any) -> bool:
    """True if a kernel of another library may compute a quantized operator directly on its integers.

    Its operands and results must have the same qparams, and it must move elements, or be an operator for
    which ExecuTorch's quantizer demands this.
    """
    schema = schema_of(node)
    if schema is None:
        return True  # an element of a tuple
    sides = [list(node.meta.get(f"{side}_qparams", {}).values()) for side in ("input", "output")]
    distinct = {(str(each.scale), str(each.zp), each.dtype) for side in sides for each in side}
    moves = is_move(node) and inserted_by(node) is None
    return (moves or schema.name in _SAME_QUANTIZATION) and all(sides) and len(distinct) == 1


def _guarded(pass_class: Any, run: PassRun) -> Any:
    """Returns a pass that does not touch calls that are not claimed."""

    class Guarded(pass_class):  # type: ignore[misc]
        def call(self, graph_module: Any) -> Any:
            before = _claimed_calls(graph_module.graph)
            self.graph_before = graph_module.graph
            with run.within(pass_class, graph_module.graph):
                result = super().call(graph_module)
            gone = before - _claimed_calls(result.graph_module.graph)
            run.merged |= dict.fromkeys(gone, pass_class.__name__)
            return result

        def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any, *rest: Any, **more: Any) -> Any:
            if run.refused:  # a substitution failed, and later calls read its node
                raise _StoppedError
            if _is_other(meta.data):
                return ExportPass.call_operator(self, op, args, kwargs, meta)
            try:
                made = super().call_operator(op, args, kwargs, meta, *rest, **more)
                return _as_stored(made, meta.data)
            except Exception as error:
                call = call_of(meta.data)
                if call is None:
                    raise
                if issubclass(pass_class, AtenToCortexMPass):
                    run.refuse_unreplaced(self.graph_before)
                if not run.refused:
                    run.refuse(call, pass_class, error)
                raise _StoppedError from error

    Guarded.__name__ = Guarded.__qualname__ = pass_class.__name__
    if issubclass(pass_class, AtenToCortexMPass):
        Guarded._DIALECT_SUBSTITUTIONS = {
            target: _guarded_substitution(function, pass_class, run)
            for target, function in pass_class._DIALECT_SUBSTITUTIONS.items()
        }
    return Guarded


def _guarded_substitution(
    function: Callable[[Any, Any], Any], pass_class: type, run: PassRun
) -> Callable[[Any, Any], Any]:
    def substitute(node: Any, dialect_pass: Any) -> Any:
        if _is_other(node.meta) or _has_many_axes(node):
            return None
        try:
            return function(node, dialect_pass)
        except Exception as error:
            call = call_of(node.meta)
            if call is None:
                raise
            run.refuse(call, pass_class, error)
            return None

    return substitute


def _has_many_axes(node: Any) -> bool:
    """True for a permutation that only the portable kernel computes."""
    is_permutation = getattr(schema_of(node), "name", "") == "aten::permute_copy"
    return is_permutation and node.meta["val"].dim() > MOST_TRANSPOSED


def _as_stored(made: Any, meta: Any) -> Any:
    """Returns the result of a call with the dtype of its quantized integers.

    Torch infers int32, the type of the sums, for a linear layer, and later calls that move the result would
    keep it: the passes have no kernel for int32 transposes, and torch refuses a product of int8 and int32.
    """
    found = list(meta.get("output_qparams", {}).values())
    value = getattr(made.data, "data", None) if isinstance(made, ProxyValue) else None
    if len(found) != 1 or value is None or value.dtype is found[0].dtype:
        return made
    stored = value.to(found[0].dtype)
    made.node.meta["val"] = stored
    return ProxyValue(stored, made.proxy)


def _is_other(meta: Any) -> bool:
    """True for a part of a call that is not claimed; False for unmarked nodes, which a pass added."""
    return call_of(meta) is not None and not is_claimed(meta)
