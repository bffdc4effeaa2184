"""Annotations of PT2E quantizers as plans: read from a graph of torch, changed by rules, written back.

Only `tosaic.fx` imports this package, and only when one of its functions is used: it needs torchao.
"""
