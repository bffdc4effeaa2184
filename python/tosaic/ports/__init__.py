"""Inputs and outputs: names, signatures, forms and quantization."""
