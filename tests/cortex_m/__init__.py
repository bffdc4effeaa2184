"""Compares integer lowering for Cortex-M with ExecuTorch's Cortex-M backend and with CMSIS-NN.

programs    random quantized programs of one operator
reference   the same program through ExecuTorch's passes and Python operators, and through tosaic
kernels     CMSIS-NN's C kernels, compiled from a checkout
checking    the comparison, and the differences that are explained
recorded    results of the C kernels, recorded in kernel_results.json
"""
