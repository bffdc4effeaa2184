"""One method of a network as a graph: `Program`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tosaic import _core
from tosaic.base.file_kinds import TOSA
from tosaic.base.options import checked, file_name, invalid
from tosaic.base.visible import one_line
from tosaic.ports.foreign import ForeignOp, operators_by_target, require_own_names
from tosaic.program.overrides import Overrides
from tosaic.program.prepared import Preparable
from tosaic.program.runnable import signature_fault

if TYPE_CHECKING:
    import os

    from tosaic.base.diagnostics import Diagnostic
    from tosaic.base.quantization import QParams
    from tosaic.ports.ports import Port
    from tosaic.ports.signature import Signature


@runtime_checkable
class HasProgram(Protocol):
    """A program, or a result that contains one: its class defines which program that is."""

    def as_program(self) -> Program:
        """Returns the program."""


class Program(Preparable):
    """One method of a network: a graph and its signature.

    `tosaic.from_exported`, `tosaic.program.from_graph`, `tosaic.load` and `tosaic.load_tosa` make programs.

    The constants of an imported program are views of torch's memory until the program is first run, compared,
    saved or copied. Each of these copies the constants, as `snapshot` does. Until then:

    - If torch reports that the memory of a weight was replaced, resized or freed, or that the weight was
      changed in place, using the weight raises an error that names it (see `tosaic.from_exported`).
    - Torch does not report writes such as ``p.data.mul_(2)``. The program reads the elements as they are when
      the constants are copied, all of them at the same time.

    After the copy, a change to the module does not affect the program.
    """

    @checked
    def __init__(
        self,
        graph: _core.Graph,
        signature: Signature | None = None,
        *,
        diagnostics: Sequence[Diagnostic] = (),
    ) -> None:
        found = "" if signature is None else signature_fault(graph, signature)
        if found:
            raise invalid("Program", "the signature is not that of the graph", got=found)
        super().__init__(graph, signature)
        self._diagnostics = tuple(diagnostics)
        self._verify: Callable[[], None] | None = None
        self._module_types: Mapping[str, str] | Callable[[], Mapping[str, str]] = {}
        self.import_seconds: float | None = None
        # By path of an input or output: the qparams in the sidecar of the file. None: there is no sidecar.
        self.qparams_of_sidecar: Mapping[str, tuple[QParams, ...]] | None = None

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Remarks of the import that are not errors."""
        return self._diagnostics

    @property
    def module_types(self) -> dict[str, str]:
        """The types of the modules that were exported, by path: ``{"c": "torch.nn.modules.conv.Conv2d"}``.

        Selections of a `tosaic.QConfig` by type use them. Empty for programs that were not imported from
        torch.
        """
        if callable(self._module_types):
            self._module_types = self._module_types()
        return dict(self._module_types)

    @classmethod
    def of_import(
        cls,
        graph: _core.Graph,
        signature: Signature,
        *,
        diagnostics: Sequence[Diagnostic] = (),
        verify: Callable[[], None] | None = None,
        operators: Sequence[ForeignOp] = (),
        module_types: Mapping[str, str] | Callable[[], Mapping[str, str]],
    ) -> Program:
        """Makes a program that was imported, or read from an archive of such a program.

        `verify_weights` calls `verify`; None: no constant is a view. If `module_types` is a function, it is
        called when the types are first used.
        """
        program = cls(graph, signature, diagnostics=diagnostics)
        program._verify = verify
        program._module_types = module_types
        program.overrides = Overrides({}, operators)
        return program

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs that the caller passes, in order. States are not in the list."""
        return self._with_qparams_of_sidecar(super().inputs)

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """The caller's outputs, in order: results, and new values of inputs that the program writes."""
        return self._with_qparams_of_sidecar(super().outputs)

    def _with_qparams_of_sidecar(self, ports: tuple[Port, ...]) -> tuple[Port, ...]:
        known = self.qparams_of_sidecar or {}
        return tuple(replace(port, quantized=port.quantized or known.get(port.path, ())) for port in ports)

    def verify_weights(self) -> None:
        """Checks that tensors whose elements the import has already read still have the same elements.

        The import reads elements that become attributes of the graph, such as scales, and weights that are
        not dense. Constants that are views are checked whenever they are read instead.

        Raises
        ------
        InvalidGraph
            A tensor has changed since the import; the message names it.
        """
        if self._verify is not None:
            self._verify()

    def as_program(self) -> Program:
        """Returns the program itself; results that have a program, such as `Lowered`, return that."""
        return self

    def snapshot(self) -> Program:
        """Copies all constants that are views of torch's memory, so that the program owns its constants.

        Afterwards `graph` has the copies, and the program holds no memory of torch. A second call does
        nothing.

        Returns
        -------
        Program
            The program itself.

        Raises
        ------
        InvalidGraph
            A weight was changed, resized or freed since import; the message names it.
        """
        self._own_graph()
        return self

    def _own_graph(self) -> _core.Graph:
        self.verify_weights()
        self._graph = self._graph.own_constants()
        self._verify = None
        return self._graph

    def __getstate__(self) -> dict[str, Any]:
        """Copies the constants first, as `snapshot` does, so that a pickle or copy owns them."""
        self._own_graph()
        self._module_types = self.module_types
        return super().__getstate__()

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes graph, signature and weights into one archive, which `tosaic.load` reads with numpy only.

        The same program is always written as the same bytes. Functions of `with_overrides` are not written; a
        warning is logged.

        Raises
        ------
        WriteError
            The file cannot be written.
        InvalidGraph
            A weight was changed since import, or the path ends in ``.tosa``, which `Lowered.save` writes.
        """
        from tosaic.program.archive_writer import save

        if TOSA.holds(path):
            raise invalid(
                "save",
                "a program is saved as an archive, which is no .tosa file",
                expected="another suffix, such as .tosaic",
                got=f"'{file_name(path)}'",
                hint="A .tosa file is written by tosaic.lower(program, target='TOSA-1.0+FP')"
                ".save('program.tosa')",
            )
        self.overrides.warn_of_loss("the archive")
        save(self.snapshot(), path)

    @checked
    def with_overrides(self, functions: Mapping[str, Callable[..., Any]]) -> Program:
        """Returns the same program, which runs functions of the caller instead of some of its operators.

        Functions that the program already has remain, unless `functions` has an entry of the same name.
        Copies and pickles of the program have the functions too. Archives and lowered programs do not, since
        they are made from the graph alone; a warning is logged. States start from their initial values.

        Parameters
        ----------
        functions : mapping
            Functions by the name of a node (``conv2d_1``), of an operator (``conv``) or of a foreign operator
            (``aten.special_i0.default``, or ``domain.name`` of its description). A function is called with
            the operands as numpy arrays, None for an absent operand, and returns the result, or a list of the
            results.

        Raises
        ------
        InvalidGraph
            A name belongs to no node, no operator of tosaic and no foreign operator of the
            program.

        Examples
        --------
        >>> program = program.with_overrides({"aten.special_i0.default": scipy.special.i0})  # doctest: +SKIP
        """
        made = self._copy()
        made.overrides = Overrides({**self.overrides.own, **functions}, self.overrides.foreign)
        made.qparams_of_sidecar = self.qparams_of_sidecar
        made.session  # noqa: B018 - preparing the session refuses unknown names
        return made

    @checked
    def with_operators(self, operators: Sequence[ForeignOp]) -> Program:
        """Returns the same program with kernels for its foreign operators, for example for a loaded program.

        Parameters
        ----------
        operators : sequence of ForeignOp
            They replace descriptions of the same operators. The graph stays as it is: layout, domain and
            name in the program remain, even if the descriptions differ. A ``tosa.custom`` of a file gets the
            kernel of the description with its domain and name, other foreign operators the kernel of the
            description with their target. The arrays of a ``tosa.custom`` have the dim orders that the file
            states; the layout of a description counts only for a ``tosa.custom`` without any attributes,
            which another program wrote.

        Raises
        ------
        InvalidGraph
            `operators` is not a sequence of `ForeignOp`, or two describe the same operator.
        """
        given = operators_by_target("with_operators", operators)
        known = {operator.target: operator for operator in self.overrides.foreign}
        made = self._copy()
        described = {**known, **given}.values()
        require_own_names("with_operators", described)
        made.overrides = Overrides(self.overrides.own, described)
        made.qparams_of_sidecar = self.qparams_of_sidecar
        return made

    def with_graph(self, graph: _core.Graph) -> Program:
        """Returns a program with another graph of the same signature."""
        made = Program(graph, self._signature, diagnostics=self._diagnostics)
        made.overrides, made._verify = self.overrides, self._verify
        return made

    def set_graph(self, graph: _core.Graph) -> None:
        """Replaces the graph of this program by another one of the same signature."""
        self._graph = graph
        for kind in type(self).__mro__:
            for name, attribute in vars(kind).items():
                if isinstance(attribute, cached_property):  # cached values of the old graph
                    vars(self).pop(name, None)

    def _copy(self) -> Program:
        """Returns the same program, without functions of the caller, in its initial states."""
        made = Program(self._own_graph(), self._signature, diagnostics=self._diagnostics)
        made._module_types = self.module_types
        made.import_seconds = self.import_seconds
        return made

    def __repr__(self) -> str:
        graph = self._graph
        return (
            f"<tosaic.Program '{one_line(graph.name)}' @{graph.stage}: {self.type_text}, {len(graph)} nodes>"
        )


@checked
def from_graph(graph: _core.Graph) -> Program:
    """Makes a program from a graph, without a nested signature.

    A call passes the inputs by position or by name. The result is the output itself if there is only one, and
    a tuple of the outputs if there are several.
    """
    return Program(graph)
