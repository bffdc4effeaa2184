"""Reads a torch ``ExportedProgram`` into a graph: one call, one node, by the table of `tosaic.fx.aten`.

A call that the table does not know becomes an opaque node with its target, its arguments and the result types
that torch recorded.
"""

from __future__ import annotations

import gc
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_list
from torch.utils._pytree import tree_map_only

from tosaic import _core
from tosaic.diagnostics import Diagnostic, Diagnostics
from tosaic.foreign import ForeignOp, TensorSpec
from tosaic.fx.aliasing import Aliases
from tosaic.fx.aten import OP
from tosaic.fx.complex_values import HINT, as_complex, emit_complex, has_complex, is_known
from tosaic.fx.decomposed import Decompositions, Expansion, is_random, tensors_of
from tosaic.fx.opaque import arguments_json
from tosaic.fx.origins import error_at, origin_of, place_of
from tosaic.fx.shapes import Sizes, dim_order_of, wanted_sizes
from tosaic.fx.targets import Row, row_for
from tosaic.fx.treespec import convert_treespec
from tosaic.fx.value import Complex, NoValue, Ref
from tosaic.fx.weights import CATEGORY, CODE_OF, REAL_OF, TORCH_OF, Weights, dtype_code
from tosaic.signature import InputLeaf, OutputLeaf, Signature, Tree

__all__ = ["Imported", "Importer", "Read", "import_program", "read_program"]

_FUNCTIONALIZE = "Call ep.run_decompositions() first, which makes the program functional"
_NUMBERS = (bool, int, float)
_PLAIN = frozenset({int, float, bool, str, type(None)})
_LISTS = frozenset({list, tuple, immutable_list, torch.Size})
_CONSTANTS = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_MAY_HOLD_COMPLEX = frozenset({Complex, complex, list})
_CONTROL_FLOW = ("cond", "while_loop")
_NARROW_CODES = frozenset(CODE_OF[dtype] for dtype in (torch.float16, torch.bfloat16))
_DEFAULT_CODES = tuple(CODE_OF[dtype] for dtype in (torch.bool, torch.int64, torch.float32))


@dataclass(frozen=True)
class Imported:
    """An imported method.

    Attributes
    ----------
    graph : Graph
        At stage ``exported``.
    signature : Signature
        How nested arguments and results map to the graph's inputs and outputs.
    diagnostics : tuple of Diagnostic
        Remarks of the import: copied weights, opaque calls, ambiguous dim orders.
    verify : callable
        Raises InvalidGraph if something that the import read from torch's memory (scales, and weights that
        are not dense) has changed since.
    """

    graph: _core.Graph
    signature: Signature
    diagnostics: tuple[Diagnostic, ...]
    verify: Callable[[], None]


@dataclass(frozen=True)
class Read:
    """An imported method, and what each node of the FX graph became.

    Attributes
    ----------
    imported : Imported
    values : mapping
        By FX node: its `Ref`, a list of them, a number, or a `NoValue`.
    sizes : Sizes
        The values of symbolic sizes.
    inputs : dict of str to int
        By placeholder name, its position in ``graph.inputs``. Weights have none.
    outputs : tuple of int or None
        By position in the FX output, the position in ``graph.outputs``; None if it has none.
    """

    imported: Imported
    values: Mapping[Node, Any]
    sizes: Sizes
    inputs: dict[str, int]
    outputs: tuple[int | None, ...]


@dataclass(frozen=True)
class _Shared:
    """What the importers of a program and of its regions share."""

    weights: Weights
    sizes: Sizes
    diagnostics: Diagnostics
    rows: dict[Any, Row | None]
    decompositions: Decompositions
    foreign: Mapping[str, ForeignOp] = field(default_factory=dict)  # by target
    constants: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)  # by (builder, value id)


class Importer:
    """Reads the nodes of one FX graph into a builder; the rows of the table call back into it."""

    def __init__(self, shared: _Shared, builder: _core.GraphBuilder, owner: Any, prefix: str = "") -> None:
        self.builder = builder
        self.env: dict[Node, Any] = {}
        self.dtype = -1
        self.shape: Sequence[int] = ()
        self.types: list[tuple[int, Sequence[int]]] = []
        self._node: Any = None
        self._row: Row | None = None
        self._shared = shared
        self._owner = owner
        self._prefix = prefix
        self._aliases: Aliases | None = None
        self._shape_of = shared.sizes.shape
        # For the inside of a decomposition: the importer of the decomposed call, and the nodes that are its
        # results.
        self._outer: Importer | None = None
        self._results: frozenset[Any] = frozenset()
        self._gives_complex = False

    # ---- walking ----

    def prepare(self, nodes: Sequence[Any]) -> None:
        """Resolves the call targets; if a call writes to its operands, finds out which nodes share memory."""
        rows = self._shared.rows
        mutates = False
        for node in nodes:
            if node.op == "call_function":
                target = node.target
                if target in rows:
                    row = rows[target]
                else:
                    row = self._resolve(target)
                if row is not None and row.mutates:
                    mutates = True
        if mutates:
            self._aliases = Aliases(nodes, lambda node: rows[node.target], self._counts)

    def _resolve(self, target: Any) -> Row | None:
        if target is operator.getitem:
            row: Row | None = Row("getitem", "getitem", None)
            assert row is not None
            row.getitem = True
        else:
            row = row_for(target)
        self._shared.rows[target] = row
        return row

    def _counts(self, user: Any) -> bool:
        """False for a use by a dropped call (an assertion): a value is not live because of such a use."""
        row = self._shared.rows.get(user.target) if user.op == "call_function" else None
        return row is None or not row.dropped

    def is_mutated(self, node: Node) -> bool:
        """True if a call writes into the memory of this node."""
        return self._aliases is not None and self._aliases.is_mutated(node)

    def read(self, nodes: Sequence[Any]) -> None:
        """Reads every call and attribute; the placeholders must be in ``env`` already."""
        node = None
        try:
            for node in nodes:
                self._read_node(node)
        except _core.UnsupportedOp as error:
            raise self._located(error, node) from error

    def _read_node(self, node: Any) -> None:
        env, op = self.env, node.op
        if op == "call_function":
            row = self._shared.rows[node.target]
            self._node, self._row = node, row
            if row is None:
                env[node] = self._foreign(node)
            elif row.getitem:
                env[node] = self._getitem(node)
            elif row.target in self._shared.foreign:
                env[node] = self._described(node, row, self._shared.foreign[row.target])
            elif row.dropped:
                env[node] = NoValue(row.target)
            else:
                env[node] = self._call(node, row)
        elif op == "get_attr":
            env[node] = self._attribute(node)
        elif op not in ("placeholder", "output"):
            raise self.error(
                _core.UnsupportedOp,
                f"an FX node of kind {op} has no meaning here",
                hint="Export the module",
            )

    def _located(self, error: Any, node: Any) -> Exception:
        """Locates the error of an unknown size at the node that needs it; other errors know their node."""
        parts = error.parts
        if parts["node"] or node is None:
            return error  # type: ignore[no-any-return]
        said = {key: parts[key] for key in ("expected", "got", "hint")}
        self._node = node
        return self.error(type(error), parts["what"], **said)

    def _call(self, node: Any, row: Row) -> Any:
        env = self.env
        args = node.args
        kwargs = node.kwargs
        if kwargs or len(args) != row.arity:
            args = row.complete(args, kwargs)
        values = [
            env[arg] if type(arg) is Node else arg if type(arg) in _PLAIN else self.resolved(arg)
            for arg in args
        ]
        if row.evaluated:
            return self._evaluate_size(row, values)
        try:
            self._expect(node, row)
        except _core.UnsupportedOp:
            if not self._learn_sizes(values):
                raise
            self._expect(node, row)
        if row.training_at and row.is_training(values):
            self.note(
                "training",
                f"'{node.name}' ({row.target}) is in training mode: call .eval() before torch.export.export, "
                "unless that is what you mean",
            )
        kinds = set(map(type, values))
        if not kinds.isdisjoint(_MAY_HOLD_COMPLEX) and any(has_complex(value) for value in values):
            return self._complex_call(row, values)
        result = None
        if row.emit is not None and NoValue not in kinds:
            result = row.emit(self, *values)
            if self._gives_complex:
                result = as_complex(self, row.name, result)
        reason = ""
        if result is None:
            result = self._evaluated(values)
        if result is None:
            result, reason = self._decomposed(row, values)
        if result is None:
            result = self._opaque(row.target, values[: row.required], self._keywords(row, values), reason)
        if row.mutates:
            self._written(node, row, result)
        return result

    def _complex_call(self, row: Row, values: Sequence[Any]) -> Any:
        """A call with complex operands, read by its parts or as the calls that torch decomposes it into."""
        if not is_known(row.name, row.emit):
            result, _ = self._decomposed(row, values)
            if result is not None:
                return result
        return emit_complex(self, row.name, row.emit, values)

    def target_name(self) -> str:
        """The operator name of this call: ``add`` for ``add.Tensor``."""
        assert self._row is not None
        return self._row.name.partition(".")[0]

    def _learn_sizes(self, values: Sequence[Any]) -> bool:
        """Learns result sizes that depend on data, if the data is constant; True if it did.

        Torch computes the call on the constants, with zeros in place of the tensor whose elements are chosen.
        """
        recorded = self._node.meta.get("val")
        tensors = self._constants_of(values)
        if not isinstance(recorded, torch.Tensor) or not tensors or self._row is None:
            return False
        if tensors[0] is None and self._row.name in _CHOOSE_ELEMENTS:
            x = values[0]
            tensors[0] = torch.zeros((), dtype=TORCH_OF[x.dtype]).expand(tuple(x.shape))
        result = self._made_by_torch(values, tensors)
        if not isinstance(result, torch.Tensor):
            return False
        for size, known in zip(recorded.shape, result.shape, strict=True):
            self._shared.sizes.learn(size, known)
        return True

    def _evaluated(self, values: Sequence[Any]) -> Ref | None:
        """The value of a call over constants or without tensors, computed by torch: it is always the same."""
        result = self._made_by_torch(values, self._constants_of(values))
        readable = isinstance(result, torch.Tensor) and result.dtype in CODE_OF
        return self.lifted(result) if readable else None

    def _constants_of(self, values: Sequence[Any]) -> list[torch.Tensor | None]:
        return [self._held(ref) if isinstance(ref, Ref) else None for ref in tensors_of(values)]

    def _made_by_torch(self, values: Sequence[Any], tensors: Sequence[torch.Tensor | None]) -> Any:
        """The result of the call over these tensors; None if another run may have another result."""
        target = self._node.target
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or is_random(target):
            return None
        if self._has_no_value(values) or any(tensor is None for tensor in tensors):
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
            return target(*positional, **keywords)

    def lifted(self, tensor: torch.Tensor) -> Ref:
        """A constant from a tensor that was computed at import."""
        constant = self._shared.weights.tensor(tensor, self._name(), "lifted")
        ref = Ref(self.builder.add_constant(constant), CODE_OF[tensor.dtype], tuple(tensor.shape))
        self.remember(ref, tensor)
        return ref

    def remember(self, ref: Ref, tensor: torch.Tensor) -> None:
        """Notes that a value is the constant `tensor`."""
        self._shared.constants[id(self.builder), ref.id] = tensor

    def known(self, ref: Ref) -> torch.Tensor | None:
        """The tensor of a constant value, else None; notes that the import reads its elements."""
        tensor = self._held(ref)
        if tensor is not None:
            self._shared.weights.read(tensor)
        return tensor

    def _held(self, ref: Ref) -> torch.Tensor | None:
        return self._shared.constants.get((id(self.builder), ref.id))

    def same(self, ref: Ref, result: Ref) -> Ref:
        """`result`, after noting that it is the same constant as `ref`, if `ref` is one."""
        tensor = self._held(ref)
        if tensor is not None:
            self.remember(result, tensor)
        return result

    @staticmethod
    def _keywords(row: Row, values: Sequence[Any]) -> dict[str, Any]:
        """The arguments that differ from their defaults, by name."""
        rest = zip(
            row.names[row.required :], values[row.required :], row.defaults[row.required :], strict=True
        )
        return {name: value for name, value, default in rest if type(value) is Ref or value != default}

    @staticmethod
    def _has_no_value(values: Sequence[Any]) -> bool:
        return any(type(value) is NoValue for value in values)

    def resolved(self, value: Any) -> Any:
        """An FX argument with values in place of nodes and numbers in place of symbols."""
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

    def _expect(self, node: Any, row: Row) -> None:
        """Sets the result types that torch recorded for the call; for a complex result, that of a part."""
        recorded = node.meta.get("val")
        self._gives_complex = False
        if isinstance(recorded, torch.Tensor):
            self.dtype = CODE_OF.get(recorded.dtype, -1)
            self.shape = self._shape_of(recorded.shape)
            if self.dtype < 0:
                self._gives_complex = recorded.dtype in REAL_OF
                real = REAL_OF.get(recorded.dtype, recorded.dtype)
                self.dtype = dtype_code(real, f"the result of '{node.name}'")
            if not row.single:
                self.types = [(self.dtype, self.shape)]
            return
        if recorded is None and row.single:
            raise self.error(
                _core.InvalidGraph,
                "the node records no result",
                expected="meta['val']",
                hint="Export the program again",
            )
        self.dtype = -1
        self.types = []
        for item in recorded if isinstance(recorded, list | tuple) else ():
            self.types.append(self._type_of(item) if isinstance(item, torch.Tensor) else (-1, ()))
        if self.types:
            self.dtype, self.shape = self.types[0]

    def _type_of(self, tensor: Any) -> tuple[int, Sequence[int]]:
        real = REAL_OF.get(tensor.dtype, tensor.dtype)
        return dtype_code(real, f"a result of '{self._node.name}'"), self._shape_of(tensor.shape)

    # ---- what the rows of the table use ----

    def _name(self) -> str:
        """The name of the node to be made: the call's, in a decomposition derived from the outer call's."""
        if self._outer is None:
            return str(self._node.name)
        outer = self._outer._name()
        return outer if self._node in self._results else f"{outer}.{self._node.name}"

    def _origin(self) -> tuple[str, str, str, str, int]:
        if self._outer is not None:
            return self._outer._origin()
        node, row = self._node, self._row
        target = row.target if row is not None else str(node.target)
        return origin_of(self._prefix + node.name, target, node.meta)

    def emit(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node of this call; its type is checked against what torch recorded."""
        row, builder = self._row, self.builder
        origin = self._origin()
        if row is not None and row.mutates:
            return self._emit_in_place(op, attrs, operands, origin)
        value = builder.add(op, attrs, operands, self._name(), origin, self.dtype, self.shape)
        return Ref(value, self.dtype, self.shape)

    def _emit_in_place(
        self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int], origin: Any
    ) -> Ref:
        """The result of an in-place call has the operand's dtype: a promoted result is cast back."""
        value = self.builder.add(op, attrs, operands, self._name(), origin, None, None)
        dtype, shape = self.builder.type(value)
        if shape != tuple(self.shape):
            raise self.error(
                _core.InvalidGraph,
                "an in-place call changes the shape",
                expected=str(tuple(self.shape)),
                got=str(shape),
            )
        if dtype != self.dtype:
            cast = {"dtype": self.dtype}
            value = self.builder.add(OP["cast"], cast, (value,), self._name(), origin, self.dtype, self.shape)
        return Ref(value, self.dtype, self.shape)

    def emit_inferred(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds a node in front of the call's own node, with the type that the core infers."""
        value = self.builder.add(op, attrs, operands, self._name(), self._origin(), None, None)
        return Ref(value, *self.builder.type(value))

    def emit_result(self, index: int, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> Ref:
        """Adds the node for one result of a call with several results."""
        dtype, shape = self.types[index]
        value = self.builder.add(op, attrs, operands, self._name(), self._origin(), dtype, shape)
        return Ref(value, dtype, shape)

    def emit_all(self, op: int, attrs: dict[str, Any] | None, operands: Sequence[int]) -> list[Ref]:
        """Adds one node with all results of the call."""
        return self.emit_many(op, attrs, operands, self.types)

    def emit_many(
        self,
        op: int,
        attrs: dict[str, Any] | None,
        operands: Sequence[int],
        types: list[tuple[int, Sequence[int]]],
    ) -> list[Ref]:
        """Adds one node with results of these types."""
        first = self.builder.add_many(op, attrs, operands, self._name(), self._origin(), types)
        return [Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(types)]

    def first(self, result: Ref | None) -> list[Any] | None:
        """The results of a call of which only the first is used; the others are `NoValue`."""
        return (
            None if result is None else [result] + [NoValue(str(self._node.target))] * (len(self.types) - 1)
        )

    def used_results(self) -> set[int]:
        """Indices of the used results: those whose getitem has a user, or all if the tuple itself is used."""
        used = set()
        for user in self._node.users:
            if user.target is not operator.getitem:
                return set(range(len(self.types)))
            if user.users:
                used.add(user.args[1])
        return used

    def only_first(self) -> bool:
        """True if no result of the call except result 0 is used."""
        return self.used_results() <= {0}

    def number(self, value: Any, like: Ref) -> Ref:
        """A Python operand as a rank-0 constant that promotes as torch promotes the number."""
        category = 2 if isinstance(value, float) else 0 if isinstance(value, bool) else 1
        if not isinstance(value, _NUMBERS):
            raise self.error(_core.UnsupportedOp, "an operand is no real number", got=_shown(value))
        code = like.dtype if category <= CATEGORY[like.dtype] else _DEFAULT_CODES[category]
        return self.constant(value, code)

    def promoted(self, ref: Ref, *beside: Ref) -> Ref:
        """An operand as torch reads it: one of rank 0 is cast to the dtype of a narrower operand.

        `beside` are the other operands. An integer wraps around if they are narrower integers, unless the
        call turns integers into floats. A value may become infinite if they are narrow floats. For a factor
        see `promoted_factor`.
        """
        ranked = [TORCH_OF[other.dtype] for other in beside if other.shape]
        category = CATEGORY[ref.dtype]
        if ref.shape or not ranked:
            return ref
        common = reduce(torch.promote_types, ranked)
        code = CODE_OF[common]
        if CATEGORY[code] != category:
            narrows = category == 1 and code in _NARROW_CODES
        else:
            narrows = torch.promote_types(TORCH_OF[ref.dtype], common) != common
            narrows = narrows and (category == 2 or CATEGORY[self.dtype] != 2)
        return self.emit_inferred(OP["cast"], {"dtype": code}, (ref.id,)) if narrows else ref

    def promoted_factor(self, ref: Ref, beside: Ref) -> Ref:
        """The second operand of a product or quotient as torch reads it: in f16 * int, the int is f32."""
        if CATEGORY[ref.dtype] == 2 or ref.shape or not beside.shape:
            return ref
        if CATEGORY[ref.dtype] == 1 and beside.dtype in _NARROW_CODES:
            return self.emit_inferred(OP["cast"], {"dtype": _DEFAULT_CODES[2]}, (ref.id,))
        return self.promoted(ref, beside)

    def alike(self, *refs: Ref) -> tuple[Ref, ...]:
        """The operands of one call, each as torch reads it in a call with the others."""
        return tuple(self.promoted(ref, *refs) for ref in refs)

    def factor(self, value: Any, like: Ref) -> Ref:
        """A Python operand of a product or quotient: with narrow floats, torch reads a float as float32."""
        if isinstance(value, float) and like.dtype in _NARROW_CODES:
            return self.constant(value, _DEFAULT_CODES[2])
        return self.number(value, like)

    def complex_constant(self, tensor: torch.Tensor, name: str, kind: str) -> Complex:
        """Both parts of a tensor that the program holds, as copied constants."""
        code = CODE_OF[REAL_OF[tensor.dtype]]
        real, imag = (
            Ref(self.builder.add_constant(part), code, tuple(tensor.shape))
            for part in self._shared.weights.parts(tensor, name, kind)
        )
        return Complex(real, imag)

    def constant(self, value: bool | int | float, code: int) -> Ref:
        """A rank-0 constant."""
        return Ref(self.builder.add_constant(self._shared.weights.number(value, code)), code, ())

    def memory_of_operand(self, position: int) -> tuple[tuple[int, ...] | None, int]:
        """Strides and storage offset of an operand as torch recorded them; (None, 0) if it did not."""
        operand = self._node.args[position]
        if self._aliases is not None and isinstance(operand, Node):
            operand = self._aliases.shaped_by(operand, self._node)
        recorded = operand.meta.get("val")
        if recorded is None:
            return None, 0
        sizes = self._shared.sizes
        return tuple(sizes.shape(recorded.stride())), int(sizes.value(recorded.storage_offset()))

    def note(self, rule: str, message: str) -> None:
        """Adds a diagnostic about this call."""
        self._shared.diagnostics.note(rule, message, self._name())

    def error(
        self,
        kind: type[Exception],
        what: str,
        *,
        expected: str = "",
        got: str = "",
        hint: str = "",
        node: Any = None,
    ) -> Exception:
        """An error located at this call, or at `node`."""
        if self._outer is not None:
            return self._outer.error(kind, what, expected=expected, got=got, hint=hint)
        node = self._node if node is None else node
        return error_at(kind, node, what, where="import", expected=expected, got=got, hint=hint)

    # ---- calls outside the table ----

    def _described(self, node: Any, row: Row, operator: ForeignOp) -> Any:
        """A node for a call of an operator that the user described."""
        if row.mutates:
            raise self.error(
                _core.UnsupportedOp,
                f"{row.target} writes an operand, which a described operator may not do",
                hint=_FUNCTIONALIZE,
            )
        values = [self.resolved(arg) for arg in row.complete(node.args, node.kwargs)]
        keywords = self._keywords(row, values)
        result = self._opaque(row.target, values[: row.required], keywords, described=operator)
        if operator.types is not None:
            self._compare_types(operator, result, values[: row.required], keywords)
        return result

    def _compare_types(
        self, operator: ForeignOp, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Raises InvalidGraph if the types that a description computes are not those that torch recorded."""

        def spec(value: Any) -> Any:
            if type(value) is Ref:
                return TensorSpec(_core.DTYPES[value.dtype], tuple(value.shape))
            return type(value)(map(spec, value)) if isinstance(value, list | tuple) else value

        assert operator.types is not None
        computed = operator.types(*map(spec, args), **{key: spec(value) for key, value in kwargs.items()})
        expected = list(computed) if isinstance(computed, list | tuple) else [computed]
        found = [spec(item) for item in (result if isinstance(result, list | tuple) else [result])]
        if expected != found:
            raise self.error(
                _core.InvalidGraph,
                f"the description of {operator.target} computes other types than torch recorded",
                expected=str(found),
                got=str(expected),
            )

    def _opaque(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        reason: str = "",
        described: ForeignOp | None = None,
    ) -> Any:
        """An opaque node, which stores the call without interpreting it."""
        node = self._node
        recorded = node.meta.get("val")
        self._refuse_missing((args, kwargs))
        if isinstance(recorded, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            return self._opaque_number(recorded, target)
        items = list(recorded) if isinstance(recorded, list | tuple) else [recorded]
        if any(isinstance(item, torch.Tensor) and item.is_complex() for item in items):
            raise self.error(
                _core.UnsupportedOp, f"{target} with a complex result is not supported", hint=HINT
            )
        text, operands = arguments_json(args, kwargs, self._no_text, self._mark())
        types = [self._type_of(item) for item in items if isinstance(item, torch.Tensor)]
        attributes = {"target": target, "arguments": text, **(described.attributes if described else {})}
        first = self.builder.add_many(OP["opaque"], attributes, operands, self._name(), self._origin(), types)
        if described is None:
            because = f": {reason}" if reason else ""
            self.note("opaque", f"'{node.name}' ({target}) is kept as an opaque node{because}")
        kept = iter(Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(types))
        results = [next(kept) if isinstance(item, torch.Tensor) else NoValue(target) for item in items]
        return results if isinstance(recorded, list | tuple) else results[0]

    def _mark(self) -> str:
        """Why TOSA has no counterpart of this call: training mode or random numbers; else empty."""
        row, node = self._row, self._node
        if row is not None and row.is_training(row.complete(node.args, node.kwargs)):
            return "training"
        return "random" if is_random(node.target) else ""

    def _decomposed(self, row: Row, values: Sequence[Any]) -> tuple[Any, str]:
        """The results of the call by torch's decomposition, or None and the reason why there is none."""
        recorded = self._node.meta.get("val")
        items = list(recorded) if isinstance(recorded, list | tuple) else [recorded]
        if self._has_no_value(values) or not any(isinstance(item, torch.Tensor) for item in items):
            return None, ""
        used = self.used_results() if isinstance(recorded, list | tuple) else {0}
        results = [
            (item.dtype, tuple(self._shape_of(item.shape)))
            if isinstance(item, torch.Tensor) and i in used
            else None
            for i, item in enumerate(items)
        ]
        expansion = self._shared.decompositions.find(self._node.target, values, results)
        if expansion.module is None:
            return None, expansion.reason
        return self._read_expansion(row, expansion, tensors_of(values)), ""

    def _read_expansion(self, row: Row, expansion: Expansion, tensors: Sequence[Ref | Complex]) -> Any:
        assert expansion.module is not None
        nodes = list(expansion.module.graph.nodes)
        results = nodes[-1].args[0]
        inner = Importer(self._shared, self.builder, expansion.module, f"{self._prefix}{self._node.name}.")
        inner._outer = self
        inner._results = frozenset(nodes[-1].all_input_nodes)
        inner.env.update(zip((node for node in nodes if node.op == "placeholder"), tensors, strict=True))
        inner.prepare(nodes)
        inner.read(nodes)
        read = inner.resolved(results)
        if not isinstance(results, list | tuple):
            return read
        return [NoValue(row.target) if item is None else item for item in read]

    def _opaque_number(self, recorded: Any, target: str) -> Any:
        """A number: known if it follows from the bound shapes, otherwise refused where it is used."""
        try:
            return self._shared.sizes.value(recorded)
        except _core.UnsupportedOp:
            return NoValue(target, place_of(self._node))

    def _refuse_missing(self, value: Any) -> None:
        if type(value) is NoValue:
            raise self.error(
                _core.UnsupportedOp,
                f"it uses a result of {value.target} that has no value here",
                expected="a number that does not depend on data" if value.place else "",
                got=value.place,
                hint="Keep the number a tensor, e.g. x * n in place of x * n.item()"
                if value.place
                else "Results that are not kept cannot be imported",
            )
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for item in value:
                self._refuse_missing(item)

    def _no_text(self, kind: str) -> Exception:
        return self.error(
            _core.UnsupportedOp,
            f"an argument of type {kind} cannot be kept",
            hint="Call ep.run_decompositions() first, or rewrite the call without it",
        )

    def _evaluate_size(self, row: Row, values: Sequence[Any]) -> Any:
        name = row.name.partition(".")[0]
        operand = values[0]
        if type(operand) is Ref and name == "sym_size":
            return operand.shape[values[1]] if row.arity > 1 else list(operand.shape)
        if type(operand) is Ref and name == "sym_numel":
            return math.prod(operand.shape)
        return self._shared.sizes.value(self._node.meta["val"])

    def _getitem(self, node: Any) -> Any:
        container, index = node.args
        held = self.env[container]
        if isinstance(held, list | tuple | dict):
            return held[self.resolved(index)]
        return NoValue(str(container.target))

    def _attribute(self, node: Any) -> Any:
        self._node, self._row = node, None
        found = self._owner
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, GraphModule) or not isinstance(found, torch.Tensor):
            return found
        if found.is_complex():
            return self.complex_constant(found, str(node.target), "lifted")
        constant = self._shared.weights.tensor(found, str(node.target), "lifted")
        ref = Ref(self.builder.add_constant(constant), CODE_OF[found.dtype], tuple(found.shape))
        self.remember(ref, found)
        return ref

    def _foreign(self, node: Any) -> Any:
        """A call that is no operator overload: arithmetic on sizes, or a higher-order operator."""
        target = node.target
        values = [self.resolved(arg) for arg in node.args]
        keywords = {key: self.resolved(arg) for key, arg in node.kwargs.items()}
        name = getattr(target, "__name__", str(target))
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._higher_order(node, name, values, keywords)
        if all(isinstance(value, _NUMBERS) for value in values) and not keywords:
            return target(*values)
        if any(type(value) is NoValue for value in values):
            return NoValue(name)
        raise self.error(
            _core.UnsupportedOp, f"a call of {name} is no operator of torch", hint=_FUNCTIONALIZE
        )

    # ---- higher-order operators ----

    def _higher_order(self, node: Any, name: str, values: list[Any], keywords: dict[str, Any]) -> Any:
        if name in _CONTROL_FLOW:
            return self._control_flow(name, [*values, *keywords.values()])
        if name == "wrap_with_autocast" and values[2] and values[0] == "cpu":
            raise self.error(
                _core.UnsupportedOp, "autocast changes dtypes in a nested graph", hint=_FUNCTIONALIZE
            )
        if name in _INLINED:
            module_at, operands_of = _INLINED[name]
            return self._inline(node.args[module_at], values[module_at], operands_of(values))
        recorded = node.meta.get("val")
        self.types = []
        if recorded is None:
            raise self.error(
                _core.UnsupportedOp,
                f"the higher-order operator {name} records no result",
                hint=_FUNCTIONALIZE,
            )
        return self._opaque(f"higher_order.{name}", values, keywords)

    def _inline(self, attribute: Node, module: GraphModule, operands: Sequence[Any]) -> Any:
        """Reads a nested graph that is only a wrapper: its calls become nodes of this graph."""
        inner = Importer(self._shared, self.builder, module, f"{self._prefix}{attribute.target}.")
        nodes = list(module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        inner.env.update(zip(placeholders, operands, strict=True))
        inner.prepare(nodes)
        inner.read(nodes)
        return inner.resolved(nodes[-1].args[0])

    def _control_flow(self, name: str, values: list[Any]) -> Any:
        """A node with regions; numbers among the operands are constants of the regions."""
        if name == "cond":
            leading, modules, operands = [values[0]], values[1:3], list(values[3] if len(values) > 3 else ())
        else:
            leading, modules = [], values[:2]
            operands = [*values[2], *(values[3] if len(values) > 3 else ())]
        self._refuse_missing([leading, operands])
        if leading and type(leading[0]) is not Ref:
            leading = [self.constant(bool(leading[0]), _DEFAULT_CODES[0])]
        self._expect_results()
        node = self._node
        regions = [self._region(module, operands, f"{node.name}.{i}") for i, module in enumerate(modules)]
        ids = [operand.id for operand in (*leading, *operands) if type(operand) is Ref]
        first = self.builder.add_many(OP[name], None, ids, node.name, self._origin(), self.types, regions)
        return [Ref(first + i, dtype, shape) for i, (dtype, shape) in enumerate(self.types)]

    def _expect_results(self) -> None:
        recorded = self._node.meta.get("val")
        items = recorded if isinstance(recorded, list | tuple) else [recorded]
        if not all(isinstance(item, torch.Tensor) for item in items):
            raise self.error(_core.UnsupportedOp, "control flow returns something else than tensors")
        self.types = [self._type_of(item) for item in items]

    def _region(self, module: GraphModule, operands: Sequence[Any], name: str) -> _core.Graph:
        builder = _core.GraphBuilder(name)
        inner = Importer(self._shared, builder, module, f"{self._prefix}{name}.")
        nodes = list(module.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for placeholder, operand in zip(placeholders, operands, strict=True):
            if type(operand) is Ref:
                value = builder.add_input(placeholder.name, operand.dtype, operand.shape, placeholder.name)
                inner.env[placeholder] = Ref(value, operand.dtype, operand.shape)
            else:
                inner.env[placeholder] = operand
        inner.prepare(nodes)
        inner.read(nodes)
        results = inner.resolved(nodes[-1].args[0])
        for i, result in enumerate(results if isinstance(results, list) else [results]):
            if type(result) is Complex:
                raise inner.error(_core.UnsupportedOp, "control flow gives a complex value", hint=HINT)
            if type(result) is not Ref:
                result = inner.constant(result, _DEFAULT_CODES[0 if isinstance(result, bool) else 1])
            builder.add_output(result.id, f"out[{i}]")
        return builder.finish()

    # ---- in-place calls ----

    def _written(self, node: Any, row: Row, result: Any) -> None:
        """Assigns the new value of each written operand to all nodes that are the same whole tensor."""
        assert self._aliases is not None
        if row.writes_nothing(node):
            return
        args = row.complete(node.args, node.kwargs)
        if row.changes_shape:
            self._reshaped(node, args[0], result)
            return
        for position in row.mutates:
            operand, index = args[position], row.returned[position]
            if operand is None:
                continue
            if index is None or not isinstance(operand, Node):
                raise self.error(
                    _core.UnsupportedOp,
                    f"it writes to '{row.names[position]}' without returning it",
                    hint=_FUNCTIONALIZE,
                )
            if self._prefix and self._aliases.reaches_placeholder(operand):
                raise self.error(
                    _core.UnsupportedOp, "a nested graph writes to a value outside of it", hint=_FUNCTIONALIZE
                )
            fresh = result if type(result) is Ref else result[index]
            self._aliases.update(node, operand, self.env, fresh, self._refuse_shared)

    def _reshaped(self, node: Any, operand: Any, result: Any) -> None:
        """Assigns the reshaped result to all nodes that are the same tensor object as the operand."""
        assert self._aliases is not None
        if self._aliases.is_placeholder(operand):
            raise self.error(
                _core.UnsupportedOp,
                f"it changes the shape of input '{operand.name}' in place, which the caller would see",
                hint="Write x = x.unsqueeze(0) for x.unsqueeze_(0)",
            )
        self._aliases.reshape(node, operand, self.env, result)

    def _refuse_shared(self, operand: Any, other: Any) -> Exception:
        return self.error(
            _core.UnsupportedOp,
            f"it writes to '{operand.name}', whose memory '{other.name}' shares in part and is seen later",
            hint=_FUNCTIONALIZE,
        )


# Wrappers: position of the nested module among the arguments, and which arguments are its operands.
_INLINED: dict[str, tuple[int, Callable[[list[Any]], Sequence[Any]]]] = {
    "wrap_with_set_grad_enabled": (1, lambda values: values[2:]),
    "wrap_with_autocast": (4, lambda values: values[5:]),
    "wrap": (0, lambda values: values[1:]),
    "strict_mode": (0, lambda values: values[1]),
    "hints_wrapper": (0, lambda values: values[1]),
    "invoke_subgraph": (0, lambda values: values[2:]),
}


def _shown(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Ref | NoValue) else repr(value)


# ---- programs ----


class _Program:
    """One exported program during the import: placeholders are read first, then calls, then outputs."""

    def __init__(self, ep: Any, method: str, operators: Mapping[str, ForeignOp]) -> None:
        self.ep = ep
        self.diagnostics = Diagnostics()
        self.shared = _Shared(
            Weights(self.diagnostics), Sizes(), self.diagnostics, _ROWS, Decompositions(), operators
        )
        self.nodes: list[Any] = list(ep.graph_module.graph.nodes)
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.specs = list(ep.graph_signature.input_specs)
        self.importer = Importer(self.shared, _core.GraphBuilder(method), ep.graph_module)
        self.input_count = 0
        self.order_at: dict[str, tuple[int, ...] | None] = {}  # user input's placeholder -> dim order
        self.input_at: dict[str, tuple[int, str]] = {}  # placeholder -> position, path
        self.state_at: dict[str, tuple[int, str]] = {}  # target of a state -> position, path
        self.output_at: list[int | None] = []  # by position in the FX output: position in the graph's outputs
        self.leaves: list[InputLeaf] = []
        users = [
            n
            for n, spec in zip(self.placeholders, self.specs, strict=True)
            if spec.kind is InputKind.USER_INPUT
        ]
        self.call_spec = ep.call_spec
        self.in_tree = _in_tree(self.call_spec.in_spec, len(users))
        self.arg_names = _arg_names(ep)
        self.paths = _input_paths(self.in_tree, self.arg_names, [node.name for node in users])
        self.users = [(n.name, path, n.meta.get("val")) for n, path in zip(users, self.paths, strict=True)]

    def bind(self, bind: Any) -> None:
        wanted = wanted_sizes(bind, self.users, self.in_tree)
        self.shared.sizes.bind(self.users, wanted, self.ep.range_constraints)

    def read_inputs(self) -> None:
        outputs = self.ep.graph_signature.output_specs
        mutated = {
            spec.target for spec in outputs if spec.kind in (OutputKind.BUFFER_MUTATION, _PARAMETER_MUTATION)
        }
        paths = iter(self.paths)
        for node, spec in zip(self.placeholders, self.specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self._read_user_input(node, spec, next(paths))
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                is_state = spec.target in mutated or self.importer.is_mutated(node)
                if node.users or is_state:
                    self._read_weight(node, spec, is_state)
            else:
                self.importer.env[node] = NoValue(str(spec.kind))

    def _read_user_input(self, node: Any, spec: Any, path: str) -> None:
        recorded = node.meta.get("val")
        if not isinstance(recorded, torch.Tensor):
            value = (
                self.shared.sizes.value(recorded)
                if isinstance(recorded, torch.SymInt)
                else getattr(spec.arg, "value", recorded)
            )
            self.importer.env[node] = value
            self.leaves.append(InputLeaf(path, None, value))
            return
        shape = self.shared.sizes.shape(recorded.shape)
        code = dtype_code(recorded.dtype, f"input '{node.name}'")
        order, ambiguous = self._order(recorded)
        if ambiguous:
            self.diagnostics.note(
                "ambiguous-order",
                f"the memory of input '{node.name}' reads as several dim orders; it is taken as row-major",
                node.name,
            )
        self.order_at[node.name] = order
        value = self.importer.builder.add_input(node.name, code, shape, path, order)
        self.importer.env[node] = Ref(value, code, shape)
        self.leaves.append(InputLeaf(path, self.input_count))
        self._count_input(node, path)

    def _count_input(self, node: Any, path: str) -> tuple[int, str]:
        at = self.input_at[node.name] = (self.input_count, path)
        self.input_count += 1
        return at

    def _order(self, recorded: Any) -> tuple[tuple[int, ...] | None, bool]:
        if recorded.dim() < 2 or recorded.layout is not torch.strided:
            return None, False
        sizes = self.shared.sizes
        return dim_order_of(sizes.shape(recorded.shape), sizes.shape(recorded.stride()))

    def _read_weight(self, node: Any, spec: Any, is_state: bool) -> None:
        target = spec.target
        tensor = self.ep.state_dict[target] if target in self.ep.state_dict else self.ep.constants[target]
        if tensor.is_complex() and not is_state:
            self.importer.env[node] = self.importer.complex_constant(tensor, target, _KINDS[spec.kind])
            return
        weights = self.shared.weights
        read = weights.snapshot if is_state else weights.tensor
        constant = read(tensor, target, _KINDS[spec.kind])
        builder = self.importer.builder
        code = CODE_OF[tensor.dtype]
        if is_state:
            value = builder.add_input(node.name, code, tensor.shape, target, None, constant)
            self.state_at[target] = self._count_input(node, target)
        else:
            value = builder.add_constant(constant)
        ref = self.importer.env[node] = Ref(value, code, tensor.shape)
        if not is_state:
            self.importer.remember(ref, tensor)

    def read_outputs(self) -> Signature:
        results = self.nodes[-1].args[0]
        specs = list(self.ep.graph_signature.output_specs)
        count = self._add_written_inputs()
        users = sum(spec.kind in _USER_OUTPUTS for spec in specs)
        out_tree = _out_tree(self.call_spec.out_spec, users)
        paths = iter(out_tree.paths("out"))
        leaves = []
        for result, spec in zip(results, specs, strict=True):
            value = self.importer.resolved(result)
            before = count
            if spec.kind in _USER_OUTPUTS:
                path = next(paths)
                if type(value) is Ref:
                    order, _ = self._order(result.meta["val"]) if "val" in result.meta else (None, False)
                    self.importer.builder.add_output(value.id, path, None, order)
                    leaves.append(OutputLeaf(path, count))
                    count += 1
                else:
                    self._refuse_missing(value, path)
                    leaves.append(OutputLeaf(path, None, value))
            elif spec.kind in _MUTATIONS:
                is_user = spec.kind is OutputKind.USER_INPUT_MUTATION
                index, path = (self.input_at if is_user else self.state_at)[spec.target]
                order = self.order_at[spec.target] if is_user else None
                self.importer.builder.add_output(value.id, path, index, order)
                count += 1
            self.output_at.append(before if count > before else None)
        return Signature(self.in_tree, out_tree, tuple(self.leaves), tuple(leaves), self.arg_names)

    def _refuse_missing(self, value: Any, path: str) -> None:
        if type(value) is Complex:
            raise _core.make_error(
                _core.UnsupportedOp, where="import", what=f"the output '{path}' is complex", hint=HINT
            )
        if type(value) is NoValue:
            raise _core.make_error(
                _core.UnsupportedOp,
                where="import",
                what=f"the output '{path}' is a result of {value.target} that has no value here",
                hint="Numbers that depend on data and results that are not kept cannot be imported",
            )

    def _add_written_inputs(self) -> int:
        """Adds outputs for inputs that in-place calls change: the program's signature does not list these."""
        count = 0
        for node in self.placeholders:
            if node.name in self.input_at and self.importer.is_mutated(node):
                index, path = self.input_at[node.name]
                order = self.order_at.get(node.name)  # states have none
                self.importer.builder.add_output(self.importer.env[node].id, path, index, order)
                count += 1
        return count


# Rows by call target. Targets are torch operators, whose rows do not depend on the program.
_ROWS: dict[Any, Row | None] = {}
# Calls whose result shape depends on their first operand only through its shape.
_CHOOSE_ELEMENTS = ("index.Tensor", "repeat_interleave.self_Tensor")
_PARAMETER_MUTATION = getattr(OutputKind, "PARAMETER_MUTATION", None)
_USER_OUTPUTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, _PARAMETER_MUTATION)
_KINDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "lifted"}


def _in_tree(spec: Any, users: int) -> Tree:
    """The structure of (args, kwargs); a flat one if the program lost it."""
    if spec is not None:
        tree = convert_treespec(spec)
        if tree.leaf_count == users and len(tree.children) == 2:
            return tree
    return Tree("tuple", (Tree("tuple", (Tree("leaf"),) * users), Tree("dict")))


def _out_tree(spec: Any, users: int) -> Tree:
    if spec is not None:
        tree = convert_treespec(spec)
        if tree.leaf_count == users:
            return tree
    return Tree("tuple", (Tree("leaf"),) * users)


def _arg_names(ep: Any) -> tuple[str, ...]:
    for entry in ep.module_call_graph:
        if entry.fqn == "" and entry.signature is not None:
            return tuple(entry.signature.forward_arg_names or ())
    return ()


def _input_paths(tree: Tree, arg_names: Sequence[str], placeholders: Sequence[str]) -> list[str]:
    """Paths as callers know them: the parameter's name, followed by the place in a nested argument."""
    paths: list[str] = []
    args, kwargs = tree.children
    for i, child in enumerate(args.children):
        if child.kind == "leaf":
            paths.append(arg_names[i] if i < len(arg_names) else placeholders[len(paths)])
        else:
            paths += child.paths(arg_names[i] if i < len(arg_names) else f"args[{i}]")
    for key, child in zip(kwargs.keys, kwargs.children, strict=True):
        paths += child.paths(str(key))
    return paths


def import_program(
    ep: Any, *, bind: Any = None, method: str = "forward", operators: Mapping[str, ForeignOp] | None = None
) -> Imported:
    """See `tosaic.fx.from_exported`."""
    return read_program(ep, bind=bind, method=method, operators=operators).imported


def read_program(
    ep: Any, *, bind: Any = None, method: str = "forward", operators: Mapping[str, ForeignOp] | None = None
) -> Read:
    """Imports a program and returns what each FX node became."""
    if not isinstance(ep, torch.export.ExportedProgram):
        raise _core.make_error(
            _core.InvalidGraph,
            where="import",
            what="not an exported program",
            expected="torch.export.ExportedProgram",
            got=type(ep).__name__,
            hint="Call torch.export.export(module, args) first",
        )
    # Nothing that an import allocates is garbage: a collection meanwhile would only walk torch's objects.
    collecting = gc.isenabled()
    gc.disable()
    try:
        program = _Program(ep, method, operators or {})
        program.bind(bind)
        program.importer.prepare(program.nodes)
        program.read_inputs()
        program.importer.read(program.nodes)
        signature = program.read_outputs()
    finally:
        if collecting:
            gc.enable()
    importer = program.importer
    return Read(
        Imported(
            importer.builder.finish(),
            signature,
            tuple(program.diagnostics.items),
            program.shared.weights.verify,
        ),
        importer.env,
        program.shared.sizes,
        {name: at for name, (at, _) in program.input_at.items()}
        | {
            node.name: program.state_at[spec.target][0]
            for node, spec in zip(program.placeholders, program.specs, strict=True)
            if spec.target in program.state_at
        },
        tuple(program.output_at),
    )
