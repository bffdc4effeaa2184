"""Partitioners that wrap others: the inner one tags nodes, and then some tags are removed.

    inner.partition(program)     tags
    outside                      nodes that lose their tags: tosaic.executorch.wrapping.outside
    regrouped                    groups of the remaining nodes: tosaic.executorch.wrapping.regroup
    tags of the result           one for each group; constants follow the nodes that read them

Operators of `host_ops` stay whole until the program is partitioned. After the lowering, ExecuTorch asks again
for whole operators, and refuses a program that still has one. Then host operators are not returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.operator.convert import to_out_variant

from tosaic.base.options import invalid, shown
from tosaic.base.target import profiles_named
from tosaic.executorch.wrapping.border_orders import CONVERSION
from tosaic.executorch.wrapping.declared_orders import BorderOrders
from tosaic.executorch.wrapping.delegate_orders import require_orders
from tosaic.executorch.wrapping.host_operators import modules_of
from tosaic.executorch.wrapping.outside import Outside
from tosaic.executorch.wrapping.regroup import TAG, Tag, regrouped
from tosaic.fx.io.quantize_calls import torch_operator

Kept = tuple[list[Any], Callable[[Any], bool] | None]
"""What ``ops_to_not_decompose`` returns."""


def require_partitioner(where: str, option: str, value: Any) -> Partitioner:
    """Returns a partitioner; raises InvalidGraph for anything else."""
    if isinstance(value, Partitioner):
        return value
    got = f"the class {value.__name__}, which has to be called" if isinstance(value, type) else shown(value)
    raise invalid(
        where,
        f"'{option}' is no partitioner",
        expected="an executorch.exir.backend.partitioner.Partitioner",
        got=got,
    )


class _Around(Partitioner):  # type: ignore[misc]
    """A partitioner that forwards all attributes of an inner one."""

    def __init__(self, inner: Partitioner) -> None:
        super().__init__(inner.spec if hasattr(inner, "_spec") else {})
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
        """Returns the program that the inner partitioner makes for decomposition."""
        transform = getattr(self.inner, "transform_for_pre_decomposition", None)
        return exported_program if transform is None else transform(exported_program)


class WrappedPartitioner(_Around):
    """What `tosaic.executorch.wrap_partitioner` returns.

    Attributes
    ----------
    inner : Partitioner
    orders : BorderOrders or None
        The declared memory orders of delegates.
    """

    def __init__(
        self, inner: Partitioner, outside: Outside, integer_only: bool | None, orders: BorderOrders | None
    ) -> None:
        super().__init__(inner)
        self.orders = getattr(inner, "orders", None) if orders is None else orders
        self._outside = outside
        self._integer_only = integer_only

    def partition(self, exported_program: Any) -> PartitionResult:
        """Tags nodes as the inner partitioner does, except for those that stay outside.

        Raises
        ------
        InvalidGraph
            An input or output does not exist, or the program does not call an operator of `host_ops`.
        QuantMismatch
            An input or output that was named is not quantized.
        LayoutMismatch
            A tensor enters or leaves a delegate in another order than `orders` says.
        """
        outside = self._nodes_outside(exported_program)
        result = self.inner.partition(exported_program)
        program = result.tagged_exported_program
        by_name = {node.name: node for node in exported_program.graph.nodes}
        if program is not exported_program and any(by_name.get(n.name) is not n for n in program.graph.nodes):
            outside = self._nodes_outside(program)  # the inner one returned a copy
        tags = [Tag(name, self._is_integer_only(spec)) for name, spec in result.partition_tags.items()]
        names = _Names(tag.name for tag in tags)
        held = _Placeholders(program)
        for module in modules_of(program.graph_module):
            groups = regrouped(module.graph, tags, outside, held.is_constant)
            for node in module.graph.nodes:
                if node.op != "placeholder":
                    node.meta.pop(TAG, None)
            for tag, found in groups.items():
                for name, nodes in zip(names.of(tag, len(found)), found, strict=True):
                    for node in nodes:
                        node.meta[TAG] = name
        held.follow_readers()
        require_orders(self.inner, program, self.orders)
        used = {node.meta.get(TAG) for m in modules_of(program.graph_module) for node in m.graph.nodes}
        kept = {
            name: spec
            for tag, spec in result.partition_tags.items()
            for name in names.made[tag]
            if name in used
        }
        return PartitionResult(tagged_exported_program=program, partition_tags=kept)

    def ops_to_not_decompose(self, ep: Any) -> Kept:
        """Returns the operators that the inner partitioner wants whole, and the operators of `host_ops`.

        A host operator without an out variant has no kernel: it is decomposed, and its parts stay outside.
        """
        operators, accept = self.inner.ops_to_not_decompose(ep)
        host = self._outside.host
        if str(ep.dialect) == "EDGE":  # asked after lowering for operators that must not remain
            kept = [each for each in operators if not host.hold(each)]
            return kept, None if accept is None else lambda node: not host.match(node) and accept(node)
        called = host.overloads_in(ep.graph_module)
        without = {operator for operator in called if not has_out_variant(operator)}
        joined = list(dict.fromkeys([*operators, *(each for each in called if each not in without)]))
        if accept is None and not without:
            return joined, None

        def is_whole(node: Any) -> bool:
            if host.match(node):
                return torch_operator(node.target) not in without
            return accept is None or accept(node)

        return joined, is_whole

    def transform_for_pre_decomposition(self, exported_program: Any) -> Any:
        """Returns the inner partitioner's program, with own dequantize nodes for outputs and host ops."""
        return self._outside.with_own_dequantize(super().transform_for_pre_decomposition(exported_program))

    def _nodes_outside(self, program: Any) -> set[Any]:
        conversions = {node for node in program.graph.nodes if node.meta.get(CONVERSION)}
        return self._outside.nodes(program) | conversions

    def _is_integer_only(self, spec: Any) -> bool:
        return _integer_only(spec.compile_specs) if self._integer_only is None else self._integer_only


class CombinedPartitioner(_Around):
    """One of several partitioners of a program. It keeps operators whole that any of them wants whole."""

    def __init__(self, inner: Partitioner, members: Sequence[Partitioner]) -> None:
        super().__init__(inner)
        self._members = tuple(members)

    def partition(self, exported_program: Any) -> PartitionResult:
        """Tags nodes as the inner partitioner does."""
        return self.inner.partition(exported_program)

    def ops_to_not_decompose(self, ep: Any) -> Kept:
        """Returns the operators that one of the partitioners wants whole."""
        found = [each.ops_to_not_decompose(ep) for each in self._members]
        operators = list(dict.fromkeys(each for listed, _ in found for each in listed))
        if all(accept is None for _, accept in found):
            return operators, None

        def accept_any(node: Any) -> bool:
            return any(
                _is_listed(node.target, listed) and (accept is None or accept(node))
                for listed, accept in found
            )

        return operators, accept_any


def has_out_variant(operator: Any) -> bool:
    """True if ExecuTorch can call a kernel of an operator of torch on the host."""
    try:
        to_out_variant(operator)
    except (RuntimeError, AssertionError):
        return False
    return True


def _is_listed(target: Any, operators: Sequence[Any]) -> bool:
    operator = torch_operator(target)
    return operator is not None and any(torch_operator(each) is operator for each in operators)


def _integer_only(compile_specs: Sequence[Any]) -> bool:
    """True if the TOSA specification of an Arm backend has integers and no floats: "TOSA-1.0+INT+u55"."""
    for spec in compile_specs:
        if spec.key == "tosa_spec":
            value = spec.value.decode() if isinstance(spec.value, bytes | bytearray) else str(spec.value)
            return profiles_named(value) == {"INT"}
    return False


class _Names:
    """Names for the groups of tags: the first group of a tag keeps the name of the tag."""

    def __init__(self, tags: Iterator[str]) -> None:
        self.made: dict[str, list[str]] = {tag: [tag] for tag in tags}
        self._used = set(self.made)

    def of(self, tag: str, count: int) -> list[str]:
        names = self.made[tag]
        number = len(names)
        while len(names) < count:
            name = f"{tag}_{number}"
            number += 1
            if name not in self._used:
                self._used.add(name)
                names.append(name)
        return names[:count]


class _Placeholders:
    """Parameters, buffers and constants of a program, and whether the inner partitioner tagged them.

    If delegates and the host read a constant, ExecuTorch copies it. ExecuTorch would also copy a buffer that
    the program writes, and the copies would differ. So such a buffer belongs to a delegate only if no other
    node reads it and the delegate computes its new value. A constant that must not be copied (``no_copy``)
    becomes an input of delegates if it has several readers.
    """

    def __init__(self, program: Any) -> None:
        signature = program.graph_signature
        lifted = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        results = next(iter(reversed(program.graph.nodes))).args[0]
        by_result = {result.name: result for result in results if hasattr(result, "name")}
        self._new_value = {
            target: by_result.get(name) for name, target in signature.buffers_to_mutate.items()
        }
        self._buffer_of = dict(signature.inputs_to_buffers)
        self._held = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in lifted]
        self._tagged = {node for node in self._held if node.meta.get(TAG) is not None}

    def is_constant(self, node: Any) -> bool:
        return node in self._tagged and self._buffer_of.get(node.name) not in self._new_value

    def follow_readers(self) -> None:
        """Gives each placeholder that the inner partitioner tagged the tag of its readers."""
        for node in self._tagged:
            del node.meta[TAG]
            readers = {user.meta.get(TAG) for user in node.users}
            tags = sorted(tag for tag in readers if tag is not None)
            target = self._buffer_of.get(node.name)
            if target in self._new_value:
                written = self._new_value[target]
                readers.add(None if written is None else written.meta.get(TAG))
            elif not node.meta.get("no_copy", False):
                readers = set(tags[:1])
            if tags and len(readers) == 1:
                node.meta[TAG] = tags[0]
