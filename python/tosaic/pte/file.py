"""`load_pte`: reads ``.pte`` files and their methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.options import checked, file_path, invalid
from tosaic.base.reading import read_bytes
from tosaic.base.reportable import Reportable
from tosaic.base.visible import one_line
from tosaic.pte.plain import PteDelegate, PteTensor, instruction_text, operator_text, plain, tensor_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from tosaic.lowering.lowered import Lowered
    from tosaic.memory.plan import MemoryPlan
    from tosaic.ports.ports import Port
    from tosaic.program.prepared import Prepared
    from tosaic.program.program import Program
    from tosaic.pte.kernel_calls import KernelCalls
    from tosaic.pte.program import PteMethodProgram
    from tosaic.pte.sidecar import PteSidecar, SidecarDelegate, SidecarMethod


class PteMethod(Reportable):
    """A method of a ``.pte`` file.

    Attributes
    ----------
    name : str
    """

    def __init__(
        self,
        file: _core.PteFile,
        method: _core.PteMethod,
        sources: Mapping[int, Program] | None = None,
        recorded: SidecarMethod | None = None,
    ) -> None:
        self._file, self._method = file, method
        self._sources = dict(sources or {})
        self._recorded = recorded
        self.name: str = method.name

    @cached_property
    def tensors(self) -> tuple[PteTensor, ...]:
        """All tensors of the method, by index of the value."""
        inputs = set(self._method.inputs)
        values = self._method.values
        return tuple(
            tensor_of(i, value, i in inputs)
            for i, value in enumerate(values)
            if isinstance(value, _core.PteTensor)
        )

    def _of(self, indices: list[int], recorded: Sequence[Port] | None) -> tuple[PteTensor, ...]:
        by_index = {tensor.index: tensor for tensor in self.tensors}
        found = [by_index[i] for i in indices if i in by_index]
        if recorded is None:
            return tuple(found)
        pairs = zip(found, recorded, strict=True)
        return tuple(replace(each, path=port.path, quantized=port.quantized) for each, port in pairs)

    @cached_property
    def inputs(self) -> tuple[PteTensor, ...]:
        """The tensors that the caller passes, in order."""
        recorded = self._recorded
        return self._of(self._method.inputs, None if recorded is None else recorded.inputs)

    @cached_property
    def outputs(self) -> tuple[PteTensor, ...]:
        """The tensors that the caller gets, in order."""
        recorded = self._recorded
        return self._of(self._method.outputs, None if recorded is None else recorded.outputs)

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """The operators that the method calls: ``aten::add.out``."""
        return tuple(operator_text(each) for each in self._method.operators)

    @cached_property
    def kernel_calls(self) -> tuple[KernelCalls, ...]:
        """The calls of kernels by operator, dtypes and dim orders, with their number."""
        from tosaic.pte.kernel_calls import kernel_calls

        return kernel_calls(self._method)

    @cached_property
    def instructions(self) -> tuple[str, ...]:
        """The instructions as text: ``aten::relu.out(%4, %11, %11)``, ``delegate0(%1, %2)``.

        Arguments are indices of values: operands, then results, and the results again if they are returned.
        """
        return tuple(
            instruction_text(each, self.operators)
            for chain in self._method.chains
            for each in chain.instructions
        )

    @cached_property
    def delegates(self) -> tuple[PteDelegate, ...]:
        """The delegates of the method."""
        recorded = () if self._recorded is None else self._recorded.delegates
        lowered = {(each.runtime, each.sha256): each for each in recorded}
        return tuple(self._delegate(i, each, lowered) for i, each in enumerate(self._method.delegates))

    def _delegate(
        self, index: int, delegate: _core.PteDelegate, lowered: Mapping[tuple[str, str], SidecarDelegate]
    ) -> PteDelegate:
        import hashlib

        payload = bytes(self._file.payload_of(delegate))
        known = lowered.get((delegate.backend, hashlib.sha256(payload).hexdigest())) if lowered else None
        return PteDelegate(
            self.name,
            index,
            delegate.backend,
            payload,
            tuple((spec.key, bytes(spec.value)) for spec in delegate.specs),
            index in self._sources,
            *(("", "") if known is None else (known.claimant, known.target)),
        )

    @property
    def memories(self) -> tuple[int, ...]:
        """The sizes of the planned memories in bytes. Memory 0 is reserved."""
        return tuple(self._method.memories)

    @cached_property
    def memory_plan(self) -> MemoryPlan:
        """The memory plan in the file: the place of each tensor, and the proven bound of each memory.

        A step is an instruction. The memory that delegates need inside is not in the file.
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
        memories: Mapping[str, int | tuple[int | None, int] | None] | None = None,
    ) -> MemoryPlan:
        """Plans the memory of the same instructions with tosaic; see `Program.plan_memory`.

        Views are those of the file. No result overwrites an operand in place, since kernels of ExecuTorch may
        not allow it. ``method.plan_memory().compare(method.memory_plan)`` shows both plans side by side.
        """
        from tosaic.memory.plan_options import options_of
        from tosaic.memory.planner import plan_schedule
        from tosaic.pte.memory_plan import schedule_of_method

        options = options_of(
            alignment=alignment,
            plan_inputs=plan_inputs,
            plan_outputs=plan_outputs,
            in_place=False,
            arenas=arenas,
            memories=memories,
        )
        return plan_schedule(schedule_of_method(self._file, self._method), options)

    def as_program(self) -> PteMethodProgram:
        """Returns `program`."""
        return self.program

    @cached_property
    def program(self) -> PteMethodProgram:
        """The method as a program of tosaic at stage ``exported``.

        Kernel calls are canonical operators, and each delegate call is a node that its payload computes. A
        tensor of dynamic shape has its greatest extents.

        Raises
        ------
        UnsupportedOp
            Graphs of tosaic cannot express a dtype, a jump or a payload of the method.
        InvalidGraph
            The instructions are inconsistent, or the payload of a delegate is damaged.
        """
        from tosaic.pte.method_graph import read_method
        from tosaic.pte.program import PteMethodProgram

        return PteMethodProgram.of(
            read_method(self._file, self._method, self._sources, self._recorded), self._recorded
        )

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

        Keys of `models` are ``delegate0``, ``delegate1`` ..., ids of backends, or keys as for other programs.
        `on` selects the engine of the delegates; tosaic computes the kernel calls. With ``on="reference"``,
        the TOSA reference model runs payloads and sources that are ``.tosa`` files. With ``on="vgf"``, Vulkan
        runs VGF payloads, and ``.tosa`` files after Arm's converter made VGF files of them.
        """
        return self.program.prepare(models=models, on=on, threads=threads, write_back=write_back)

    @property
    def type_text(self) -> str:
        """Inputs and outputs as text: ``(float32[1,3]) -> float32[1]``."""
        inputs, outputs = (", ".join(t.type_text for t in side) for side in (self.inputs, self.outputs))
        return f"({inputs}) -> {outputs}"

    def __repr__(self) -> str:
        counts = f"{len(self.instructions)} instructions, {len(self.delegates)} delegates"
        return f"<tosaic.pte.PteMethod '{one_line(self.name)}': {self.type_text}, {counts}>"


class PteFile(Reportable):
    """A ``.pte`` file; `tosaic.load_pte` reads it.

    Attributes
    ----------
    methods : dict of str to PteMethod
        In the order of the file.
    """

    def __init__(
        self,
        file: _core.PteFile,
        name: str = "",
        *,
        sources: Mapping[str, Any] | None = None,
        sidecar: PteSidecar | None = None,
    ) -> None:
        from tosaic.pte.recorded import recorded_methods
        from tosaic.pte.sources import sources_by_method

        self._file = file
        self._name = name
        self._sidecar = sidecar
        given, recorded = sources_by_method(file, sources), recorded_methods(file, sidecar)
        self.methods: dict[str, PteMethod] = {
            each.name: PteMethod(file, each, given[each.name], recorded.get(each.name))
            for each in file.methods
        }

    @property
    def name(self) -> str:
        """The name of the file."""
        return self._name

    @property
    def sidecar(self) -> PteSidecar | None:
        """What the sidecar of the file records; None without one."""
        return self._sidecar

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
        """Returns a method: by default ``forward`` or, if the file has only one method, that one.

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
            raise invalid(
                "load_pte",
                "the file has no such method",
                expected=" or ".join(map(repr, self.methods)) or "a method",
                got=repr(name),
            )
        return self.methods[name]

    def as_program(self) -> PteMethodProgram:
        """Returns `program`."""
        return self.program

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
        """Returns the contents of the file as plain data for JSON, without the elements of tensors.

        Parameters
        ----------
        payloads : bool
            With the bytes of payloads and segments as base64; else with their sizes only.
        """
        return dict(plain(self._file, payloads))

    def __repr__(self) -> str:
        return f"<tosaic.PteFile '{one_line(self._name)}': {', '.join(map(repr, self.methods.values()))}>"


@checked
def load_pte(
    path: str | os.PathLike[str],
    *,
    sources: Mapping[str, str | os.PathLike[str] | bytes | Lowered | Program] | None = None,
    sidecar: bool = True,
) -> PteFile:
    """Reads a ``.pte`` file of ExecuTorch, without ExecuTorch and without torch.

    If the file has a sidecar (``m.pte.json``, which `tosaic.executorch.save_pte` writes), its methods have
    the names, paths and nested signature of the program that was lowered, and the qparams of inputs and
    outputs. An input of integers then takes floats, too: they are quantized as the sidecar says. Outputs have
    the dtypes of the file.

    Parameters
    ----------
    path : path
    sources : mapping, optional
        For delegates whose payload tosaic cannot run, such as the commands of Vela, a program that computes
        the same: the ``.tosa`` file from which the payload was made, as a path or as bytes; or a lowered
        program, or a program at stage ``tosa``. A key is the name of a delegate (``delegate0``), with the
        method in front if several methods have one (``forward.delegate0``), or the id of a backend that has
        one delegate. A source needs the inputs and outputs of its delegate: number, dtypes and shapes in
        memory order. Its numbers are not compared with the payload's.
    sidecar : bool
        Use the sidecar, if there is one.

    Returns
    -------
    PteFile
        Its methods can be inspected and run. tosaic runs kernel calls, and delegates with TOSA payloads or
        sources. ``prepare(on="vgf")`` runs VGF payloads on Vulkan. Other delegates need a
        model: ``prepare(models={"XnnpackBackend": function})``.

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        The file is no ``.pte`` file, is truncated or damaged. The message has the method, and the value,
        instruction or delegate. Or a key of `sources` selects no delegate or several, or a source is not a
        TOSA program. Or the sidecar is damaged, or belongs to another file.
    UnsupportedOp
        The file has another version of the format.

    Examples
    --------
    >>> file = tosaic.load_pte("model.pte")  # doctest: +SKIP
    >>> print(file)  # doctest: +SKIP
    >>> file.run(image)  # doctest: +SKIP
    >>> file.prepare(models={"XnnpackBackend": my_function}).run(image)  # doctest: +SKIP
    >>> tosaic.load_pte("npu.pte", sources={"delegate0": "group0.tosa"}).run(image)  # doctest: +SKIP
    """
    from tosaic.pte.sidecar import read_pte_sidecar

    file = file_path("load_pte", path)
    data = read_bytes("load_pte", file)
    read = _core.read_pte(data)
    recorded = read_pte_sidecar("load_pte", file, data) if sidecar else None
    return PteFile(read, file.name, sources=sources, sidecar=recorded)
