"""`QuantizedProgram`: a program that `tosaic.quantize` has quantized."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.annotation.specs import Slot
from tosaic.base.options import checked, invalid, refusal
from tosaic.base.quantization import QParams
from tosaic.program.program import Program

if TYPE_CHECKING:
    from tosaic.annotation.config import QConfig
    from tosaic.annotation.plan import Plan
    from tosaic.annotation.resolution import Resolution
    from tosaic.calibration.accuracy import Gain
    from tosaic.calibration.draft import Draft
    from tosaic.ports.signature import Signature
    from tosaic.quantizing.sensitivities import Mix


@dataclass(frozen=True)
class Calibrated:
    """How a program was quantized.

    Attributes
    ----------
    config : QConfig
    draft : Draft
        The plan, the qparams, and changed weights.
    samples : int
    gains : tuple of Gain
    target : str, optional
        The target that the program was planned for.
    mix : Mix, optional
        The mix that was searched for, as it was measured before accuracy tools.
    """

    config: QConfig
    draft: Draft
    samples: int
    gains: tuple[Gain, ...] = ()
    target: str | None = None
    mix: Mix | None = None


class QuantizedProgram(Program):
    """A program at stage ``quantized``, with the record of its quantization. `tosaic.quantize` makes it.

    Archives, copies and pickles contain only the program: what `tosaic.load` reads from an archive is a
    `Program`, with the same qparams.
    """

    def __init__(
        self,
        graph: _core.Graph,
        signature: Signature,
        calibrated: Calibrated,
        source: Program,
        exported: Any,
        *,
        trust: bool = False,
    ) -> None:
        super().__init__(graph, signature)
        self.overrides = source.overrides
        self._calibrated = calibrated
        self._dtypes = _dtypes(graph)
        self._source = source
        self._exported = exported
        self._trust = trust  # whether torch may run code of the file that `exported` names

    @property
    def source(self) -> Program:
        """The program of floats that was quantized."""
        return self._source

    @property
    def config(self) -> QConfig:
        """The configuration that the program was quantized with."""
        return self._calibrated.config

    @property
    def plan(self) -> Plan:
        """The plan: what each tensor becomes, and the rule that decided it."""
        return self._calibrated.draft.planned.plan

    @property
    def qparams(self) -> dict[Slot, QParams]:
        """The qparams of each slot of the plan."""
        return dict(self._calibrated.draft.qparams)

    @property
    def samples(self) -> int:
        """The number of samples that the qparams follow from."""
        return self._calibrated.samples

    @property
    def gains(self) -> tuple[Gain, ...]:
        """What each accuracy tool gained, in the order in which they worked."""
        return self._calibrated.gains

    @property
    def target(self) -> str | None:
        """The target that `tosaic.quantize` got."""
        return self._calibrated.target

    @property
    def mix(self) -> Mix | None:
        """The mix of precisions that `budget` or `least_db` found: its cycles, dB and levels. Else None."""
        return self._calibrated.mix

    @property
    def quantization(self) -> Resolution:
        """The calls that are quantized, with the deciding rules, and the calls left float, with reasons."""
        draft = self._calibrated.draft
        return replace(draft.planned.report, narrow=draft.narrow)

    @property
    def is_of_exported(self) -> bool:
        """True if an exported program, or a ``.pt2`` file, was quantized."""
        return self._exported is not None

    @checked
    def to_exported(self, exported: Any = None, *, symbolic: bool = True) -> Any:
        """Returns the quantized program as an exported program of torch.

        It has torch's operators between quantize and dequantize calls, as ``convert_pt2e`` makes it, and
        computes what this program does. Sizes that are symbolic in the float program are symbolic in the
        result. The scales follow from samples with the sizes of `bind`. If torch cannot keep sizes symbolic,
        a warning says why, and the result has the sizes of `bind` and refuses others.

        Calls inside of ``with torch.no_grad():`` and similar wrappers become calls of the graph. Bodies of
        control flow compute with floats. Calls of complex values stay complex: if the parts of a value are
        quantized, these are extracted, rounded, and joined again.

        Parameters
        ----------
        exported : torch.export.ExportedProgram, optional
            The float program. Default: the quantized program's source, if that was an exported program or a
            ``.pt2`` file, which torch then reads.
        symbolic : bool
            Symbolic sizes of the float program remain. If False, all sizes come from this program.

        Returns
        -------
        torch.export.ExportedProgram

        Raises
        ------
        InvalidGraph
            The program that was quantized was not an exported program, and `exported` is None; `exported` is
            another program; or inputs and outputs of this program became integers in place.
        ImportError
            torch or torchao is not installed.
        """
        from tosaic.base.exported import is_exported_program
        from tosaic.fx.quantizer.known_qparams import to_exported
        from tosaic.opening.sources import load_exported

        if _dtypes(self._graph) != self._dtypes:
            raise invalid(
                "to_exported",
                "extract_io_quant changed the inputs and outputs of this program in place",
                expected="the program with its float inputs and outputs",
                hint="Call to_exported first, and extract_io_quant on the exported program",
            )
        if exported is None:
            is_file = isinstance(self._exported, str | os.PathLike)
            exported = load_exported(self._exported, trust=self._trust) if is_file else self._exported
        if exported is None:
            raise invalid(
                "to_exported",
                "there is no exported program to write the qparams into",
                expected="to_exported(exported_program)",
                got="a program that was quantized from another source",
                hint="tosaic.quantize also takes the exported program, or the path of a .pt2 file",
            )
        if not is_exported_program(exported):
            raise refusal("to_exported", "exported", "a torch.export.ExportedProgram, or None", exported)
        if self.config.every_operator and self._exported is not None:
            from tosaic.fx.attention_parts import with_attention_parts

            exported = with_attention_parts(exported)
        return to_exported(exported, self._calibrated.draft, symbolic=symbolic)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies as a `Program`: the plan cannot be used outside of this process."""
        own = ("_calibrated", "_dtypes", "_source", "_exported", "_trust")
        state = {name: value for name, value in self.__getstate__().items() if name not in own}
        return _program, (state,)

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        """See `__reduce__`."""
        return self.__reduce__()

    def __repr__(self) -> str:
        return super().__repr__().replace("<tosaic.Program", "<tosaic.QuantizedProgram", 1)


def _dtypes(graph: _core.Graph) -> list[str]:
    ports: list[Any] = [*graph.inputs, *graph.outputs]
    return [port.value.dtype for port in ports]


def _program(state: dict[str, Any]) -> Program:
    """Makes a program from the result of `__getstate__`."""
    program = Program.__new__(Program)
    program.__dict__.update(state)
    return program
