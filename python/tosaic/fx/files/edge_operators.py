"""Modules of ExecuTorch that register operators; `libraries` imports those that a file needs."""

from __future__ import annotations

# Namespace of operators -> modules that register some of them.
MODULES: dict[str, tuple[str, ...]] = {
    "cadence": ("executorch.backends.cadence.aot.ops_registrations",),
    "channels_last": ("executorch.backends.transforms.channels_last_ops",),
    "cortex_m": ("executorch.backends.cortex_m.ops.operators",),
    "dim_order_ops": ("executorch.exir.passes.dim_order_ops_registry",),
    "et_copy": ("executorch.exir.passes._device_copy_ops_registry",),
    "executorch_prim": ("executorch.exir.passes.executorch_prim_ops_registry",),
    "llama": ("executorch.extension.llm.custom_ops.custom_ops",),
    "preprocess": ("executorch.extension.llm.custom_ops.preprocess_custom_ops",),
    "tosa": ("executorch.backends.arm.tosa.dialect",),
}
