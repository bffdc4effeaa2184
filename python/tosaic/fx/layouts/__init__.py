"""Applies layout plans to programs of torch."""
