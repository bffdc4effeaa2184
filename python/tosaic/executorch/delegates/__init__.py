"""Delegates of ExecuTorch that tosaic lowers: which calls they take, their payloads and their runs."""
