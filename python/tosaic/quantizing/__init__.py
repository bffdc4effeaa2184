"""Calls that quantize programs and explain what was quantized."""
