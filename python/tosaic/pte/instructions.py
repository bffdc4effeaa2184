"""Reads the instructions of a method into nodes, one by one.

Numbers are known while reading, so a jump that depends on a number is followed, and a loop over numbers is
unrolled. A jump that depends on a tensor is a branch, which becomes a ``cond``. A delegate call becomes an
opaque node, which a function computes.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from tosaic import _core
from tosaic.devices.device import Sizes
from tosaic.pte.calls import KernelWriter, Types
from tosaic.pte.delegate_calls import DelegateNode, TensorForm
from tosaic.pte.facts import MethodFacts
from tosaic.pte.input_count import input_count, is_reshaped
from tosaic.pte.kernels.libraries import scratch_operands
from tosaic.pte.payloads import Place, program_of_payload, sides_of_payload
from tosaic.pte.values import ValueReader
from tosaic.torch_operators.arguments import OP
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.value import NoValue, Ref

_MOST_STEPS = 200_000
"""The most instructions that are read, since a damaged file may have an endless loop."""


class InstructionReader:
    """Reads the instructions of a method, or of a branch of it, with a writer into a builder.

    Parameters
    ----------
    method : MethodFacts
    builder : GraphBuilder
    outer : InstructionReader, optional
        The reader of the method, if this is the reader of a branch.

    Attributes
    ----------
    writer : KernelWriter
        Writes the nodes of the kernel call that is being read.
    values : ValueReader
        The values of the method.
    """

    def __init__(
        self, method: MethodFacts, builder: _core.GraphBuilder, outer: InstructionReader | None = None
    ) -> None:
        self._method = method
        around = None if outer is None else outer.writer
        self.writer: KernelWriter = KernelWriter(builder, method.where(), method.diagnostics, around)
        of_method = None if outer is None else outer.values
        self.values: ValueReader = ValueReader(method, self.writer, of_method)

    def run(self, first: int, end: int) -> None:
        """Reads the instructions from `first` to before `end`, in the order of execution."""
        method = self._method
        at = first
        while first <= at < end:
            method.steps += 1
            if method.steps > _MOST_STEPS:
                most = f"at most {_MOST_STEPS}"
                raise method.error("a run takes too many instructions", expected=most, unsupported=True)
            instruction = method.instructions[at]
            self.writer.begin(at, self._target_of(instruction), method.places[at])
            at = self.writer.located(partial(self._read, at, instruction))
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
            moved = self.values.value(instruction.source)
            wanted = self.values.type_of(instruction.to) if isinstance(moved, Ref) else None
            if isinstance(moved, Ref) and (moved.dtype, tuple(moved.shape)) != wanted:
                raise self.writer.error(_core.InvalidGraph, "a value is moved to one of another type")
            self.values.write(instruction.to, moved)
        return at + 1

    def _kernel(self, call: Any) -> None:
        operands, results = self._method.split(call)
        name, _ = self.writer.target
        if name == "executorch_prim::et_copy_index":
            self._copy_index(*operands)
        elif name == "executorch_prim::et_view":
            self._view(operands, results)
        elif name.startswith(("executorch_prim::", "aten::sym_")):
            for index in results:
                self.values.write(index, self._number(name, [self.values.value(each) for each in operands]))
        elif results and not isinstance(self._method.values[results[0]], _core.PteTensor):
            for index in results:
                self.values.write(index, self._item(name, [self.values.value(each) for each in operands]))
        else:
            self._tensors(operands, results)

    def _tensors(self, operands: Sequence[int], results: Sequence[int]) -> None:
        """Reads a call whose results are tensors."""
        first = len(operands) - scratch_operands(self.writer.target[0])
        arguments = [self.values.value(each) for each in operands[:first]]
        arguments += [self.values.scratch(each) for each in operands[first:]]
        for argument in arguments:
            if isinstance(argument, NoValue):
                raise self.writer.without_value(argument)
        types: Types = [self.values.type_of(index) for index in results]
        used = {i for i, index in enumerate(results) if self._method.is_used(index)}
        made = self.writer.read_call(arguments, types, used, [self._method.values[each] for each in operands])
        for index, result in zip(results, made, strict=False):
            if isinstance(result, Ref):
                self.values.write(index, result)

    def _view(self, operands: Sequence[int], results: Sequence[int]) -> None:
        base = self._method.values[operands[0]]
        for index in results:
            made = self.values.reinterpreted(self.values.tensor(operands[0]), base, index)
            self.values.env[index] = made
            self.values.written.append(index)
            tensor, held = self._method.values[index], self.values.memory.at(base)
            if held is None or self.values.memory.at(tensor) is not held:
                self.values.memory.write(index, made, tensor)

    def _copy_index(self, out: int, source: int, at: int) -> None:
        """Reads the assignment ``out[at] = source``, which occurs in loops."""
        position, row = self.values.value(at), self.values.tensor(source)
        dtype, shape = self.values.type_of(out)
        held = self.values.known(out)
        if held is None:
            zeros = {"shape": shape, "value": 0, "dtype": dtype}
            held = self.writer.emit_inferred(OP["full"], zeros, ())
        self.writer.types, self.writer.dtype, self.writer.shape = [(dtype, shape)], dtype, shape
        before = self.writer.emit_inferred(
            OP["slice"], {"axis": 0, "start": 0, "end": position, "step": 1}, (held.id,)
        )
        after = self.writer.emit_inferred(
            OP["slice"], {"axis": 0, "start": position + 1, "end": shape[0], "step": 1}, (held.id,)
        )
        middle = self.writer.emit_inferred(OP["reshape"], {"shape": (1, *row.shape)}, (row.id,))
        parts = [each.id for each in (before, middle, after) if each.shape[0]]
        self.values.write(out, self.writer.emit_inferred(OP["cat"], {"axis": 0}, parts))

    def _number(self, name: str, values: Sequence[Any]) -> Any:
        """Returns the result of an operator on numbers, or of a query of a shape."""
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
                return self.writer.located(lambda f=function: f(*values))  # type: ignore[misc]
        raise self.writer.error(_core.UnsupportedOp, "this operator on numbers is not known")

    def _item(self, name: str, values: Sequence[Any]) -> Any:
        """Returns the number that an operator reads from a tensor, if the tensor is constant."""
        refs = [each for each in values if isinstance(each, Ref)]
        known = self.writer.known_elements(refs[0]) if len(refs) == 1 and not refs[0].shape else None
        if known is None or not ("item" in name or "scalar" in name):
            return NoValue(name)
        is_bool = _core.DTYPES[refs[0].dtype] == "bool"
        return bool(known) if is_bool else known.item()

    # ---- branches ----

    def _jump(self, at: int, jump: Any) -> int:
        condition = self.values.value(jump.condition)
        if isinstance(condition, bool):
            return at + 1 if condition else int(jump.destination)
        if not isinstance(condition, Ref):
            raise self.writer.error(_core.UnsupportedOp, "a jump depends on a number that is read from data")
        return self._branch(at, condition, int(jump.destination))

    def _branch(self, at: int, condition: Ref, other: int) -> int:
        """Reads a branch: the block up to a jump that is always taken, and the block from `other` on."""
        method = self._method
        skip = method.instructions[other - 1] if at + 1 < other else None
        is_skip = isinstance(skip, _core.PteJumpFalse) and self.values.value(skip.condition) is False
        end = int(skip.destination) if is_skip else -1  # type: ignore[union-attr]
        if end < other:
            raise self.writer.error(
                _core.UnsupportedOp,
                "a jump that depends on a tensor is no branch",
                hint="A loop whose end depends on data is not read",
            )
        self.writer.begin(at, ("cond", ""), method.places[at])
        blocks = [(at + 1, other - 1), (other, end)]
        captured = self._captured(blocks)
        readers = [self._block(block, captured, f"{self.writer.node}.{i}") for i, block in enumerate(blocks)]
        results = [i for i in dict.fromkeys(readers[0].values.written) if i in readers[1].values.written]
        graphs = [reader.finished(results) for reader in readers]
        written = {i for reader in readers for i in reader.values.written}
        lost = written & self.values.env.keys() - set(results)
        if lost:
            raise self.writer.error(_core.UnsupportedOp, f"only one branch writes value {min(lost)}")
        if condition.shape:
            condition = self.writer.emit_inferred(OP["reshape"], {"shape": ()}, (condition.id,))
        operands = [condition.id, *(ref.id for ref in captured)]
        types: Types = [self.values.type_of(index) for index in results]
        first = self.writer.builder.add_many(
            OP["cond"], None, operands, self.writer.name(), self.writer.origin(), types, graphs
        )
        for i, index in enumerate(results):
            self.values.write(index, Ref(first + i, *types[i]))
        return end

    def _captured(self, blocks: Sequence[tuple[int, int]]) -> list[Ref]:
        """Returns the values outside of branches that the branches may read, each once."""
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
                ref = self.values.known(index)
                if ref is not None:
                    self.values.env.setdefault(index, ref)
                    found.setdefault(ref.id, ref)
        return list(found.values())

    def _block(self, block: tuple[int, int], captured: Sequence[Ref], name: str) -> InstructionReader:
        """Reads the instructions of a branch into a graph of its own."""
        reader = InstructionReader(self._method, _core.GraphBuilder(name), self)
        inner = {
            ref.id: Ref(
                reader.writer.builder.add_input(f"arg_{i}", ref.dtype, ref.shape, f"arg_{i}"),
                ref.dtype,
                ref.shape,
            )
            for i, ref in enumerate(captured)
        }
        for index, held in self.values.env.items():
            if not isinstance(held, Ref):
                reader.values.env[index] = held
            elif held.id in inner:
                reader.values.env[index] = inner[held.id]
        reader.values.memory = self.values.memory.mapped(inner)
        reader.run(*block)
        return reader

    def finished(self, results: Iterable[int]) -> _core.Graph:
        """Returns the graph of a branch with these results."""
        for i, index in enumerate(results):
            self.writer.builder.add_output(self.values.tensor(index).id, f"out[{i}]")
        return self.writer.builder.finish()

    # ---- delegates ----

    def _delegate(self, call: Any) -> None:
        method = self._method
        delegate, args = method.delegates[call.delegate], list(call.args)
        place = Place(method.name, int(call.delegate), delegate.backend)
        payload = method.file.payload_of(delegate).tobytes()
        part = program_of_payload(place, payload) or method.sources.get(place.index)
        sides = sides_of_payload(place, payload, part)
        count = input_count(
            method, args, sides, is_written=self.values.env.__contains__, is_view=self._is_view
        )
        if sides is not None:
            self._require_call(place, args, *sides)
        inputs = [self._operand(index) for index in args[:count]]
        outputs = args[count:]
        types: Types = [self.values.type_of(index) for index in outputs]
        self.writer.begin(self.writer.instruction, (f"delegate{call.delegate}", ""), self.writer.place)
        name, self.writer.target = self.writer.node, (delegate.backend, "")
        forms = [self._form(index) for index in args]
        node = DelegateNode(place, name, payload, tuple(forms[:count]), tuple(forms[count:]), part)
        node.runner("tosaic")  # refuses a program that does not fit the call
        method.delegate_nodes.append(node)
        made = self.writer.opaque(delegate.backend, inputs, types)
        for index, ref in zip(outputs, made, strict=True):
            self.values.write(index, ref)

    def _require_call(self, place: Place, args: Sequence[int], inputs: Sizes, outputs: Sizes) -> None:
        """Refuses a call whose tensors differ from the payload's."""
        if len(args) != len(inputs) + len(outputs):
            raise self._method.error(
                f"{place} is called with another number of tensors than its payload has",
                expected=f"{len(inputs)} inputs and {len(outputs)} outputs",
                got=str(len(args)),
            )
        for i, (index, size) in enumerate(zip(args, (*inputs, *outputs), strict=True)):
            form = self._form(index)
            if size is not None and size != form.nbytes:
                side = f"input {i}" if i < len(inputs) else f"output {i - len(inputs)}"
                what = f"{side} of the payload has another size"
                raise place.fault(what, f"{form.type_text}, {form.nbytes} bytes", f"{size} bytes")

    def _operand(self, index: int) -> Any:
        value = self.values.value(index)
        if isinstance(value, NoValue):
            raise self.writer.without_value(value)
        if isinstance(value, bool | int | float):
            code = CODE["bool" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f64"]
            return self.writer.constant(value, code)
        return value

    def _form(self, index: int) -> TensorForm:
        tensor = self._method.values[index]
        if not isinstance(tensor, _core.PteTensor):
            return TensorForm("i64", (), ())
        code, shape = self.values.type_of(index)
        return TensorForm(_core.DTYPES[code], shape, tuple(tensor.dim_order))

    def _is_view(self, tensor: _core.PteTensor) -> bool:
        held = self.values.memory.at(tensor)
        return held is not None and is_reshaped(held.tensor, tensor)
