"""Measures what each layer loses in a low precision, and searches for cheap mixes.

The samples run once and fill a histogram of each tensor, from which every configuration gets its qparams. A
layer is a contraction with the calls after it. For each layer and level, the outputs' noise is measured with
this layer one level lower than all others. The additional noise, divided by the cost that the lower level
saves, ranks the layers. Starting with the lowest level in all layers, layers are raised in this order, and
some mixes on the way are measured.

For a device, integers have several forms: each operator or each unit rounds its result, and a residual stream
has 8, 16 or 32 bits. The layers of the device's own form are always measured, those of another form if all of
its layers at the lowest level make a mix that is more accurate than the device's, and no known mix is better.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.annotation.config import QConfig
from tosaic.base.options import invalid, quant_mismatch, shown
from tosaic.base.progress import with_progress
from tosaic.calibration.choose import chosen_qparams
from tosaic.calibration.draft import decibels, float_outputs, relative_noise
from tosaic.calibration.insert import with_quantization
from tosaic.calibration.observations import observations
from tosaic.calibration.plan_program import plan_program, prepared_graph
from tosaic.calibration.relevant import relevant_bounds
from tosaic.calibration.streams import sample_arrays
from tosaic.calibration.table import Table, calibration_table
from tosaic.lowering.macs import macs_by_call
from tosaic.quantizing.device_cycles import cycles_by_call
from tosaic.quantizing.levels import Layer, Scale, form_text, layers_of
from tosaic.quantizing.sensitivities import LayerSensitivity, Mix, Sensitivity
from tosaic.quantizing.sources import Counted, planned_source

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tosaic.annotation.plan import Plan
    from tosaic.ports.foreign import ForeignOp
    from tosaic.program.program import Program


@dataclass(frozen=True)
class Wanted:
    """What is searched for.

    Attributes
    ----------
    least_db : float, optional
        The cheapest mix with this SQNR.
    most_cycles : float, optional
        The most accurate mix with at most these cycles of the device.
    points : int
        Mixes of the curve between the lowest and the highest level.
    """

    least_db: float | None = None
    most_cycles: float | None = None
    points: int = 0


@dataclass(frozen=True)
class Material:
    """A program of floats, and how it is quantized.

    Attributes
    ----------
    program : object
        As `tosaic.quantize` takes it.
    bind, operators, trust
        As in `tosaic.quantize`.
    rules : sequence of callable
        Rules of plans.
    measured_on : int
        The number of samples on which mixes are measured.
    executor : concurrent.futures.Executor, optional
    progress : bool
    """

    program: Any
    bind: Any = None
    operators: Sequence[ForeignOp] = ()
    trust: bool = False
    rules: Sequence[Callable[[Plan], Plan | None]] = ()
    measured_on: int = 4
    executor: Executor | None = None
    progress: bool = True

    def source(self, config: QConfig) -> Program:
        """Returns the program that a configuration is planned for."""
        return planned_source(self.program, config, self.bind, self.operators, self.trust)[0]


def measured(material: Material, samples: Any, scale: Scale, wanted: Wanted) -> Sensitivity:
    """Measures the layers and the mixes; see `tosaic.sensitivity`.

    Raises
    ------
    QuantMismatch
        The cheapest plan takes more than the wanted cycles.
    """
    forms = scale.forms()
    meters = _Meters(material, samples, (scale, *forms))
    search = _Search(meters.of(scale), scale, material.progress)
    others = [_Search(meters.of(form), form, material.progress, search.unit) for form in forms]
    if wanted.most_cycles is not None:
        _require_affordable([search, *others], wanted.most_cycles)
    layers = search.measure_layers()
    mixes = search.mixes(wanted)
    plan = search.mix(search.uniform(0))
    for other in others:
        further = _mixes_of_form(other, plan, mixes, wanted)
        mixes += [mix for mix in further if not _is_surpassed(mix, [*mixes, *further])]
    curve = tuple(sorted(mixes, key=lambda mix: (mix.cost, mix.db)))
    count, measured_on = meters.samples, meters.of(scale).samples
    return Sensitivity(scale.names, layers, curve, wanted.least_db, count, measured_on, scale.device)


def _require_affordable(searches: Sequence[_Search], most_cycles: float) -> None:
    cycles = min(each.cycles(each.uniform(0)) for each in searches)
    if cycles > most_cycles:
        device = searches[0].scale.device
        raise quant_mismatch(
            "quantize",
            "no plan takes so few cycles",
            expected=f"a budget of {cycles:,} cycles of {device} or more",
            got=f"{most_cycles:,.0f}",
            hint="The cheapest plan takes these cycles: a smaller network or a larger device takes fewer",
        )


def _mixes_of_form(search: _Search, plan: Mix, known: Sequence[Mix], wanted: Wanted) -> list[Mix]:
    """Returns mixes of another form than that of the device's plan: none, the cheapest one, or many."""
    least = search.mix(search.uniform(0))
    cycles = least.cycles or 0
    if _is_surpassed(least, known):
        return []
    if least.db <= plan.db or (wanted.most_cycles is not None and cycles > wanted.most_cycles):
        return [least]
    least_db = wanted.least_db
    if least_db is not None and any(m.db >= least_db and (m.cycles or 0) <= cycles for m in known):
        return [least]
    search.measure_layers()
    return search.mixes(wanted)


def _is_surpassed(mix: Mix, others: Sequence[Mix]) -> bool:
    """True if another mix takes no more cycles and is as accurate."""
    cycles = mix.cycles or 0
    return any(each is not mix and (each.cycles or 0) <= cycles and each.db >= mix.db for each in others)


class _Meters:
    """The meters of all forms.

    There is one by whether each operator is rounded, since attentions are replaced by their parts then.
    """

    def __init__(self, material: Material, samples: Any, scales: Sequence[Scale]) -> None:
        self._material = material
        self._scales = scales
        self._known: dict[bool, Meter] = {}
        self.samples = 0  # that the qparams follow from
        self._source = material.source(scales[0].least)
        self._runs: Iterable[list[Any]] = sample_arrays(samples, self._source)
        if len({each.least.every_operator for each in scales}) > 1:  # the samples run several times
            self._runs = [[np.array(each) for each in arrays] for arrays in self._runs]

    def of(self, scale: Scale) -> Meter:
        """Returns the meter of a form."""
        every = scale.least.every_operator
        if every not in self._known:
            self._known[every] = self._made(every, scale.least)
        return self._known[every]

    def _made(self, every: bool, config: QConfig) -> Meter:
        of = self._material
        source = of.source(config) if self._known else self._source
        graph = prepared_graph(source.snapshot().graph)
        configs = [c for each in self._scales if each.least.every_operator == every for c in each.configs]
        kept: list[list[Any]] = []
        runs = map(source.graph_arrays, self._runs)
        stream = Counted(_kept(with_progress(runs, "calibrate", shown=of.progress), kept, of.measured_on))
        table = calibration_table(
            source, graph, stream, of.executor, _rounded(source, graph, configs, of.rules)
        )
        self.samples = stream.count
        return Meter(source, graph, table, kept, of.rules)


def _rounded(
    source: Program, graph: _core.Graph, configs: Sequence[QConfig | None], rules: Sequence[Any]
) -> set[str]:
    """Returns the names of all values that are rounded at one of the levels."""
    found: set[str] = set()
    for config in configs:
        if config is not None:
            types = source.module_types
            planned = plan_program(graph, config, module_types=types, rules=rules, required=False)
            found |= {name for name, _ in observations(planned).watches}
    return found


def _kept(stream: Iterable[list[Any]], kept: list[list[Any]], count: int) -> Iterator[list[Any]]:
    for arrays in stream:
        if len(kept) < count:
            kept.append([np.array(each) for each in arrays])
        yield arrays


# ---- measuring ----


class Meter:
    """Measures the noise that a configuration makes at the outputs, relative to the outputs."""

    def __init__(
        self,
        source: Program,
        graph: _core.Graph,
        table: Table,
        samples: list[list[Any]],
        rules: Sequence[Callable[[Plan], Plan | None]] = (),
    ) -> None:
        self._module_types = source.module_types
        self._rules = rules
        self._source = source
        self._graph = graph
        self._table = table
        self._samples = samples
        self._known: dict[Any, Any] = {}
        self._wanted = [self._outputs(graph, arrays) for arrays in samples]
        if not any(each.any() for outputs in self._wanted for each in outputs):
            raise invalid(
                "sensitivity",
                "the program has no output of floats that are not all zero",
                got=shown([port.type_text for port in source.outputs]),
            )

    @property
    def samples(self) -> int:
        """The number of samples on which noise is measured."""
        return len(self._samples)

    def layers(self, config: QConfig | None) -> list[Layer]:
        """Returns the layers of the graph."""
        planned = plan_program(self._graph, config or QConfig.int8(), module_types=self._module_types)
        return layers_of(planned.plan.graph, macs_by_call(self._graph))

    def noise(self, config: QConfig, *, is_float: bool = False) -> float:
        """Returns the power of the errors of the outputs over that of the outputs."""
        if is_float:
            return 0.0
        graph = self.quantized(config)
        if graph is None:
            return 0.0
        session = self._source.overrides.session(graph)
        return relative_noise([float_outputs(session, arrays) for arrays in self._samples], self._wanted)

    def quantized(self, config: QConfig) -> _core.Graph | None:
        """Returns the quantized graph; None if nothing is to be rounded."""
        planned = plan_program(
            self._graph, config, module_types=self._module_types, rules=self._rules, required=False
        )
        if not len(planned.plan):  # the layers that are not float have nothing to round
            return None
        observed = observations(planned)
        statistics = self._table.statistics(planned, observed)
        bounds = relevant_bounds(planned, observed, statistics, self._table.histograms)
        chosen = chosen_qparams(planned, observed, statistics, self._known, bounds=bounds)
        return with_quantization(planned, chosen, ended=bounds)

    def _outputs(self, graph: _core.Graph, arrays: list[Any]) -> list[Any]:
        return float_outputs(self._source.overrides.session(graph), arrays)


# ---- the search ----


class _Search:
    """The search over the layers of one form.

    Parameters
    ----------
    meter : Meter
    scale : Scale
    progress : bool
    unit : float, optional
        The cycles that have cost 1. Default: with the first level in all layers.
    """

    def __init__(self, meter: Meter, scale: Scale, progress: bool, unit: float | None = None) -> None:
        self._meter = meter
        self.scale = scale
        self._layers = layers = meter.layers(scale.configs[0])
        self._progress = progress
        self._noise: dict[tuple[int, ...], float] = {}
        self._cycles: dict[tuple[int, ...], Counter[str]] = {}
        self._gains: list[list[float]] = [[] for _ in layers]
        self._least_cost = 1.0  # that makes a difference
        if scale.device:
            self.unit = float(self.cycles(self.uniform(0))) if unit is None else unit
        else:
            self.unit = sum(layer.macs * scale.costs[0] for layer in layers)
            self._least_cost = min(high - low for low, high in pairwise(scale.costs))

    @cached_property
    def _costs(self) -> list[list[float]]:
        """The costs by layer and level."""
        if self.scale.device:
            return self._cycles_of_layers()
        return [[layer.macs * cost for cost in self.scale.costs] for layer in self._layers]

    def _measured(self, at: Sequence[int]) -> float:
        key = tuple(at)
        if key not in self._noise:
            is_float = all(self.scale.configs[level] is None for level in key)
            config = self.scale.config(self._layers, key)
            self._noise[key] = self._meter.noise(config, is_float=is_float)
        return self._noise[key]

    def uniform(self, level: int) -> list[int]:
        """Returns the mix with one level in all layers."""
        return [level] * len(self._layers)

    def _cycles_of(self, at: Sequence[int]) -> Counter[str]:
        """Returns the device's cycles for a mix, by call."""
        key = tuple(at)
        if key not in self._cycles:
            graph = self._meter.quantized(self.scale.config(self._layers, key))
            assert graph is not None
            self._cycles[key] = cycles_by_call(graph, self.scale.device)
        return self._cycles[key]

    def cycles(self, at: Sequence[int]) -> int:
        """Returns the device's cycles for a mix."""
        return self._cycles_of(at).total()

    def _cycles_of_layers(self) -> list[list[float]]:
        """Returns the cycles of each layer if all layers have the same level, by level.

        What belongs to no layer counts for the first one.
        """
        layer_of = {call: i for i, layer in enumerate(self._layers) for call in layer.calls}
        found = [[0.0] * len(self.scale.names) for _ in self._layers]
        for level in range(len(self.scale.names)):
            for call, cycles in self._cycles_of(self.uniform(level)).items():
                found[layer_of.get(call, 0)][level] += cycles
        return found

    def measure_layers(self) -> tuple[LayerSensitivity, ...]:
        """Measures each layer at each level but the last, with all other layers one level higher."""
        found = []
        for position, layer in enumerate(with_progress(self._layers, "layers", shown=self._progress)):
            dbs, lost = [], []
            for level in range(1, len(self.scale.names)):
                at = self.uniform(level)
                base = self._measured(at)
                at[position] = level - 1
                noise = self._measured(at)
                self._gains[position].append(noise - base)
                dbs.append(decibels(noise))
                lost.append(decibels(base) - decibels(noise) if base > 0 else math.inf)
            found.append(
                LayerSensitivity(
                    layer.name,
                    layer.calls,
                    layer.module_path,
                    layer.source,
                    layer.macs,
                    tuple(dbs),
                    tuple(lost),
                )
            )
        return tuple(found)

    def _path(self) -> list[tuple[int, ...]]:
        """Returns mixes from the lowest level to the highest: each mix raises one layer of the mix before.

        The raised layer is the one whose noise falls most, relative to the cost of its higher level.
        """
        at = self.uniform(0)
        path = [tuple(at)]
        top = len(self.scale.names) - 1
        while any(level < top for level in at):
            candidates = [i for i, level in enumerate(at) if level < top]
            best = max(candidates, key=lambda i: (self._worth(i, at[i]), -i))
            at[best] += 1
            path.append(tuple(at))
        return path

    def _worth(self, position: int, level: int) -> float:
        gain = self._gains[position][level]
        costs = self._costs[position]
        return gain / max(costs[level + 1] - costs[level], self._least_cost) if gain > 0 else gain

    def _cost(self, at: Sequence[int]) -> float:
        spent = sum(costs[level] for costs, level in zip(self._costs, at, strict=True))
        return spent / (self.unit or 1)

    def mixes(self, wanted: Wanted) -> list[Mix]:
        """Measures mixes at even steps of the cost, and searches for the one that is wanted."""
        path = self._path()
        costs = [self._cost(at) for at in path]
        chosen = {0, len(path) - 1}
        points = min(wanted.points, len(path))
        for step in range(1, points + 1):
            most = costs[0] + (costs[-1] - costs[0]) * step / (points + 1)
            chosen.add(max(i for i, cost in enumerate(costs) if cost <= most + 1e-12))
        mixes = {path[i] for i in chosen}
        if wanted.least_db is not None:
            mixes |= self._cheapest(path, wanted.least_db)
        elif wanted.most_cycles is not None:
            mixes |= self._most_accurate(path, wanted.most_cycles)
        for at in with_progress(sorted(mixes), "mixes", shown=self._progress):
            self._measured(at)
        return [self.mix(at) for at in sorted(mixes)]

    def _cheapest(self, path: list[tuple[int, ...]], least_db: float) -> set[tuple[int, ...]]:
        """Returns mixes with at least `least_db`: the first of the path, and possibly cheaper ones."""
        if decibels(self._measured(path[-1])) < least_db:
            return set()
        first = self._first(path, least_db)
        self._measure_around(first)
        second = self._first(self._path(), least_db)
        start = min(first, second, key=self._cost)
        at = list(start)
        raised = sorted((i for i, level in enumerate(at) if level), key=lambda i: self._worth(i, at[i] - 1))
        for position in raised:
            at[position] -= 1
            if self._layers[position].macs == 0 or decibels(self._measured(at)) < least_db:
                at[position] += 1
        return {first, start, tuple(at)}

    def _first(self, path: list[tuple[int, ...]], least_db: float) -> tuple[int, ...]:
        """Returns the first mix of a path with at least `least_db`; the last mix of the path has it."""
        low, high = 0, len(path) - 1
        while low < high:
            middle = (low + high) // 2
            if decibels(self._measured(path[middle])) >= least_db:
                high = middle
            else:
                low = middle + 1
        return path[high]

    def _most_accurate(self, path: list[tuple[int, ...]], most_cycles: float) -> set[tuple[int, ...]]:
        """Returns mixes of at most `most_cycles`: the last of the path, and possibly more accurate ones."""
        if self.cycles(path[0]) > most_cycles:
            return set()
        first = self._last(path, most_cycles)
        self._measure_around(first)
        second = self._last(self._path(), most_cycles)
        best = min((first, second), key=self._measured)
        return {first, second, self._filled(best, most_cycles)}

    def _last(self, path: list[tuple[int, ...]], most_cycles: float) -> tuple[int, ...]:
        """Returns the last mix of a path with at most `most_cycles`; the first mix of the path has it."""
        low, high = 0, len(path) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.cycles(path[middle]) <= most_cycles:
                low = middle
            else:
                high = middle - 1
        return path[low]

    def _filled(self, mix: tuple[int, ...], most_cycles: float) -> tuple[int, ...]:
        """Raises further layers, as long as the cycles suffice."""
        at = list(mix)
        top = len(self.scale.names) - 1
        left = most_cycles - self.cycles(at)
        raised = [i for i, level in enumerate(at) if level < top and self._gains[i][level] > 0]
        for position in sorted(raised, key=lambda i: -self._worth(i, at[i])):
            level, costs = at[position], self._costs[position]
            if costs[level + 1] - costs[level] > left:
                continue
            noise = self._measured(at)
            at[position] = level + 1
            cycles = self.cycles(at)
            if cycles > most_cycles or self._measured(at) >= noise:
                at[position] = level
            else:
                left = most_cycles - cycles
        return tuple(at)

    def _measure_around(self, mix: tuple[int, ...]) -> None:
        """Measures again what each layer gains from its neighbouring levels, with other layers as in a mix.

        Errors do not simply add up: next to layers of low precision, a layer's gain is different.
        """
        noise = self._measured(mix)
        for position, level in enumerate(with_progress(mix, "layers again", shown=self._progress)):
            at = list(mix)
            if level > 0:
                at[position] = level - 1
                self._gains[position][level - 1] = self._measured(at) - noise
            if level + 1 < len(self.scale.names):
                at[position] = level + 1
                self._gains[position][level] = noise - self._measured(at)

    def mix(self, at: Sequence[int]) -> Mix:
        """Returns a mix, with what was measured of it."""
        names = self.scale.names
        total = sum(layer.macs for layer in self._layers) or 1
        shares = dict.fromkeys(names, 0.0)
        for layer, level in zip(self._layers, at, strict=True):
            shares[names[level]] += layer.macs / total
        levels = {layer.name: names[level] for layer, level in zip(self._layers, at, strict=True) if level}
        config = self.scale.config(self._layers, at)
        db = decibels(self._measured(at))
        if not self.scale.device:
            return Mix(db, self._cost(at), shares, levels, config)
        cycles = self.cycles(at)
        return Mix(db, cycles / max(self.unit, 1), shares, levels, config, cycles, form_text(config))
