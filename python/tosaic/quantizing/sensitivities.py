"""Results of `tosaic.sensitivity`: what each layer costs in accuracy, and mixes of precisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tosaic.base.options import checked, invalid, quant_mismatch, shown
from tosaic.base.reportable import Reportable

if TYPE_CHECKING:
    import os

    from tosaic.annotation.config import QConfig


@dataclass(frozen=True)
class LayerSensitivity:
    """A contraction, with the calls that follow it up to the next one.

    Attributes
    ----------
    name : str
        The call of the contraction, by its name in torch's graph. ``inputs`` for the calls before the first
        one.
    calls : tuple of str
        All calls of the layer.
    module_path, source : str
        The contraction's, as far as they are known.
    macs : int
        Multiply-accumulates of a run.
    db : tuple of float
        For each level but the last: the SQNR in dB if this layer has the level, and all other layers have
        the next level.
    lost_db : tuple of float
        For each level but the last: how far that SQNR is below the SQNR with the next level in all layers.
    """

    name: str
    calls: tuple[str, ...]
    module_path: str
    source: str
    macs: int
    db: tuple[float, ...]
    lost_db: tuple[float, ...]


@dataclass(frozen=True)
class Mix:
    """A measured mix of levels.

    Attributes
    ----------
    db : float
        The SQNR of the outputs against the program of floats, in dB.
    cost : float
        The sum over layers of multiply-accumulates times the cost of the layer's level, relative to the same
        sum with the first level in all layers.
    shares : dict of str to float
        The share of the multiply-accumulates that have each level.
    levels : dict of str to str
        The level of each layer that does not have the first one, by name of the layer.
    config : QConfig
        The configuration for `tosaic.quantize` and `tosaic.Quantizer`.
    cycles : int, optional
        What one run takes the device, by tosaic's own model, if `tosaic.sensitivity` got a device. `cost` is
        then the ratio to the cycles of the device's plan with the first level in all layers.
    form : str
        The options of `QConfig` that all layers have in common, if cycles of a device are the costs.
    """

    db: float
    cost: float
    shares: Mapping[str, float]
    levels: Mapping[str, str]
    config: QConfig = field(repr=False)
    cycles: int | None = None
    form: str = ""


@dataclass(frozen=True)
class Sensitivity(Reportable):
    """How sensitive a program is to the precision of its layers.

    Attributes
    ----------
    levels : tuple of str
        The precisions, the cheapest first.
    layers : tuple of LayerSensitivity
        In the order of the graph.
    curve : tuple of Mix
        Measured mixes, the cheapest first: from the first level everywhere to the last one everywhere. With
        the cycles of a device, the integers of a mix may have another form than those of the device's plan.
    least_db : float, optional
        The SQNR that `tosaic.sensitivity` searched for.
    samples : int
        The number of samples that the qparams follow from.
    measured_on : int
        The number of samples that the SQNR was measured on.
    device : str
        The device whose cycles are the costs; empty if the costs are multiply-accumulates.
    """

    levels: tuple[str, ...]
    layers: tuple[LayerSensitivity, ...]
    curve: tuple[Mix, ...]
    least_db: float | None
    samples: int
    measured_on: int
    device: str = ""

    @checked
    def mix(
        self,
        *,
        least_db: float | None = None,
        most_cost: float | None = None,
        most_cycles: float | None = None,
    ) -> Mix:
        """Returns a mix of the curve.

        Parameters
        ----------
        least_db : float, optional
            Returns the cheapest mix with this SQNR. Default: the `least_db` of `tosaic.sensitivity`.
        most_cost : float, optional
            Returns the mix of highest SQNR whose cost (see `Mix.cost`) is at most this number.
        most_cycles : float, optional
            Returns the mix of highest SQNR whose cycles are at most this number.

        Raises
        ------
        QuantMismatch
            No measured mix is as good, or as cheap.
        InvalidGraph
            Several are given, or none is and no SQNR was asked for; or the cycles of no device are known.
        """
        if most_cycles is not None and not self.device:
            raise invalid(
                "mix",
                "no cycles are known",
                got=f"most_cycles={shown(most_cycles)}",
                hint="Give tosaic.sensitivity the name of a device as costs",
            )
        if most_cost is None and most_cycles is None:
            least_db = self.least_db if least_db is None else least_db
        if sum(each is not None for each in (least_db, most_cost, most_cycles)) != 1:
            raise invalid(
                "mix",
                "what makes a mix the best one is not clear",
                expected="one of 'least_db', 'most_cost' and 'most_cycles'",
                got=f"least_db={shown(least_db)}, most_cost={shown(most_cost)}, "
                f"most_cycles={shown(most_cycles)}",
            )
        if most_cycles is not None:
            within = [each for each in self.curve if each.cycles is not None and each.cycles <= most_cycles]
            if not within:
                least = min(each.cycles or 0 for each in self.curve)
                raise self._no_mix(f"of {most_cycles:,.0f} cycles", f"at least {least:,}")
            return max(within, key=lambda each: each.db)
        if most_cost is not None:
            cheap = [each for each in self.curve if each.cost <= most_cost]
            if not cheap:
                raise self._no_mix(f"that costs {most_cost:g}", f"at least {self.curve[0].cost:g}")
            return max(cheap, key=lambda each: each.db)
        assert least_db is not None
        good = [each for each in self.curve if each.db >= least_db]
        if not good:
            best = max(each.db for each in self.curve)
            raise self._no_mix(f"with {least_db:g} dB", f"at most {best:.1f} dB")
        return min(good, key=lambda each: each.cost)

    def _no_mix(self, what: str, got: str) -> Exception:
        return quant_mismatch(
            "mix",
            f"there is no mix of {', '.join(self.levels)} {what}",
            got=got,
            hint="Add a level, such as 'float', or ask for less",
        )

    @checked
    def plot(self, path: str | os.PathLike[str] | None = None) -> str:
        """Returns the curve of SQNR over cost as SVG, and writes it to a file if there is a path.

        Raises
        ------
        WriteError
            The file cannot be written.
        """
        from tosaic.base.writing import write_text

        bodies = (section.body for section in self.report().sections)
        picture = next(str(body.svg) for body in bodies if hasattr(body, "svg"))
        if path is not None:
            write_text(path, picture + "\n")
        return picture
