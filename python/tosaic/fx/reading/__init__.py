"""Reads programs of torch into graphs: one call, one node."""
