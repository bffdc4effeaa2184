"""Quantizes a program of floats on samples: `quantize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic.annotation.config import QConfig
from tosaic.base.options import checked, refusal
from tosaic.base.progress import with_progress
from tosaic.opening.sources import require_use
from tosaic.quantizing.quantized_program import Calibrated, QuantizedProgram
from tosaic.quantizing.sources import Counted, graph_arrays, held_samples, planned_source, require_executor

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tosaic.annotation.plan import Plan
    from tosaic.calibration.accuracy import Tool
    from tosaic.ports.foreign import ForeignOp


@checked
def quantize(
    program: Any,
    samples: Any,
    *,
    target: str | None = None,
    budget: float | None = None,
    least_db: float | None = None,
    config: QConfig | None = None,
    rules: Sequence[Callable[[Plan], Plan | None]] = (),
    tools: Sequence[str | Tool] = (),
    executor: Executor | None = None,
    progress: bool = True,
    bind: Any = None,
    operators: Sequence[ForeignOp] = (),
    trust: bool = False,
) -> QuantizedProgram:
    """Quantizes a program of floats, with qparams that follow from samples. Needs no torch.

    The program runs on tosaic's executor, and each tensor that gets a scale is observed while it is computed.
    `tosaic.Quantizer` plans which tensors are quantized, and with which integers. Batch norms are folded into
    convolutions first.

    Parameters
    ----------
    program : Program, torch.export.ExportedProgram, Graph or path
        A float program, at stage ``exported``.
    samples : tuple, dict, array, path of an npz or npy file, or an iterable of them
        Inputs, as `tosaic.compare` takes them. An iterable, such as a DataLoader, is read once, as a stream.
        A sample may be a stack of samples: arrays with an additional first axis, or with a multiple of the
        program's extent on the first axis. If the program has states, each sample runs twice: from their
        initial values, and from the values that the samples before have left.
    target : str, optional
        The device for which the program is planned, such as ``ethos-u85-256``: `config` is then
        `QConfig.for_target` by default, and the rules of the device come before `rules`. The program runs and
        lowers as any other. None, or a TOSA target: a plan that no device computes slowly; `QConfig.precise`
        rounds fewer values, and costs a device more.
    budget : float, optional
        Cycles of `target` for one run, by tosaic's own model of the device. The program gets the most
        accurate mix of int8 and int16x8 that takes at most these cycles; `QuantizedProgram.mix` says which.
    least_db : float, optional
        The SQNR of the outputs against the program of floats, in dB. The program gets the mix of the fewest
        cycles of `target` that has it on the first samples. With `budget`, the mix must be within the budget.
    config : QConfig, optional
        Which calls are quantized, and how. Not with `budget` or `least_db`. Default: that of `target`, else
        `QConfig.int8`.
    rules : sequence of rule or callable
        Rules of `tosaic.annotation`, which change the plan in this order.
    tools : sequence of str or Tool
        Accuracy tools: ``"equalize"``, ``"smooth"``, ``"gptq"``, ``"bias_correction"``, or objects of
        `tosaic.calibration.accuracy` with options. They work in this order. `QuantizedProgram.gains` and
        the report say what each gained. With tools, all samples are held in memory, since they run several
        times.
    executor : concurrent.futures.Executor, optional
        Runs samples in its threads, processes or machines: a ``ThreadPoolExecutor``, a
        ``ProcessPoolExecutor``, or ``dask.distributed.Client().get_executor()``. The result does not depend
        on it. Workers need tosaic and numpy, and no torch.
    progress : bool
        Show a progress bar, if tqdm is installed and standard error is a terminal or a notebook.
    bind : optional
        Sizes of symbolic dimensions, as in `tosaic.from_exported`.
    operators : sequence of ForeignOp
        Descriptions of operators that tosaic does not have, as in `tosaic.from_exported`.
    trust : bool
        Whether torch may run code that a ``.pt2`` file has, as in `tosaic.open_program`.

    Returns
    -------
    QuantizedProgram
        A program at stage ``quantized``, which can be run, compared, saved and lowered.

    Raises
    ------
    InvalidGraph
        There is no such device; `budget` or `least_db` is given without a device whose cycles tosaic
        estimates, or with `config`; the program is quantized already; a selection of `config` or a rule
        matches nothing; nothing is quantized; there is no sample; or a sample does not fit, or makes
        infinities or NaN in a tensor that gets a scale. Errors of a sample have its index, and the node.
    LayoutMismatch
        An array of a sample has another dtype or shape than its input.
    QuantMismatch
        A symmetric spec has a range of integers without its zero point, or no mix has so few cycles or so
        many dB. The message has the fewest cycles, or the most dB.

    Notes
    -----
    The state of an observer has a fixed size, whatever the number of samples is. Minima, maxima and
    histograms are exact, so the qparams do not depend on the order of samples, on how they are divided into
    stacks, or on the executor. Only moving averages depend on the order of samples.

    A search for a mix (`budget`, `least_db`) runs the first four samples about twice for each contraction,
    which takes minutes for a large network, and holds all samples in memory. It measures without `tools`.
    `tosaic.sensitivity` with ``costs=target`` shows the whole curve of dB over cycles.

    Examples
    --------
    >>> import numpy as np, torch, tosaic
    >>> exported = torch.export.export(torch.nn.Linear(4, 2).eval(), (torch.zeros(1, 4),))
    >>> samples = [(np.random.default_rng(seed).random((1, 4), np.float32),) for seed in range(8)]
    >>> quantized = tosaic.quantize(exported, samples)
    >>> tosaic.lower(quantized, target="TOSA-1.0+INT").io.inputs[0].qparams.dtype
    'i8'
    """
    from tosaic.annotation.device_rules import rules_of
    from tosaic.calibration.accuracy import tools_of
    from tosaic.calibration.draft import Drafting
    from tosaic.calibration.improve import improved
    from tosaic.calibration.insert import quantized_graph
    from tosaic.calibration.plan_program import prepared_graph
    from tosaic.devices.registry import recipe_of
    from tosaic.quantizing.budgets import search_mix, wanted_mix
    from tosaic.quantizing.mix_search import Material

    require_use("quantize", bind, program, operators=operators)
    if not isinstance(target, str | None):
        raise refusal("quantize", "target", "the name of a device or of a TOSA target, or None", target)
    if config is not None and not isinstance(config, QConfig):
        raise refusal("quantize", "config", "a tosaic.QConfig, such as tosaic.QConfig.int8()", config)
    if not isinstance(rules, list | tuple) or not all(map(callable, rules)):
        raise refusal("quantize", "rules", "a sequence of rules of tosaic.annotation or functions", rules)
    require_executor("quantize", executor)
    wanted = wanted_mix(target, config, budget, least_db)
    asked = tools_of(tools)
    recipe = None if target is None else recipe_of("quantize", target)
    if config is None:
        config = QConfig.int8() if recipe is None else QConfig.of_recipe(recipe)
    rules = (*(() if recipe is None else rules_of(recipe.rules)), *rules)
    source, exported = planned_source(program, config, bind, operators, trust)
    mix = None
    if wanted is not None and target is not None:
        material = Material(program, bind, operators, trust, rules, executor=executor, progress=progress)
        samples = held_samples(samples, source)
        mix = search_mix(material, samples, target, wanted)
        config = mix.config
        source, exported = planned_source(program, config, bind, operators, trust)
    graph = prepared_graph(source.snapshot().graph)
    stream = Counted(with_progress(graph_arrays(samples, source), "calibrate", shown=progress))
    if asked:
        kept = [[np.array(each) for each in arrays] for arrays in stream]
        drafting = Drafting(source, config, rules, kept, executor)
        draft, gains = improved(drafting, graph, asked)
    else:
        draft, gains = Drafting(source, config, rules, stream, executor).draft(graph), []
    quantized = quantized_graph(draft.graph())
    calibrated = Calibrated(config, draft, stream.count, tuple(gains), target, mix)
    return QuantizedProgram(quantized, source.signature, calibrated, source, exported, trust=trust)
