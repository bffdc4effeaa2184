"""Inputs and outputs of torch's programs: which are quantized, and integers in their place."""
