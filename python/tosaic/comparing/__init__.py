"""Comparison of two runnable programs by nodes and outputs."""
