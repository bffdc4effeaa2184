"""Measures what each layer loses in a low precision, and searches for cheap mixes.

The samples run once and fill a histogram of each tensor, from which every configuration gets its qparams. A
layer is a contraction with the calls after it. For each layer and level, the outputs' noise is measured with
this layer one level lower than all others. The additional noise, divided by the cost that the lower level
saves, ranks the layers. Starting with the lowest level in all layers, layers are raised in this order, and
some mixes on the way are measured.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.annotation.config import QConfig
from tosaic.base.options import invalid, refusal, shown
from tosaic.base.progress import with_progress
from tosaic.calibration.choose import chosen_qparams
from tosaic.calibration.draft import decibels, float_outputs, relative_noise
from tosaic.calibration.insert import with_quantization
from tosaic.calibration.observations import observations
from tosaic.calibration.plan_program import plan_program, prepared_graph
from tosaic.calibration.relevant import relevant_bounds
from tosaic.calibration.table import Table, calibration_table
from tosaic.lowering.macs import macs_by_call
from tosaic.opening.sources import require_use
from tosaic.quantizing.device_cycles import cycles_by_call, require_cycles
from tosaic.quantizing.quantize_program import Counted, graph_arrays, planned_source, require_executor
from tosaic.quantizing.sensitivities import LayerSensitivity, Mix, Sensitivity

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tosaic.annotation.call_graph import CallGraph
    from tosaic.ports.foreign import ForeignOp
    from tosaic.program.program import Program

_LEVELS: dict[str, QConfig | None] = {
    "int8": QConfig.int8(),
    "uint8": QConfig.uint8(),
    "int16x8": QConfig.int16x8(),
    "float": None,
}
_COSTS = {"int8": 1.0, "uint8": 1.0, "int16x8": 2.0, "float": 8.0}
_INPUTS = "inputs"


def measured(
    program: Any,
    samples: Any,
    *,
    least_db: float | None,
    levels: Any,
    costs: Any,
    points: int,
    measured_on: int,
    executor: Executor | None,
    progress: bool,
    bind: Any,
    operators: Sequence[ForeignOp],
    trust: bool,
) -> Sensitivity:
    """Measures the layers and the mixes; see `tosaic.sensitivity`."""
    require_use("sensitivity", bind, program, operators=operators)
    require_executor("sensitivity", executor)
    scale = _Scale.of(levels, costs)
    source, _ = planned_source(program, scale.configs[0] or QConfig(), bind, operators, trust)
    graph = prepared_graph(source.snapshot().graph)
    kept: list[list[Any]] = []
    stream = Counted(
        _kept(with_progress(graph_arrays(samples, source), "calibrate", shown=progress), kept, measured_on)
    )
    table = calibration_table(source, graph, stream, executor, _rounded(source, graph, scale.configs))
    meter = _Meter(source, graph, table, kept)
    search = _Search(meter, scale, _layers(meter.calls(scale.configs[0]), macs_by_call(graph)), progress)
    layers = search.measure_layers()
    curve = search.curve(points, least_db)
    return Sensitivity(scale.names, layers, curve, least_db, stream.count, len(kept), scale.device)


def _rounded(source: Program, graph: _core.Graph, configs: Sequence[QConfig | None]) -> set[str]:
    """Returns the names of all values that are rounded at one of the levels."""
    found: set[str] = set()
    for config in configs:
        if config is not None:
            planned = plan_program(graph, config, module_types=source.module_types, required=False)
            found |= {name for name, _ in observations(planned).watches}
    return found


def _kept(stream: Iterator[list[Any]], kept: list[list[Any]], count: int) -> Iterator[list[Any]]:
    for arrays in stream:
        if len(kept) < count:
            kept.append([np.array(each) for each in arrays])
        yield arrays


# ---- levels ----


@dataclass(frozen=True)
class _Scale:
    """The levels, the cheapest first."""

    names: tuple[str, ...]
    configs: tuple[QConfig | None, ...]
    costs: tuple[float, ...]  # of a multiply-accumulate
    device: str = ""  # costs are its cycles

    @classmethod
    def of(cls, levels: Any, costs: Any) -> _Scale:
        if isinstance(costs, str):
            require_cycles("sensitivity", costs)
            return cls._of_device(levels, costs)
        if isinstance(levels, Mapping):
            table = dict(levels)
        else:
            given = list(levels) if isinstance(levels, list | tuple) else [levels]
            unknown = [each for each in given if not isinstance(each, str) or each not in _LEVELS]
            if unknown:
                expected = (
                    "levels among " + ", ".join(map(repr, _LEVELS)) + ", or a mapping of names to QConfig"
                )
                raise refusal("sensitivity", "levels", expected, unknown[0])
            table = {each: _LEVELS[each] for each in given}
        if len(table) < 2 or not all(isinstance(each, QConfig | None) for each in table.values()):
            raise refusal(
                "sensitivity", "levels", "two levels or more: names, with a QConfig or None each", levels
            )
        return cls(tuple(table), tuple(table.values()), cls._costs_of(tuple(table), costs))

    @classmethod
    def _of_device(cls, levels: Any, device: str) -> _Scale:
        """Returns levels of integers for a device: by name, as it computes them at least cost."""
        least = QConfig.for_target(device)
        every, stream = least.every_operator, None if least.precision is None else least.precision.stream
        known = {
            "int8": least,
            "uint8": QConfig.uint8(every_operator=every, stream=stream),
            "int16x8": QConfig.int16x8(every_operator=every),
        }
        if not isinstance(levels, Mapping):
            given = list(levels) if isinstance(levels, list | tuple) else [levels]
            levels = {each: known.get(each) if isinstance(each, str) else None for each in given}
        unknown = [name for name, config in levels.items() if not isinstance(config, QConfig)]
        if unknown or len(levels) < 2:
            expected = (
                "two levels of integers or more: " + ", ".join(map(repr, known)) + ", or QConfig by name"
            )
            raise refusal("sensitivity", "levels", expected, unknown[0] if unknown else list(levels))
        return cls(tuple(levels), tuple(levels.values()), (), device)

    @staticmethod
    def _costs_of(names: tuple[str, ...], costs: Any) -> tuple[float, ...]:
        numbers_by_name = costs is None or (
            isinstance(costs, Mapping) and all(map(_is_number, costs.values()))
        )
        if not numbers_by_name:
            raise refusal("sensitivity", "costs", "numbers by the name of a level, or None", costs)
        known = {**_COSTS, **(costs or {})}
        unknown = [name for name in costs or () if name not in names]
        if unknown:
            raise refusal("sensitivity", "costs", "costs of " + ", ".join(map(repr, names)), costs)
        missing = [name for name in names if name not in known]
        if missing:
            raise refusal("sensitivity", "costs", f"the cost of level '{missing[0]}'", costs)
        found = tuple(float(known[name]) for name in names)
        grows = all(low < high for low, high in pairwise(found))
        if not (grows and found[0] > 0 and math.isfinite(found[-1])):
            expected = "positive numbers that grow from level to level"
            raise refusal("sensitivity", "costs", expected, dict(zip(names, found, strict=True)))
        return found

    def config(self, layers: Sequence[_Layer], at: Sequence[int]) -> QConfig:
        """Returns the configuration in which each layer has its level."""
        made = self.configs[0] or QConfig()
        for level in range(1, len(self.names)):
            nodes = [
                call for layer, each in zip(layers, at, strict=True) if each == level for call in layer.calls
            ]
            if nodes:
                made = made.set(self.configs[level], nodes=nodes)
        return made


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


# ---- layers ----


@dataclass(frozen=True)
class _Layer:
    name: str
    calls: tuple[str, ...]
    module_path: str
    source: str
    macs: int


def _layers(calls: CallGraph, macs: Mapping[str, int]) -> list[_Layer]:
    """Divides the calls into layers: a call belongs to the last contraction that it depends on."""
    layer_of: dict[str, int] = {}
    members: list[list[str]] = [[]]
    heads: list[Any] = [None]
    for call in calls:
        at = max((layer_of[operand.producer] for operand in call.operands), default=0)
        if macs.get(call.name):
            at = len(members)
            members.append([])
            heads.append(call)
        layer_of[call.name] = at
        if call.kind == "call" and call.target != "getitem":
            members[at].append(call.name)
    return [
        _Layer(
            _INPUTS if head is None else head.name,
            tuple(names),
            head.modules[-1][0] if head is not None and head.modules else "",
            "" if head is None else head.source,
            sum(macs.get(name, 0) for name in names),
        )
        for head, names in zip(heads, members, strict=True)
        if names
    ]


# ---- measuring ----


class _Meter:
    """Measures the noise that a configuration makes at the outputs, relative to the outputs."""

    def __init__(self, source: Program, graph: _core.Graph, table: Table, samples: list[list[Any]]) -> None:
        self._module_types = source.module_types
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

    def calls(self, config: QConfig | None) -> CallGraph:
        """Returns the calls of the graph, as plans name them."""
        return plan_program(self._graph, config or QConfig.int8(), module_types=self._module_types).plan.graph

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
        planned = plan_program(self._graph, config, module_types=self._module_types, required=False)
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
    def __init__(self, meter: _Meter, scale: _Scale, layers: list[_Layer], progress: bool) -> None:
        self._meter = meter
        self._scale = scale
        self._layers = layers
        self._progress = progress
        self._noise: dict[tuple[int, ...], float] = {}
        self._cycles: dict[tuple[int, ...], Counter[str]] = {}
        self._gains: list[list[float]] = [[] for _ in layers]
        if scale.device:
            self._costs = self._cycles_of_layers()  # by layer and level
            self._least_cost = 1.0  # that makes a difference
        else:
            self._costs = [[layer.macs * cost for cost in scale.costs] for layer in layers]
            self._least_cost = min(high - low for low, high in pairwise(scale.costs))

    def _measured(self, at: Sequence[int]) -> float:
        key = tuple(at)
        if key not in self._noise:
            is_float = all(self._scale.configs[level] is None for level in key)
            config = self._scale.config(self._layers, key)
            self._noise[key] = self._meter.noise(config, is_float=is_float)
        return self._noise[key]

    def _uniform(self, level: int) -> list[int]:
        return [level] * len(self._layers)

    def _cycles_of(self, at: Sequence[int]) -> Counter[str]:
        """Returns the device's cycles for a mix, by call."""
        key = tuple(at)
        if key not in self._cycles:
            graph = self._meter.quantized(self._scale.config(self._layers, key))
            assert graph is not None
            self._cycles[key] = cycles_by_call(graph, self._scale.device)
        return self._cycles[key]

    def _cycles_of_layers(self) -> list[list[float]]:
        """Returns the cycles of each layer if all layers have the same level, by level.

        What belongs to no layer counts for the first one.
        """
        layer_of = {call: i for i, layer in enumerate(self._layers) for call in layer.calls}
        found = [[0.0] * len(self._scale.names) for _ in self._layers]
        for level in range(len(self._scale.names)):
            for call, cycles in self._cycles_of(self._uniform(level)).items():
                found[layer_of.get(call, 0)][level] += cycles
        return found

    def measure_layers(self) -> tuple[LayerSensitivity, ...]:
        """Measures each layer at each level but the last, with all other layers one level higher."""
        found = []
        for position, layer in enumerate(with_progress(self._layers, "layers", shown=self._progress)):
            dbs, lost = [], []
            for level in range(1, len(self._scale.names)):
                at = self._uniform(level)
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
        at = self._uniform(0)
        path = [tuple(at)]
        top = len(self._scale.names) - 1
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
        return spent / (sum(costs[0] for costs in self._costs) or 1)

    def curve(self, points: int, least_db: float | None) -> tuple[Mix, ...]:
        """Measures mixes at even steps of the cost, and searches for the cheapest mix with `least_db`."""
        path = self._path()
        costs = [self._cost(at) for at in path]
        chosen = {0, len(path) - 1}
        points = min(points, len(path))
        for step in range(1, points + 1):
            wanted = costs[0] + (costs[-1] - costs[0]) * step / (points + 1)
            chosen.add(max(i for i, cost in enumerate(costs) if cost <= wanted + 1e-12))
        mixes = {path[i] for i in chosen}
        if least_db is not None:
            mixes |= self._cheapest(path, least_db)
        for at in with_progress(sorted(mixes), "mixes", shown=self._progress):
            self._measured(at)
        return tuple(sorted((self._mix(at) for at in mixes), key=lambda mix: (mix.cost, mix.db)))

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
            if level + 1 < len(self._scale.names):
                at[position] = level + 1
                self._gains[position][level] = noise - self._measured(at)

    def _mix(self, at: tuple[int, ...]) -> Mix:
        names = self._scale.names
        total = sum(layer.macs for layer in self._layers) or 1
        shares = dict.fromkeys(names, 0.0)
        for layer, level in zip(self._layers, at, strict=True):
            shares[names[level]] += layer.macs / total
        levels = {layer.name: names[level] for layer, level in zip(self._layers, at, strict=True) if level}
        config = self._scale.config(self._layers, at)
        cost, cycles = self._cost(at), None
        if self._scale.device:
            cycles = self._cycles_of(at).total()
            cost = cycles / max(self._cycles_of(self._uniform(0)).total(), 1)
        return Mix(decibels(self._measured(at)), cost, shares, levels, config, cycles)
