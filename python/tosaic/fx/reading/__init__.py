"""Reads programs of torch into graphs: each call becomes one node."""
