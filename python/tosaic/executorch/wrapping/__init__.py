"""Partitioners of ExecuTorch around others: chosen boundaries and memory orders."""
