"""A method of a ``.pte`` file as a graph: its instructions are read one by one.

A value of the file is a number, a list or a tensor. Numbers are known while reading, so a jump that depends
on a number is followed, and a loop over numbers is unrolled. Tensors become values of the graph. A jump that
depends on a tensor is a branch, which becomes a ``cond``. A delegate call becomes an opaque node, which a
function computes.

A tensor that is read before anything writes it is a state: its value persists from run to run.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tosaic import _core
from tosaic.diagnostics import Diagnostics
from tosaic.dtypes import NUMPY
from tosaic.program import Program
from tosaic.pte.calls import KernelWriter, Types, constant_of
from tosaic.pte.containers import tree_of
from tosaic.pte.memory import Memory
from tosaic.pte.payloads import NoRunner, PayloadCall, Place, TensorForm, is_tosa, kind_of_payload
from tosaic.pte.rows import is_in_place
from tosaic.signature import InputLeaf, OutputLeaf, Signature, Tree
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.value import NoValue, Ref

__all__ = ["MethodGraph", "read_method", "scalar_type"]

Runner: TypeAlias = "PayloadCall | NoRunner"

_MOST_STEPS = 200_000
"""Instructions that are followed at most, since a damaged file may have an endless loop."""
_EXTERNAL = 1
_LISTS = (_core.PteTensorList, _core.PteOptionalTensorList, _core.PteIntList)
_TYPES = {code: (name, dtype) for code, name, _, dtype in _core.pte_scalar_types()}


def scalar_type(tensor: _core.PteTensor) -> tuple[str, str | None]:
    """Returns the name of the element type in torch, and the dtype of graphs or None."""
    return _TYPES[tensor.scalar_type]


@dataclass
class MethodGraph:
    """What reading a method made.

    Attributes
    ----------
    graph : Graph
    signature : Signature or None
        None if the file does not say how arguments are nested.
    diagnostics : Diagnostics
    runners : dict
        By name of the node of a delegate call, what runs its payload.
    """

    graph: _core.Graph
    signature: Signature | None
    diagnostics: Diagnostics
    runners: dict[str, Runner]


@dataclass
class _Method:
    """A method, and what the readers of its instructions share."""

    file: _core.PteFile
    name: str
    method: _core.PteMethod
    diagnostics: Diagnostics
    values: list[Any] = field(init=False)
    instructions: list[Any] = field(init=False)
    places: list[tuple[str, int]] = field(init=False)
    operators: list[tuple[str, str]] = field(init=False)
    delegates: list[Any] = field(init=False)
    inputs: list[int] = field(init=False)
    runners: dict[str, Runner] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        self.values = self.method.values
        self.delegates = self.method.delegates
        self.inputs = self.method.inputs
        self.operators = [(each.name, each.overload) for each in self.method.operators]
        chains = self.method.chains
        self.instructions = [each for chain in chains for each in _with_offsets(chains, chain)]
        self.places = [_place_of(frames) for chain in chains for frames in _traces(chain)]
        self.used = {index for each in self.instructions for index in self.operands(each)}
        self.used |= set(self.method.outputs)
        self.used |= {item for i in list(self.used) for item in self.items(i)}
        written = {index for each in self.instructions for index in self.results(each)}
        # Where a used value lies that no instruction writes: it is a view of what is written there.
        self.viewed = {
            _key(self.values[i]) for i in self.used - written if isinstance(self.values[i], _core.PteTensor)
        } - {None}

    def items(self, index: int) -> list[int]:
        """Returns the indices of values in a list; none for other values."""
        value = self.values[index]
        return [item for item in value.items if item >= 0] if isinstance(value, _LISTS) else []

    def operands(self, instruction: Any) -> list[int]:
        """Returns the indices of the values that an instruction reads; a delegate call may write some."""
        if isinstance(instruction, _core.PteKernelCall):
            return self.split(instruction)[0]
        if isinstance(instruction, _core.PteDelegateCall):
            return list(instruction.args)
        if isinstance(instruction, _core.PteMove):
            return [instruction.source]
        return [instruction.condition] if isinstance(instruction, _core.PteJumpFalse) else []

    def results(self, instruction: Any) -> list[int]:
        """Returns the indices of the values that an instruction writes."""
        if isinstance(instruction, _core.PteKernelCall):
            return self.split(instruction)[1]
        if isinstance(instruction, _core.PteDelegateCall):
            return list(instruction.args)
        return [instruction.to] if isinstance(instruction, _core.PteMove) else []

    def split(self, call: Any) -> tuple[list[int], list[int]]:
        """Returns the operands and the results of a kernel call.

        The results of an out variant are arguments, and are returned: the arguments are the operands, the
        results, and the results once more, as one list if there are several. Other operators return a value
        that is not among their arguments, or their first operand.
        """
        args, (name, _) = list(call.args), self.operators[call.op]
        if name == "executorch_prim::et_copy_index":
            return args, args[:1]
        if not args:
            return [], []
        last = self.values[args[-1]]
        if isinstance(last, _core.PteTensorList):
            results = list(last.items)
            if results and args[-1 - len(results) : -1] == results:
                return args[: -1 - len(results)], results
            return args[:-1], results
        if len(args) > 1 and args[-1] == args[-2] and not is_in_place(name):
            return args[:-2], args[-1:]
        return args[:-1], args[-1:]

    def is_used(self, index: int) -> bool:
        """True if something reads a value, or a view of it."""
        return index in self.used or _key(self.values[index]) in self.viewed

    def error(self, what: str, *, expected: str = "", got: str = "", unsupported: bool = False) -> Exception:
        kind = _core.UnsupportedOp if unsupported else _core.InvalidGraph
        return _core.make_error(
            kind, where="pte", what=f"method '{self.name}': {what}", expected=expected, got=got
        )


def _with_offsets(chains: Sequence[Any], chain: Any) -> list[Any]:
    """Returns the instructions of a chain, with jumps counted from the first chain."""
    offset = 0
    for each in chains:
        if each is chain:
            break
        offset += len(each.instructions)
    instructions = list(chain.instructions)
    for i, each in enumerate(instructions):
        if offset and isinstance(each, _core.PteJumpFalse):
            moved = each.destination + offset
            instructions[i] = _core.PteJumpFalse(condition=each.condition, destination=moved)
    return instructions


def _traces(chain: Any) -> list[Any]:
    """Returns the stack at export of each instruction; empty ones if the file has none."""
    count = len(chain.instructions)
    traces = list(chain.traces or [])
    return traces if len(traces) == count else [[]] * count


def _place_of(frames: Sequence[Any]) -> tuple[str, int]:
    """Returns file and line of the innermost frame."""
    return (frames[-1].file.rpartition("/")[2], frames[-1].line) if frames else ("", 0)


def _key(value: Any) -> tuple[int, int, int] | None:
    """Returns the planned place of a tensor: its memory, its first byte and its size."""
    at = value.allocation if isinstance(value, _core.PteTensor) else None
    return None if at is None else (at.memory, at.offset, value.byte_size)


# ---- the instructions ----


class _Reader(KernelWriter):
    """Reads the instructions of a method, or of a branch of it, into a builder."""

    def __init__(self, method: _Method, builder: _core.GraphBuilder, outer: _Reader | None = None) -> None:
        super().__init__(builder, f"method '{method.name}'", method.diagnostics)
        self._method = method
        self._outer = outer
        self.env: dict[int, Any] = {}
        self.memory = Memory()
        self.written: list[int] = []
        self.states: list[tuple[int, int]] = []  # index of the value, position among the inputs
        self.input_count = 0
        self._constants: dict[int, Ref] = {}
        if outer is not None:
            self._names = outer._names

    # ---- values ----

    def value(self, index: int) -> Any:
        """Returns a value as rows read it: a number, a list, None, or a `Ref`."""
        value = self._method.values[index]
        if isinstance(value, _core.PteTensor):
            return self.tensor(index)
        if index in self.env:
            return self.env[index]
        if isinstance(value, _LISTS):
            return [None if item < 0 else self.value(item) for item in value.items]
        return list(value.items) if hasattr(value, "items") else value

    def tensor(self, index: int) -> Ref:
        """Returns the present value of a tensor."""
        found = self.known(index)
        if found is not None:
            return found
        tensor = self._method.values[index]
        if tensor.allocation is None:
            raise self._fault(index, "is read before anything writes it")
        if not self.memory.is_free(tensor):
            raise self._fault(index, "lies in memory that another value has overwritten in part")
        if self._outer is not None:
            raise self._fault(index, "is read in a branch before anything writes it")
        return self._state(index, tensor)

    def known(self, index: int) -> Ref | None:
        """Returns the present value of a tensor; None if nothing has written it."""
        tensor = self._method.values[index]
        if tensor.allocation is None and (tensor.data or _is_external(tensor)):
            return self._constant(index, tensor)
        held = self.env.get(index)
        if tensor.allocation is None or tensor.byte_size == 0:
            if held is None and tensor.byte_size == 0:
                return self._empty(index, tensor)
            return held if isinstance(held, Ref) else None
        written = self.memory.at(tensor)
        if written is None:
            if held is not None:
                raise self._fault(index, "is read after the memory plan has overwritten it")
            return None
        if written.index == index:
            return written.ref
        return self._as(written.ref, written.tensor, index)

    def _as(self, ref: Ref, held: _core.PteTensor, index: int) -> Ref:
        """Returns a tensor that has the bytes of another: the same elements in memory order."""
        tensor = self._method.values[index]
        if tensor.scalar_type != held.scalar_type:
            raise self._fault(index, "has the bytes of a value of another dtype", unsupported=True)
        dtype = ref.dtype
        with self.aside("view"):
            if _is_permuted(held):
                ref = self.emit_inferred(OP["permute"], {"perm": list(held.dim_order)}, (ref.id,))
            order = list(tensor.dim_order)
            physical = [tensor.sizes[axis] for axis in order]
            if list(ref.shape) != physical:
                ref = self.emit_inferred(OP["reshape"], {"shape": physical}, (ref.id,))
            if _is_permuted(tensor):
                back = [order.index(axis) for axis in range(len(order))]
                ref = self.emit_inferred(OP["permute"], {"perm": back}, (ref.id,))
        return Ref(ref.id, dtype, tuple(tensor.sizes))

    def write(self, index: int, made: Any) -> None:
        """Notes the new value of an instruction's result."""
        self.env[index] = made
        self.written.append(index)
        if isinstance(made, Ref):
            self.memory.write(index, made, self._method.values[index])

    def type_of(self, index: int) -> tuple[int, tuple[int, ...]]:
        """Returns the dtype and shape of a tensor."""
        tensor = self._method.values[index]
        if not isinstance(tensor, _core.PteTensor):
            raise self._fault(index, f"is {type(tensor).__name__}, and the result of an operator is a tensor")
        return self._dtype(index, tensor), tuple(tensor.sizes)

    def _dtype(self, index: int, tensor: _core.PteTensor) -> int:
        name, dtype = scalar_type(tensor)
        if dtype is None:
            raise self._fault(index, f"has dtype {name}, which graphs do not have", unsupported=True)
        return CODE[dtype]

    def _fault(self, index: int, what: str, *, unsupported: bool = False) -> Exception:
        at = f"instruction {self._instruction} reads value {index}, which {what}"
        if self._instruction < 0:
            at = f"value {index} {what}"
        return self._method.error(at, unsupported=unsupported)

    # ---- constants and states ----

    def elements(self, index: int, tensor: _core.PteTensor) -> np.ndarray[Any, Any] | None:
        """Returns the stored elements of a tensor, with torch's axes; None without data in the file."""
        stored = self._method.file.elements_of(tensor)
        if stored is None:
            return None
        code = self._dtype(index, tensor)
        dtype = NUMPY.get(_core.DTYPES[code], np.dtype(f"u{tensor.byte_size // max(1, _count(tensor))}"))
        order = list(tensor.dim_order)
        physical = np.frombuffer(stored, np.uint8).view(dtype).reshape([tensor.sizes[axis] for axis in order])
        return physical.transpose(np.argsort(order))

    def _constant(self, index: int, tensor: _core.PteTensor) -> Ref:
        if index in self._constants:
            return self._constants[index]
        array = self.elements(index, tensor)
        if array is None:
            what = f"is the weight '{_name_of(tensor)}' of another file, which is not read"
            raise self._fault(index, what, unsupported=True)
        code = self._dtype(index, tensor)
        name = _name_of(tensor) or f"constant_{index}"
        kind = "parameter" if tensor.requires_grad else "lifted"
        value = self.builder.add_constant(constant_of(name, kind, array, code))
        ref = self._constants[index] = Ref(value, code, tuple(tensor.sizes))
        return ref

    def _empty(self, index: int, tensor: _core.PteTensor) -> Ref:
        """Returns a tensor without elements, which need not be written."""
        code = self._dtype(index, tensor)
        array = np.zeros(tuple(tensor.sizes), NUMPY.get(_core.DTYPES[code], np.dtype("u1")))
        value = self.builder.add_constant(constant_of(f"empty_{index}", "lifted", array, code))
        return Ref(value, code, tuple(tensor.sizes))

    def _state(self, index: int, tensor: _core.PteTensor) -> Ref:
        code = self._dtype(index, tensor)
        name = _name_of(tensor) or f"state_{len(self.states)}"
        array = self.elements(index, tensor)
        if array is None:
            array = np.zeros(tuple(tensor.sizes), NUMPY.get(_core.DTYPES[code], np.dtype("u2")))
            self._diagnostics.note(
                "unset-state",
                f"'{name}' has no initial value in the file, and begins with zeros",
                name,
            )
        initial = constant_of(name, "buffer", array, code)
        value = self.builder.add_input(name, code, tensor.sizes, name, None, initial)
        self.states.append((index, self.input_count))
        self.input_count += 1
        ref = Ref(value, code, tuple(tensor.sizes))
        self.env[index] = ref
        self.memory.write(index, ref, tensor)
        return ref

    # ---- instructions ----

    def run(self, first: int, end: int) -> None:
        """Reads the instructions from `first` to before `end`, in the order in which a run takes them."""
        method = self._method
        at = first
        while first <= at < end:
            method.steps += 1
            if method.steps > _MOST_STEPS:
                most = f"at most {_MOST_STEPS}"
                raise method.error("a run takes too many instructions", expected=most, unsupported=True)
            instruction = method.instructions[at]
            self.begin(at, self._target_of(instruction), method.places[at])
            at = self._read(at, instruction)
        if at != end:
            raise method.error(f"a branch jumps to instruction {at}, outside of it", unsupported=True)

    def _target_of(self, instruction: Any) -> tuple[str, str]:
        if isinstance(instruction, _core.PteKernelCall):
            return self._method.operators[instruction.op]
        if isinstance(instruction, _core.PteDelegateCall):
            return self._method.delegates[instruction.delegate].backend, ""
        return type(instruction).__name__.removeprefix("Pte").lower(), ""

    def _read(self, at: int, instruction: Any) -> int:
        """Reads an instruction and returns the index of the next one."""
        if isinstance(instruction, _core.PteJumpFalse):
            return self._jump(at, instruction)
        if isinstance(instruction, _core.PteKernelCall):
            self._kernel(instruction)
        elif isinstance(instruction, _core.PteDelegateCall):
            self._delegate(instruction)
        elif isinstance(instruction, _core.PteMove):
            moved = self.value(instruction.source)
            if isinstance(moved, Ref) and (moved.dtype, tuple(moved.shape)) != self.type_of(instruction.to):
                raise self.error(_core.InvalidGraph, "a value is moved to one of another type")
            self.write(instruction.to, moved)
        return at + 1

    def _kernel(self, call: Any) -> None:
        operands, results = self._method.split(call)
        name, _ = self._target
        if name == "executorch_prim::et_copy_index":
            self._copy_index(*operands)
        elif name == "executorch_prim::et_view":
            self._view(operands, results)
        elif name.startswith("executorch_prim::") or name.startswith("aten::sym_"):
            for index in results:
                self.write(index, self._number(name, [self.value(each) for each in operands]))
        elif results and not isinstance(self._method.values[results[0]], _core.PteTensor):
            for index in results:
                self.write(index, self._item(name, [self.value(each) for each in operands]))
        else:
            self._tensors(operands, results)

    def _tensors(self, operands: Sequence[int], results: Sequence[int]) -> None:
        """Reads a call whose results are tensors."""
        arguments = [self.value(each) for each in operands]
        for argument in arguments:
            if isinstance(argument, NoValue):
                raise self._without_value(argument)
        types: Types = [self.type_of(index) for index in results]
        used = {i for i, index in enumerate(results) if self._method.is_used(index)}
        made = self.read_call(arguments, types, used)
        for index, result in zip(results, made, strict=False):
            if isinstance(result, Ref):
                self.write(index, result)

    def _view(self, operands: Sequence[int], results: Sequence[int]) -> None:
        base = self._method.values[operands[0]]
        for index in results:
            self.write(index, self._as(self.tensor(operands[0]), base, index))

    def _copy_index(self, out: int, source: int, at: int) -> None:
        """Reads the assignment ``out[at] = source``, which loops make."""
        position, row = self.value(at), self.tensor(source)
        dtype, shape = self.type_of(out)
        held = self.known(out)
        if held is None:
            zeros = {"shape": shape, "value": 0, "dtype": dtype}
            held = self.emit_inferred(OP["full"], zeros, ())
        self.types, self.dtype, self.shape = [(dtype, shape)], dtype, shape
        before = self.emit_inferred(
            OP["slice"], {"axis": 0, "start": 0, "end": position, "step": 1}, (held.id,)
        )
        after = self.emit_inferred(
            OP["slice"], {"axis": 0, "start": position + 1, "end": shape[0], "step": 1}, (held.id,)
        )
        middle = self.emit_inferred(OP["reshape"], {"shape": (1, *row.shape)}, (row.id,))
        parts = [each.id for each in (before, middle, after) if each.shape[0]]
        self.write(out, self.emit_inferred(OP["cat"], {"axis": 0}, parts))

    def _number(self, name: str, values: Sequence[Any]) -> Any:
        """Returns the result of an operator on numbers, or of a question about a shape."""
        missing = next((each for each in values if isinstance(each, NoValue)), None)
        if missing is not None:
            return NoValue(missing.target)
        bare = name.rpartition("::")[2].removeprefix("sym_")
        if bare == "size":
            return int(values[0].shape[values[1]])
        if bare == "numel":
            return math.prod(values[0].shape)
        for module in (operator, math, builtins):
            function = getattr(module, "not_" if bare == "not" else bare, None)
            if callable(function) and not any(isinstance(each, Ref) for each in values):
                return self._located(lambda f=function: f(*values))  # type: ignore[misc]
        raise self.error(_core.UnsupportedOp, "this operator on numbers is not known")

    def _item(self, name: str, values: Sequence[Any]) -> Any:
        """Returns the number that an operator reads from a tensor, if the tensor is constant."""
        refs = [each for each in values if isinstance(each, Ref)]
        known = self.known_elements(refs[0]) if len(refs) == 1 and not refs[0].shape else None
        if known is None or "item" not in name and "scalar" not in name:
            return NoValue(name)
        is_bool = _core.DTYPES[refs[0].dtype] == "bool"
        return bool(known) if is_bool else known.item()

    # ---- branches ----

    def _jump(self, at: int, jump: Any) -> int:
        condition = self.value(jump.condition)
        if isinstance(condition, bool):
            return at + 1 if condition else int(jump.destination)
        if not isinstance(condition, Ref):
            raise self.error(_core.UnsupportedOp, "a jump depends on a number that is read from data")
        return self._branch(at, condition, int(jump.destination))

    def _branch(self, at: int, condition: Ref, other: int) -> int:
        """Reads ``if condition``: the instructions up to a jump that is always taken, and those behind it."""
        method = self._method
        skip = method.instructions[other - 1] if at + 1 < other else None
        is_skip = isinstance(skip, _core.PteJumpFalse) and self.value(skip.condition) is False
        end = int(skip.destination) if is_skip else -1  # type: ignore[union-attr]
        if end < other:
            raise self.error(
                _core.UnsupportedOp,
                "a jump that depends on a tensor is no branch",
                hint="A loop whose end depends on data is not read",
            )
        self.begin(at, ("cond", ""), method.places[at])
        blocks = [(at + 1, other - 1), (other, end)]
        captured = self._captured(blocks)
        readers = [self._block(block, captured, f"{self._node}.{i}") for i, block in enumerate(blocks)]
        results = [i for i in dict.fromkeys(readers[0].written) if i in readers[1].written]
        graphs = [reader.finished(results) for reader in readers]
        lost = {i for reader in readers for i in reader.written} & self.env.keys() - set(results)
        if lost:
            raise self.error(_core.UnsupportedOp, f"only one branch writes value {min(lost)}")
        if condition.shape:
            condition = self.emit_inferred(OP["reshape"], {"shape": ()}, (condition.id,))
        operands = [condition.id, *(ref.id for ref in captured)]
        types: Types = [self.type_of(index) for index in results]
        first = self.builder.add_many(OP["cond"], None, operands, self._name(), self._origin(), types, graphs)
        for i, index in enumerate(results):
            self.write(index, Ref(first + i, *types[i]))
        return end

    def _captured(self, blocks: Sequence[tuple[int, int]]) -> list[Ref]:
        """Returns the values outside of branches that instructions in them may read, each once."""
        method = self._method
        reads = {
            index
            for first, end in blocks
            for instruction in method.instructions[first:end]
            for index in self._method.operands(instruction)
        }
        reads |= {item for index in reads for item in method.items(index)}
        found: dict[int, Ref] = {}
        for index in sorted(reads):
            value = method.values[index]
            if isinstance(value, _core.PteTensor) and value.allocation is not None:
                ref = self.known(index)
                if ref is not None:
                    self.env.setdefault(index, ref)
                    found.setdefault(ref.id, ref)
        return list(found.values())

    def _block(self, block: tuple[int, int], captured: Sequence[Ref], name: str) -> _Reader:
        """Reads the instructions of a branch into a graph of its own."""
        reader = _Reader(self._method, _core.GraphBuilder(name), self)
        inner = {
            ref.id: Ref(
                reader.builder.add_input(f"arg_{i}", ref.dtype, ref.shape, f"arg_{i}"), ref.dtype, ref.shape
            )
            for i, ref in enumerate(captured)
        }
        for index, held in self.env.items():
            if not isinstance(held, Ref):
                reader.env[index] = held
            elif held.id in inner:
                reader.env[index] = inner[held.id]
        reader.memory = self.memory.mapped(inner)
        reader.run(*block)
        return reader

    def finished(self, results: Iterable[int]) -> _core.Graph:
        """Returns the graph of a branch with these results."""
        for i, index in enumerate(results):
            self.builder.add_output(self.tensor(index).id, f"out[{i}]")
        return self.builder.finish()

    # ---- delegates ----

    def _delegate(self, call: Any) -> None:
        method = self._method
        delegate, args = method.delegates[call.delegate], list(call.args)
        place = Place(method.name, int(call.delegate), delegate.backend)
        payload = method.file.payload_of(delegate).tobytes()
        part = self._part(place, payload) if is_tosa(payload) else None
        count = self._input_count(args) if part is None else len(part.inputs)
        if part is not None and len(args) != count + len(part.outputs):
            raise method.error(
                f"{place} is called with another number of tensors than its payload has",
                expected=f"{count} inputs and {len(part.outputs)} outputs",
                got=str(len(args)),
            )
        inputs = [self._operand(index) for index in args[:count]]
        outputs = args[count:]
        types: Types = [self.type_of(index) for index in outputs]
        self.begin(self._instruction, (f"delegate{call.delegate}", ""), self._place)
        name, self._target = self._node, (delegate.backend, "")
        forms = [self._form(index) for index in args]
        method.runners[name] = (
            NoRunner(place, name, kind_of_payload(payload))
            if part is None
            else PayloadCall(part, forms[:count], forms[count:], place)
        )
        made = self.opaque(delegate.backend, inputs, types)
        for index, ref in zip(outputs, made, strict=True):
            self.write(index, ref)

    def _part(self, place: Place, payload: bytes) -> Program:
        try:
            return Program(_core.deserialize(payload))
        except _core.Error as error:
            parts = error.parts
            raise _core.make_error(
                type(error),
                where="pte",
                what=f"the payload of {place}: {parts['what']}",
                expected=parts["expected"],
                got=parts["got"],
                node=parts["node"],
            ) from error

    def _operand(self, index: int) -> Any:
        value = self.value(index)
        if isinstance(value, NoValue):
            raise self._without_value(value)
        if isinstance(value, bool | int | float):
            code = CODE["bool" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f64"]
            return self.constant(value, code)
        return value

    def _form(self, index: int) -> TensorForm:
        tensor = self._method.values[index]
        if not isinstance(tensor, _core.PteTensor):
            return TensorForm("i64", (), ())
        code, shape = self.type_of(index)
        return TensorForm(_core.DTYPES[code], shape, tuple(tensor.dim_order))

    def _input_count(self, args: Sequence[int]) -> int:
        """Returns how many arguments of a delegate are inputs, which the file does not say.

        Outputs are the last arguments. Nothing has written an output yet, and ExecuTorch numbers values in
        the order in which it meets them, so the outputs are behind all inputs of the method and have
        consecutive indices. A value that has the elements of another in another shape is a view, and so an
        input.
        """
        method = self._method
        least = max(method.inputs, default=-1)
        count = len(args)
        while count > 0:
            index = args[count - 1]
            tensor = method.values[index]
            follows = count == len(args) or index + 1 == args[count]
            if not isinstance(tensor, _core.PteTensor) or index <= least or not follows:
                break
            if index in self.env or (tensor.allocation is None and tensor.data) or self._is_view(tensor):
                break
            count -= 1
        return count

    def _is_view(self, tensor: _core.PteTensor) -> bool:
        held = self.memory.at(tensor)
        return (
            held is not None
            and held.tensor.scalar_type == tensor.scalar_type
            and list(held.tensor.sizes) != list(tensor.sizes)
        )


def _is_permuted(tensor: _core.PteTensor) -> bool:
    return list(tensor.dim_order) != list(range(len(tensor.sizes)))


def _name_of(tensor: _core.PteTensor) -> str:
    return tensor.extra.name if tensor.extra is not None else ""


def _is_external(tensor: _core.PteTensor) -> bool:
    return tensor.extra is not None and tensor.extra.location == _EXTERNAL


def _count(tensor: _core.PteTensor) -> int:
    return math.prod(tensor.sizes)


# ---- the method ----


def read_method(file: _core.PteFile, method: _core.PteMethod) -> MethodGraph:
    """Reads a method as a graph at stage ``exported``.

    Raises
    ------
    UnsupportedOp
        An instruction, a dtype or a payload has no counterpart in graphs.
    InvalidGraph
        The instructions are inconsistent.
    """
    shared = _Method(file, method.name, method, Diagnostics())
    builder = _core.GraphBuilder(method.name)
    reader = _Reader(shared, builder)
    input_tree = tree_of(method.input_containers)
    inputs = _add_inputs(shared, reader, input_tree)
    reader.run(0, len(shared.instructions))
    output_tree = tree_of(method.output_containers)
    outputs = _add_outputs(shared, reader, output_tree, inputs)
    signature = _signature(input_tree, inputs, output_tree, outputs)
    return MethodGraph(builder.finish(), signature, shared.diagnostics, shared.runners)


def _add_inputs(shared: _Method, reader: _Reader, tree: Tree | None) -> list[InputLeaf]:
    indices = shared.inputs
    paths = _input_paths(tree, len(indices))
    leaves = []
    for path, index in zip(paths, indices, strict=True):
        value = shared.values[index]
        if not isinstance(value, _core.PteTensor):
            leaves.append(InputLeaf(path, None, value))
            continue
        if value.dynamism:
            shared.diagnostics.note(
                "dynamic-shape", f"input '{path}' may be smaller; it is read with its greatest extents", path
            )
        code, shape = reader.type_of(index)
        name = "".join(c if c.isalnum() else "_" for c in path).strip("_")
        order = tuple(value.dim_order) if _is_permuted(value) else None
        ref = Ref(reader.builder.add_input(name, code, shape, path, order), code, shape)
        leaves.append(InputLeaf(path, reader.input_count))
        reader.input_count += 1
        reader.env[index] = ref
        reader.memory.write(index, ref, value)
    return leaves


def _input_paths(tree: Tree | None, count: int) -> list[str]:
    """Returns a path for each input: ``x0`` for the first argument, ``x0['a']`` inside it, ``mask`` by name."""
    if tree is None or tree.leaf_count != count or not _is_call(tree):
        return [f"x{i}" for i in range(count)]
    positional = [path for i, each in enumerate(tree.children[0].children) for path in each.paths(f"x{i}")]
    by_name = tree.children[1]
    named = [
        path
        for key, each in zip(by_name.keys, by_name.children, strict=True)
        for path in each.paths(str(key))
    ]
    return positional + named


def _is_call(tree: Tree) -> bool:
    """True for the structure of a call: a tuple of arguments, and a dict of those with names."""
    return tree.kind == "tuple" and [each.kind for each in tree.children] == ["tuple", "dict"]


def _add_outputs(
    shared: _Method, reader: _Reader, tree: Tree | None, inputs: Sequence[InputLeaf]
) -> list[OutputLeaf]:
    indices = shared.method.outputs
    known = tree is not None and tree.leaf_count == len(indices)
    default = ["out"] if len(indices) == 1 else [f"out[{i}]" for i in range(len(indices))]
    paths = tree.paths("out") if known and tree is not None else default
    reader.begin(-1, ("output", ""))
    leaves = []
    count = 0
    for path, index in zip(paths, indices, strict=True):
        value = shared.values[index]
        if not isinstance(value, _core.PteTensor):
            held = reader.value(index)
            if isinstance(held, NoValue):
                raise shared.error(f"output '{path}' is a number that is read from data", unsupported=True)
            leaves.append(OutputLeaf(path, None, held))
            continue
        order = tuple(value.dim_order) if _is_permuted(value) else None
        reader.builder.add_output(reader.tensor(index).id, path, None, order)
        leaves.append(OutputLeaf(path, count))
        count += 1
    for index, ref, position in _mutated(shared, reader, inputs):
        value = shared.values[index]
        order = (
            tuple(value.dim_order) if _is_permuted(value) and (index, position) not in reader.states else None
        )
        reader.builder.add_output(ref.id, f"new_{index}", position, order)
    return leaves


def _mutated(shared: _Method, reader: _Reader, inputs: Sequence[InputLeaf]) -> list[tuple[int, Ref, int]]:
    """Returns the states and inputs that have a new value at the end: index, value, position."""
    users = [
        (index, leaf.index)
        for index, leaf in zip(shared.inputs, inputs, strict=True)
        if leaf.index is not None
    ]
    found = [(index, reader.env[index], position) for index, position in users if index in reader.written]
    for index, position in reader.states:
        if index in reader.written:
            found.append((index, reader.tensor(index), position))
    return found


def _signature(
    input_tree: Tree | None,
    inputs: Sequence[InputLeaf],
    output_tree: Tree | None,
    outputs: Sequence[OutputLeaf],
) -> Signature | None:
    leaf = Tree("leaf")
    if input_tree is None or input_tree.leaf_count != len(inputs) or not _is_call(input_tree):
        input_tree = Tree("tuple", (Tree("tuple", (leaf,) * len(inputs)), Tree("dict")))
    if output_tree is None or output_tree.leaf_count != len(outputs):
        output_tree = leaf if len(outputs) == 1 else Tree("tuple", (leaf,) * len(outputs))
    names = tuple(f"x{i}" for i in range(len(input_tree.children[0].children)))
    return Signature(input_tree, output_tree, tuple(inputs), tuple(outputs), names)
