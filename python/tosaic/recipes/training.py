"""The stage of quantization-aware training: `qat`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tosaic.base.options import refusal
from tosaic.recipes.stage import Stage


def qat(train: Callable[[Any], object]) -> Stage:
    """Returns a stage that trains a model with quantization in its graph, instead of calibrating it.

    The module is exported in training mode, and gets torchao's fake quantization by the `config` and the
    `rules` of the recipe, and by the rules of devices for the calls that they take. `train` trains it. The
    caller's module is not changed. The check ``trained`` of `tosaic.export_model` compares the quantized
    program with the trained module.

    Parameters
    ----------
    train : callable
        Takes the prepared ``torch.fx.GraphModule``, and trains it in place. Its batch size is that of the
        example inputs.

    Raises
    ------
    InvalidGraph
        `train` is not a function.

    Examples
    --------
    >>> from tosaic import recipes
    >>> trained = recipes.named("tosa-int8").replace(stages=[recipes.qat(print)])
    """
    if not callable(train):
        raise refusal("qat", "train", "a function of the prepared module", train)
    return Stage("qat", "quantize", train_quantized, {"train": train})


def train_quantized(_exported: Any, context: Any, *, train: Callable[[Any], object]) -> Any:
    """The function of the stage; returns the exported program of ``convert_pt2e``."""
    from tosaic.fx.modules import trained_program

    recipe = context.recipe
    program, context.trained = trained_program(
        context.model, context.inputs, recipe.config, context.rules, train
    )
    return program
