"""Converts quantized programs into kernels of ExecuTorch's Cortex-M backend, by a plan of tosaic."""
