"""`export_model`: from a model to files for its targets, in one call."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

from tosaic import _core
from tosaic.base.exported import is_exported_program
from tosaic.base.options import checked, invalid, refusal, shown
from tosaic.base.process import log_shown
from tosaic.base.progress import with_progress
from tosaic.base.writing import require_new_folder
from tosaic.exporting.context import LOG
from tosaic.exporting.result import CheckError, ExportResult
from tosaic.opening.sources import load_exported
from tosaic.partitions.claimant import Claimant
from tosaic.ports.foreign import ForeignOp, operators_by_target
from tosaic.program.program import Program
from tosaic.recipes.combining import merged
from tosaic.recipes.recipe import Recipe, combine

_WHERE = "export_model"


@checked
def export_model(
    model: Any,
    inputs: Any = None,
    *,
    recipe: str | Recipe | Sequence[str | Recipe],
    samples: Any = None,
    folder: str | os.PathLike[str] | None = None,
    quantize: bool = True,
    io: Mapping[str, Any] | None = None,
    orders: Mapping[str, Any] | None = None,
    rgba: Any = None,
    input_specs: Any = None,
    output_specs: Any = None,
    claimants: Sequence[str | Claimant] | None = None,
    strict: bool = False,
    bind: Any = None,
    operators: Sequence[ForeignOp] = (),
    trust: bool = False,
    check_on: Sequence[str] = (),
    check_samples: int = 2,
    check_nodes: bool = False,
    least_db: float | None = None,
    on_failed_check: Literal["error", "report"] = "error",
    name: str = "model",
    verbose: int = 1,
) -> ExportResult:
    """Exports, quantizes, lowers and checks a model, and writes the files for its targets.

    The steps are: export by torch, import, quantization on samples, a partition between the claimants of the
    recipe, lowering of each group, and numerical checks of each step against the one before it.

    Parameters
    ----------
    model : torch.nn.Module, torch.export.ExportedProgram, Program or path of a ``.pt2`` file
        A module is in evaluation mode, unless the recipe trains it. It is not changed.
    inputs : tuple, dict or tensor, optional
        Example inputs of a module: positional arguments, or keyword arguments by name. A pair of a tuple and
        a dict has both. Tensors or numpy arrays.
    recipe : str, Recipe or sequence of these
        The settings: the name of a built-in recipe (`tosaic.recipes.names`), or a `Recipe`. Several recipes
        are combined.
    samples : optional
        The samples for quantization, as `tosaic.quantize` takes them. The checks use the first
        ones. Without samples, the example inputs are the only sample, and the result has a note.
    folder : path, optional
        The folder of the files, see `ExportResult.save`: a folder that does not exist or is empty.
        Without it, nothing is written.
    quantize : bool
        False: the program stays float. The claimants of the recipe have to support floats.
    io, orders, rgba : optional
        As in `Recipe`, for this model. Other entries of the recipe stay.
    input_specs, output_specs : sequence or mapping of specs, optional
        Specs of `tosaic.annotation` for inputs (outputs): one for each, or a mapping by position, path or
        name. None for one of them leaves it float.
    claimants : sequence of str or Claimant, optional
        Replaces the recipe's claimants.
    strict : bool
        The option of ``torch.export.export``.
    bind : optional
        Sizes of symbolic dimensions, as in `tosaic.from_exported`.
    operators : sequence of ForeignOp
        Descriptions of operators that tosaic does not have, as in `tosaic.from_exported`.
    trust : bool
        Whether torch may run code that a ``.pt2`` file has, as in `tosaic.open_program`.
    check_on : sequence of {"reference", "vgf"}
        Where the groups also run: on the TOSA reference model, or on Vulkan. Results have to be equal if no
        group computes with floats, else within 30 dB.
    check_samples : int
        How many samples the checks use.
    check_nodes : bool
        Also compare each group with its nodes before lowering, node by node. For a large network, this takes
        seconds for each sample.
    least_db : float, optional
        The least signal to noise ratio of an output of the lowered program against the model in floats.
        None: the ratio is reported only.
    on_failed_check : {"error", "report"}
        ``"error"`` raises `CheckError` and writes nothing. ``"report"``: see `ExportResult.ok`.
    name : str
        The stem of file names.
    verbose : int
        0: nothing is shown. 1: a progress bar, and remarks as warnings. 2: also a line for each step. 3: also
        remarks of each pass.
        Messages go to Python's `logging`, under ``tosaic``.

    Returns
    -------
    ExportResult
        The artifact of each step, the checks, and the files.

    Raises
    ------
    InvalidGraph
        The model, inputs, samples or an option are wrong, recipes contradict each other, a rule or name
        matches nothing, or a stage of the recipe raises an error.
    UnsupportedOp
        torch cannot export the model, or the model has something that tosaic does not support.
    QuantMismatch
        `io` asks for integers of an input or output that is not quantized.
    LayoutMismatch
        A sample has another dtype or shape than its input.
    CheckError
        A numerical check failed.
    WriteError
        The folder is not empty, or a file cannot be written. Nothing is left of the folder then.
    ImportError
        A tool that the recipe needs is not installed. Nothing was written.

    Examples
    --------
    >>> result = tosaic.export_model(  # doctest: +SKIP
    ...     model, (x,), recipe="ethos-u55", samples=loader, folder="out", io={"inputs": "int8"}
    ... )
    """
    from tosaic.exporting.flow import STEPS, Flow, FlowOptions

    chosen = _recipe(recipe, quantize, io, orders, rgba, claimants)
    options = FlowOptions(
        input_specs,
        output_specs,
        strict,
        bind,
        _check_on(check_on),
        check_samples,
        check_nodes,
        least_db,
        tuple(operators_by_target(_WHERE, operators).values()),
    )
    if least_db is not None and not check_samples:
        raise refusal(_WHERE, "check_samples", "1 or more, for 'least_db'", check_samples)
    stem: Any = name
    if not isinstance(stem, str) or not stem or "/" in stem or stem.startswith("."):
        raise refusal(_WHERE, "name", "the stem of a file name", stem)
    if folder is not None:
        require_new_folder(folder)
    require_tools(chosen)
    source, example = _source(model, inputs, chosen, trust)
    if operators and isinstance(source, Program):
        source = source.with_operators(options.operators)
    flow = Flow(source, example, samples, chosen, options, name)
    with (
        log_shown("tosaic", logging.DEBUG if verbose > 2 else logging.INFO) if verbose > 1 else nullcontext()
    ):
        for _ in with_progress(flow.steps(), "export", total=len(STEPS), shown=verbose > 0, unit="step"):
            pass
        result = flow.result()
        if samples is None and chosen.quantizes:
            text = "quantized on the example inputs alone; pass samples for ranges that hold for others"
            result.notes = (*result.notes, text)
        if not result.ok and on_failed_check == "error":
            raise _failed(result)
        if folder is not None:
            result.save(folder)
    for note in result.notes if verbose else ():
        LOG.warning("%s", note)
    return result


def _recipe(recipe: Any, quantize: bool, io: Any, orders: Any, rgba: Any, claimants: Any) -> Recipe:
    """Returns the recipe with the options of the call.

    Raises
    ------
    InvalidGraph
        There is no such recipe, recipes contradict each other, or no claimant can take nodes.
    """
    given = recipe if isinstance(recipe, list | tuple) else [recipe]
    if not given or not all(isinstance(each, str | Recipe) for each in given):
        expected = "the name of a recipe, a tosaic.Recipe, or a sequence of these"
        raise refusal(_WHERE, "recipe", expected, recipe)
    from tosaic.devices.registry import claimant_names
    from tosaic.recipes.builtin import named

    chosen = [named(each) if isinstance(each, str) else each for each in given]
    made = chosen[0] if len(chosen) == 1 else combine(chosen)
    if claimants is not None:
        made = made.replace(claimants=claimants)
    if not quantize:
        made = made.in_floats()
    if io is not None:
        _require_quantized(made, io)
        made = made.replace(io=merged([made.io, io]))
    if orders is not None:
        if not isinstance(orders, Mapping):
            raise refusal(_WHERE, "orders", "entries 'inputs' and 'outputs'", orders)
        made = made.replace(orders=merged([made.orders, orders]))
    if rgba is not None:
        made = made.replace(rgba=rgba)
    if not made.claimants:
        raise invalid(
            _WHERE,
            f"recipe '{made.name}' has no claimants",
            expected="claimants, such as claimants=['TOSA-1.0+FP']",
        )
    takers = made.takers
    if not made.quantizes and not any(map(_takes_floats, takers)):
        known = (Claimant.named(name) for name in claimant_names())
        example = next(each.name for each in known if each.target and _takes_floats(each))
        raise invalid(
            _WHERE,
            "nothing is quantized, and no claimant takes floats",
            expected=f"a claimant with floats, such as claimants=['TOSA-1.0+FP'] or {example!r}",
            got=", ".join(each.name for each in takers),
        )
    return made


def _takes_floats(claimant: Claimant) -> bool:
    return (claimant.spec is not None and claimant.spec.has_floats) or claimant.kind == "host"


def _require_quantized(recipe: Recipe, io: Any) -> None:
    asked = [
        entry
        for entries in (io.values() if isinstance(io, Mapping) else ())
        for entry in (entries.values() if isinstance(entries, Mapping) else [entries])
    ]
    if not recipe.quantizes and any(entry != "float32" for entry in asked):
        raise invalid(
            _WHERE,
            "'io' asks for integers, and nothing is quantized",
            expected="no 'io', or a recipe that quantizes and quantize=True",
            got=shown(io),
        )


def _check_on(names: Any) -> tuple[str, ...]:
    from tosaic.devices.engines import engine_names

    given = [names] if isinstance(names, str) else names
    if not isinstance(given, list | tuple) or not all(each in engine_names() for each in given):
        raise refusal(_WHERE, "check_on", f"a sequence of {' and '.join(map(repr, engine_names()))}", names)
    return tuple(dict.fromkeys(given))


def require_tools(recipe: Recipe) -> None:
    """Raises ImportError if the compiler of a claimant's device is not installed.

    Raises
    ------
    InvalidGraph
        The compiler does not take the flags of the recipe.
    """
    from tosaic.partitions.payload_kinds import flags_of, kind_of, require_tool

    for claimant in recipe.takers:
        if claimant.target:
            payload = kind_of(claimant, _WHERE)
            require_tool(payload)
            flags_of(payload, claimant, tuple(recipe.flags.get(claimant.name, ())), _WHERE)


def _source(model: Any, inputs: Any, recipe: Recipe, trust: bool) -> tuple[Any, Any]:
    """Returns the model, and example inputs as a pair of a tuple and a dict.

    Raises
    ------
    InvalidGraph
        `model` has an unsupported type, a module is in training mode, or a module has no inputs.
    """
    if isinstance(model, str) or hasattr(model, "__fspath__"):
        model = load_exported(model, trust=trust)
    is_exported = is_exported_program(model)
    if is_exported or isinstance(model, Program):
        example = getattr(model, "example_inputs", None) if is_exported else None
        return model, _arguments(inputs) if inputs is not None else example
    module_like = callable(model) and hasattr(model, "parameters")
    if not module_like:
        expected = "a torch.nn.Module, a torch.export.ExportedProgram, a tosaic.Program or a .pt2 file"
        raise refusal(_WHERE, "model", expected, model)
    if inputs is None:
        raise invalid(_WHERE, "there are no example inputs", expected="inputs=(x,), which torch.export needs")
    from tosaic.fx.modules import example_inputs, is_training

    if is_training(model) and not any(stage.at in ("model", "quantize") for stage in recipe.stages):
        raise invalid(
            _WHERE,
            "the model is in training mode",
            expected="a module in evaluation mode",
            hint="Call model.eval() before",
        )
    return model, example_inputs(_arguments(inputs))


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        if len(inputs) == 2 and isinstance(inputs[0], tuple | list) and isinstance(inputs[1], dict):
            return tuple(inputs[0]), dict(inputs[1])
        return tuple(inputs), {}
    return (inputs,), {}


def _failed(result: ExportResult) -> CheckError:
    wrong = [check for check in result.checks if not check.ok]
    explained = [check.name for check in wrong if check.by_node is not None]
    hint = f"error.result.check('{(explained or [wrong[0].name])[0]}').compare() compares node by node"
    if wrong[0].name in ("states", "stream"):
        hint = "error.result.notes says which numbers leave their integers, and what helps"
    error: CheckError = _core.make_error(
        CheckError,
        where=_WHERE,
        what="a numerical check failed" if len(wrong) == 1 else f"{len(wrong)} numerical checks failed",
        got="; ".join(
            f"{check.name} ({check.what}): {check.db:.1f} dB, {check.differing} of {check.elements} differ"
            for check in wrong
        ),
        hint=hint,
    )
    error.result = result
    return error
