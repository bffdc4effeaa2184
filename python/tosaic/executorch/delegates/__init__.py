"""Delegates of ExecuTorch that tosaic lowers: the choice of their calls, their payloads and their runs."""
