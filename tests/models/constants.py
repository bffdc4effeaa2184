"""Compares the values of a converted network that depend on no input, at every stage, with torch.

    torch eager, call by call,  <-->  stage imported  <-->  constants of all later stages
    on our operands

A quantize call may differ from torch by one unit if torch's float is within 2 ulp of a tie. Such elements are
counted and listed. All other integers must be equal, and floats within tolerance. At later stages, a
constant is compared if it still has the name of its call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tosaic
from torch.fx import Node
from torch.utils._pytree import tree_map_only
from tosaic import _core

__all__ = ["Constants", "STAGES", "constant_calls", "measure_constants", "violations"]

STAGES = ("imported", "exported", "quantized", "canonical", "tosa")
_TOLERANCE = 2.0**-18
# Operators on constants that may remain in a graph: dequantize, and operators that only move its result.
# Their integers are compared as constants.
_MAY_STAY = frozenset({"dequantize", "expand", "clone", "permute", "reshape", "index", "index_select"})

Array = np.ndarray[Any, Any]


@dataclass
class Constants:
    """What was compared, and what was found.

    Attributes
    ----------
    calls : int
        The number of calls of the exported program that depend on no input.
    integers, floats : dict of str to int
        By stage: the number of elements that were compared.
    ties : list of str
        Elements that differ by one unit and for which torch's float is within 2 ulp of a tie.
    wrong : list of str
        All other differences, as texts.
    not_converted : str
        The reason why there is no converted program, or empty. If there is a reason, all other fields are
        empty.
    """

    calls: int = 0
    integers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    floats: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    ties: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    not_converted: str = ""


def violations(found: Constants) -> list[str]:
    """Returns the conditions that a measurement violates, as texts."""
    return found.wrong


def constant_calls(program: Any) -> tuple[list[Node], dict[Node, Any]]:
    """Returns the calls that depend on no input, and torch's values of them and of their operands."""
    signature = program.graph_signature
    stored = {**program.constants, **program.state_dict}
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    state = set(signature.buffers_to_mutate.values())
    values: dict[Node, Any] = {}
    calls = []
    for node in program.graph_module.graph.nodes:
        if node.op == "placeholder" and node.name in names and names[node.name] not in state:
            values[node] = stored[names[node.name]].detach()
        elif node.op == "get_attr" and isinstance(
            getattr(program.graph_module, node.target, None), torch.Tensor
        ):
            values[node] = getattr(program.graph_module, node.target).detach()
        elif node.op == "call_function" and _is_pure(node) and all(n in values for n in node.all_input_nodes):
            with torch.no_grad():
                values[node] = _called(node, values)
            calls.append(node)
    return calls, values


def _is_pure(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.target.__name__ == "getitem" or (schema is not None and not schema.is_mutable)


def _called(node: Node, values: Mapping[Node, Any]) -> Any:
    args, kwargs = tree_map_only(Node, lambda n: values[n], (node.args, node.kwargs))
    return node.target(*args, **kwargs)


def measure_constants(program: Any, samples: tuple[Any, ...], *, target: str = "TOSA-1.0+INT") -> Constants:
    """Compares all stages of one converted program.

    The sample is only needed to run the imported graph. The compared values do not depend on it.
    """
    try:
        lowered = tosaic.lower(program, target=target)
    except (tosaic.SpecViolation, tosaic.UnsupportedOp):
        lowered = tosaic.lower(program, target=f"{target}+FP")
    calls, values = constant_calls(program)
    out = Constants(len(calls))
    graphs = {name: lowered.stages[name] for name in STAGES if name in lowered.stages}
    folded = _core.run_pass("fold-qdq", graphs["exported"])
    if folded is not None:
        graphs["quantized"] = _core.run_pass("fold-constants", folded) or folded
    ours = _run(graphs["imported"], lowered.source.arrays(*samples))
    found = {node: ours[node.name] for node in calls if node.name in ours}
    for node in calls:
        if isinstance(values[node], torch.Tensor) and node in found:
            _compare_with_torch(node, values, found, out)
    for stage in STAGES[1:]:
        if stage in graphs:
            _compare_stage(stage, graphs[stage], {n.name: a for n, a in found.items()}, out)
    return out


def _run(graph: Any, arrays: list[Any]) -> dict[str, Array]:
    traced = dict(_core.Session(graph).trace(arrays)["values"])
    return {name: np.asarray(array) for name, array in traced.items()}


def _compare_with_torch(
    node: Node, values: Mapping[Node, Any], found: Mapping[Node, Array], out: Constants
) -> None:
    """Compares one call with torch's result for our operands.

    With torch's own operands, every consequence of one tie would be counted again.
    """
    given = {n: _like(found[n], values[n]) if n in found else values[n] for n in node.all_input_nodes}
    with torch.no_grad():
        expected = _called(node, given)
    ours = _like(found[node], expected)
    if tuple(ours.shape) != tuple(expected.shape):
        out.wrong.append(f"{node.name}: shape {tuple(ours.shape)}, torch {tuple(expected.shape)}")
        return
    if expected.is_floating_point():
        out.floats["imported"] += expected.numel()
        finite = expected[torch.isfinite(expected)].double()
        size = float(finite.abs().max()) if finite.numel() else 0.0
        bound = _TOLERANCE * size * (1 if expected.dtype == torch.float32 else 2**16)
        error = (ours.double() - expected.double()).abs()
        same = (ours == expected) | (torch.isnan(ours) & torch.isnan(expected))
        if bool((~same & ~(error <= bound)).any()):
            out.wrong.append(f"{node.name}: {float(error[~same].max()):.3g} of {size:.3g} from torch")
        return
    out.integers["imported"] += expected.numel()
    differs = (ours != expected).nonzero()
    for at in map(tuple, differs.tolist()):
        apart = abs(int(ours[at]) - int(expected[at]))
        where = f"{node.name}{list(at)}: {int(ours[at])}, torch {int(expected[at])}"
        near = apart == 1 and _is_near_tie(node, given, at, int(ours[at]))
        (out.ties if near else out.wrong).append(where)


def _is_near_tie(node: Node, given: Mapping[Node, Any], at: tuple[int, ...], ours: int) -> bool:
    """True for a quantize call if torch quantizes some float within 2 ulp of its operand to our integer."""
    if "quantize_per" not in str(node.target) or "dequantize" in str(node.target):
        return False
    x = given[node.args[0]]
    for direction in (-np.inf, np.inf):
        moved = x.clone().float()
        value = np.float32(moved[at].item())
        for _ in range(2):
            value = np.nextafter(value, np.float32(direction))
            moved[at] = float(value)
            if int(_called(node, {**given, node.args[0]: moved})[at]) == ours:
                return True
    return False


def _like(array: Array, tensor: torch.Tensor) -> torch.Tensor:
    plain = np.array(array.astype(np.float32) if array.dtype.name == "bfloat16" else array, order="C")
    return torch.from_numpy(plain).to(tensor.dtype)


def _compare_stage(stage: str, graph: Any, expected: Mapping[str, Array], out: Constants) -> None:
    """Compares the constants of a stage with the values of the calls of the same names.

    At all stages but tosa, it is an error if such a call is still computed at run time (except _MAY_STAY).
    """
    for value in graph.values:
        if value.name not in expected:
            continue
        if value.kind == "result":
            if value.producer.op not in _MAY_STAY and stage != "tosa":
                out.wrong.append(f"{stage}: '{value.producer.op}' of '{value.name}' is left to a run")
            continue
        if value.kind != "constant":
            continue
        found = np.asarray(value.constant.array)
        if expected[value.name].dtype.kind == "f" and found.dtype.kind != "f":  # quantized integers
            if value.qparams is None:
                continue
            found = _dequantized(found, value.qparams)
        _compare_elements(stage, value.name, found, expected[value.name], out)


def _dequantized(integers: Array, qparams: tosaic.ports.QParams) -> Array:
    """Dequantizes with torch's formula, per tensor or per channel."""
    shape = [1] * integers.ndim
    if qparams.axis is not None:
        shape[qparams.axis] = -1
    scales, zeros = (np.array(each, np.float32) for each in (qparams.scales, qparams.zero_points))
    if qparams.axis is None:
        scales, zeros = scales[0], zeros[0]
        return (integers.astype(np.float32) - zeros) * scales
    return (integers.astype(np.float32) - zeros.reshape(shape)) * scales.reshape(shape)


def _compare_elements(stage: str, name: str, found: Array, torchs: Array, out: Constants) -> None:
    counted = out.floats if found.dtype.kind == "f" else out.integers
    if found.size != torchs.size:  # stored as one element that its readers broadcast
        torchs = np.unique(torchs) if found.size == 1 else torchs
        if found.size != torchs.size:
            out.wrong.append(f"{stage}: '{name}' has {found.size} elements, not {torchs.size}")
            return
    counted[stage] += found.size
    one, two = found.ravel(), torchs.ravel()
    if torchs.dtype == np.uint8 and found.dtype == np.int8:
        two = (two.astype(np.int16) - 128).astype(np.int8)
    if found.shape != torchs.shape:  # the elements may be permuted: compared as multisets
        one, two = np.sort(one), np.sort(two)
    if one.dtype.kind == "f" and two.dtype.kind == "f":
        same = np.array_equal(one.astype(np.float64), two.astype(np.float64), equal_nan=True)
    else:
        same = bool(np.array_equal(one.astype(np.int64), two.astype(np.int64)))
    if not same:
        out.wrong.append(f"{stage}: '{name}' differs in {int(np.count_nonzero(one != two))} of {found.size}")
