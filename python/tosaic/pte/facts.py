"""The contents of a method of a ``.pte`` file, in the form that the readers of its instructions need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.pte.delegate_calls import DelegateNode
from tosaic.pte.rows import is_in_place
from tosaic.torch_operators.origins import Where

if TYPE_CHECKING:
    from tosaic.program.program import Program

LISTS = (_core.PteTensorList, _core.PteOptionalTensorList, _core.PteIntList)
"""The lists whose items are indices of values."""

_EXTERNAL = 1


def is_permuted(tensor: _core.PteTensor) -> bool:
    """True for a tensor that is not row-major in memory."""
    return list(tensor.dim_order) != list(range(len(tensor.sizes)))


def name_of(tensor: _core.PteTensor) -> str:
    """Returns the name of a parameter or buffer; empty if the file does not record it."""
    return tensor.extra.name if tensor.extra is not None else ""


def is_external(tensor: _core.PteTensor) -> bool:
    """True for a tensor whose elements are in another file."""
    return tensor.extra is not None and tensor.extra.location == _EXTERNAL


@dataclass
class MethodFacts:
    """A method, and what the readers of its instructions share.

    Attributes
    ----------
    values, instructions, operators, delegates, inputs : list
        The lists of the file. The chains are one list of instructions.
    places : list of (str, int)
        For each instruction, its file and line at export; ``("", 0)`` if the file has none.
    used : set of int
        Indices of the values that an instruction reads, or that are outputs.
    sources : mapping of int to Program
        The TOSA programs that the caller passed as `sources` of `load_pte`. The key is the index of the
        delegate that the program replaces.
    delegate_nodes : list of DelegateNode
        The delegate calls that became nodes.
    steps : int
        The number of instructions that were read so far.
    """

    file: _core.PteFile
    name: str
    method: _core.PteMethod
    diagnostics: Diagnostics
    sources: Mapping[int, Program] = field(default_factory=dict)
    values: list[Any] = field(init=False)
    instructions: list[Any] = field(init=False)
    places: list[tuple[str, int]] = field(init=False)
    operators: list[tuple[str, str]] = field(init=False)
    delegates: list[Any] = field(init=False)
    inputs: list[int] = field(init=False)
    delegate_nodes: list[DelegateNode] = field(default_factory=list)
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
        self.used |= self._used_by_views()

    def _used_by_views(self) -> set[int]:
        """Returns the values that are read through a view.

        No instruction writes a view: it has the place of a value that an earlier instruction has written.
        """
        written = {index for each in self.instructions for index in self.results(each)}
        views = self.used - written - set(self.inputs)
        found: set[int] = set()
        last: dict[Any, int] = {}
        for _ in range(2):  # twice, since loops jump back
            for each in self.instructions:
                self._add_last(found, last, views, self.operands(each))
                last |= {place_of(self.values[index]): index for index in self.results(each)}
        self._add_last(found, last, views, self.method.outputs)
        return found

    def _add_last(self, found: set[int], last: dict[Any, int], views: set[int], read: Sequence[int]) -> None:
        """Adds, for each view that is read, the value that was last written at its place."""
        for index in (*read, *(item for each in read for item in self.items(each))):
            place = place_of(self.values[index])
            if index in views and place is not None and place in last:
                found.add(last[place])

    def state_of(self, index: int) -> int:
        """Returns the state at the place of a tensor that is read before anything writes it.

        A view has the place of its state, and may be read before the state itself. The state is the value
        with initial elements or a name. If the file has neither for this place, the state is the value
        with the lowest index there.
        """
        place, dtype = place_of(self.values[index]), self.values[index].scalar_type
        same = [i for i in self._at_place.get(place, [index]) if self.values[i].scalar_type == dtype]
        return next((i for i in same if persists(self.values[i])), same[0])

    def is_state(self, index: int) -> bool:
        """True for a tensor at the place of a value that the file gives initial elements or a name."""
        return persists(self.values[self.state_of(index)])

    @cached_property
    def _at_place(self) -> dict[Any, list[int]]:
        found: dict[Any, list[int]] = {}
        for index, value in enumerate(self.values):
            if (place := place_of(value)) is not None:
                found.setdefault(place, []).append(index)
        return found

    def items(self, index: int) -> list[int]:
        """Returns the indices of values in a list; none for other values."""
        value = self.values[index]
        return [item for item in value.items if item >= 0] if isinstance(value, LISTS) else []

    def operands(self, instruction: Any) -> list[int]:
        """Returns the indices of the values that an instruction reads; for a delegate call, all arguments."""
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

        An out variant has its results among its arguments and also returns them: its arguments are the
        operands, the results, and the results again, as one list if there are several. Other operators return
        a value that is not among their arguments, or their first operand.
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
            out = self.values[args[-2]] if len(args) > 1 else None
            is_list = isinstance(out, _core.PteTensorList) and list(out.items) == results
            return args[: -2 if is_list else -1], results
        if len(args) > 1 and args[-1] == args[-2] and not is_in_place(name):
            return args[:-2], args[-1:]
        return args[:-1], args[-1:]

    def is_used(self, index: int) -> bool:
        """True if something reads a value, or a view of it."""
        return index in self.used

    def error(self, what: str, *, expected: str = "", got: str = "", unsupported: bool = False) -> Exception:
        """Returns an error located at the method."""
        kind = _core.UnsupportedOp if unsupported else _core.InvalidGraph
        return self.where().error(kind, what, expected=expected, got=got)

    def where(self) -> Where:
        """Returns the place of the method, for errors."""
        return Where("pte", inside=f"method '{self.name}'")


def _with_offsets(chains: Sequence[Any], chain: Any) -> list[Any]:
    """Returns the instructions of a chain, with jump targets as indices into the list of all chains."""
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


def persists(tensor: _core.PteTensor) -> bool:
    """True if the file says that a planned tensor has elements before the first run, or a name."""
    return bool(tensor.data) or name_of(tensor) != ""


def place_of(value: Any) -> tuple[int, int, int] | None:
    """Returns the planned place of a tensor: its memory, its first byte and its size."""
    at = value.allocation if isinstance(value, _core.PteTensor) else None
    return None if at is None else (at.memory, at.offset, value.byte_size)
