"""Finds quantized inputs and outputs of torch's programs, and replaces them by integers."""
