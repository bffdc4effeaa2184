"""Runs programs with torch, to compare."""
