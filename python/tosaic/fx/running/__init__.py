"""Runs programs with torch, for comparisons."""
