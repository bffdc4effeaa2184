"""The steps of an export, from the model to the checks. Nothing is written here.

::

    model --stages--> model --torch.export--> exported --stages--> exported --import--> program
        --quantize--> quantized --stages, rgba--> quantized --lower--> lowered --stages--> lowered --checks-->
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from tosaic import _core
from tosaic.annotation.resolution import NarrowOperand
from tosaic.api.calls import compare, lower
from tosaic.base.dtypes import is_float
from tosaic.base.exported import is_exported_program
from tosaic.base.options import invalid, shown
from tosaic.calibration.collapsed_operands import collapsed_operands, tosa_graphs
from tosaic.calibration.narrow import narrow_by_runs
from tosaic.calibration.saturated_biases import saturated_biases
from tosaic.calibration.streams import sample_arrays
from tosaic.exporting.agreement import ENOUGH_ELEMENTS, MOST_SAMPLES, agrees, units_of_outputs
from tosaic.exporting.boundary import (
    infinite_masks,
    padded_to_rgba,
    port_rules,
    require_ports,
    saturated,
    saturated_states,
)
from tosaic.exporting.checks import (
    Runs,
    StageCheck,
    check,
    group_checks,
    lowered_runs,
    program_runs,
    raw_runs,
)
from tosaic.exporting.claimed_calls import Claims, changed_claims, rules_by_claim
from tosaic.exporting.context import LOG, ExportContext
from tosaic.exporting.result import ExportResult
from tosaic.lowering.samplers import rgba
from tosaic.opening.sources import from_exported
from tosaic.partitions.split_lowered import SplitLowered
from tosaic.ports.foreign import ForeignOp
from tosaic.program.program import Program
from tosaic.program.samples import Sample, iterate_samples, read_samples
from tosaic.quantizing.quantize_program import quantize
from tosaic.quantizing.quantized_program import QuantizedProgram
from tosaic.recipes.changes import changed_pipelines
from tosaic.recipes.recipe import Recipe
from tosaic.recipes.stage import Stage

STEPS = ("export", "import", "quantize", "lower", "check")
"""The steps in order, as the progress bar counts them."""

_LEAST_DB = 30.0  # for steps that keep the meaning: torch's order of sums differs, as do 16-bit floats
_TRAINED_DB = 20.0  # for the conversion of a trained module, whose integers round some numbers differently
_LOSS_DB = 3.0  # the most loss by integer arithmetic, which rounds at other places than the quantized program
_STREAM_LOSS_DB = 10.0  # the most loss of a stream of samples, compared with samples from initial states
_TRACING = threading.Lock()  # torch.export keeps its state in globals, and damages modules in two threads
Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class FlowOptions:
    """Options of `tosaic.export_model` that a recipe does not have.

    Attributes
    ----------
    input_specs, output_specs
        As in `export_model`.
    strict : bool
    bind : object
    check_on : tuple of str
    check_samples : int
    check_nodes : bool
    least_db : float, optional
    operators : tuple of ForeignOp
    """

    input_specs: Any = None
    output_specs: Any = None
    strict: bool = False
    bind: Any = None
    check_on: tuple[str, ...] = ()
    check_samples: int = 2
    check_nodes: bool = False
    least_db: float | None = None
    operators: tuple[ForeignOp, ...] = ()


class Flow:
    """One export. `run` calls the steps in order.

    Parameters
    ----------
    model : torch.nn.Module, torch.export.ExportedProgram or Program
    inputs : (tuple, dict), optional
        Example inputs of a module.
    samples : object
        As `tosaic.quantize` takes them. None: the example inputs.
    recipe : Recipe
    options : FlowOptions
    """

    def __init__(
        self, model: Any, inputs: Any, samples: Any, recipe: Recipe, options: FlowOptions, name: str
    ) -> None:
        self.context = ExportContext(recipe, name, inputs=inputs)
        self._model = model
        self._given = samples
        self._options = options
        self._held: list[Arrays] = []
        self._more: list[Arrays] = []  # additional samples, for outputs of few elements
        self._narrow: set[tuple[str, str]] = set()
        self._claims: Claims = {}
        self._wide: Program | None = None  # the program to lower, with the four channels of `rgba`
        self.seconds: dict[str, float] = {}
        self.checks: list[StageCheck] = []

    def steps(self) -> Iterator[str]:
        """Runs the steps one after the other; yields the name of each before it begins."""
        for name in STEPS:
            yield name
            start = time.perf_counter()
            getattr(self, f"_{name}")()
            self.seconds[name] = time.perf_counter() - start
            LOG.info("%s took %.2f s", name, self.seconds[name])

    def result(self) -> ExportResult:
        """Returns the result of the steps."""
        context = self.context
        assert context.program is not None
        assert context.lowered is not None
        return ExportResult(
            context.recipe,
            context.name,
            context.exported,
            context.program,
            context.quantized,
            context.lowered,
            tuple(self.checks),
            dict(self.seconds),
            context.notes,
            samples=tuple(padded_to_rgba(self._held, context.recipe.rgba_ports, context.program)),
            added=context.files,
        )

    # ---- steps ----

    def _export(self) -> None:
        context, model = self.context, self._model
        if isinstance(model, Program):
            for place in ("model", "exported"):
                self._refuse_stages(place, "the model is a tosaic.Program")
            return
        from tosaic.fx.reading.explicit_dtypes import with_explicit_dtypes

        if is_exported_program(model):
            self._refuse_stages("model", "the model is exported already")
            context.exported = with_explicit_dtypes(self._staged("exported", model))
            return
        from tosaic.fx.modules import export_module, refuse_training

        # Stages may change the model in place, so they get a copy of the caller's.
        context.model = self._staged("model", copy.deepcopy(model) if context.recipe.at("model") else model)
        with _TRACING:
            exported = export_module(
                self._compared(context.model), context.inputs or ((), {}), strict=self._options.strict
            )
        if not context.recipe.at("quantize"):
            refuse_training(exported)
        context.exported = with_explicit_dtypes(self._staged("exported", exported))

    def _import(self) -> None:
        context, options = self.context, self._options
        context.program = (
            self._model if isinstance(self._model, Program) else self._imported(context.exported)
        )
        program = context.program
        context.recipe = port_rules(context.recipe, program, options.input_specs, options.output_specs)
        require_ports(context.recipe, program)

    def _quantize(self) -> None:
        context, recipe = self.context, self.context.recipe
        program: Any = context.program
        runs = self._runs()
        stages = recipe.at("quantize")
        has_floats = any(is_float(each.dtype) for each in program.graph.values)
        context.rules = tuple(recipe.rules)
        if recipe.config is not None and has_floats:
            first = list(islice(runs, 1))
            runs = chain(first, runs)
            rules, self._claims = rules_by_claim(
                recipe.takers, lambda more: self._quantized(first, (*recipe.rules, *more))
            )
            context.rules = (*recipe.rules, *rules)
        if stages:
            made = self._run_stage(stages[0], self._quantizable())
            context.set_quantized(made, made if isinstance(made, Program) else self._imported(made))
        elif recipe.config is not None and not has_floats:
            context.note("nothing is quantized: the program has no floats")
        elif recipe.config is not None:
            quantized = self._quantized(runs, context.rules, tools=tuple(recipe.tools))
            context.set_quantized(quantized, quantized)
        while len(self._held) < self._options.check_samples:
            if next(runs, None) is None:
                break
        if context.quantized is not None:
            for texts in (saturated, infinite_masks):
                for text in texts(context.quantized, self._held):
                    context.note(text)
            for operand in self._narrow_operands(context.quantized):
                context.note(operand.text)
                self._narrow.add((operand.node, operand.operand))
            context.quantized = self._staged("quantized", context.quantized)
        for bias in saturated_biases((context.quantized or program).graph):
            context.note(str(bias))

    def _quantized(
        self, runs: Iterable[Arrays], rules: Sequence[Any], *, tools: Sequence[Any] = ()
    ) -> QuantizedProgram:
        context = self.context
        return quantize(
            self._quantizable(),
            runs,
            config=context.recipe.config,
            rules=tuple(rules),
            tools=tools,
            progress=False,
            bind=None if context.exported is None else self._options.bind,
            operators=() if context.exported is None else self._options.operators,
        )

    def _narrow_operands(self, quantized: Program) -> tuple[NarrowOperand, ...]:
        """Returns operands of joins with few integers: over all samples, or over the checks' samples."""
        if isinstance(quantized, QuantizedProgram):
            return quantized.quantization.narrow
        samples = [sample for each in self._held for sample in read_samples(each, quantized)]
        return narrow_by_runs(quantized, samples)

    def _lower(self) -> None:
        context, recipe = self.context, self.context.recipe
        source = context.quantized or context.program
        assert source is not None
        self._wide = self._with_rgba(source)
        context.lowered = lower(
            self._wide,
            unsupported="split",
            claimants=recipe.takers,
            io=recipe.io or None,
            orders=recipe.orders or None,
            objective=recipe.objective or "bytes",
            pipelines=changed_pipelines(tuple(recipe.passes), recipe.takers) or None,
        )
        if note := context.lowered.partitions.note:
            context.note(note)
        for text in changed_claims(self._claims, context.lowered.partitions):
            context.note(text)
        context.lowered = self._staged("lowered", context.lowered)
        for each in collapsed_operands(source.graph, *tosa_graphs(context.lowered)):
            if (each.node, each.operand) not in self._narrow:
                context.note(str(each))

    def _check(self) -> None:
        context, options = self.context, self._options
        program, lowered, wide = context.program, context.lowered, self._wide
        assert program is not None
        assert lowered is not None
        assert wide is not None
        if not self._held:
            return
        quantized, checks = context.quantized, self.checks
        padded = padded_to_rgba(self._held, context.recipe.rgba_ports, program)
        samples = [sample for each in self._held for sample in read_samples(each, program)]
        wide_samples = [sample for each in padded for sample in read_samples(each, wide)]
        floats = program_runs(program, samples)
        if context.exported is not None:
            what = "tosaic's run of the program against torch's"
            eager = self._torch_runs(program, samples)
            checks.append(check("import", what, eager, floats, least_db=_LEAST_DB))
        if context.model is not None and context.model is not self._model:
            what = "the program of floats against the model, before the stages of the recipe changed it"
            before = self._module_runs(program, samples, self._compared(self._model))
            checks.append(check("model", what, before, floats))
        self._check_states(lowered, program, samples)
        raw = raw_runs(lowered, wide_samples)
        expected = floats
        if quantized is not None:
            what = "the quantized program against the program of floats"
            expected = program_runs(quantized, samples)
            checks.append(check("quantize", what, floats, expected))
            if context.trained is not None:
                what = "the quantized program against the module that was trained"
                trained = self._module_runs(program, samples, context.trained)
                checks.append(check("trained", what, trained, expected, least_db=_TRAINED_DB))
        found = lowered_runs(lowered, raw, expected)
        what = "the lowered program against the program of floats"
        accuracy = check("accuracy", what, floats, found, least_db=options.least_db)
        what = f"the lowered program against the {'program' if quantized is None else 'quantized program'}"
        lowering = check("lower", what, expected, found, least_db=_LEAST_DB if quantized is None else None)
        if quantized is not None:
            quantized_db = next(each.db for each in checks if each.name == "quantize")
            lost = accuracy.db < quantized_db - _LOSS_DB and lowering.db < _LEAST_DB
            if lowering.ok and lost:
                lowering = replace(lowering, ok=self._rounds_alike(floats, expected, found))
        checks.append(lowering)
        if options.check_nodes:
            checks += group_checks(lowered, padded)
        if quantized is not None and lowered.states:
            self._check_stream(lowered, program, (samples, wide_samples), accuracy.db)
        checks.append(accuracy)
        for on in options.check_on:
            elsewhere = raw_runs(lowered, wide_samples, on=lowered.prepare(on=on))
            what = f"the groups on {on} against tosaic"
            least = _LEAST_DB if _has_floats(lowered) else math.inf
            checks.append(check(on, what, raw, elsewhere, least_db=least))
        self._explain(program, wide, padded)

    def _rounds_alike(self, floats: Runs, expected: Runs, found: Runs) -> bool:
        """Judges the lowered program on additional samples, so that small outputs have enough elements."""
        program, quantized, lowered = self.context.program, self.context.quantized, self.context.lowered
        assert program is not None
        assert quantized is not None
        assert lowered is not None
        assert self._wide is not None
        samples = [sample for each in self._more for sample in read_samples(each, program)]
        padded = padded_to_rgba(self._more, self.context.recipe.rgba_ports, program)
        wide = [sample for each in padded for sample in read_samples(each, self._wide)]
        more = program_runs(quantized, samples)
        return agrees(
            [*floats, *program_runs(program, samples)],
            [*expected, *more],
            [*found, *lowered_runs(lowered, raw_runs(lowered, wide), more)],
            units_of_outputs(quantized),
        )

    def _check_states(self, lowered: SplitLowered, program: Program, samples: Sequence[Sample]) -> None:
        """Fails if a state exceeds the range of its integers: all later calls would read clipped numbers."""
        texts, after, clipped = saturated_states(lowered, program, samples)
        for text in texts:
            self.context.note(text)
        if after:
            what = "what samples in a row write to states, within the range of the integers of the states"
            self.checks.append(replace(check("states", what, after, clipped), ok=not texts))

    def _check_stream(
        self,
        lowered: SplitLowered,
        program: Program,
        samples: tuple[Sequence[Sample], Sequence[Sample]],
        accuracy_db: float,
    ) -> None:
        """Fails if a stream of samples loses much more than samples from the initial states."""
        floats = program_runs(program, samples[0], in_a_row=True)
        found = lowered_runs(lowered, raw_runs(lowered, samples[1], in_a_row=True), floats)
        least = min(accuracy_db, _LEAST_DB) - _STREAM_LOSS_DB
        what = "the lowered program against the program of floats, samples in a row"
        made = check("stream", what, floats, found, least_db=least)
        self.checks.append(made)
        if not made.ok:
            self.context.note(
                f"samples in a row have {made.db:.1f} dB, and {accuracy_db:.1f} dB from the initial states: "
                "numbers that follow from states leave their integers. Calibrate on samples in the order of "
                "the calls"
            )

    def _explain(self, program: Program, wide: Program, padded: Sequence[Arrays]) -> None:
        """Adds the node-by-node comparisons to the checks; they run only on request."""
        context, held = self.context, list(self._held)
        floats = self._with_rgba(program)
        sides: dict[str, tuple[Any, Any, Sequence[Arrays]]] = {
            "import": (context.exported, program, held),
            "quantize": (program, context.quantized, held),
            "lower": (wide, context.lowered, padded),
            "accuracy": (floats, context.lowered, padded),
        }
        self.checks = [
            replace(each, by_node=partial(compare, *sides[each.name])) if each.name in sides else each
            for each in self.checks
        ]

    def _torch_runs(self, program: Program, samples: Sequence[Sample]) -> list[list[np.ndarray[Any, Any]]]:
        """Runs the exported program in torch, each sample from the initial states."""
        from tosaic.fx.running.eager import run_eager

        exported, leaves = self.context.exported, program.signature.leaves
        runs = [run_eager(exported, leaves(each.args, each.kwargs), trace=False) for each in samples]
        return [each.outputs for each in runs]

    def _module_runs(
        self, program: Program, samples: Sequence[Sample], model: Any
    ) -> list[list[np.ndarray[Any, Any]]]:
        """Runs copies of a module, since a run may change its states."""
        from tosaic.fx.modules import eager_arrays

        results = [eager_arrays(model, (each.args, each.kwargs)) for each in samples]
        return [list(map(np.asarray, program.flat_outputs(each).values())) for each in results]

    # ---- parts of steps ----

    def _compared(self, model: Any) -> Any:
        """Returns the float module for the checks: in evaluation mode, if a stage may train the model."""
        from tosaic.fx.modules import evaluated

        return evaluated(model) if self.context.recipe.at("quantize") else model

    def _imported(self, exported: Any) -> Program:
        with _TRACING:
            return from_exported(exported, bind=self._options.bind, operators=self._options.operators)

    def _quantizable(self) -> Any:
        """Returns the exported program, or None; only with it, a quantized program can be exported again."""
        context = self.context
        return context.program if context.exported is None else context.exported

    def _runs(self) -> Iterator[Arrays]:
        """Yields the arrays of each run of the samples by path, and holds the first ones for the checks."""
        program = self.context.program
        assert program is not None
        names = [port.path or port.name for port in program.inputs]
        wanted = _samples_of_a_distribution(program)
        for arrays in sample_arrays(self._converted(program), program):
            by_path = dict(zip(names, arrays, strict=True))
            if len(self._held) < self._options.check_samples:
                self._held.append({name: np.array(array) for name, array in by_path.items()})
            elif self._held and len(self._held) + len(self._more) < wanted:
                self._more.append({name: np.array(array) for name, array in by_path.items()})
            yield by_path

    def _converted(self, program: Program) -> Iterator[Sample]:
        context = self.context
        if self._given is None:
            if context.inputs is None:
                raise invalid(
                    "export_model",
                    "there is no sample, and the program has no example inputs",
                    expected="samples=[...]",
                )
            yield Sample(*context.inputs)  # the inputs are already converted
            return
        for sample in iterate_samples(self._given, program):
            yield Sample(*context.converted((sample.args, sample.kwargs)))

    def _with_rgba(self, program: Program) -> Program:
        recipe = self.context.recipe
        if recipe.rgba is None:
            return program
        ports = recipe.rgba_ports
        return rgba(program, inputs=ports.get("inputs", ()), outputs=ports.get("outputs", ()))

    def _staged(self, place: str, value: Any) -> Any:
        for stage in self.context.recipe.at(place):
            value = self._run_stage(stage, value)
        return value

    def _run_stage(self, stage: Stage, value: Any) -> Any:
        start = time.perf_counter()
        try:
            made = stage.run(value, self.context)
        except (_core.Error, ImportError, MemoryError):
            raise
        except Exception as error:  # a stage is the user's function
            raise invalid(
                "export_model",
                f"stage '{stage.name}' at '{stage.at}' raised an error",
                got=f"{type(error).__name__}: {error}",
            ) from error
        self.seconds[f"{stage.at}: {stage.name}"] = time.perf_counter() - start
        _require_kind(stage, made)
        return made

    def _refuse_stages(self, place: str, reason: str) -> None:
        stages: Sequence[Stage] = self.context.recipe.at(place)
        if stages:
            raise invalid(
                "export_model",
                f"stage '{stages[0].name}' is at '{place}', and {reason}",
                expected="a torch.nn.Module",
            )


def _samples_of_a_distribution(program: Program) -> int:
    """Returns the number of samples that have enough elements of each output for a distribution."""
    sizes = [math.prod(port.shape) for port in program.outputs]
    least = min((each for each in sizes if each), default=ENOUGH_ELEMENTS)
    return min(math.ceil(ENOUGH_ELEMENTS / least), MOST_SAMPLES)


def _has_floats(lowered: SplitLowered) -> bool:
    """True if a group computes with floats, which other machines add in another order."""
    graphs = [part.graph for part in lowered.parts]
    return any(is_float(value.dtype) for graph in graphs for value in graph.values)


def _require_kind(stage: Stage, made: Any) -> None:
    """Refuses a result of a stage that the next step cannot take."""
    is_right, expected = {
        "model": (callable(made), "a torch.nn.Module"),
        "exported": (is_exported_program(made), "a torch.export.ExportedProgram"),
        "quantize": (
            isinstance(made, Program) or is_exported_program(made),
            "a Program or a torch.export.ExportedProgram",
        ),
        "quantized": (isinstance(made, Program), "a Program"),
        "lowered": (isinstance(made, SplitLowered), "a SplitLowered"),
    }[stage.at]
    if not is_right:
        raise invalid(
            "export_model",
            f"stage '{stage.name}' at '{stage.at}' returned something else",
            expected=f"{expected}, or None for no change",
            got=shown(made),
        )
