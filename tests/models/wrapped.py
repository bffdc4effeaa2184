"""Wrapped partitioners of ExecuTorch: six real ones, and what has to hold of the tags that they return.

The checks read the tags with code of their own: they know nothing of how the wrapper found them.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.lowered_backend_module import get_lowered_submodules
from torch.export.graph_signature import InputKind, OutputKind
from tosaic import _core

from models.zoo import quiet

__all__ = [
    "INTEGER_ONLY",
    "PARTITIONERS",
    "Delegate",
    "Watched",
    "damaged",
    "delegates",
    "files_for_vela",
    "lower",
    "without_lost_activations",
]


def _tosa(spec: str) -> Callable[[], Partitioner]:
    def make() -> Partitioner:
        from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
        from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

        return TOSAPartitioner(TosaCompileSpec(spec))

    return make


def _vgf() -> Partitioner:
    from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner

    return VgfPartitioner(VgfCompileSpec("TOSA-1.0+FP+INT"))


def _ethos_u() -> Partitioner:
    from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner

    return EthosUPartitioner(EthosUCompileSpec("ethos-u85-256"))


def _xnnpack() -> Partitioner:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return XnnpackPartitioner()


PARTITIONERS: dict[str, Callable[[], Partitioner]] = {
    "tosa-fp": _tosa("TOSA-1.0+FP"),
    "tosa-int": _tosa("TOSA-1.0+INT"),
    "tosa-int+fp": _tosa("TOSA-1.0+INT+FP"),
    "vgf": _vgf,
    "ethos-u": _ethos_u,
    "xnnpack": _xnnpack,
}
INTEGER_ONLY = {"tosa-int", "ethos-u"}


def lower(program: Any, partitioners: Sequence[Partitioner]) -> Any:
    """Returns the EdgeProgramManager of ExecuTorch's lowering."""
    with quiet(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return to_edge_transform_and_lower(program, partitioner=list(partitioners))


@contextlib.contextmanager
def files_for_vela() -> Iterator[dict[bytes, bytes]]:
    """Collects the `.tosa` files that ExecuTorch's Ethos-U backend gives to Vela, by Vela's result.

    Vela's result is the payload of the delegate, and only the device runs it.
    """
    from executorch.backends.arm.ethosu import backend

    files: dict[bytes, bytes] = {}
    compile_file = backend.vela_compile

    def watched(file: bytes, *args: Any, **kwargs: Any) -> Any:
        result = compile_file(file, *args, **kwargs)
        known = files.setdefault(result.processed_bytes, bytes(file))
        assert known == bytes(file), "Vela made the same of two files"
        return result

    backend.vela_compile = watched
    try:
        yield files
    finally:
        backend.vela_compile = compile_file


def without_lost_activations(program: Any) -> tuple[Any, int]:
    """Returns the module of a quantized program as Arm's lowering of ExecuTorch 1.5 computes it.

    Its `FuseQuantizedActivationPass` removes a ReLU between a convolution or linear layer and a quantize
    node, and makes the zero point the least integer of the quantize node. The RESCALE that the quantize node
    becomes has no such limit: it saturates at the least integer of its dtype. So the ReLU is lost unless the
    zero point is that integer. The second result is the number of these.
    """
    module = program.module(check_guards=False)
    lost = [node for node in module.graph.nodes if _is_lost(node)]
    for node in lost:
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)
    module.recompile()
    return module, len(lost)


def _is_lost(node: Any) -> bool:
    aten = torch.ops.aten
    users = list(node.users)
    if len(users) != 1 or "quantize_per_tensor" not in str(users[0].target):
        return False
    _, scale, zero_point, qmin, qmax, *_ = users[0].args
    if node.target in (aten.hardtanh.default, aten.relu6.default, aten.hardtanh_.default):
        low, high = (0, 6) if node.target is aten.relu6.default else (node.args[1], node.args[2])
        is_fused = low == 0 and round(high / scale) + zero_point >= qmax
    else:
        is_fused = node.target in (aten.relu.default, aten.relu_.default)
    source = node.args[0] if is_fused else None
    layers = (aten.conv1d.default, aten.conv2d.default, aten.conv_transpose2d.input, aten.linear.default)
    return source is not None and source.target in layers and len(source.users) == 1 and zero_point > qmin


@dataclass(frozen=True)
class Delegate:
    """A delegate of a lowered program, with the dtypes of its inputs and outputs."""

    backend: str
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    calls: int
    module: Any

    @property
    def floats(self) -> int:
        return sum(dtype.is_floating_point for dtype in (*self.inputs, *self.outputs))


def delegates(manager: Any) -> list[Delegate]:
    """Returns the delegates of a lowered program, in order."""
    found = []
    for _, module, _ in get_lowered_submodules(manager.exported_program().graph_module):
        program = module.original_module
        nodes = {node.name: node for node in program.graph.nodes}
        signature = program.graph_signature
        inputs = [nodes[name].meta["val"].dtype for name in signature.user_inputs]
        outputs = [nodes[name].meta["val"].dtype for name in signature.user_outputs]
        calls = sum(node.op == "call_function" for node in nodes.values())
        found.append(Delegate(module.backend_id, tuple(inputs), tuple(outputs), calls, module))
    return found


def damaged(file: bytes) -> bytes:
    """Returns a `.tosa` file whose largest constant has other numbers."""
    arrays = [value.constant.array for value in _core.deserialize(file).values if value.constant is not None]
    for array in sorted(arrays, key=lambda array: -array.nbytes):
        held = array.tobytes()
        at = file.find(held)
        if len(held) >= 16 and at >= 0:
            return file[:at] + bytes(byte ^ 0x15 for byte in held) + file[at + len(held) :]
    return file


class Watched(Partitioner):
    """A wrapped partitioner, and what is wrong with the tags that it returns.

    Attributes
    ----------
    wrong : list of str
    groups : int
        The number of tags of the last program.
    claimed : Counter
        How many calls of each operator the inner partitioner takes, without those that quantize, dequantize
        or only move elements.
    """

    def __init__(
        self,
        wrapped: Any,
        *,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        host: str = "",
        integer_only: bool = False,
    ) -> None:
        super().__init__()
        self.wrapped = wrapped
        self._asked = {"input": set(inputs), "output": set(outputs)}
        self._host = host
        self._integer_only = integer_only
        self.wrong: list[str] = []
        self.groups = 0
        self.claimed: Counter[str] = Counter()

    def ops_to_not_decompose(self, ep: Any) -> Any:
        return self.wrapped.ops_to_not_decompose(ep)

    def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
        return self.wrapped.transform_for_pre_decomposition(exported_program)

    def partition(self, exported_program: Any) -> PartitionResult:
        nodes = list(exported_program.graph.nodes)
        with quiet(), contextlib.redirect_stdout(io.StringIO()):
            self.wrapped.inner.partition(exported_program)
            before = {node: node.meta.pop("delegation_tag", None) for node in nodes}
            result = self.wrapped.partition(exported_program)
        after = {node: node.meta.get("delegation_tag") for node in nodes}
        self.groups = len(result.partition_tags)
        self.claimed = Counter(
            str(_operator(node)) for node, tag in before.items() if tag and _computes(node)
        )
        self.wrong += _wrong_tags(nodes, after, result.partition_tags)
        self.wrong += self._wrong_ports(exported_program, before, after)
        self.wrong += self._wrong_hosts(nodes, after)
        if self._integer_only:
            self.wrong += _floats_at_borders(exported_program, after)
        return result

    def _wrong_ports(self, program: Any, before: Any, after: Any) -> Iterator[str]:
        """Yields quantize and dequantize nodes of inputs and outputs that are on the wrong side."""
        for side, index, port, found in _quantized_ports(program):
            for node in found:
                if index in self._asked[side]:
                    if after[node] is not None:
                        yield f"{node.name} of {side} {index} is in {after[node]}"
                elif (before[node] is None) != (after[node] is None) and port and not self._integer_only:
                    yield f"{node.name} of {side} {index}, which nobody asked for, changed sides"
            if index in self._asked[side] and not found:
                yield f"{side} {index} has no quantize or dequantize node"

    def _wrong_hosts(self, nodes: Sequence[Any], after: Any) -> Iterator[str]:
        """Yields host operators that are in a delegate, and their floats that enter or leave one."""
        for node in nodes:
            if not self._host or self._host not in str(node.target) or node.op != "call_function":
                continue
            near = [node]
            near += [each for each in node.all_input_nodes if "dequantize" in str(each.target)]
            near += [each for each in node.users if "quantize" in str(each.target)]
            yield from (f"{each.name} is in {after[each]}" for each in near if after[each] is not None)


def _operator(node: Any) -> Any:
    """Returns the operator of torch that a node calls."""
    return (
        node.target if isinstance(node.target, torch._ops.OpOverload) else getattr(node.target, "_op", None)
    )


def _computes(node: Any) -> bool:
    value, operator = node.meta.get("val"), _operator(node)
    if node.op != "call_function" or operator is None or not isinstance(value, torch.Tensor):
        return False
    moves = torch.Tag.view_copy in operator.tags or "clone" in str(operator) or "dim_order" in str(operator)
    return not moves and "quantize" not in str(operator)


def _wrong_tags(nodes: Sequence[Any], tag: Any, partition_tags: Any) -> Iterator[str]:
    """Yields tags without a partition, partitions without nodes, and partitions that wait for each other."""
    used = {each for each in tag.values() if each is not None}
    yield from (f"tag {each} has no partition" for each in sorted(used - set(partition_tags)))
    working = {tag[node] for node in nodes if node.op != "placeholder"}
    yield from (f"partition {each} has no nodes" for each in sorted(set(partition_tags) - working))
    waits: dict[Any, set[Any]] = {}
    for node in nodes:
        own = tag[node] or node if node.op != "placeholder" else node
        for each in node.all_input_nodes:
            other = tag[each] or each if each.op != "placeholder" else each
            if other != own:
                waits.setdefault(own, set()).add(other)
    ready = {each for others in waits.values() for each in others} - set(waits)
    while waits:
        free = [each for each, others in waits.items() if others <= ready]
        if not free:
            yield f"{len(waits)} partitions and nodes wait for each other"
            return
        for each in free:
            ready.add(each)
            del waits[each]


def _floats_at_borders(program: Any, tag: Any) -> Iterator[str]:
    users = {
        spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT
    }
    for node in program.graph.nodes:
        for each in node.all_input_nodes:
            is_float = getattr(getattr(each.meta.get("val"), "dtype", None), "is_floating_point", False)
            is_held = each.op == "placeholder" and each.name not in users
            if is_float and not is_held and tag[each] != tag[node]:
                yield f"a float passes from {each.name} ({tag[each]}) to {node.name} ({tag[node]})"


def _quantized_ports(program: Any) -> Iterator[tuple[str, int, Any, list[Any]]]:
    """Yields side, index, node, and the quantize or dequantize nodes at it, through paddings and views."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = [s.arg.name for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    for i, name in enumerate(inputs):
        readers = list(nodes[name].users)
        for user in readers:
            if any(moved in str(user.target) for moved in ("constant_pad", "view_copy", "permute_copy")):
                readers += user.users  # the loop goes on with these
        yield "input", i, nodes[name], [each for each in readers if ".quantize_per" in str(each.target)]
    outputs = [s.arg.name for s in signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    for i, name in enumerate(outputs):
        made = [nodes[name]] if ".dequantize_per" in str(nodes[name].target) else []
        yield "output", i, nodes[name] if outputs.count(name) == 1 else None, made
