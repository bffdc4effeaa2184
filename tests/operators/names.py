"""The operator names to cover, by section, and the overloads that torch has of them.

The list has the plain names of operators. `overloads` asks torch for the overloads of each: those with a
tensor among arguments or results (or without results, like assertions) that do not write to an operand. If a
new version of torch adds an overload to a listed name, a test fails until the table has a row for it.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torchao.quantization  # noqa: F401  (registers torchao)

__all__ = ["SECTIONS", "Overload", "overload", "overloads", "section_of"]

Overload = torch._ops.OpOverload

SECTIONS: dict[str, str] = {
    "contraction": """
        conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d
        linear addmm mm bmm baddbmm matmul einsum scaled_dot_product_attention""",
    "elementwise, unary": """
        abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp expm1 floor log log10 log1p
        log2 neg
        reciprocal round rsqrt sqrt sigmoid sign sin sinh square tan tanh trunc relu relu6 hardtanh leaky_relu
        elu celu selu gelu silu mish softplus hardsigmoid hardswish logit clamp clamp_min clamp_max
        logical_not bitwise_not isnan isinf nan_to_num""",
    "elementwise, binary and ternary": """
        add sub rsub mul div floor_divide remainder fmod pow maximum minimum atan2 hypot eq ne lt le
        gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift
        bitwise_right_shift __lshift__ __rshift__ where masked_fill lerp addcmul addcdiv prelu glu gcd lcm""",
    "reduction": """
        sum mean amax amin max min argmax argmin prod var std var_mean std_mean any all cumsum logsumexp
        linalg_vector_norm norm""",
    "order and counts": """
        sort argsort topk msort kthvalue median nanmedian mode quantile nanquantile cummax cummin searchsorted
        bucketize histc""",
    "normalisation and softmax": """
        batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training layer_norm
        native_layer_norm group_norm native_group_norm instance_norm rms_norm _weight_norm softmax _softmax
        _safe_softmax log_softmax _log_softmax""",
    "pooling and resampling": """
        avg_pool1d avg_pool2d max_pool1d max_pool2d max_pool1d_with_indices max_pool2d_with_indices
        adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest1d
        upsample_nearest2d upsample_bilinear2d pixel_shuffle pixel_unshuffle grid_sampler grid_sampler_2d
        affine_grid_generator _upsample_bilinear2d_aa _upsample_bicubic2d_aa""",
    "shape and data movement": """
        view reshape _unsafe_view flatten unflatten squeeze unsqueeze permute transpose t movedim contiguous
        clone to _to_copy expand repeat repeat_interleave cat stack split split_with_sizes chunk unbind select
        slice narrow slice_scatter select_scatter flip roll pad constant_pad_nd reflection_pad1d
        reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d _pad_circular
        gather index_select index index_put put masked_scatter scatter scatter_add
        scatter_reduce index_add index_reduce embedding unfold im2col as_strided tril triu diagonal
        dim_order_ops::_clone_dim_order dim_order_ops::_to_dim_order_copy""",
    "creation": """
        arange full full_like zeros ones eye linspace scalar_tensor zeros_like ones_like new_zeros new_ones
        new_full one_hot""",
    "recurrent": "lstm gru rnn_tanh rnn_relu",
    "control flow": "higher_order::cond higher_order::while_loop",
    "quantization": """
        quantized_decomposed::quantize_per_tensor quantized_decomposed::dequantize_per_tensor
        quantized_decomposed::quantize_per_channel quantized_decomposed::dequantize_per_channel
        quantized_decomposed::choose_qparams quantized_decomposed::choose_qparams_symmetric
        torchao::quantize_affine torchao::dequantize_affine torchao::choose_qparams_affine
        fake_quantize_per_tensor_affine fake_quantize_per_channel_affine""",
    "no-ops": """
        dropout alias detach lift_fresh_copy _assert_async _assert_tensor_metadata _assert_scalar sym_size""",
}

# Operators with one overload each that torch does not register in its operator table.
_CALLABLES = {
    "higher_order::cond": torch.ops.higher_order.cond,
    "higher_order::while_loop": torch.ops.higher_order.while_loop,
}


@cache
def overloads() -> dict[str, str]:
    """Returns every overload to cover, with its section. The suffix ``.default`` is omitted from names."""
    found: dict[str, str] = {}
    for section, names in SECTIONS.items():
        for name in names.split():
            found |= dict.fromkeys(_overloads_of(name), section)
    return found


def section_of(name: str) -> str:
    """Returns the section of an overload."""
    return overloads()[name]


def overload(name: str) -> Overload:
    """Returns torch's operator of this name."""
    if name in _CALLABLES:
        return _CALLABLES[name]
    space, _, rest = name.rpartition("::")
    packet, _, which = rest.partition(".")
    if space == "dim_order_ops":
        _register_dim_order_ops()
    return getattr(getattr(getattr(torch.ops, space or "aten"), packet), which or "default")


def _overloads_of(name: str) -> list[str]:
    if name in _CALLABLES:
        return [name]
    space, _, rest = name.rpartition("::")
    if space == "dim_order_ops":
        _register_dim_order_ops()
    packet = getattr(getattr(torch.ops, space or "aten"), rest, None)
    if packet is None:
        return []  # this version of torch does not have the operator
    kept = [o for o in packet.overloads() if is_tensor_function(getattr(packet, o))]
    return [name if o == "default" else f"{name}.{o}" for o in kept]


def _register_dim_order_ops() -> None:
    import executorch.exir.passes.dim_order_ops_registry  # noqa: F401


def is_tensor_function(function: Overload) -> bool:
    """Returns whether an overload is to be covered.

    The result is False for overloads that write to an operand, for those without tensors, and for those that
    only TorchScript has (of scalars, strings, lists).
    """
    schema = function._schema
    types = [argument.type for argument in schema.arguments]
    texts = [str(t) for t in types] + [str(r.type) for r in schema.returns]
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    scripted = function._overloadname.startswith("prim_") or function._overloadname.endswith("hacked_twin")
    generic = any(text in ("List[t]", "t", "str[]") for text in texts)
    tensors = any("Tensor" in text for text in texts) or not schema.returns
    return tensors and not (writes or scripted or generic) and _dispatches(function)


def _dispatches(function: Overload) -> bool:
    """True if torch's dispatcher has a kernel. It has none for TorchScript's operators of the same name."""
    return torch._C._dispatch_has_kernel(function.name())
