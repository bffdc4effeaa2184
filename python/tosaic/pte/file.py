"""Reading ``.pte`` files: `load_pte`, and what a file says as plain data."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.dtypes import type_text
from tosaic.options import checked, file_path
from tosaic.program import Program
from tosaic.reading import read_bytes
from tosaic.reportable import Reportable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from tosaic.memory.plan import MemoryPlan
    from tosaic.models import Models
    from tosaic.prepared import Prepared
    from tosaic.runnable import Runnable

__all__ = ["PteDelegate", "PteFile", "PteMethod", "PteMethodProgram", "PteTensor", "load_pte"]

_DYNAMISM = ("static", "bounded", "unbounded")


@dataclass(frozen=True)
class PteTensor:
    """A tensor of a method.

    Attributes
    ----------
    index : int
        Index of the value in the method.
    name : str
        Name of a parameter or buffer, if the file records it.
    dtype : str
        Name of the element type in torch: ``float32``.
    shape : tuple of int
        With torch's axes. The greatest extents, unless `dynamism` is ``static``.
    dim_order : tuple of int
        The order of the axes in memory, outermost first.
    kind : str
        ``constant``, ``input``, ``state`` (with initial elements) or ``activation``.
    memory, offset : int or None
        The planned place: index of the memory and first byte. None if no memory is planned.
    nbytes : int
        Bytes of the elements.
    dynamism : str
        ``static``, ``bounded`` or ``unbounded``.
    """

    index: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...]
    kind: str
    memory: int | None
    offset: int | None
    nbytes: int
    dynamism: str

    @property
    def type_text(self) -> str:
        """Dtype and shape as text: ``float32[1,3,8,8]``, with the dim order if it is not row-major."""
        text = type_text(self.dtype, self.shape)
        if self.dim_order != tuple(range(len(self.shape))):
            text += f" order({','.join(map(str, self.dim_order))})"
        return text


@dataclass(frozen=True)
class PteDelegate:
    """A delegate: a part of a method that a backend runs.

    Attributes
    ----------
    method : str
    index : int
        Index among the delegates of the method.
    backend : str
        The id of the backend, such as ``XnnpackBackend``.
    payload : bytes
        What the backend gets.
    compile_specs : tuple of (str, bytes)
        The options with which the payload was made.
    """

    method: str
    index: int
    backend: str
    payload: bytes
    compile_specs: tuple[tuple[str, bytes], ...]

    @property
    def payload_kind(self) -> str:
        """The format of the payload: ``TOSA``, ``VGF`` or ``Vela``; empty for others."""
        from tosaic.pte.payloads import kind_of_payload

        return kind_of_payload(self.payload)

    def __repr__(self) -> str:
        kind = f", {self.payload_kind}" * bool(self.payload_kind)
        return (
            f"<PteDelegate {self.index} of '{self.method}': {self.backend}, {len(self.payload)} bytes{kind}>"
        )


class PteMethodProgram(Program):
    """A method as a program. A delegate is a node, which runs the payload if tosaic can.

    The node of delegate 0 is named ``delegate0``. `prepare` takes models of delegates by this name, or by the
    id of the backend. With ``on="reference"``, the TOSA reference model computes the delegates with TOSA
    payloads, and tosaic the kernel calls.
    """

    _runners: Mapping[str, Any] = {}

    def _with_models(self, models: Any, on: str) -> tuple[Runnable, Models]:
        from tosaic.models import Models
        from tosaic.pte.payloads import PayloadCall

        if on != "reference":
            return super()._with_models(models, on)
        moved = {
            name: runner.running_on(on) if isinstance(runner, PayloadCall) else runner
            for name, runner in self._runners.items()
        }
        return self.with_overrides(moved) if moved else self, Models(models)


class PteMethod(Reportable):
    """A method of a ``.pte`` file.

    Attributes
    ----------
    name : str
    """

    def __init__(self, file: _core.PteFile, method: _core.PteMethod) -> None:
        self._file, self._method = file, method
        self.name: str = method.name

    @cached_property
    def tensors(self) -> tuple[PteTensor, ...]:
        """All tensors of the method, by index of the value."""
        inputs = set(self._method.inputs)
        values = self._method.values
        return tuple(
            _tensor(i, value, i in inputs)
            for i, value in enumerate(values)
            if isinstance(value, _core.PteTensor)
        )

    def _of(self, indices: list[int]) -> tuple[PteTensor, ...]:
        by_index = {tensor.index: tensor for tensor in self.tensors}
        return tuple(by_index[i] for i in indices if i in by_index)

    @cached_property
    def inputs(self) -> tuple[PteTensor, ...]:
        """The tensors that the caller passes, in order."""
        return self._of(self._method.inputs)

    @cached_property
    def outputs(self) -> tuple[PteTensor, ...]:
        """The tensors that the caller gets, in order."""
        return self._of(self._method.outputs)

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """The operators that the method calls: ``aten::add.out``."""
        return tuple(_operator_text(each) for each in self._method.operators)

    @cached_property
    def instructions(self) -> tuple[str, ...]:
        """The instructions as text: ``aten::relu.out(%4, %11, %11)``, ``delegate0(%1, %2)``.

        Arguments are values by index: operands, then results, and the returned values once more.
        """
        return tuple(
            _instruction_text(each, self.operators)
            for chain in self._method.chains
            for each in chain.instructions
        )

    @cached_property
    def delegates(self) -> tuple[PteDelegate, ...]:
        """The delegates of the method."""
        return tuple(
            PteDelegate(
                self.name,
                i,
                each.backend,
                bytes(self._file.payload_of(each)),
                tuple((spec.key, bytes(spec.value)) for spec in each.specs),
            )
            for i, each in enumerate(self._method.delegates)
        )

    @property
    def memories(self) -> tuple[int, ...]:
        """The sizes of the planned memories in bytes. Memory 0 is reserved."""
        return tuple(self._method.memories)

    @cached_property
    def memory_plan(self) -> MemoryPlan:
        """The memory plan in the file: the place of each tensor, and the proven bound of each memory.

        A step is an instruction. What delegates need inside is not in the file.
        """
        from tosaic.pte.memory_plan import plan_in_file

        return plan_in_file(self._file, self._method)

    @checked
    def plan_memory(
        self,
        *,
        alignment: int = 16,
        plan_inputs: bool = True,
        plan_outputs: bool = True,
        arenas: Mapping[str, str] | None = None,
    ) -> MemoryPlan:
        """Plans the memory of the same instructions with tosaic; see `Program.plan_memory`.

        Views are those of the file. Nothing is computed over an operand, since kernels of ExecuTorch need not
        allow it. ``method.plan_memory().compare(method.memory_plan)`` shows both plans side by side.
        """
        from tosaic.memory.planner import options_of, plan_schedule
        from tosaic.pte.memory_plan import schedule_of_method

        options = options_of(
            alignment=alignment,
            plan_inputs=plan_inputs,
            plan_outputs=plan_outputs,
            in_place=False,
            arenas=arenas,
        )
        return plan_schedule(schedule_of_method(self._file, self._method), options)

    @cached_property
    def program(self) -> PteMethodProgram:
        """The method as a program of tosaic at stage ``exported``.

        Kernel calls are canonical operators, and each delegate call is a node that its payload computes. A
        tensor that may be smaller than the file says has its greatest extents.

        Raises
        ------
        UnsupportedOp
            Graphs of tosaic cannot express a dtype, a jump or a payload of the method.
        InvalidGraph
            The instructions are inconsistent, or the payload of a delegate is damaged.
        """
        from tosaic.pte.method_graph import read_method

        read = read_method(self._file, self._method)
        program = PteMethodProgram(read.graph, read.signature, diagnostics=read.diagnostics.items)
        program._overrides.own.update(read.runners)
        program._runners = read.runners
        return program

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the method; see `Program.run`.

        Raises
        ------
        UnsupportedOp
            Nothing here runs the payload of a delegate; the message names it. Or a kernel call is not known.
        """
        return self.program.run(*args, **kwargs)

    __call__ = run

    def prepare(
        self,
        *,
        models: Mapping[Any, Callable[..., Any]] | Callable[..., Any] | None = None,
        on: str = "tosaic",
        threads: int = 1,
        write_back: bool = False,
    ) -> Prepared:
        """Prepares the method to run in a chosen way; see `Program.prepare`.

        Keys of `models` are ``delegate0``, ``delegate1`` ..., or ids of backends, as well as those of a
        program. With ``on="reference"``, the TOSA reference model computes the delegates with TOSA payloads.
        """
        return self.program.prepare(models=models, on=on, threads=threads, write_back=write_back)

    @property
    def type_text(self) -> str:
        """Inputs and outputs as text: ``(float32[1,3]) -> float32[1]``."""
        inputs, outputs = (", ".join(t.type_text for t in side) for side in (self.inputs, self.outputs))
        return f"({inputs}) -> {outputs}"

    def __repr__(self) -> str:
        counts = f"{len(self.instructions)} instructions, {len(self.delegates)} delegates"
        return f"<tosaic.PteMethod '{self.name}': {self.type_text}, {counts}>"


class PteFile(Reportable):
    """A ``.pte`` file; `tosaic.load_pte` reads it.

    Attributes
    ----------
    methods : dict of str to PteMethod
        In the order of the file.
    """

    def __init__(self, file: _core.PteFile, name: str = "") -> None:
        self._file = file
        self._name = name
        self.methods: dict[str, PteMethod] = {each.name: PteMethod(file, each) for each in file.methods}

    @property
    def name(self) -> str:
        """The name of the file."""
        return self._name

    @property
    def delegates(self) -> tuple[PteDelegate, ...]:
        """The delegates of all methods."""
        return tuple(each for method in self.methods.values() for each in method.delegates)

    @property
    def named_data(self) -> dict[str, int]:
        """The bytes of each named piece of data, by the key with which a backend finds it."""
        sizes = [segment.bytes.size for segment in self._file.segments]
        return {each.key: sizes[each.segment] for each in self._file.named_data or ()}

    def __getitem__(self, name: str) -> PteMethod:
        """Returns the method with this name."""
        return self.method(name)

    def method(self, name: str | None = None) -> PteMethod:
        """Returns a method: by default ``forward``, or the only one.

        Raises
        ------
        InvalidGraph
            There is no such method.
        """
        if name is None:
            name = (
                "forward" if "forward" in self.methods or len(self.methods) != 1 else next(iter(self.methods))
            )
        if name not in self.methods:
            raise _core.make_error(
                _core.InvalidGraph,
                where="load_pte",
                what="the file has no such method",
                expected=" or ".join(map(repr, self.methods)) or "a method",
                got=repr(name),
            )
        return self.methods[name]

    @property
    def program(self) -> PteMethodProgram:
        """The program of `method`; see `PteMethod.program`."""
        return self.method().program

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs `method`; see `PteMethod.run`."""
        return self.method().run(*args, **kwargs)

    __call__ = run

    def prepare(
        self,
        *,
        models: Mapping[Any, Callable[..., Any]] | Callable[..., Any] | None = None,
        on: str = "tosaic",
        threads: int = 1,
        write_back: bool = False,
    ) -> Prepared:
        """Prepares `method`; see `PteMethod.prepare`."""
        return self.method().prepare(models=models, on=on, threads=threads, write_back=write_back)

    def as_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """Returns everything that the file says as plain data for JSON, but the elements of tensors.

        Parameters
        ----------
        payloads : bool
            With the bytes of payloads and segments as base64; else with their sizes only.
        """
        return dict(_plain(self._file, payloads))

    def __repr__(self) -> str:
        return f"<tosaic.PteFile '{self._name}': {', '.join(map(repr, self.methods.values()))}>"


def _tensor(index: int, value: _core.PteTensor, is_input: bool) -> PteTensor:
    from tosaic.pte.facts import scalar_type

    at, extra = value.allocation, value.extra
    has_data = bool(value.data) or (extra is not None and extra.location == 1)
    kind = "input" if is_input else "activation"
    if has_data:
        kind = "constant" if at is None else "state"
    return PteTensor(
        index,
        extra.name if extra is not None else "",
        scalar_type(value)[0],
        tuple(value.sizes),
        tuple(value.dim_order),
        kind,
        None if at is None else at.memory,
        None if at is None else at.offset,
        value.byte_size,
        _DYNAMISM[value.dynamism],
    )


def _operator_text(op: _core.PteOperator) -> str:
    return op.name + (f".{op.overload}" if op.overload else "")


def _instruction_text(instruction: Any, operators: tuple[str, ...]) -> str:
    if isinstance(instruction, _core.PteKernelCall):
        return f"{operators[instruction.op]}({_indices(instruction.args)})"
    if isinstance(instruction, _core.PteDelegateCall):
        return f"delegate{instruction.delegate}({_indices(instruction.args)})"
    if isinstance(instruction, _core.PteMove):
        return f"%{instruction.to} = %{instruction.source}"
    if isinstance(instruction, _core.PteJumpFalse):
        return f"unless %{instruction.condition} jump to {instruction.destination}"
    return f"free %{instruction.value}"


def _indices(indices: list[int]) -> str:
    return ", ".join(f"%{i}" for i in indices)


def _plain(value: Any, payloads: bool) -> Any:
    """Returns a structure of the file as plain data. Arrays are the bytes of payloads and segments."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(each, payloads) for each in value]
    if hasattr(value, "nbytes"):
        return base64.b64encode(bytes(value)).decode() if payloads else value.nbytes
    kind = type(value)
    fields = {
        name: _plain(getattr(value, name), payloads)
        for name, each in vars(kind).items()
        if isinstance(each, property) and each.fset is not None
    }
    return {"kind": kind.__name__.removeprefix("Pte"), **fields}


@checked
def load_pte(path: str | os.PathLike[str]) -> PteFile:
    """Reads a ``.pte`` file of ExecuTorch, without ExecuTorch and without torch.

    Parameters
    ----------
    path : path

    Returns
    -------
    PteFile
        Its methods say what they compute, and run: kernel calls on tosaic, and delegates with TOSA payloads
        on tosaic too. Other delegates need a model: ``prepare(models={"XnnpackBackend": function})``.

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        The file is no ``.pte`` file, is truncated or damaged. The message has the method, and the value,
        instruction or delegate.
    UnsupportedOp
        The file has another version of the format.

    Examples
    --------
    >>> file = tosaic.load_pte("model.pte")  # doctest: +SKIP
    >>> print(file)  # doctest: +SKIP
    >>> file.run(image)  # doctest: +SKIP
    >>> file.prepare(models={"XnnpackBackend": my_function}).run(image)  # doctest: +SKIP
    """
    file = file_path("load_pte", path)
    return PteFile(_core.read_pte(read_bytes("load_pte", file)), file.name)
