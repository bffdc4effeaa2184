"""Bases of the classes that options take, by which a check knows values of layers above."""

from __future__ import annotations


class NodesValue:
    """A key of ``models=`` that selects nodes; see `tosaic.program.model_keys.Nodes`."""


class SignatureValue:
    """A calling convention; see `tosaic.ports.signature.Signature`."""
