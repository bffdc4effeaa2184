"""Annotations of torchao's PT2E quantization, and the observers that it inserts."""
