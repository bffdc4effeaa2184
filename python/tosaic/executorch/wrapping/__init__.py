"""Partitioners that wrap others, to choose the boundaries and memory orders of their delegates."""
