"""Reads the calls of an FX graph: one call, one node, by the rows of `tosaic.torch_operators`.

A call that the table does not know becomes an opaque node with its target, its arguments and the result types
that torch recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_list
from torch.utils._pytree import tree_leaves, tree_map_only

from tosaic import _core
from tosaic.fx.reading.decomposed import Expansion, is_random
from tosaic.fx.reading.executed_memory import ExecutedMemory
from tosaic.fx.reading.functional_trial import keeps_numbers
from tosaic.fx.reading.targets import row_for
from tosaic.fx.reading.torch_kernel import NAMESPACES, TorchKernel, is_functional
from tosaic.fx.reading.torch_writer import TorchWriter
from tosaic.fx.reading.weights import CODE_OF, TORCH_OF, dtype_code, is_wrapper
from tosaic.ports.foreign import ForeignOp
from tosaic.torch_operators.complex_values import emit_complex, is_known
from tosaic.torch_operators.foreign_calls import keywords_of
from tosaic.torch_operators.node_reader import NodeReader
from tosaic.torch_operators.operator_row import OperatorRow, getitem_row
from tosaic.torch_operators.reader import FUNCTIONALIZE, OUT_OF_PLACE
from tosaic.torch_operators.value import Complex, NoValue, Ref, Wrapper, tensors_of

_GETITEM = getitem_row()
_PLAIN = frozenset({int, float, bool, str, type(None)})
_LISTS = frozenset({list, tuple, immutable_list, torch.Size})
_CONSTANTS = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)


_SORTED = "Keep all elements: sort them, torch.sort(x)[0], and mark those that differ from the one before"
_MARKED = "Keep all elements, and mark those that differ from the one before: x[1:] != x[:-1]"
_POSITIONS = (
    "Keep all elements, e.g. torch.where(mask, x, 0) in place of x[mask], or say how many positions there "
    "are: torch.nonzero_static(mask, size=..)"
)
_COUNTED = (
    "Say how many numbers there are: torch.nn.functional.one_hot(x, classes).sum(0), or with weights "
    "(torch.nn.functional.one_hot(x, classes) * weights[:, None]).sum(0)"
)
_REPEATED = "Say how many elements there are: torch.repeat_interleave(x, repeats, output_size=..)"
_OF_KNOWN_SIZE = {
    "bincount": _COUNTED,
    "repeat_interleave": _REPEATED,
    **dict.fromkeys(("nonzero", "nonzero_numpy", "argwhere", "where"), _POSITIONS),
    **dict.fromkeys(("_unique", "_unique2"), _SORTED),
    "unique_consecutive": _MARKED,
}
"""By operator with a data-dependent result: a hint to a computation whose result has a known size."""
_MOST_ELEMENTS = 1 << 24  # the largest result that torch computes at import


class Importer(NodeReader):
    """Reads the nodes of one FX graph, with a writer into a builder.

    Parameters
    ----------
    writer : TorchWriter
    owner : torch.nn.Module
        The module whose attributes the graph reads.
    """

    argument_types = _core.ArgumentTypes(Node, Ref, _CONSTANTS, _LISTS)
    plain_calls = _core.PlainCalls(argument_types, FakeTensor, CODE_OF)
    tensor_type = torch.Tensor
    number_types = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)

    writer: TorchWriter

    def __init__(self, writer: TorchWriter, owner: Any) -> None:
        super().__init__(writer, owner)
        self._shared = writer.shared
        self.weights: Mapping[str, torch.Tensor] = {}  # by placeholder name, for the graph of a program

    def resolve(self, target: Any) -> OperatorRow | None:
        """See `NodeReader`."""
        return _GETITEM if target is operator.getitem else row_for(target)

    def read_otherwise(self, row: OperatorRow, values: Sequence[Any]) -> Any:
        """Reads a call by torch: its result if all operands are constants, or else its decomposition."""
        result, reason = self._evaluated(values), ""
        if result is None:
            result, reason = self._decomposed(row, values)
        if result is None:
            result = self.foreign.opaque(row.target, values[: row.required], keywords_of(row, values), reason)
        return result

    def read_complex(self, row: OperatorRow, values: Sequence[Any]) -> Any:
        """Reads a call with complex operands by its parts, or as the calls that torch decomposes it into."""
        if not is_known(row.name, row.emit):
            result, _ = self._decomposed(row, values)
            if result is not None:
                return result
        return emit_complex(self.writer, row.name, row.emit, values)

    def hint_of_size(self, node: Any) -> str:
        """See `NodeReader`."""
        schema = getattr(node.target, "_schema", None)
        return _OF_KNOWN_SIZE.get(str(getattr(schema, "name", "")).removeprefix("aten::"), "")

    def learn_sizes(self, values: Sequence[Any]) -> bool:
        """Learns result sizes that depend on data, if the data is constant; True if it did.

        Torch computes the call on the constants, with zeros in place of the tensor whose elements are chosen.
        """
        node, row = self.writer.node, self.writer.row
        recorded = node.meta.get("val")
        tensors = self._constants_of(values)
        if not isinstance(recorded, torch.Tensor) or not tensors or row is None:
            return False
        if tensors[0] is None and row.name in _CHOOSE_ELEMENTS:
            x = values[0]
            tensors[0] = torch.zeros((), dtype=TORCH_OF[x.dtype]).expand(tuple(x.shape))
        result = self._made_by_torch(values, tensors)
        if not isinstance(result, torch.Tensor):
            return False
        for size, known in zip(recorded.shape, result.shape, strict=True):
            self._shared.sizes.learn(size, known)
        return True

    def _evaluated(self, values: Sequence[Any]) -> Ref | None:
        """Returns torch's result of a call whose tensors are all constants: it is the same in every run."""
        result = self._made_by_torch(values, self._constants_of(values))
        readable = isinstance(result, torch.Tensor) and result.dtype in CODE_OF
        return self.writer.lifted_tensor(result) if readable else None

    def _constants_of(self, values: Sequence[Any]) -> list[torch.Tensor | None]:
        return [ref.held if isinstance(ref, Ref) else None for ref in tensors_of(values)]

    def _made_by_torch(self, values: Sequence[Any], tensors: Sequence[torch.Tensor | None]) -> Any:
        """Returns the result of the call over these tensors.

        Returns None if another run may have another result, or if the result has too many elements.
        """
        target = self.writer.node.target
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or is_random(target):
            return None
        if _has_no_value(values) or any(tensor is None for tensor in tensors):
            return None
        for tensor in tensors:
            if tensor is not None:
                self._shared.weights.read(tensor)
        rest = iter(tensors)
        filled = tree_map_only(Ref, lambda _: next(rest), list(values))
        arguments = target._schema.arguments
        positional = [v for v, a in zip(filled, arguments, strict=True) if not a.kwarg_only]
        keywords = {a.name: v for v, a in zip(filled, arguments, strict=True) if a.kwarg_only}
        with torch.no_grad():
            return target(*positional, **keywords) if _is_small(target, positional, keywords) else None

    def resolved(self, value: Any) -> Any:
        """Replaces the nodes in an FX argument by their values, and symbolic sizes by numbers."""
        kind = type(value)
        if kind is Node:
            return self.env[value]
        if kind in _LISTS:
            env = self.env
            return [
                item if type(item) in _PLAIN else env[item] if type(item) is Node else self.resolved(item)
                for item in value
            ]
        if kind in _CONSTANTS:
            return value
        if isinstance(value, dict):
            return {key: self.resolved(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self.resolved(value.start), self.resolved(value.stop), self.resolved(value.step))
        return self._shared.sizes.value(value)

    # ---- calls outside the table ----

    def describe(self, value: Any) -> dict[str, str] | None:
        """See `Reader`."""
        if isinstance(value, torch.dtype):
            code = CODE_OF.get(value)
            return {"repr": str(value)} if code is None else {"dtype": _core.DTYPES[code]}
        named = isinstance(value, complex | torch.device | torch.layout | torch.memory_format)
        return {"repr": str(value)} if named or hasattr(value, "_schema") else None

    def inner(self, module: GraphModule, builder: _core.GraphBuilder, prefix: str) -> Importer:
        """See `Reader`."""
        return Importer(TorchWriter(self._shared, builder, prefix), module)

    def mark(self) -> str:
        """Returns why TOSA has no counterpart of this call, ``training`` or ``random``; else empty."""
        row, node = self.writer.row, self.writer.node
        if row is not None and row.is_training(row.complete(node.args, node.kwargs)):
            return "training"
        return "random" if is_random(node.target) else ""

    def run_by_torch(self, target: str) -> ForeignOp | None:
        """See `Reader`."""
        operator = self.writer.node.target
        if not isinstance(operator, torch._ops.OpOverload) or operator.namespace not in NAMESPACES:
            return None
        if not is_functional(operator._schema):
            return None
        known: dict[str, ForeignOp] = self._shared.by_torch
        return known.setdefault(target, ForeignOp(target, TorchKernel(target)))

    def computed_at_import(self, operator: ForeignOp, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Computes calls on parameters only, such as the factors of an orthogonal weight."""
        operands = tensors_of([args, list(kwargs.values())])
        if not operands or any(isinstance(each, Complex) for each in operands):
            return None
        tensors = {each.id: self._known_tensor(each) for each in operands if isinstance(each, Ref)}
        if any(each is None for each in tensors.values()):
            return None

        def given(value: Any) -> Any:
            if isinstance(value, Ref):
                return tensors[value.id]
            return type(value)(map(given, value)) if isinstance(value, list | tuple) else value

        made = operator.kernel(*map(given, args), **{key: given(value) for key, value in kwargs.items()})
        node = self.writer.node
        recorded = node.meta["val"]
        shape_of = self._shared.sizes.shape
        single = isinstance(recorded, torch.Tensor)
        found, wanted = ([made], [recorded]) if single else (list(made), list(recorded))
        if [(each.dtype, tuple(each.shape)) for each in found] != [
            (each.dtype, tuple(shape_of(each.shape))) for each in wanted
        ]:
            return None
        self.writer.note(
            "computed", f"'{node.name}' ({operator.target}) was computed by torch from constants"
        )
        constants = [self.writer.lifted_tensor(each.contiguous()) for each in found]
        return constants[0] if single else constants

    def _known_tensor(self, ref: Ref) -> torch.Tensor | None:
        """Returns the elements of a constant, or of a value that is computed from constants."""
        numbers = self.writer.known_elements(ref)
        if numbers is None:
            folded = self.writer.builder.folded(ref.id)
            numbers = None if folded is None else folded.numbers()
        if numbers is None:
            return None
        return torch.from_numpy(np.array(numbers)).reshape(tuple(ref.shape)).to(TORCH_OF[ref.dtype])

    def _decomposed(self, row: OperatorRow, values: Sequence[Any]) -> tuple[Any, str]:
        """Returns the results of torch's decomposition of the call, or None and the reason."""
        node = self.writer.node
        recorded = node.meta.get("val")
        items = list(recorded) if isinstance(recorded, list | tuple) else [recorded]
        if _has_no_value(values) or not any(isinstance(item, torch.Tensor) for item in items):
            return None, ""
        used = self.writer.used_results() if isinstance(recorded, list | tuple) else {0}
        results = [
            (item.dtype, tuple(self._shared.sizes.shape(item.shape)))
            if isinstance(item, torch.Tensor) and i in used
            else None
            for i, item in enumerate(items)
        ]
        expansion = self._shared.decompositions.find(node.target, values, results)
        if expansion.module is None:
            return None, expansion.reason
        return self._read_expansion(row, expansion, tensors_of(values)), ""

    def _read_expansion(
        self, row: OperatorRow, expansion: Expansion, tensors: Sequence[Ref | Complex]
    ) -> Any:
        assert expansion.module is not None
        nodes = list(expansion.module.graph.nodes)
        results = nodes[-1].args[0]
        prefix = f"{self.writer.prefix}{self.writer.node.name}."
        results_of = nodes[-1].all_input_nodes
        writer = TorchWriter(self._shared, self.writer.builder, prefix, self.writer, results_of)
        inner = Importer(writer, expansion.module)
        inner.env.update(zip((node for node in nodes if node.op == "placeholder"), tensors, strict=True))
        inner.prepare(nodes)
        inner.read()
        read = inner.resolved(results)
        if not isinstance(results, list | tuple):
            return read
        return [NoValue(row.target) if item is None else item for item in read]

    def prepare(self, nodes: Sequence[Any], states: Container[Any] = ()) -> None:
        """See `NodeReader.prepare`."""
        super().prepare(nodes, states)
        if self.aliases is not None:
            self._shared.written.append(self.aliases)

    def autocast_hint(self) -> str:
        """See `Reader`. The casts are explicit unless torch cannot write them with the same numbers."""
        return self.functional_hint()

    def functional_hint(self) -> str:
        """Returns the hint to decompose the program, or to compute out of place if that changes numbers."""
        is_right = (
            keeps_numbers(self._shared.written, self._shared.sizes) and self._shared.can_be_decomposed()
        )
        return FUNCTIONALIZE if is_right else OUT_OF_PLACE

    def memory(self) -> ExecutedMemory:
        """See `NodeReader`."""
        return ExecutedMemory(self._shared.sizes, self._held)

    def _held(self, node: Node) -> Any:
        """Returns the tensor of a weight's placeholder or of an attribute; None for an input."""
        return self.weights.get(node.name) if node.op == "placeholder" else self._found(node)

    def _found(self, node: Node) -> Any:
        return self.nested_of(node, self.owner)

    def nested_of(self, attribute: Any, owner: Any) -> Any:
        """See `Reader`."""
        return operator.attrgetter(str(attribute.target))(owner)

    def is_higher_order(self, target: Any) -> bool:
        """See `Reader`."""
        # a check against the OpOverload class first, since one against the abstract class is slow
        is_ordinary = isinstance(target, torch._ops.OpOverload)
        return not is_ordinary and isinstance(target, torch._ops.HigherOrderOperator)

    def attribute(self, node: Any) -> Any:
        """See `NodeReader`."""
        self.writer.node, self.writer.row = node, None
        found = self._found(node)
        if isinstance(found, GraphModule) or not isinstance(found, torch.Tensor):
            return found
        return self.constant_of(found, str(node.target), "lifted")

    def constant_of(self, tensor: Any, name: str, kind: str) -> Ref | Complex | Wrapper:
        """Returns a tensor that the program does not write.

        The tensors inside of a tensor subclass become constants when they are read.
        """
        if is_wrapper(tensor):
            return Wrapper(lambda inner: self.constant_of(getattr(tensor, inner), f"{name}.{inner}", kind))
        code = CODE_OF.get(tensor.dtype)
        if code is None:
            if tensor.is_complex():
                return self.writer.complex_constant(tensor, name, kind)
            code = dtype_code(tensor.dtype, f"'{name}'")
        value = self.writer.builder.add_constant(self._shared.weights.tensor(tensor, name, kind))
        return Ref(value, code, tensor.shape, tensor)

    def read_function(self, node: Any) -> Any:
        """Reads a call that is not an operator overload: arithmetic on sizes, or a higher-order operator."""
        target = node.target
        values = [self.resolved(arg) for arg in node.args]
        keywords = {key: self.resolved(arg) for key, arg in node.kwargs.items()}
        name = getattr(target, "__name__", str(target))
        if self.is_higher_order(target):
            return self.nested.read(node, name, values, keywords)
        if all(isinstance(value, bool | int | float) for value in values) and not keywords:
            return target(*values)
        for value in values:
            if type(value) is NoValue:
                return NoValue(name, value.place)
        raise self.writer.error(
            _core.UnsupportedOp, f"a call of {name} is no operator of torch", hint=self.functional_hint()
        )


def _has_no_value(values: Sequence[Any]) -> bool:
    return any(type(value) is NoValue for value in values)


# Calls whose result shape depends on their first operand only through its shape.
_CHOOSE_ELEMENTS = ("index.Tensor", "repeat_interleave.self_Tensor")


def _is_small(target: Any, positional: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """False if the result of a call has too many elements to be computed at import.

    A few bytes of a file can request any size. Torch infers the sizes without computing elements, unless they
    depend on the elements of constants, which are in the file, or on numbers of repetitions.
    """
    if target is torch.ops.aten.repeat_interleave.self_Tensor:
        x, repeats = positional[0], positional[1]
        each = repeats.expand(x.shape[positional[2] or 0]) if x.dim() and repeats.dim() == 0 else repeats
        return bool(each.double().sum() * x.numel() / max(1, each.numel()) <= _MOST_ELEMENTS)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            results = target(*positional, **keywords)
    except MemoryError:
        raise
    except Exception:  # the sizes depend on elements, or torch will report a wrong call
        return True
    return all(
        each.numel() <= _MOST_ELEMENTS for each in tree_leaves(results) if isinstance(each, torch.Tensor)
    )
