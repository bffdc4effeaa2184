"""`device_cost`: the cost of a program on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from tosaic.base.options import checked

if TYPE_CHECKING:
    import os

    from tosaic.cost.device_cost import DeviceCost
    from tosaic.lowering.lowered import Lowered
    from tosaic.partitions.claimant import Claimant
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.program.program import Program

__all__ = ["device_cost"]


@checked
def device_cost(
    program: Lowered | SplitLowered | Program | str | os.PathLike[str],
    device: str | Claimant | None = None,
    *,
    method: Literal["auto", "tool", "analytic"] = "auto",
    memory_mode: str | None = None,
    system_config: str | None = None,
    flags: Sequence[str] = (),
) -> DeviceCost:
    """Estimates what one run of a program costs on a device, by node, module and source line.

    The tool of the device compiles the program and reports the cost of each operation: for Ethos-U, this is
    Vela. tosaic has a model of its own, which needs no tool; `docs/measured/cost_model.md` compares the two.
    `DeviceCost.source` says which of them made an estimate.

    Parameters
    ----------
    program : Lowered, SplitLowered, Program or path
        The result of `tosaic.lower` or `tosaic.load_tosa`; or a ``.tosa`` file, also from another tool; or
        the folder that `SplitLowered.save` wrote. A file that was written without locations has no
        modules and source lines.
    device : str, Claimant or None
        Such as ``"ethos-u85-256"``. A split program does not need it: its groups run on their claimants. If
        it is given, it replaces the claimants of the same family.
    method : {"auto", "tool", "analytic"}
        ``"tool"``: the tool of the device, which has to be installed. ``"analytic"``: tosaic's own model.
        ``"auto"``: the tool if it is installed, and else the model.
    memory_mode : str, optional
        How the device uses memory, such as ``"Sram_Only"`` or ``"Dedicated_Sram_384KB"`` for Ethos-U85, and
        ``"Shared_Sram"`` or ``"Sram_Only"`` for Ethos-U55. Default: the mode for which payloads are compiled.
        With ``"Sram_Only"``, constants are counted as on-chip flash.
    system_config : str, optional
        Clock and memories of the chip, such as ``"Ethos_U85_SYS_DRAM_Mid"``. Default: as above.
    flags : sequence of str
        Further flags of the tool, such as ``["--optimise=Size"]``. They select the tool.

    Returns
    -------
    DeviceCost

    Raises
    ------
    UnsupportedOp
        There are no estimates for the device, or its tool refuses the program; the message has the tool's
        output.
    InvalidGraph
        There is no such device, method, memory mode or system configuration; the program is not lowered; a
        file is damaged; or there are flags for tosaic's own model.
    ImportError
        The tool of the device is asked for, by `method` or `flags`, and not installed.

    Examples
    --------
    >>> cost = tosaic.device_cost(lowered, "ethos-u85-256")  # doctest: +SKIP
    >>> print(cost.cycles, cost.sram_bytes, cost.by_module()[0].name)  # doctest: +SKIP
    """
    from tosaic.cost.estimate import estimated_cost

    return estimated_cost(program, device, method, memory_mode, system_config, flags)
