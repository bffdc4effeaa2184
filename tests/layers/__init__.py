"""Exports, lowers and runs the layers of torch.nn and the functions of torch.nn.functional, and compares."""
