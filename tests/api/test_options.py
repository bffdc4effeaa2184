"""Every option of every public function accepts the documented values and refuses others by our errors."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
import tosaic.cli.demo
import tosaic.fx
import tosaic.lowering.layout
import tosaic.lowering.reference_model
import tosaic.report
import tosaic.testing
from torch import nn
from tosaic.api import calls as api
from tosaic.base.options import OPTIONS, checked
from tosaic.cli import main
from tosaic.opening import sources


class Odd:
    """An object that no option accepts, and whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Name(str, enum.Enum):
    """A string of a subclass of str."""

    X = "no such name"


VALUES: list[Any] = [
    *(None, True, False, np.True_, 0, 1, 3, -1, 10**30, np.int64(2)),
    *(2.5, math.nan, -math.inf, np.float32(1.5), 1j),
    *("", "no such name", "inputs", "a\0b", "\ud800", Name.X, b"bytes"),
    *([], [1], ["x"], (), (1, 2), {}, {"a": 1}, {1: 2}, {None: None}, set(), iter([1]), range(3)),
    *({"inputs": None}, {"inputs": [1]}, {"inputs": "NHWC"}, {"outputs": {"out": object}}),
    *(np.array([1, 2]), np.array("x"), np.zeros((0,)), torch.ones(2)),
    *(object(), Odd(), Exception, print),
]


@dataclass(frozen=True)
class Public:
    """A public function with valid arguments; tests replace these one by one."""

    call: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.call.__module__}.{self.call.__qualname__}"


class Relu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


@pytest.fixture(scope="module")
def publics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Public]:
    folder = tmp_path_factory.mktemp("options")
    exported = torch.export.export(Relu(), (torch.ones(2),))
    program = tosaic.from_exported(exported)
    lowered = tosaic.lower(program)
    program.save(folder / "program")
    lowered.save(folder / "program.tosa")
    tosaic.lower(exported, unsupported="split", claimants=["TOSA-1.0+FP"]).save(folder / "split")
    torch.export.save(exported, folder / "program.pt2")
    comparison = tosaic.compare(exported, lowered, (torch.ones(2),))
    x = {"samples": (np.ones(2, np.float32),)}
    module = exported.module(check_guards=False)
    linear = torch.export.export(nn.Linear(2, 2), (torch.ones(2),))
    sensitivity = tosaic.sensitivity(linear, **x, progress=False)
    quantized = tosaic.quantize(linear, **x, progress=False)
    profile = lowered.prepare().profile(np.ones(2, np.float32), runs=1)
    every = [
        Public(tosaic.from_exported, {"ep": exported}),
        Public(tosaic.program.from_graph, {"graph": program.graph}),
        Public(tosaic.lower, {"program": exported}),
        Public(tosaic.partition, {"program": exported, "claimants": ["TOSA-1.0+FP"]}),
        Public(tosaic.check, {"program": exported}),
        Public(tosaic.compare, {"a": exported, "b": lowered, **x}),
        Public(tosaic.extract_io_quant, {"program": exported}),
        Public(tosaic.quantize, {"program": linear, **x}),
        Public(tosaic.sensitivity, {"program": linear, **x}),
        Public(
            tosaic.device_cost,
            {"program": tosaic.lower(quantized, target="TOSA-1.0+INT"), "device": "ethos-u85-256"},
        ),
        Public(sensitivity.mix, {"most_cost": 1.0}),
        Public(sensitivity.plot),
        Public(quantized.to_exported),
        Public(tosaic.load, {"path": folder / "program"}),
        Public(tosaic.partitions.load_split, {"path": folder / "split"}),
        Public(tosaic.load_tosa, {"path": folder / "program.tosa"}),
        Public(api.open_program, {"path": folder / "program.tosa"}),
        Public(sources.load_exported, {"path": folder / "program.pt2"}),
        Public(sources.program_of, {"source": exported}),
        Public(tosaic.Program, {"graph": program.graph}),
        Public(profile.by, {"what": "operator"}),
        Public(profile.peak_share, {"step": profile.steps[0]}),
        Public(profile.save, {"path": folder / "profile.json"}),
        Public(lowered.profile.save, {"path": folder / "lowering.json"}),
        Public(program.save, {"path": folder / "again"}),
        Public(program.with_overrides, {"functions": {"relu": np.abs}}),
        Public(program.with_operators, {"operators": ()}),
        Public(program.prepare),
        Public(program.plan_memory),
        Public(lowered.plan_memory),
        Public(program.plan_memory().to_csv, {"path": folder / "plan.csv"}),
        Public(program.plan_memory().to_json, {"path": folder / "plan.json"}),
        Public(tosaic.Pipeline.default),
        Public(lowered.save, {"path": folder / "again.tosa"}),
        Public(lowered.to_bytes),
        Public(lowered.file_size),
        Public(lowered.at, {"stage": "tosa"}),
        Public(lowered.report().save, {"path": folder / "report"}),
        Public(comparison.worst_rows),
        Public(tosaic.fx.from_exported, {"ep": exported}),
        Public(tosaic.fx.apply_layout, {"ep": exported}),
        Public(tosaic.fx.read_annotations, {"model": module}),
        Public(tosaic.wrap_quantizer, {"inner": tosaic.fx.compose_quantizers([]), "rules": []}),
        Public(tosaic.fx.compose_quantizers, {"quantizers": []}),
        Public(tosaic.fx.fold_norms, {"model": module}),
        Public(tosaic.lowering.layout.layout_of, {"graph": program.graph}),
        Public(tosaic.testing.assert_matches, {"actual": lowered, "expected": exported, **x}),
        Public(tosaic.testing.assert_lowers, {"program": exported}),
        Public(
            tosaic.lowering.run_reference_model,
            {"lowered": lowered, "x": np.ones(2, np.float32)},
        ),
    ]
    return {public.name: public for public in every}


# What an accepted value has to be. This is stated independently of the table of options, which is tested.
def is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def is_number(value: Any) -> bool:
    real = isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
    return real and not math.isnan(value)


def is_whole(value: Any) -> bool:
    return is_number(value) and not isinstance(value, float | np.floating)


def is_path(value: Any) -> bool:
    return isinstance(value, str | Path) and "\0" not in str(value) and str(value) != ""


def is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and not value)


def is_size_or_example(value: Any) -> bool:
    """The program has one static dimension, so `bind` may be empty or an example."""
    return is_empty(value) or isinstance(value, torch.Tensor | np.ndarray)


def is_no_port(value: Any) -> bool:
    return is_empty(value) or (isinstance(value, list | tuple | set) and not value)


ACCEPTABLE: dict[str, Callable[[Any], bool]] = {
    "alignment": lambda value: is_whole(value) and int(value) in [1 << i for i in range(21)],
    "arenas": is_empty,
    "memories": lambda value: is_empty(value) or (isinstance(value, dict) and value == {"inputs": None}),
    "plan_inputs": is_flag,
    "plan_outputs": is_flag,
    "scratch": is_flag,
    "author": lambda value: isinstance(value, str),
    "claimants": lambda value: value is None,
    "connected": is_flag,
    "device": lambda value: False,  # a device with estimates: none of the values
    "flags": lambda value: isinstance(value, list | tuple) and not value,
    "memory_mode": lambda value: value is None,
    "system_config": lambda value: value is None,
    "conflict": lambda value: isinstance(value, str) and value in ("first", "last", "error"),
    "in_place": is_flag,
    "inner": lambda value: False,
    "inputs": is_no_port,
    "outputs": is_no_port,
    "sidecar": is_flag,
    "model": lambda value: False,
    "name": lambda value: value is None or (isinstance(value, str) and value != ""),
    "quantizers": lambda value: isinstance(value, list | tuple) and not value,
    "rules": lambda value: isinstance(value, list | tuple) and not value,
    "tools": lambda value: isinstance(value, list | tuple) and not value,
    "executor": lambda value: value is None,
    "exported": lambda value: value is None,
    "levels": lambda value: False,
    "measured_on": lambda value: is_whole(value) and value >= 1,
    "most_cost": lambda value: is_number(value) and value >= 1,
    "most_cycles": lambda value: value is None,
    "budget": lambda value: value is None,  # there is no device
    "points": lambda value: is_whole(value) and value >= 0,
    "progress": is_flag,
    "least_db": lambda value: value is None or is_number(value),
    "operators": lambda value: value is None or (isinstance(value, list | tuple | range) and not value),
    "pipeline": lambda value: value is None,
    "pipelines": lambda value: value is None,
    "bind": is_size_or_example,
    "config": lambda value: value is None,
    "costs": is_empty,
    "count": lambda value: is_number(value) and int(value) == value >= 0 and not isinstance(value, float),
    "diagnostics": lambda value: isinstance(value, tuple | list) and not value,
    "dump": lambda value: value is None or is_path(value),
    "functions": lambda value: isinstance(value, dict) and not value,
    "graph": lambda value: isinstance(value, tosaic.program.Graph),
    "grids": lambda value: isinstance(value, tuple | list) and not value,
    "io": is_empty,
    "level": lambda value: isinstance(value, str) and value in ("EIGHTK", "NONE"),
    "local": is_flag,
    "locations": is_flag,
    "max_abs": lambda value: value is None or is_number(value),
    "max_ulp": lambda value: value is None or is_number(value),
    "method": lambda value: isinstance(value, str),
    "mode": lambda value: isinstance(value, str) and value in ("annotate", "convert"),
    "models": lambda value: is_empty(value) or callable(value),
    "nodes": is_flag,
    "on": lambda value: isinstance(value, str) and value in ("tosaic", "reference"),
    "objective": callable,
    "orders": lambda value: is_empty(value) or (isinstance(value, dict) and value == {"inputs": None}),
    "out": is_path,
    "path": is_path,
    "samples": lambda value: (
        isinstance(value, torch.Tensor | np.ndarray | tuple | list | dict | range)
        or hasattr(value, "__next__")
    ),
    "signature": lambda value: value is None,
    "sqnr_db": lambda value: value is None or is_number(value),
    "symbolic": is_flag,
    "stage": lambda value: isinstance(value, str),
    "step": lambda value: False,
    "what": lambda value: False,
    "target": lambda value: value is None or isinstance(value, str),
    "threshold_db": is_number,
    "threads": lambda value: is_number(value) and value >= 1 and not isinstance(value, float | np.floating),
    "unsupported": lambda value: isinstance(value, str) and value in ("error", "split"),
    "trust": is_flag,
    "verify": is_flag,
    "weights": is_flag,
    "write_back": is_flag,
}
PROGRAMS = {"ep", "program", "a", "b", "source", "actual", "expected", "lowered"}


def public_functions() -> Iterator[str]:
    """Yields dotted names of functions and methods in `__all__` of `tosaic` and of its public modules."""
    modules = [
        tosaic,
        tosaic.fx,
        tosaic.lowering,
        tosaic.lowering.layout,
        tosaic.lowering.reference_model,
        tosaic.memory,
        tosaic.partitions,
        tosaic.ports,
        tosaic.profiling,
        tosaic.program,
        tosaic.pte,
        tosaic.quantizing,
        tosaic.registration,
        tosaic.report,
        tosaic.testing,
        tosaic.cli.demo,
    ]
    seen = set()
    for module in modules:
        for name in module.__all__:
            found = getattr(module, name)
            members = vars(found).values() if inspect.isclass(found) else [found]
            for member in members:
                function = inspect.unwrap(member) if callable(member) else None
                if isinstance(function, FunctionType) and not function.__name__.startswith("_"):
                    seen.add(f"{function.__module__}.{function.__qualname__}")
    yield from sorted(seen)


# Functions without options of their own: they accept results of this package, calls, or one structure.
WITHOUT_OPTIONS = {
    "tosaic.program.runnable.Runnable",
    "tosaic.program.program.Program.of_import",  # these three are called by the package alone
    "tosaic.program.program.Program.set_graph",
    "tosaic.program.program.Program.with_graph",
    "tosaic.program.models.NodeCall",  # these three: tests/api/test_models.py
    "tosaic.program.models.GraphCall",
    "tosaic.program.prepared.Prepared",
    "tosaic.lowering.layout.objective_of",  # returns its argument, which the core checks
    "tosaic.lowering.reference_model.from_file",
    "tosaic.lowering.reference_model.to_file",
    "tosaic.report.annotation.describe_annotation",
    "tosaic.report.bars.bar_chart",  # tests/api/test_report.py
    "tosaic.cli.demo.run_demo",  # trains a network; tested below
    "tosaic.quantizing.explanation.explain_quantization",  # tests/api/test_explain_quantization.py
    "tosaic.ports.io_quant.IoQuant",  # tests/fx/test_io_quant.py
    "tosaic.lowering.pipeline.Pass",  # these three: tests/api/test_pipelines.py
    "tosaic.lowering.pipeline.Pipeline",
    "tosaic.lowering.rewriter.Rewriter",
    "tosaic.partitions.claimant.Claimant",  # these: tests/partitions
    "tosaic.partitions.plan.PartitionPlan",
    "tosaic.partitions.split_lowered.SplitLowered",
    "tosaic.memory.plan.MemoryPlan",  # tests/memory
    "tosaic.pte.file.PteFile",  # these four: tests/pte
    "tosaic.pte.file.PteMethod",
    "tosaic.pte.file.load_pte",
    "tosaic.pte.save.save_pte",
    "tosaic.exporting.call.export_model",  # these: tests/exporting
    "tosaic.exporting.checks.StageCheck",
    "tosaic.exporting.result.ExportResult",
    "tosaic.exporting.scenario.Scenario",
    "tosaic.exporting.scenario.load_scenario",
    "tosaic.recipes.recipe.Recipe",
    "tosaic.pte.kernel_names.KernelList",  # these: tests/registration
    "tosaic.pte.kernel_names.Kernel",
    "tosaic.registration.listing.kernel_list",
    "tosaic.lowering.samplers.custom_samplers",  # these three: tests/grid_sampler
    "tosaic.lowering.samplers.rgba",
    "tosaic.lowering.samplers.rgba_pass",
    "tosaic.annotation.config.QConfig",  # these two: tests/fx/quantizer/test_quantizer.py
    "tosaic.fx.quantizer.quantizer.Quantizer",
}


def test_every_public_function_is_tested_here(publics) -> None:
    missing = []
    for name in public_functions():
        owner = name.rpartition(".")[0]
        is_report = name.startswith("tosaic.report.") and ".describe" in name
        if is_report or name in WITHOUT_OPTIONS or owner in WITHOUT_OPTIONS or name in publics:
            continue
        function: Any = tosaic
        for part in name.split(".")[1:]:
            function = getattr(function, part)
        options = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        if owner in (
            "tosaic.ports.signature.Signature",
            "tosaic.ports.signature.Tree",
            "tosaic.base.quantization.QParams",
        ):
            continue  # structures: their functions accept values and arrays
        if options and not name.endswith((".of", ".from_parts", ".worst_of")):
            missing.append(name)
    assert missing == []


def test_every_option_is_in_the_table_or_checked_by_its_reader(publics) -> None:
    elsewhere = {"inner", "inputs", "outputs", "model", "name", "quantizers", "rules"}
    elsewhere |= {"arenas", "claimants", "config", "costs", "executor", "exported", "levels", "tools"}
    elsewhere.add("memories")
    elsewhere |= {
        "bind",
        "flags",
        "mode",
        "objective",
        "operators",
        "orders",
        "pipeline",
        "pipelines",
        "samples",
        "step",
        "what",
        *PROGRAMS,
    }
    for public in publics.values():
        for name, parameter in inspect.signature(public.call).parameters.items():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                assert (name in OPTIONS) != (name in elsewhere), (public.name, name)
                assert name in ACCEPTABLE or name in PROGRAMS, name


def options_of(public: Public) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(public.call).parameters.values() if p.kind in kinds]


@pytest.mark.filterwarnings("ignore")
def test_values_of_any_type_are_accepted_correctly_or_refused_by_our_errors(
    publics, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong: list[str] = []
    count = 0
    for public in publics.values():
        for name in options_of(public):
            for value in VALUES:
                value = iter([1]) if hasattr(value, "__next__") else value
                count += 1
                call = f"{public.name}({name}={type(value).__name__}: {_text(value)})"
                try:
                    public.call(**{**public.arguments, name: value})
                except (tosaic.InternalError, AssertionError) as error:
                    if not isinstance(error, tosaic.testing.MismatchError):
                        raise
                except (tosaic.Error, FileNotFoundError) as error:
                    if len(str(error)) > 1500:
                        wrong.append(f"{call}: a message of {len(str(error))} letters")
                except Exception as error:
                    wrong.append(f"{call}: {error!r:.300}")
                else:
                    if name in PROGRAMS or not ACCEPTABLE[name](value):
                        wrong.append(f"{call} is taken")
    assert not wrong, "\n".join(wrong)
    assert count > 2500


def _text(value: Any) -> str:
    try:
        return repr(value)
    except RuntimeError:
        return "Odd"


# ---- bind ----


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        (
            {0: {0: 2.9}},
            "axis 0 of input 'input' is bound to no size: expected a whole number, 0 or more, got 2.9",
        ),
        ({"input": {0: True}}, "axis 0 of input 'input' is bound to no size.*got True"),
        ({"input": {0: None}}, "is bound to no size.*got None"),
        ({"input": {0: "2"}}, "is bound to no size.*got '2'"),
        ({"input": {0: np.float64(2)}}, r"is bound to no size.*got np.float64\(2.0\)"),
        ({"input": {0: -1}}, "is bound to no size.*got -1"),
        ({"input": {0: np.array([2])}}, "is bound to no size"),
        ({"input": {0.0: 2}}, "input 'input' has no such axis: expected an axis of its 2, got 0.0"),
        ({"input": {True: 2}}, "input 'input' has no such axis.*got True"),
        ({"input": {"0": 2}}, "input 'input' has no such axis.*got '0'"),
        (
            {"input": {0: 10**30}},
            "bound to no size: expected a whole number of at most 9223372036854775807, got",
        ),
        ({"input": {0: 2**63}}, "is bound to no size.*got 9223372036854775808"),
        ({True: {0: 2}}, "no such input.*got True"),
        ({None: {0: 2}}, "no such input.*got None"),
        (
            {"input": 2},
            "the example of input 'input' is no array: expected an array or tensor, or sizes by axis",
        ),
        (7, "the example of input 'input' is no array.*got 7"),
        ("input:0=2", "the example of input 'input' is no array.*got 'input:0=2'"),
        (np.ones(4), "the example of input 'input' has another rank: expected 2, got 1"),
    ],
)
def test_invalid_sizes_are_refused(dynamic, bind: Any, message: str) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=rf"\[bind\] .*{message}"):
        tosaic.from_exported(dynamic, bind=bind)


@pytest.mark.parametrize(
    "bind",
    [
        {0: {0: 2}},
        {"input": {np.int64(0): np.int32(2)}},
        {np.int64(0): {-2: np.uint8(2)}},
        {"input": np.ones((2, 4))},
        (torch.ones(2, 4),),
        torch.ones(2, 4),
        ((torch.ones(2, 4),), {}),
    ],
)
def test_sizes_in_every_form_are_accepted(dynamic, bind: Any) -> None:
    assert tosaic.from_exported(dynamic, bind=bind).inputs[0].shape == (2, 4)


def test_bind_is_refused_for_a_program_without_symbolic_dimensions(dynamic, tmp_path) -> None:
    bind = {"input": {0: 2}}
    program = tosaic.from_exported(dynamic, bind=bind)
    lowered = tosaic.lower(program)
    program.save(tmp_path / "program")
    lowered.save(tmp_path / "program.tosa")
    split = tosaic.lower(program, unsupported="split", claimants=["TOSA-1.0+FP"])
    split.save(tmp_path / "program.pte")
    nothing = (
        r"'bind' has nothing to bind: expected a torch.export.ExportedProgram or a .pt2 file.*got {}\. Give"
    )
    for bound, kind in (
        (program, "Program"),
        (lowered, "Lowered"),
        (program.graph, "Graph"),
        (split, "SplitLowered"),
        (tosaic.load_pte(tmp_path / "program.pte"), "PteFile"),
        (str(tmp_path / "program"), ".*program"),
        (tmp_path / "program.tosa", "PosixPath"),
    ):
        for function in (tosaic.lower, tosaic.check, tosaic.testing.assert_lowers):
            with pytest.raises(tosaic.InvalidGraph, match=nothing.format(kind)):
                function(bound, bind={"input": {0: 3}})
    sample = (np.ones((2, 4), np.float32),)
    with pytest.raises(tosaic.InvalidGraph, match=nothing.format("Program and Lowered")):
        tosaic.compare(program, lowered, sample, bind=bind)
    assert tosaic.compare(dynamic, lowered, sample, bind=bind).ok
    assert tosaic.compare(program, dynamic, sample, bind=bind).ok


# ---- others ----


def test_numpy_numbers_become_python_numbers(publics) -> None:
    compare = publics["tosaic.api.calls.compare"]
    result = compare.call(**compare.arguments, threshold_db=np.float32(12.5), local=np.True_)
    assert type(result.threshold_db) is float
    assert '"threshold_db": 12.5' in result.report().json


@pytest.mark.parametrize("value", [10**400, -(10**400), Fraction(10**400)], ids=["large", "low", "fraction"])
def test_numbers_beyond_any_float_are_refused_as_such(publics, value: Any) -> None:
    for name, option in (
        ("tosaic.api.calls.compare", "threshold_db"),
        ("tosaic.testing.matching.assert_matches", "max_abs"),
        ("tosaic.testing.matching.assert_matches", "max_ulp"),
    ):
        public = publics[name]
        with pytest.raises(
            tosaic.InvalidGraph, match=f"of '{option}': expected a number.* that a float can hold"
        ):
            public.call(**{**public.arguments, option: value})


def test_sizes_that_are_computed_from_bound_ones_have_to_fit_64_bits() -> None:
    n = torch.export.Dim("n", min=2)
    ep = torch.export.export(
        torch.nn.ReLU(), (torch.ones(8, 4),), dynamic_shapes={"input": {0: 4 * n}}, strict=False
    )
    assert tosaic.from_exported(ep, bind={"input": {0: 12}}).inputs[0].shape == (12, 4)

    class Repeated(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x, x, x]) + 1

    ep = torch.export.export(Repeated(), (torch.ones(4),), dynamic_shapes={"x": {0: n}})
    with pytest.raises(tosaic.InvalidGraph):
        tosaic.from_exported(ep, bind={"x": {0: 2**62}})


def test_messages_say_option_expectation_and_value(publics) -> None:
    lower = publics["tosaic.api.calls.lower"]
    for option, value, text in (
        (
            "target",
            3,
            "[lower] unknown value of 'target': expected a string such as 'TOSA-1.0+INT', or None, got 3",
        ),
        (
            "io",
            "int8",
            "[lower] unknown value of 'io': expected entries 'inputs' and 'outputs', each one of ",
        ),
        ("verify", "no", "[lower] unknown value of 'verify': expected True or False, got 'no'"),
        ("dump", 3, "[lower] unknown value of 'dump': expected the path of a folder, or None, got 3"),
    ):
        with pytest.raises(tosaic.InvalidGraph) as error:
            lower.call(**lower.arguments, **{option: value})
        assert str(error.value).startswith(text)
    with pytest.raises(tosaic.InvalidGraph, match="of 'threshold_db': expected a number, got None"):
        tosaic.compare(None, None, None, threshold_db=None)
    with pytest.raises(
        tosaic.InvalidGraph, match=r"'stage': expected one of 'imported', .*'tosa', got 'tosca'"
    ):
        tosaic.lower(**lower.arguments).at("tosca")
    with pytest.raises(tosaic.InvalidGraph, match=r"^\[run_demo\] unknown value of 'out': expected a path"):
        tosaic.cli.demo.run_demo(None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("compare", "model.pt2", "model.tosa", "--input", "x.npz", "--threshold", "nan"),
            "expected a number, got nan",
        ),
        (("lower", "model.pt2", "--target", ""), "[target] unknown target"),
        (("lower", "."), "[open] '.' is a folder: expected the path of a file"),
        (("run", "model.tosa", "--input", ".", "-o", "y.npz"), "is a folder: expected the path of a file"),
        (
            ("lower", "model.pt2", "--bind", "x:0=2", "--bind", "x:0=3"),
            "[--bind] axis 0 of 'x' is given twice",
        ),
        (("lower", "model.pt2", "--bind", "x:0=3"), "axis 0 of input 'x' is static: expected 2, got 3"),
        (("check", "model.tosaic", "--bind", "x:0=2"), "[check] 'bind' has nothing to bind"),
        (("diff", "model.tosaic", "model.tosa", "--bind", "x:0=2"), "[diff] 'bind' has nothing to bind"),
        (("run", "model.tosa", "--input", "x.npz", "-o", "y.npz", "--bind", "x:0=2"), "nothing to bind"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_option_of_a_command_is_a_usage_error(files, capsys, argv, message: str) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_file_whose_name_is_not_utf_8_is_named_in_escapes(files) -> None:
    name = b"net\xff.tosaic".decode("utf-8", "surrogateescape")
    Path("model.tosaic").rename(name)
    assert tosaic.load(name).stage == "exported"
    Path(name).write_bytes(b"PK")
    with pytest.raises(tosaic.InvalidGraph, match=r"'net\\udcff.tosaic' cannot be read"):
        tosaic.load(name)
    tosaic.lower("model.pt2").save(name)
    assert tosaic.load_tosa(name).stage == "tosa"


def test_arguments_named_like_options_are_not_checked_as_options() -> None:
    @checked
    def call(program: object, *args: object, level: str = "EIGHTK", **kwargs: object) -> object:
        return args, level, kwargs

    assert call("program", 1, 2.5, target=3, path=None) == ((1, 2.5), "EIGHTK", {"target": 3, "path": None})
    with pytest.raises(tosaic.InvalidGraph, match="unknown value of 'level'"):
        call("program", level=3)
