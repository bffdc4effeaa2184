"""Compilers of devices and what they read."""
