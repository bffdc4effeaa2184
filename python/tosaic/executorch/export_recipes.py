"""`export_recipe`: converts a recipe of tosaic to an `ExportRecipe` of ExecuTorch.

::

    config, rules         QuantizationRecipe: tosaic.Quantizer, with the rules around it
    stages at exported    aten_transform_passes
    claimants, flags      partitioners: a TosaicPartitioner for each
    orders                edge_transform_passes: layout_pass
    io                    quantize and dequantize nodes of these inputs and outputs stay outside of delegates
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tosaic.base.options import checked, invalid, is_mapping, unsupported
from tosaic.partitions.payload_kinds import is_kernels

if TYPE_CHECKING:
    from tosaic.recipes.recipe import Recipe

_WHERE = "export_recipe"
_SAMPLER = "grid_sampler_2d"


@checked
def export_recipe(recipe: Recipe) -> Any:
    """Returns a recipe of ExecuTorch's `executorch.export` that does what a recipe of tosaic says.

    Parameters
    ----------
    recipe : Recipe

    Returns
    -------
    executorch.export.ExportRecipe

    Raises
    ------
    UnsupportedOp
        The recipe has entries that ExecuTorch's recipes cannot express. The message lists all of them:
        accuracy tools, four channels, the order ``nhwc``, changes of passes, stages at other points than
        ``exported``, and claimants that do not read TOSA. The claimant ``grid-sampler`` is allowed: its
        samplers stay on the host.
    InvalidGraph
        `recipe` is not a recipe.

    Notes
    -----
    ExecuTorch quantizes with torchao, on the session's example inputs. `io` only decides which quantize and
    dequantize nodes stay outside of delegates; `tosaic.extract_io_quant` of the lowered program removes them.
    The stage ``kernels`` is left out: `tosaic.registration.kernel_list` makes the list from the
    file.

    Examples
    --------
    >>> from executorch.export import export  # doctest: +SKIP
    >>> recipe = tosaic.executorch.export_recipe(tosaic.recipes.named("tosa-int8"))  # doctest: +SKIP
    >>> export(model, [(x,)], recipe).get_pte_buffer()  # doctest: +SKIP
    """
    from executorch.exir import EdgeCompileConfig
    from executorch.export import ExportRecipe
    from executorch.export.recipe import LoweringRecipe, QuantizationRecipe

    from tosaic.executorch.delegates.tosaic_partitioner import TosaicPartitioner
    from tosaic.executorch.wrapping.partitioners import layout_pass
    from tosaic.fx.quantizer.quantizer import Quantizer
    from tosaic.fx.quantizer.wrapper import WrappedQuantizer
    from tosaic.recipes.recipe import Recipe

    if not isinstance(recipe, Recipe):
        raise invalid(_WHERE, "'recipe' is no recipe", expected="a tosaic.Recipe")
    _require_places(recipe)
    quantization = None
    if recipe.config is not None:
        quantizer: Any = Quantizer(recipe.config)
        if recipe.rules:
            quantizer = WrappedQuantizer(quantizer, tuple(recipe.rules), None)
        quantization = QuantizationRecipe(quantizers=[quantizer])
    host_ops = [_SAMPLER] if any(map(is_kernels, recipe.takers)) else []
    partitioners = [
        TosaicPartitioner(
            taker,
            quantized_inputs=_integers(recipe.io.get("inputs")),
            quantized_outputs=_integers(recipe.io.get("outputs")),
            host_ops=host_ops,
            flags=tuple(recipe.flags.get(taker.name, ())),
        )
        for taker in recipe.takers
        if not is_kernels(taker)
    ]
    passes = [lambda _name, _program: [layout_pass(orders=recipe.orders)]] if recipe.orders else None
    return ExportRecipe(
        name=recipe.name,
        quantization_recipe=quantization,
        aten_transform_passes=[_transform(stage, recipe) for stage in recipe.at("exported")] or None,
        lowering_recipe=LoweringRecipe(
            partitioners=partitioners,
            edge_transform_passes=passes,
            edge_compile_config=EdgeCompileConfig(_check_ir_validity=False),
        ),
        strict=False,
    )


def _transform(stage: Any, recipe: Recipe) -> Any:
    from tosaic.exporting.context import ExportContext

    return lambda _name, program: stage.run(program, ExportContext(recipe, exported=program))


def _require_places(recipe: Recipe) -> None:
    from tosaic.recipes.kernels import register_kernels

    without: list[str] = []
    if recipe.tools:
        without.append("accuracy tools")
    if recipe.rgba is not None:
        without.append("rgba")
    if recipe.passes:
        without.append("changes of passes")
    if recipe.objective not in (None, "bytes"):
        without.append(f"objective '{recipe.objective}'")
    without += [
        f"order 'nhwc' of the {side}: tensors of ExecuTorch have their logical shape"
        for side, orders in recipe.orders.items()
        if "nhwc" in (orders.values() if is_mapping(orders) else (orders,))
    ]
    stages = [
        each for each in recipe.stages if each.at != "exported" and each.function is not register_kernels
    ]
    without += [f"stage '{each.name}' at '{each.at}'" for each in stages]
    without += [
        f"claimant '{each.name}', which does not read TOSA"
        for each in recipe.takers
        if not each.target and not is_kernels(each)
    ]
    if without:
        raise unsupported(
            _WHERE,
            f"recipe '{recipe.name}' has what ExecuTorch's recipes have no place for",
            got=", ".join(without),
            hint="recipe.replace(...) leaves it out; tosaic.export_model does it",
        )


def _integers(entries: Any) -> Sequence[str | int] | str | None:
    """Returns the ports that become integers, whose quantize nodes stay outside."""
    if entries is None or entries == "float32":
        return None
    if isinstance(entries, Mapping):
        return [key for key, wanted in entries.items() if wanted != "float32"] or None
    return "all"
