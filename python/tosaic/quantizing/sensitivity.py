"""`sensitivity`: what each layer loses in a low precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tosaic.base.options import checked

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tosaic.annotation.config import QConfig
    from tosaic.ports.foreign import ForeignOp
    from tosaic.quantizing.sensitivities import Sensitivity

__all__ = ["sensitivity"]


@checked
def sensitivity(
    program: Any,
    samples: Any,
    *,
    least_db: float | None = None,
    levels: Sequence[str] | Mapping[str, QConfig | None] = ("int8", "int16x8"),
    costs: Mapping[str, float] | str | None = None,
    points: int = 10,
    measured_on: int = 4,
    executor: Executor | None = None,
    progress: bool = True,
    bind: Any = None,
    operators: Sequence[ForeignOp] = (),
    trust: bool = False,
) -> Sensitivity:
    """Measures what each layer loses in a low precision, and searches for cheap mixes of precisions.

    Parameters
    ----------
    program : Program, torch.export.ExportedProgram, Graph or path
        Floats, at stage ``exported``.
    samples : tuple, dict, array, path of an npz or npy file, or an iterable of them
        As `tosaic.quantize` takes them.
    least_db : float, optional
        The SQNR of the outputs against the program of floats that a mix shall have, in dB. The cheapest mix
        that has it is searched for, and `Sensitivity.mix` returns it by default.
    levels : sequence of str, or mapping of str to QConfig or None
        The precisions of a mix, the cheapest first: ``"int8"``, ``"uint8"``, ``"int16x8"``, ``"float"``, or
        names with configurations; None is float.
    costs : mapping of str to float, or str, optional
        What a multiply-accumulate costs at each level. Default: 1 for 8 bits, 2 for int16x8, 8 for float;
        needed for other names. The name of a device, such as ``"ethos-u85-256"``: mixes cost its cycles, by
        tosaic's own model of it, and levels by name are those of the device's plan (`QConfig.for_target`).
        The curve then also has mixes of other forms of integers (see `Mix.form`): units that are rounded once
        or after each operator, and other roundings of a residual stream. All samples are held in memory.
    points : int
        The number of mixes between the lowest and the highest level that are measured for the curve.
    measured_on : int
        The number of samples, the first ones, on which the SQNR is measured.
    executor : concurrent.futures.Executor, optional
        Runs the samples of the calibration, as in `tosaic.quantize`.
    progress : bool
        Show progress bars.
    bind, operators, trust : optional
        As in `tosaic.quantize`.

    Returns
    -------
    Sensitivity
        The layers, the measured mixes, and their configurations.

    Raises
    ------
    InvalidGraph
        There are fewer than two levels, a level is not known, a cost is missing or does not grow, the program
        has no output of floats, or what `tosaic.quantize` raises it for.

    Notes
    -----
    The SQNR is ten times the logarithm of the power of the outputs over that of their errors. For several
    outputs, the ratios of errors to outputs are averaged.

    Examples
    --------
    >>> import torch, tosaic
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    >>> exported = torch.export.export(net, (torch.zeros(1, 8),))
    >>> found = tosaic.sensitivity(exported, torch.randn(16, 1, 8), least_db=35.0)
    >>> [layer.name for layer in found.layers if layer.macs]
    ['linear', 'linear_1']
    >>> quantized = tosaic.quantize(exported, torch.randn(16, 1, 8), config=found.mix(least_db=20.0).config)
    """
    from tosaic.opening.sources import require_use
    from tosaic.quantizing.levels import Scale
    from tosaic.quantizing.mix_search import Material, Wanted, measured
    from tosaic.quantizing.sources import require_executor

    require_use("sensitivity", bind, program, operators=operators)
    require_executor("sensitivity", executor)
    material = Material(
        program,
        bind,
        operators,
        trust,
        measured_on=measured_on,
        executor=executor,
        progress=progress,
    )
    return measured(material, samples, Scale.of(levels, costs), Wanted(least_db, points=points))
