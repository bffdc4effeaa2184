"""Base classes of option values whose classes are in higher folders, so that checks can recognize them."""

from __future__ import annotations


class NodesValue:
    """A key of ``models=`` that selects nodes; see `tosaic.program.model_keys.Nodes`."""


class SignatureValue:
    """A calling convention; see `tosaic.ports.signature.Signature`."""
