"""Calls of grid samplers, drawn from a seed, and their exact results."""
